"""Whether a daemon answers, and where one would."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vkqueue.cli.checks import Finding, Machine, ok, problem, warning
from vkqueue.client import address
from vkqueue.errors import VkqueueError
from vkqueue.version import __version__

_START = (
    "start one: vkqueue serve, systemctl --user start vkqueue, or connect(spawn=True) in a program; why it does not "
    "start is told by journalctl --user -u vkqueue"
)
# sizeof(sockaddr_un.sun_path) less the NUL.
_MAX_PATH_BYTES = 107
# Arbitrary: one that does not answer in this time has hung, or still starts a slow driver.
_TIMEOUT_S = 5.0


def check(machine: Machine, socket: str | None = None) -> Iterator[Finding]:
    """Each place where a client would look."""
    answers = False
    for path in address.candidates(socket):
        finding, here = _examine(path)
        answers = answers or here
        yield finding
    if not answers:
        yield warning("daemon", "none answers", _START)


def _examine(path: str) -> tuple[Finding, bool]:
    """What is at a socket's path, and whether that is a daemon that answers."""
    name = f"socket {path}"
    distrusted = address.distrusted(path)
    if distrusted is not None:
        return problem(name, f"must not be used: {distrusted}", f"remove {os.path.dirname(path)}, as root"), False
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return problem(name, f"is longer than {_MAX_PATH_BYTES} bytes", "choose a shorter path"), False
    if not os.path.exists(path):
        return ok(name, "is not there: no daemon runs at this place"), False
    from vkqueue.client.sync import connect

    try:
        with connect(path, timeout=_TIMEOUT_S, client_name="vkqueue doctor") as gpu:
            return _described(name, gpu.server, len(gpu.devices())), True
    except TimeoutError:
        text = f"a daemon is there, but does not answer within {_TIMEOUT_S:g} s"
        return problem(name, text, "look at its log; it may still be starting a driver"), False
    except VkqueueError as error:
        return _refused(name, path, error), False


def _described(name: str, server: str, devices: int) -> Finding:
    text = f"{server} answers, with {devices} device{'s' if devices != 1 else ''}"
    if not devices:
        return problem(name, text, "its log says why; after a repair, restart it: it looks for devices at its start")
    if server != f"vkqueue/{__version__}":
        return warning(name, f"{text}; this command is of version {__version__}", "restart the daemon")
    return ok(name, text)


def _refused(name: str, path: str, error: VkqueueError) -> Finding:
    if not os.access(path, os.W_OK):
        text = "this user may not connect to it"
        return problem(name, text, f"join its group (ls -l {path}), or look at the daemon's socket settings")
    return warning(name, error.message, "the next daemon replaces a socket that nobody listens at")
