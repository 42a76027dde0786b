"""Tokens and rows for tests of the scheduler and the stream, a brute-force judge of batches, and a counter of steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import count
from types import FrameType
from typing import Any

from vkqueue.model import (
    BARRIER,
    CREATE,
    DIRECT,
    DISPATCH,
    FREE,
    INIT,
    READ,
    STORAGE,
    WRITE,
    Batch,
    Layout,
    Options,
    Range,
    Row,
    Token,
)

PUSH_MAX = 4
"""`max_push_descriptors` of the device that these tests imagine."""

_ids = count(1000)


def layout(*sets: int) -> Layout:
    """A layout with so many storage buffers in sets 0, 1, …"""
    shape = tuple((n, tuple((b, STORAGE, 1) for b in range(size))) for n, size in enumerate(sets))
    return Layout(next(_ids), shape, 0)


PUSHED, RINGED, MIXED = layout(2), layout(PUSH_MAX + 1), layout(2, 2)


def token(
    reads: Iterable[Any] = (), writes: Iterable[Any] = (), *, shape: Layout | None = PUSHED, cached: bool = True
) -> Token:
    """A token on buffers (all of their 64 bytes) or ranges."""
    ranges = [tuple((r, 0, 64) if isinstance(r, int) else r for r in side) for side in (reads, writes)]
    entries = tuple((id, first, end - first) for side in ranges for id, first, end in side)
    return Token(next(_ids), shape, entries, ranges[0], ranges[1], cached)


def launch(
    t: Token, msgid: int = 0, *, session: int = 1, stamp: int = 0, options: Options | None = None, payload: Any = None
) -> Row:
    return (session, msgid, DISPATCH, t, 3, b"", (1, 1, 1), payload, stamp, options)


def read(where: Range, msgid: int = 0, *, session: int = 1, stamp: int = 0) -> Row:
    t = token((where,), shape=None, cached=False)
    return (session, msgid, READ, t, 0, b"", None, None, stamp, None)


def write(where: Range, msgid: int = 0, *, session: int = 1, stamp: int = 0) -> Row:
    t = token((), (where,), shape=None, cached=False)
    return (session, msgid, WRITE, t, 0, b"", None, bytes(where[2] - where[1]), stamp, None)


def create(buffer: int, size: int, msgid: int = 0, *, session: int = 1, stamp: int = 0) -> Row:
    t = token((), ((buffer, 0, size),) if size else (), shape=None, cached=False)
    return (session, msgid, CREATE, t, buffer, b"", buffer, (size, None), stamp, None)


def free(buffer: int, size: int = 64, *, session: int = 1, stamp: int = 0) -> Row:
    t = token((), ((buffer, 0, size),) if size else (), shape=None, cached=False)
    return (session, -1, FREE, t, buffer, b"", None, size, stamp, None)


def conflict(a: Token, b: Token) -> bool:
    """Whether one writes what the other reads or writes."""
    return any(
        x[0] == y[0] and x[1] < y[2] and y[1] < x[2]
        for one, other in ((a.writes, b.writes), (a.writes, b.reads), (a.reads, b.writes))
        for x in one
        for y in other
    )


class Judge:
    """Looks at every pair of rows that could run at once, and at every slot: slow, simple, and sure.

    Attributes:
        spurious: barriers before rows that conflict with nothing since the barrier before.
        needless: initializers of launches whose descriptors were in place.
    """

    def __init__(self, max_push: int = PUSH_MAX) -> None:
        self.spurious = self.needless = self.barriers = self.direct = self.rows = 0
        self._max_push = max_push
        self._in_flight: dict[int, list[Row]] = {}
        self._unordered: list[tuple[int, Token]] = []  # (serial, token), since the last barrier
        self._excused = False
        self._holds: dict[tuple[int, int], int] = {}  # (layout, slot) -> token
        self._place: dict[tuple[int, int], int] = {}  # (layout, token) -> slot
        self._users: dict[int, set[tuple[int, int]]] = {}  # serial -> slots it uses

    def completed(self, serial: int) -> None:
        del self._in_flight[serial], self._users[serial]

    def reset(self) -> None:
        """What slots hold is unknown, and one barrier is excused."""
        self._holds.clear()
        self._place.clear()
        self._excused = True

    def see(self, batch: Batch) -> None:
        """Judge a batch that goes to the device now."""
        serial = batch.serial
        assert len(batch.rows) == len(batch.flags) == len(batch.slots)
        first = min(self._in_flight, default=serial)
        # A stream knows of completions as far as they come without gaps: rows before the first in flight are over.
        self._unordered = [known for known in self._unordered if known[0] >= first]
        self._in_flight[serial] = []
        self._users[serial] = set()
        pushed: Token | None = None
        for row, flag, slot in zip(batch.rows, batch.flags, batch.slots, strict=True):
            self.rows += 1
            if flag & DIRECT:
                self._see_direct(row, flag, slot)
                continue
            self._see_hazards(serial, row[3], bool(flag & BARRIER))
            self._in_flight[serial].append(row)
            if row[2] == DISPATCH:
                pushed = self._see_descriptors(serial, row[3], bool(flag & INIT), slot, pushed)
            else:
                assert flag & INIT == 0 and slot == -1

    def _see_direct(self, row: Row, flag: int, slot: int) -> None:
        assert flag == DIRECT and slot == -1 and row[2] in (READ, WRITE, CREATE)
        self.direct += 1
        for rows in self._in_flight.values():
            for other in rows:
                assert not conflict(row[3], other[3]), f"the host races with the device: {row} with {other}"

    def _see_hazards(self, serial: int, t: Token, barrier: bool) -> None:
        in_flight = self._in_flight
        if not barrier:
            for known, other in self._unordered:
                assert known not in in_flight or not conflict(t, other), f"no barrier between {other.id} and {t.id}"
        else:
            self.barriers += 1
            if self._excused:
                self._excused = False
            elif not any(conflict(t, other) for _, other in self._unordered):
                self.spurious += 1
            self._unordered.clear()
        self._unordered.append((serial, t))

    def _see_descriptors(self, serial: int, t: Token, init: bool, slot: int, pushed: Token | None) -> Token | None:
        shape = t.layout
        assert shape is not None
        if not t.cached:
            assert init, "transient descriptors that nobody brings"
        if not shape.needs_ring(self._max_push):
            assert slot == -1
            assert init or pushed is t, f"nothing pushes the descriptors of {t.id}"
            self.needless += init and pushed is t
            return t if t.cached else None
        key = (shape.id, slot)
        assert slot >= 0
        if init:
            assert not any(key in used for used in self._users.values()), f"slot {key} is rewritten in flight"
            self.needless += (shape.id, t.id) in self._place
            self._place.pop((shape.id, self._holds.pop(key, 0)), None)
            if t.cached:
                self._holds[key] = t.id
                self._place[shape.id, t.id] = slot
        else:
            assert self._holds.get(key) == t.id, f"slot {key} does not hold {t.id}"
        self._users[serial].add(key)
        return None


def steps(run: Callable[[], object], package: str = "/vkqueue/jobs/") -> int:
    """Lines of the package that a call executes, each turn of a loop counted: its cost without a clock."""
    lines = 0

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return on_line

    def on_call(frame: FrameType, event: str, argument: object) -> Any:
        return on_line if package in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines
