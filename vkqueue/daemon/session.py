"""What the daemon keeps for one connection: handles, quotas, caches, and requests that wait for their turn."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.graph import Graph
from vkqueue.errors import DeviceLostError, InvalidError, NotFoundError, VkqueueError, brief
from vkqueue.model import (
    CREATE,
    DISPATCH,
    FILL,
    GRAPH,
    MANY,
    READ,
    ROW_OP,
    ROW_OPTIONS,
    ROW_PAYLOAD,
    ROW_TOKEN,
    Row,
    Shared,
    Token,
)
from vkqueue.wire.messages import HANDLE_MAX
from vkqueue.wire.session import ServerConnection

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.model_serving import Serving
    from vkqueue.daemon.modules import Code, DeviceKernel


class Deferral:
    """A request that waits for its turn: its message, the time of receipt, bytes that it holds, and its deadline."""

    __slots__ = ("method", "msgid", "params", "received", "size", "timer")

    def __init__(self, msgid: int, method: str, params: dict[str, Any], received: int) -> None:
        self.msgid = msgid
        self.method = method
        self.params = params
        self.received = received
        self.size = bytes_of(params)
        self.timer: asyncio.TimerHandle | None = None


def bytes_of(value: Any) -> int:
    """About what a decoded value holds in memory."""
    if type(value) is dict:
        return sum(_ITEM_BYTES + len(key) + bytes_of(item) for key, item in value.items())
    if type(value) is list:
        return sum(_ITEM_BYTES + bytes_of(item) for item in value)
    return len(value) if isinstance(value, (str, bytes, bytearray, memoryview)) else 0


def row_bytes(row: Row) -> int:
    """Bytes that the daemon holds for a row, or will: payload, results, and what it is queued behind by name."""
    op, payload, options = row[ROW_OP], row[ROW_PAYLOAD], row[ROW_OPTIONS]
    held: int = _AFTER_BYTES * len(options.after) if options is not None else 0
    if op == READ:
        held += sum(end - first for _, first, end in row[ROW_TOKEN].reads)
    elif op in (DISPATCH, GRAPH):
        held += sum(value if kind == "out" else len(value) for kind, value in payload or ())
    elif op == MANY:
        held += payload.job.nbytes
    elif op == CREATE:
        held += len(payload[1] or b"")
    elif payload is not None and op != FILL:
        held += len(payload)
    return held


# About what CPython takes: for an entry of a list or map; for one of a set and two maps.
_ITEM_BYTES = 64
_AFTER_BYTES = 256


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, from SO_PEERCRED; -1 where unknown."""

    pid: int = -1
    uid: int = -1
    gid: int = -1


class CachedLaunch:
    """An argument list that is kept for the next launch with it; `buffers` are those it names."""

    __slots__ = ("buffers", "key", "kernel")

    def __init__(self, kernel: SessionKernel, key: Any, buffers: list[Buffer]) -> None:
        self.kernel = kernel
        self.key = key
        self.buffers = buffers


class Buffer:
    """A client's buffer. `id` is the daemon's own, never reused; `launches` are the cached ones that name it.

    While `holders` is not 0 requests of others than its session's rows use it: its memory goes when the last lets go,
    if it was freed meanwhile (`released`, by which session).
    """

    __slots__ = ("device", "generation", "handle", "holders", "id", "launches", "released", "size")

    def __init__(self, id: int, handle: int, size: int, device: Device) -> None:
        self.id = id
        self.handle = handle
        self.size = size
        self.device = device
        self.generation = device.generation
        self.launches: dict[CachedLaunch, None] = {}
        self.holders = 0
        self.released: int | None = None


class Module:
    """A module as one connection sees it. Until it is analysed `code` is None and data requests wait."""

    __slots__ = ("code", "handle", "kernels")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.code: Code | None = None
        self.kernels: dict[str, dict[str, Any]] = {}


class SessionKernel:
    """A kernel that this connection has called: its device kernel, and the tokens of its arguments.

    `launches` has the same keys as `tokens`, which is made for being looked up fast.
    """

    __slots__ = ("device", "kernel", "launches", "tokens")

    def __init__(self, kernel: DeviceKernel, device: Device) -> None:
        self.kernel = kernel
        self.device = device
        self.tokens: dict[Any, tuple[Token, DeviceKernel, Device]] = {}
        self.launches: dict[Any, CachedLaunch] = {}


