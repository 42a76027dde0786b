"""Rows that touch many buffers, as the stream sees them: compared as sets instead of range by range.

A MANY row may touch 10,000 buffers. To note each of them would cost as much as the launches; two such rows, or a row
and the stream's own tables, are compared by their keys, which takes 0.03 µs for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from vkqueue.kernels.launches import ManyToken, Touched
from vkqueue.model import Range

# Rows with so many buffers, or fewer, are noted range by range as all others are (arbitrary).
FEW = 16
# Rows since the last barrier before one is spent on forgetting them (arbitrary; each costs every later row a look).
MOST = 8


class WideTokens:
    """The MANY rows of many buffers that are in flight.

    Attributes:
        since: of those, the ones since the last barrier, with the serials of their batches.
    """

    def __init__(self) -> None:
        self.since: list[tuple[ManyToken, int]] = []
        self._in_flight: list[tuple[ManyToken, int]] = []

    def add(self, token: ManyToken, serial: int) -> None:
        """A row came."""
        self.since.append((token, serial))
        self._in_flight.append((token, serial))

    def completed(self, serial: int) -> None:
        """Every batch up to this one is over."""
        if self._in_flight and self._in_flight[0][1] <= serial:
            self._in_flight = [known for known in self._in_flight if known[1] > serial]
            self.since = [known for known in self.since if known[1] > serial]

    def meets(self, reads: Collection[Range], writes: Collection[Range]) -> bool:
        """Whether a row conflicts with one of these since the last barrier."""
        for token, _ in self.since:
            for buffer, first, end in reads:
                if _inside(token.written, buffer, first, end):
                    return True
            for buffer, first, end in writes:
                if _inside(token.written, buffer, first, end) or _inside(token.read, buffer, first, end):
                    return True
        return False

    def meets_wide(self, token: ManyToken) -> bool:
        """The same for a row of many buffers."""
        return any(_conflict(token, other) for other, _ in self.since)

    def uses(self, buffer: int, *, writes: bool) -> bool:
        """Whether one in flight touches, or only whether it writes, a buffer."""
        for token, _ in self._in_flight:
            if buffer in token.written or (not writes and buffer in token.read):
                return True
        return False


def meets_ranges(touched: Touched, known: Mapping[int, list[list[int]]], completed: int) -> bool:
    """Whether any of `touched` overlaps a range of the stream's tables that a batch in flight touches."""
    for buffer in known.keys() & touched.keys():
        first, end = touched[buffer]
        for low, high, serial in known[buffer]:
            if low < end and first < high and serial > completed:
                return True
    return False


def _inside(touched: Touched, buffer: int, first: int, end: int) -> bool:
    low, high = touched.get(buffer, (0, 0))
    return low < end and first < high


def _conflict(one: ManyToken, other: ManyToken) -> bool:
    """Whether one writes what the other reads or writes. Both have many buffers, of which mostly a few are only read,
    and the others are written and lie together, as they were made."""
    if one is other:
        return bool(one.written)
    if _clash(one.only_read, one.read, other.written) or _clash(other.only_read, other.read, one.written):
        return True
    if one.low > other.high or other.low > one.high:
        return False
    return any(
        _inside(other.written, buffer, *one.written[buffer])
        or _inside(other.read, buffer, *one.written[buffer])
        or _inside(other.written, buffer, *one.read.get(buffer, (0, 0)))
        for buffer in one.written.keys() & other.written.keys()
    )


def _clash(buffers: Set[int], read: Touched, written: Touched) -> bool:
    if written.keys().isdisjoint(buffers):
        return False
    return any(_inside(written, buffer, *read[buffer]) for buffer in buffers if buffer in written)
