"""Memory for one batch's time: what the host writes for it, what the host reads of it, and scratch on the device.

A batch cuts slices from blocks that it borrows and gives back once it has been retired, so a slice is never written
again before the fence that covers its use. Blocks are VkBuffers, bound to kernels as they are or copied from and to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from vkqueue.errors import OutOfDeviceMemoryError
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.space import align_up
from vkqueue.model import Pieces

# What small slices share. A batch of 256 launches with a uniform slice of 256 bytes each fills 64 KiB; four times
# that leaves room for payloads. With a block per session there are many of them, so they are smaller.
SHARED_BLOCK = 1 << 20
SESSION_BLOCK = 1 << 16
# A slice over this share of a block gets a block of its own: bump allocation would waste the rest.
LARGE_SHARE = 4
# Blocks of their own are rounded up to this, so that a stream of messages of about one size reuses them.
LARGE_STEP = 1 << 16


class BlockBuffer(Protocol):
    """What staging needs of a VkBuffer (`buffers.DeviceBuffer`)."""

    handle: int
    param: Any
    capacity: int
    mapping: Mapping | None
    offset: int


class StagingBlock:
    """A block lent to one batch at a time.

    Attributes:
        key: the session that its contents may be shown to; None for nobody's (never bound to a kernel that could
            reach beyond its slice).
        used: bytes handed out of it to the present batch.
    """

    __slots__ = ("buffer", "key", "size", "used")

    def __init__(self, buffer: BlockBuffer, key: object) -> None:
        self.buffer = buffer
        self.size = buffer.capacity
        self.key = key
        self.used = 0


class Slice:
    """A range of a block: `size` bytes for the caller, `room` in all (padding that is the caller's, too).

    `fresh` is the block when it has to be zeroed by the device, as a whole, before the slice is bound.
    """

    __slots__ = ("block", "fresh", "offset", "room", "size")

    def __init__(self, block: StagingBlock, offset: int, size: int, room: int, fresh: bool) -> None:
        self.block = block
        self.offset = offset
        self.size = size
        self.room = room
        self.fresh = fresh

    @property
    def handle(self) -> int:
        """The VkBuffer."""
        return self.block.buffer.handle

    def fill(self, data: Any) -> None:
        """Write `data` (at most `room` bytes, bytes-like or Pieces) at its start and zero the rest."""
        buffer = self.block.buffer
        mapping = buffer.mapping
        assert mapping is not None
        size = len(data)
        start = buffer.offset + self.offset
        if type(data) is Pieces:
            place = start
            for part in data.parts:
                mapping.write(place, part)
                place += len(part)
        elif size:
            mapping.write(start, data)
        if size < self.room:
            mapping.zero(start + size, self.room - size)

    def read(self) -> Any:
        """A copy of its `size` bytes."""
        buffer = self.block.buffer
        assert buffer.mapping is not None
        return buffer.mapping.read(buffer.offset + self.offset, self.size)


class StagingPool:
    """Blocks of one memory type, idle or lent.

    Args:
        make, destroy: make a block of at least some size, and free it again.
        alignment: of slices and their padded sizes, a power of two.
        keep: idle bytes kept for the next batches.
        limit: bytes that exist at once.

    Attributes:
        reserved: bytes of all blocks.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], BlockBuffer],
        destroy: Callable[[Any], None],
        *,
        alignment: int,
        keep: int,
        limit: int,
    ) -> None:
        self.name = name
        self.alignment = alignment
        self.reserved = 0
        self._make = make
        self._destroy = destroy
        self._keep = keep
        self._limit = limit
        self._idle: list[StagingBlock] = []
        self._lent: set[StagingBlock] = set()

    def take(self, size: int, key: object) -> tuple[StagingBlock, bool]:
        """A block with room for `size` bytes, and whether the device has to zero it first.

        Raises:
            OutOfDeviceMemoryError: over `limit`, or the device has no more.
        """
        usual = SHARED_BLOCK if key is None else SESSION_BLOCK
        wanted = usual if size <= usual // LARGE_SHARE else align_up(size, LARGE_STEP)
        block = self._reuse(wanted, key)
        if block is None:
            block = self._grow(wanted)
        self._lent.add(block)
        fresh = False
        if key is not None and block.key != key:
            # Its last contents were another session's, or whatever the driver left there.
            mapping = block.buffer.mapping
            if mapping is not None:
                mapping.zero(block.buffer.offset, block.size)
            fresh = mapping is None
        block.key = key
        return block, fresh

    def give(self, blocks: list[StagingBlock], ran: bool) -> None:
        """Take back what a batch borrowed; its fence has been waited for, or it never ran."""
        for block in blocks:
            self._lent.remove(block)
            block.used = 0
            if not ran and block.buffer.mapping is None:
                block.key = None  # what the device was to zero in it still is another session's
            self._idle.append(block)
        idle = sum(block.size for block in self._idle)
        while idle > self._keep:
            idle -= self._drop(self._idle.pop(0))

    def trim(self) -> None:
        """Free the idle blocks."""
        while self._idle:
            self._drop(self._idle.pop())

    def close(self) -> None:
        """Free all blocks, lent ones too."""
        self.trim()
        while self._lent:
            self._drop(self._lent.pop())

    def _reuse(self, wanted: int, key: object) -> StagingBlock | None:
        """The best idle block: of the same session, then the smallest; none that would be mostly wasted."""
        best: StagingBlock | None = None
        for block in self._idle:
            if wanted <= block.size <= 2 * wanted and (
                best is None or (block.key != key, block.size) < (best.key != key, best.size)
            ):
                best = block
        if best is not None:
            self._idle.remove(best)
        return best

    def _grow(self, wanted: int) -> StagingBlock:
        if self.reserved + wanted > self._limit:
            self.trim()
        if self.reserved + wanted > self._limit:
            raise OutOfDeviceMemoryError(
                f"no {self.name} memory for {wanted:,} bytes: {self.reserved:,} of at most {self._limit:,} are in "
                "use by work in flight; try again once some of it is done, or transfer in smaller parts",
                {"asked": wanted, "used": self.reserved, "limit": self._limit},
            )
        buffer = self._make(wanted)
        self.reserved += buffer.capacity
        return StagingBlock(buffer, None)

    def _drop(self, block: StagingBlock) -> int:
        self.reserved -= block.size
        self._destroy(block.buffer)
        return block.size


class Slices:
    """The slices of one batch."""

    __slots__ = ("_current", "_lent")

    def __init__(self) -> None:
        self._current: dict[tuple[StagingPool, object], StagingBlock] = {}
        self._lent: dict[StagingPool, list[StagingBlock]] = {}

    def take(self, pool: StagingPool, size: int, key: object = None) -> Slice:
        """Room for `size` bytes (which may be 0), aligned and padded as the pool demands.

        Args:
            key: the session, when the slice is bound to a kernel that could reach its neighbours.

        Raises:
            OutOfDeviceMemoryError
        """
        room = align_up(size or 1, pool.alignment)
        place = (pool, key)
        block = self._current.get(place)
        fresh = False
        if block is None or block.used + room > block.size:
            full = block
            block, fresh = pool.take(room, key)
            self._lent.setdefault(pool, []).append(block)
            if full is None or block.size - room > full.size - full.used:
                self._current[place] = block
        offset = block.used
        block.used += room
        return Slice(block, offset, size, room, fresh)

    def give_back(self, ran: bool = True) -> None:
        """Return all blocks to their pools. `ran`: whether the batch did."""
        for pool, blocks in self._lent.items():
            pool.give(blocks, ran)
        self._lent.clear()
        self._current.clear()
