"""VkBuffers and the memory under them: clients' by id, and blocks for staging.

Each client's buffer is a VkBuffer of its own, because that is what robust access bounds a kernel to; the memory below
is shared. Its size is rounded up so that it covers the memory it is bound to: what lies between the client's last
byte and the end is the client's as well, and zeroed with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from vkqueue.errors import DeviceLostError, NotFoundError, OutOfDeviceMemoryError, TooLargeError, VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.imported import ImportedBuffer, importable
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.memory import Allocation, Memory, MemoryType, TypeChoice, choose_types
from vkqueue.gpu.mirrored import MirroredBuffer
from vkqueue.gpu.space import align_up
from vkqueue.model import Shared

log = logging.getLogger("vkqueue.gpu")

DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 0x1, 0x2, 0x4, 0x8
# Other flags (protected, lazily allocated, AMD's uncached kinds) mark memory that buffers must not or should not use.
ORDINARY = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT | HOST_CACHED


class DeviceSource:
    """Blocks of memory from `vkAllocateMemory`, mapped for as long as they live where the host can see them."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def allocate(self, memory_type: MemoryType, size: int, buffer: int) -> tuple[int, Mapping | None]:
        """See `memory.Source`."""
        device = self._device
        with Arena() as arena:
            info = arena.struct("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=memory_type.index)
            if buffer and device.options.dedicated_allocation:
                arena.chain(info, arena.struct("VkMemoryDedicatedAllocateInfo", buffer=buffer))
            handle = device.create("VkDeviceMemory", info)
        if not memory_type.host_visible:
            return handle, None
        try:
            out = binding.ffi.new("void **")
            device.calls.vkMapMemory(device.handle, handle, 0, binding.WHOLE_SIZE, 0, out)
        except VkqueueError:
            device.destroy("VkDeviceMemory", handle)
            raise
        cache = None if memory_type.coherent else DeviceCache(device, handle, size)
        return handle, Mapping(binding.address(out[0]), size, cache)

    def free(self, handle: int) -> None:
        """Free a block; that unmaps it."""
        self._device.destroy("VkDeviceMemory", handle)


class DeviceCache:
    """Flushes and invalidates one block that is not coherent; see `mapped.HostCache`."""

    def __init__(self, device: Device, memory: int, size: int) -> None:
        self._device = device
        self._memory = memory
        self._size = size

    def flush(self, ranges: list[tuple[int, int]]) -> None:
        """W."""
        self._call("vkFlushMappedMemoryRanges", ranges)

    def invalidate(self, start: int, end: int) -> None:
        """Any thread."""
        self._call("vkInvalidateMappedMemoryRanges", [(start, end)])

    def _call(self, call: str, ranges: list[tuple[int, int]]) -> None:
        atom = self._device.atom_size
        with Arena() as arena:
            structs = []
            for start, end in ranges:
                first = start & -atom
                size = min(align_up(end, atom), self._size) - first
                structs.append(arena.struct("VkMappedMemoryRange", memory=self._memory, offset=first, size=size))
            array = arena.array("VkMappedMemoryRange", structs)
            getattr(self._device.calls, call)(self._device.handle, len(ranges), array)


class DeviceBuffer:
    """A VkBuffer bound to its memory.

    Attributes:
        handle, param: the VkBuffer, as an int and prepared for the raw recording functions.
        size: bytes that the client asked for; capacity: bytes of the VkBuffer.
        mapping: where the host sees it, from `offset` on; None when it does not.
        empty: a tiny buffer that stands for empty ranges of this one, once there was one.
    """

    __slots__ = ("allocation", "capacity", "empty", "handle", "mapping", "offset", "param", "size")

    def __init__(self, handle: int, size: int, capacity: int, allocation: Allocation) -> None:
        self.handle = handle
        self.param = param(handle)
        self.size = size
        self.capacity = capacity
        self.allocation = allocation
        self.mapping = allocation.block.mapping
        self.offset = allocation.offset
        self.empty: DeviceBuffer | None = None


ClientBuffer: TypeAlias = DeviceBuffer | ImportedBuffer | MirroredBuffer


class Buffers:
    """All VkBuffers of a device.

    Attributes:
        types: the memory types in use.
        imports: whether the device makes buffers out of host memory.
        memory: the blocks.
        count: clients' buffers, with those that wait to be freed.
        mirrored: those of them whose client's pages the device cannot use.
        shared_bytes: of memory that clients share.
        undone: how often one went that requests may still name: it was made for a batch that never was submitted.
        reclaim: called when the device has no more memory, to give back what is only kept for later.
    """

    def __init__(self, device: Device) -> None:
        vk = binding.vk
        self._device = device
        self._ids: dict[int, ClientBuffer] = {}
        self._info = binding.ffi.new("VkBufferCreateInfo *")
        self._info.sType = vk.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO
        self._info.sharingMode = vk.VK_SHARING_MODE_EXCLUSIVE
        self._info.usage = (
            vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        self._info_address = binding.address(self._info)
        self._out = binding.ffi.new("uint64_t *")
        self._out_address = binding.address(self._out)
        self._needs = binding.ffi.new("VkMemoryRequirements *")
        self._needs_address = binding.address(self._needs)
        self._limits = device.limits
        self._max_size: int = self._limits.get("maxBufferSize", 1 << 62)
        self.count = 0
        self.mirrored: dict[int, MirroredBuffer] = {}
        self.shared_bytes = 0
        self.undone = 0
        self._imported = 0
        self.reclaim: Callable[[], None] = _nothing
        # Alignment and types are the same for all buffers of one usage (the specification says so), so one
        # buffer tells them.
        probe = self._create(256)
        self._destroy_handle(probe)
        self.types: TypeChoice = choose_types(memory_types(device), self._needs.memoryTypeBits)
        why_not = importable(device, self._info.usage)
        self.imports = not why_not
        if why_not:
            log.info("memory that clients share is copied to and from the device: %s", why_not)
        self._pad = max(4, self._needs.alignment, device.robust_storage_alignment, device.robust_uniform_alignment)
        self.memory = Memory(
            DeviceSource(device),
            max_allocations=self._limits["maxMemoryAllocationCount"],
            max_allocation_size=self._limits.get("maxMemoryAllocationSize", 1 << 62),
        )

    def get(self, id: int) -> ClientBuffer:
        """A client's buffer.

        Raises:
            NotFoundError: it was never created, or is gone.
        """
        buffer = self._ids.get(id)
        if buffer is None:
            raise NotFoundError(f"buffer {id} was never created or is gone", {"buffer": id})
        return buffer

    def create(self, id: int, size: int) -> DeviceBuffer:
        """Create a client's buffer. Its bytes are undefined: the caller overwrites all of its capacity.

        Raises:
            TooLargeError: over the device's largest buffer or allocation.
            OutOfDeviceMemoryError: the message has the numbers.
        """
        buffer = self.make(size, self.types.client)
        self._ids[id] = buffer
        self.count += 1
        return buffer

    @property
    def usage(self) -> int:
        """VkBufferUsageFlags of them all."""
        usage: int = self._info.usage
        return usage

    @property
    def host_sees(self) -> bool:
        """Whether the host, here or in a client, reads or writes clients' buffers directly: there is a barrier for it
        then."""
        return self.types.client.host_visible or self._imported > 0

    def adopt(self, id: int, shared: Shared, size: int) -> None:
        """Make a client's buffer of memory that it shares: of its very pages, or, if the device cannot use these, one
        that mirrors them.

        Raises:
            DeviceLostError
            TooLargeError, OutOfDeviceMemoryError: as `make`.
        """
        buffer = self._import(shared, size) or self._mirror(shared, size)
        if isinstance(buffer, MirroredBuffer):
            self.mirrored[id] = buffer
        else:
            self._imported += 1
        self._ids[id] = buffer
        self.shared_bytes += len(shared.map)
        self.count += 1

    def _import(self, shared: Shared, size: int) -> ImportedBuffer | None:
        """None if the device cannot; drivers may refuse some pages (those of files) and not others."""
        if self.imports:
            try:
                return ImportedBuffer(self._device, shared, size, self._info.usage)
            except DeviceLostError:
                raise
            except VkqueueError as error:
                log.info("shared memory of %d bytes is copied: %s", size, error.message)
        return None

    def _mirror(self, shared: Shared, size: int) -> MirroredBuffer:
        store = self.make(size, self.types.mirror)
        assert store.mapping is not None
        store.mapping.zero(store.offset, store.capacity)  # it was someone else's before
        return MirroredBuffer(store, shared)

    def take(self, id: int) -> ClientBuffer | None:
        """Forget a client's buffer; the caller destroys it with `destroy_client` once nothing uses it."""
        self.mirrored.pop(id, None)
        return self._ids.pop(id, None)

    def destroy_client(self, buffer: ClientBuffer) -> None:
        """Free what `take` returned."""
        if buffer.empty is not None:
            self.destroy(buffer.empty)
        self.count -= 1
        if isinstance(buffer, DeviceBuffer):
            self.destroy(buffer)
            return
        self.shared_bytes -= len(buffer.shared.map)
        if isinstance(buffer, ImportedBuffer):
            self._imported -= 1
            buffer.free()
        else:
            buffer.let_go()
            self.destroy(buffer.store)

    def empty_range(self, buffer: ClientBuffer) -> tuple[int, int, int]:
        """(VkBuffer, offset, range) to bind for an empty range of `buffer`: nothing, where the device can. Else, since
        a descriptor's range must not be empty, a byte that is no byte of the buffer, for a kernel may write it.

        Raises:
            OutOfDeviceMemoryError
        """
        if self._device.null_descriptors:
            return 0, 0, binding.WHOLE_SIZE
        if buffer.size == 0:
            return buffer.handle, 0, 1
        if buffer.empty is None:
            buffer.empty = self.make(0, self.types.upload)
            mapping = buffer.empty.mapping
            assert mapping is not None
            mapping.zero(buffer.empty.offset, buffer.empty.capacity)
        return buffer.empty.handle, 0, 1

    def make(self, size: int, memory_type: MemoryType) -> DeviceBuffer:
        """A buffer of at least `size` bytes (at least 1) with undefined contents.

        Raises:
            TooLargeError, OutOfDeviceMemoryError
        """
        capacity = align_up(size or 1, self._pad)
        if capacity > self._max_size:
            limit = self._max_size
            raise TooLargeError(
                f"a buffer of {size:,} bytes is over the device's largest (maxBufferSize {limit:,}); split it",
                {"asked": size, "limit": limit},
            )
        limit = self._limits.get("maxMemoryAllocationSize", capacity)
        if capacity > limit:
            raise TooLargeError(
                f"a buffer of {size:,} bytes is more than the device allocates at once (maxMemoryAllocationSize "
                f"{limit:,}); split it",
                {"asked": size, "limit": limit},
            )
        handle = self._create(capacity)
        try:
            alignment = self._needs.alignment
            if not memory_type.coherent:
                # Flushes cover whole atoms, which must not be shared with memory that something else writes.
                alignment = max(alignment, self._device.atom_size)
            needed = self._needs.size
            whole = handle if needed == align_up(needed, alignment) else 0
            try:
                allocation = self.memory.allocate(memory_type, needed, alignment, whole)
            except OutOfDeviceMemoryError:
                self.reclaim()
                allocation = self.memory.allocate(memory_type, needed, alignment, whole)
        except VkqueueError:
            self._destroy_handle(handle)
            raise
        try:
            memory = allocation.block.handle
            self._device.hot.bind_buffer_memory(self._device.handle, handle, memory, allocation.offset)
        except VkqueueError:
            self._destroy_handle(handle)
            self.memory.free(allocation)
            raise
        return DeviceBuffer(handle, size, capacity, allocation)

    def destroy(self, buffer: DeviceBuffer) -> None:
        """Free a buffer that `make` returned; nothing may use it any more."""
        self._destroy_handle(buffer.handle)
        self.memory.free(buffer.allocation)

    def flush(self) -> None:
        """Make what the host wrote into memory that is not coherent visible to the device."""
        if all(t.coherent for t in (self.types.client, self.types.upload, self.types.download)):
            return
        for block in self.memory.blocks():
            if block.mapping is not None:
                block.mapping.flush()

    def close(self) -> None:
        """Destroy clients' buffers and free all memory; staging has given its own back."""
        for buffer in self._ids.values():
            self.destroy_client(buffer)
        self._ids.clear()
        self.memory.close()

    def _create(self, capacity: int) -> int:
        # With the GIL kept: clients create thousands of buffers, and none of these calls blocks.
        device = self._device
        self._info.size = capacity
        device.hot.create_buffer(device.handle, self._info_address, None, self._out_address)
        device.live.add("VkBuffer")
        handle: int = self._out[0]
        device.hot.get_buffer_memory_requirements(device.handle, handle, self._needs_address)
        return handle

    def _destroy_handle(self, handle: int) -> None:
        self._device.hot.destroy_buffer(self._device.handle, handle, None)
        self._device.live.add("VkBuffer", -1)


def _nothing() -> None:
    pass


def memory_types(device: Device) -> list[MemoryType]:
    """The device's ordinary memory types."""
    return [
        MemoryType(
            index=t.index,
            heap=t.heap,
            heap_size=device.heaps[t.heap].size,
            device_local=bool(t.flags & DEVICE_LOCAL),
            host_visible=bool(t.flags & HOST_VISIBLE),
            coherent=bool(t.flags & HOST_COHERENT),
            cached=bool(t.flags & HOST_CACHED),
        )
        for t in device.memory_types
        if not t.flags & ~ORDINARY
    ]
