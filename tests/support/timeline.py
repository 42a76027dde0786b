"""What commands on a queue read and write, and whether those that conflict are ordered: by a barrier of the right kind,
or by a fence that somebody has waited for.

Synchronization validation looks at one submission, and does not see two launches that write the same. This sees both,
and the host beside the device. Addresses are of any one space; times are those of submission and of waiting.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]
"""(first address, end)."""

# Of vulkan_core.h.
COMPUTE, TRANSFER = 0x800, 0x1000
_SHADER_WRITE, _SHADER_READ, _UNIFORM_READ = 0x40, 0x20, 0x8
_TRANSFER_READ, _TRANSFER_WRITE = 0x800, 0x1000
_MEMORY_READ, _MEMORY_WRITE = 0x8000, 0x10000


@dataclass(frozen=True, slots=True)
class Use:
    """A command that touches memory. `sets`: descriptor sets that it was recorded with, and their versions then."""

    label: str
    moves: bool
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    sets: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        def spans(known: tuple[Span, ...]) -> str:
            return ", ".join(f"{first:#x}+{end - first}" for first, end in known)

        return f"{self.label} ({spans(self.reads)} → {spans(self.writes)})"


@dataclass(frozen=True, slots=True)
class Barrier:
    """A memory barrier: stages and accesses before and after."""

    before: int
    after: int
    made_available: int
    made_visible: int

    def __str__(self) -> str:
        return f"barrier {self.before:#x} to {self.after:#x}"

    def orders(self, earlier: int, later: int) -> bool:
        """Whether it orders all of one stage before it with all of another behind it."""
        written = _MEMORY_WRITE | (_SHADER_WRITE if earlier == COMPUTE else _TRANSFER_WRITE)
        read = _SHADER_READ | _UNIFORM_READ if later == COMPUTE else _TRANSFER_READ
        write = _SHADER_WRITE if later == COMPUTE else _TRANSFER_WRITE
        seen = self.made_visible
        return bool(
            self.before & earlier
            and self.after & later
            and self.made_available & written
            and (seen & _MEMORY_READ or seen & read == read)
            and (seen & _MEMORY_WRITE or seen & write)
        )


class Spans:
    """A set of addresses as disjoint spans in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def meets(self, first: int, end: int) -> bool:
        at = bisect_right(self._ends, first)
        return at < len(self._starts) and self._starts[at] < end

    def add(self, first: int, end: int) -> None:
        low, high = bisect_left(self._ends, first), bisect_right(self._starts, end)
        if low < high:
            first, end = min(first, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [end]

    def update(self, other: Spans) -> None:
        for first, end in zip(other._starts, other._ends, strict=True):
            self.add(first, end)

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


@dataclass(slots=True)
class _Touched:
    read: Spans = field(default_factory=Spans)
    written: Spans = field(default_factory=Spans)

    def conflicts(self, reads: Iterable[Span], writes: Iterable[Span]) -> str | None:
        for first, end in reads:
            if self.written.meets(first, end):
                return f"reads what was written, {first:#x} to {end:#x}"
        for first, end in writes:
            if self.written.meets(first, end):
                return f"writes what was written, {first:#x} to {end:#x}"
            if self.read.meets(first, end):
                return f"writes what was read, {first:#x} to {end:#x}"
        return None

    def add(self, reads: Iterable[Span], writes: Iterable[Span]) -> None:
        for first, end in reads:
            self.read.add(first, end)
        for first, end in writes:
            self.written.add(first, end)

    def take(self, other: _Touched) -> None:
        self.read.update(other.read)
        self.written.update(other.written)
        other.clear()

    def clear(self) -> None:
        self.read.clear()
        self.written.clear()


class _Submission:
    """What a submission does. `since` the barriers that would order it: launches that no barrier follows, those that
    only moves are not ordered behind, and moves. `ever` is everything, for who looks from the host."""

    __slots__ = ("behind_narrow", "ever", "launches", "moves", "sets")

    def __init__(self) -> None:
        self.launches, self.behind_narrow, self.moves, self.ever = (_Touched() for _ in range(4))
        self.sets: set[int] = set()


class Timeline:
    """A queue.

    Args:
        say: is told of each fault, once for each pair of labels.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self._pending: dict[int, _Submission] = {}
        self._versions: dict[int, int] = {}
        self._recent: deque[tuple[int, Use | Barrier]] = deque(maxlen=4096)  # to tell of them
        self.played = 0

    def fault(self, kind: str, what: str) -> None:
        """Something is wrong; of one kind the first is told."""
        if kind not in self._said:
            self._said.add(kind)
            self._say(what)

    # The device

    def submit(self, serial: int, commands: Sequence[Use | Barrier]) -> None:
        """These are executed behind all that was submitted before."""
        with self._lock:
            own = self._pending[serial] = _Submission()
            for command in commands:
                self._recent.append((serial, command))
                if type(command) is Barrier:
                    self._order(command)
                else:
                    assert type(command) is Use
                    self._use(own, command)
            self.played += len(commands)

    def finished(self, serial: int) -> None:
        """Somebody waited for the fence of a submission, and so for all before it."""
        with self._lock:
            for known in [known for known in self._pending if known <= serial]:
                del self._pending[known]

    def lost(self) -> None:
        """The device is lost: nothing is under way any more."""
        with self._lock:
            self._pending.clear()

    def _use(self, own: _Submission, use: Use) -> None:
        for submission in self._pending.values():
            unordered = [submission.launches, submission.moves]
            if use.moves:
                unordered.append(submission.behind_narrow)
            for touched in unordered:
                conflict = touched.conflicts(use.reads, use.writes)
                if conflict is not None:
                    self._not_ordered(use, conflict)
        for handle, version in use.sets:
            if self._versions.get(handle, 0) != version:
                self.fault(f"set {use.label}", f"{use.label}: its descriptor set was written again before submission")
            own.sets.add(handle)
        (own.moves if use.moves else own.launches).add(use.reads, use.writes)
        own.ever.add(use.reads, use.writes)

    def _not_ordered(self, use: Use, conflict: str) -> None:
        since: list[str] = []
        for serial, other in list(self._recent)[-2::-1]:
            since.append(f"{serial}: {other}")
            touched = _Touched()
            if type(other) is Use:
                touched.add(other.reads, other.writes)
            if touched.conflicts(use.reads, use.writes) is not None:
                break
        shown = "; ".join([*since[::-1][:12], "…", *since[11::-1]] if len(since) > 24 else since[::-1])
        serial = self._recent[-1][0]
        self.fault(f"{use.label} {since[-1]}", f"no barrier: {shown}; {serial}: {use}, which {conflict}")

    def _order(self, barrier: Barrier) -> None:
        launches = barrier.orders(COMPUTE, COMPUTE), barrier.orders(COMPUTE, TRANSFER)
        moves = barrier.orders(TRANSFER, COMPUTE), barrier.orders(TRANSFER, TRANSFER)
        if any(launches) and not launches[0] or moves[0] != moves[1]:
            self.fault("barrier", f"a kind of barrier that nobody thought of: {barrier}")
        for submission in self._pending.values():
            if all(launches):
                submission.launches.clear()
                submission.behind_narrow.clear()
            elif launches[0]:
                submission.behind_narrow.take(submission.launches)
            if all(moves):
                submission.moves.clear()

    # Descriptor sets

    def write_set(self, handle: int) -> int:
        """A descriptor set is written; its version."""
        with self._lock:
            if any(handle in submission.sets for submission in self._pending.values()):
                self.fault("set", f"descriptor set {handle:#x} is written while the device may use it")
            self._versions[handle] = self._versions.get(handle, 0) + 1
            return self._versions[handle]

    def version(self, handle: int) -> int:
        """How often it was written."""
        return self._versions.get(handle, 0)

    # The host

    def host(self, first: int, end: int, what: str, *, writes: bool, anew: bool = True) -> None:
        """The host touches memory, now. `anew`: what it writes may be other bytes than are there."""
        if first >= end:
            return
        with self._lock:
            for submission in self._pending.values():
                ever = submission.ever
                if ever.written.meets(first, end) or (writes and anew and ever.read.meets(first, end)):
                    self.fault(f"host {what}", f"{what}: {first:#x} to {end:#x}, while the device may use it")
