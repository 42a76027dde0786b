"""A heap from which entries may go missing."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

# Arbitrary: below it, looking for stale items is not worth the while.
_FEW = 64


class LazyHeap(Generic[T]):
    """Items by rising key. Stale ones stay until they surface, or are about as many as the others.

    So whoever adds items that become stale at once, with keys that keep them at the bottom, holds no memory by it.

    Args:
        stale: whether an item counts no more; once it does it never counts again.
    """

    def __init__(self, stale: Callable[[T], bool]) -> None:
        self._stale = stale
        self._heap: list[tuple[int, int, T]] = []
        self._limit = _FEW

    def __len__(self) -> int:
        """Items held, stale ones too."""
        return len(self._heap)

    def push(self, key: int, order: int, item: T) -> None:
        """Add an item; `order` decides between equal keys and must be unique."""
        heap = self._heap
        if len(heap) >= self._limit:
            heap = self._heap = [known for known in heap if not self._stale(known[2])]
            heapify(heap)
            self._limit = max(2 * len(heap), _FEW)
        heappush(heap, (key, order, item))

    def first(self) -> tuple[int, T] | None:
        """The smallest key and its item, which stays; None when there is none."""
        heap = self._heap
        while heap:
            key, _, item = heap[0]
            if not self._stale(item):
                return key, item
            heappop(heap)
        return None

    def pop(self) -> T | None:
        """The item with the smallest key, taken out; None when there is none."""
        heap = self._heap
        while heap:
            item = heappop(heap)[2]
            if not self._stale(item):
                return item
        return None
