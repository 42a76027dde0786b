"""Barriers among the launches of one MANY row, found for all launches at once.

The launches of a row take effect one after the other, so a barrier stands before each that conflicts with one since
the barrier before. What a launch does to one range twice is its own business, as in single launches.

Nearly all rows have no conflicts and show it at a glance. Where ranges are equal or apart, one sort finds each launch's
latest predecessor in conflict. Only ranges that overlap in part are gone through launch by launch.

Imported when the first MANY row comes, for it needs NumPy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.kernels.launches import Many, Slot

Column: TypeAlias = npt.NDArray[Any]


def barriers(many: Many) -> list[int]:
    """The launches before which a barrier must stand, in rising order; never the first."""
    slots = [slot for slot in many.slots if _is_column(slot.buffer) or slot.buffer >= 0]
    written = [slot for slot in slots if slot.writes]
    if many.count == 1 or not written:
        return []
    if any(not any(map(_is_column, slot[:3])) and slot.size for slot in written):
        return list(range(1, many.count))  # all launches write the same
    read = [slot for slot in slots if not slot.writes]
    if _buffers_apart(written, read, len(many.buffers)) or _ranges_apart(written, read):
        return []
    return _sorted(many.count, slots, len(many.buffers))


def _is_column(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _buffers_apart(written: list[Slot], read: list[Slot], buffers: int) -> bool:
    """Whether each buffer that is written is in one place only."""
    if not all(_is_column(slot.buffer) for slot in written):
        return False
    times = np.zeros(buffers, np.int64)
    for slot in written:
        times += np.bincount(slot.buffer, minlength=buffers)
    return bool(times.max() <= 1) and not any(np.any(times[slot.buffer]) for slot in read)


def _ranges_apart(written: list[Slot], read: list[Slot]) -> bool:
    """Whether the ranges written follow one another in one buffer, and all that is read lies before or behind them."""
    [buffer, starts, sizes, *_], *more = written
    if more or _is_column(buffer) or not _is_column(starts):
        return False
    ends = starts + np.asarray(sizes, np.uint64)
    if (starts[1:] < ends[:-1]).any():
        return False
    for slot in read:
        if not np.any(slot.buffer == buffer):
            continue
        first, last = np.min(slot.offset), np.max(slot.offset + np.asarray(slot.size, np.uint64))
        if first < ends[-1] and last > starts[0]:
            return False
    return True


def _sorted(count: int, slots: list[Slot], buffers: int) -> list[int]:
    shape = (count, len(slots))
    places, starts, sizes = (np.empty(shape, np.int64) for _ in range(3))
    for i, slot in enumerate(slots):
        places[:, i], starts[:, i], sizes[:, i] = slot[:3]
    # One line for all buffers, each from a multiple of `step` on.
    step = int((starts + sizes).max())
    if step * buffers >= 1 << 63:
        return _one_by_one(count, slots)
    starts += places * step
    there = sizes.ravel() > 0
    if not there.any():
        return []
    launches = np.repeat(np.arange(count), len(slots))[there]
    writes = np.tile([slot.writes for slot in slots], count)[there]
    first = starts.ravel()[there]
    end = first + sizes.ravel()[there]
    order = np.argsort(first, kind="stable")  # of equal ranges the earlier launch's comes first
    first, end, launches, writes = first[order], end[order], launches[order], writes[order]
    equal = first[1:] == first[:-1]
    if not np.where(equal, end[1:] == end[:-1], first[1:] >= end[:-1]).all():
        return _one_by_one(count, slots)
    return _greedy(_latest(count, equal, launches, writes))


def _latest(count: int, equal: Column, launches: Column, writes: Column) -> Column:
    """For each launch the latest before it that conflicts with it, -1 for none.

    Args:
        equal: whether a range is the same as the one before it.
        launches, writes: of each range, grouped by equal ranges and in order of the launches within.
    """
    opens = np.concatenate([[True], ~equal])
    news = np.flatnonzero(opens | np.concatenate([[True], launches[1:] != launches[:-1]]))
    # What one launch does to one range is one entry from here on.
    written = np.logical_or.reduceat(writes, news)
    opens, launches = opens[news], launches[news]
    number = np.arange(len(news))
    before = np.where(opens, -1, np.concatenate([[-1], launches[:-1]]))
    last_write = np.concatenate([[-1], np.maximum.accumulate(np.where(written, number, -1))[:-1]])
    group = np.maximum.accumulate(np.where(opens, number, 0))
    write_before = np.where(last_write >= group, launches[last_write], -1)
    latest = np.full(count, -1, np.int64)
    np.maximum.at(latest, launches, np.where(written, before, write_before))
    return latest


def _greedy(latest: Column) -> list[int]:
    found = []
    since = 0  # the first launch behind the barrier before
    conflicting = np.flatnonzero(latest >= 0)
    for launch, other in zip(conflicting.tolist(), latest[conflicting].tolist(), strict=True):
        if other >= since:
            found.append(launch)
            since = launch
    return found


class _Union:
    """A set of bytes as disjoint ranges in order."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def meets(self, first: int, end: int) -> bool:
        at = bisect_right(self.ends, first)
        return at < len(self.starts) and self.starts[at] < end

    def add(self, first: int, end: int) -> None:
        low, high = bisect_left(self.ends, first), bisect_right(self.starts, end)
        if low < high:
            first, end = min(first, self.starts[low]), max(end, self.ends[high - 1])
        self.starts[low:high] = [first]
        self.ends[low:high] = [end]


def _one_by_one(count: int, slots: list[Slot]) -> list[int]:
    def values(column: Any) -> list[int]:
        return column.tolist() if _is_column(column) else [column] * count

    every = [(slot.reads, slot.writes, zip(*map(values, slot[:3]), strict=True)) for slot in slots]
    read: defaultdict[int, _Union] = defaultdict(_Union)
    written: defaultdict[int, _Union] = defaultdict(_Union)
    found = []
    for launch in range(count):
        ranges = []
        conflict = False
        for reads, writes, rows in every:
            place, first, size = next(rows)
            if size:
                end = first + size
                conflict = conflict or written[place].meets(first, end) or (writes and read[place].meets(first, end))
                ranges.append((reads, writes, place, first, end))
        if conflict:
            found.append(launch)
            read.clear()
            written.clear()
        for reads, writes, place, first, end in ranges:
            if reads:
                read[place].add(first, end)
            if writes:
                written[place].add(first, end)
    return found
