"""Memory that client and daemon share, by a client that knows only docs/protocol.md: its own memfd, and msgpack."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.cases import of_kind
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError
from support.shared import F_SEAL_FUTURE_WRITE, SEALED, SharedMemory

pytestmark = pytest.mark.gpu

N = 1024
MIB = 1 << 20
[AXPY] = [case.spirv for case in of_kind("run") if case.name == "glsl_axpy_O"]
"""y[i] += a * x[i], scalars n and a."""

MODES = {"imported": "", "mirrored": "external_memory_host = false\n"}


@pytest.fixture(scope="module", params=MODES)
def sharing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose device uses shared memory itself, and one that mirrors it. When all clients are gone nothing of
    what they shared may be left."""
    running = Daemon(tmp_path_factory.mktemp(request.param), config=MODES[request.param])
    try:
        yield running
        with running.client() as client:
            nothing_shared(client)
        until(lambda: "memfd:test" not in Path(f"/proc/{running.process.pid}/maps").read_text(), "it is still mapped")
        until(lambda: not [link for link in links(running) if "memfd:test" in link], "its file is still open")
    finally:
        status = running.stop()
    assert not running.complaints(), "\n".join(running.complaints())[:4000]
    assert status == 0, running.log.read_text()[-4000:]


def links(daemon: Daemon) -> list[str]:
    """What the daemon's descriptors are."""
    folder = f"/proc/{daemon.process.pid}/fd"
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]


@pytest.fixture
def memory() -> Iterator[Callable[..., SharedMemory]]:
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(SharedMemory(*args, **options))


def share(client: RawClient, memory: SharedMemory, **params: Any) -> int:
    """Share all of it; the handle."""
    answer = client.wait(client.send_with([memory.file], "buffer.share", **{"size": memory.size, **params}))
    assert answer["size"] == params.get("size", memory.size)
    return int(answer["buffer"])


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def nothing_shared(client: RawClient) -> None:
    """Wait until the device has given back all memory that clients shared: behind the last work on it."""
    until(lambda: not client.call("stats")["devices"][0]["memory"]["shared_bytes"], "the memory is not given back")


def until(there: Callable[[], bool], complaint: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 20
    while not there():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.005)


