"""Models as a user sees them; the part that needs no I/O. See `model_source` for how one gets to the daemon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import Array, BaseDeviceArray, Handle, from_bytes, host_bytes
from vkqueue.client.call import Read, Uses
from vkqueue.client.signature import suggestion
from vkqueue.errors import InvalidError, TooLargeError, brief

_DTYPES = {
    "TYPE_BOOL": np.dtype(np.bool_), "TYPE_FP16": np.dtype(np.float16), "TYPE_FP32": np.dtype(np.float32),
    "TYPE_FP64": np.dtype(np.float64), "TYPE_BF16": np.dtype(np.uint16),
    **{f"TYPE_{kind.upper()}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip


class InferTiming(NamedTuple):
    """Times of one request in microseconds.

    Attributes:
        queued_us: until its batch was started.
        batch: samples of the batch that it was part of.
        device_us: of the whole batch; None where the device has no timestamps.
        total_us: from the daemon's receiving it to its answer.
    """

    queued_us: int
    batch: int
    device_us: int | None
    total_us: int


class Inferred(NamedTuple):
    """What `infer` with `timing=True` returns: its usual result, and the times."""

    value: Any
    timing: InferTiming


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A version of a model that the daemon has.

    Attributes:
        state: "READY", "LOADING", "UNLOADING" or "UNAVAILABLE".
        reason: why it is in this state; mostly empty.
        device: index of the device that it is on; None where it is on none.
    """

    name: str
    version: int
    state: str
    reason: str = ""
    device: int | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> ModelInfo:
        return cls(wire["name"], wire["version"], wire["state"], wire.get("reason") or "", wire.get("device"))


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output of a model.

    Attributes:
        data_type: Triton's name, as in the configuration.
        dtype: NumPy's; of TYPE_BF16, which NumPy does not have, uint16.
        shape: sizes; names where requests choose: those of the dimensions, and "batch".
        batch_axis: where "batch" stands; None without a batch dimension.
    """

    name: str
    data_type: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    batch_axis: int | None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], batched: bool) -> ModelTensor:
        dims: list[int | str] = list(wire["dims"])
        axis = wire.get("batch_dimension", 0) if batched else None
        if axis is not None:
            dims.insert(axis, "batch")
        dtype = _DTYPES.get(wire["data_type"])
        if dtype is None:
            raise InvalidError(f"{wire['name']}: this client does not know the data type {brief(wire['data_type'])}")
        return cls(wire["name"], wire["data_type"], dtype, tuple(dims), axis)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name}: {'bfloat16' if self.data_type == 'TYPE_BF16' else self.dtype} ({sizes})"

    def host(self, value: npt.ArrayLike) -> Array:
        """Values as an array of its dtype.

        Arrays have to have it; Python's numbers, and lists of them, are converted.

        Raises:
            InvalidError: another dtype; no numbers; a number that the dtype does not have.
        """
        if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.dtype.name == "bfloat16":
                array = array.view(np.uint16)
            if array.dtype != self.dtype:
                raise InvalidError(
                    f"{self.name}: the model takes {self.dtype}, got an array of {array.dtype}; use "
                    f".astype(numpy.{self.dtype})"
                )
        else:
            array = self._converted(value)
        return np.ascontiguousarray(array, self.dtype).reshape(array.shape)

    def _converted(self, value: npt.ArrayLike) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise InvalidError(
                f"{self.name}: {error}; samples of one request have the same lengths: send each by a request of its "
                "own, the daemon batches them"
            ) from None
        if not np.can_cast(array.dtype, self.dtype, "same_kind") and array.size:
            raise InvalidError(f"{self.name}: the model takes {self.dtype}, got {array.dtype} ({brief(value)})")
        found = array.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(found, array):
            raise InvalidError(f"{self.name}: a number is outside of what {self.dtype} has")
        return found


@dataclass(slots=True)
class Inference:
    """A request ready to be sent.

    Attributes:
        params: of `model.infer`.
        decode: makes of its result what `infer` returns.
        read, written: of the device arrays that it names; what else writes or uses them has to be done before it is
            sent.
    """

    params: dict[str, Any]
    read: list[Handle]
    written: list[BaseDeviceArray]
    decode: Callable[[Mapping[str, Any]], Any]

    @property
    def uses(self) -> list[Uses]:
        """All that has to live until it is answered."""
        return [*map(Read, self.read), *self.written]


class BaseModel:
    """A model of the daemon's: what it takes, and how to call it.

    Attributes:
        name: as the daemon knows it.
        version: the version that is called; None for the latest that is ready, whichever that is.
        config: the whole configuration with its defaults, as it was when this object was made; by Triton's names.
        inputs, outputs: by name. Inputs that the daemon makes (`kind = "LENGTHS"`) are not among them.
        max_batch_size: samples of one request at most; 0 where tensors have no batch dimension.
    """

    def __init__(self, client: Any, name: str, version: int | None, config: Mapping[str, Any]) -> None:
        self._client = client
        self.name = name
        self.version = version
        self.config = dict(config)
        self.max_batch_size: int = config.get("max_batch_size", 0)
        batched = self.max_batch_size > 0
        asked = [wire for wire in config["input"] if not wire.get("kind")]
        self.inputs = {wire["name"]: ModelTensor.from_wire(wire, batched) for wire in asked}
        self.outputs = {wire["name"]: ModelTensor.from_wire(wire, batched) for wire in config["output"]}

    def _prepare(
        self,
        given: Mapping[str, Any],
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str] | None,
        priority: int | None,
        timeout: float | None,
        timing: bool,
    ) -> Inference:
        """A request.

        Raises:
            InvalidError: a value is missing, unknown or does not fit the configuration.
            TooLargeError: more than one message carries.
        """
        sizes: dict[str, int] = {}
        read: list[Handle] = []
        written: list[BaseDeviceArray] = []
        params = which(self.name, self.version) | {"inputs": self._inputs(given, sizes, read)}
        if outputs is not None:
            params["outputs"] = self._wanted(outputs, sizes, written)
        for key, value in (("priority", priority), ("timeout_us", _microseconds(timeout)), ("timing", timing or None)):
            if value is not None:
                params[key] = value
        return Inference(params, read, written, self._decode)

    def _inputs(self, given: Mapping[str, Any], sizes: dict[str, int], read: list[Handle]) -> dict[str, dict[str, Any]]:
        for name in given:
            if name not in self.inputs:
                raise InvalidError(f"{self._called()} has no input {name!r}{self._why_not(name)}. {self._call()}")
        found: dict[str, dict[str, Any]] = {}
        sent = 0
        for name, tensor in self.inputs.items():
            value = given.get(name)
            if value is None:
                raise InvalidError(f"{self._called()}: the input {name!r} is missing. {self._call()}")
            if isinstance(value, BaseDeviceArray):
                self._check_device_array(tensor, value)
                self._match(tensor, value.shape, sizes)
                read.append(value.handle)
                found[name] = {"shape": list(value.shape), **_place(value)}
            else:
                array = tensor.host(value)
                self._match(tensor, array.shape, sizes)
                sent += array.nbytes
                found[name] = {"shape": list(array.shape), "data": host_bytes(array)}
        if sent > (most := self._client.core.payload):
            raise TooLargeError(
                f"{self._called()}: inputs of {sent} bytes; one message carries {most}. Give large ones as device "
                "arrays (gpu.array), or fewer samples at once"
            )
        return found

    def _check_device_array(self, tensor: ModelTensor, array: BaseDeviceArray) -> None:
        if array.handle.owner is not self._client.core:
            raise InvalidError(f"{tensor.name}: the device array is of another connection")
        array.handle.check(f"{tensor.name}: the device array")
        if array.dtype != tensor.dtype:
            raise InvalidError(
                f"{tensor.name}: the model has {tensor.dtype}, got a device array of {array.dtype}; if the bytes are "
                f"meant as they are, give array.view('{tensor.dtype}')"
            )

    def _match(self, tensor: ModelTensor, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        """Check a shape; `sizes` has the lengths that the request has chosen so far, and gets those chosen here."""
        expected = tensor.shape
        if len(shape) != len(expected):
            hint = ""
            if tensor.batch_axis is not None and len(shape) == len(expected) - 1:
                index = ", ".join(["None" if i == tensor.batch_axis else ":" for i in range(len(expected))])
                hint = f"; the batch dimension is missing: for one sample give {tensor.name}[{index}]"
            raise InvalidError(f"{tensor}: got the shape {shape}{hint}")
        for axis, (want, got) in enumerate(zip(expected, shape, strict=True)):
            if isinstance(want, int):
                fits = got == want
            elif want in sizes:
                fits = got == sizes[want]
            else:
                sizes[want], fits = got, self._allows(want, got)
            if not fits:
                raise InvalidError(
                    f"{tensor}: got the shape {shape}, whose axis {axis} has {got}: {self._expected(want, sizes, got)}",
                    {"axis": axis, "got": got},
                )

    def _allows(self, name: str, size: int) -> bool:
        if name == "batch":
            return 1 <= size <= self.max_batch_size
        low, high = bounds(self.config, name)
        return low <= size <= high

    def _expected(self, want: int | str, sizes: Mapping[str, int], got: int) -> str:
        if isinstance(want, int):
            return f"expected {want}"
        if sizes[want] != got or self._allows(want, got):
            return f"another input has {want} = {sizes[want]}"
        if want == "batch":
            return f"a request has 1 to {self.max_batch_size} samples (max_batch_size); send more by several requests"
        low, high = bounds(self.config, want)
        return f"{want} may be {low} to {high}"

    def _wanted(
        self,
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str],
        sizes: Mapping[str, int],
        written: list[BaseDeviceArray],
    ) -> Any:
        if isinstance(outputs, str):
            raise InvalidError(f"outputs: expected a list of names, or a dict of device arrays, got {brief(outputs)}")
        names = list(outputs)
        for name in names:
            if name not in self.outputs:
                hint = suggestion(str(name), self.outputs)
                raise InvalidError(f"{self._called()} has no output {name!r}; it has {', '.join(self.outputs)}.{hint}")
        if not isinstance(outputs, Mapping):
            return names
        found: dict[str, dict[str, Any]] = {}
        for name, array in outputs.items():
            if not isinstance(array, BaseDeviceArray):
                raise InvalidError(
                    f"outputs: {name!r} is to be a device array (gpu.zeros), got {brief(array)}; give a list of names "
                    "for outputs to be returned"
                )
            tensor = self.outputs[name]
            self._check_device_array(tensor, array)
            shape = tuple(size if isinstance(size, int) else sizes.get(size, -1) for size in tensor.shape)
            if -1 not in shape and shape != array.shape:
                raise InvalidError(f"outputs: {tensor} will have the shape {shape}, the device array has {array.shape}")
            written.append(array)
            found[name] = _place(array)
        return found

    def _decode(self, result: Mapping[str, Any]) -> Any:
        """What `infer` returns: None, the only array, or a dict of them."""
        arrays = {
            name: from_bytes(wire["data"], tuple(wire["shape"]), self.outputs[name].dtype)
            for name, wire in result["outputs"].items()
            if wire.get("data") is not None
        }
        value = None if not arrays else next(iter(arrays.values())) if len(arrays) == 1 else arrays
        times = result.get("timing")
        if times is None:
            return value
        return Inferred(value, InferTiming(*(times.get(name) for name in InferTiming._fields)))

    def _why_not(self, name: str) -> str:
        if any(wire["name"] == name for wire in self.config["input"]):
            return ": the daemon makes it"
        return suggestion(name, self.inputs) and f".{suggestion(name, self.inputs)}".rstrip(".")

    def _called(self) -> str:
        return f"the model {self.name!r}"

    def _call(self) -> str:
        return f"It takes {'; '.join(map(str, self.inputs.values()))}"

    def __repr__(self) -> str:
        version = "" if self.version is None else f" {self.version}"
        inputs, outputs = ("; ".join(map(str, side.values())) for side in (self.inputs, self.outputs))
        return f"<{type(self).__name__} {self.name!r}{version}: {inputs} → {outputs}>"


def which(name: str, version: int | None) -> dict[str, Any]:
    """The parameters that name a version of a model; if None the daemon chooses."""
    return {"name": name} | ({} if version is None else {"version": version})


def bounds(config: Mapping[str, Any], name: str) -> tuple[int, int | float]:
    """The least and the greatest length of a model's dimension, both included. The greatest is infinite where the
    configuration does not tell: of an ensemble that is being loaded.
    """
    dimension = config.get("dimensions", {}).get(name, {})
    return dimension.get("min", 1), dimension.get("max") or max(dimension.get("buckets") or [math.inf])


def latest(statistics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a model's versions those of the one that requests without a version go to: the highest that is ready. If none
    is, the highest.
    """
    return dict(max(statistics, key=lambda one: (one["state"] == "READY", one["version"])))


def _place(array: BaseDeviceArray) -> dict[str, int]:
    place = {"buffer": array.handle.id}
    return place | {"offset": array.offset} if array.offset else place


def _microseconds(timeout: object) -> int | None:
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)) or not 0 < timeout < 2**31:
        raise InvalidError(f"timeout: expected seconds above 0, got {brief(timeout)}")
    return math.ceil(timeout * 1_000_000)
