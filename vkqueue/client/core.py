"""A client without its I/O: what the daemon is asked for, and who gets the answers. Both clients are shells around it.

Nothing here waits or locks: the shell calls `Core` from one thread at a time, writes what `session.data_to_send` gives,
reads into `get_buffer`, and reports it by `buffer_updated`.

Requests leave in the order in which they were started. Past `max_queued_jobs` unanswered ones they are held
back here (the daemon would refuse them), and follow as answers come. Handles are chosen here, counted up as the
requests are started, so that what uses a new buffer need not wait for its creation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from vkqueue.client.arguments import HostEntry, Rules
from vkqueue.client.array import Array, BaseDeviceArray, Handle, from_bytes, host_bytes
from vkqueue.client.call import Call, Creation, Part, Uses
from vkqueue.client.info import Device, Hello
from vkqueue.client.launch import Launch, LaunchPlan
from vkqueue.client.outbox import Descriptor
from vkqueue.client.requests import Requests
from vkqueue.client.signature import Signature
from vkqueue.client.transfer import Gather, payload_bytes, pieces
from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.wire.messages import PROTOCOL_VERSION

_BUFFER = ("buffer.free", "buffer")
_MODULE = ("module.unload", "module")
_GRAPH = ("graph.free", "graph")

_Request: TypeAlias = tuple[str, dict[str, Any], Callable[[Any], None] | None, tuple[Call[Any], ...]]
"""(method, params, what takes the result, what must have succeeded) of a call's part."""


class Core(Requests):
    """All that a client can ask for, as calls that were started.

    Args:
        new_call: makes a call of the shell's kind from (decode, uses).

    Attributes:
        hello: what the daemon said at the start; None before.
        recordings: how many graphs are being recorded, in all threads and tasks.
    """

    def __init__(self, new_call: Callable[[Callable[[Any], Any] | None, Iterable[Uses]], Call[Any]]) -> None:
        super().__init__(new_call)
        self.hello: Hello | None = None
        self.recordings = 0
        self._next_handle = 1
        self._payload = 1
        self._rules = Rules(self)

    def greet(self, device: int | None, client: str) -> Call[Hello]:
        """Start the connection's first request."""

        def take(result: dict[str, Any]) -> Hello:
            if result.get("protocol") != PROTOCOL_VERSION:
                raise UnsupportedError(
                    f"the daemon speaks version {result.get('protocol')} of the protocol, this client "
                    f"{PROTOCOL_VERSION}; bring the older of the two up to date"
                )
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

        params: dict[str, Any] = {"protocol": PROTOCOL_VERSION, "client": client}
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

    def create_graph(
        self,
        params: dict[str, Any],
        make: Callable[[Handle, int, dict[str, Any]], Any],
        uses: Iterable[BaseDeviceArray],
    ) -> Call[Any]:
        """Create a graph over these arrays; `make` builds what the call gives from its handle, how many bytes of data
        one message may carry, and the answer."""
        self._begin()
        handle = self._new_handle(0, _GRAPH)
        call = self._new_call(lambda result: make(handle, self._payload, result), uses)
        self._start("graph.create", {**params, "as": handle.id}, Creation(call, call, handle, []))
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

    @property
    def payload(self) -> int:
        """How many bytes of data one message may carry."""
        return self._payload

    def upload(self, size: int, parts: Sequence[tuple[int, memoryview]], device: int | None = None) -> Handle:
        """Make a buffer, with these bytes from these offsets on. A failure is told to whoever uses the handle."""
        self._begin()
        handle = self._new_handle(size, _BUFFER)
        call = self._new_call(None, ())
        requests: list[tuple[str, dict[str, Any]]] = [
            ("buffer.create", {"size": size, "as": handle.id} | ({} if device is None else {"device": device}))
        ]
        for offset, data in parts:
            for at, n in pieces(len(data), self._payload):
                place = {"buffer": handle.id, "offset": offset + at}
                requests.append(("buffer.write", place | {"data": data[at : at + n]}))
        errors: dict[int, BaseException] = {}
        call.remaining = len(requests)
        for number, (method, params) in enumerate(requests):
            self._start(method, params, Creation(Part(call, number, errors), call, handle, self._unreported))
        return handle

    def share(self, size: int, file: Descriptor, device: int | None = None) -> Handle:
        """Make a buffer of memory that is shared. A failure is told to whoever uses the handle."""
        self._begin()
        handle = self._new_handle(size, _BUFFER)
        params = {"size": size, "as": handle.id} | ({} if device is None else {"device": device})
        call = self._new_call(None, ())
        self._start("buffer.share", params, Creation(call, call, handle, self._unreported), file=file)
        return handle

    def copy(self, source: BaseDeviceArray, target: BaseDeviceArray) -> Call[None]:
        """Copy all of an array to another.

        Raises:
            InvalidError: they have not one shape and dtype, or one is of another connection.
        """
        self._begin()
        for array, what in ((source, "the source"), (target, "the target")):
            if array.handle.owner is not self:
                raise InvalidError(f"{what} is an array of another connection; go by way of .numpy()")
            array.handle.check(f"{what} of the copy")
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise InvalidError(
                f"a copy of {source.shape} {source.dtype} to {target.shape} {target.dtype}: both must be the same (see "
                "view())"
            )
        params = {
            "source": source.handle.id,
            "source_offset": source.offset,
            "target": target.handle.id,
            "target_offset": target.offset,
            "size": source.nbytes,
        }
        call = self._new_call(None, (source, target))
        self._start("buffer.copy", params, call)
        return call

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
            self._start(launch.method, launch.params, call, launch.after)
        return call

    def _launch_spilled(self, launch: Launch, call: Call[Any], answer: dict[str, Any], read: dict[int, Gather]) -> None:
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
        itself: _Request = (launch.method, launch.params, answer.update, launch.after)
        self._start_parts(call, [*before, itself, *behind])
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
