"""Memory that a client shares, on a device that cannot use its pages: a buffer beside them that has the same bytes.

What counts are the client's pages. The host copies: to the buffer what a batch reads, before it is submitted, and from
the buffer what it wrote, once its fence has signalled. The buffer lies in memory that the host sees, and is reached
over the bus as the pages themselves would be.

Requests under way own the ranges that they use. So bytes that an unfinished batch writes are newer in the buffer than
in the pages, and are left alone there; all others are the client's, and cannot change while a batch reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vkqueue.gpu.mapped import Mapping as Mapped
from vkqueue.model import COPY, CREATE, FILL, MANY, READ, WRITE, Completion, Row, Shared

if TYPE_CHECKING:
    from vkqueue.gpu.buffers import DeviceBuffer
    from vkqueue.gpu.frame import Frame

# They overwrite all of what they write. Launches may leave some of it as it was, so that it has to be brought over.
_OVERWRITING = frozenset({WRITE, READ, FILL, COPY, CREATE})

Span = tuple[int, int]
"""(first byte, end byte)"""


class MirroredBuffer:
    """A buffer and the pages that it mirrors. It has what the rest of the backend asks of `buffers.DeviceBuffer`.

    Attributes:
        store: what the device uses.
        mapping: the client's pages: what the host does itself, it does there.
        taking: what unfinished batches write.
    """

    __slots__ = ("capacity", "empty", "handle", "mapping", "offset", "param", "shared", "size", "store", "taking")

    def __init__(self, store: DeviceBuffer, shared: Shared) -> None:
        self.store = store
        self.shared = shared
        self.handle, self.param = store.handle, store.param
        self.size, self.capacity = store.size, store.capacity
        self.mapping = Mapped(ctypes.addressof(shared.map), len(shared.map))
        self.offset = 0
        self.empty: DeviceBuffer | None = None
        self.taking: list[Taking] = []

    def let_go(self) -> None:
        """Of the pages; the device does not use the buffer any more."""
        self.taking.clear()  # which name the buffer
        del self.shared

    def bring(self, spans: Iterable[Span]) -> None:
        """W. Copy these bytes from the pages to the buffer, but for those that unfinished batches write."""
        self.taking = [taking for taking in self.taking if not taking.done]
        to = self.store.mapping
        assert to is not None
        for first, end in without(merged(spans), ((taking.first, taking.end) for taking in self.taking)):
            self.mapping.copy(first, to, self.store.offset + first, min(end, self.size) - first)

    def take(self, first: int, end: int) -> None:
        """The thread that waited. Copy bytes from the buffer to the pages."""
        source = self.store.mapping
        assert source is not None
        source.copy(self.store.offset + first, self.mapping, first, end - first)


class Taking:
    """Bytes that a batch writes, to be taken back when it is over. `done`: they were, or the batch never ran."""

    __slots__ = ("buffer", "done", "end", "first")

    def __init__(self, buffer: MirroredBuffer, first: int, end: int) -> None:
        self.buffer = buffer
        self.first = first
        self.end = end
        self.done = False

    def take(self) -> None:
        """After the fence, before anybody is told of the batch."""
        self.buffer.take(self.first, self.end)
        self.done = True


def mirror(buffers: Mapping[int, MirroredBuffer], rows: list[Row], frame: Frame, completion: Completion) -> None:
    """W, when a batch has been recorded and what the host does of it is done: bring over what it reads, and note in
    the frame what it writes."""
    reads: dict[int, list[Span]] = {}
    writes: dict[int, list[Span]] = {}
    for index, row in enumerate(rows):
        token = row[3]
        if buffers.keys().isdisjoint(token.buffers) or index in completion.errors or index in frame.by_host:
            continue
        # Of many launches the token says only what they touch all together.
        read, written = row[7].ranges_of(buffers) if row[2] == MANY else (token.reads, token.writes)
        for id, first, end in read if row[2] in _OVERWRITING else (*read, *written):
            if id in buffers:
                reads.setdefault(id, []).append((first, end))
        for id, first, end in written:
            if id in buffers:
                writes.setdefault(id, []).append((first, end))
    for id, spans in reads.items():
        buffers[id].bring(spans)
    for id, spans in writes.items():
        buffer = buffers[id]
        takings = [Taking(buffer, first, min(end, buffer.size)) for first, end in merged(spans)]
        buffer.taking += takings
        frame.takings += takings
        frame.host_sees = True


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in rising order, with none named twice."""
    result: list[Span] = []
    for first, end in sorted(spans):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((first, end))
    return result


def without(spans: list[Span], others: Iterable[Span]) -> list[Span]:
    """What of rising spans lies in none of the others."""
    result = []
    holes = merged(others)
    for first, end in spans:
        for low, high in holes:
            if low < end and first < high:
                if first < low:
                    result.append((first, low))
                first = max(first, high)
        if first < end:
            result.append((first, end))
    return result
