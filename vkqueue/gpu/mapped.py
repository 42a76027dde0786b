"""Memory of the device that the host sees: writing, zeroing and reading it.

Small pieces go through one memoryview per block, which costs a quarter of a microsecond and keeps the GIL. Large
ones go through `ctypes.memmove`, which releases it: 1 MiB takes some 100 µs, and from there on the other threads'
progress is worth the price of winning the GIL back.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol

from vkqueue.gpu import binding

LARGE = 1 << 20
# Fresh memory from here on is asked for in huge pages, as NumPy does: page faults cost more than the copy.
_HUGE = 4 << 20
_PAGE = mmap.PAGESIZE
_ZEROS = memoryview(bytes(LARGE))


class HostCache(Protocol):
    """What memory that is not coherent needs: ranges are (start, end) from the start of the block."""

    def flush(self, ranges: list[tuple[int, int]]) -> None:
        """Make the host's writes visible to the device."""

    def invalidate(self, start: int, end: int) -> None:
        """Make the device's writes visible to the host. Any thread."""


class Mapping:
    """One mapped block. Offsets are from its start; callers stay inside, or get an error.

    Args:
        cache: None where the memory is coherent.
    """

    __slots__ = ("_cache", "_dirty", "address", "size", "view")

    def __init__(self, address: int, size: int, cache: HostCache | None = None) -> None:
        self.address = address
        self.size = size
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        self._cache = cache
        self._dirty: list[tuple[int, int]] = []

    def write(self, offset: int, data: Any) -> None:
        """Copy a bytes-like to `offset`."""
        size = len(data)
        if size < LARGE:
            self.view[offset : offset + size] = data
        else:
            self._check(offset, size)
            with memoryview(data) as source:
                ctypes.memmove(self.address + offset, binding.address(binding.ffi.from_buffer(source)), size)
        if self._cache is not None:
            self._dirty.append((offset, offset + size))

    def zero(self, offset: int, size: int) -> None:
        """Zero `size` bytes at `offset`."""
        if size < LARGE:
            self.view[offset : offset + size] = _ZEROS[:size]
        else:
            self._check(offset, size)
            ctypes.memset(self.address + offset, 0, size)
        if self._cache is not None:
            self._dirty.append((offset, offset + size))

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes at `offset`."""
        if self._cache is not None and size:
            self._cache.invalidate(offset, offset + size)
        if size < LARGE:
            return bytes(self.view[offset : offset + size])
        self._check(offset, size)
        return _copy_large(self.address + offset, size)

    def copy(self, offset: int, target: Mapping, place: int, size: int) -> None:
        """Copy `size` bytes at `offset` to `place` of another block."""
        if self._cache is not None and size:
            self._cache.invalidate(offset, offset + size)
        self._check(offset, size)
        target.write(place, self.view[offset : offset + size])

    def flush(self) -> None:
        """Make what was written since the last flush visible to the device."""
        if self._cache is not None and self._dirty:
            self._cache.flush(self._dirty)
            self._dirty.clear()

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise IndexError(f"bytes {offset} to {offset + size} lie outside a mapping of {self.size}")


# Bytes to be filled in, which C code may do before anyone else has seen them. bytes(view) would copy with the GIL held,
# and a bytearray be zeroed so.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype, _address_of.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _copy_large(address: int, size: int) -> bytes:
    data: bytes = _new_bytes(None, size)
    target: int = _address_of(data)
    if size >= _HUGE:
        # Advice only: that it fails where there are no huge pages does not matter.
        start = (target + _PAGE - 1) & -_PAGE
        _madvise(start, (target + size - start) & -_PAGE, mmap.MADV_HUGEPAGE)
    ctypes.memmove(target, address, size)
    return data
