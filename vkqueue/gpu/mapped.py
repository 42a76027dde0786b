"""Memory of the device that the host sees: writing, zeroing and reading it.

Small pieces go through one memoryview per block, which costs a quarter of a microsecond and keeps the GIL. Large
ones go through `ctypes.memmove`, which releases it: 1 MiB takes some 100 µs, and from there on the other threads'
progress is worth the price of winning the GIL back.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from vkqueue.gpu import binding
from vkqueue.large import LARGE, new_large

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

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """A copy of `size` bytes at `offset`."""
        if self._cache is not None and size:
            self._cache.invalidate(offset, offset + size)
        if size < LARGE:
            return bytes(self.view[offset : offset + size])
        self._check(offset, size)
        data = new_large(size)
        ctypes.memmove(binding.address(binding.ffi.from_buffer(data)), self.address + offset, size)
        return data

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
