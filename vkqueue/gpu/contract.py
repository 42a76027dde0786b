"""What a backend may expect of the batches it is given, as checks: used by the fake, and in tests by any other.

A batch that breaks these rules would give wrong results on some devices and right ones on others, which is the
kind of fault that tests with a forgiving backend do not see.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from vkqueue.kernels.launches import Many
from vkqueue.model import (
    BARRIER,
    DIRECT,
    DISPATCH,
    GRAPH,
    INIT,
    MANY,
    READ,
    ROW_OP,
    ROW_PAYLOAD,
    ROW_TARGET,
    ROW_TOKEN,
    Batch,
    GraphInstance,
    Layout,
    Range,
    Row,
    Token,
)


class ContractError(AssertionError):
    """A caller broke the backend's contract."""


class _Touched:
    """Ranges of buffers that were read and written."""

    def __init__(self) -> None:
        self.reads: dict[int, set[tuple[int, int]]] = {}
        self.writes: dict[int, set[tuple[int, int]]] = {}

    def add(self, token: Token) -> None:
        for where, ranges in ((self.reads, token.reads), (self.writes, token.writes)):
            for buffer, start, end in ranges:
                where.setdefault(buffer, set()).add((start, end))

    def conflict(self, token: Token) -> str | None:
        """The name of the first hazard that `token` would meet here."""
        for name, where, ranges in (
            ("read after write", self.writes, token.reads),
            ("write after write", self.writes, token.writes),
            ("write after read", self.reads, token.writes),
        ):
            for buffer, start, end in ranges:
                for other_start, other_end in where.get(buffer, ()):
                    if start < other_end and other_start < end:
                        return f"{name} on buffer {buffer}, bytes {max(start, other_start)} to {min(end, other_end)}"
        return None


class Contract:
    """The rules for one device. `check` is for the worker thread; `finished` may be called on any.

    Checked: serials rise; flags and slots run parallel to the rows; a launch finds its descriptors (pushed in
    this command buffer, or in its slot of the ring) or has INIT; no slot is rewritten that a batch in flight
    uses; conflicting rows have a barrier between them, across the batches in flight, and conflicting nodes of a graph
    and launches of a MANY row too; the tokens of these two cover what they touch; the host touches no range that a row
    in flight uses.
    """

    def __init__(self, max_push_descriptors: int) -> None:
        self._max_push = max_push_descriptors
        self._serial = 0
        self._in_flight: dict[int, _Touched] = {}
        self._unordered: dict[int, _Touched] = {}  # the same, since the last barrier
        self._slots: dict[tuple[int, int], int] = {}  # (layout id, slot) -> id of the token in it
        self._slots_in_flight: dict[int, set[tuple[int, int]]] = {}
        self._finished: deque[int] = deque()
        self._pushed: Token | None = None

    def finished(self, serial: int) -> None:
        """The batch's fence is known, or nothing of it was submitted."""
        self._finished.append(serial)

    def check(self, batch: Batch) -> None:
        """Raises ContractError for the first rule that the batch breaks."""
        while self._finished:
            serial = self._finished.popleft()
            for table in (self._in_flight, self._unordered, self._slots_in_flight):
                table.pop(serial, None)
        if batch.serial <= self._serial:
            raise ContractError(f"batch {batch.serial} comes after batch {self._serial}")
        self._serial = batch.serial
        if not len(batch.rows) == len(batch.flags) == len(batch.slots):
            raise ContractError(f"batch {batch.serial}: rows, flags and slots differ in length")
        self._in_flight[batch.serial] = _Touched()
        self._slots_in_flight[batch.serial] = set()
        self._pushed = None  # a new command buffer has no descriptors
        for index, row in enumerate(batch.rows):
            try:
                self._check_row(batch.serial, row, batch.flags[index], batch.slots[index])
            except ContractError as error:
                raise ContractError(f"batch {batch.serial}, row {index}: {error}") from None

    def _check_row(self, serial: int, row: Row, flags: int, slot: int) -> None:
        token: Token = row[ROW_TOKEN]
        if flags & DIRECT:
            if row[ROW_OP] == DISPATCH:
                raise ContractError("a dispatch cannot be DIRECT")
            self._check_host(token, self._in_flight.values())
            return
        self._check_hazards(serial, token, bool(flags & BARRIER))
        if row[ROW_OP] == GRAPH:
            self._pushed = None
            check_graph(row[ROW_TARGET], token)
        if row[ROW_OP] == MANY:
            self._pushed = None
            check_many(row[ROW_PAYLOAD], token)
        if row[ROW_OP] == DISPATCH:
            if token.layout is None:
                raise ContractError(f"a dispatch of pipeline {row[ROW_TARGET]} whose token has no layout")
            if token.layout.sets:
                self._check_descriptors(serial, token, token.layout, bool(flags & INIT), slot)

    def _check_host(self, token: Token, in_flight: Iterable[_Touched]) -> None:
        for touched in in_flight:
            hazard = touched.conflict(token)
            if hazard:
                raise ContractError(f"the host would touch memory in use: {hazard}")

    def _check_hazards(self, serial: int, token: Token, barrier: bool) -> None:
        if barrier:
            self._unordered.clear()
        for touched in self._unordered.values():
            hazard = touched.conflict(token)
            if hazard:
                raise ContractError(f"no barrier: {hazard}")
        self._unordered.setdefault(serial, _Touched()).add(token)
        self._in_flight[serial].add(token)

    def _check_descriptors(self, serial: int, token: Token, layout: Layout, init: bool, slot: int) -> None:
        if not init and not token.cached:
            raise ContractError("transient entries without INIT")
        if layout.needs_ring(self._max_push):
            # Of a layout that has a pushed set as well, INIT says nothing: that set is pushed for each new token.
            self._check_slot(serial, token, layout, init, slot)
            self._pushed = None
            return
        if slot != -1:
            raise ContractError(f"slot {slot} for a layout that needs none")
        if not init and self._pushed is not token:
            raise ContractError(f"token {token.id} is not the one last pushed in this batch, and INIT is missing")
        self._pushed = token

    def _check_slot(self, serial: int, token: Token, layout: Layout, init: bool, slot: int) -> None:
        key = (layout.id, slot)
        if slot < 0:
            raise ContractError(f"layout {layout.id} needs a slot of the ring")
        if init:
            if any(key in used for used in self._slots_in_flight.values()):
                raise ContractError(f"slot {slot} of layout {layout.id} is rewritten while a batch uses it")
            self._slots[key] = token.id
        elif self._slots.get(key) != token.id:
            raise ContractError(f"token {token.id} is not in slot {slot} of layout {layout.id}, and INIT is missing")
        self._slots_in_flight[serial].add(key)


