"""Devices: their order, what they can do, and an opened one with its queue and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.features import (
    CORE_FEATURES,
    FEATURES,
    chain,
    fields,
    used_extensions,
    wanted,
)
from vkqueue.gpu.hot import Hot, Raw
from vkqueue.gpu.instance import open_instance
from vkqueue.gpu.physical import Heap, MemoryType, PhysicalDevice, info_of, list_devices

__all__ = [
    "Device",
    "DeviceOptions",
    "Heap",
    "MemoryType",
    "PhysicalDevice",
    "list_devices",
    "open_device",
    "open_instance",
]

# Called by the thread that waits for fences, or by the compile thread; everything else is the owner's.
SHARED_CALLS = frozenset(
    {
        "vkWaitForFences",
        "vkGetFenceStatus",
        "vkGetQueryPoolResults",
        "vkInvalidateMappedMemoryRanges",
        "vkCreateShaderModule",
        "vkDestroyShaderModule",
        "vkCreateComputePipelines",
        "vkDestroyPipeline",
        "vkCreatePipelineLayout",
        "vkDestroyPipelineLayout",
        "vkCreateDescriptorSetLayout",
        "vkDestroyDescriptorSetLayout",
        "vkCreateDescriptorUpdateTemplate",
        "vkDestroyDescriptorUpdateTemplate",
        "vkCreatePipelineCache",
        "vkGetPipelineCacheData",
        "vkDestroyPipelineCache",
        "vkSetDebugUtilsObjectNameEXT",
    }
)

FACTORIES: dict[str, tuple[str, str]] = {
    "VkBuffer": ("vkCreateBuffer", "vkDestroyBuffer"),
    "VkCommandPool": ("vkCreateCommandPool", "vkDestroyCommandPool"),
    "VkDescriptorPool": ("vkCreateDescriptorPool", "vkDestroyDescriptorPool"),
    "VkDescriptorSetLayout": ("vkCreateDescriptorSetLayout", "vkDestroyDescriptorSetLayout"),
    "VkDescriptorUpdateTemplate": ("vkCreateDescriptorUpdateTemplate", "vkDestroyDescriptorUpdateTemplate"),
    "VkDeviceMemory": ("vkAllocateMemory", "vkFreeMemory"),
    "VkFence": ("vkCreateFence", "vkDestroyFence"),
    "VkPipeline": ("vkCreateComputePipelines", "vkDestroyPipeline"),
    "VkPipelineCache": ("vkCreatePipelineCache", "vkDestroyPipelineCache"),
    "VkPipelineLayout": ("vkCreatePipelineLayout", "vkDestroyPipelineLayout"),
    "VkQueryPool": ("vkCreateQueryPool", "vkDestroyQueryPool"),
    "VkSemaphore": ("vkCreateSemaphore", "vkDestroySemaphore"),
    "VkShaderModule": ("vkCreateShaderModule", "vkDestroyShaderModule"),
}


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Switches of a device.

    Attributes:
        descriptors: "auto" (push where the device can), "push" (or fail), "sets" (never push).
        dedicated_allocation: allow allocations of one buffer's own.
        validation: validate every call (slow); decided when the instance is opened.
        dump_shaders: directory into which every module that is compiled is written, None for not.
        debug_labels: put a label round each job in the command buffer, for graphics debuggers.
        cache_dir: where the pipeline cache is kept, None for not.
        robustness2: bound accesses by descriptor ranges where the device can; False to try the other path.
        external_memory_host: import clients' memory where the device can.
        isolate: enable no feature whose accesses the device does not bound; False for a daemon of one user, who may
            want cooperative matrices of a device that does not.
    """

    descriptors: str = "auto"
    dedicated_allocation: bool = True
    validation: bool = False
    dump_shaders: Path | None = None
    debug_labels: bool = False
    cache_dir: Path | None = None
    robustness2: bool = True
    external_memory_host: bool = True
    isolate: bool = True

    def __post_init__(self) -> None:
        if self.descriptors not in ("auto", "push", "sets"):
            raise InvalidError(f"descriptors is {self.descriptors!r}; expected 'auto', 'push' or 'sets'")


