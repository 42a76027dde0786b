"""A client without its I/O: requests out, answers in, and who they are for. Both clients are shells around it.

Nothing here waits or locks: the shell calls `Core` from one thread at a time, writes what `data_to_send` gives, reads
into `get_buffer`, and reports it by `buffer_updated`.

Requests leave in the order in which they were started. Past `max_queued_jobs` unanswered ones they are held
back here (the daemon would refuse them), and follow as answers come. Handles are chosen here, counted up as the
requests are started, so that what uses a new buffer need not wait for its creation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from vkqueue.client.arguments import HostEntry, Rules
from vkqueue.client.array import Array, BaseDeviceArray, Handle, from_bytes, host_bytes
from vkqueue.client.call import Call, Creation, Part, Target, Uses, owner
from vkqueue.client.info import Device, Hello
from vkqueue.client.launch import Launch, LaunchPlan
from vkqueue.client.signature import Signature
from vkqueue.client.transfer import Gather, payload_bytes, pieces
from vkqueue.errors import (
    ConnectionLostError,
    DependencyError,
    InvalidError,
    JobCancelledError,
    UnsupportedError,
    VkqueueError,
)
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection

PROTOCOL = 1
# The daemon's answers are as long as we ask for, and it may be set up for larger messages than the default.
_LIMITS = Limits(max_message_bytes=2**32, max_items=2**24, max_str_bytes=2**30)
_BUFFER = ("buffer.free", "buffer")
_MODULE = ("module.unload", "module")

_Request: TypeAlias = tuple[str, dict[str, Any], Callable[[Any], None] | None, tuple[Call[Any], ...]]
"""(method, params, what takes the result, what must have succeeded) of a call's part."""


class _Held(NamedTuple):
    """A request that has not been sent."""

    number: int  # what `started` was with it
    method: str
    params: dict[str, Any] | bytes
    target: Target
    after: tuple[Call[Any], ...]