def test_a_kernel_on_shared_memory(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    with sharing.client() as client:
        x, y = memory(4 * N), memory(4 * N)
        module = client.call("module.load", spirv=AXPY)["module"]
        args = [share(client, x), share(client, y)]
        for turn in range(1, 4):
            x.view[:] = floats(*(turn * i for i in range(N)))
            y.view[:] = floats(*[1.0] * N)
            client.call("dispatch", module=module, args=args, scalars=[N, 2.0], grid=[N // 64])
            assert bytes(y.view) == floats(*(1 + 2 * turn * i for i in range(N)))
        assert client.call("buffer.read", buffer=args[1], offset=4, size=8)["data"] == floats(7, 13)


def test_bytes_go_both_ways(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    """More than a message could carry, and pipelined."""
    size = 64 * MIB + 4096
    up, down = memory(size), memory(size)
    piece = bytes(range(251)) * (MIB // 251)
    for start in range(0, size, len(piece)):
        up.view[start : start + len(piece)] = piece[: size - start]
    with sharing.client(timeout=60) as client:
        source, target = share(client, up), share(client, down)
        own = client.call("buffer.create", size=size)["buffer"]
        client.wait(
            [
                client.send("buffer.copy", source=source, target=own),
                client.send("buffer.write", buffer=own, offset=5, data=b"between"),
                client.send("buffer.copy", source=own, target=target),
            ][-1]
        )
        assert bytes(down.view[:5]) == bytes(up.view[:5])
        assert bytes(down.view[5:12]) == b"between"
        assert down.view[12:] == up.view[12:]
        client.call("buffer.free", buffer=target)
        client.call("buffer.free", buffer=source)
        nothing_shared(client)


def test_copies_within_and_between(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    with sharing.client() as client:
        mine = memory(4096)
        buffer = share(client, mine)
        mine.view[:8] = b"01234567"
        client.call("buffer.copy", source=buffer, target=buffer, target_offset=8, size=8)
        client.call("buffer.copy", source=buffer, target=buffer, source_offset=4096)
        assert bytes(mine.view[:16]) == b"0123456701234567"
        for wrong in (
            {"target_offset": 7, "size": 8},
            {"size": 4097},
            {"target_offset": 4090, "size": 8},
            {"source_offset": 4097},
            {},  # onto itself
        ):
            with pytest.raises(RemoteError, match="invalid"):
                client.call("buffer.copy", source=buffer, target=buffer, **wrong)
        with pytest.raises(RemoteError, match="not_found: target: no buffer 99"):
            client.call("buffer.copy", source=buffer, target=99)


@pytest.mark.parametrize(
    ("options", "params", "says"),
    [
        ({"size": 4096, "seals": 0}, {}, "its seals are 0x0"),
        ({"size": 4096, "seals": fcntl.F_SEAL_SHRINK}, {}, "its seals are 0x2"),
        ({"size": 4096, "seals": SEALED | fcntl.F_SEAL_WRITE}, {}, "not against writing"),
        ({"size": 4096, "seals": SEALED | F_SEAL_FUTURE_WRITE}, {}, "not against writing"),
        ({"size": 4096}, {"size": 4097}, "has 4096 bytes; it must have at least 4097"),
        ({"size": 100, "length": 100}, {}, "in whole pages of 4096"),
        ({"size": 0}, {"size": 0}, "at least one byte"),
        ({"size": 4096}, {"device": 9}, "device: 9 is none"),
    ],
)
def test_what_is_wrong_is_said_and_the_next_one_works(
    sharing: Daemon,
    memory: Callable[..., SharedMemory],
    options: dict[str, Any],
    params: dict[str, Any],
    says: str,
) -> None:
    with sharing.client() as client:
        wrong = memory(**options)
        msgid = client.send_with([wrong.file], "buffer.share", **{"size": wrong.size, **params})
        right = memory(4096)
        good = client.send_with([right.file], "buffer.share", size=4096)
        with pytest.raises(RemoteError, match=says) as caught:
            client.wait(msgid)
        assert caught.value.code == "invalid"
        right.view[:2] = b"ok"
        assert client.call("buffer.read", buffer=client.wait(good)["buffer"], size=2)["data"] == b"ok"


def test_no_memfd_and_no_descriptor(sharing: Daemon) -> None:
    with sharing.client() as client:
        with open("/dev/null", "r+b") as file, pytest.raises(RemoteError, match="is no memfd"):
            client.wait(client.send_with([file.fileno()], "buffer.share", size=4096))
        with pytest.raises(RemoteError, match="no file descriptor came"):
            client.call("buffer.share", size=4096)


def test_requests_that_are_refused_unread_take_their_descriptor_along(
    sharing: Daemon, memory: Callable[..., SharedMemory]
) -> None:
    with sharing.client(hello=False) as client:
        wrong, right = memory(4096), memory(4096)
        wrong.view[:5], right.view[:5] = b"wrong", b"right"
        early = client.send_with([wrong.file], "buffer.share", size=4096)
        hello = client.send("hello", protocol=1, client="raw")
        shapeless = msgpack.packb([0, 50, "buffer.share", [1, 2]])
        socket.send_fds(client.sock, [shapeless], [wrong.file])
        unknown = client.send_with([wrong.file], "buffer.share", size=4096, sise=1)
        good = client.send_with([right.file], "buffer.share", size=4096)
        client.wait(hello)
        for msgid, code in ((early, "protocol"), (50, "invalid"), (unknown, "invalid")):
            with pytest.raises(RemoteError) as caught:
                client.wait(msgid)
            assert caught.value.code == code
        assert client.call("buffer.read", buffer=client.wait(good)["buffer"], size=5)["data"] == b"right"


def test_requests_cut_anywhere_and_several_in_one_message(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    with sharing.client() as client, sharing.client() as other:
        memories = [memory(4096) for _ in range(4)]
        for index, one in enumerate(memories):
            one.view[0] = index
        first = msgpack.packb([0, 10, "buffer.share", [{"size": 4096}]])
        for at in range(1, len(first)):
            # The first byte brings the descriptor, whenever the rest comes.
            data = msgpack.packb([0, 100 + at, "buffer.share", [{"size": 4096}]])
            socket.send_fds(client.sock, [data[:at]], [memories[at % 4].file])
            for _ in range(2):
                other.call("ping")  # the daemon has read the piece by then
            client.sock.sendall(data[at:])
            buffer = client.wait(100 + at)["buffer"]
            assert client.call("buffer.read", buffer=buffer, size=1)["data"] == bytes([at % 4])
        both = b"".join(msgpack.packb([0, 1000 + i, "buffer.share", [{"size": 4096}]]) for i in range(4))
        socket.send_fds(client.sock, [both], [one.file for one in memories])
        for index in range(4):
            buffer = client.wait(1000 + index)["buffer"]
            assert client.call("buffer.read", buffer=buffer, size=1)["data"] == bytes([index])


def test_many_pipelined_behind_a_module(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    """They wait for their turn, and keep no descriptor of the daemon's meanwhile."""
    with sharing.client() as client:
        memories = [memory(4096) for _ in range(40)]
        client.send("module.load", spirv=AXPY, **{"as": 1})
        client.send("module.inspect", module=1, format="spirv-asm")
        sent = []
        for index, one in enumerate(memories):
            one.view[:1] = bytes([index])
            sent.append(client.send_with([one.file], "buffer.share", size=4096, **{"as": 2 + index}))
            client.send("buffer.read", buffer=2 + index, size=1)
        for index, msgid in enumerate(sent):
            assert client.wait(msgid) == {"buffer": 2 + index, "size": 4096}
            assert client.wait(msgid + 1) == {"data": bytes([index])}


def test_memory_that_many_launches_used_is_let_go(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    """What is kept for requests with the same arguments does not keep it mapped."""

    def mapped() -> int:
        return Path(f"/proc/{sharing.process.pid}/maps").read_text().count("memfd:test")

    with sharing.client() as client:
        nothing_shared(client)
        until(lambda: not mapped(), "what was before is still mapped")
        one = memory(4096)
        module, shared = client.call("module.load", spirv=AXPY)["module"], share(client, one)
        many = {"module": module, "count": 2, "scalars": [64, 1.0], "grid": [1]}
        for _ in range(2):
            client.call("dispatch_many", **many, args=[[shared, 0, 256], [shared, 256, 256]])
        assert mapped()
        client.call("buffer.free", buffer=shared)
        nothing_shared(client)
        until(lambda: not mapped(), "it is still mapped")


def test_surplus_descriptors_end_the_connection(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    with sharing.client() as client:
        one = memory(4096)
        for _ in range(2):
            client.wait(client.send_with([one.file] * 8, "ping"))
        socket.send_fds(client.sock, [msgpack.packb([0, 99, "ping", []])], [one.file])
        [notice] = client.until_closed()
        assert notice[:2] == [2, "error"]
        assert notice[2][0]["code"] == "protocol" and "descriptors" in notice[2][0]["message"]
    with sharing.client() as client:
        socket.send_fds(client.sock, [msgpack.packb([0, 99, "ping", []])], [one.file] * 60)
        assert client.until_closed()[0][2][0]["code"] == "protocol"


def test_bounds(start: Callable[..., Daemon], memory: Callable[..., SharedMemory]) -> None:
    daemon = start(config="[limits]\nmax_shared_buffers = 3\nmax_memory_bytes = 1_000_000\n", validation=False)
    with daemon.client() as client:
        one = memory(4096)
        buffers = [share(client, one) for _ in range(3)]
        with pytest.raises(RemoteError, match="quota: max_shared_buffers"):
            share(client, one)
        for buffer in buffers:
            client.call("buffer.free", buffer=buffer)
        nothing_shared(client)
        with pytest.raises(RemoteError, match="quota: max_memory_bytes"):
            share(client, memory(MIB))
        assert share(client, one)


def test_closed_early(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    """With a descriptor whose request is not whole, with one that waits, with work on shared memory under way."""
    one = memory(MIB)
    client = sharing.client()
    data = msgpack.packb([0, 7, "buffer.share", [{"size": MIB}]])
    socket.send_fds(client.sock, [data[:-1]], [one.file])
    client.close()
    client = sharing.client()
    client.send("module.load", spirv=AXPY, **{"as": 1})
    client.send("module.inspect", module=1, format="spirv-asm")
    for index in range(5):
        client.send_with([one.file], "buffer.share", size=MIB, **{"as": 2 + index})
        client.send("buffer.copy", source=2 + index, target=2)
    client.close()
    with sharing.client() as client:
        nothing_shared(client)


_KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from support.rawclient import RawClient
from support.shared import SharedMemory

client, memory = RawClient({socket!r}), SharedMemory(16 << 20)
shared = client.wait(client.send_with([memory.file], "buffer.share", size=memory.size))["buffer"]
own = client.call("buffer.create", size=memory.size)["buffer"]
for _ in range(50):
    client.send("buffer.copy", source=shared, target=own)
    client.send("buffer.copy", source=own, target=shared)
client.send_with([memory.file], "buffer.share", size=memory.size)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rule_32_a_client_killed_with_copies_under_way(sharing: Daemon) -> None:
    tests = str(Path(__file__).parents[1])
    code = _KILLED.format(tests=tests, socket=str(sharing.path))
    with sharing.client() as other:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
        assert done.returncode == -9, done.stderr
        nothing_shared(other)
        assert other.call("stats")["clients"] == 1


def test_the_pages_are_not_what_another_connection_sees(sharing: Daemon, memory: Callable[..., SharedMemory]) -> None:
    with sharing.client() as client, sharing.client() as other:
        one = memory(4096)
        buffer = share(client, one)
        with pytest.raises(RemoteError, match="not_found"):
            other.call("buffer.read", buffer=buffer)
        # Both may share one file, if they want to.
        again = share(other, one)
        one.view[:3] = b"abc"
        assert other.call("buffer.read", buffer=again, size=3)["data"] == b"abc"
