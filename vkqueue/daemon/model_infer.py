"""One request for inference: what `model.infer` brings, checked against the model, and its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.graph_bindings import on_device
from vkqueue.daemon.session import Buffer, Session
from vkqueue.errors import InvalidError, brief
from vkqueue.kernels.plan import check_reply
from vkqueue.models.definition import Definition
from vkqueue.models.shapes import RequestShape, Shapes
from vkqueue.models.tensors import Tensor
from vkqueue.wire.codec import Gap, pack_around

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device

_INPUT_KEYS = ("shape", "data", "buffer", "offset")
_OUTPUT_KEYS = ("buffer", "offset")
# Pieces of a full batch that requests' bytes make up, by padding between them. A piece takes the loop a microsecond or
# two: a tenth of a second. Arbitrary beyond that.
MAX_RUNS = 32_768
# Shapes whose sizes are remembered. Arbitrary.
_MAX_KNOWN = 4096


class Held:
    """A range of a client's buffer that is not given back before the request is answered."""

    __slots__ = ("buffer", "offset")

    def __init__(self, buffer: Buffer, offset: int) -> None:
        self.buffer = buffer
        self.offset = offset
        buffer.holders += 1


class Sizes:
    """Of a request's shape: bytes of each input that it brings, and of each output its shape and bytes.

    Attributes:
        total: bytes of all outputs; `fits` once they are known to fit an answer.
        around: what an answer with all outputs has around their bytes (`codec.pack_around`), once one was given.
    """

    __slots__ = ("around", "fits", "inputs", "outputs", "total")

    def __init__(self, inputs: list[int], outputs: dict[str, tuple[list[int], int]]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.total = sum(size for _, size in outputs.values())
        self.fits = False
        self.around: list[bytes] = []

    def pack(self, version: int) -> list[bytes]:
        """What `around` has to be."""
        outputs = {name: {"shape": shape, "data": Gap(size)} for name, (shape, size) in self.outputs.items()}
        return pack_around({"outputs": outputs, "version": version})


class Infer:
    """An accepted request.

    Attributes:
        data: of each input that requests bring, in the model's order: bytes-like or Held.
        wanted: output → None, or where it goes.
        plain: all that it brings is bytes, and it wants all outputs as such.
        held_bytes: counted for the connection while it is not answered.
        queued_ns: how long it waited, once it has left the queue.
    """

    __slots__ = (
        "data", "held_bytes", "msgid", "plain", "queued_ns", "received", "session", "shape", "sizes", "timing",
        "wanted",
    )  # fmt: skip

    def __init__(
        self, session: Session, msgid: int, received: int, shape: RequestShape, sizes: Sizes, data: list[Any],
        wanted: Mapping[str, Held | None], timing: bool, held_bytes: int, plain: bool,
    ) -> None:  # fmt: skip
        self.session = session
        self.msgid = msgid
        self.received = received
        self.shape = shape
        self.sizes = sizes
        self.data = data
        self.wanted = wanted
        self.timing = timing
        self.held_bytes = held_bytes
        self.plain = plain
        self.queued_ns = 0

    @property
    def held(self) -> list[Held]:
        """All ranges of buffers."""
        if self.plain:
            return []
        found = [item for item in self.data if type(item) is Held]
        return found + [item for item in self.wanted.values() if item is not None]

    def result(self, data: list[Any], version: int, batch: int, device_us: int | None, now: int) -> dict[str, Any]:
        """The answer.

        Args:
            data: of each output, in the model's order, its bytes; what it is for one that is not wanted so is ignored.
            batch, device_us: samples in its batch, and how long that was on the device.
        """
        outputs: dict[str, Any] = {}
        for (name, (shape, _)), part in zip(self.sizes.outputs.items(), data, strict=True):
            if name in self.wanted:
                outputs[name] = {"shape": shape, "data": part} if self.wanted[name] is None else {"shape": shape}
        result: dict[str, Any] = {"outputs": outputs, "version": version}
        if self.timing:
            result["timing"] = {
                "queued_us": self.queued_ns // 1000,
                "batch": batch,
                "device_us": device_us,
                "total_us": (now - self.received) // 1000,
            }
        return result


class InferReader:
    """Checks requests for one model.

    Args:
        max_message_bytes: an answer has to fit.
    """

    def __init__(self, definition: Definition, device: Device, max_message_bytes: int) -> None:
        self._definition = definition
        self._device = device
        self._max_message = max_message_bytes
        self.shapes = Shapes(definition)
        self._tensors = [definition.inputs[name] for name in self.shapes.names]
        self._everything: dict[str, Held | None] = dict.fromkeys(definition.outputs)
        self._sizes: dict[RequestShape, Sizes] = {}

    def read(self, session: Session, msgid: int, p: Mapping[str, Any], now: int) -> Infer:
        """The request of these checked parameters. Buffers that it names are held from here on.

        Raises:
            VkqueueError: with the tensor's name, what was expected and what came.
        """
        given = p["inputs"]
        shape = self.shapes.read({name: entry.get("shape") for name, entry in given.items()})
        sizes = self.sizes(shape)
        held: list[Held] = []
        try:
            data = []
            total = 0
            for tensor, size in zip(self._tensors, sizes.inputs, strict=True):
                entry = given[tensor.name]
                value = entry.get("data")
                if len(entry) != 2 or type(value) not in (bytes, memoryview, bytearray):
                    value = self._rare(session, tensor, entry, size)
                    if type(value) is Held:
                        held.append(value)
                if type(value) is not Held:
                    if len(value) != size:
                        raise self._wrong_size(tensor, entry["shape"], size, len(value))
                    total += size
                data.append(value)
            wanted, leaving = self._everything, sizes.total
            if p.get("outputs") is not None:
                wanted = self._outputs(session, p["outputs"], sizes, held)
                leaving = sum([sizes.outputs[name][1] for name, place in wanted.items() if place is None])
            if not sizes.fits:
                check_reply(leaving + sum(5 + 4 * len(name) + 64 for name in wanted), len(wanted), self._max_message)
                sizes.fits = wanted is self._everything
        except BaseException:
            for item in held:
                self._device.let_go(item.buffer)
            raise
        plain = wanted is self._everything and not held
        return Infer(session, msgid, now, shape, sizes, data, wanted, p.get("timing", False), total + leaving, plain)

    def zeros(self, samples: int, group: tuple[int, ...]) -> Infer:
        """A request of this shape that nobody sent."""
        shape = RequestShape(samples, group, group)
        sizes = self.sizes(shape)
        data = [bytes(size) for size in sizes.inputs]
        return Infer(None, 0, 0, shape, sizes, data, self._everything, False, 0, True)  # type: ignore[arg-type]

    def sizes(self, shape: RequestShape) -> Sizes:
        """Bytes of its tensors.

        Raises:
            InvalidError: they would be put into a batch in too many pieces.
        """
        found = self._sizes.get(shape)
        if found is None:
            self._check_runs(shape)
            outputs = {}
            for name, tensor in self._definition.outputs.items():
                own = self.shapes.own(tensor, shape)
                outputs[name] = (list(own), math.prod(own) * tensor.item_bytes)
            inputs = [math.prod(self.shapes.own(tensor, shape)) * tensor.item_bytes for tensor in self._tensors]
            if len(self._sizes) >= _MAX_KNOWN:
                self._sizes.clear()
            found = self._sizes[shape] = Sizes(inputs, outputs)
        return found

    def _check_runs(self, shape: RequestShape) -> None:
        """A batch is put together on the loop, a piece at a time."""
        runs = {t.name: self.shapes.runs(t, shape) for t in (*self._tensors, *self._definition.outputs.values())}
        most = self.shapes.share(MAX_RUNS, shape)
        if sum(runs.values()) > max(most, len(runs)):
            worst = max(runs, key=runs.__getitem__)
            raise InvalidError(
                f"{worst}: this request's bytes would be {sum(runs.values())} pieces of a batch, at most {most} are "
                "put together; put dimensions that are padded, and the batch dimension, first, or send lengths that "
                "are buckets",
                {"tensor": worst},
            )

    @staticmethod
    def _wrong_size(tensor: Tensor, shape: Any, size: int, came: int) -> InvalidError:
        return InvalidError(
            f"inputs: {tensor.name}: shape {brief(shape)} of {tensor.data_type} has {size} bytes, data has {came}",
            {"input": tensor.name, "expected": size, "size": came},
        )

    def _rare(self, session: Session, tensor: Tensor, entry: Mapping[str, Any], size: int) -> Any:
        """An input that is no plain {shape, data}."""
        label = f"inputs: {tensor.name}"
        for key in entry:
            if key not in _INPUT_KEYS:
                raise InvalidError(f"{label}: no key {brief(key)}; there are {', '.join(_INPUT_KEYS)}")
        value, handle = entry.get("data"), entry.get("buffer")
        if (value is None) == (handle is None):
            raise InvalidError(f"{label}: give one of data (a bin) and buffer (a handle)")
        if handle is not None:
            return self._held(session, label, handle, entry.get("offset"), size)
        if entry.get("offset") is not None:
            raise InvalidError(f"{label}: offset goes with buffer only")
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidError(f"{label}: data: expected a bin, got {brief(value)}")
        return value

    def _held(self, session: Session, label: str, handle: Any, offset: Any, size: int) -> Held:
        buffer = on_device(session.buffer(handle, label), self._device, label)
        start = 0 if offset is None else offset
        if type(start) is not int or start < 0 or start + size > buffer.size:
            raise InvalidError(
                f"{label}: {size} bytes from {brief(start)} on are needed of buffer {handle}, which has {buffer.size}",
                {"offset": start, "size": size, "buffer_size": buffer.size},
            )
        return Held(buffer, start)

    def _outputs(self, session: Session, given: Any, sizes: Sizes, held: list[Held]) -> dict[str, Held | None]:
        """The outputs that are asked for; what of them is held is added to `held`."""
        there = self._definition.outputs
        wanted: dict[str, Held | None] = {}
        for name in given:
            if type(name) is not str or name not in there:
                raise InvalidError(f"outputs: no output {brief(name)}; the model has {', '.join(there)}")
            entry = given[name] if type(given) is dict else None
            wanted[name] = None
            if entry:
                label = f"outputs: {name}"
                if type(entry) is not dict or not {"buffer"} <= entry.keys() <= {*_OUTPUT_KEYS}:
                    raise InvalidError(f"{label}: expected nil or {{buffer, offset?}}, got {brief(entry)}")
                size = sizes.outputs[name][1]
                place = wanted[name] = self._held(session, label, entry["buffer"], entry.get("offset"), size)
                held.append(place)
        if not wanted:
            raise InvalidError(f"outputs: none is asked for; the model has {', '.join(there)}")
        return wanted


__all__ = ["Held", "Infer", "InferReader"]
