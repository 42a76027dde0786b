"""The deferred stream: which rows of a batch need their initializer, and before which a barrier stands.

It takes the initializer, kernel and token of TVM's VulkanStream, and has fewer outcomes: a row's initializer runs or
is skipped, a barrier is recorded before it or not. There is never a flush, since other descriptors go to another slot
of a ring, and tokens are compared by ids that are never reused.

Hazards. A barrier covers everything recorded on the queue before it, in this batch and in those still in flight, so
all that has to be known is what was touched since the last one. Whatever a fence has confirmed orders itself.
Read-read never conflicts. Per buffer a few disjoint ranges are kept; past `_MAX_RANGES` they are merged into the one
that covers them, which may cost a barrier too many and never one too few.

Everything is constant time per row: N equal launches cost N, not N² as where every launch scans all tokens.
"""

from __future__ import annotations

from collections import OrderedDict

from vkqueue.model import BARRIER, CREATE, DIRECT, DISPATCH, INIT, READ, WRITE, Batch, Row, Token

# Arbitrary: a scan of so many ranges costs about as much as the rest of a row's work.
_MAX_RANGES = 8
# A ring's slots before the longest unused one is taken for another token (arbitrary: 64 sets are a few KiB).
_MIN_SLOTS = 64
# Entries of hazard state before a barrier is spent on forgetting them (arbitrary; about 10 MiB).
_MAX_STATE = 65_536

Touched = dict[int, list[list[int]]]
"""Buffer id to disjoint [first byte, end byte, serial of the newest batch that touched it]."""


class Ring:
    """The slots of one layout's ring of descriptor sets: which token each holds, and until when it is in use."""

    def __init__(self) -> None:
        self._slots: OrderedDict[int, int] = OrderedDict()  # token id -> slot, longest unused first
        self._used: list[int] = []  # slot -> serial of the newest batch that uses it

    def acquire(self, token_id: int, serial: int, completed: int) -> tuple[int, bool]:
        """(slot, whether it must be written). A slot that a batch in flight uses is never given to another token."""
        slot = self._slots.get(token_id)
        if slot is not None:
            self._slots.move_to_end(token_id)
            self._used[slot] = serial
            return slot, False
        if len(self._used) >= _MIN_SLOTS:
            oldest, slot = next(iter(self._slots.items()))
            if self._used[slot] <= completed:
                del self._slots[oldest]
                self._slots[token_id] = slot
                self._used[slot] = serial
                return slot, True
        slot = len(self._used)
        self._used.append(serial)
        self._slots[token_id] = slot
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
        self._outstanding: dict[int, None] = {}  # serials in flight, in order
        self._completed = 0  # every serial up to this one is known to be over
        self._must_barrier = False
        # Since the last barrier:
        self._written: Touched = {}
        self._read: Touched = {}
        self._seen: dict[int, int] = {}  # token id -> serial
        # Since ever, for the host's own accesses: the newest batch that uses a buffer on the device.
        self._last_use: dict[int, int] = {}
        self._last_write: dict[int, int] = {}
        self._rings: dict[int, Ring | None] = {}  # layout id -> its ring, None when all is pushed

    def make_batch(self, rows: list[Row], serial: int, reason: str, now_ns: int) -> Batch:
        """The batch of these rows, in this order. Serials count up."""
        if not self._outstanding:
            self._completed = serial - 1
            self._clear()
        elif len(self._seen) + len(self._read) + len(self._written) > _MAX_STATE:
            self._must_barrier = True
        self._outstanding[serial] = None
        flags: list[int] = []
        slots: list[int] = []
        add_flags, add_slot = flags.append, slots.append
        rings = self._rings
        pushed: Token | None = None  # what the newest launch of this command buffer pushed
        for row in rows:
            op, token = row[2], row[3]
            if op == DISPATCH:
                flag = BARRIER if self._conflicts(token, serial) else 0
                layout = token.layout
                try:
                    ring = rings[layout.id]
                except KeyError:
                    ring = rings[layout.id] = Ring() if layout.needs_ring(self._max_push) else None
                if ring is None:
                    if token is not pushed:
                        flag |= INIT
                        # Transient descriptors are new for each launch although the token object may return.
                        pushed = token if token.cached else None
                    add_slot(-1)
                else:
                    slot, write = ring.acquire(token.id, serial, self._completed)
                    add_slot(slot)
                    if write:
                        flag |= INIT
                    pushed = None
            else:
                add_slot(-1)
                flag = DIRECT if self._host_can(op, row) else BARRIER if self._conflicts(token, serial) else 0
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

    def _clear(self) -> None:
        self._written.clear()
        self._read.clear()
        self._seen.clear()

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
                self._last_use.get(buffer, 0) <= self._completed for buffer in token.buffers
            )
        if op == READ:
            return all(
                end - first <= self._direct_read_max and self._last_write.get(buffer, 0) <= self._completed
                for buffer, first, end in token.reads
            )
        return False

    def _conflicts(self, token: Token, serial: int) -> bool:
        """Whether a barrier must stand before this row; notes what the row touches."""
        seen = self._seen.get(token.id)
        conflict = False
        if self._must_barrier:
            conflict = True
            self._must_barrier = False
        elif seen is not None and not token.writes:
            # A writer of these ranges would have spent a barrier, and the barrier would have forgotten the token.
            if seen == serial:
                return False
        elif seen is not None and seen > self._completed:
            conflict = True  # it writes what it wrote before
        else:
            conflict = self._overlaps(token)
        if conflict:
            self._clear()
        read, written = self._read, self._written
        for buffer, first, end in token.reads:
            _note(read, buffer, first, end, serial)
            self._last_use[buffer] = serial
        for buffer, first, end in token.writes:
            _note(written, buffer, first, end, serial)
            self._last_use[buffer] = self._last_write[buffer] = serial
        if token.cached:
            self._seen[token.id] = serial
        return conflict

    def _overlaps(self, token: Token) -> bool:
        written, completed = self._written, self._completed
        for buffer, first, end in token.reads:
            if buffer in written:
                for low, high, serial in written[buffer]:
                    if low < end and first < high and serial > completed:
                        return True
        read = self._read
        for buffer, first, end in token.writes:
            for state in (written, read):
                if buffer in state:
                    for low, high, serial in state[buffer]:
                        if low < end and first < high and serial > completed:
                            return True
        return False


def _note(state: Touched, buffer: int, first: int, end: int, serial: int) -> None:
    ranges = state.get(buffer)
    if ranges is None:
        state[buffer] = [[first, end, serial]]
        return
    for known in ranges:
        if known[0] <= first and end <= known[1]:
            # Widening in time is safe: the older, larger range is kept until the newer batch is over.
            known[2] = serial
            return
    if len(ranges) < _MAX_RANGES:
        ranges.append([first, end, serial])
        return
    low = min(first, min(known[0] for known in ranges))
    high = max(end, max(known[1] for known in ranges))
    state[buffer] = [[low, high, serial]]
