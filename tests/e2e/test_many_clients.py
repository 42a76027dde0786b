"""Many clients at once, and clients that die or do not read: the others notice nothing, and nothing is left."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from support.cases import Case, of_kind
from support.daemon import Daemon
from support.e2e import create, device, kernel, load, read
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

MIB = 2**20


def settled(client: RawClient) -> dict[str, Any]:
    """The daemon's `stats` once only this connection is left and nothing is going on."""
    while True:
        stats: dict[str, Any] = client.call("stats")
        if stats["clients"] == 1 and not stats["jobs_queued"] and not stats["buffers"]:
            if not any(one["batches_in_flight"] for one in stats["devices"]):
                return stats


def resident(daemon: Daemon) -> int:
    """Bytes of memory that the daemon has."""
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.fixture
def file_limits() -> Iterator[tuple[int, int]]:
    """The usual soft limit of open files, while a daemon starts; the test then raises its own."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip(f"not more than {before[1]} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_rule_46_a_thousand_connections_at_once(
    start: Callable[..., Daemon], file_limits: tuple[int, int]
) -> None:
    """Each does something; one more than `max_clients` is refused with a reason, and served once one has left."""
    daemon = start(config="[daemon]\nmax_clients = 1001\n", validation=False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, file_limits[1]), file_limits[1]))
    clients = []
    try:
        clients = [daemon.client() for _ in range(1000)]
        contents = [index.to_bytes(4, "little") for index in range(1000)]
        msgids = [client.send("buffer.create", data=data) for client, data in zip(clients, contents, strict=True)]
        reads = [client.send("buffer.read", buffer=1) for client in clients]
        for client, msgid in zip(clients, msgids, strict=True):
            assert client.wait(msgid) == {"buffer": 1, "size": 4}
        for client, msgid, data in zip(clients, reads, contents, strict=True):
            assert client.wait(msgid)["data"] == data
        clients.append(daemon.client())
        stats = clients[-1].call("stats")
        assert (stats["clients"], stats["buffers"]) == (1001, 1000)
        with daemon.client(hello=False) as refused:
            [notice] = refused.until_closed()
            assert notice[2][0]["code"] == "overloaded"
            assert "1001" in notice[2][0]["message"]
        clients.pop(0).close()
        while clients[0].call("stats")["clients"] == 1001:
            pass
        clients.append(daemon.client())
        for client in clients[:-1]:
            client.close()
        assert settled(clients[-1])["clients"] == 1
    finally:
        for client in clients:
            client.close()


class Worker(threading.Thread):
    """One of many clients: cases of the corpus and transfers of many sizes, each result checked."""

    def __init__(self, daemon: Daemon, seed: int, cases: list[Case], sizes: list[int]) -> None:
        super().__init__()
        self.daemon_ = daemon
        self.seed = seed
        self.cases = cases
        self.sizes = sizes
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with RawClient(self.daemon_.path, timeout=120) as client:
                self.work(client, random.Random(self.seed))
        except BaseException as error:
            self.error = error

    def work(self, client: RawClient, rng: random.Random) -> None:
        mix = load(client, "mix")
        for case in self.cases:
            self.run_case(client, case)
        for size in self.sizes:
            self.run_size(client, mix, size)
        for error, _ in client.answers.values():
            assert error is None, error

    def run_size(self, client: RawClient, mix: int, size: int) -> None:
        data = np.random.default_rng(size + self.seed).integers(0, 2**32, size // 4, np.uint32)
        x, y = create(client, size), create(client, size)
        half = size // 8 * 4
        for buffer in (x, y):
            for offset, part in ((0, data[: half // 4]), (half, data[half // 4 :])):
                client.send("buffer.write", buffer=buffer, data=part.tobytes(), offset=offset)
        for k in range(3):
            for first in range(0, size, 65535 * 256):  # as much as one grid covers
                count = min(65535 * 64, (size - first) // 4)
                args = [[x, first, 4 * count], [y, first, 4 * count]]
                params = {"module": mix, "args": args, "scalars": [count, k], "grid": [-(-count // 64)]}
                client.send("dispatch", **params)
        expected = data.copy()
        for k in range(3):
            expected = 31 * expected + data + np.uint32(k)
        for offset, part in ((0, expected[: half // 4]), (half, expected[half // 4 :])):
            got = client.call("buffer.read", buffer=y, offset=offset, size=len(part) * 4)["data"]
            assert got == part.tobytes(), size
        for buffer in (x, y):
            client.send("buffer.free", buffer=buffer)

    def run_case(self, client: RawClient, case: Case) -> None:
        loaded = client.call("module.load", spirv=case.spirv, entry=case.entry)
        bindings = loaded["kernels"][case.entry]["bindings"]
        access = {(b["set"], b["binding"]): b["access"] for b in bindings}
        for run in case.runs:
            if len({e.array for e in run.entries}) != len(run.entries) or any(b["count"] > 1 for b in bindings):
                continue
            arrays = run.arrays()
            written = [e.array for e in run.entries if "write" in access[e.set, e.binding]]
            args = [{"inout" if e.array in written else "in": arrays[e.array].tobytes()} for e in run.entries]
            params: dict[str, Any] = {} if run.push is None else {"scalars": run.push}
            if run.spec:
                params["specialization"] = {str(id): value for id, value in run.spec.items()}
            answer = client.call("dispatch", module=loaded["module"], args=args, grid=list(run.grid), **params)
            after: dict[str, Any] = dict(zip(written, answer["outputs"], strict=True))
            run.check({name: after.get(name, array.tobytes()) for name, array in arrays.items()})
        client.call("module.unload", module=loaded["module"])


@pytest.mark.slow
def test_rule_13_32_clients_at_once_get_their_own_right_bytes(daemon: Daemon) -> None:
    """Corpus kernels and sizes from 4 bytes to 64 MiB, all mixed; afterwards nothing is left."""
    with daemon.client() as observer:
        limits, features = device(observer)["limits"], device(observer)["features"]
        version, name = device(observer)["api_version"], device(observer)["name"]
        runnable = [
            case
            for case in of_kind("run")
            if not case.missing(limits, features, version) and not case.deviates(name)
        ]
        before = observer.call("stats")["jobs_failed"]
        workers = []
        for seed in range(32):
            rng = random.Random(seed)
            sizes = [4, 64, 4096, rng.randrange(1, 65536) * 4, rng.choice([MIB, 4 * MIB])]
            if seed % 16 == 3:
                sizes.append(64 * MIB)
            rng.shuffle(sizes)
            workers.append(Worker(daemon, seed, rng.sample(runnable, 8), sizes))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for worker in workers:
            if worker.error is not None:
                raise worker.error
        stats = settled(observer)
        assert stats["jobs_failed"] == before
        assert stats["buffers"] == 0


# Clients that die

VICTIM = """
import os, socket, sys
sys.path.insert(0, sys.argv[2])
from support.rawclient import RawClient
from support.e2e import kernel
import msgpack
client = RawClient(sys.argv[1])
{body}
print("ready", flush=True)
client.sock.settimeout(None)
import time
time.sleep(600)
"""

DEATHS = {
    "mid-upload": """
