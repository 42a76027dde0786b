"""Which daemon to talk to, and what to say when none is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from vkqueue.address import SYSTEM_SOCKET, default_socket
from vkqueue.errors import ConnectionLostError


def candidates(path: str | os.PathLike[str] | None) -> list[str]:
    """Sockets to try, in order: the one that is named (by `path` or $VKQUEUE_SOCKET), else the user's own daemon's
    and the system's.
    """
    if path is not None:
        return [os.fspath(path)]
    own = default_socket(os.environ, os.getuid())
    return [own] if os.environ.get("VKQUEUE_SOCKET") else list(dict.fromkeys([own, SYSTEM_SOCKET]))


def distrusted(path: str) -> str | None:
    """Why a socket must not be used: in /tmp anybody can make the folder before its user does."""
    if path != f"/tmp/vkqueue-{os.getuid()}/vkqueue.sock":
        return None
    try:
        owner = os.stat(os.path.dirname(path)).st_uid
    except OSError:
        return None  # connecting tells why
    return None if owner == os.getuid() else f"its folder belongs to user {owner}"


def unreachable(tried: Sequence[tuple[str, str]]) -> ConnectionLostError:
    """The error that no daemon answered.

    Args:
        tried: paths and why each failed.
    """
    places = "; ".join(f"{path} ({reason})" for path, reason in tried)
    return ConnectionLostError(
        f"no vkqueue daemon answers; tried {places}. Start one with `vkqueue serve`, or name its socket by "
        f"connect(path) or $VKQUEUE_SOCKET",
        {"tried": [path for path, _ in tried]},
    )


def process_name() -> str:
    """How this process is called in the daemon's logs: the program's file and the process's number."""
    return f"{os.path.basename(sys.argv[0]) or 'python'}[{os.getpid()}]"
