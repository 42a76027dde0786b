"""Arguments that differ from launch to launch: `each`, for `kernel.many`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.client.arguments import Rules, check_form
from vkqueue.client.array import Array, BaseDeviceArray, Handle
from vkqueue.client.signature import Binding
from vkqueue.errors import InvalidError, brief

Starts: TypeAlias = Sequence[int] | npt.NDArray[Any]


class Each:
    """An argument that differs from launch to launch: see `each`. May be used for any number of calls.

    Attributes:
        arrays: device arrays in use; `handles`: theirs, each once.
        count: launches that it is for.
    """

    __slots__ = ("_offsets", "_sizes", "_wire", "arrays", "count", "handles")

    def __init__(
        self, arrays: Sequence[BaseDeviceArray], handles: Array | None, offsets: Array | None, sizes: Any, count: int
    ) -> None:
        self.arrays = arrays
        self.handles: tuple[Handle, ...] = tuple({id(a.handle): a.handle for a in arrays}.values())
        self.count = count
        self._offsets = offsets
        self._sizes = sizes
        self._wire: dict[str, Any] = (
            {"buffer": arrays[0].handle.id} if handles is None else {"handles": packed(handles, "<u4")}
        )
        if offsets is not None:
            size = packed(sizes, "<u8") if isinstance(sizes, np.ndarray) else sizes
            self._wire |= {"offsets": packed(offsets, "<u8"), "size": size}

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<vkqueue.each: {self.count} launches>"

    def wire(self, binding: Binding, rules: Rules) -> dict[str, Any]:
        """The entry of `args`.

        Raises:
            InvalidError: it does not fit the binding; the first launch that does not is named.
        """
        for handle in self.handles:
            if handle.owner is not rules.owner:
                raise InvalidError(f"{binding.label}: a device array is of another connection; load it with this one")
            if not handle.usable:
                handle.check(f"{binding.label}: a device array")
        if self._offsets is not None:
            uniform = binding.kind == "uniform"
            alignment = rules.uniform_alignment if uniform else rules.storage_alignment
            wrong = self._offsets % np.uint64(alignment) != 0
            if wrong.any():
                launch = int(wrong.argmax())
                limit = "minUniformBufferOffsetAlignment" if uniform else "minStorageBufferOffsetAlignment"
                raise InvalidError(
                    f"{binding.label}: launch {launch} starts at byte {self._offsets[launch]} of its buffer, the "
                    f"device binds at multiples of {alignment} ({limit})",
                    {"launch": launch, limit: alignment},
                )
        for dtype in {array.dtype for array in self.arrays}:
            check_form(binding, int(np.min(self._sizes)), dtype)
        return self._wire


def each(
    arrays: BaseDeviceArray | Sequence[BaseDeviceArray], starts: Starts | None = None, length: int | Starts = 1
) -> Each:
    """An argument of `kernel.many` that differs from launch to launch.

    Args:
        arrays: device arrays, of which launch i gets `arrays[i]`; or one device array, of which launch i gets the row
            `array[i]`, or with `starts` the rows `array[starts[i] : starts[i] + length]`.
        length: rows of each launch, one number or one for each.

    Raises:
        InvalidError: nothing that can be bound, or rows that are not there.
    """
    if isinstance(arrays, BaseDeviceArray):
        return _rows(arrays, starts, length)
    if starts is not None:
        raise InvalidError("each: starts are rows of one device array; slice the arrays of a list")
    known = list(arrays)
    if not known or any(not isinstance(a, BaseDeviceArray) or not isinstance(a.handle, Handle) for a in known):
        raise InvalidError(f"each: expected device arrays, got {brief(arrays)}")
    handles = np.array([a.handle.id for a in known], np.uint32)
    sizes = np.array([a.nbytes for a in known], np.uint64)
    if all(a.offset == 0 and a.nbytes == a.handle.size for a in known):
        return Each(known, handles, None, sizes, len(known))
    return Each(known, handles, np.array([a.offset for a in known], np.uint64), sizes, len(known))


def _rows(array: BaseDeviceArray, starts: Starts | None, length: int | Starts) -> Each:
    if not array.shape or not array.shape[0]:
        raise InvalidError(f"each: a device array of shape {array.shape} has no rows")
    if not isinstance(array.handle, Handle):
        raise InvalidError("each: a symbol of a graph cannot differ from launch to launch")
    rows = array.shape[0]
    row = array.nbytes // rows
    first = np.arange(rows) if starts is None else _whole_numbers(starts, "starts")
    lengths = _whole_numbers(length, "length")
    if first.ndim != 1 or not len(first) or lengths.ndim > 1 or (lengths.ndim and len(lengths) != len(first)):
        raise InvalidError(f"each: {brief(starts)} starts and {brief(length)} rows are not one for each launch")
    outside = (first < 0) | (lengths < 0) | (lengths > rows) | (first > rows - lengths)
    if outside.any():
        launch = int(outside.argmax())
        raise InvalidError(
            f"each: launch {launch} gets {np.broadcast_to(lengths, first.shape)[launch]} rows from {first[launch]} on, "
            f"the array has {rows}",
            {"launch": launch, "rows": rows},
        )
    offsets = first.astype(np.uint64) * np.uint64(row) + np.uint64(array.offset)
    sizes = lengths.astype(np.uint64) * np.uint64(row) if lengths.ndim else int(lengths) * row
    return Each((array,), None, offsets, sizes, len(first))


def _whole_numbers(values: Any, what: str) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InvalidError(f"each: {what}: expected integers, got {brief(values)}")
    return array.astype(np.int64)


def packed(values: Array, dtype: npt.DTypeLike) -> memoryview:
    """The bytes of an array in this form, copied only if need be."""
    return np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8).data
