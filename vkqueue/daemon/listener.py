"""The listening sockets: one of our own at a path, or those that systemd passed in; and accepting from them.

Two daemons may start on one path at the same moment, and between `bind` and `listen` a socket looks as dead as one
whose daemon was killed. So looking, removing, binding and listening happen under a lock file, as does removing
the path at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, MutableMapping

from vkqueue.config import ConfigError, DaemonConfig
from vkqueue.daemon.access import group_id
from vkqueue.errors import VkqueueError

log = logging.getLogger("vkqueue.daemon")

# The kernel cuts it to net.core.somaxconn (4,096 by default): a thousand clients may start in one moment.
BACKLOG = 4096
# One turn of the loop accepts so many before other clients get theirs. Arbitrary.
ACCEPTS_A_TURN = 64
# How long accepting pauses when there is not even a descriptor to refuse with. Arbitrary.
STARVED_PAUSE_S = 1.0
# sizeof(sockaddr_un.sun_path) less the NUL.
MAX_PATH_BYTES = 107
FIRST_PASSED_FD = 3


class AlreadyRunningError(VkqueueError):
    """Another daemon answers at the socket's path."""

    code = "already_running"


class Listener:
    """Accepts clients and hands each over as a non-blocking socket. Lives on the loop thread.

    Args:
        sockets: listening, non-blocking.
        path: the socket file to remove at the end, None for sockets that belong to somebody else.

    Attributes:
        name: for logs and status lines.
    """

    def __init__(self, sockets: list[socket.socket], path: str | None = None) -> None:
        self._sockets = sockets
        self._path = path
        self._identity = _identity(path) if path else None
        self._on_client: Callable[[socket.socket], None] = lambda client: client.close()
        self._on_starved: Callable[[socket.socket], None] = lambda client: client.close()
        self._resume: asyncio.TimerHandle | None = None
        # Given up for a moment when the process has no descriptor left, so that a client can still be told.
        self._spare: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._starving = False
        self.name = path or str(sockets[0].getsockname())

    def start(self, on_client: Callable[[socket.socket], None], on_starved: Callable[[socket.socket], None]) -> None:
        """Accept from now on.

        Args:
            on_client: takes a new client; must not block or raise.
            on_starved: takes one for which there are no file descriptors; must refuse and close it at once.
        """
        self._on_client, self._on_starved = on_client, on_starved
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.add_reader(listening.fileno(), self._accept, listening)

    def accept_rest(self) -> None:
        """Hand over all that have connected and wait to be accepted."""
        for listening in self._sockets:
            while self._accept(listening):
                pass

    @property
    def is_passed(self) -> bool:
        """Whether the sockets outlive this process: who waits in them is served by the next one."""
        return self._path is None

    def remove_path(self) -> None:
        """Remove the socket file, if it is still ours: nobody new can connect. Blocks; call it in a thread."""
        if self._path is None:
            return
        path, self._path = self._path, None
        with _lock(path), contextlib.suppress(OSError):
            if _identity(path) == self._identity:
                os.unlink(path)

    def close(self) -> None:
        """Stop accepting. Those who wait in a socket of our own are reset; `remove_path` comes before this."""
        loop = asyncio.get_running_loop()
        if self._resume is not None:
            self._resume.cancel()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets = []
        if self._spare is not None:
            self._spare.close()

    def _accept(self, listening: socket.socket) -> bool:
        """Accept up to a turn's share; whether there may be more."""
        for _ in range(ACCEPTS_A_TURN):
            try:
                client, _ = listening.accept()
            except BlockingIOError:
                return False
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE):
                    return self._refuse_starved(listening)
                if exc.errno != errno.ECONNABORTED:
                    log.warning("cannot accept from %s: %s", self.name, exc)
                    return False
                continue
            self._starving = False
            client.setblocking(False)
            self._on_client(client)
        return True

    def _refuse_starved(self, listening: socket.socket) -> bool:
        """No descriptor for a client that waits: give up the spare one to tell it, or pause for a while.

        The socket stays readable as long as somebody waits, so doing nothing would spin.
        """
        if not self._starving:
            log.error("out of file descriptors: new clients are refused until some leave (ulimit -n)")
        self._starving = True
        try:
            if self._spare is not None:
                self._spare.close()
                self._spare = None
                client, _ = listening.accept()
                client.setblocking(False)
                self._on_starved(client)
            self._spare = socket.socket(socket.AF_UNIX)
            return True
        except BlockingIOError:
            self._spare = socket.socket(socket.AF_UNIX)
        except OSError:
            self._pause()
        return False

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
        if self._resume is None:
            self._resume = loop.call_later(STARVED_PAUSE_S, self._unpause)

    def _unpause(self) -> None:
        self._resume = None
        self.start(self._on_client, self._on_starved)


