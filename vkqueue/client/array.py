"""Memory of the device as arrays: handles, views, and `out` for results that a call makes."""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.errors import InvalidError, VkqueueError, brief

Shape: TypeAlias = int | Sequence[int]
Array: TypeAlias = npt.NDArray[Any]


class Handle:
    """A buffer or module of the daemon's, freed there once nothing here uses it.

    Views, kernels and arrays share one Handle. When the last is collected, a finalizer notes the number in the
    connection's list of dead ones, which goes out with the next request: a finalizer runs in any thread
    at any moment, and must not touch a socket or a lock.

    Attributes:
        id: the number on the wire; `owner`: the connection that it is of.
        fault: why the creation failed, once that is known.
        dead: freed by hand.
        usable: neither of the two.
    """

    __slots__ = ("__weakref__", "_finalizer", "dead", "fault", "id", "owner", "size", "usable")

    def __init__(
        self, owner: object, id: int, size: int, release: tuple[str, str], graveyard: deque[tuple[str, str, int]]
    ) -> None:
        self.owner = owner
        self.id = id
        self.size = size
        self.fault: VkqueueError | None = None
        self.dead = False
        self.usable = True
        self._finalizer = weakref.finalize(self, graveyard.append, (*release, id))
        self._finalizer.atexit = False  # the connection's end frees everything anyway

    def bury(self) -> None:
        """Free it: once, however often called."""
        self.dead = True
        self.usable = False
        self._finalizer()

    def failed(self, error: VkqueueError) -> None:
        """Its creation failed: whoever uses it is told why. The first reason counts."""
        if self.fault is None:
            self.fault = error
            self.usable = False

    def check(self, what: str) -> None:
        """Raise if it cannot be used any more.

        Raises:
            InvalidError: it was freed.
            VkqueueError: its creation failed; the error is that of the creation.
        """
        if self.dead:
            raise InvalidError(f"{what} was freed; it cannot be used any more")
        if self.fault is not None:
            raise self.fault


_serials = itertools.count(1)


