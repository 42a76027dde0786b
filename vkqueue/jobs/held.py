"""A connection's queue when order matters beyond first come, first served: priorities, deadlines, `after`, and rows
held for a pipeline, with others passing them where order allows.

Each row is an `Entry` that counts what it waits for: its pipeline, requests named in `after`, and earlier rows that
have a common buffer which one of the two writes. When the count is zero it is ready, and ready rows leave by
priority. A row never passes an earlier ready one with a common buffer, read or written: its priority is capped by
the lowest of theirs.

Plain queues (`scheduler.Scheduler`) do without all this: it is made when the first row needs it, and gone when empty.
"""

from __future__ import annotations

from heapq import heappop, heappush

from vkqueue.model import ROW_MSGID, ROW_OPTIONS, ROW_STAMP, ROW_TOKEN, Row, Token


class Entry:
    """A queued row and what it waits for. `gone` once it left the queue, by whatever way."""

    __slots__ = ("after", "behind", "deadline_ns", "gone", "overdue", "priority", "queue", "row", "seq", "waits")

    def __init__(self, row: Row, seq: int, queue: OrderedQueue) -> None:
        options = row[ROW_OPTIONS]
        self.row = row
        self.seq = seq
        self.queue = queue
        self.priority: int = options.priority if options is not None else 0
        self.deadline_ns: int = options.deadline_ns if options is not None else 0
        self.waits = 0
        self.behind: list[Entry] = []
        self.after: set[int] = set()
        self.gone = False
        self.overdue = False

    def __lt__(self, other: Entry) -> bool:
        return (-self.priority, self.seq) < (-other.priority, other.seq)


class _BufferUse:
    """Queued rows that use one buffer."""

    __slots__ = ("count", "lowest", "readers", "writer")

    def __init__(self) -> None:
        self.count = 0
        self.lowest = 100
        self.writer: Entry | None = None
        self.readers: list[Entry] = []


class OrderedQueue:
    """Rows of one connection in dependency order.

    Attributes:
        ready: entries that may leave, as a heap; entries that are gone stay until they surface.
        ready_count: without those.
    """

    def __init__(self) -> None:
        self.ready: list[Entry] = []
        self.ready_count = 0
        self.entries: dict[int, Entry] = {}  # seq -> entry, in order of arrival
        self._ages: list[tuple[int, int, Entry]] = []
        self._uses: dict[int, _BufferUse] = {}
        self._seq = 0

    def add(self, row: Row, held: bool, after: set[int]) -> Entry:
        """Queue a row; `held`: until `release` is called for its pipeline."""
        self._seq += 1
        entry = self.entries[self._seq] = Entry(row, self._seq, self)
        entry.after = after
        entry.waits = int(held) + len(after)
        token = row[ROW_TOKEN]
        written = {w[0] for w in token.writes}
        for buffer in token.buffers:
            self._order(entry, buffer, buffer in written)
        for buffer in token.buffers:
            use = self._uses[buffer]
            use.lowest = min(use.lowest, entry.priority)
        if entry.waits == 0:
            self._make_ready(entry)
        return entry

    def _order(self, entry: Entry, buffer: int, writes: bool) -> None:
        use = self._uses.get(buffer)
        if use is None:
            use = self._uses[buffer] = _BufferUse()
        entry.priority = min(entry.priority, use.lowest)
        use.count += 1
        before = [use.writer] if use.writer is not None else []
        if writes:
            before += use.readers
            use.writer, use.readers = entry, []
        else:
            if len(use.readers) > 64:  # keep what is still queued (arbitrary: amortizes to constant time)
                use.readers = [r for r in use.readers if not r.gone]
            use.readers.append(entry)
        for other in before:
            if not other.gone:
                other.behind.append(entry)
                entry.waits += 1

    def _make_ready(self, entry: Entry) -> None:
        heappush(self.ready, entry)
        heappush(self._ages, (entry.row[ROW_STAMP], entry.seq, entry))
        self.ready_count += 1

    def release(self, entry: Entry) -> bool:
        """One thing less to wait for; whether the entry became ready."""
        entry.waits -= 1
        if entry.waits == 0 and not entry.gone:
            self._make_ready(entry)
            return True
        return False

    def remove(self, entry: Entry) -> None:
        """The entry leaves; those behind it may become ready."""
        entry.gone = True
        del self.entries[entry.seq]
        if entry.waits == 0 and not entry.overdue:
            self.ready_count -= 1
        token: Token = entry.row[ROW_TOKEN]
        for buffer in token.buffers:
            use = self._uses[buffer]
            use.count -= 1
            if use.count == 0:
                del self._uses[buffer]
        for other in entry.behind:
            self.release(other)

    def take(self, most: int, now_ns: int) -> list[Row]:
        """Up to `most` ready rows in order. One past its deadline is set aside for `Scheduler.expire`."""
        rows: list[Row] = []
        while self.ready and len(rows) < most:
            entry = heappop(self.ready)
            if entry.gone or entry.overdue:
                continue
            if entry.deadline_ns and entry.deadline_ns <= now_ns:
                entry.overdue = True
                self.ready_count -= 1
                continue
            self.remove(entry)
            rows.append(entry.row)
        return rows

    def oldest_ns(self) -> int:
        """Receipt of the longest waiting ready row; 0 when there is none."""
        while self._ages and (self._ages[0][2].gone or self._ages[0][2].overdue):
            heappop(self._ages)
        return self._ages[0][0] if self._ages else 0

    def find(self, msgid: int) -> Entry | None:
        """The entry of a request."""
        return next((e for e in self.entries.values() if e.row[ROW_MSGID] == msgid), None)
