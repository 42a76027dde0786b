"""The whole shell with a service that needs no device: as a process of its own, and step by step in this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.echo import EchoService, LoopClient
from support.rawclient import RawClient, RemoteError

from vkqueue.config import Config, ConfigError
from vkqueue.daemon import lifecycle
from vkqueue.daemon.lifecycle import Daemon, Parts

TESTS = Path(__file__).parent.parent
ECHO = [sys.executable, str(TESTS / "support" / "echo.py"), "serve"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="vkq") as name:
        yield Path(name)


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(30)

    def next(self) -> str:
        """The next message, its first line."""
        return self.socket.recv(4096).decode().partition("\n")[0]


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    made = Manager(folder)
    yield made
    made.socket.close()


class Process:
    """`vkqueue serve` over the echo service, ready."""

    def __init__(self, folder: Path, manager: Manager, *options: str, **popen: Any) -> None:
        self.path = folder / "d" / "s"
        self.log = folder / "log"
        environ = {**os.environ, "PYTHONPATH": str(TESTS.parent), "NOTIFY_SOCKET": manager.path}
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [*ECHO, "--socket", str(self.path), *options], env=environ, stderr=log, **popen
            )
        assert manager.next() == "READY=1", self.log.read_text()

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        return self.popen.wait(30)

    def text(self) -> str:
        return self.log.read_text()


@pytest.fixture
def start(folder: Path, manager: Manager) -> Iterator[Any]:
    made: list[Process] = []

    def starter(*options: str, **popen: Any) -> Process:
        made.append(Process(folder, manager, *options, **popen))
        return made[-1]

    yield starter
    for process in made:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


@pytest.mark.parametrize(("number", "loop"), [(signal.SIGTERM, "asyncio"), (signal.SIGINT, "uvloop")])
def test_a_signal_drains(start: Any, manager: Manager, number: signal.Signals, loop: str) -> None:
    """Rule 31: accepted jobs finish, new ones are refused, everybody gets an answer, nothing is left."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    process = start("--set", f"daemon.uvloop={loop == 'uvloop'}")
    with RawClient(process.path) as client, RawClient(process.path) as bystander:
        job = client.send("dispatch", module=1, args=[], grid=[1], deadline_ms=300)
        client.call("ping")
        process.signal(number)
        assert manager.next() == "STOPPING=1"
        with pytest.raises(RemoteError, match="shutting_down"):
            while True:  # the drain begins when the socket is gone, just after the message
                client.call("dispatch", module=1, args=[], grid=[1], deadline_ms=1)
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(FileNotFoundError):
            late.connect(str(process.path))
        assert client.wait(job) == {"outputs": []}
        assert client.until_closed() == []
        assert bystander.until_closed() == []
    assert process.wait() == 0
    assert os.listdir(process.path.parent) == []
    assert "Traceback" not in process.text()


def test_a_second_signal_does_not_wait(start: Any, manager: Manager) -> None:
    process = start()
    with RawClient(process.path) as client:
        job = client.send("dispatch", module=1, args=[], grid=[1])
        client.call("ping")
        process.signal(signal.SIGTERM)
        assert manager.next() == "STOPPING=1"
        process.signal(signal.SIGTERM)
        with pytest.raises(RemoteError, match="shutting_down"):
            client.wait(job)
    assert process.wait() == 0


def test_a_drain_has_a_limit(start: Any) -> None:
    process = start("--set", "daemon.drain_timeout_s=0.05")
    with RawClient(process.path) as client:
        job = client.send("dispatch", module=1, args=[], grid=[1])
        client.call("ping")
        process.signal(signal.SIGTERM)
        with pytest.raises(RemoteError, match="shutting_down"):
            client.wait(job)
    assert process.wait() == 0
    assert "jobs are left unfinished" in process.text()


def test_a_second_daemon_says_so_and_leaves_the_first_alone(start: Any) -> None:
    """Rule 29."""
    process = start()
    second = subprocess.run(
        [*ECHO, "--socket", str(process.path)],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        stderr=subprocess.PIPE,
        timeout=30,
        text=True,
    )
    assert second.returncode == lifecycle.EXIT_ALREADY_RUNNING
    assert f"another vkqueue daemon answers at {process.path}" in second.stderr
    with RawClient(process.path) as client:
        client.call("ping")