class BaseDeviceArray:
    """An n-dimensional array in the device's memory; the part that needs no I/O.

    It is C-contiguous. A slice along the first axis is a view of the same memory, and keeps it alive.

    Attributes:
        shape, dtype, nbytes, size, ndim: as NumPy's.
        offset: first byte within the buffer, not 0 for some views.
        serial: number of this array object, never reused.
    """

    __slots__ = ("dtype", "handle", "nbytes", "offset", "serial", "shape")

    def __init__(self, handle: Handle, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0) -> None:
        self.handle = handle
        self.shape = shape
        self.dtype = dtype
        self.offset = offset
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.serial = next(_serials)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a device array of no dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        state = " freed" if self.handle.dead else f" at byte {self.offset}" if self.offset else ""
        return f"<{type(self).__name__} {self.shape} {self.dtype}{state}>"

    def wire(self) -> int | list[int]:
        """The entry of `args`: the whole buffer, or a range of it."""
        if self.offset == 0 and self.nbytes == self.handle.size:
            return self.handle.id
        return [self.handle.id, self.offset, self.nbytes]

    def geometry(self, key: object) -> tuple[tuple[int, ...], int]:
        """Shape and offset of the view that `array[key]` is.

        Raises:
            InvalidError: not a slice of step 1 or an integer.
            IndexError: an integer outside the first axis, or no axis to index.
        """
        if not self.shape:
            raise IndexError("a device array of no dimensions cannot be indexed")
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        if isinstance(key, slice):
            start, stop, step = key.indices(self.shape[0])
            if step != 1:
                raise InvalidError(f"a view of device memory is contiguous: slices have step 1, got {step}")
            return (max(stop - start, 0), *self.shape[1:]), self.offset + start * row
        try:
            index = operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidError(
                f"a device array takes a slice or an integer along its first axis, got {brief(key)}; "
                f"use .numpy() for anything else"
            ) from None
        if not -self.shape[0] <= index < self.shape[0]:
            raise IndexError(f"index {index} is outside the first axis of {self.shape[0]}")
        return self.shape[1:], self.offset + index % self.shape[0] * row

    def reshaped(self, shape: Shape, dtype: npt.DTypeLike | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of a view of all the bytes.

        Raises:
            InvalidError: they do not make up the same number of bytes.
        """
        kind = self.dtype if dtype is None else numpy_dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(map(operator.index, shape))
        if -1 in dims:
            known = -math.prod(dims) * kind.itemsize
            dims = tuple(self.nbytes // known if d == -1 and known > 0 else d for d in dims)
        if math.prod(dims) * kind.itemsize != self.nbytes or min(dims, default=0) < 0:
            raise InvalidError(f"{self.nbytes} bytes ({self.shape} {self.dtype}) cannot be seen as {dims} {kind}")
        return dims, kind

    def host_data(self, value: npt.ArrayLike) -> Array:
        """`value` as an array of this shape and dtype, ready to be sent.

        Raises:
            InvalidError: another shape, or a dtype that does not convert without losing its kind.
        """
        data = np.asarray(value)
        if data.shape != self.shape:
            raise InvalidError(f"expected values of shape {self.shape}, got {data.shape}")
        if not np.can_cast(data.dtype, self.dtype, "same_kind"):
            raise InvalidError(f"values of {data.dtype} do not convert to {self.dtype}; use .astype() on them first")
        return np.ascontiguousarray(data, self.dtype).reshape(self.shape)


class Out:
    """A result that a call makes: memory, zero at first, for a binding that the kernel writes. See `out`."""

    __slots__ = ("dtype", "nbytes", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize

    def __repr__(self) -> str:
        return f"vkqueue.out({self.shape}, {str(self.dtype)!r})"


def out(shape: Shape, dtype: npt.DTypeLike) -> Out:
    """An argument for a binding that a kernel writes: the call returns it as a new array of this form.

    It starts as zeros, and nothing is sent for it.

    Raises:
        InvalidError: no shape, or a dtype that has no place in device memory.
    """
    return Out(as_shape(shape), numpy_dtype(dtype))


def as_shape(shape: Shape) -> tuple[int, ...]:
    """A shape as a tuple of sizes.

    Raises:
        InvalidError: not an integer or a sequence of them, or negative.
    """
    try:
        dims = (operator.index(shape),) if not isinstance(shape, Sequence) else tuple(map(operator.index, shape))
    except TypeError:
        raise InvalidError(f"shape: expected an integer or a sequence of them, got {brief(shape)}") from None
    if min(dims, default=0) < 0:
        raise InvalidError(f"shape: {dims} has a negative size")
    return dims


def numpy_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A dtype in the machine's byte order.

    Raises:
        InvalidError: no dtype, or one of Python objects or of size 0.
    """
    if dtype is None:  # NumPy would take it for float64
        raise InvalidError("dtype: expected one, such as 'float32', got None")
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"dtype: {error}") from error
    if kind.hasobject or kind.itemsize == 0:
        raise InvalidError(f"dtype: {kind} has no fixed size in memory; device memory holds plain numbers")
    return kind.newbyteorder("=")


def form_of(prototype: npt.ArrayLike | BaseDeviceArray) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array, on the device or not.

    Raises:
        InvalidError: no numbers.
    """
    array = prototype if isinstance(prototype, BaseDeviceArray) else np.asarray(prototype)
    return array.shape, numpy_dtype(array.dtype)


def host_array(values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array:
    """Values as a C-contiguous array in native byte order, copied only if need be.

    Raises:
        InvalidError: no numbers.
    """
    array = np.asarray(values) if dtype is None else np.asarray(values, numpy_dtype(dtype))
    return np.ascontiguousarray(array, numpy_dtype(array.dtype)).reshape(array.shape)  # it makes scalars 1-d


def host_bytes(array: Array) -> memoryview | bytes:
    """The bytes of a C-contiguous array, not copied. (A memoryview of its own cannot be cast for every dtype.)"""
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def from_bytes(data: bytes | bytearray | memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A writable array over received bytes. Those that came as `bytes` are few, and copied."""
    flat: Array = np.frombuffer(data, dtype)
    return (flat if flat.flags.writeable else flat.copy()).reshape(shape)
