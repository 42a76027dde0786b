"""A daemon's life: alone on its path, idle without waking, ended while busy, its helpers killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.daemon import Daemon, lavapipe_environment
from support.e2e import SLOW, code, create, device, kernel, load, refused
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

LONG = [65535, 64]
"""A grid that takes lavapipe a second or more."""


def another(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    """What a second daemon on the same path says."""
    command = [sys.executable, "-m", "vkqueue", "serve", "--socket", str(daemon.path)]
    return subprocess.run(command, env=lavapipe_environment(), capture_output=True, text=True, timeout=30)


def test_rule_29_a_second_daemon_on_one_path_says_so_and_leaves_the_first_alone(start: Callable[..., Daemon]) -> None:
    daemon = start(validation=False)
    ran = another(daemon)
    assert ran.returncode not in (0, -signal.SIGKILL)
    assert str(daemon.path) in ran.stderr
    with daemon.client() as client:
        assert client.call("ping") == {}


def test_rule_29_a_stale_socket_is_replaced(start: Callable[..., Daemon]) -> None:
    daemon = start(validation=False)
    daemon.process.kill()
    daemon.process.wait()
    assert daemon.path.is_socket()
    with pytest.raises(ConnectionRefusedError):
        RawClient(daemon.path)
    command = [sys.executable, "-m", "vkqueue", "serve", "--socket", str(daemon.path)]
    second = subprocess.Popen(command, env=lavapipe_environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert second.stderr is not None
        while "ready" not in (line := second.stderr.readline()):
            assert line, "it ended"
        with RawClient(daemon.path) as client:
            assert client.call("ping") == {}
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
        assert not daemon.path.exists()
    finally:
        second.kill()
        second.wait()
        second.stderr.close()  # type: ignore[union-attr]


def switches(daemon: Daemon) -> dict[str, int]:
    """How often each thread of the daemon has been given the processor. A driver names its threads; they are its own
    affair."""
    found = {}
    tasks = Path(f"/proc/{daemon.process.pid}/task")
    own = (tasks / str(daemon.process.pid) / "comm").read_text()
    for task in tasks.iterdir():
        if (task / "comm").read_text() == own:
            lines = (task / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines if ":" in line)
            found[task.name] = int(status["voluntary_ctxt_switches"])
    return found


def test_rule_24_an_idle_daemon_does_not_wake_up(start: Callable[..., Daemon]) -> None:
    """Nor one whose clients are connected and silent, after work of every kind."""
    daemon = start(validation=False)
    with daemon.client() as client:
        module = load(client, "axpy")
        x = create(client, 256)
        params = {"module": module, "args": [x, {"inout": bytes(256)}], "scalars": [64, 1.0], "grid": [1]}
        for _ in range(10):
            client.call("dispatch", **params, deadline_ms=50, timing=True)
        client.call("module.inspect", module=module, format="spirv-asm")
        calm = 0
        before = switches(daemon)
        deadline = time.monotonic() + 20  # the pipeline cache is written, timers of the past fire; then it is calm
        while calm < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
            now = switches(daemon)
            calm = calm + 1 if now == before else 0
            before = now
        assert calm == 2, f"it never comes to rest: {before}, then {switches(daemon)}"


def wait_for_drain(client: RawClient) -> None:
    """Until new work is refused: before that there is no such buffer."""
    while refused(client, "buffer.read", buffer=12345).code != "shutting_down":
        pass


def test_rule_31_accepted_work_finishes_and_everybody_has_an_answer(start: Callable[..., Daemon]) -> None:
    daemon = start()
    clients = [daemon.client() for _ in range(3)]
    try:
        jobs = []
        for client in clients:
            module = load(client, "mix")
            x, y = create(client, np.full(64, 1, np.uint32)), create(client, 256)
            for _ in range(100):
                launch = {"module": module, "args": [x, y], "scalars": [64, 1], "grid": [1]}
                jobs.append((client, client.send("dispatch", **launch), {"outputs": []}))
            jobs.append((client, client.send("buffer.read", buffer=y), None))
            assert client.call("ping") == {}  # so all of that has been received
        daemon.process.send_signal(signal.SIGTERM)
        for client, msgid, expected in jobs:
            answer = client.wait(msgid)
            assert expected is None or answer == expected
        assert daemon.process.wait(30) == 0
        assert not daemon.path.exists()
        for client in clients:
            assert client.until_closed() == []
    finally:
        for client in clients:
            client.close()
    assert not daemon.complaints()


def test_rule_31_new_work_is_refused_while_old_work_finishes(start: Callable[..., Daemon]) -> None:
    daemon = start(validation=False)
    with daemon.client() as client:
        if device(client)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        module = load(client, "fill")
        y = create(client, 256)
        long = client.send("dispatch", module=module, args=[y], scalars=[1], grid=LONG)
        client.call("ping")
        daemon.process.send_signal(signal.SIGTERM)
        wait_for_drain(client)
        assert client.call("ping") == {}
        assert client.wait(long) == {"outputs": []}
        assert daemon.process.wait(30) == 0


def test_rule_41_a_second_signal_ends_it_within_a_second(start: Callable[..., Daemon]) -> None:
    """While a fence is waited for, and jobs are queued: each gets its answer."""
    daemon = start(validation=False, config="[batching]\nbatches_in_flight = 1\n")
    with daemon.client() as client:
        if device(client)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        module = load(client, "fill")
        y = create(client, 256)
        client.call("dispatch", module=module, args=[y], scalars=[1], grid=[1])
        long = client.send("dispatch", module=module, args=[y], scalars=[1], grid=[65535, 512])
        while not client.call("stats")["devices"][0]["batches_in_flight"]:
            pass
        queued = [client.send("dispatch", module=module, args=[y], scalars=[1], grid=[1]) for _ in range(5)]
        client.call("ping")
        daemon.process.send_signal(signal.SIGTERM)
        wait_for_drain(client)
        started = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        for msgid in (long, *queued):
            with pytest.raises(RemoteError, match="shutting_down"):
                client.wait(msgid)
        assert daemon.process.wait(10) == 0
        assert time.monotonic() - started < 2.5  # one, and what a busy machine adds


def helpers(daemon: Daemon) -> list[int]:
    """Process ids of the daemon's children."""
    tasks = Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def test_rule_44_a_killed_helper_is_replaced(start: Callable[..., Daemon]) -> None:
    daemon = start(validation=False)
    with daemon.client() as client:
        for number in range(3):
            spirv = kernel("fill")
            spirv = spirv[:8] + number.to_bytes(4, "little") + spirv[12:]
            first = client.send("module.load", spirv=spirv)
            # Sent while the helper dies it may be what the helper was at; then it works the next time.
            assert code(client, first) in (None, "internal")
            loaded = client.call("module.load", spirv=spirv)
            answer = client.call("dispatch", module=loaded["module"], args=[{"out": 256}], scalars=[3], grid=[1])
            assert (np.frombuffer(answer["outputs"][0], np.uint32) == np.arange(3, 67)).all()
            pids = helpers(daemon)
            assert pids
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def test_rule_44_a_helper_killed_at_work_fails_its_request_and_the_next_one_works(start: Callable[..., Daemon]) -> None:
    """Whoever was waiting gets an answer, whichever it is; nobody waits for ever."""
    daemon = start(validation=False)
    with daemon.client() as client:
        load(client, "fill")
        pids = helpers(daemon)
        spirv = kernel("matmul")
        loads = [
            client.send("module.load", spirv=spirv[:8] + number.to_bytes(4, "little") + spirv[12:])
            for number in range(20)
        ]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        codes = []
        for msgid in loads:
            try:
                client.wait(msgid)
                codes.append(None)
            except RemoteError as error:
                codes.append(error.code)
        assert set(codes) <= {None, "internal"}
        assert codes.count("internal") <= 1
        assert load(client, "matmul")


def test_rule_38_23_others_are_served_while_one_client_waits(any_daemon: Daemon) -> None:
    with any_daemon.client() as busy, any_daemon.client() as other:
        module, y = load(busy, "fill"), create(busy, 256)
        slow = busy.send("dispatch", module=module, args=[y], scalars=[1], grid=SLOW)
        for _ in range(20):
            assert other.call("ping") == {}
        buffer = create(other, b"quick")
        assert other.call("buffer.read", buffer=buffer)["data"] == b"quick"
        assert busy.wait(slow) == {"outputs": []}


def test_a_client_that_never_says_anything_costs_nothing(any_daemon: Daemon) -> None:
    silent = []
    for _ in range(20):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(any_daemon.path))
        silent.append(sock)
    with any_daemon.client() as client:
        while client.call("stats")["clients"] < 21:
            pass
        for sock in silent:
            sock.close()
        while client.call("stats")["clients"] > 1:
            pass
