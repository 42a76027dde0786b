"""A batch of requests as rows of its model's session, and the outputs of each out of what comes back.

    requests → WRITE, COPY …, GRAPH, COPY … → results → a part for each request

What requests bring is gathered into one value for each input, which the backend writes straight into staging memory;
results are cut, not copied. Where a buffer of a client stands in for bytes, rows on the device copy it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.model_graphs import Lane, ModelGraphs, Shape
from vkqueue.daemon.model_infer import Held, Infer, InferReader
from vkqueue.errors import InvalidError, VkqueueError
from vkqueue.model import COPY, FILL, GRAPH, WRITE, Options, Pieces, Range, Row, Token
from vkqueue.models.shapes import gather, runs, scatter
from vkqueue.models.tensors import Tensor

if TYPE_CHECKING:
    from vkqueue.daemon.service import Service

_TIMED = Options(timing=True)
# Copies of a full batch that clients' buffers may take (padding lies between them). Each is a row, some 20 µs of the
# loop. Arbitrary beyond that.
MAX_COPIES = 4096


class Running:
    """A batch on its way.

    Attributes:
        left: rows that are not answered.
        error: of the launch; errors: of single requests, by place.
        outputs: what the launch gave, by name.
        times: nanoseconds from leaving the queue to the device, and on it; microseconds on it, None if not measured.
        retry: whether its requests may be run again one by one.
        of: the caller's own.
    """

    __slots__ = (
        "_shape", "closed_ns", "error", "errors", "lane", "left", "of", "on_over", "outputs", "requests", "retry",
        "samples", "times",
    )  # fmt: skip

    def __init__(
        self, requests: Sequence[Infer], samples: int, shape: Shape | None, lane: Lane, closed_ns: int,
        on_over: Callable[[Running], None], retry: bool = False, of: Any = None,
    ) -> None:  # fmt: skip
        self.requests = requests
        self.samples = samples
        self._shape = shape
        self.lane = lane
        self.closed_ns = closed_ns
        self.on_over = on_over
        self.retry = retry
        self.of = of
        self.left = 0
        self.error: VkqueueError | None = None
        self.errors: dict[int, VkqueueError] = {}
        self.outputs: dict[str, Any] = {}
        self.times: tuple[int, int, int | None] = (0, 0, None)

    @property
    def shape(self) -> Shape:
        """Its graph; one that could not be submitted may have none."""
        assert self._shape is not None
        return self._shape


class Batches:
    """Submits batches of one model."""

    def __init__(self, service: Service, graphs: ModelGraphs, reader: InferReader) -> None:
        self._service = service
        self._graphs = graphs
        self._shapes = reader.shapes
        definition = graphs.definition
        self._asked = {name: place for place, name in enumerate(reader.shapes.names)}
        self._inputs = list(definition.inputs.values())
        self._outputs = list(definition.outputs.values())
        self._dimensions = list(definition.dimensions)
        # The rows are a batch already, so the device's batcher shall not hold them back for others: they look as if
        # they had waited for that long.
        self._ahead_ns = service.config.batching.max_batch_delay_us * 1000

    def submit(self, running: Running) -> None:
        """Queue the rows; `running.on_over` is called with it once all are answered.

        Raises:
            VkqueueError: nothing was queued: no memory for the lane.
        """
        rows: list[Row] = []
        after: list[Row] = []
        plain = all([request.plain for request in running.requests])
        inputs, outputs = ((), ()) if plain else self._bound(running)
        instance, token = self._graphs.instance(running.shape, running.lane, (*inputs, *outputs))
        for name in inputs:
            self._bring(running, self._graphs.definition.inputs[name], rows)
        payload: list[tuple[str, Any]] = [
            ("in", self._gathered(running, tensor)) for tensor in self._inputs if tensor.name not in inputs
        ]
        # The instance's transients are its inline inputs, then its inline outputs.
        payload += [("out", size) for _, size in instance.transients[len(payload) :]]
        if not plain:
            for tensor in self._outputs:
                if any(request.wanted.get(tensor.name) is not None for request in running.requests):
                    if tensor.name in outputs:
                        rows.append(self._zero(running, tensor))
                    self._take_away(running, tensor, after)
        session = self._graphs.session
        msgid = session.calls.new(partial(self._launched, running))
        stamp = running.closed_ns - self._ahead_ns
        row = (session.id, msgid, GRAPH, token, instance, b"", None, tuple(payload) or None, stamp, _TIMED)
        running.left = len(rows) + 1 + len(after)
        device = self._graphs.device
        for each in (*rows, row, *after):
            device.submit(each, None)
            session.open_jobs += 1

    def _bound(self, running: Running) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Inputs that come by rows of their own, and outputs that nobody wants as bytes."""
        requests = running.requests
        inputs = tuple(
            [name for name, place in self._asked.items() if any([type(r.data[place]) is Held for r in requests])]
        )
        outputs = tuple(
            [t.name for t in self._outputs if not any([r.wanted.get(t.name, _NOWHERE) is None for r in requests])]
        )
        return inputs, outputs

    def _gathered(self, running: Running, tensor: Tensor) -> Any:
        """The bytes of an input."""
        requests = running.requests
        if tensor.of:
            place = self._dimensions.index(tensor.of)
            lengths = [r.shape.lengths[place] for r in requests for _ in range(r.shape.samples)]
            return struct.pack(f"<{len(lengths)}i", *lengths)
        place = self._asked[tensor.name]
        if tensor.batch_dimension == 0 and not any([r.shape.padded for r in requests]):
            return requests[0].data[place] if len(requests) == 1 else Pieces([r.data[place] for r in requests])
        whole = self._shapes.whole(tensor, running.samples, running.shape.group)
        pieces = gather(tensor, whole, [(self._shapes.own(tensor, r.shape), r.data[place]) for r in requests])
        return pieces[0] if len(pieces) == 1 else Pieces(pieces)

    # Buffers

    def _range(self, running: Running, name: str, first: int, size: int) -> Range:
        """(buffer, first byte, end byte) of a part of an input or output in the lane's memory."""
        ends = running.lane.ends
        assert ends is not None
        start = running.shape.template.inline_at(running.shape.places[name]) + first
        return ends.id, start, start + size

    def _bring(self, running: Running, tensor: Tensor, rows: list[Row]) -> None:
        """Rows that put an input together on the device."""
        whole = self._shapes.whole(tensor, running.samples, running.shape.group)
        place, first, end = self._asked[tensor.name], 0, 0
        found: list[tuple[int, int, int, int]] = []  # first byte, size, request, first byte in its data
        for index, request in enumerate(running.requests):
            own, at = self._shapes.own(tensor, request.shape), 0
            for offset, size in runs(whole, own, tensor.batch_dimension, first, tensor.item_bytes):
                found.append((offset, size, index, at))
                at += size
            first += request.shape.samples
        for offset, size, index, at in sorted(found):
            if offset > end:
                self._pad(running, tensor, end, offset - end, rows)
            end = offset + size
            data = running.requests[index].data[place]
            target = self._range(running, tensor.name, offset, size)
            if type(data) is Held:
                source = (data.buffer.id, data.offset + at, data.offset + at + size)
                rows.append(self._copy(running, index, source, target))
            else:
                rows.append(self._write(running, index, target, memoryview(data)[at : at + size]))
        total = running.shape.template.plan.places[running.shape.places[tensor.name]].size
        if total > end:
            self._pad(running, tensor, end, total - end, rows)

    def _pad(self, running: Running, tensor: Tensor, first: int, size: int, rows: list[Row]) -> None:
        data = tensor.pad * (size // tensor.item_bytes)
        rows.append(self._write(running, -1, self._range(running, tensor.name, first, size), data))

    def _take_away(self, running: Running, tensor: Tensor, rows: list[Row]) -> None:
        """Rows that bring an output to the buffers of those who asked for it so."""
        whole = self._shapes.whole(tensor, running.samples, running.shape.group)
        first = 0
        for index, request in enumerate(running.requests):
            place = request.wanted.get(tensor.name)
            if place is not None:
                own, at = self._shapes.own(tensor, request.shape), place.offset
                for offset, size in runs(whole, own, tensor.batch_dimension, first, tensor.item_bytes):
                    source = self._range(running, tensor.name, offset, size)
                    rows.append(self._copy(running, index, source, (place.buffer.id, at, at + size)))
                    at += size
            first += request.shape.samples

    def _zero(self, running: Running, tensor: Tensor) -> Row:
        """An output begins as zeros: what no kernel writes must not show what was another client's."""
        session = self._graphs.session
        size = running.shape.template.plan.places[running.shape.places[tensor.name]].size
        target = self._range(running, tensor.name, 0, -(-size // 4) * 4)  # places have room for whole words
        token = Token(self._service.new_id(), None, (), (), (target,), cached=False)
        msgid = session.calls.new(partial(self._moved, running, -1))
        return (session.id, msgid, FILL, token, target[0], b"", None, 0, running.closed_ns - self._ahead_ns, None)

    def _copy(self, running: Running, index: int, source: Range, target: Range) -> Row:
        session = self._graphs.session
        token = Token(self._service.new_id(), None, (), (source,), (target,), cached=False)
        msgid = session.calls.new(partial(self._moved, running, index))
        return (session.id, msgid, COPY, token, target[0], b"", None, None, running.closed_ns - self._ahead_ns, None)

    def _write(self, running: Running, index: int, target: Range, data: Any) -> Row:
        session = self._graphs.session
        token = Token(self._service.new_id(), None, (), (), (target,), cached=False)
        msgid = session.calls.new(partial(self._moved, running, index))
        return (session.id, msgid, WRITE, token, target[0], b"", None, data, running.closed_ns - self._ahead_ns, None)

    def check_copies(self, request: Infer) -> None:
        """Raises InvalidError for a request whose buffers take more than its part of MAX_COPIES."""
        if not request.held:
            return
        tensors = [t for t in self._inputs if not t.of and type(request.data[self._asked[t.name]]) is Held]
        tensors += [t for t in self._outputs if request.wanted.get(t.name) is not None]
        runs = {tensor.name: self._shapes.runs(tensor, request.shape) for tensor in tensors}
        count, most = sum(runs.values()), self._shapes.share(MAX_COPIES, request.shape)
        if count > max(most, len(runs)):
            worst = max(runs, key=runs.__getitem__)
            raise InvalidError(
                f"{worst}: padding would take {count} copies, at most {most} are done; send its bytes, or a buffer of "
                "a length that is a bucket",
                {"tensor": worst},
            )

    # The way back

    def _launched(self, running: Running, result: Any, error: VkqueueError | None) -> None:
        if error is not None:
            running.error = error
        else:
            running.outputs = result["outputs"]
            times = result["timing"]
            device_us: int | None = times["device_us"]
            queued_ns = max(times["queued_us"] * 1000 - self._ahead_ns, 0)
            spent_ns = times["total_us"] * 1000 - self._ahead_ns - queued_ns if device_us is None else device_us * 1000
            running.times = queued_ns, spent_ns, device_us
        self._one_less(running)

    def _moved(self, running: Running, index: int, result: Any, error: VkqueueError | None) -> None:
        if error is not None:
            if index < 0:
                running.error = running.error or error
            else:
                running.errors.setdefault(index, error)
        self._one_less(running)

    @staticmethod
    def _one_less(running: Running) -> None:
        running.left -= 1
        if not running.left:
            running.on_over(running)

    def data_of(self, running: Running) -> list[list[Any]]:
        """For each request the bytes of the model's outputs, in their order; None for one that it does not get so."""
        requests = running.requests
        found: list[list[Any]] = [[] for _ in requests]
        for tensor in self._outputs:
            name = tensor.name
            data = running.outputs.get(name)
            view = memoryview(b"" if data is None else data)
            whole: tuple[int, ...] = ()
            each = 0 if tensor.batch_dimension else len(view) // running.samples
            first = 0
            for request, parts in zip(requests, found, strict=True):
                samples = request.shape.samples
                if request.plain or request.wanted.get(name, _NOWHERE) is None:
                    shape, size = request.sizes.outputs[name]
                    if each * samples == size:
                        parts.append(view[first * each : first * each + size])
                    else:
                        whole = whole or self._shapes.whole(tensor, running.samples, running.shape.group)
                        parts.append(scatter(tensor, whole, tuple(shape), first, view))
                else:
                    parts.append(None)
                first += samples
        return found


_NOWHERE = object()


__all__ = ["MAX_COPIES", "Batches", "Running"]
