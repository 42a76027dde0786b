"""Arguments of a launch: arrays, sizes and dicts to the entries of `args`, one for each binding."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkqueue.client.array import Array, BaseDeviceArray, Out, from_bytes, host_array, host_bytes
from vkqueue.client.signature import Binding, suggestion
from vkqueue.errors import InvalidError, brief

_BYTE = np.dtype(np.uint8)


@dataclass(slots=True)
class Output:
    """Where a result goes: a new array of this form, or with `target` an array of the caller's."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target: Array | None = None

    def collect(self, data: bytes | bytearray | memoryview) -> Array:
        array = from_bytes(data, self.shape, self.dtype)
        if self.target is None:
            return array
        self.target[...] = array
        return self.target


@dataclass(slots=True)
class HostEntry:
    """An entry whose bytes travel with the launch, or by a temporary buffer where they are too many.

    Attributes:
        place, index: the list or map that its wire form stands in, and where.
        kind: "in", "inout" or "out".
        data: what is sent; None for "out".
    """

    place: Any
    index: Any
    kind: str
    data: bytes | memoryview | None
    nbytes: int
    output: Output | None


@dataclass(slots=True)
class Bound:
    """The arguments of one launch.

    Attributes:
        args: what travels.
        hosts: the entries among them that carry bytes or bring some back, in order.
        arrays: device arrays in use.
    """

    args: list[Any] = field(default_factory=list)
    hosts: list[HostEntry] = field(default_factory=list)
    arrays: list[BaseDeviceArray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rules:
    """What an argument has to agree with besides its binding.

    Attributes:
        owner: the connection; arrays of another one are refused.
        storage_alignment, uniform_alignment: of a view's first byte, by the device.
    """

    owner: object
    storage_alignment: int = 1
    uniform_alignment: int = 1


def bind(bindings: Sequence[Binding], values: Sequence[Any], rules: Rules, *, inplace: bool = False) -> Bound:
    """Turn one value for each binding into what travels.

    Raises:
        InvalidError: a value does not fit its binding.
    """
    bound = Bound()
    for binding, value in zip(bindings, values, strict=True):
        if binding.count == 1:
            bind_one(binding, value, bound, bound.args, rules, inplace)
            continue
        if not isinstance(value, (list, tuple)) or len(value) != binding.count:
            got = f"{len(value)}" if isinstance(value, (list, tuple)) else _kind(value)
            raise InvalidError(
                f"{binding.label} is an array of {binding.count} descriptors: expected a list of {binding.count} "
                f"arguments, got {got}",
                {"expected": binding.count},
            )
        elements: list[Any] = []
        for element in value:
            bind_one(binding, element, bound, elements, rules, inplace)
        bound.args.append({"array": elements})
    return bound


def bind_one(
    binding: Binding, value: object, bound: Bound, place: list[Any], rules: Rules, inplace: bool
) -> None:
    """Turn one value into what travels, at the end of `place`.

    Raises:
        InvalidError: it does not fit the binding.
    """
    if isinstance(value, BaseDeviceArray):
        _check_device_array(binding, value, rules)
        bound.arrays.append(value)
        place.append(value.wire())
        return
    if isinstance(value, Mapping):
        place.append({"values": _uniform_values(binding, value)})
        return
    entry = _host_entry(binding, value, place, inplace)
    place.append({entry.kind: entry.nbytes if entry.data is None else entry.data})
    bound.hosts.append(entry)


def _check_device_array(binding: Binding, array: BaseDeviceArray, rules: Rules) -> None:
    if array.handle.owner is not rules.owner:
        raise InvalidError(f"{binding.label}: the device array is of another connection; load it with this one")
    array.handle.check(f"{binding.label}: the device array")
    uniform = binding.kind == "uniform"
    alignment = rules.uniform_alignment if uniform else rules.storage_alignment
    if array.offset % alignment:
        limit = "minUniformBufferOffsetAlignment" if uniform else "minStorageBufferOffsetAlignment"
        raise InvalidError(
            f"{binding.label}: the view starts at byte {array.offset} of its buffer, the device binds at multiples "
            f"of {alignment} ({limit}); slice at such a place, or copy it into an array of its own",
            {"offset": array.offset, limit: alignment},
        )
    check_form(binding, array.nbytes, array.dtype)


def check_form(binding: Binding, nbytes: int, dtype: np.dtype[Any] | None) -> None:
    """Raise if memory of this form cannot be what the kernel expects. Without a dtype only the size is checked."""
    if nbytes < binding.size:
        raise InvalidError(
            f"{binding.label}: {nbytes} bytes are too few, the kernel needs at least {binding.size}",
            {"size": nbytes, "minimum": binding.size},
        )
    # Smaller items than the kernel's are fine: vectors of four, packed bytes. Larger ones are read in halves,
    # and mostly a float64 array that was meant to be float32.
    if dtype is not None and binding.stride and binding.stride % dtype.itemsize:
        hint = f" (NumPy's default is {dtype}: use .astype)" if dtype in (np.float64, np.int64) else ""
        raise InvalidError(
            f"{binding.label}: the kernel's elements have {binding.stride} bytes, those of a {dtype} array "
            f"{dtype.itemsize}{hint}; if the bytes are meant as they are, give array.view(numpy.uint8)",
            {"stride": binding.stride, "itemsize": dtype.itemsize},
        )


def _host_entry(binding: Binding, value: object, place: list[Any], inplace: bool) -> HostEntry:
    index = len(place)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise InvalidError(f"{binding.label}: an integer is a result's size in bytes, got {value}")
        value = Out((operator.index(value),), _BYTE)
        check_form(binding, value.nbytes, None)
    elif isinstance(value, Out):
        check_form(binding, value.nbytes, value.dtype)
    else:
        return _array_entry(binding, value, place, inplace)
    if not binding.written:
        raise InvalidError(f"{binding.label}: the kernel does not write it ({binding.access}), give it data to read")
    return HostEntry(place, index, "out", None, value.nbytes, Output(value.shape, value.dtype))


def _array_entry(binding: Binding, value: object, place: list[Any], inplace: bool) -> HostEntry:
    index = len(place)
    array, dtype = _host_array(binding, value)
    check_form(binding, array.nbytes, dtype)
    if not binding.written:
        return HostEntry(place, index, "in", host_bytes(array), array.nbytes, None)
    target: Array | None = None
    if inplace:
        if not isinstance(value, np.ndarray) or not value.flags.writeable:
            raise InvalidError(f"{binding.label}: inplace=True needs a writable NumPy array, got {_kind(value)}")
        target = value
    output = Output(array.shape, array.dtype, target)
    if binding.access == "write" and not inplace:
        return HostEntry(place, index, "out", None, array.nbytes, output)
    return HostEntry(place, index, "inout", host_bytes(array), array.nbytes, output)


def _host_array(binding: Binding, value: object) -> tuple[Array, np.dtype[Any] | None]:
    """A C-contiguous array in native byte order, copied only if need be; its dtype unless it is plain bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return np.frombuffer(value, _BYTE), None
        except ValueError as error:
            raise InvalidError(f"{binding.label}: {error}") from error
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
    else:
        uniform = ", a dict of its members" if binding.kind == "uniform" else ""
        results = ", vkqueue.out(shape, dtype), a size in bytes" if binding.written else ""
        raise InvalidError(
            f"{binding.label}: expected a NumPy array, a device array, bytes{uniform}{results}; got {_kind(value)}"
            + ("; make it numpy.array(…, dtype) so that its dtype is known" if isinstance(value, list) else "")
        )
    native = host_array(array)
    return native, native.dtype


def _uniform_values(binding: Binding, values: Mapping[Any, Any]) -> dict[str, Any]:
    if binding.kind != "uniform":
        raise InvalidError(f"{binding.label} is a storage buffer: a dict is for uniform ones, give an array")
    names = [m.name for m in binding.members]
    for name in values:
        if names and name not in names:
            raise InvalidError(
                f"{binding.label} has no member {name!r}; its members are "
                f"{', '.join(map(str, binding.members))}.{suggestion(str(name), names)}"
            )
    for name in names:
        if name not in values:
            raise InvalidError(f"{binding.label}: the member {name!r} is missing; every member must be given")
    return {str(name): plain(value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """Numbers of NumPy's as Python's, also inside lists; tuples as lists."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"a {'' if value.flags.writeable else 'read-only '}{value.dtype} array"
    return brief(value)
