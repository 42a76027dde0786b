"""A loaded model on its device: weights, kernels, a graph for each shape, and memory for batches in flight.

Graphs of different shapes are launched in the same *lanes*, one for each batch in flight: a lane's memory is as large
as the largest shape that came so far needs. Graphs are kept for the shapes that came last.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vkqueue.daemon.graph_requests import align_of
from vkqueue.daemon.model_session import Answer, ModelSession
from vkqueue.daemon.modules import Code, DeviceKernel, specialization
from vkqueue.daemon.session import Buffer
from vkqueue.errors import DeviceLostError, InvalidError, VkqueueError
from vkqueue.jobs.graph import Bindings, Template
from vkqueue.kernels.graph import check_graph
from vkqueue.kernels.graph_plan import INPUT, OUTPUT
from vkqueue.kernels.plan import Plan
from vkqueue.model import GraphInstance, Release, Token
from vkqueue.models.definition import Definition
from vkqueue.models.instantiate import instantiate
from vkqueue.models.source import Weight

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.service import Service

# Shapes whose graphs are kept; the longest unused one makes room. Arbitrary: 8 buckets at 32 sizes of a batch, each
# some 100 KB for 64 nodes.
MAX_SHAPES = 256
# Nodes of a graph that is made on the loop, which takes some 50 µs for each. Arbitrary.
MAX_NODES_AT_ONCE = 64
# Weights are brought to the device in pieces of this, and so much is on its way at once: staging memory may be as
# little as the 64 MiB that a quarter of a card's window has. Arbitrary.
_PIECE_BYTES = 16 << 20
_AT_ONCE_BYTES = 32 << 20


_T = TypeVar("_T")


class Lane:
    """Memory of a batch in flight.

    Attributes:
        arena: for temporaries; None before a shape needs any.
        ends: for inputs and outputs; None likewise.
    """

    __slots__ = ("arena", "ends", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.arena: Buffer | None = None
        self.ends: Buffer | None = None


class Shape:
    """The graph of one shape.

    Attributes:
        batch: samples.
        group: lengths of the dimensions, in the model's order (buckets, where there are any).
        template: the graph's, before memory is bound to it.
        places: input or output → place index.
        instances: by lane and the names that are not inline.
    """

    __slots__ = ("batch", "group", "instances", "places", "template")

    def __init__(self, batch: int, group: tuple[int, ...], template: Template) -> None:
        self.batch = batch
        self.group = group
        self.template = template
        self.places = {p.name: p.id - 1 for p in template.plan.places if p.role in (INPUT, OUTPUT)}
        self.instances: dict[tuple[int, tuple[str, ...]], tuple[GraphInstance, Token]] = {}


class ModelGraphs:
    """The device's side of a loaded version.

    Args:
        codes: kernel → its module and entry point.

    Attributes:
        session: owner of the weights' and lanes' buffers, and of all rows.
        lanes: as many as batches may be in flight.
        lane_error: why a lane's memory could not be made, as long as no attempt has been made since.
    """

    def __init__(
        self, service: Service, device: Device, definition: Definition, codes: Mapping[str, tuple[Code, str]]
    ) -> None:
        self._service = service
        self.device = device
        self.definition = definition
        self.session: ModelSession = service.open_internal(ModelSession)  # type: ignore[assignment]
        self.lanes = [Lane(number) for number in range(definition.instances)]
        self.lane_error: VkqueueError | None = None
        self._codes = codes
        self._kernels: dict[Any, DeviceKernel] = {}
        self._weights: dict[str, int] = {}
        self._shapes: OrderedDict[tuple[int, tuple[int, ...]], Shape] = OrderedDict()
        self._closed = False
        for code, _ in codes.values():
            code.users += 1

    def close(self) -> None:
        """Give everything back, behind what was submitted."""
        if self._closed:
            return
        self._closed = True
        self._forget(self._shapes.values())
        self._service.close_session(self.session)
        for kernel in self._kernels.values():
            kernel.users -= 1
            kernel.pinned -= 1
            kernel.last_used = max(kernel.last_used, time.monotonic_ns())  # what is in flight still names it
        for code, _ in self._codes.values():
            code.users -= 1

    # Weights

    async def upload(self, weights: Mapping[str, Weight]) -> None:
        """Bring the weights to the device.

        Raises:
            VkqueueError: there is no room for one; its name is in the message.
        """
        waiting: list[asyncio.Future[None]] = []
        on_way = 0
        for name, weight in weights.items():
            data = memoryview(weight.data).cast("B")
            first = data[:_PIECE_BYTES] if len(data) <= _PIECE_BYTES else None
            answer, created = self._awaited()
            try:
                buffer = self._new_buffer(len(data), first, answer)
            except VkqueueError as error:
                raise type(error)(f"weights: {name}: {error.message}", error.data) from error
            self._weights[name] = buffer.handle
            waiting.append(created)
            on_way += len(data) if first is not None else 0
            if first is None:
                for offset in range(0, len(data), _PIECE_BYTES):
                    answer, written = self._awaited()
                    piece = data[offset : offset + _PIECE_BYTES]
                    msgid, now = self.session.calls.new(answer), time.monotonic_ns()
                    self._service.requests.write(self.session, msgid, buffer, piece, offset, now)
                    waiting.append(written)
                    on_way += _PIECE_BYTES
                    if on_way >= _AT_ONCE_BYTES:
                        on_way = await self._settled(waiting)
            if on_way >= _AT_ONCE_BYTES:
                on_way = await self._settled(waiting)
        await self._settled(waiting)

    async def _settled(self, waiting: list[asyncio.Future[None]]) -> int:
        self._service.settle()
        await asyncio.gather(*waiting)
        waiting.clear()
        return 0

    @staticmethod
    def _awaited() -> tuple[Answer, asyncio.Future[None]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(result: Any, error: VkqueueError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                future.exception()  # looked at, also where another's comes first
            else:
                future.set_result(None)

        return answer, future

    def _new_buffer(self, size: int, data: Any, answer: Answer) -> Buffer:
        requests = self._service.requests
        requests.admit_buffer(self.session, self.device, size)
        msgid, handle = self.session.calls.new(answer), self._service.new_id()
        return requests.create(self.session, self.device, msgid, handle, size, data, time.monotonic_ns())

    # Shapes

    def ready(self, batch: int, group: tuple[int, ...]) -> Shape | None:
        """The graph of a shape, made now if it is small and no kernel has to be analysed or built for it; else None:
        `prepare` it.

        Raises:
            VkqueueError: the shape has no graph.
        """
        found = self._shapes.get((batch, group))
        if found is not None:
            self._shapes.move_to_end((batch, group))
            return found
        if len(self.definition.nodes) > MAX_NODES_AT_ONCE:
            return None
        params = self._instantiated(batch, group)
        for node in params["nodes"]:
            if "kernel" in node:
                kernel = self._kernels.get(_kernel_key(node))
                if kernel is None or not kernel.ready:
                    return None
        return self._keep(self._made(batch, group, params))

    async def prepare(self, batch: int, group: tuple[int, ...]) -> Shape:
        """As `ready`, with its kernels, and for a graph of any size.

        Raises:
            VkqueueError: the shape has no graph, or one of its kernels cannot be built.
            DeviceLostError: the model was closed meanwhile.
        """
        params = await self._aside(partial(self._instantiated, batch, group))
        nodes = {_kernel_key(node): node for node in params["nodes"] if "kernel" in node}
        for key, node in nodes.items():
            if key not in self._kernels:
                kernel = await self._analysed(node)
                if key not in self._kernels and not self._closed:
                    kernel.users += 1
                    kernel.pinned += 1
                    self._kernels[key] = kernel
        self._check_open()
        for key in nodes:
            self.device.build(self._kernels[key])
        await asyncio.gather(*(self._service.models.pipeline(self.device, self._kernels[key]) for key in nodes))
        self._check_open()
        known = self._shapes.get((batch, group))
        if known is not None:
            return known
        try:
            made = await self._aside(partial(self._made, batch, group, params))
        finally:
            self._check_open()
        return self._shapes.get((batch, group)) or self._keep(made)

    async def _aside(self, make: Callable[[], _T]) -> _T:
        """What takes as long as a graph is large, of large ones on a thread."""
        if len(self.definition.nodes) <= MAX_NODES_AT_ONCE:
            return make()
        return await asyncio.to_thread(make)

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceLostError("the model was unloaded, or its device lost, meanwhile")

    def _instantiated(self, batch: int, group: tuple[int, ...]) -> dict[str, Any]:
        sizes = dict(zip(self.definition.dimensions, group, strict=True))
        return instantiate(self.definition, batch, sizes, self._weights)

    async def _analysed(self, node: Mapping[str, Any]) -> DeviceKernel:
        name = node["kernel"]
        code, entry = self._codes[name]
        reflected = code.analysis["kernels"][entry]
        given = node.get("specialization")
        spec, values = specialization(reflected, given) if given else ((), {})
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._service.modules.variant(
            code, entry, spec, values, lambda result: None if future.done() else future.set_result(result)
        )
        found = await future
        if isinstance(found, VkqueueError):
            raise found
        if not self.device.working:
            raise DeviceLostError(f"device {self.device.index} does not work at present; try again later")
        kernel = self.device.kernel(code, entry, found[entry], spec)
        if kernel.error is not None:
            raise kernel.error
        return kernel

    def _made(self, batch: int, group: tuple[int, ...], params: dict[str, Any]) -> Shape:
        def find_kernel(node: Mapping[str, Any]) -> tuple[Plan, DeviceKernel]:
            kernel = self._kernels[_kernel_key(node)]
            return kernel.plan, kernel

        plan = check_graph(params, find_kernel, self.session.buffer)
        for place in plan.places:
            if place.buffer is not None and place.writes is not None:
                name = next(name for name, handle in self._weights.items() if handle == place.handle)
                raise InvalidError(f"node: a kernel writes weights.{name}, which all requests share; copy it first")
        kernels = {step.kernel for step in plan.steps if step.kernel is not None}
        every = self._service.config.device.graph_barriers == "all"
        template = Template(plan, {k: k.pipeline for k in kernels}, align_of(self.device), every=every)
        return Shape(batch, group, template)

    def _keep(self, shape: Shape) -> Shape:
        self._shapes[shape.batch, shape.group] = shape
        if len(self._shapes) > MAX_SHAPES:
            self._forget([self._shapes.popitem(last=False)[1]])
        return shape

    def _forget(self, shapes: Iterable[Shape], lane: int | None = None) -> None:
        """The instances of shapes (in a lane) are launched no more."""
        gone = []
        for shape in shapes:
            keys = [key for key in shape.instances if lane is None or key[0] == lane]
            gone += [shape.instances.pop(key)[0].id for key in keys]
        if gone:
            self.device.post_release(Release(instances=tuple(gone)))

    # Launches

    def instance(self, shape: Shape, lane: Lane, bound: tuple[str, ...]) -> tuple[GraphInstance, Token]:
        """What a batch of this shape in this lane launches.

        Args:
            bound: inputs and outputs that rows beside it fill and read; what is inline comes in order of inputs, then
                outputs.

        Raises:
            VkqueueError: no memory for the lane.
        """
        found = shape.instances.get((lane.number, bound))
        if found is not None:
            return found
        template = shape.template
        self._reserve(lane, "arena", template.arena_bytes)
        self._reserve(lane, "ends", template.inline_bytes)
        ends = lane.ends.id if lane.ends is not None else 0
        fixed = {place.id - 1: place.buffer.id for place in template.plan.places if place.buffer is not None}
        buffers = {number: (id, 0) for number, id in fixed.items()}
        buffers |= {shape.places[name]: (ends, template.inline_at(shape.places[name])) for name in bound}
        order = [*self.definition.inputs, *self.definition.outputs]
        inline = [
            (shape.places[name], "in" if name in self.definition.inputs else "out")
            for name in order
            if name not in bound
        ]
        bindings = Bindings(buffers, inline, lane.arena.id if lane.arena is not None else 0, ends)
        instance, token = template.bind(bindings, {}, self._service.new_id(), self._service.new_id())
        # The lane's memory is made by rows of its own, larger than this shape needs perhaps. Weights are left out of
        # the token: there may be hundreds, and each would be looked at for each batch.
        weights = frozenset(fixed.values())
        instance = replace(instance, arenas=(), fixed=weights)
        entries = tuple(entry for entry in token.entries if entry[0] not in weights)
        reads = tuple(range for range in token.reads if range[0] not in weights)
        token = Token(token.id, None, entries, reads, token.writes)
        shape.instances[lane.number, bound] = instance, token
        return instance, token

    def _reserve(self, lane: Lane, which: str, size: int) -> None:
        """Make a lane's memory as large as that at least."""
        known: Buffer | None = getattr(lane, which)
        if known is not None and self.session.objects.get(known.handle) is not known:
            known = None  # its creation failed
        if not size or (known is not None and known.size >= size):
            return

        self.lane_error = None

        def created(result: Any, error: VkqueueError | None) -> None:
            if error is not None:
                self.lane_error = error
                self._forget(self._shapes.values(), lane.number)

        buffer = self._new_buffer(size, None, created)
        if known is not None:
            self._forget(self._shapes.values(), lane.number)
            self._service.free_buffer(self.session, known, time.monotonic_ns())
        setattr(lane, which, buffer)


def _kernel_key(node: Mapping[str, Any]) -> Any:
    given = node.get("specialization")
    return node["kernel"], tuple(sorted(given.items())) if given else ()


__all__ = ["Lane", "ModelGraphs", "Shape"]