def test_of_several_that_start_at_once_one_stays(folder: Path, manager: Manager) -> None:
    """Rules 29 and 45."""
    environ = {**os.environ, "PYTHONPATH": str(TESTS.parent), "NOTIFY_SOCKET": manager.path}
    run = [*ECHO, "--socket", str(folder / "s")]
    started = [subprocess.Popen(run, env=environ, stderr=subprocess.DEVNULL) for _ in range(4)]
    try:
        first_lines = [manager.next() for _ in started]
        assert sorted(first_lines) == ["READY=1", "STOPPING=1", "STOPPING=1", "STOPPING=1"]
        with RawClient(folder / "s") as client:
            pid, _, _ = struct.unpack("iII", client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        others = [process for process in started if process.pid != pid]
        assert [process.wait(30) for process in others] == [lifecycle.EXIT_ALREADY_RUNNING] * 3
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_killed_daemon_is_followed_by_the_next(start: Any) -> None:
    """Rule 29."""
    first = start()
    first.popen.kill()
    first.wait()
    assert first.path.exists()
    second = start()
    with RawClient(second.path) as client:
        client.call("ping")


def test_an_idle_daemon_leaves(start: Any) -> None:
    """Rule 45: some time after its last client, and not before the first has had its chance."""
    process = start("--idle-exit", "0.3")
    with RawClient(process.path) as client:
        client.call("ping")
    assert process.wait() == 0
    assert os.listdir(process.path.parent) == []
    assert "no client for 0.3 s" in process.text()


def test_an_idle_daemon_uses_no_time(start: Any) -> None:
    """Rule 24: not a single wake-up, as counted by the kernel."""
    process = start("--set", "daemon.idle_exit_s=1000")

    def switches() -> int:
        lines = Path(f"/proc/{process.popen.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt")))

    with RawClient(process.path) as client:
        client.call("ping")
    before = -1
    while (now := switches()) != before:  # until it rests
        before = now
        time.sleep(0.1)
    time.sleep(0.5)
    assert switches() == before


def test_sockets_that_systemd_passes_are_kept(folder: Path, start: Any, manager: Manager) -> None:
    """Rule 29: they outlive the daemon, and whoever connects meanwhile is served by the next one."""
    path = str(folder / "passed")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(8)

        # As systemd does it; the child's pid is not known beforehand, so a shell fills it in.
        shell = ["/bin/sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", *ECHO]

        def run() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                shell,
                env={**os.environ, "PYTHONPATH": str(TESTS.parent), "NOTIFY_SOCKET": manager.path},
                preexec_fn=lambda: os.dup2(listening.fileno(), 3),
                pass_fds=(3,),
                stderr=subprocess.DEVNULL,
            )

        first = run()
        assert manager.next() == "READY=1"
        with RawClient(path) as client:
            client.call("ping")
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert manager.next() == "STOPPING=1"
        assert os.path.exists(path)
        with RawClient(path, hello=False) as client:
            second = run()
            client.call("hello", protocol=1, client="early")
            client.call("ping")
            second.send_signal(signal.SIGTERM)
            client.until_closed()
        assert second.wait(30) == 0


def test_sighup_takes_what_it_can(folder: Path, start: Any, manager: Manager) -> None:
    config = folder / "vkqueue.toml"
    config.write_text("")
    process = start("--config", str(config), "--log-level", "info")
    config.write_text("[daemon]\nmax_clients = 1\nlog_level = 'debug'\n[batching]\nmax_batch_jobs = 1\n")
    process.signal(signal.SIGHUP)
    assert [manager.next() for _ in range(2)] == ["RELOADING=1", "READY=1"]
    with RawClient(process.path), RawClient(process.path, hello=False) as refused:
        assert refused.until_closed()[0][2][0]["code"] == "overloaded"
    config.write_text("[daemon]\nmax_clients = 'many'\n")
    process.signal(signal.SIGHUP)
    assert [manager.next() for _ in range(2)] == ["RELOADING=1", "READY=1"]
    text = process.text()
    assert "settings read again; changed: max_clients\n" in text  # the level is the command line's
    assert "only a restart changes batching.max_batch_jobs" in text
    assert "the settings stay as they are" in text


def test_a_thousand_clients_under_the_usual_limit(start: Any) -> None:
    """Rule 46: the soft limit of 1,024 files, which the daemon raises; past max_clients a reason is given."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = start(
        "--set", "daemon.max_clients=1000",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
    )  # fmt: skip
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(RawClient(process.path, hello=False)) for _ in range(1000)]
            for client in clients:
                client.send("hello", protocol=1, client="many")
            for client in clients:
                client.wait(1)
            for client in clients:
                client.send("ping")
            for client in clients:
                client.wait(2)
            extra = stack.enter_context(RawClient(process.path, hello=False))
            error = extra.until_closed()[0][2][0]
            assert (error["code"], error["data"]["max_clients"]) == ("overloaded", 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_wrong_settings_end_with_their_own_status() -> None:
    environ = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    run = [*ECHO, "--set", "daemon.allow_users=no-such-user-1"]
    result = subprocess.run(run, env=environ, stderr=subprocess.PIPE, timeout=30, text=True)
    assert result.returncode == lifecycle.EXIT_CONFIG
    assert "daemon.allow_users: there is no 'no-such-user-1' on this machine" in result.stderr
    assert "Traceback" not in result.stderr


# Step by step


class Running:
    """A Daemon on the test's loop."""

    def __init__(self, folder: Path, manager: Manager, **settings: Any) -> None:
        self.path = str(folder / "s")
        self.service = EchoService()
        config = Config().replace({"daemon": {"socket": self.path, **settings}}, "test")

        environ = {"NOTIFY_SOCKET": manager.path}
        self.daemon = Daemon(config, lambda: config, environ, lambda *_: Parts(self.service), most_clients=100)


