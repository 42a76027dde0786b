"""The deferred stream: which rows of a batch need their initializer, and before which a barrier stands.

It takes the initializer, kernel and token of TVM's VulkanStream, and has fewer outcomes: a row's initializer runs or
is skipped, a barrier is recorded before it or not. There is never a flush, since other descriptors go to another slot
of a ring, and tokens are compared by ids that are never reused.

Hazards. A barrier covers everything recorded on the queue before it, in this batch and in those still in flight, so
all that has to be known is what was touched since the last one. Whatever a fence has confirmed orders itself.
Read-read never conflicts. Per buffer a few ranges are kept; past `_MAX_RANGES` they are merged into the one that
covers them, which may cost a barrier too many and never one too few.

Everything is constant time per row: N equal launches cost N, not N² as where every launch scans all tokens.
"""

from __future__ import annotations

from collections import OrderedDict

from vkqueue.jobs.wide import FEW, MOST, WideTokens, meets_ranges
from vkqueue.kernels.launches import Many, ManyToken
from vkqueue.model import BARRIER, CREATE, DIRECT, DISPATCH, GRAPH, INIT, MANY, READ, WRITE, Batch, Row, Token

# Arbitrary: a scan of so many ranges costs about as much as the rest of a row's work.
_MAX_RANGES = 8
# A ring's slots before the longest unused one is taken for another token (arbitrary: 64 sets are a few KiB).
_MIN_SLOTS = 64
# Parts of many launches whose barriers are known, for each set of arguments (arbitrary).
_MAX_PARTS = 64
# Entries of hazard state before a barrier is spent on forgetting them (arbitrary; about 10 MiB).
_MAX_STATE = 65_536

Touched = dict[int, list[list[int]]]
"""Buffer id to [first byte, end byte, serial of the newest batch that touched it]."""


class Ring:
    """The slots of one layout's ring of descriptor sets: which token each holds, and until when it is in use."""

    def __init__(self) -> None:
        # Token id -> slot, longest unused first; -1 - slot stands for a slot that holds no token that may come again.
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._used: list[int] = []  # slot -> serial of the newest batch that uses it

    def acquire(self, token: Token, serial: int, completed: int) -> tuple[int, bool]:
        """(slot, whether it must be written). A slot that a batch in flight uses is never given to another token."""
        slots, used = self._slots, self._used
        if token.cached:
            slot = slots.get(token.id)
            if slot is not None:
                slots.move_to_end(token.id)
                used[slot] = serial
                return slot, False
        slot = len(used)
        if slot >= _MIN_SLOTS:
            oldest, candidate = next(iter(slots.items()))
            if used[candidate] <= completed:
                del slots[oldest]
                slot = candidate
        if slot == len(used):
            used.append(serial)
        else:
            used[slot] = serial
        slots[token.id if token.cached else -1 - slot] = slot
        return slot, True

    def reset(self) -> None:
        """Assume nothing about what the slots hold; those in use stay so."""
        self._slots = OrderedDict((-1 - slot, slot) for slot in self._slots.values())