def check_graph(instance: GraphInstance, token: Token) -> None:
    """Raises ContractError when nodes conflict with no barrier between them, or touch what is not in the token."""
    touched = _Touched()
    for number, node in enumerate(instance.nodes):
        places = instance.places
        reads, writes = (
            tuple((places[p][0], places[p][1] + first, places[p][1] + end) for p, first, end in ranges)
            for ranges in (node.reads, node.writes)
        )
        own = Token(0, None, (), reads, writes, cached=False)
        if node.barrier:
            touched = _Touched()
        hazard = touched.conflict(own)
        if hazard:
            raise ContractError(f"node {number} ({node.label}): no barrier: {hazard}")
        touched.add(own)
        announced = tuple(range for range in reads if range[0] not in instance.fixed)
        _check_announced(f"node {number}", token, announced, writes)


def check_many(many: Many, token: Token) -> None:
    """The same for the launches of a MANY row."""
    touched = _Touched()
    barriers = set(many.barriers)
    for launch in range(many.count):
        reads, writes = many.touched(launch)
        own = Token(0, None, (), tuple(reads), tuple(writes), cached=False)
        if launch in barriers:
            touched = _Touched()
        hazard = touched.conflict(own)
        if hazard:
            raise ContractError(f"launch {launch}: no barrier: {hazard}")
        touched.add(own)
        _check_announced(f"launch {launch}", token, own.reads, own.writes)


def _check_announced(who: str, token: Token, reads: tuple[Range, ...], writes: tuple[Range, ...]) -> None:
    for found, known, doing in ((reads, (*token.reads, *token.writes), "reads"), (writes, token.writes, "writes")):
        for buffer, first, end in found:
            if not any(b == buffer and low <= first and end <= high for b, low, high in known):
                raise ContractError(f"{who} {doing} bytes {first} to {end} of buffer {buffer} unannounced")


def transfer_ranges(row: Row) -> tuple[Range | None, Range | None]:
    """(range read, range written) of a transfer; None for one that it does not have."""
    token: Token = row[ROW_TOKEN]
    reads, writes = token.reads, token.writes
    if len(reads) > 1 or len(writes) > 1 or (row[ROW_OP] == READ and writes):
        raise ContractError(f"a transfer with {len(reads)} ranges to read and {len(writes)} to write")
    return (reads[0] if reads else None), (writes[0] if writes else None)