class Device:
    """An opened device: one queue, its functions, and counts of what lives on it.

    Belongs to the thread that opened it, but for `SHARED_CALLS`. Handles are ints.

    Attributes:
        handle, queue, queue_family: VkDevice, VkQueue, index of the family.
        physical: what it was opened from; `physical.memory_types` and `physical.heaps` too are here.
        calls: checked functions, GIL released: submit, wait, create.
        hot, raw: recording functions, GIL kept; see `vkqueue.gpu.hot`.
        info: limits and features as enabled. `direct_write_max` and `direct_read_max` are 0 until the backend, which
            knows where its memory lives, sets them.
        enabled: feature name -> enabled. `extensions`: those enabled.
        push_descriptors: whether sets are pushed; `max_push_descriptors` is 0 when not.
        robust_ranges: accesses are bounded by the descriptor's range (robustBufferAccess2), rounded up to
            `robust_storage_alignment` and `robust_uniform_alignment`; when False only by the VkBuffer.
        null_descriptors: whether a descriptor may name no buffer, which has no bytes.
        debug_labels: whether labels are wanted and possible.
        timestamp_period: nanoseconds a tick, 0.0 when the queue has no timestamps; `timestamp_mask` the valid bits.
        live: counts of objects by Vulkan type; shared with the instance.
        owner: the thread that may call.
    """

    def __init__(self, physical: PhysicalDevice, options: DeviceOptions) -> None:
        self.physical = physical
        self.instance = physical.instance
        self.options = options
        self.handle = 0
        self.queue = 0
        self.queue_family = physical.queue_family
        self.memory_types = physical.memory_types
        self.heaps = physical.heaps
        self.owner = binding.Owner()
        self.live = physical.instance.live
        self.extensions = frozenset(used_extensions(physical.version, physical.extensions))
        self.enabled = wanted(physical.present, robustness2=options.robustness2, isolate=options.isolate)
        self.calls: binding.Calls
        self.hot: Hot
        self.raw: Raw

        limits = physical.info.limits
        self.limits: dict[str, Any] = limits
        self.storage_alignment: int = limits["minStorageBufferOffsetAlignment"]
        self.uniform_alignment: int = limits["minUniformBufferOffsetAlignment"]
        self.atom_size: int = limits["nonCoherentAtomSize"]
        self.host_pointer_alignment: int = (
            limits.get("minImportedHostPointerAlignment", 0) if options.external_memory_host else 0
        )
        """For memory imported from the host; 0 when that cannot be done."""
        self.robust_ranges = self.enabled.get("robustBufferAccess2", False)
        self.robust_storage_alignment: int = limits.get("robustStorageBufferAccessSizeAlignment", 4)
        self.robust_uniform_alignment: int = limits.get("robustUniformBufferAccessSizeAlignment", 4)
        self.null_descriptors = self.enabled.get("nullDescriptor", False)
        self.push_descriptors = _push_descriptors(self, options.descriptors)
        self.max_push_descriptors: int = limits["maxPushDescriptors"] if self.push_descriptors else 0
        self.debug_labels = options.debug_labels and self.instance.debug_utils
        self.timestamp_period = float(limits["timestampPeriod"]) if physical.timestamp_bits else 0.0
        self.timestamp_mask = (1 << physical.timestamp_bits) - 1
        self.info = info_of(physical, self.enabled, self.max_push_descriptors)

    def _open(self) -> None:
        ffi = binding.ffi
        with Arena() as arena:
            queue = arena.struct(
                "VkDeviceQueueCreateInfo",
                queueFamilyIndex=self.queue_family,
                queueCount=1,
                pQueuePriorities=[1.0],
            )
            names = sorted(self.extensions)
            features = arena.struct("VkPhysicalDeviceFeatures2")
            links = chain(arena, features, FEATURES, self.physical.version, self.physical.extensions)
            for name in CORE_FEATURES:
                setattr(features.features, name, self.enabled[name])
            for block, link in links:
                for name, member in fields(block):
                    setattr(link, member, self.enabled[name])
            info = arena.struct(
                "VkDeviceCreateInfo",
                pNext=features,
                queueCreateInfoCount=1,
                pQueueCreateInfos=queue,
                enabledExtensionCount=len(names),
                ppEnabledExtensionNames=names,
            )
            out = arena.out("VkDevice")
            self.instance.calls.vkCreateDevice(self.physical.handle, info, ffi.NULL, out)
            device = out[0]
        self.handle = binding.address(device)
        self.live.add("VkDevice")
        resolve = _resolver(device)
        self.owner.claim()
        self.calls = binding.Calls(resolve, self.owner, SHARED_CALLS)
        self.hot = Hot(resolve)
        self.raw = Raw(resolve)
        queue_out = ffi.new("VkQueue *")
        self.calls.vkGetDeviceQueue(self.handle, self.queue_family, 0, queue_out)
        self.queue = binding.address(queue_out[0])

    def create(self, kind: str, info: Any) -> int:
        """Create an object of a type of `FACTORIES` from its create info; counts it, returns its handle.

        Raises:
            VkqueueError: by the result, see `binding.RESULTS`.
        """
        out = binding.ffi.new(f"{kind} *")
        getattr(self.calls, FACTORIES[kind][0])(self.handle, info, binding.ffi.NULL, out)
        self.live.add(kind)
        return binding.address(out[0])

    def destroy(self, kind: str, handle: int) -> None:
        """Destroy an object that `create` made; 0 is ignored."""
        if handle:
            getattr(self.calls, FACTORIES[kind][1])(self.handle, handle, binding.ffi.NULL)
            self.live.add(kind, -1)

    def set_name(self, object_type: int, handle: int, name: str) -> None:
        """Name an object (VkObjectType) for the validation layer and debuggers; nothing without debug utils."""
        if not self.instance.debug_utils:
            return
        with Arena() as arena:
            info = arena.struct(
                "VkDebugUtilsObjectNameInfoEXT", objectType=object_type, objectHandle=handle, pObjectName=name
            )
            self.calls.vkSetDebugUtilsObjectNameEXT(self.handle, info)

    def close(self) -> None:
        """Destroy the device; its objects must be destroyed and its queue idle. A second call does nothing."""
        if self.handle:
            self.calls.vkDestroyDevice(self.handle, binding.ffi.NULL)
            self.live.add("VkDevice", -1)
            self.handle = 0


def open_device(physical: PhysicalDevice, options: DeviceOptions) -> Device:
    """Open a device for the calling thread, which becomes its owner.

    Raises:
        UnsupportedError: `options.descriptors` is "push" and the device cannot.
        VkqueueError: the driver failed.
    """
    device = Device(physical, options)
    device._open()
    return device


def _resolver(device: Any) -> Callable[[str], int]:
    get = binding.lib.vkGetDeviceProcAddr
    return lambda name: binding.address(get(device, name.encode()))


def _push_descriptors(device: Device, choice: str) -> bool:
    possible = "VK_KHR_push_descriptor" in device.extensions
    if choice == "push" and not possible:
        raise UnsupportedError(
            f"descriptors = 'push', but {device.physical.info.name} has no VK_KHR_push_descriptor; use 'auto' or 'sets'"
        )
    return possible and choice != "sets"
