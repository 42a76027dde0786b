"""The payload of a MANY row: N launches of one kernel as columns, and the token of all of them together.

Columns are NumPy arrays along the launches, or single values that all share. This file only slices them, so that what
imports it needs no NumPy: the daemon imports that when the first `dispatch_many` comes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from vkqueue.model import Layout, Range, Token

Touched = Mapping[int, tuple[int, int]]
"""Buffer id to (first byte, end byte): all that is touched of it lies between."""


class Slot(NamedTuple):
    """One descriptor of every launch.

    Attributes:
        buffer: place in `Many.buffers`; below zero -1 - place in `Many.transients`.
        offset, size: bytes in that buffer.
        reads, writes: whether the kernel does, by its analysis. Of transient memory neither matters.
    """

    buffer: Any
    offset: Any
    size: Any
    reads: bool
    writes: bool


class ManyArgs:
    """What the launches of a request are given: the same object for requests with equal arguments.

    Attributes:
        buffers: ids of client buffers, for `Slot.buffer`.
        slots: one for each descriptor, in (set, binding, array element) order.
        transients: data that came with the request, as in the payload of a DISPATCH: ("in" | "uniform", bytes-like).
        nbytes: that the daemon holds for them.
        token: of the rows; set by who makes them.
        barriers: of parts that were looked at, (first, count) to launches; the stream's own.
        resolved: what the backend worked out; its own business.
    """

    __slots__ = ("barriers", "buffers", "nbytes", "resolved", "slots", "token", "transients")

    def __init__(
        self,
        buffers: tuple[int, ...],
        slots: tuple[Slot, ...],
        transients: tuple[tuple[str, Any], ...] = (),
        nbytes: int = 0,
    ) -> None:
        self.buffers = buffers
        self.slots = slots
        self.transients = transients
        self.nbytes = nbytes
        self.token: ManyToken | None = None
        self.barriers: dict[tuple[int, int], list[int]] = {}
        self.resolved: Any = None


class ManyJob:
    """What the parts of one request share.

    Attributes:
        total: its launches.
        nbytes: that the daemon holds for it.
        groups: work groups of a launch, at most.
        launch_ns: what the scheduler reckons with for a launch, at least 1.
        over: it has been answered, though parts of it may still be on the device.
        submitted_ns, device_us: of the parts that are done: when the first was submitted, and their time on the device.
    """

    __slots__ = ("device_us", "groups", "launch_ns", "nbytes", "over", "submitted_ns", "total")

    def __init__(self, total: int, nbytes: int, groups: int = 1) -> None:
        self.total = total
        self.nbytes = nbytes
        self.groups = groups
        self.launch_ns = 1
        self.over = False
        self.submitted_ns = self.device_us = 0


class Many:
    """The launches `first` to `first + count` of a request; never changed but for `barriers`.

    Attributes:
        slots, transients: those of its arguments, and behind them, where scalars go in a uniform buffer, one for that;
            columns are cut to the part. A row for each launch, ("uniform", an array of bytes, (count, stride)).
        constants: bytes that are pushed for all, or an array of bytes, (count, bytes pushed).
        grids: (x, y, z) of all, or an array of uint32, (count, 3).
        barriers: launches of this part, counted from its first, before which a barrier stands; set by the stream.
    """

    __slots__ = ("args", "barriers", "constants", "count", "first", "grids", "job", "slots", "transients")

    def __init__(
        self,
        job: ManyJob,
        args: ManyArgs,
        first: int,
        count: int,
        constants: Any,
        grids: Any,
        slots: tuple[Slot, ...] | None = None,
        transients: tuple[tuple[str, Any], ...] | None = None,
    ) -> None:
        self.job = job
        self.args = args
        self.first = first
        self.count = count
        self.constants = constants
        self.grids = grids
        self.slots = args.slots if slots is None else slots
        self.transients = args.transients if transients is None else transients
        self.barriers: list[int] = []

    @property
    def buffers(self) -> tuple[int, ...]:
        """Those of its arguments."""
        return self.args.buffers

    @property
    def last(self) -> bool:
        """Whether the request ends with this part."""
        return self.first + self.count == self.job.total

    def cut(self, count: int) -> tuple[Many, Many]:
        """The first `count` launches, and the others; there must be others."""
        return self._part(0, count), self._part(count, self.count)

    def _part(self, start: int, stop: int) -> Many:
        def column(value: Any) -> Any:
            return value[start:stop] if _is_column(value) else value

        slots = []
        for slot in self.slots:
            buffer, offset, size = map(column, slot[:3])
            if type(buffer) is int and buffer < 0 and _is_column(offset):
                offset = offset - offset[0]  # the rows before went with their own part
            slots.append(Slot(buffer, offset, size, slot.reads, slot.writes))
        transients = tuple((kind, column(value)) for kind, value in self.transients)
        constants, grids = column(self.constants), column(self.grids)
        first = self.first + start
        return Many(self.job, self.args, first, stop - start, constants, grids, tuple(slots), transients)

    def entries(self, index: int) -> tuple[tuple[int, int, int], ...]:
        """The descriptors of one launch, as `Token.entries` has them."""
        found = []
        for slot in self.slots:
            buffer, offset, size = (int(_at(value, index)) for value in slot[:3])
            found.append((0, -1 - buffer, size) if buffer < 0 else (self.buffers[buffer], offset, size))
        return tuple(found)

    def touched(self, index: int) -> tuple[list[Range], list[Range]]:
        """The ranges that one launch reads and writes, as `Token` has them."""
        reads, writes = [], []
        for slot, (id, offset, size) in zip(self.slots, self.entries(index), strict=True):
            if id and size:
                reads += [(id, offset, offset + size)] if slot.reads else []
                writes += [(id, offset, offset + size)] if slot.writes else []
        return reads, writes

    def ranges_of(self, ids: Collection[int]) -> tuple[list[Range], list[Range]]:
        """The ranges of these buffers that any launch reads, and that any writes."""
        reads, writes = [], []
        for slot in self.slots:
            rows = zip(*(_values(value, self.count) for value in slot[:3]), strict=True)
            for place, offset, size in rows:
                if place >= 0 and size and (id := self.buffers[place]) in ids:
                    reads += [(id, offset, offset + size)] if slot.reads else []
                    writes += [(id, offset, offset + size)] if slot.writes else []
        return reads, writes

    def constants_of(self, index: int) -> bytes:
        """What one launch pushes."""
        return bytes(_at(self.constants, index))

    def grid_of(self, index: int) -> tuple[int, int, int]:
        """The work groups of one launch."""
        x, y, z = map(int, _at(self.grids, index))
        return x, y, z


class ManyToken(Token):
    """What all launches of a request touch: of each buffer one range that covers everything.

    So two requests on halves of a buffer do not conflict, and two whose offsets interleave do, which may cost a
    barrier too many.

    Attributes:
        read, written: the same as `reads` and `writes`, by buffer; the end may lie behind the buffer's.
        only_read: the buffers in `read` alone; `low`, `high`: the smallest and the largest id in `written`.
    """

    __slots__ = ("high", "low", "only_read", "read", "written")

    def __init__(
        self, id: int, layout: Layout | None, buffers: tuple[int, ...], read: Touched, written: Touched
    ) -> None:
        # Not by way of `Token`: what it works out costs more for 10,000 buffers than launching on them.
        self.id = id
        self.layout = layout
        self.entries = ()
        self.cached = False
        self.buffers = buffers
        self.read = read
        self.written = written
        self.only_read = read.keys() - written.keys()
        self.low, self.high = min(written, default=0), max(written, default=-1)

    def __getattr__(self, name: str) -> Any:
        # Made when somebody asks, which on the usual way nobody does.
        if name not in ("reads", "writes"):
            raise AttributeError(name)
        touched = self.read if name == "reads" else self.written
        ranges = tuple([(buffer, first, end) for buffer, (first, end) in touched.items()])
        setattr(self, name, ranges)
        return ranges


def _is_column(value: Any) -> bool:
    return type(value) not in (int, bytes, bytearray, memoryview, tuple)


def _values(value: Any, count: int) -> list[int]:
    return value.tolist() if _is_column(value) else [value] * count


def _at(value: Any, index: int) -> Any:
    return value[index] if _is_column(value) else value
