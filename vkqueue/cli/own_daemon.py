"""A daemon of a command's own, in a temporary folder, for as long as the command runs."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vkqueue.bench import child
from vkqueue.client.sync import Client, connect
from vkqueue.errors import ConnectionLostError, InternalError, UnsupportedError

# A driver's first start can take long: as much as the systemd units grant.
_START_S = 120.0
_STOP_S = 45.0


class Host:
    """The daemon that a command talks to.

    Attributes:
        path: its socket.
        pid: its process; None for one that was running already.
    """

    def __init__(self, path: str, log: Path | None = None, pid: int | None = None) -> None:
        self.path = path
        self.pid = pid
        self._log = log

    def connect(self, device: int | None = None) -> Client:
        """A connection to work on a device; by its index at the daemon, or what the daemon chooses.

        Raises:
            InvalidError: no such device.
            UnsupportedError: no device works; says why, and what to install.
            ConnectionLostError: no daemon answers.
        """
        with connect(self.path) as first:  # asked without an index, to tell "no such device" from "no device at all"
            if first.device is None:
                raise UnsupportedError(f"no Vulkan device works: {self._why()}")
        return connect(self.path, device=device)

    def _why(self) -> str:
        if self._log is None:
            return f"the log of the daemon at {self.path} says why"
        return complaints(self._log.read_text()) or "the daemon does not say why"


def complaints(log: str) -> str:
    """What a daemon's log warns of, without times and names of loggers."""
    texts = [line.split(": ", 1)[-1] for line in log.splitlines() if {"WARNING", "ERROR"} & set(line.split()[2:3])]
    return "; ".join(texts)


@contextlib.contextmanager
def hosted(socket: str | None, *settings: str) -> Iterator[Host]:
    """The running daemon at `socket`; else one started here with these settings (SECTION.KEY=VALUE), and stopped at the
    end.

    Raises:
        InternalError: the daemon does not start, or does not stop in order; says what its log says.
    """
    if socket is not None:
        yield Host(socket)
        return
    # In /tmp in any case: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="vkqueue-", dir="/tmp") as folder:
        path, log = f"{folder}/socket", Path(folder, "log")
        arguments = ["serve", "--socket", path]
        for setting in ("daemon.log_format=plain", *settings):
            arguments += ["--set", setting]
        with log.open("wb") as output:
            process = subprocess.Popen(
                child.command("vkqueue", *arguments),
                env=child.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is this command's: it stops the daemon itself
            )
        try:
            _wait_until_it_answers(process, path, log)
            yield Host(path, log, process.pid)
        finally:
            status = _stop(process)
        if status != 0:
            raise InternalError(f"the daemon ended with status {status}:\n{log.read_text()[-2000:]}")


def _wait_until_it_answers(process: subprocess.Popen[bytes], path: str, log: Path) -> None:
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            connect(path).close()
            return
        except ConnectionLostError:
            time.sleep(0.02)
    state = "does not answer" if process.poll() is None else f"ended with status {process.returncode}"
    raise InternalError(f"the daemon {state}:\n{log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
