"""Device memory: which type serves what, blocks of it, and the ranges that buffers get.

A driver allows few allocations (4,096 is common) and each costs much, so buffers share blocks. The larger ones
have a block of their own. Nothing here calls Vulkan: a `Source` does, so that the policy can be tested alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from vkqueue.errors import OutOfDeviceMemoryError, TooLargeError
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.space import Space, align_up

MIB = 1 << 20
# A block is 1/256 of its heap within these bounds: 64 MiB of 16 GiB (what vkQuake and others settled on), and
# at most 2 * 256 blocks and dedicated allocations of a heap together, far below 4,096.
BLOCK_MIN, BLOCK_MAX = 4 * MIB, 256 * MIB
# The first block of a type is smaller and each next one twice as large, so that a daemon with little to do
# takes little (the Vulkan Memory Allocator does the same).
FIRST_BLOCK_SHARE = 8


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One memory type of the device."""

    index: int
    heap: int
    heap_size: int
    device_local: bool
    host_visible: bool
    coherent: bool
    cached: bool


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """The memory types that vkqueue uses.

    Attributes:
        client: for clients' buffers: device-local; host-visible as well where that costs nothing.
        upload: for what the host writes and the device reads.
        download: for what the device writes and the host reads.
    """

    client: MemoryType
    upload: MemoryType
    download: MemoryType

    @property
    def mirror(self) -> MemoryType:
        """For what host and device write parts of at once: where neither takes a neighbour's bytes along, as flushing
        whole lines does."""
        return self.download if self.download.coherent else self.upload


def choose_types(types: list[MemoryType], allowed: int) -> TypeChoice:
    """Choose among the types whose bits are set in `allowed`.

    Host-visible device-local memory is used for clients only when it lies in the largest device-local heap: a
    window of 256 MiB (a BAR that cannot be resized) is too scarce for that, and serves uploads.

    Raises:
        OutOfDeviceMemoryError: no type can be used (a broken driver: Vulkan promises one).
    """
    usable = [t for t in types if allowed >> t.index & 1]
    mapped = [t for t in usable if t.host_visible]
    local = [t for t in usable if t.device_local] or mapped
    if not local or not mapped:
        raise OutOfDeviceMemoryError("the device has no memory type for storage buffers that the host can write")
    main_heap = max(local, key=lambda t: t.heap_size).heap

    def client_rank(t: MemoryType) -> tuple[bool, bool, bool, int]:
        in_main = t.heap == main_heap
        return in_main, in_main and t.host_visible and t.coherent, t.cached and t.coherent, -t.index

    def upload_rank(t: MemoryType) -> tuple[bool, bool, int]:
        return t.coherent, t.device_local and t.heap == main_heap, -t.index

    def download_rank(t: MemoryType) -> tuple[bool, bool, bool, int]:
        return t.cached, t.coherent, not t.device_local, -t.index

    client = max(local, key=client_rank)
    if client.host_visible and not client.coherent:
        # Clients' buffers are written and read by the host without a flush; staging does that where needed.
        unmapped = [t for t in local if not t.host_visible and t.heap == client.heap]
        client = unmapped[0] if unmapped else client
    return TypeChoice(client, max(mapped, key=upload_rank), max(mapped, key=download_rank))


class Source(Protocol):
    """Where blocks come from: `vkAllocateMemory` and `vkMapMemory`."""

    def allocate(self, memory_type: MemoryType, size: int, buffer: int) -> tuple[Any, Mapping | None]:
        """A new block: its handle, and where the host sees it. `buffer`: the VkBuffer it is dedicated to, or 0.

        Raises:
            OutOfDeviceMemoryError: the driver has no more.
        """

    def free(self, handle: Any) -> None:
        """Unmap and free a block."""


class Block:
    """One allocation of the driver's. `space` is None when one buffer has it all."""

    __slots__ = ("handle", "mapping", "memory_type", "size", "space")

    def __init__(
        self, memory_type: MemoryType, size: int, handle: Any, mapping: Mapping | None, space: Space | None
    ) -> None:
        self.memory_type = memory_type
        self.size = size
        self.handle = handle
        self.mapping = mapping
        self.space = space


class Allocation:
    """A range of a block."""

    __slots__ = ("block", "offset", "size")

    def __init__(self, block: Block, offset: int, size: int) -> None:
        self.block = block
        self.offset = offset
        self.size = size