buffer = client.call("buffer.create", size=32 << 20)["buffer"]
data = msgpack.packb([0, 50, "buffer.write", [{"buffer": buffer, "data": bytes(32 << 20)}]])
client.sock.sendall(data[: len(data) // 2])
""",
    "mid-header": """
client.call("buffer.create", size=1 << 20)
client.sock.sendall(b"\\x94\\x00\\x07\\xacbuffer.write\\x91\\x82\\xa6buffer\\x01\\xa4data\\xc6\\x02")
""",
    "mid-queue": """
module = client.call("module.load", spirv=kernel("axpy"))["module"]
x, y = (client.call("buffer.create", size=1 << 20)["buffer"] for _ in range(2))
client.call("dispatch", module=module, args=[x, y], scalars=[64, 1.0], grid=[1])
for _ in range(2):
    client.send("dispatch", module=module, args=[x, y], scalars=[64, 0], grid=[65535, 16])
for index in range(2000):
    client.send("dispatch", module=module, args=[x, {"inout": bytes(256)}], scalars=[64, 1.0], grid=[1],
                after=[client.msgid], deadline_ms=600000, priority=index % 7)
client.send("buffer.free", buffer=x)
client.send("buffer.create", size=1 << 20)
""",
    "mid-compile": """
client.send("module.load", spirv=kernel("matmul"), **{"as": 1})
client.send("buffer.create", size=1 << 20, **{"as": 2})
client.send("dispatch", module=1, args=[2, 2, 2], scalars=[4, 4, 4], grid=[1])
client.send("buffer.read", buffer=2)
""",
    "mid-download": """
buffer = client.call("buffer.create", size=32 << 20)["buffer"]
for _ in range(8):
    client.send("buffer.read", buffer=buffer)
client.sock.recv(1000)
""",
}


@pytest.mark.parametrize("when", DEATHS)
def test_rule_32_a_client_killed_at_its_worst_leaves_nothing_and_disturbs_nobody(
    any_daemon: Daemon, when: str, tmp_path: Path
) -> None:
    with any_daemon.client() as other:
        mix = load(other, "mix")
        x, y = create(other, np.full(64, 1, np.uint32)), create(other, 256)
        value = np.uint32(0)
        with np.errstate(over="ignore"):
            for _ in range(2):
                victim = subprocess.Popen(
                    [sys.executable, "-c", VICTIM.replace("{body}", DEATHS[when]), any_daemon.path,
                     str(Path(__file__).resolve().parents[1])],
                    stdout=subprocess.PIPE,
                )  # fmt: skip
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"ready\n"
                launches = [
                    other.send("dispatch", module=mix, args=[x, y], scalars=[64, 1], grid=[1]) for _ in range(20)
                ]
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                victim.stdout.close()
                for msgid in launches:
                    assert other.wait(msgid) == {"outputs": []}
                    value = np.uint32(31) * value + np.uint32(2)
                assert (read(other, y, np.uint32) == value).all()
        for buffer in (x, y):
            other.call("buffer.free", buffer=buffer)
        stats = settled(other)
        assert stats["clients"] == 1


def test_rule_22_jobs_of_a_client_that_leaves_go_at_once(any_daemon: Daemon) -> None:
    with any_daemon.client() as other:
        if device(other)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        leaver = any_daemon.client()
        module = load(leaver, "axpy")
        x, y = create(leaver, 256), create(leaver, 256)
        for _ in range(30):  # some eight seconds, all in order
            leaver.send("dispatch", module=module, args=[x, y], scalars=[64, 0], grid=[65535, 16], timing=True)
            leaver.send("dispatch", module=module, args=[x, y], scalars=[64, 0], grid=[1], after=[leaver.msgid])
        started = time.monotonic()
        leaver.close()
        settled(other)
        assert time.monotonic() - started < 6


# Clients that do not read

BOUNDED = """
[daemon]
write_timeout_s = 0.5
[limits]
max_message_bytes = 1048576
max_module_bytes = 1048576
max_queued_bytes = 2097152
max_output_bytes = 2097152
"""


def test_rule_27_a_client_that_reads_nothing_is_bounded_then_disconnected(start: Callable[..., Daemon]) -> None:
    """It asks for gigabytes in a few kilobytes; the daemon grows by megabytes, and goes on with the others."""
    daemon = start(config=BOUNDED, validation=False)
    with daemon.client() as other:
        before = resident(daemon)
        deaf = daemon.client()
        buffer = create(deaf, 1_000_000)
        requests = b"".join(
            msgpack.packb([0, 1000 + index, "buffer.read", [{"buffer": buffer}]]) for index in range(3000)
        )
        deaf.sock.sendall(requests)
        most = 0
        while other.call("stats")["clients"] == 2:
            most = max(most, resident(daemon))
            assert other.call("ping") == {}
        assert most - before < 64 * MIB
        deaf.close()
        settled(other)


def test_rule_27_a_slow_reader_gets_everything_in_the_end(start: Callable[..., Daemon]) -> None:
    """It reads a little now and then, so it is never cut off, and what it asked for comes in full."""
    daemon = start(config=BOUNDED, validation=False)
    with daemon.client() as slow, daemon.client() as other:
        buffer = create(slow, 500_000)
        module = load(slow, "fill")
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        msgids = [slow.send("buffer.read", buffer=buffer) for _ in range(40)]
        launch = {"module": module, "args": [{"out": 500_000}], "scalars": [1], "grid": [1]}
        msgids += [slow.send("dispatch", **launch) for _ in range(20)]
        msgids.append(slow.send("ping"))
        while not all(msgid in slow.answers for msgid in msgids):
            assert slow.receive()
            assert other.call("ping") == {}
        assert all(slow.answers[msgid][0] is None for msgid in msgids)
        assert sum(len(slow.answers[msgid][1]["data"]) for msgid in msgids[:40]) == 40 * 500_000


def test_rule_9_a_burst_of_large_uploads_does_not_grow_the_daemon(start: Callable[..., Daemon]) -> None:
    daemon = start(config=BOUNDED, validation=False)
    with daemon.client() as client, daemon.client() as other:
        buffer = create(client, 1_000_000)
        module = load(client, "axpy")
        x = create(client, 256)
        client.send("dispatch", module=module, args=[x, x], scalars=[64, 0], grid=[65535, 16])
        before = resident(daemon)
        data = os.urandom(1_000_000)
        most = 0

        def upload() -> None:
            for _ in range(60):
                client.send("buffer.write", buffer=buffer, data=data)

        thread = threading.Thread(target=upload)
        thread.start()
        while thread.is_alive():
            assert other.call("ping") == {}
            most = max(most, resident(daemon))
        thread.join()
        assert client.call("buffer.read", buffer=buffer)["data"] == data
        assert most - before < 48 * MIB


def test_a_connection_that_closes_frees_all_that_it_owned(any_daemon: Daemon) -> None:
    with any_daemon.client() as other:
        for _ in range(3):
            with any_daemon.client() as client:
                for size in (0, 1, 4096, MIB):
                    create(client, size)
                load(client, "axpy")
                client.send("buffer.create", size=MIB)
                client.send("buffer.free", buffer=1)
        assert settled(other)["memory_bytes"] >= 0


def test_rule_28_handles_of_another_connection_say_nothing(any_daemon: Daemon) -> None:
    with any_daemon.client() as owner, any_daemon.client() as other:
        buffer = create(owner, b"secret")
        seen = []
        for handle in (buffer, buffer + 1000):
            with pytest.raises(RemoteError) as error:
                other.call("buffer.read", buffer=handle)
            seen.append((error.value.code, error.value.message.replace(str(handle), "N")))
        assert seen[0] == seen[1]
        assert seen[0][0] == "not_found"
        assert kernel("axpy")