class Core:
    """State of one connection.

    Args:
        new_call: makes a call of the shell's kind from (decode, uses).

    Attributes:
        hello: what the daemon said at the start; None before.
        lost: why the connection is over; None while it is not.
        started: how many requests were started in their turn.
        settled: set when a call was ended here, not by an answer; for the shell, who clears it.
    """

    def __init__(self, new_call: Callable[[Callable[[Any], Any] | None, Iterable[Uses]], Call[Any]]) -> None:
        self.session = ClientConnection(_LIMITS)
        self.hello: Hello | None = None
        self.lost: ConnectionLostError | None = None
        self.started = 0
        self.settled = False
        self.calls: dict[int, Target] = {}
        self._new_call = new_call
        self._held: deque[_Held] = deque()
        self._graveyard: deque[tuple[str, str, int]] = deque()
        self._unreported: list[VkqueueError] = []
        self._next_handle = 1
        self._max_calls = 1
        self._payload = 1
        self._rules = Rules(self)

    # Bytes.

    def get_buffer(self) -> memoryview:
        """Where the next bytes from the daemon go."""
        return self.session.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Take in `count` bytes, the end of the stream if 0, and finish the calls that they answer."""
        if count == 0:
            self.fail("the daemon closed the connection")
            return
        calls = self.calls
        for msgid, error, result in self.session.buffer_updated(count):
            calls[msgid].answered(error, result)
            del calls[msgid]  # not before: an interrupt in between would leave a call that nobody ends
        if self._held:
            self._send_held()
        if self.session.fault is not None:
            self.fail(f"the connection is over: {self.session.fault.message}", self.session.fault)

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """The connection is over: every call under way fails with ConnectionLostError."""
        if self.lost is not None:
            return
        self.lost = ConnectionLostError(reason)
        self.lost.__cause__ = cause
        calls = self._under_way()
        self.calls.clear()
        self._held.clear()
        self.settled = True
        for call in calls:
            if not call.finished:
                call.answered(self.lost_error(), None)

    def lost_error(self) -> ConnectionLostError:
        """Why the connection is over. One for each who gets it: a shared error would collect their tracebacks."""
        assert self.lost is not None
        error = ConnectionLostError(self.lost.message)
        error.__cause__ = self.lost.__cause__
        return error

    # Requests.

    def request(self, method: str, params: dict[str, Any], decode: Callable[[Any], Any] | None = None) -> Call[Any]:
        """Start a request in its turn."""
        self._begin()
        call = self._new_call(decode, ())
        self._start(method, params, call)
        return call

    def control(self, method: str, params: dict[str, Any], decode: Callable[[Any], Any] | None = None) -> Call[Any]:
        """Start a request that overtakes those held back, and that no limit holds back."""
        self._check()
        call = self._new_call(decode, ())
        self._send(method, params, call, ())
        return call

    def dispatch(self, packed: bytes, uses: Iterable[Uses]) -> Call[Any]:
        """Start a launch whose parameters are packed already; its value is None."""
        if self.lost is not None or self._graveyard:
            self._begin()
        call = self._new_call(None, uses)
        if self._held or len(self.calls) >= self._max_calls:
            self._start("dispatch", packed, call)
        else:
            self.started += 1
            call.msgid = msgid = self.session.request_packed("dispatch", packed)
            self.calls[msgid] = call
        return call

    def cancel(self, call: Call[Any]) -> Call[bool] | None:
        """Ask for the end of a call; None if nothing has to be asked.

        Requests of it that were not sent fail with JobCancelledError here. Buffers that it was to free are still
        freed.
        """
        if call.finished or self.lost is not None:
            return None
        dropped = [held.target for held in self._held if owner(held.target) is call]
        if dropped:
            self._held = deque(held for held in self._held if owner(held.target) is not call)
            self.settled = True
        asked: Call[bool] | None = None
        for msgid in self._msgids(call):
            asked = self.control("cancel", {"msgid": msgid}, lambda result: bool(result["cancelled"]))
        for target in dropped:
            target.answered(JobCancelledError("cancelled before it was sent"), None)
        return asked

    @property
    def holding(self) -> bool:
        """Whether requests are held back."""
        return bool(self._held)

    def has_sent(self, number: int) -> bool:
        """Whether the first `number` of the requests started have been passed to the session, or dropped."""
        return not self._held or self._held[0].number > number

    def outstanding(self) -> list[Call[Any]]:
        """The calls under way, oldest first; buffers that wait to be freed go out."""
        self._begin()
        return self._under_way()

    def _under_way(self) -> list[Call[Any]]:
        targets = (*self.calls.values(), *(held.target for held in self._held))
        return list(dict.fromkeys(map(owner, targets)))

    def check(self) -> None:
        """Raise what went wrong since the last time that nobody may have been told of.

        Raises:
            ConnectionLostError: the connection is over.
            VkqueueError: a buffer could not be made.
        """
        self._check()
        if self._unreported:
            raise self._unreported.pop()

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost_error()

    def _begin(self) -> None:
        """Before each start: check the connection, and free what was collected since the last one."""
        self._check()
        while self._graveyard:
            method, key, id = self._graveyard.popleft()
            self._start(method, {key: id}, self._new_call(None, ()))

    def _start(
        self, method: str, params: dict[str, Any] | bytes, target: Target, after: tuple[Call[Any], ...] = ()
    ) -> None:
        self.started += 1
        if self._held or len(self.calls) >= self._max_calls:
            self._held.append(_Held(self.started, method, params, target, after))
        else:
            self._send(method, params, target, after)

    def _send_held(self) -> None:
        held = self._held
        while held and len(self.calls) < self._max_calls:
            _, method, params, target, after = held[0]
            self._send(method, params, target, after)
            held.popleft()  # not before, as in buffer_updated

    def _send(
        self, method: str, params: dict[str, Any] | bytes, target: Target, after: tuple[Call[Any], ...]
    ) -> None:
        if after and isinstance(params, dict) and not self._set_after(params, after, target):
            return
        try:
            if isinstance(params, bytes):
                msgid = self.session.request_packed(method, params)
            else:
                msgid = self.session.request(method, params)
        except VkqueueError as error:  # a value that cannot travel, or too much of it: nothing was queued
            self.settled = True
            target.answered(error, None)
            return
        self.calls[msgid] = target
        call = owner(target)
        if method == "dispatch" or call.msgid is None:
            call.msgid = msgid

    def _set_after(self, params: dict[str, Any], after: tuple[Call[Any], ...], target: Target) -> bool:
        """Name the requests to wait for; False if one has failed already (the target is answered then)."""
        for call in after:
            if call.error is not None:
                self.settled = True
                target.answered(DependencyError(f"a call named in `after` failed: {call.error}"), None)
                return False
        params["after"] = [msgid for call in after for msgid in self._msgids(call)]
        return True

    def _msgids(self, call: Call[Any]) -> list[int]:
        """Its requests under way."""
        if call.msgid is not None and self.calls.get(call.msgid) is call:
            return [call.msgid]
        return [msgid for msgid, target in self.calls.items() if owner(target) is call]

    # What the daemon is asked for.

    def greet(self, device: int | None, client: str) -> Call[Hello]:
        """Start the connection's first request."""

        def take(result: dict[str, Any]) -> Hello:
            if result.get("protocol") != PROTOCOL:
                raise UnsupportedError(f"the daemon speaks protocol {result.get('protocol')}, this client {PROTOCOL}")
            hello = self.hello = Hello.from_wire(result)
            self._max_calls = max(hello.limits.max_queued_jobs, 1)
            self.session.max_message_bytes = hello.limits.max_message_bytes
            self._payload = payload_bytes(hello.limits.max_message_bytes)
            own = hello.own_device
            limits: Mapping[str, Any] = own.limits if own is not None else {}
            self._rules = Rules(
                self,
                storage_alignment=limits.get("minStorageBufferOffsetAlignment") or 1,
                uniform_alignment=limits.get("minUniformBufferOffsetAlignment") or 1,
            )
            return hello

        params: dict[str, Any] = {"protocol": PROTOCOL, "client": client}
        if device is not None:
            params["device"] = device
        return self.request("hello", params, take)

    def stats(self) -> Call[dict[str, Any]]:
        return self.control("stats", {}, dict)

    def devices(self) -> Call[list[Device]]:
        return self.control("devices", {}, lambda result: [Device.from_wire(d) for d in result])

    def load(
        self, params: dict[str, Any], make: Callable[[Handle, str, dict[str, LaunchPlan]], Any], name: str
    ) -> Call[Any]:
        """Load a module; `make` builds what the call gives from its handle, name, and plans of its kernels."""
        self._begin()
        handle = self._new_handle(0, _MODULE)

        def take(result: dict[str, Any]) -> Any:
            plans = {
                kernel: LaunchPlan(Signature.from_wire(kernel, wire), handle, self._rules, self._payload)
                for kernel, wire in result["kernels"].items()
            }
            return make(handle, name, plans)

        call = self._new_call(take, ())
        self._start("module.load", {**params, "as": handle.id}, Creation(call, call, handle, []))
        return call

    def create(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Array | None = None, device: int | None = None
    ) -> Handle:
        """Make a buffer, of zeros or of `data`. A failure is told to whoever uses the handle."""
        self._begin()
        size = math.prod(shape) * dtype.itemsize
        handle = self._new_handle(size, _BUFFER)
        where = {} if device is None else {"device": device}
        call = self._new_call(None, ())
        content = None if data is None else host_bytes(data)
        requests = self._fill(handle.id, size, content, where)
        errors: dict[int, BaseException] = {}
        call.remaining = len(requests)
        for place, (method, params) in enumerate(requests):
            self._start(method, params, Creation(Part(call, place, errors), call, handle, self._unreported))
        return handle

    def write(self, array: BaseDeviceArray, data: Array) -> Call[None]:
        """Write all of an array."""
        self._begin()
        array.handle.check("the device array")
        content = host_bytes(data)
        call = self._new_call(None, (array,))
        requests = [
            ("buffer.write", {"buffer": array.handle.id, "offset": array.offset + at, "data": content[at : at + n]})
            for at, n in pieces(array.nbytes, self._payload)
        ]
        self._start_parts(call, [(method, params, None, ()) for method, params in requests])
        return call

    def read(self, array: BaseDeviceArray) -> Call[Array]:
        """Read all of an array into a new NumPy array."""
        self._begin()
        array.handle.check("the device array")
        gather = Gather(array.nbytes, self._payload)
        call = self._new_call(lambda _: from_bytes(gather.data, array.shape, array.dtype), (array,))
        self._start_parts(call, self._reads(array.handle.id, array.offset, array.nbytes, gather))
        return call

    def release(self, handle: Handle) -> None:
        """Free a buffer or unload a module now."""
        handle.bury()
        if self.lost is None:
            self._begin()

    def launch(self, launch: Launch) -> Call[Any]:
        """Start a launch.

        Raises:
            InvalidError: `after` names a call of another connection.
        """
        self._begin()
        answer: dict[str, Any] = {}
        read: dict[int, Gather] = {}
        decode: Callable[[Any], Any] | None = None
        if launch.spilled:
            decode = lambda _: launch.value(answer, {i: gather.data for i, gather in read.items()})  # noqa: E731
        elif launch.bound.hosts or launch.timing:
            decode = lambda result: launch.value(result, {})  # noqa: E731
        call = self._new_call(decode, launch.bound.arrays)
        if any(other.client is not call.client for other in launch.after):
            raise InvalidError("after: a call of another connection cannot be waited for; wait for its result first")
        if launch.spilled:
            self._launch_spilled(launch, call, answer, read)
        else:
            self._start("dispatch", launch.params, call, launch.after)
        return call

    def _launch_spilled(
        self, launch: Launch, call: Call[Any], answer: dict[str, Any], read: dict[int, Gather]
    ) -> None:
        """Entries that no message can carry go through buffers that live as long as the launch."""
        before: list[_Request] = []
        behind: list[_Request] = []
        freed: list[int] = []
        for entry in launch.spilled:
            id = self._take_handle()
            freed.append(id)
            entry.place[entry.index] = id
            before += [(m, p, None, ()) for m, p in self._fill(id, entry.nbytes, entry.data, {})]
            if entry.output is not None:
                gather = read[_place(entry, launch.bound.hosts)] = Gather(entry.nbytes, self._payload)
                behind += self._reads(id, 0, entry.nbytes, gather)
        dispatch: _Request = ("dispatch", launch.params, answer.update, launch.after)
        self._start_parts(call, [*before, dispatch, *behind])
        for id in freed:
            self._start("buffer.free", {"buffer": id}, self._new_call(None, ()))

    def _fill(
        self, id: int, size: int, data: bytes | memoryview | None, extra: Mapping[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        """The requests that make a buffer."""
        if data is not None and size <= self._payload:
            return [("buffer.create", {"data": data, "as": id, **extra})]
        requests: list[tuple[str, dict[str, Any]]] = [("buffer.create", {"size": size, "as": id, **extra})]
        if data is not None:
            for at, n in pieces(size, self._payload):
                requests.append(("buffer.write", {"buffer": id, "offset": at, "data": data[at : at + n]}))
        return requests

    def _reads(self, id: int, offset: int, size: int, gather: Gather) -> list[_Request]:
        return [
            ("buffer.read", {"buffer": id, "offset": offset + at, "size": n}, gather.sink(at, n), ())
            for at, n in pieces(size, self._payload)
        ]

    def _start_parts(self, call: Call[Any], requests: list[_Request]) -> None:
        errors: dict[int, BaseException] = {}
        call.remaining = len(requests)
        for place, (method, params, sink, after) in enumerate(requests):
            self._start(method, params, Part(call, place, errors, sink), after)

    def _new_handle(self, size: int, release: tuple[str, str]) -> Handle:
        return Handle(self, self._take_handle(), size, release, self._graveyard)

    def _take_handle(self) -> int:
        id = self._next_handle
        self._next_handle += 1
        return id


def _place(entry: HostEntry, hosts: list[HostEntry]) -> int:
    return next(i for i, other in enumerate(hosts) if other is entry)