def open_listener(config: DaemonConfig, environ: MutableMapping[str, str]) -> Listener:
    """Listen on the sockets that systemd passed, else on a new one at `config.socket`. Blocks.

    A stale socket file is replaced, a live one never. `LISTEN_…` variables are taken out of `environ`, so that
    child processes do not believe the sockets to be theirs.

    Raises:
        AlreadyRunningError: another daemon answers at the path.
        ConfigError: the path cannot be used, or the group is none of this machine.
    """
    passed = _passed_sockets(environ)
    if passed:
        return Listener(passed)
    path = config.socket
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError("settings", [f"daemon.socket: a socket's path has at most {MAX_PATH_BYTES} bytes: {path}"])
    try:
        _make_folder(os.path.dirname(path) or ".", config)
        with _lock(path):
            _remove_stale(path)
            return Listener([_bind(path, config)], path)
    except OSError as exc:
        raise ConfigError("settings", [f"daemon.socket: cannot listen at {path}: {exc}"]) from exc


def _bind(path: str, config: DaemonConfig) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(path)
        try:
            # Before `listen` nobody can connect, whatever the umask made of the mode.
            if config.group:
                os.chown(path, -1, _group(config))
            os.chmod(path, config.mode)
            listening.listen(BACKLOG)
        except BaseException:
            os.unlink(path)
            raise
    except BaseException:
        listening.close()
        raise
    return listening


def _group(config: DaemonConfig) -> int:
    try:
        return group_id(config.group)
    except KeyError:
        raise ConfigError("settings", [f"daemon.group: there is no {config.group!r} on this machine"]) from None


def _make_folder(folder: str, config: DaemonConfig) -> None:
    """Make the socket's folder if it is missing, as open as the socket itself; refuse one that is a stranger's."""
    try:
        mode = 0o700 | (0o050 if config.mode & 0o060 else 0) | (0o005 if config.mode & 0o006 else 0)
        os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
        os.mkdir(folder, 0o700)
        if config.group:
            os.chown(folder, -1, _group(config))
        os.chmod(folder, mode)
    except FileExistsError:
        owner = os.stat(folder).st_uid
        if owner not in (0, os.getuid()):
            raise PermissionError(
                errno.EPERM, f"the folder belongs to user {owner}, who could put another socket there", folder
            ) from None


def _remove_stale(path: str) -> None:
    """Remove a socket file behind which nobody listens.

    Raises:
        AlreadyRunningError: somebody does.
        OSError: what is there is no socket, or cannot be asked.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket; move it away", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog must not hold us up; it means that somebody is there
        result = probe.connect_ex(path)
    if result in (0, errno.EAGAIN):
        raise AlreadyRunningError(f"another vkqueue daemon answers at {path}")
    if result not in (errno.ECONNREFUSED, errno.ENOENT):
        raise OSError(result, f"cannot ask who listens there: {os.strerror(result)}", path)
    log.info("replacing the stale socket %s", path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def _lock(path: str) -> Iterator[None]:
    """Hold PATH.lock, which exists only while somebody does."""
    name = f"{path}.lock"
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Its holder removes the file, so what we locked may be one that nobody else can find any more.
            if _identity(name) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
                try:
                    yield
                finally:
                    os.unlink(name)
                return
        finally:
            os.close(fd)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _passed_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """The listening stream sockets of socket activation (sd_listen_fds); empty when there are none for us.

    Raises:
        ConfigError: one that was passed is no listening Unix stream socket.
    """
    count = _passed_count(environ)
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    sockets = []
    for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + count):
        passed = socket.socket(fileno=fd)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM or not listening:
            passed.detach()
            raise ConfigError("systemd", [f"file descriptor {fd} is no listening Unix stream socket (Accept=no)"])
        os.set_inheritable(fd, False)
        passed.setblocking(False)
        sockets.append(passed)
    return sockets


def _passed_count(environ: Mapping[str, str]) -> int:
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return 0  # none, or meant for the process that started us
    count = environ.get("LISTEN_FDS", "")
    return int(count) if count.isdecimal() else 0
