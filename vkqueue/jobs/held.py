"""A connection's queue when order matters beyond first come, first served: priorities, deadlines, `after`, and rows
held for a pipeline, with others passing them where order allows.

Each row is an `Entry` that counts what it waits for: its pipeline, requests named in `after`, and each of its buffers
that an earlier waiting row has too, where one of the two writes it. When the count is zero it is ready. Ready rows
leave by priority, then in order of arrival; a row's priority is capped by those of earlier rows with a common buffer,
read or written. So it never passes one of those that is ready, and rows that depend on each other are ready together.

Plain queues (`scheduler.Scheduler`) do without all this: it is made when the first row needs it, and gone when empty.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter

from vkqueue.heap import LazyHeap
from vkqueue.model import (
    CREATE,
    FREE,
    MANY,
    ROW_MSGID,
    ROW_OP,
    ROW_OPTIONS,
    ROW_STAMP,
    ROW_TARGET,
    ROW_TOKEN,
    Row,
    Token,
)


class Entry:
    """A queued row and what it waits for.

    Attributes:
        priority: that of its options, capped.
        pipeline: what it is or was held for, or None.
        after: the requests it was queued behind by name.
        waits: how many things it waits for.
        asleep: not among the ready: it waits, is past its deadline, or is gone.
        gone: it left the queue, by whatever way.
    """

    __slots__ = (
        "after", "asleep", "buffers", "deadline_ns", "gone", "pipeline", "priority", "queue", "row", "seq", "waits",
    )  # fmt: skip

    def __init__(self, row: Row, seq: int, queue: OrderedQueue, pipeline: int | None, after: frozenset[int]) -> None:
        options = row[ROW_OPTIONS]
        self.row = row
        self.seq = seq
        self.queue = queue
        self.priority: int = options.priority if options is not None else 0
        self.deadline_ns: int = options.deadline_ns if options is not None else 0
        self.after = after
        self.pipeline = pipeline
        self.waits = len(after) + (pipeline is not None)
        token: Token = row[ROW_TOKEN]
        # An empty buffer is in no range, but a row that uses it has to find it.
        self.buffers = (row[ROW_TARGET],) if row[ROW_OP] in (CREATE, FREE) else token.buffers
        self.asleep = True
        self.gone = False

    def writes(self, buffer: int) -> bool:
        """Whether others with the buffer must keep their place before or behind this row."""
        row = self.row
        if row[ROW_OP] == MANY:
            return buffer in row[ROW_TOKEN].written
        return row[ROW_OP] in (CREATE, FREE) or any(written[0] == buffer for written in row[ROW_TOKEN].writes)


class _Line:
    """Waiting rows that use one buffer, in order of arrival: those that do not wait for it, then those that do.

    The turn is one writer's, or that of all readers up to the next writer.
    """

    __slots__ = ("behind", "turn", "writing")

    def __init__(self) -> None:
        self.turn: dict[Entry, None] = {}
        self.behind: OrderedDict[Entry, bool] = OrderedDict()  # entry -> whether it writes
        self.writing = False

    def bars(self, writes: bool) -> bool:
        """Whether a row that comes now has to wait."""
        return bool(self.behind) or writes or self.writing

    def join(self, entry: Entry, writes: bool) -> None:
        """Queue at the end."""
        if self.turn and self.bars(writes):
            self.behind[entry] = writes
        else:
            self.turn[entry] = None
            self.writing = writes

    def leave(self, entry: Entry) -> list[Entry]:
        """The entry leaves from wherever it stands; those whose turn has come by that."""
        turn, behind = self.turn, self.behind
        if entry in turn:
            del turn[entry]
        else:
            del behind[entry]
        called = []
        while behind:
            first, writes = next(iter(behind.items()))
            if turn and (writes or self.writing):
                break
            del behind[first]
            turn[first] = None
            self.writing = writes
            called.append(first)
        return called


class OrderedQueue:
    """Rows of one connection in dependency order.

    Attributes:
        entries: in order of arrival, by number.
        ready_count: how many may leave.
    """

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.ready_count = 0
        self._by_msgid: dict[int, Entry] = {}
        self._ready: LazyHeap[Entry] = LazyHeap(attrgetter("asleep"))
        self._ages: LazyHeap[Entry] = LazyHeap(attrgetter("asleep"))
        self._lines: dict[int, _Line] = {}  # of buffers that waiting rows use
        self._users: dict[int, OrderedDict[Entry, None]] | None = None  # of every buffer, once priorities differ
        self._seq = 0

    def add(self, row: Row, pipeline: int | None = None, after: frozenset[int] = frozenset()) -> Entry:
        """Queue a row; `release` it once when its pipeline is there, and for each of `after`."""
        self._seq += 1
        entry = Entry(row, self._seq, self, pipeline, after)
        if entry.priority or self._users is not None:
            self._cap(entry)
        self.entries[self._seq] = self._by_msgid[row[ROW_MSGID]] = entry
        if self._lines:
            for buffer in entry.buffers:
                line = self._lines.get(buffer)
                if line is not None and line.bars(entry.writes(buffer)):
                    entry.waits += 1
        if entry.waits == 0:
            self._make_ready(entry)
        else:
            for buffer in entry.buffers:
                self._lines.setdefault(buffer, _Line()).join(entry, entry.writes(buffer))
        return entry

    def _cap(self, entry: Entry) -> None:
        users = self._users
        if users is None:
            users = self._users = {}
            for earlier in self.entries.values():
                for buffer in earlier.buffers:
                    users.setdefault(buffer, OrderedDict())[earlier] = None
        for buffer in entry.buffers:
            known = users.get(buffer)
            if known is not None:
                # The last one's is the lowest, since each was capped by those before it.
                entry.priority = min(entry.priority, next(reversed(known)).priority)
        for buffer in entry.buffers:
            users.setdefault(buffer, OrderedDict())[entry] = None

    def _make_ready(self, entry: Entry) -> None:
        entry.asleep = False
        self._ready.push(-entry.priority, entry.seq, entry)
        self._ages.push(entry.row[ROW_STAMP], entry.seq, entry)
        self.ready_count += 1

    def _put_to_sleep(self, entry: Entry) -> None:
        if not entry.asleep:
            entry.asleep = True
            self.ready_count -= 1

    def release(self, entry: Entry) -> None:
        """One thing less to wait for; when it was the last, those behind it may become ready too."""
        entry.waits -= 1
        if entry.waits == 0:
            self._make_ready(entry)
            self._leave_lines(entry)

    def _leave_lines(self, entry: Entry) -> None:
        """A list instead of recursion: a chain may be as long as the queue."""
        leaving = [entry]
        while leaving:
            entry = leaving.pop()
            for buffer in entry.buffers:
                line = self._lines[buffer]
                for called in line.leave(entry):
                    called.waits -= 1
                    if called.waits == 0:
                        self._make_ready(called)
                        leaving.append(called)
                if not line.turn:
                    del self._lines[buffer]

    def remove(self, entry: Entry) -> None:
        """The entry leaves the queue; those that waited for it may become ready."""
        self._put_to_sleep(entry)
        entry.gone = True
        del self.entries[entry.seq]
        msgid = entry.row[ROW_MSGID]
        if self._by_msgid.get(msgid) is entry:
            del self._by_msgid[msgid]
        if self._users is not None:
            for buffer in entry.buffers:
                known = self._users[buffer]
                del known[entry]
                if not known:
                    del self._users[buffer]
        if entry.waits:
            self._leave_lines(entry)

    def take(self, most: int, now_ns: int) -> list[Row]:
        """Up to `most` ready rows in order. One past its deadline is set aside for `Scheduler.expire`."""
        rows: list[Row] = []
        while len(rows) < most:
            entry = self._ready.pop()
            if entry is None:
                break
            if entry.deadline_ns and entry.deadline_ns <= now_ns:
                self._put_to_sleep(entry)
                continue
            self.remove(entry)
            rows.append(entry.row)
        return rows

    def first(self, now_ns: int) -> Row | None:
        """The row that `take` would give first; it stays."""
        while (found := self._ready.first()) is not None:
            entry = found[1]
            if not entry.deadline_ns or entry.deadline_ns > now_ns:
                return entry.row
            self._put_to_sleep(entry)
        return None

    def oldest_ns(self) -> int:
        """Receipt of the longest waiting ready row; 0 when there is none."""
        first = self._ages.first()
        return first[0] if first is not None else 0

    def find(self, msgid: int) -> Entry | None:
        """The entry of a request."""
        return self._by_msgid.get(msgid)
