"""What is decided of a graph once: the order of its steps, the barriers between them, where its temporaries lie.

Steps that do not depend on each other need no barrier between them, and one barrier serves all that come before it. So
steps go by *levels* (one more than the highest level of those they depend on), with a barrier between two levels: no
order needs fewer. Temporaries share memory where no level needs both, so sharing costs no barrier either.

Which steps depend on each other is found by the names they use. Where a launch binds overlapping memory to two names,
that is not so: then the steps run in the order in which they were sent, with barriers found for that very memory.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from vkqueue.errors import InvalidError
from vkqueue.jobs.stream import Stream
from vkqueue.kernels.graph_plan import CONSTANT, INPUT, OUTPUT, TEMPORARY, GraphPlan, Late, Step
from vkqueue.model import BARRIER, COPY, DISPATCH, GraphInstance, GraphNode, Range, Row, Token

# Levels may need more memory than the order as sent. Arbitrary: twice as much, and some more, is worth fewer barriers.
_MORE_MEMORY = 2
_SPARE_BYTES = 64 << 20
# Ranges of one place that are told apart; past it they count as one that covers them, which may cost a level.
_MAX_RANGES = 64

Where = tuple[int, int]
"""(buffer id, first byte)."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """An order of the steps.

    Attributes:
        order: indices of steps.
        barriers: for each in that order, whether one stands before it.
        offsets: place index -> first byte in the arena, of temporaries and constant data.
        size: bytes of the arena.
    """

    order: tuple[int, ...]
    barriers: tuple[bool, ...]
    offsets: dict[int, int]
    size: int


def levels(steps: Sequence[GraphNode]) -> list[int]:
    """The level of each step: 0 where it depends on none, else one more than the highest of those it depends on."""
    written: dict[int, dict[tuple[int, int], int]] = {}
    read: dict[int, dict[tuple[int, int], int]] = {}
    found = []
    for step in steps:
        level = 0
        for place, first, end in step.reads:
            level = max(level, _after(written.get(place), first, end))
        for place, first, end in step.writes:
            level = max(level, _after(written.get(place), first, end), _after(read.get(place), first, end))
        for known, ranges in ((read, step.reads), (written, step.writes)):
            for place, first, end in ranges:
                _note(known.setdefault(place, {}), first, end, level)
        found.append(level)
    return found


def _after(known: dict[tuple[int, int], int] | None, first: int, end: int) -> int:
    if not known:
        return 0
    return max((level + 1 for (low, high), level in known.items() if low < end and first < high), default=0)


def _note(known: dict[tuple[int, int], int], first: int, end: int, level: int) -> None:
    key = (first, end)
    known[key] = max(known.get(key, 0), level)
    if len(known) > _MAX_RANGES:
        all_of = (min(low for low, _ in known), max(high for _, high in known))
        newest = max(known.values())
        known.clear()
        known[all_of] = newest


def barriers(steps: Sequence[GraphNode], places: Sequence[Where]) -> tuple[bool, ...]:
    """Before which steps, in this order and with this memory, a barrier has to stand."""
    rows: list[Row] = []
    for number, step in enumerate(steps, 1):
        token = Token(number, None, (), _moved(step.reads, places), _moved(step.writes, places), cached=False)
        rows.append((0, 0, COPY, token, 0, b"", None, None, 0, None))
    batch = Stream(0, 0, 0).make_batch(rows, 1, "graph", 0)
    return tuple(flags & BARRIER != 0 for flags in batch.flags)


def _moved(ranges: Sequence[Range], places: Sequence[Where]) -> tuple[Range, ...]:
    return tuple((places[p][0], places[p][1] + first, places[p][1] + end) for p, first, end in ranges)


def place(sizes: Mapping[int, int], spans: Mapping[int, tuple[int, int]], align: int) -> tuple[dict[int, int], int]:
    """Where each thing lies: in the order of time, each in the smallest gap that earlier ones have left.

    Args:
        sizes: bytes of each; spans: its first and last time.

    Returns:
        Offsets, multiples of `align`; bytes needed in all.
    """
    offsets: dict[int, int] = {}
    gaps: list[tuple[int, int]] = []  # (first byte, end byte), by place; no two touch
    leaving: list[tuple[int, int, int]] = []  # (last time, first byte, end byte), as a heap
    total = 0
    for key in sorted(sizes, key=lambda k: (spans[k][0], -sizes[k], k)):
        size, (first, last) = -(-sizes[key] // align) * align, spans[key]
        while leaving and leaving[0][0] < first:
            _, low, high = heappop(leaving)
            _give_back(gaps, low, high)
        if not size:
            offsets[key] = 0
            continue
        fitting = [(high - low, low, high) for low, high in gaps if high - low >= size]
        if fitting:
            _, offset, end = min(fitting)
            gaps.remove((offset, end))
            if end > offset + size:
                insort(gaps, (offset + size, end))
        else:
            offset = gaps.pop()[0] if gaps and gaps[-1][1] == total else total
            total = offset + size
        offsets[key] = offset
        heappush(leaving, (last, offset, offset + size))
    return offsets, total


def _give_back(gaps: list[tuple[int, int]], low: int, high: int) -> None:
    """A gap more, one with those that it touches."""
    at = bisect(gaps, (low, high))
    if at < len(gaps) and gaps[at][0] == high:
        high = gaps.pop(at)[1]
    if at and gaps[at - 1][1] == low:
        low = gaps.pop(at - 1)[0]
    insort(gaps, (low, high))


def arrange(plan: GraphPlan, order: Sequence[int], times: Sequence[int], align: int) -> Arrangement:
    """Place the temporaries for steps in this order, and find the barriers.

    Args:
        times: of each step; memory is shared by what is used at different times, all of one before all of the other.
    """
    spans: dict[int, tuple[int, int]] = {}
    for index in order:
        node = plan.steps[index].node
        for number, _, _ in node.entries:
            first, last = spans.get(number, (times[index], times[index]))
            spans[number] = (min(first, times[index]), max(last, times[index]))
    sizes = {n: plan.places[n].size for n in spans if plan.places[n].role in (TEMPORARY, CONSTANT)}
    offsets, size = place(sizes, spans, align)
    # Buffer 1 is the arena, the others are the places that launches bind, each by itself.
    places = [(1, offsets[n]) if n in offsets else (n + 2, 0) for n in range(len(plan.places))]
    nodes = [plan.steps[index].node for index in order]
    return Arrangement(tuple(order), barriers(nodes, places), offsets, size)


@dataclass(frozen=True, slots=True)
class Bindings:
    """What a launch gives a graph.

    Attributes:
        buffers: place index -> where it lies, of inputs, outputs and buffers named by handle.
        inline: (place index, "in", "inout" or "out") of what comes and leaves with the launch, in the payload's order.
        arena, inline_arena: the buffers for temporaries, and for what is inline.
    """

    buffers: Mapping[int, Where]
    inline: Sequence[tuple[int, str]] = ()
    arena: int = 0
    inline_arena: int = 0


class Template:
    """A graph ready to be bound: its nodes in both orders.

    Args:
        align: of temporaries: whatever descriptors of the device ask for.
        every: put a barrier before every node (for measurements of what it is worth not to).

    Attributes:
        arena_bytes: memory of the temporaries of one launch.
        inline_bytes: memory for inputs and outputs, if a launch brings or takes bytes instead of naming buffers.
        barrier_count: barriers of a launch that binds no overlapping memory.
    """

    def __init__(self, plan: GraphPlan, pipelines: Mapping[Any, int], align: int, *, every: bool = False) -> None:
        self.plan = plan
        self._every = every
        self._numbers: dict[object, tuple[int, Late]] = {}
        self._nodes = [self._whole(step, pipelines) for step in plan.steps]
        depths = levels(self._nodes)
        by_level = sorted(range(len(depths)), key=depths.__getitem__)  # stable
        as_sent = list(range(len(depths)))
        self._apart = arrange(plan, by_level, depths, align)
        # A chain has one order: what no level needs at once no step does either.
        self._in_order = self._apart if by_level == as_sent else arrange(plan, as_sent, as_sent, align)
        if self._apart.size > _MORE_MEMORY * self._in_order.size + _SPARE_BYTES:
            self._apart = self._in_order
        self.arena_bytes = max(self._apart.size, self._in_order.size)
        self._static = self._arranged(self._apart, self._apart.barriers)
        self._moves = any(node.op != DISPATCH for node in self._nodes)
        self.barrier_count = sum(node.barrier for node in self._static)
        ends = [p for p in plan.places if p.role in (INPUT, OUTPUT)]
        everywhere = dict.fromkeys((p.id - 1 for p in ends), (0, 0))
        self._inline, self.inline_bytes = place({p.id - 1: p.size for p in ends}, everywhere, align)

    def inline_at(self, number: int) -> int:
        """Where an input or output (its place index) lies in the memory for what is inline."""
        return self._inline[number]

    def _whole(self, step: Step, pipelines: Mapping[Any, int]) -> GraphNode:
        """A step's node with its pipeline, and with places for what comes with launches; equal numbers share one."""
        if step.kernel is None and step.late is None:
            return step.node
        late, late_grid = (
            -1 if number is None else self._numbers.setdefault(number.key, (len(self._numbers), number))[0]
            for number in (step.late, step.late_grid)
        )
        return replace(step.node, pipeline=pipelines.get(step.kernel, 0), late=late, late_grid=late_grid)

    def _arranged(self, arrangement: Arrangement, where: Sequence[bool]) -> tuple[GraphNode, ...]:
        ordered = [self._nodes[index] for index in arrangement.order]
        wanted = [True] * len(ordered) if self._every else where
        wanted = [False, *wanted[1:]]  # before the first one stands the launch's own
        return tuple(
            node if node.barrier == barrier else replace(node, barrier=barrier)
            for node, barrier in zip(ordered, wanted, strict=True)
        )

    def bind(self, binding: Bindings, scalars: Mapping[str, Any], id: int, token: int) -> tuple[GraphInstance, Token]:
        """The instance of a launch, and its token. Both may be used again for launches that bind the same.

        Args:
            scalars: checked by `GraphPlan.check_scalars`.
            id, token: never used before.

        Raises:
            InvalidError: a scalar is out of range where it is used; a copy would overlap itself.
        """
        bound = dict(binding.buffers)
        for number, _ in binding.inline:
            bound[number] = (binding.inline_arena, self._inline[number])
        nodes, places = self._bound(bound, binding.arena)
        types = self.plan.scalars
        arenas = []
        if self.arena_bytes:
            arenas.append((binding.arena, self.arena_bytes))
        if binding.inline:
            arenas.append((binding.inline_arena, self.inline_bytes))
        instance = GraphInstance(
            id, nodes, places, tuple(arenas),
            transients=tuple((number, self.plan.places[number].size) for number, _ in binding.inline),
            results=tuple(self.plan.places[number].name for number, kind in binding.inline if kind != "in"),
            numbers=tuple([number.resolve(scalars, types) for _, number in self._numbers.values()]),
            moves=self._moves or bool(binding.inline),
        )  # fmt: skip
        return instance, self._token(token, binding.buffers, arenas)

    def _bound(self, bound: Mapping[int, Where], arena: int) -> tuple[tuple[GraphNode, ...], tuple[Where, ...]]:
        meets = self._meets(bound)
        arrangement = self._in_order if meets else self._apart
        places = tuple(
            (arena, arrangement.offsets[n]) if n in arrangement.offsets else bound.get(n, (arena, 0))
            for n in range(len(self.plan.places))
        )
        if not meets:
            return self._static, places
        _check_copies(self._nodes, places)
        where = barriers([self._nodes[index] for index in arrangement.order], places)
        return self._arranged(arrangement, where), places

    def _token(self, id: int, bound: Mapping[int, Where], arenas: Sequence[tuple[int, int]]) -> Token:
        """What a launch touches; the arenas are one with the clients' buffers there, so that launches that share one
        follow each other."""
        ends = [(arena, 0, size) for arena, size in arenas if size]
        reads: list[Range] = []
        writes: list[Range] = list(ends)
        for number, (buffer, base) in bound.items():
            place = self.plan.places[number]
            for span, found in ((place.reads, reads), (place.writes, writes)):
                if span is not None and span[1] > span[0]:
                    found.append((buffer, base + span[0], base + span[1]))
        entries = tuple((buffer, base, self.plan.places[n].size) for n, (buffer, base) in bound.items())
        return Token(id, None, entries, tuple(reads), tuple(writes))

    def _meets(self, bound: Mapping[int, Where]) -> bool:
        """Whether two places overlap of which one is written."""
        spans = []
        for number, (buffer, base) in bound.items():
            place = self.plan.places[number]
            touched = [span for span in (place.reads, place.writes) if span is not None]
            if touched:
                first, end = min(low for low, _ in touched), max(high for _, high in touched)
                spans.append((buffer, base + first, base + end, place.writes is not None))
        spans.sort()
        reach: dict[int, tuple[int, int]] = {}  # buffer -> ends of what was touched, and of what was written, so far
        for buffer, first, end, writes in spans:
            touched_to, written_to = reach.get(buffer, (0, 0))
            if first < (touched_to if writes else written_to):
                return True
            reach[buffer] = (max(touched_to, end), max(written_to, end if writes else 0))
        return False


def _check_copies(nodes: Sequence[GraphNode], places: Sequence[Where]) -> None:
    for node in nodes:
        if node.op == COPY and node.reads:
            [(one, first, end)], [(other, low, high)] = _moved(node.reads, places), _moved(node.writes, places)
            if one == other and first < high and low < end:
                raise InvalidError("buffers: a copy of the graph would read and write the same memory")


__all__ = ["Arrangement", "Bindings", "Template", "arrange", "barriers", "levels", "place"]
