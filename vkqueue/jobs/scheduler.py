"""Which rows leave next. One scheduler per device; it decides, the caller acts on what it returns.

Connections take turns: each active one gets an equal, contiguous share of a batch (contiguous, so that equal tokens
meet), and what some do not use goes to the others. Within a connection rows leave first come, first served, or as
`held.OrderedQueue` says once a row asks for more.

A MANY row counts by the time that its launches are thought to take: a batch takes `pace.PART_NS` of them. One that has
more leaves in parts, a batch each, with others' rows beside them and its own connection's behind them. Rows of slow
kernels (`cost`) count too, so that a batch takes no longer than its bound: one of them always goes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from vkqueue.heap import LazyHeap
from vkqueue.jobs.cost import Costs, target_of
from vkqueue.jobs.held import Entry, OrderedQueue
from vkqueue.jobs.pace import PART_NS
from vkqueue.model import MANY, ROW_MSGID, ROW_STAMP, Row


class _SessionQueue:
    """One connection's rows: `plain` while none asks for more than its turn, then `ordered` until that is empty.

    `rest` is what is left of a row that leaves in parts: it has left those two, and goes before them.
    """

    __slots__ = ("active", "failures", "heavy", "id", "oldest", "ordered", "plain", "rest", "waiters")

    def __init__(self, id: int) -> None:
        self.id = id
        self.active = False  # whether it takes turns: while it has ready rows
        self.oldest = 0  # receipt of its longest waiting ready row, while it has one
        self.plain: deque[Row] = deque()
        self.ordered: OrderedQueue | None = None
        self.rest: Row | None = None
        self.heavy = False  # whether there may be MANY rows: until it has been empty
        self.waiters: dict[int, dict[Entry, None]] = {}  # msgid -> entries that name it, in order
        self.failures: OrderedDict[int, None] = OrderedDict()

    @property
    def ready(self) -> int:
        count = self.ordered.ready_count if self.ordered is not None else len(self.plain)
        return count if self.rest is None else count + 1

    def look(self) -> None:
        """The longest waiting ready row may have left: who is it now?"""
        if self.rest is not None:
            self.oldest = self.rest[ROW_STAMP]
        else:
            self.oldest = self.ordered.oldest_ns() if self.ordered is not None else self.plain[0][ROW_STAMP]


_oldest_of = attrgetter("oldest")


class Scheduler:
    """Queues of all connections for one device.

    Args:
        max_failures: failed requests of a connection that `after` remembers.
        costs: what rows are known to take, None where that does not matter.

    Attributes:
        queued: rows that have not left.
        ready: of those, the ones that may leave now.
        launches: those of the MANY rows among the queued.
    """

    def __init__(self, max_failures: int, costs: Costs | None = None) -> None:
        self._max_failures = max_failures
        self._costs = costs if costs is not None else Costs(0, 1)
        self._part_ns = min(PART_NS, self._costs.bound_ns or PART_NS)
        self._sessions: dict[int, _SessionQueue] = {}
        self._active: deque[_SessionQueue] = deque()
        self._deadlines: LazyHeap[Entry] = LazyHeap(attrgetter("gone"))
        self._pipelines: dict[int, dict[Entry, None]] = {}  # pipeline -> entries held for it, in order
        self._oldest: int | None = None
        self._seq = 0
        # Nanoseconds of MANY rows that the batch being taken has room for; of other rows the bound's share of that.
        self._room = 0
        self.queued = 0
        self.ready = 0
        self.launches = 0

    # Connections

    def add_session(self, id: int) -> None:
        """A connection came."""
        self._sessions[id] = _SessionQueue(id)

    def remove_session(self, id: int) -> list[Row]:
        """A connection is gone: its rows, dropped."""
        return self._clear(self._sessions.pop(id))

    def drain(self) -> list[Row]:
        """Every row of every connection, dropped."""
        return [row for queue in self._sessions.values() for row in self._clear(queue)]

    def _clear(self, queue: _SessionQueue) -> list[Row]:
        self.ready -= queue.ready
        if queue.ordered is not None:
            rows = [entry.row for entry in queue.ordered.entries.values()]
            for entry in queue.ordered.entries.values():
                entry.gone = True
                self._unhook(queue, entry)
        else:
            rows = list(queue.plain)
        if queue.rest is not None:
            rows.insert(0, queue.rest)
            queue.rest = None
        if queue.heavy:
            self.launches -= sum(map(_launches, rows))
            queue.heavy = False
        self.queued -= len(rows)
        queue.plain.clear()
        queue.ordered = None
        queue.waiters.clear()
        if queue.active:
            queue.active = False
            self._active.remove(queue)
        self._oldest = None
        return rows

    # In

    def submit(self, row: Row, now_ns: int, wait_for: int | None = None, outstanding: Iterable[int] = ()) -> None:
        """Queue a row received at `now_ns`.

        Args:
            wait_for: pipeline that is being built for it.
            outstanding: those msgids of its `after` that are not answered yet.
        """
        queue = self._sessions[row[0]]
        self.queued += 1
        if row[2] == MANY:
            queue.heavy = True
            self.launches += row[7].count
        options = row[9]
        if (
            queue.ordered is None
            and wait_for is None
            and (options is None or not (options.priority or options.deadline_ns or outstanding))
        ):
            queue.plain.append(row)
            self.ready += 1
        elif not self._submit_ordered(queue, row, wait_for, frozenset(outstanding)):
            return
        self._line_up(queue, now_ns)

    def submit_plain(self, session: int, rows: list[Row], now_ns: int) -> None:
        """`submit` for one or more rows of one connection, without options and with their pipelines ready."""
        queue = self._sessions[session]
        if queue.ordered is not None:
            for row in rows:
                self.submit(row, now_ns)
            return
        queue.plain.extend(rows)
        self.queued += len(rows)
        self.ready += len(rows)
        self._line_up(queue, now_ns)

    def _line_up(self, queue: _SessionQueue, now_ns: int) -> None:
        """A connection has one more ready row."""
        if not queue.active:
            queue.active = True
            queue.oldest = now_ns
            self._active.append(queue)
        elif now_ns < queue.oldest:
            queue.oldest = now_ns
        if self._oldest is not None and now_ns < self._oldest:
            self._oldest = now_ns

    def _submit_ordered(self, queue: _SessionQueue, row: Row, wait_for: int | None, after: frozenset[int]) -> bool:
        """Whether the row is ready."""
        ordered = queue.ordered
        if ordered is None:
            ordered = queue.ordered = OrderedQueue()
            for earlier in queue.plain:
                ordered.add(earlier)
            queue.plain.clear()
        entry = ordered.add(row, wait_for, after)
        for msgid in after:
            queue.waiters.setdefault(msgid, {})[entry] = None
        if wait_for is not None:
            self._pipelines.setdefault(wait_for, {})[entry] = None
        if entry.deadline_ns:
            self._seq += 1
            self._deadlines.push(entry.deadline_ns, self._seq, entry)
        if entry.waits:
            return False
        self.ready += 1
        return True

    # Out

    @property
    def oldest_ns(self) -> int:
        """Receipt of the longest waiting ready row; 0 when none is ready."""
        if not self.ready:
            return 0
        if self._oldest is None:
            self._oldest = min(map(_oldest_of, self._active))
        return self._oldest

    @property
    def oldest_queued_ns(self) -> int:
        """Receipt of the longest waiting row, ready or held; 0 when none is queued. Looks at every connection."""
        stamps = []
        for queue in self._sessions.values():
            if queue.rest is not None:
                stamps.append(queue.rest[ROW_STAMP])
            if queue.ordered is not None:
                stamps += [entry.row[ROW_STAMP] for entry in queue.ordered.entries.values()]
            elif queue.plain:
                stamps.append(queue.plain[0][ROW_STAMP])
        return min(stamps, default=0)

    def take(self, most: int, now_ns: int) -> list[Row]:
        """Up to `most` ready rows, in fair turns; they have left the queue."""
        rows: list[Row] = []
        active = self._active
        self._room = self._part_ns
        slow = self._costs.slow
        # Those whose next row has no place in this batch; in the next one those come first that took nothing now.
        none: list[_SessionQueue] = []
        some: list[_SessionQueue] = []
        while active and len(rows) < most:
            share = max((most - len(rows)) // len(active), 1)
            for _ in range(len(active)):
                queue = active.popleft()
                count, before = min(share, most - len(rows)), len(rows)
                heavy = queue.heavy or (slow and self._holds_slow(queue, count))
                waits = (self._take_heavy if heavy else self._take_from)(queue, count, now_ns, rows)
                if queue.ready:
                    queue.look()
                    (active if not waits else some if len(rows) > before else none).append(queue)
                else:
                    queue.active = False
                if len(rows) >= most:
                    break
        active.extendleft(reversed(none))
        active.extend(some)
        self._oldest = None
        return rows

    def _take_heavy(self, queue: _SessionQueue, most: int, now_ns: int, rows: list[Row]) -> bool:
        """`_take_from` where there may be rows that count by their time: one by one; whether the next one has to wait
        for another batch."""
        before, end = queue.ready, len(rows) + most
        waits = False
        while len(rows) < end and (row := queue.rest or _first(queue, now_ns)) is not None:
            count, each = (row[7].count, row[7].job.launch_ns) if row[2] == MANY else (1, self._cost(row))
            waits = count * each > max(self._room, 0)
            if waits and self._room < self._part_ns:
                self._costs.bounded += row[2] != MANY
                break
            if queue.rest is not None:
                queue.rest = None
            elif queue.ordered is not None:
                queue.ordered.take(1, now_ns)
            else:
                queue.plain.popleft()
            if waits and count > 1:
                count = max(self._part_ns // each, 1)
                part, rest = row[7].cut(count)
                queue.rest = (*row[:7], rest, *row[8:])
                row = (*row[:7], part, *row[8:])
            else:
                self.queued -= 1
            rows.append(row)
            self._room -= count * each
            if row[2] == MANY:
                self.launches -= count
            if waits:
                break
        if queue.ordered is not None and not queue.ordered.entries:
            queue.ordered = None
        queue.heavy = queue.rest is not None or queue.ordered is not None or bool(queue.plain)
        self.ready += queue.ready - before
        return waits

    def _holds_slow(self, queue: _SessionQueue, most: int) -> bool:
        """Whether one of the rows that would leave may be slow."""
        if queue.ordered is not None:
            return True
        return any(target_of(row) in self._costs.slow for row in islice(queue.plain, most))

    def _cost(self, row: Row) -> int:
        """What a row takes of `_room`."""
        ns = self._costs.row_ns(row)
        return ns * self._part_ns // self._costs.bound_ns if ns else 0

    def _take_from(self, queue: _SessionQueue, most: int, now_ns: int, rows: list[Row]) -> bool:
        ordered = queue.ordered
        if ordered is None:
            plain = queue.plain
            if len(plain) <= most:
                taken = len(plain)
                rows.extend(plain)
                plain.clear()
            else:
                taken = most
                pop = plain.popleft
                rows.extend([pop() for _ in range(most)])
            self.ready -= taken
        else:
            before = ordered.ready_count
            found = ordered.take(most, now_ns)
            taken = len(found)
            rows.extend(found)
            self.ready += ordered.ready_count - before
            if not ordered.entries:
                queue.ordered = None
        self.queued -= taken
        return False

    # What happens to rows while they wait

    def _remove(self, entry: Entry) -> Row:
        """An entry leaves by another way than `take`."""
        queue = self._sessions[entry.row[0]]
        ordered = entry.queue
        before = ordered.ready_count
        ordered.remove(entry)
        self.queued -= 1
        self.launches -= _launches(entry.row)
        self.ready += ordered.ready_count - before
        self._unhook(queue, entry)
        self._settle(queue)
        return entry.row

    def _unhook(self, queue: _SessionQueue, entry: Entry) -> None:
        """Nothing will be told to an entry that is gone; it and its payload are not kept for it either."""
        for msgid in entry.after:
            waiting = queue.waiters.get(msgid)
            if waiting is not None:
                waiting.pop(entry, None)
                if not waiting:
                    del queue.waiters[msgid]
        held = self._pipelines.get(entry.pipeline) if entry.pipeline is not None else None
        if held is not None:
            held.pop(entry, None)
            if not held:
                del self._pipelines[entry.pipeline]  # type: ignore[arg-type]

    def _settle(self, queue: _SessionQueue) -> None:
        """After entries became ready or left."""
        if queue.ordered is not None and not queue.ordered.entries:
            queue.ordered = None
        if queue.ready:
            queue.look()
            if not queue.active:
                queue.active = True
                self._active.append(queue)
        elif queue.active:
            queue.active = False
            self._active.remove(queue)
        self._oldest = None

    def _release(self, entries: Iterable[Entry]) -> None:
        """Entries have one thing less to wait for."""
        for entry in entries:
            before = entry.queue.ready_count
            entry.queue.release(entry)
            self.ready += entry.queue.ready_count - before
            self._settle(self._sessions[entry.row[0]])

    def pipeline_ready(self, id: int) -> None:
        """Rows that waited for the pipeline may go."""
        self._release(self._pipelines.pop(id, ()))

    def pipeline_failed(self, id: int) -> list[Row]:
        """Rows that waited for the pipeline, taken out."""
        return [self._remove(entry) for entry in self._pipelines.pop(id, ())]

    def next_deadline_ns(self) -> int | None:
        """When `expire` has something to do."""
        first = self._deadlines.first()
        return first[0] if first is not None else None

    def expire(self, now_ns: int) -> list[Row]:
        """Rows whose deadline has passed, taken out."""
        rows = []
        while (first := self._deadlines.first()) is not None and first[0] <= now_ns:
            rows.append(self._remove(first[1]))
        return rows

    def cancel(self, session: int, msgid: int) -> Row | None:
        """Take a request's row out of the queue; None when it is not in it."""
        queue = self._sessions[session]
        if queue.ordered is not None:
            entry = queue.ordered.find(msgid)
            return self._remove(entry) if entry is not None else None
        for place, row in enumerate(queue.plain):
            if row[ROW_MSGID] == msgid:
                del queue.plain[place]
                self.queued -= 1
                self.launches -= _launches(row)
                self.ready -= 1
                self._settle(queue)
                return row
        return None

    def drop_rest(self, session: int, msgid: int) -> None:
        """A part of a request failed: what is left of it does not leave any more."""
        queue = self._sessions.get(session)
        if queue is not None and queue.rest is not None and queue.rest[ROW_MSGID] == msgid:
            self.launches -= _launches(queue.rest)
            queue.rest = None
            self.queued -= 1
            self.ready -= 1
            self._settle(queue)

    # `after`

    def failed_before(self, session: int, msgids: Iterable[int]) -> int | None:
        """The first of these requests that is remembered as failed."""
        failures = self._sessions[session].failures
        return next((msgid for msgid in msgids if msgid in failures), None)

    def finished(self, session: int, msgid: int, ok: bool) -> list[Row]:
        """A request was answered: rows behind it may go, or are returned, taken out, if it failed."""
        queue = self._sessions.get(session)
        if queue is None:
            return []
        if ok:
            queue.failures.pop(msgid, None)
        else:
            queue.failures[msgid] = None
            queue.failures.move_to_end(msgid)
            if len(queue.failures) > self._max_failures:
                queue.failures.popitem(last=False)
        waiting = queue.waiters.pop(msgid, ())
        if ok:
            self._release(waiting)
            return []
        return [self._remove(entry) for entry in waiting]


def _launches(row: Row) -> int:
    return row[7].count if row[2] == MANY else 0


def _first(queue: _SessionQueue, now_ns: int) -> Row | None:
    """The row that leaves next."""
    if queue.ordered is not None:
        return queue.ordered.first(now_ns)
    return queue.plain[0] if queue.plain else None


__all__ = ["Scheduler"]
