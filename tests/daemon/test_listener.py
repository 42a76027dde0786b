"""Listening: paths, stale and live sockets, passed sockets, running out of descriptors."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vkqueue.config import ConfigError, DaemonConfig
from vkqueue.daemon import listener
from vkqueue.daemon.listener import AlreadyRunningError, Listener, open_listener


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A path short enough for a socket."""
    yield str(tmp_path_factory.mktemp("s") / "d" / "s")


def open_at(path: str, **settings: object) -> Listener:
    return open_listener(DaemonConfig(socket=path, **settings), {})  # type: ignore[arg-type]


def close(*listeners: Listener) -> None:
    async def run() -> None:
        for each in listeners:
            each.close()

    asyncio.run(run())


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_folder_is_made_as_open_as_the_socket(path: str) -> None:
    private = open_at(path)
    assert (mode(path), mode(os.path.dirname(path))) == (0o600, 0o700)
    shared = open_at(path + "d/s", mode=0o660, group=str(os.getgid()))
    assert (mode(path + "d/s"), mode(path + "d")) == (0o660, 0o750)
    public = open_at(path + "e/s", mode=0o666)
    assert (mode(path + "e/s"), mode(path + "e")) == (0o666, 0o755)
    close(private, shared, public)


def test_a_stale_socket_is_replaced(path: str) -> None:
    """Rule 29."""
    os.mkdir(os.path.dirname(path))
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    opened = open_at(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    close(opened)


def test_a_live_socket_is_never_replaced(path: str) -> None:
    """Rule 29: the second daemon says so."""
    first = open_at(path)
    with pytest.raises(AlreadyRunningError, match=f"another vkqueue daemon answers at {path}"):
        open_at(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert not os.path.exists(f"{path}.lock")
    close(first)


def test_a_daemon_with_a_full_backlog_is_alive(path: str) -> None:
    os.mkdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(path)
            with pytest.raises(AlreadyRunningError):
                open_at(path)


def test_a_daemon_that_is_about_to_listen_is_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between bind and listen a socket refuses like a stale one; the lock is held meanwhile."""
    os.mkdir(os.path.dirname(path))
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    other = socket.socket(socket.AF_UNIX)
    other.bind(path)
    results: list[object] = []
    waits = threading.Event()
    flock = fcntl.flock

    def noticed(fd: int, operation: int) -> None:
        waits.set()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", noticed)

    def second() -> None:
        try:
            results.append(open_at(path))
        except AlreadyRunningError as error:
            results.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    assert waits.wait(10)
    assert not results
    other.listen(1)
    os.unlink(f"{path}.lock")
    os.close(lock)
    thread.join()
    other.close()
    assert isinstance(results[0], AlreadyRunningError)


def test_of_many_that_start_at_once_one_listens(path: str) -> None:
    results: list[object] = []

    def start() -> None:
        try:
            results.append(open_at(path))
        except AlreadyRunningError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = [result for result in results if isinstance(result, Listener)]
    assert len(opened) == 1
    assert len(results) == 16
    close(*opened)


def test_what_is_no_socket_is_left_alone(path: str) -> None:
    os.mkdir(os.path.dirname(path))
    Path(path).write_text("precious")
    with pytest.raises(ConfigError, match="is no socket; move it away"):
        open_at(path)
    assert Path(path).read_text() == "precious"


def test_paths_that_cannot_be_are_explained(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        open_at("/tmp/" + "x" * 200)
    with pytest.raises(ConfigError, match="there is no 'no-such-group' on this machine"):
        open_at(path, group="no-such-group")
    assert not os.path.exists(path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda *a, **k: _owned_by(real(*a, **k), 999))
    with pytest.raises(ConfigError, match="belongs to user 999, who could put another socket there"):
        open_at(path)


def _owned_by(status: os.stat_result, uid: int) -> os.stat_result:
    fields = list(status)
    fields[stat.ST_UID] = uid
    return os.stat_result(fields)


def test_our_path_is_removed_and_nobody_elses(path: str) -> None:
    ours = open_at(path)
    ours.remove_path()
    assert os.listdir(os.path.dirname(path)) == []
    second = open_at(path)
    os.unlink(path)
    third = open_at(path)
    second.remove_path()
    assert os.path.exists(path)
    third.remove_path()
    assert not os.path.exists(path)
    close(ours, second, third)


def test_a_passed_socket_is_used_and_never_removed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 29. File descriptor 3 may be pytest's, so the first passed one is moved."""
    os.mkdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as original:
        original.bind(path)
        original.listen(8)
        fd = fcntl.fcntl(original.fileno(), fcntl.F_DUPFD, 50)
        os.set_inheritable(fd, True)
        monkeypatch.setattr(listener, "FIRST_PASSED_FD", fd)
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "HOME": "/h"}
        passed = open_listener(DaemonConfig(socket="/elsewhere/s"), environ)
        assert environ == {"HOME": "/h"}
        assert passed.is_passed
        assert passed.name == path
        assert not os.get_inheritable(fd)
        passed.remove_path()
        close(passed)
        assert os.path.exists(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_sockets_for_another_process_are_not_ours(path: str) -> None:
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1"}
    opened = open_listener(DaemonConfig(socket=path), environ)
    assert not opened.is_passed
    close(opened)


def test_a_passed_socket_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(listener, "FIRST_PASSED_FD", ours.fileno())
    with pytest.raises(ConfigError, match="no listening Unix stream socket"):
        open_listener(DaemonConfig(), {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
    ours.close()
    theirs.close()


async def test_clients_are_handed_over(path: str) -> None:
    opened = await asyncio.to_thread(open_at, path)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    opened.start(accepted.put_nowait, lambda client: client.close())
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        theirs = await accepted.get()
        assert not theirs.getblocking()
        theirs.close()
    opened.close()


async def test_those_who_wait_are_handed_over_at_the_end(path: str) -> None:
    opened = await asyncio.to_thread(open_at, path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        got: list[socket.socket] = []
        opened.start(got.append, got.append)
        os.unlink(path)
        opened.accept_rest()
        assert len(got) == 1
        got[0].close()
    opened.close()


STARVED = """
import asyncio, os, resource, socket, sys
from vkqueue.config import DaemonConfig
from vkqueue.daemon import listener

listener.STARVED_PAUSE_S = 0.01
path, clients = sys.argv[1], []

async def main():
    opened = listener.open_listener(DaemonConfig(socket=path), {})
    refused, accepted = asyncio.Queue(), asyncio.Queue()
    opened.start(accepted.put_nowait, lambda client: (client.send(b"full"), client.close(), refused.put_nowait(1)))
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    others = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    hoard = []
    try:
        while True:
            hoard.append(os.dup(0))
    except OSError:
        pass
    client.connect(path)
    await refused.get()
    assert client.recv(10) == b"full"
    # Not even a spare one: accepting pauses, and goes on by itself.
    opened._spare.close()
    hoard.append(os.dup(0))
    opened._spare = None
    others[0].connect(path)
    turns = 0
    while opened._resume is None:
        turns += 1
        await asyncio.sleep(0)
    assert turns < 10
    for fd in hoard[:4]:
        os.close(fd)
    (await accepted.get()).close()
    opened.close()

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
asyncio.run(main())
"""


def test_without_descriptors_a_client_is_refused_and_nothing_spins(path: str) -> None:
    """Rule 46: in a process of its own, since it runs out of them."""
    subprocess.run([sys.executable, "-c", STARVED, path], check=True, timeout=30)


def test_errors_of_accept_do_not_end_it(path: str) -> None:
    """A client that has gone before it was accepted is skipped."""

    class Aborting:
        def __init__(self) -> None:
            self.left = 3

        def accept(self) -> tuple[socket.socket, str]:
            self.left -= 1
            if self.left:
                raise OSError(errno.ECONNABORTED, "aborted")
            raise BlockingIOError

        def getsockname(self) -> str:
            return "aborting"

    aborting = Aborting()
    made = Listener([aborting])  # type: ignore[list-item]
    made.accept_rest()
    assert aborting.left == 0
    made._sockets = []
    close(made)
