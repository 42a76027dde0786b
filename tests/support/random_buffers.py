"""A connection's buffers in random programs: created, shared and freed, and bytes moved to, from and between them."""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from support.e2e import limit
from support.effects import Place
from support.rawclient import RawClient, RemoteError
from support.reference import Memory, Reference, Sent, Wrong, difference
from support.shared import SharedMemory

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Mixture:
    """How programs are made.

    Attributes:
        large: share of buffers that are large, and of entries that are.
        share: whether memory is shared.
        disturb: whether requests are cancelled, come too late, or name failed ones.
        tolerated: codes of errors that any request may be answered with.
    """

    large: float = 0.15
    share: bool = True
    disturb: bool = True
    tolerated: frozenset[str] = frozenset()


class ReadingClient(RawClient):
    """Reads answers while it sends, so that neither side waits for the other.

    Attributes:
        beside: whose answers are read as well while this one waits.
    """

    beside: Sequence[ReadingClient] = ()

    def receive(self) -> bool:
        while True:
            sockets = {client.sock: client for client in (self, *self.beside) if client.sock.fileno() >= 0}
            ready = select.select(list(sockets), [], [], self.sock.gettimeout())[0]
            if not ready:
                raise TimeoutError(f"no answer; {len(self.answers)} others are there")
            for sock in ready:
                alive = RawClient.receive(sockets[sock])
                if sock is self.sock:
                    return alive
                if not alive:
                    raise ConnectionError(f"closed: {sockets[sock].notices}")

    def send_message(self, message: Any) -> None:
        data = memoryview(msgpack.packb(message, use_bin_type=True))
        while data:
            readable, writable, _ = select.select([self.sock], [self.sock], [], 60)
            assert readable or writable, "the daemon neither reads nor writes"
            if readable and not self.receive():
                raise ConnectionError(f"closed: {self.notices}")
            if writable:
                data = data[self.send_some(data) :]

    def send_some(self, data: Any) -> int:
        """As much of it as goes at once; how much."""
        return self.sock.send(data[: 1 << 16])


