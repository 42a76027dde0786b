"""`connect(spawn=True)`: one daemon however many ask, detached, gone some time after its last client (rule 45).

The daemons are real ones, without a device: they answer all the same, and start at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vkqueue
import vkqueue.aio
from vkqueue.client import address, spawn
from vkqueue.client.spawn import ensure_running, log_file
from vkqueue.errors import ConnectionLostError

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import asyncio, json, os, socket, struct, sys
import vkqueue, vkqueue.aio

def report(gpu):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(sys.argv[2])
        pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        children = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        children = None
    print(json.dumps({"pid": pid, "server": gpu.server, "children": children}), flush=True)
    sys.stdin.readline()

async def with_asyncio():
    async with vkqueue.aio.connect(spawn=True) as gpu:
        report(gpu)

if sys.argv[1] == "aio":
    asyncio.run(with_asyncio())
else:
    with vkqueue.connect(spawn=True) as gpu:
        report(gpu)
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's runtime folder, with a short path; daemons started there find no driver."""
    for variable in [name for name in os.environ if name.startswith(("VKQUEUE_", "XDG_"))]:
        monkeypatch.delenv(variable)
    with tempfile.TemporaryDirectory(prefix="vkq", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(address, "SYSTEM_SOCKET", f"{folder}/no-system-daemon")
        yield Path(folder)


@pytest.fixture
def stand_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has Python code run in the daemon's stead; `sys.argv` are the daemon's arguments."""

    def use(code: str) -> None:
        monkeypatch.setattr(spawn, "_program", lambda: [sys.executable, "-c", code])

    return use


def wait_for_end(pid: int, timeout: float = 20) -> bool:
    """Whether a process that is no child of ours has ended in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def test_several_at_once_start_one_daemon_which_leaves_by_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQUEUE_DAEMON_IDLE_EXIT_S", "1")
    path = place / "vkqueue" / "vkqueue.sock"
    scripts = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, kind, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        for kind in ("sync", "aio", "sync", "aio", "sync")
    ]  # fmt: skip
    try:
        reports = [json.loads(script.stdout.readline()) for script in scripts]  # type: ignore[union-attr]
        pids = {report["pid"] for report in reports}
        assert len(pids) == 1
        assert all(report["server"].startswith("vkqueue/") for report in reports)
        assert [report["children"] for report in reports] == [None] * 5  # it is nobody's child
        (daemon,) = pids
        assert os.getsid(daemon) not in {script.pid for script in scripts} | {os.getsid(0)}
        for script in scripts:
            script.communicate("go on\n")
    finally:
        for script in scripts:
            script.kill()
            script.communicate()
    assert [script.returncode for script in scripts] == [0] * 5
    assert wait_for_end(daemon)
    assert not path.exists()
    log = (place / "vkqueue" / "vkqueue.log").read_text()
    assert log.count(f" at {path}\n") == 1 and "another vkqueue daemon" not in log
    assert "no client for 1 s" in log


def test_a_running_daemon_is_used(place: Path, start: Callable[..., Any]) -> None:
    _, path = start()
    with vkqueue.connect(path, spawn=True) as gpu:
        assert gpu.server == "fake/1"
    assert list(place.iterdir()) == []


