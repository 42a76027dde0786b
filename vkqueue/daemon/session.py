"""What the daemon keeps for one connection: handles, quotas, caches, and requests that wait for their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vkqueue.errors import DeviceLostError, InvalidError, NotFoundError, VkqueueError, brief
from vkqueue.model import Token
from vkqueue.wire.messages import HANDLE_MAX
from vkqueue.wire.session import ServerConnection

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.modules import Code, DeviceKernel

Deferral: TypeAlias = tuple[int, str, dict[str, Any], int]
"""(msgid, method, params, time of receipt) of a request that waits for an analysis."""


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
    """A client's buffer. `id` is the daemon's own, never reused; `launches` are the cached ones that name it."""

    __slots__ = ("device", "failed", "generation", "handle", "id", "launches", "size")

    def __init__(self, id: int, handle: int, size: int, device: Device) -> None:
        self.id = id
        self.handle = handle
        self.size = size
        self.device = device
        self.generation = device.generation
        self.failed = False
        self.launches: dict[CachedLaunch, None] = {}


class Module:
    """A module as one connection sees it. Until it is analysed `code` is None and data requests wait."""

    __slots__ = ("code", "failed", "handle", "kernels")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.code: Code | None = None
        self.failed = False
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
    """One connection's state. Lives on the loop thread only."""

    def __init__(self, id: int, conn: ServerConnection, peer: Peer, wake: Callable[[], None]) -> None:
        self.id = id
        self.conn = conn
        self.peer = peer
        self.wake = wake
        self.flush = wake  # writes at once; the connection puts its own here
        self.resume: Callable[[], None] | None = None
        self.client = ""
        self.device: Device | None = None
        self.objects: dict[int, Buffer | Module] = {}
        self.kernels: dict[Any, SessionKernel] = {}
        self.cached_launches = 0
        self.epoch = 0  # counts what makes memos of launches stale: see Dispatcher.again
        self.next_handle = 1
        self.client_chooses: bool | None = None
        self.buffers = 0
        self.modules = 0
        self.memory_bytes = 0
        self.open_jobs = 0
        self.queued_bytes = 0
        self.tracks_requests = False
        # Data requests behind one that waits for an analysis; `blocked` while there is such a one.
        self.deferred: deque[Deferral] = deque()
        self.blocked = False
        # What the analysis said that a deferred request waits for, by (module, specialization), if it failed.
        self.analysis_errors: dict[Any, VkqueueError] = {}
        self.closed = False

    def new_handle(self, chosen: int | None) -> int:
        """The handle of a creation, by whichever side counts; burnt whatever becomes of the request.

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
        if chosen is None:
            handle = self.next_handle
        elif chosen < self.next_handle:
            raise InvalidError(f"as: {chosen} is not larger than every handle before it ({self.next_handle - 1})")
        else:
            handle = chosen
        self.next_handle = handle + 1
        return handle

    def burn_handle(self, method: str, params: dict[str, Any]) -> None:
        """A creation failed before it was looked at: it burns its handle and decides who counts all the same."""
        chosen = params.get("as")
        valid = chosen is None or (type(chosen) is int and 1 <= chosen <= HANDLE_MAX)
        if valid and method in ("buffer.create", "module.load"):
            with suppress(InvalidError):
                self.new_handle(chosen)

    def buffer(self, handle: Any, what: str = "buffer") -> Buffer:
        """Raises NotFoundError for a handle that is none (never was, freed, of another connection, a module)."""
        if type(handle) is not int:
            raise InvalidError(f"{what}: expected a buffer handle (an integer), got {brief(handle)}")
        found = self.objects.get(handle)
        if type(found) is not Buffer or found.failed:
            raise NotFoundError(f"{what}: no buffer {handle} on this connection", {"handle": handle})
        if found.generation != found.device.generation:
            raise DeviceLostError(
                f"{what}: buffer {handle} was lost with its device; free it and create it anew", {"handle": handle}
            )
        return found

    def module(self, handle: Any) -> Module:
        """Raises NotFoundError for a handle that is no module of this connection."""
        found = self.objects.get(handle) if type(handle) is int else None
        if type(found) is not Module or found.failed:
            raise NotFoundError(f"module: no module {brief(handle)} on this connection", {"handle": handle})
        return found

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


__all__ = ["Buffer", "Deferral", "Module", "Peer", "Session", "SessionKernel"]
