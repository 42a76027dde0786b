"""Free ranges of one block of memory. Pure: offsets in, offsets out.

Best fit over a list sorted by (size, offset): small requests fill small holes, and the large tail of a block
stays whole for as long as possible. With requests rounded to one alignment (what the allocator does) the first
candidate always fits, so a request costs one binary search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice


def align_up(value: int, alignment: int) -> int:
    """The next multiple of `alignment` (a power of two)."""
    return (value + alignment - 1) & -alignment


class Space:
    """The ranges of a block of `size` bytes that are free, and those that are taken.

    Attributes:
        size: bytes in all.
        free: bytes not taken.
    """

    __slots__ = ("_by_size", "_ends", "_starts", "_taken", "free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._by_size = [(size, 0)]
        self._starts = {0: size}  # start of a free range -> its size
        self._ends = {size: 0}  # end of a free range -> its start
        self._taken: dict[int, int] = {}

    @property
    def largest(self) -> int:
        """Size of the largest free range, 0 when full."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def empty(self) -> bool:
        """Whether nothing is taken."""
        return not self._taken

    def take(self, size: int, alignment: int) -> int | None:
        """Take `size` bytes (at least 1) at a multiple of `alignment`; None when no free range holds them."""
        ranges = self._by_size
        for length, start in islice(ranges, bisect_left(ranges, (size, 0)), None):
            offset = align_up(start, alignment)
            end = start + length
            if offset + size <= end:
                self._remove(start, length)
                if offset > start:
                    self._insert(start, offset - start)
                if offset + size < end:
                    self._insert(offset + size, end - offset - size)
                self._taken[offset] = size
                self.free -= size
                return offset
        return None

    def give(self, offset: int) -> int:
        """Give back what `take` returned as `offset`; its size.

        Raises:
            KeyError: nothing was taken there.
        """
        size = self._taken.pop(offset)
        self.free += size
        start, end = offset, offset + size
        before = self._ends.get(start)
        if before is not None:
            self._remove(before, start - before)
            start = before
        after = self._starts.get(end)
        if after is not None:
            self._remove(end, after)
            end += after
        self._insert(start, end - start)
        return size

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._starts[start] = size
        self._ends[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._starts[start]
        del self._ends[start + size]