class BufferProgram:
    """One connection's buffers.

    Attributes:
        sizes: of those that were not freed, by handle; `shared`: those in memory of the client's.
        align: of ranges that are bound.
        bytes: on their way.
        again: sends launches that were there before; they hold for as long as their buffers do.
    """

    def __init__(self, client: RawClient, seed: int, mixture: Mixture) -> None:
        self.client = client
        self.rng = random.Random(seed)
        self.mixture = mixture
        self.noise = np.random.default_rng(seed).integers(0, 256, 17 * MIB, np.uint8)
        self.reference = Reference(client, mixture.tolerated)
        self.sizes: dict[int, int] = {}
        self.shared: dict[int, SharedMemory] = {}
        self.handle = 0
        self.bytes = 0
        self.again: list[Callable[[], None]] = []
        names = ("minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment")
        self.align = max(4, *(limit(client, name) for name in names))
        self.most = self.rng.choice([9, 9, 40])  # requests that touch more than a few buffers are noted in another way

    def send(self, method: str, effect: Callable[[Memory], Any], needs: tuple[int, ...] = (), **params: Any) -> Sent:
        """A request; what must come of it is looked at later."""
        msgid = self.client.send(method, **params)
        sent = Sent(
            msgid, f"{method} {_brief(params)}", effect, needs,
            after=tuple(params.get("after", ())), deadline="deadline_ms" in params,
        )  # fmt: skip
        self.reference.waiting.append(sent)
        return sent

    def drain(self) -> None:
        """Take the answers that are there."""
        while select.select([self.client.sock], [], [], 0)[0] and self.client.receive():
            pass

    def settle(self) -> None:
        """Wait for everything, and compare it. Then nothing is under way, and shared memory is the client's.

        Raises:
            Wrong
        """
        self.reference.play()
        self.bytes = 0
        self.again.clear()
        for handle in [h for h in self.sizes if h not in self.reference.memory]:  # their creation was cancelled
            self._forget(handle)
        if self.reference.unknown:
            self._look()
        for handle, shared in self.shared.items():
            content = self.reference.memory[handle]
            found = bytes(shared.view[: len(content)])
            if found != content.tobytes():
                raise Wrong(f"shared buffer {handle}: {difference(found, content)}{self.reference.touched(handle)}")
            if self.rng.random() < 0.5:
                first, size = self.part(len(content))
                data = self.bytes_of(size)
                shared.view[first : first + size] = data
                content[first : first + size] = np.frombuffer(data, np.uint8)

    def _look(self) -> None:
        """Take what is in the buffers for what has to be there."""
        for handle, size in self.sizes.items():
            while True:
                try:
                    data = self.client.call("buffer.read", buffer=handle)["data"] if size else b""
                    break
                except RemoteError as error:
                    if error.code not in self.mixture.tolerated:
                        raise
            self.reference.memory[handle] = np.frombuffer(data, np.uint8).copy()
        self.reference.unknown = False

    def finish(self) -> None:
        """Compare everything, and what the buffers hold."""
        for handle in list(self.sizes):
            self.read_part(handle, 0, self.sizes[handle])
        self.settle()

    def close(self) -> None:
        for shared in self.shared.values():
            shared.close()
        self.client.close()

    # Sizes and places

    def bytes_of(self, size: int) -> bytes:
        """Some bytes."""
        first = self.rng.randrange(len(self.noise) - size)
        self.bytes += size
        return self.noise[first : first + size].tobytes()

    def size(self) -> int:
        """Of a new buffer."""
        rng = self.rng
        if rng.random() < self.mixture.large:
            return rng.choice([MIB, MIB + 4, MIB + rng.randrange(4096), 2 * MIB + 1, rng.randrange(MIB, 8 * MIB)])
        return rng.choice([0, 1, 3, 64, 256, 1024, 4096, rng.randrange(2, 70_000), 4 * rng.randrange(1, 3000)])

    def part(self, size: int) -> tuple[int, int]:
        """(first, size) of some bytes."""
        rng = self.rng
        act = rng.random()
        if act < 0.3 or size < 2:
            return 0, size
        if act < 0.4:
            return rng.randrange(size), 0
        first = rng.randrange(size) if act < 0.9 else rng.randrange(min(size, 8))
        most = size - first
        return first, most if act > 0.8 else rng.randrange(1, min(most, 5000) + 1)

    def some(self, least: int = 0) -> int | None:
        """A buffer with at least so many bytes."""
        fitting = [handle for handle, size in self.sizes.items() if size >= least]
        return self.rng.choice(fitting) if fitting else None

    def place(self, size: int) -> Place | None:
        """Somewhere to bind so many bytes. Offsets are few, so that places meet."""
        handle = self.some(size)
        if handle is None:
            return None
        steps = (self.sizes[handle] - size) // self.align
        step = self.rng.choice([0, steps, self.rng.randint(0, steps), self.rng.randint(0, min(steps, 6))])
        return handle, step * self.align, size

    # Requests

    def create(self) -> None:
        """A buffer, of zeros or with data."""
        if len(self.sizes) > self.most:
            self.free()
            return
        self.handle += 1
        handle, size = self.handle, self.size()
        if self.rng.random() < 0.5:
            content = np.zeros(size, np.uint8)
            params: dict[str, Any] = {"size": size}
        else:
            data = self.bytes_of(size)
            content, params = np.frombuffer(data, np.uint8), {"data": data}

        def effect(memory: Memory) -> Any:
            memory[handle] = content.copy()
            return {"buffer": handle, "size": size}

        self.send("buffer.create", effect, **params, **{"as": handle}).creates = handle
        self.sizes[handle] = size

    def share_memory(self) -> None:
        """Memory of the client's as a buffer."""
        if len(self.shared) > 2:
            return
        self.handle += 1
        handle, size = self.handle, max(self.size(), 1)
        shared = SharedMemory(size)
        data = self.bytes_of(size)
        shared.view[:size] = data
        content = np.frombuffer(data, np.uint8).copy()

        def effect(memory: Memory) -> Any:
            memory[handle] = content
            return {"buffer": handle, "size": size}

        msgid = self.client.send_with([shared.file], "buffer.share", size=size, **{"as": handle})
        self.reference.waiting.append(Sent(msgid, f"buffer.share of {size}", effect, creates=handle))
        self.shared[handle], self.sizes[handle] = shared, size

    def free(self) -> None:
        """A buffer that requests under way may use."""
        if len(self.sizes) < 4:
            self.create()
            return
        handle = self.rng.choice(list(self.sizes))
        if handle in self.shared:
            self.settle()  # its bytes are compared, and nothing uses it when it is unmapped
            if handle not in self.sizes:
                return

        def effect(memory: Memory) -> Any:
            memory.pop(handle, None)
            return {}

        self.send("buffer.free", effect, (handle,), buffer=handle).touches = False
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        del self.sizes[handle]
        self.again.clear()
        if handle in self.shared:
            self.shared.pop(handle).close()

    def write(self) -> None:
        handle = self.rng.choice(list(self.sizes))
        first, size = self.part(self.sizes[handle])
        data = self.bytes_of(size)
        content = np.frombuffer(data, np.uint8)

        def effect(memory: Memory) -> Any:
            if size:
                memory[handle][first : first + size] = content
            return {}

        sent = self.send("buffer.write", effect, (handle,), buffer=handle, offset=first, data=data)
        sent.touches = size > 0

    def read(self) -> None:
        handle = self.rng.choice(list(self.sizes))
        self.read_part(handle, *self.part(self.sizes[handle]))

    def read_part(self, handle: int, first: int, size: int) -> None:
        self.bytes += size

        def effect(memory: Memory) -> Any:
            return {"data": memory[handle][first : first + size].copy() if size else b""}

        sent = self.send("buffer.read", effect, (handle,), buffer=handle, offset=first, size=size)
        sent.touches = size > 0

    def copy(self) -> None:
        source, target = (self.rng.choice(list(self.sizes)) for _ in range(2))
        start, size = self.part(self.sizes[source])
        size = min(size, self.sizes[target])
        place = self.rng.randint(0, self.sizes[target] - size)
        if source == target and start < place + size and place < start + size:
            return

        def effect(memory: Memory) -> Any:
            if size:
                memory[target][place : place + size] = memory[source][start : start + size]
            return {}

        sent = self.send(
            "buffer.copy", effect, (source, target), source=source, target=target, size=size,
            source_offset=start, target_offset=place,
        )  # fmt: skip
        sent.touches = size > 0


def _brief(params: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_value(value)}" for key, value in params.items())


def _value(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return "{" + _brief(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value[:8])) + "]"
    return str(value)
