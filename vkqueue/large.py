"""Memory for large data that comes and goes: pages that have been used are kept for what comes next.

To get pages from the kernel costs more than to fill them: a copy into fresh ones ran at 1.4 GB/s, into used ones at 12
(64 MiB) to 48 (4 MiB). The C allocator gives large pieces back to the kernel at once.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

LARGE = 1 << 20
"""From this size on it pays; the C allocator has smaller memory at hand."""

KEEP_BYTES = 128 << 20
"""What is kept while nobody uses it: two messages of the largest size by default."""

# Advice to use huge pages, which makes the first use of large memory cheaper where there are any.
_HUGE = 4 << 20
_MADV_HUGEPAGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)

# Longest unused first. Finalizers add to it on any thread and at any moment, also while it is looked through: each
# step below is one call of list's, and none relies on what the one before has seen.
_idle: list[mmap.mmap] = []
# Those in use, by the address of their first byte, and how many bytes were asked for.
_used: dict[int, tuple[mmap.mmap, int]] = {}


def new_large(size: int) -> memoryview:
    """`size` bytes to be overwritten: what is in them is undefined. They are kept for another use once this view and
    all made of it are gone.
    """
    capacity = max(1 << (size - 1).bit_length(), LARGE)
    pages = _take(capacity)
    if pages is None:
        # Not touched yet: what is promised and never comes costs nothing.
        pages = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if capacity >= _HUGE and _MADV_HUGEPAGE is not None:
            pages.madvise(_MADV_HUGEPAGE)
    holder = (ctypes.c_ubyte * capacity).from_buffer(pages)  # of few types, as there are few capacities
    address = ctypes.addressof(holder)
    _used[address] = pages, size
    weakref.finalize(holder, _give_back, address, pages).atexit = False
    return memoryview(holder).cast("B")[:size]


def pages_at(address: int) -> tuple[mmap.mmap, int] | None:
    """The pages that begin at an address, if they are out of `new_large` and in use, and the bytes that were asked for.
    Pages are the same object each time; it lives longer than their mapping is of use.
    """
    return _used.get(address)


def is_kept(pages: mmap.mmap) -> bool:
    """Whether pages are in use or kept for later: if not, they never come again."""
    return any(pages is each for each in list(_idle)) or any(pages is each for each, _ in list(_used.values()))


def idle_bytes() -> int:
    """Bytes that are kept for later."""
    return sum(map(len, list(_idle)))


def _take(capacity: int) -> mmap.mmap | None:
    for pages in reversed(list(_idle)):
        if len(pages) == capacity:
            try:
                _idle.remove(pages)
            except ValueError:  # somebody was faster
                continue
            return pages
    return None


def _give_back(address: int, pages: mmap.mmap) -> None:
    _used.pop(address, None)
    if len(pages) > KEEP_BYTES:
        return
    _idle.append(pages)
    while idle_bytes() > KEEP_BYTES:
        try:
            del _idle[0]
        except IndexError:
            return
