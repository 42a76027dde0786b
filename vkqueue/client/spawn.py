"""A daemon of the user's own, started when none answers: `connect(spawn=True)`.

However many ask at once, one of them starts it: who holds the lock beside the socket looks once more, starts the
daemon, and lets go when that answers. The daemon is no child of the program (a shell in between ends at once), so that
it outlives it, gets none of its signals, and turns up in none of its waits. It leaves by itself `IDLE_EXIT_S` after its
last client.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vkqueue.address import default_socket
from vkqueue.errors import ConnectionLostError, ShuttingDownError
from vkqueue.wire.client import ClientConnection
from vkqueue.wire.framing import Limits
from vkqueue.wire.messages import PROTOCOL_VERSION

START_S = 120.0
"""How long a daemon may take to start; a driver's first start can be slow. As much as the systemd units grant."""
IDLE_EXIT_S = 60.0
"""Arbitrary: scripts that follow each other share a daemon, and a forgotten one does not keep the device for long."""

# How often to look whether the daemon is there, or the lock is free. Arbitrary.
_POLL_S = 0.02
# A log that has grown past this is put aside when the next daemon starts. Arbitrary.
_MAX_LOG_BYTES = 1 << 20
# How much of the log an error shows.
_TAIL_BYTES, _TAIL_LINES = 4096, 12
# The program's own ties to a service manager are not the daemon's.
_NOT_INHERITED = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_STREAM",
)  # fmt: skip
# The shell puts the daemon in the background and ends; the daemon's parent is then init.
_DETACH = '"$@" &'
_ROOT = str(Path(__file__).resolve().parents[2])


def ensure_running(path: str | os.PathLike[str] | None, timeout: float) -> str:
    """Start a daemon unless one answers; the path of its socket. Blocks.

    Args:
        path: the daemon's socket; None for the user's own.
        timeout: seconds that it may take to answer.

    Raises:
        ConnectionLostError: it cannot be started, or does not answer; with the end of its log.
    """
    end = time.monotonic() + timeout
    where = os.fspath(path) if path is not None else default_socket(os.environ, os.getuid())
    try:
        _make_folder(os.path.dirname(where) or ".")
        with _lock(f"{where}.spawn", end):
            if not _answers(where, end):
                _start(where, end)
    except OSError as error:
        reason = f"{error.filename or where}: {error.strerror or error}"
        raise ConnectionLostError(f"no vkqueue daemon answers, and none can be started: {reason}") from error
    return where


def _make_folder(folder: str) -> None:
    """Make the socket's folder if it is missing, for this user alone; refuse one where others could put a socket."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    status = os.stat(folder) if not folder.startswith("/tmp/") else os.lstat(folder)  # in /tmp a link may be anybody's
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "this is not a folder; remove it", folder)
    if status.st_uid not in (0, os.getuid()):
        text = f"the folder belongs to user {status.st_uid}, who could put another socket there; choose another path"
        raise PermissionError(errno.EPERM, text, folder)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        text = f"everybody may write to this folder and replace a socket there; use another, or chmod o-w {folder}"
        raise PermissionError(errno.EPERM, text, folder)


@contextlib.contextmanager
def _lock(name: str, end: float) -> Iterator[None]:
    """Hold a lock file. It stays: removing one that others may have opened would let two of them in."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    text = "another program is starting the daemon, and has not finished within the time-out"
                    raise TimeoutError(errno.ETIMEDOUT, text, name) from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _answers(path: str, end: float) -> bool:
    """Whether a daemon answers at `path`. One that is there, but still starting, is waited for.

    Raises:
        OSError: the socket cannot be used, or nothing comes in time.
    """
    connection = ClientConnection(Limits())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(_left(end))
            sock.connect(path)
            connection.request("hello", {"protocol": PROTOCOL_VERSION, "client": f"spawn[{os.getpid()}]"})
            sock.sendall(b"".join(connection.data_to_send()))
            while connection.pending and connection.fault is None:
                sock.settimeout(_left(end))
                data = sock.recv(65536)
                errors = [error for _, error, _ in connection.receive_data(data)]
                if not data or any(isinstance(error, ShuttingDownError) for error in errors):
                    return False  # it has ended, or is about to
        except (FileNotFoundError, ConnectionError):
            return False
        except TimeoutError:
            text = "a daemon has this socket, but does not answer within the time-out"
            raise TimeoutError(errno.ETIMEDOUT, text, path) from None
    return True  # also one that refuses us: whoever connects is told why


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _start(path: str, end: float) -> None:
    """Start a daemon, and return once it answers."""
    log = log_file(path)
    output = _open_log(log)
    try:
        begin = os.fstat(output).st_size
        alive, held = os.pipe()  # the daemon inherits the end to write to: the other one ends when it does
        try:
            try:
                _run_detached(path, output, held)
            finally:
                os.close(held)
            _wait(path, alive, log, begin, end)
        finally:
            os.close(alive)
    finally:
        os.close(output)


def _run_detached(path: str, output: int, held: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment.setdefault("VKQUEUE_DAEMON_IDLE_EXIT_S", str(IDLE_EXIT_S))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH", ""))))
    command = [*_program(), "serve", "--socket", os.path.abspath(path)]
    subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", *command],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(held,),
        start_new_session=True,
        check=True,
    )


def _program() -> list[str]:
    """How the command line is run: by this very package, if there is an interpreter to name."""
    if sys.executable:
        return [sys.executable, "-P", "-m", "vkqueue"]
    found = shutil.which("vkqueue")
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "this program is not in $PATH; start the daemon yourself", "vkqueue")
    return [found]


def _wait(path: str, alive: int, log: str, begin: int, end: float) -> None:
    """Return once the daemon answers.

    Raises:
        ConnectionLostError: it has ended, or does not answer in time.
    """
    while True:
        ended = bool(select.select([alive], [], [], _POLL_S)[0])
        try:
            if _answers(path, end):
                return
            reason = "ended at once" if ended else "does not answer"
        except TimeoutError:
            ended, reason = True, "does not answer in time"
        if ended or time.monotonic() > end:
            raise ConnectionLostError(
                f"no vkqueue daemon answered, and the one that was started at {path} {reason}. Its log, {log}, ends:\n"
                f"{_tail(log, begin)}",
                {"path": path, "log": log},
            )


def log_file(path: str) -> str:
    """Where a daemon that was started for `path` writes its log: for the user's own, $XDG_STATE_HOME if that is set;
    else beside the socket.
    """
    state = os.environ.get("XDG_STATE_HOME")
    if state and path == default_socket(os.environ, os.getuid()) and not os.environ.get("VKQUEUE_SOCKET"):
        return f"{state}/vkqueue/daemon.log"
    return f"{path.removesuffix('.sock')}.log"


def _open_log(log: str) -> int:
    os.makedirs(os.path.dirname(log) or ".", 0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(log).st_size > _MAX_LOG_BYTES:
            os.replace(log, f"{log}.old")
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _tail(log: str, begin: int) -> str:
    """The end of what was written to the log since `begin`, a few lines at most."""
    with open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:]) or "  (nothing)"