@pytest.fixture
async def running(folder: Path, manager: Manager) -> AsyncIterator[Running]:
    yield Running(folder, manager)


async def told(manager: Manager) -> str:
    return await asyncio.to_thread(manager.next)


async def test_ready_is_announced_once_the_device_works(running: Running, manager: Manager) -> None:
    """Rule 30."""
    running.service.healthy = False
    serving = asyncio.create_task(running.daemon.serve())
    assert await told(manager) == "STATUS=not ready: a device does not work; at " + running.path
    client = await LoopClient.connect(running.path)  # served all the same, and told what is wrong
    running.service.mend_device()
    assert await told(manager) == "READY=1"
    running.service.break_device()
    assert (await told(manager)).startswith("STATUS=not ready")
    running.service.mend_device()
    assert await told(manager) == "STATUS=ready at " + running.path
    running.daemon.stop("test")
    assert await serving == 0
    assert running.service.stopped
    client.close()


async def test_a_device_that_is_gone_for_good_ends_the_daemon(running: Running, manager: Manager) -> None:
    """Rule 37: with a status that makes the service manager start it anew."""
    serving = asyncio.create_task(running.daemon.serve())
    assert await told(manager) == "READY=1"
    running.service.break_device(for_good=True)
    assert await serving == lifecycle.EXIT_FAILED


async def test_a_stop_does_not_wait_for_the_start(running: Running) -> None:
    starting = asyncio.Event()
    running.service.start = lambda on_started, on_health: starting.set()  # type: ignore[method-assign]
    serving = asyncio.create_task(running.daemon.serve())
    await starting.wait()
    running.daemon.stop("test")
    assert await serving == 0
    assert running.service.stopped
    assert not await asyncio.to_thread(os.path.exists, running.path)


async def test_parts_that_cannot_be_built_leave_nothing(folder: Path, manager: Manager) -> None:
    running = Running(folder, manager)

    def build(*_: object) -> Parts:
        raise ConfigError("settings", ["device.select: none"])

    running.daemon._factory = build
    with pytest.raises(ConfigError):
        await running.daemon.serve()
    assert not await asyncio.to_thread(os.path.exists, running.path)


async def test_the_watchdog_is_fed(folder: Path, manager: Manager) -> None:
    running = Running(folder, manager)
    running.daemon._notifier.watchdog_s = 0.01
    serving = asyncio.create_task(running.daemon.serve())
    got = [await told(manager) for _ in range(4)]
    assert got.count("WATCHDOG=1") >= 2
    running.daemon.stop("test")
    assert await serving == 0


async def test_a_client_at_the_last_moment_is_served(folder: Path, manager: Manager) -> None:
    """It connected before the path went, so the idle daemon stays for it, and leaves after it."""
    running = Running(folder, manager, idle_exit_s=1000.0)
    serving = asyncio.create_task(running.daemon.serve())
    assert await told(manager) == "READY=1"
    clients = running.daemon._clients
    assert clients is not None
    late = socket.socket(socket.AF_UNIX)
    late.connect(running.path)  # with no turn of the loop in between: it waits to be accepted
    clients._on_idle()
    client = LoopClient(late)
    await client.hello()
    while await asyncio.to_thread(os.path.exists, running.path):
        await client.call("ping")
    await client.call("ping")
    assert not serving.done()
    client.close()
    await running.service.ended.wait()
    assert len(clients) == 0
    clients._on_idle()
    with anyio.fail_after(20):
        assert await serving == 0


async def test_who_waits_at_a_stop_is_told(running: Running, manager: Manager) -> None:
    serving = asyncio.create_task(running.daemon.serve())
    assert await told(manager) == "READY=1"
    late = socket.socket(socket.AF_UNIX)
    late.connect(running.path)
    running.daemon.stop("test")
    error = await LoopClient(late).until_closed()
    assert error is not None
    assert error.code == "shutting_down"
    late.close()
    assert await serving == 0