class Session:
    """One connection's state. Lives on the loop thread only.

    Attributes:
        internal: no client's, but the daemon's own: limits of clients do not count for it.
    """

    internal = False

    def __init__(self, id: int, conn: ServerConnection, peer: Peer, wake: Callable[[], None]) -> None:
        self.id = id
        self.conn = conn
        self.peer = peer
        self.wake = wake
        self.flush = wake  # writes at once; the connection puts its own here
        self.resume: Callable[[], None] | None = None
        self.client = ""
        self.device: Device | None = None
        self.objects: dict[int, Buffer | Module | Graph] = {}
        # Memory that came with requests on their way, by msgid, or why it cannot be had; and all that this connection
        # shares, for as long as anything uses it.
        self.shares: dict[int, Shared | VkqueueError] = {}
        self.shared: weakref.WeakSet[Shared] = weakref.WeakSet()
        self.kernels: dict[Any, SessionKernel] = {}
        self.cached_launches = 0
        self.epoch = 0  # counts what makes memos of launches stale: see Dispatcher.again
        self.next_handle = 1
        self.client_chooses: bool | None = None
        self.handles: dict[int, int] = {}  # of creating requests on their way, by msgid
        self.buffers = 0
        self.modules = 0
        self.graphs = 0
        self.memory_bytes = 0
        self.open_jobs = 0
        # Bytes held for requests without an answer, and of those the part of deferred ones. While the rest is over
        # its bound (`over`), or a request waits for an analysis, data requests wait in `deferred` (`blocked`).
        self.queued_bytes = 0
        self.deferred_bytes = 0
        self.over = False
        # The burst that is being handled, and where in it: what lies behind has not been looked at yet.
        self.burst: tuple[Sequence[Any], int] = ((), 0)
        self.replayed: Iterable[Deferral] = ()  # those of `deferred` that are being replayed, from the next one on
        self.deferred: deque[Deferral] = deque()
        self.blocked = False
        self.tracks_requests = False
        self.infers: dict[int, Serving] = {}  # requests that wait at a model, by msgid
        # What the analysis said that a deferred request waits for, by (module, specialization), if it failed.
        self.analysis_errors: dict[Any, VkqueueError] = {}
        self.closed = False

    def reserve_handle(self, msgid: int, chosen: object) -> None:
        """On receipt of a creating request: its handle, by whichever side counts. It is burnt whatever becomes of
        the request; until that is known it stands in `handles`.

        Raises:
            InvalidError: the other side counts on this connection, or the number is not larger than any before.
        """
        if self.client_chooses is None:
            self.client_chooses = chosen is not None
        if self.client_chooses != (chosen is not None):
            raise InvalidError(
                "as: this connection's first creation carried 'as', so every one must"
                if self.client_chooses
                else "as: this connection's first creation left the handle to the daemon, so none may carry 'as'"
            )
        handle = self.next_handle if chosen is None else chosen
        if type(handle) is not int or (chosen is not None and not 1 <= handle <= HANDLE_MAX):
            return  # the check of the parameters says so
        if handle < self.next_handle:
            raise InvalidError(f"as: {handle} is not larger than every handle before it ({self.next_handle - 1})")
        self.next_handle = handle + 1
        self.handles[msgid] = handle

    def sent_later(self) -> set[int]:
        """Msgids that were sent behind the request that is being handled, and have not been looked at yet."""
        requests, index = self.burst
        waiting = {entry.msgid for entry in (*self.deferred, *self.replayed)}
        return {request[0] for request in requests[index + 1 :]} | waiting

    def buffer(self, handle: Any, what: str = "buffer") -> Buffer:
        """Raises NotFoundError for a handle that is none (never was, freed, of another connection, a module)."""
        if type(handle) is not int:
            raise InvalidError(f"{what}: expected a buffer handle (an integer), got {brief(handle)}")
        found = self.objects.get(handle)
        if type(found) is not Buffer:
            raise NotFoundError(f"{what}: no buffer {handle} on this connection", {"handle": handle})
        if found.generation != found.device.generation:
            raise DeviceLostError(
                f"{what}: buffer {handle} was lost with its device; free it and create it anew", {"handle": handle}
            )
        return found

    def module(self, handle: Any) -> Module:
        """Raises NotFoundError for a handle that is no module of this connection."""
        found = self.objects.get(handle) if type(handle) is int else None
        if type(found) is not Module:
            raise NotFoundError(f"module: no module {brief(handle)} on this connection", {"handle": handle})
        return found

    @property
    def files(self) -> deque[int]:
        """Descriptors that came and no request has taken yet."""
        return self.conn.files

    def close_files(self) -> None:
        """Close every descriptor that the client sent and that is not in use."""
        for file in (*self.conn.files, *self.conn.files_of.values()):
            os.close(file)
        self.conn.files.clear()
        self.conn.files_of.clear()

    def buffers_on(self, device: Device) -> list[Buffer]:
        """This connection's buffers on a device, with those that were lost with it and those of its graphs."""
        buffers: list[Buffer] = []
        for found in self.objects.values():
            if type(found) is Buffer:
                buffers.append(found)
            elif type(found) is Graph:
                buffers += found.buffers
        return [buffer for buffer in buffers if buffer.device is device]

    # Launches are cached under two names, their kernel's and their buffers': all of them go when one of these goes.

    def keep_launch(self, kernel: SessionKernel, key: Any, token: Token, buffers: list[Buffer]) -> None:
        """Remember an argument list."""
        kernel.tokens[key] = (token, kernel.kernel, kernel.device)
        launch = kernel.launches[key] = CachedLaunch(kernel, key, buffers)
        for buffer in buffers:
            buffer.launches[launch] = None
        self.cached_launches += 1

    def forget_buffer(self, buffer: Buffer) -> None:
        """Forget the argument lists that name a buffer, so that the next launch with it is checked anew."""
        self._forget(buffer.launches)

    def forget_launches(self, kernel: SessionKernel) -> None:
        """Forget all argument lists of a kernel."""
        self._forget(kernel.launches.values())

    def forget_kernels(self, device: Device) -> None:
        """The device was lost: what is cached for it names pipelines that are gone."""
        for kernel in self.kernels.values():
            if kernel.device is device:
                self.forget_launches(kernel)
        self.kernels = {key: value for key, value in self.kernels.items() if value.device is not device}

    def _forget(self, launches: Iterable[CachedLaunch]) -> None:
        self.epoch += 1
        for launch in list(launches):
            del launch.kernel.tokens[launch.key], launch.kernel.launches[launch.key]
            for buffer in launch.buffers:
                buffer.launches.pop(launch, None)  # one that is bound twice stands there twice
            self.cached_launches -= 1


__all__ = ["Buffer", "CachedLaunch", "Deferral", "Module", "Peer", "Session", "SessionKernel", "row_bytes"]