class Memory:
    """Blocks of all types, and the ranges handed out.

    Attributes:
        used: bytes handed out; reserved: bytes of all blocks; allocations: number of blocks.
    """

    def __init__(self, source: Source, *, max_allocations: int, max_allocation_size: int) -> None:
        self._source = source
        self._max_allocations = max_allocations
        self._max_allocation_size = max_allocation_size
        self._blocks: dict[MemoryType, list[Block]] = {}  # those that are shared
        self._dedicated: set[Block] = set()
        self.used = 0
        self.reserved = 0
        self.allocations = 0

    def block_size(self, memory_type: MemoryType) -> int:
        """Full size of a shared block of this type."""
        wanted = 1 << max(memory_type.heap_size // 256, 1).bit_length() - 1
        size = min(max(wanted, BLOCK_MIN), BLOCK_MAX)
        return min(size, max(memory_type.heap_size // 8, 1), self._max_allocation_size)

    def allocate(self, memory_type: MemoryType, size: int, alignment: int, buffer: int = 0) -> Allocation:
        """A range of at least `size` bytes (rounded up to `alignment`) for the VkBuffer `buffer`.

        Raises:
            TooLargeError: over the device's largest allocation.
            OutOfDeviceMemoryError: the device has no more; the message has the numbers.
        """
        if size > self._max_allocation_size:
            limit = self._max_allocation_size
            raise TooLargeError(
                f"{size:,} bytes are more than this device allocates at once (maxMemoryAllocationSize {limit:,}); "
                "split the buffer",
                {"asked": size, "limit": limit},
            )
        size = align_up(size, alignment)
        if size > self.block_size(memory_type) // 2:
            block = self._new_block(memory_type, min(size, self._max_allocation_size), None, size, buffer)
            self._dedicated.add(block)
            self.used += block.size
            return Allocation(block, 0, block.size)
        blocks = self._blocks.setdefault(memory_type, [])
        for block in blocks:
            space = block.space
            if space is not None and space.free >= size:
                offset = space.take(size, alignment)
                if offset is not None:
                    self.used += size
                    return Allocation(block, offset, size)
        block = self._grow(memory_type, blocks, size)
        assert block.space is not None
        offset = block.space.take(size, alignment)
        assert offset is not None
        self.used += size
        return Allocation(block, offset, size)

    def free(self, allocation: Allocation) -> None:
        """Give a range back. Of the empty blocks of a type one is kept for the next request."""
        block = allocation.block
        self.used -= allocation.size
        if block.space is None:
            self._dedicated.remove(block)
            self._drop(block)
            return
        block.space.give(allocation.offset)
        if block.space.empty:
            blocks = self._blocks[block.memory_type]
            if any(other.space is not None and other.space.empty for other in blocks if other is not block):
                blocks.remove(block)
                self._drop(block)

    def trim(self) -> int:
        """Give every empty block back to the driver; how many there were."""
        dropped = 0
        for blocks in self._blocks.values():
            for block in [b for b in blocks if b.space is not None and b.space.empty]:
                blocks.remove(block)
                self._drop(block)
                dropped += 1
        return dropped

    def blocks(self) -> list[Block]:
        """All of them."""
        return [*self._dedicated, *(block for blocks in self._blocks.values() for block in blocks)]

    def close(self) -> None:
        """Free all blocks, whatever is in them."""
        for block in self.blocks():
            self._drop(block)
        self._dedicated.clear()
        self._blocks.clear()
        self.used = 0

    def _grow(self, memory_type: MemoryType, blocks: list[Block], size: int) -> Block:
        full = self.block_size(memory_type)
        largest = max((b.size for b in blocks), default=0)
        wanted = min(full, max(2 * largest, full // FIRST_BLOCK_SHARE))
        while wanted < 2 * size and wanted < full:
            wanted = min(2 * wanted, full)
        while True:
            try:
                block = self._new_block(memory_type, wanted, Space(wanted), size)
            except OutOfDeviceMemoryError:
                if wanted // 2 < size or self.allocations >= self._max_allocations:
                    raise
                wanted //= 2
            else:
                blocks.append(block)
                return block

    def _new_block(self, memory_type: MemoryType, size: int, space: Space | None, asked: int, buffer: int = 0) -> Block:
        """One more block; tried again once without the empty ones if the driver has no more."""
        cause: OutOfDeviceMemoryError | None = None
        for _ in range(2):
            if self.allocations < self._max_allocations:
                try:
                    handle, mapping = self._source.allocate(memory_type, size, buffer)
                except OutOfDeviceMemoryError as error:
                    cause = error
                else:
                    self.allocations += 1
                    self.reserved += size
                    return Block(memory_type, size, handle, mapping, space)
            if not self.trim():
                break
        raise self._exhausted(memory_type, asked) from cause

    def _exhausted(self, memory_type: MemoryType, asked: int) -> OutOfDeviceMemoryError:
        in_heap = [b for b in self.blocks() if b.memory_type.heap == memory_type.heap]
        reserved = sum(b.size for b in in_heap)
        free = sum(b.space.free for b in in_heap if b.space is not None)
        same_type = [b for b in in_heap if b.memory_type == memory_type]
        largest = max((b.space.largest for b in same_type if b.space is not None), default=0)
        left = max(memory_type.heap_size - reserved, 0) + free
        text = (
            f"no device memory for {asked:,} bytes: {reserved - free:,} are used by buffers here, at most {left:,} of "
            f"{memory_type.heap_size:,} are left, and the largest free block is {largest:,}"
        )
        if self.allocations >= self._max_allocations:
            text += f"; the device allows {self._max_allocations:,} allocations (maxMemoryAllocationCount)"
        numbers = {"asked": asked, "used": reserved - free, "left": left, "largest_free": largest}
        return OutOfDeviceMemoryError(text + "; free some buffers, or ask for less", numbers)

    def _drop(self, block: Block) -> None:
        self._source.free(block.handle)
        self.allocations -= 1
        self.reserved -= block.size