def test_the_systems_daemon_comes_before_one_of_our_own(
    place: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = start()
    monkeypatch.setattr(address, "SYSTEM_SOCKET", path)
    with vkqueue.connect(spawn=True) as gpu:
        assert gpu.server == "fake/1"

    async def body() -> str:
        async with vkqueue.aio.connect(spawn=True) as gpu:
            return gpu.server

    assert asyncio.run(body()) == "fake/1"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_one_that_cannot_start_says_why_by_its_log(place: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("VKQUEUE_BATCHING_MAX_BATCH_JOBS", "0")

    async def body() -> None:
        await vkqueue.aio.connect(spawn=True)

    with pytest.raises(ConnectionLostError, match="ended at once") as caught:
        vkqueue.connect(spawn=True) if kind == "sync" else asyncio.run(body())
    assert "batching.max_batch_jobs: expected 1 to" in caught.value.message
    assert str(place / "vkqueue" / "vkqueue.log") in caught.value.message


def test_only_the_last_start_is_in_the_message(place: Path, stand_in: Callable[[str], None]) -> None:
    (place / "s.log").write_text("what an earlier daemon said\n")
    stand_in("print('line 1', flush=True); raise SystemExit('line 2')")
    with pytest.raises(ConnectionLostError) as caught:
        ensure_running(place / "s.sock", 10)
    assert caught.value.message.endswith("ends:\n  line 1\n  line 2")
    assert (place / "s.log").read_text().startswith("what an earlier daemon said\n")


def test_one_that_does_not_answer(place: Path, stand_in: Callable[[str], None]) -> None:
    stand_in(f"import os, signal; open('{place}/pid', 'w').write(str(os.getpid())); signal.pause()")
    try:
        with pytest.raises(ConnectionLostError, match="does not answer"):
            ensure_running(place / "s.sock", 0.5)
    finally:
        pid = int((place / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
    assert wait_for_end(pid)


def test_what_the_daemon_inherits(
    place: Path, stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC"):
        monkeypatch.setenv(name, "1")
    stand_in(
        "import json, os, sys; json.dump({'env': dict(os.environ), 'argv': sys.argv[1:], 'cwd': os.getcwd(), "
        f"'fds': os.listdir('/proc/self/fd')}}, open('{place}/seen', 'w'))"
    )
    kept = os.open(place, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        with pytest.raises(ConnectionLostError):
            ensure_running(place / "s.sock", 10)
    finally:
        os.close(kept)
    seen = json.loads((place / "seen").read_text())
    assert not {"NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC"} & set(seen["env"])
    assert seen["env"]["VKQUEUE_DAEMON_IDLE_EXIT_S"] == "60.0"
    assert seen["argv"] == ["serve", "--socket", str(place / "s.sock")]
    assert seen["cwd"] == "/"
    # Standard ones, the pipe by which its end is noticed, and that of the listing.
    assert len(seen["fds"]) == 5


def listening(path: Path, answer: Callable[[socket.socket], None]) -> threading.Thread:
    """Accepts one connection at `path`."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        with server, server.accept()[0] as peer:
            answer(peer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("code", ["", "shutting_down"])
def test_one_that_is_ending_does_not_count(place: Path, code: str) -> None:
    from vkqueue.errors import ShuttingDownError
    from vkqueue.wire.framing import Limits
    from vkqueue.wire.session import ServerConnection

    def answer(peer: socket.socket) -> None:
        if code:
            connection = ServerConnection(Limits())
            ((msgid, _, _),) = connection.receive_data(peer.recv(4096))
            connection.fail(msgid, ShuttingDownError("the daemon is shutting down"))
            peer.sendall(b"".join(connection.data_to_send()))

    thread = listening(place / "s", answer)
    assert not spawn._answers(str(place / "s"), time.monotonic() + 10)
    thread.join()


def test_one_that_hangs_is_no_reason_for_another(place: Path) -> None:
    """Nor is the caller kept longer than it asked for."""
    gate = threading.Event()
    thread = listening(place / "s", lambda peer: bool(gate.wait(20)) and None)
    try:
        with pytest.raises(ConnectionLostError, match="a daemon has this socket, but does not answer"):
            ensure_running(place / "s", 0.2)
    finally:
        gate.set()
        thread.join()
    assert not (place / "s.log").exists()


class TestFolder:
    def test_it_is_the_users_alone(self, place: Path) -> None:
        spawn._make_folder(str(place / "new"))
        assert (place / "new").stat().st_mode & 0o777 == 0o700

    def test_a_link_in_tmp_is_refused(self, place: Path) -> None:
        (place / "elsewhere").mkdir()
        (place / "link").symlink_to("elsewhere")
        with pytest.raises(ConnectionLostError, match="not a folder"):
            ensure_running(place / "link" / "s", 10)

    def test_one_that_everybody_may_write_to_is_refused(self, place: Path) -> None:
        (place / "open").mkdir()
        (place / "open").chmod(0o777)
        with pytest.raises(ConnectionLostError, match="everybody may write"):
            ensure_running(place / "open" / "s", 10)

    def test_a_strangers_is_refused(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (place / "theirs").mkdir()
        if os.getuid() == 0:
            os.chown(place / "theirs", 12345, -1)
        else:
            monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(ConnectionLostError, match="belongs to user"):
            ensure_running(place / "theirs" / "s", 10)


def test_the_log_of_the_users_own_daemon_has_its_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"{place}/vkqueue/vkqueue.sock"
    assert log_file(own) == f"{place}/vkqueue/vkqueue.log"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert log_file(own) == "/state/vkqueue/daemon.log"
    assert log_file("/elsewhere/a.sock") == "/elsewhere/a.log"


def test_a_large_log_is_put_aside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_MAX_LOG_BYTES", 10)
    log = place / "log"
    log.write_text("more than ten bytes")
    os.close(spawn._open_log(str(log)))
    assert log.read_text() == ""
    assert (place / "log.old").read_text() == "more than ten bytes"