class Stream:
    """Turns rows into batches. One per device generation.

    Args:
        max_push_descriptors: of the device; 0 when every launch goes through a ring.
        direct_write_max, direct_read_max: bytes that the host moves itself when nothing on the device is in the way.
    """

    def __init__(self, max_push_descriptors: int, direct_write_max: int, direct_read_max: int) -> None:
        self._max_push = max_push_descriptors
        self._direct_write_max = direct_write_max
        self._direct_read_max = direct_read_max
        self._host_moves = direct_write_max > 0 or direct_read_max > 0
        self._outstanding: dict[int, None] = {}  # serials in flight, in order
        self._completed = 0  # every serial up to this one is known to be over
        self._must_barrier = False
        # Since the last barrier:
        self._written: Touched = {}
        self._read: Touched = {}
        self._seen: dict[int, int] = {}  # token id -> serial
        # Barriers or not, if the host moves bytes itself: the newest batch in which the device uses a buffer.
        self._last_use: dict[int, int] = {}
        self._last_write: dict[int, int] = {}
        self._used: set[int] = set()  # tokens of this batch that the two know
        self._wide = WideTokens()  # these are in none of the tables above
        self._rings: dict[int, Ring | None] = {}  # layout id -> its ring, None when all is pushed

    def make_batch(self, rows: list[Row], serial: int, reason: str, now_ns: int) -> Batch:  # noqa: C901
        """The batch of these rows, in this order. Serials count up.

        One loop, with what repeats decided in it: it runs once per job.
        """
        self._begin(serial)
        flags: list[int] = []
        slots: list[int] = []
        add_flags, add_slot = flags.append, slots.append
        rings = self._rings
        pushed: Token | None = None  # what the newest launch of this command buffer pushed
        again: Token | None = None  # the launch just before, if another of it gets `again_flag` and changes no state
        again_flag = slot = 0
        seen = self._seen.get
        for row in rows:
            op, token = row[2], row[3]
            if token is again:
                add_flags(again_flag)
                add_slot(slot)
                continue
            if op == DISPATCH:
                if seen(token.id) == serial and not token.writes:
                    flag = again_flag = 0
                    again = token
                else:
                    flag = self._touch(token, serial)
                    again, again_flag = token, BARRIER if token.writes else 0
                    if not token.cached or flag != again_flag:
                        again = None  # transient descriptors are new each time; the next barrier still forgets others
                layout = token.layout
                try:
                    ring = rings[layout.id]
                except KeyError:
                    ring = rings[layout.id] = Ring() if layout.needs_ring(self._max_push) else None
                if ring is None:
                    slot = -1
                    if token is not pushed:
                        flag |= INIT
                        # Transient descriptors are new for each launch although the token object may return.
                        pushed = token if token.cached else None
                else:
                    slot, write = ring.acquire(token, serial, self._completed)
                    if write:
                        flag |= INIT
                    pushed = None
                add_slot(slot)
            else:
                add_slot(-1)
                if op == MANY:
                    flag = self._touch_many(row, serial)
                    again = pushed = None  # its launches push their own
                elif self._host_can(op, row):
                    flag = DIRECT
                else:
                    flag = self._touch(token, serial)
                    again = None
                    if op == GRAPH:
                        pushed = None  # its commands disturb what is bound
            add_flags(flag)
        return Batch(serial, rows, flags, slots, reason, now_ns)

    def completed(self, serial: int) -> None:
        """The fence of a batch is known (batches may be told of in any order)."""
        self._outstanding.pop(serial, None)
        if self._outstanding:
            self._completed = next(iter(self._outstanding)) - 1

    def reset(self) -> None:
        """A batch was not recorded as decided: take nothing for granted that was decided so far."""
        self._must_barrier = True
        for ring in self._rings.values():
            if ring is not None:
                ring.reset()

    def forget(self, buffer_ids: tuple[int, ...]) -> None:
        """These buffers are used no more (their memory is not given to others before the last fence)."""
        for id in buffer_ids:
            for state in (self._written, self._read, self._last_use, self._last_write):
                state.pop(id, None)

    def _begin(self, serial: int) -> None:
        """Forget what no batch in flight can conflict with any more."""
        self._used.clear()
        if not self._outstanding:
            self._completed = serial - 1
            self._clear()
            self._last_use.clear()
            self._last_write.clear()
            self._wide.completed(self._completed)
        else:
            self._wide.completed(self._completed)
            if len(self._seen) + len(self._read) + len(self._written) > _MAX_STATE:
                self._must_barrier = True
            if len(self._last_use) > _MAX_STATE:
                self._last_use = {id: last for id, last in self._last_use.items() if last > self._completed}
                self._last_write = {id: last for id, last in self._last_write.items() if last > self._completed}
        self._outstanding[serial] = None

    def _clear(self) -> None:
        self._written.clear()
        self._read.clear()
        self._seen.clear()
        self._wide.since.clear()

    def _host_can(self, op: int, row: Row) -> bool:
        """Whether the host does this transfer itself: small enough, and no work of the device is in the way.

        Host work is done while the batch is recorded, in the order of the rows, so before any device work of the batch.
        """
        if op == CREATE:
            size: int = row[7][0]
            return size <= self._direct_write_max or size == 0
        token = row[3]
        if op == WRITE:
            return len(row[7]) <= self._direct_write_max and all(
                self._last_use.get(buffer, 0) <= self._completed and not self._wide.uses(buffer, writes=False)
                for buffer in token.buffers
            )
        if op == READ:
            return all(
                end - first <= self._direct_read_max
                and self._last_write.get(buffer, 0) <= self._completed
                and not self._wide.uses(buffer, writes=True)
                for buffer, first, end in token.reads
            )
        return False

    def _touch(self, token: Token, serial: int) -> int:  # noqa: C901
        """BARRIER if one must stand before this row, else 0; notes what the row touches.

        In one piece, since it runs for most rows and a call costs as much as a range.
        """
        id, reads, writes = token.id, token.reads, token.writes
        read, written, completed = self._read, self._written, self._completed
        seen = self._seen.get(id, 0)
        conflict = 0
        if self._must_barrier:
            self._must_barrier = False
            conflict = BARRIER
        elif seen > completed:
            # A row that conflicts with what this token did would have spent a barrier since, and so forgotten it.
            if writes:
                conflict = BARRIER  # it writes what it wrote before
            elif seen == serial:
                return 0
        else:
            for buffer, first, end in reads:
                if buffer in written and _overlap(written[buffer], first, end, completed):
                    conflict = BARRIER
            for buffer, first, end in writes:
                if (buffer in written and _overlap(written[buffer], first, end, completed)) or (
                    buffer in read and _overlap(read[buffer], first, end, completed)
                ):
                    conflict = BARRIER
            if self._wide.since and not conflict and self._wide.meets(reads, writes):
                conflict = BARRIER
        if conflict:
            self._clear()
        for buffer, first, end in reads:
            if buffer in read:
                _note(read[buffer], first, end, serial, completed)
            else:
                read[buffer] = [[first, end, serial]]
        for buffer, first, end in writes:
            if buffer in written:
                _note(written[buffer], first, end, serial, completed)
            else:
                written[buffer] = [[first, end, serial]]
        if token.cached:
            self._seen[id] = serial
        if self._host_moves and id not in self._used:
            if token.cached:
                self._used.add(id)
            for buffer in token.buffers:
                self._last_use[buffer] = serial
            for buffer, _, _ in writes:
                self._last_write[buffer] = serial
        return conflict

    def _touch_many(self, row: Row, serial: int) -> int:
        """`_touch` for a MANY row, which gets the barriers among its launches as well."""
        from vkqueue.jobs.overlap import barriers  # not before it is needed: it imports NumPy

        token: ManyToken = row[3]
        many: Many = row[7]
        known = many.args.barriers
        if (many.first, many.count) not in known:
            if len(known) >= _MAX_PARTS:
                known.clear()
            known[many.first, many.count] = barriers(many)
        many.barriers = known[many.first, many.count]
        if len(token.buffers) <= FEW:
            return self._touch(token, serial)
        conflict = (
            self._must_barrier
            or len(self._wide.since) >= MOST
            or meets_ranges(token.read, self._written, self._completed)
            or meets_ranges(token.written, self._written, self._completed)
            or meets_ranges(token.written, self._read, self._completed)
            or self._wide.meets_wide(token)
        )
        if conflict:
            self._must_barrier = False
            self._clear()
        self._wide.add(token, serial)
        return BARRIER if conflict else 0


def _overlap(known: list[list[int]], first: int, end: int, completed: int) -> bool:
    """Whether a range meets one that a batch in flight touches."""
    for low, high, serial in known:
        if low < end and first < high and serial > completed:
            return True
    return False


def _note(known: list[list[int]], first: int, end: int, serial: int, completed: int) -> None:
    """Add a range to those of its buffer."""
    for range in known:
        if range[0] <= first and end <= range[1]:
            # The whole of the larger range is kept until the newer batch is over: too much, which is safe.
            range[2] = serial
            return
    known[:] = [r for r in known if r[2] > completed and not (first <= r[0] and r[1] <= end)]
    if len(known) >= _MAX_RANGES:
        first = min(first, min(r[0] for r in known))
        end = max(end, max(r[1] for r in known))
        known.clear()
    known.append([first, end, serial])
