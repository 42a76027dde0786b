"""Where the daemon's socket is when nobody says: daemon and clients have to agree without talking."""

from __future__ import annotations

from collections.abc import Mapping

SYSTEM_SOCKET = "/run/vkqueue/vkqueue.sock"
"""The system service's socket (config/system.toml, systemd/vkqueue.socket)."""


def default_socket(environ: Mapping[str, str], uid: int) -> str:
    """Path of the user's own daemon: `$VKQUEUE_SOCKET`, else a folder that only this user can enter.

    `$XDG_RUNTIME_DIR` is that folder's place where a session manager made one; root's is /run. Elsewhere it is
    under /tmp and carries the uid; the daemon refuses a folder there that somebody else has made.
    """
    if environ.get("VKQUEUE_SOCKET"):
        return environ["VKQUEUE_SOCKET"]
    if environ.get("XDG_RUNTIME_DIR"):
        return f"{environ['XDG_RUNTIME_DIR']}/vkqueue/vkqueue.sock"
    return SYSTEM_SOCKET if uid == 0 else f"/tmp/vkqueue-{uid}/vkqueue.sock"
