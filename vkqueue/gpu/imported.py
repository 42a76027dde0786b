"""Buffers whose memory is a client's: pages that both have mapped, imported with VK_EXT_external_memory_host.

The device reads and writes the client's own bytes, so a payload is not copied on its way. The pages are whole, stay as
many as they are (the file is sealed against shrinking), and are kept mapped for as long as the buffer lives.
"""

from __future__ import annotations

import ctypes

from vkqueue.errors import UnsupportedError, VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.mapped import Mapping
from vkqueue.model import Shared

_HOST_ALLOCATION = 0x80  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
_IMPORTABLE = 0x4  # VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT
_COHERENT, _CACHED = 0x4, 0x8

_IN_USE: set[Shared] = set()
"""Memory of buffers that were not freed. A device that is left with work in progress goes on with it, whoever has been
forgotten meanwhile, so it stays mapped."""


def importable(device: Device, usage: int) -> str:
    """Why the device can make no buffer of this usage out of imported pages; empty when it can."""
    if not device.host_pointer_alignment:
        return "it has no VK_EXT_external_memory_host, or is not to use it"
    with Arena() as arena:
        info = arena.struct("VkPhysicalDeviceExternalBufferInfo", usage=usage, handleType=_HOST_ALLOCATION)
        properties = arena.struct("VkExternalBufferProperties")
        device.instance.calls.vkGetPhysicalDeviceExternalBufferProperties(device.physical.handle, info, properties)
        features = properties.externalMemoryProperties.externalMemoryFeatures
    return "" if features & _IMPORTABLE else "its buffers cannot be of imported memory"


class ImportedBuffer:
    """A VkBuffer over imported pages. It has what the rest of the backend asks of `buffers.DeviceBuffer`.

    Args:
        shared: the mapping; its length is the buffer's capacity.
        size: bytes that the client asked for.

    Raises:
        UnsupportedError: the pages are not as many, or not aligned, as the device wants them, or none of its memory
            types takes them.
        VkqueueError: the driver does not take them.
    """

    __slots__ = (
        "_device",
        "_memory",
        "capacity",
        "empty",
        "handle",
        "mapping",
        "offset",
        "param",
        "shared",
        "size",
    )

    def __init__(self, device: Device, shared: Shared, size: int, usage: int) -> None:
        self._device = device
        self.shared = shared
        address, capacity = ctypes.addressof(shared.map), len(shared.map)
        alignment = device.host_pointer_alignment
        if capacity % alignment or address % alignment:
            raise UnsupportedError(f"the device imports multiples of {alignment} bytes")
        self.size, self.capacity, self.offset = size, capacity, 0
        self.empty = None
        with Arena() as arena:
            external = arena.struct("VkExternalMemoryBufferCreateInfo", handleTypes=_HOST_ALLOCATION)
            info = arena.struct(
                "VkBufferCreateInfo", size=capacity, usage=usage, sharingMode=binding.vk.VK_SHARING_MODE_EXCLUSIVE
            )
            arena.chain(info, external)
            self.handle = device.create("VkBuffer", info)
            self.param = param(self.handle)
            try:
                self._memory = self._import(arena, address)
            except VkqueueError:
                device.destroy("VkBuffer", self.handle)
                raise
        try:
            device.calls.vkBindBufferMemory(device.handle, self.handle, self._memory, 0)
        except VkqueueError:
            self.free()
            raise
        self.mapping = Mapping(address, capacity)
        _IN_USE.add(shared)

    def _import(self, arena: Arena, address: int) -> int:
        device, ffi = self._device, binding.ffi
        pointer = ffi.cast("void *", address)
        accepted = arena.struct("VkMemoryHostPointerPropertiesEXT")
        device.calls.vkGetMemoryHostPointerPropertiesEXT(device.handle, _HOST_ALLOCATION, pointer, accepted)
        needs = arena.out("VkMemoryRequirements")
        device.hot.get_buffer_memory_requirements(device.handle, self.handle, binding.address(needs))
        if needs.size > self.capacity:
            raise UnsupportedError(f"the device wants {needs.size} bytes for a buffer of {self.capacity}")
        types = [
            t
            for t in device.memory_types
            if accepted.memoryTypeBits & needs.memoryTypeBits & (1 << t.index) and t.flags & _COHERENT
        ]
        if not types:
            raise UnsupportedError("no coherent memory type of the device takes the shared pages")
        best = max(types, key=lambda t: t.flags & _CACHED)
        info = arena.struct("VkMemoryAllocateInfo", allocationSize=self.capacity, memoryTypeIndex=best.index)
        arena.chain(
            info, arena.struct("VkImportMemoryHostPointerInfoEXT", handleType=_HOST_ALLOCATION, pHostPointer=pointer)
        )
        return device.create("VkDeviceMemory", info)

    def free(self) -> None:
        """Give the pages back; nothing on the device may use them any more. They are unmapped with the last reference,
        of which whoever still knows this buffer has none."""
        self._device.destroy("VkBuffer", self.handle)
        self._device.destroy("VkDeviceMemory", self._memory)
        _IN_USE.discard(self.shared)
        del self.shared
