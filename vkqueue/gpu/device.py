"""Devices: their order, what they can do, and an opened one with its queue and functions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.features import (
    BOOLEANS,
    CORE_FEATURES,
    FEATURES,
    PROPERTIES,
    RENAMED,
    Version,
    all_feature_names,
    chain,
    fields,
    spirv_version,
    used_extensions,
    wanted,
)
from vkqueue.gpu.hot import Hot, Raw
from vkqueue.gpu.instance import Instance, listing, open_instance, split_version
from vkqueue.model import DeviceInfo

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

log = logging.getLogger("vkqueue.gpu")

# In the order in which devices are listed; VkPhysicalDeviceType -> name.
TYPES = {2: "discrete", 1: "integrated", 3: "virtual", 4: "cpu", 0: "other"}
_ORDER = list(TYPES)

QUEUE_GRAPHICS, QUEUE_COMPUTE = 0x1, 0x2
HEAP_DEVICE_LOCAL = 0x1

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
    """

    descriptors: str = "auto"
    dedicated_allocation: bool = True
    validation: bool = False
    dump_shaders: Path | None = None
    debug_labels: bool = False
    cache_dir: Path | None = None
    robustness2: bool = True
    external_memory_host: bool = True

    def __post_init__(self) -> None:
        if self.descriptors not in ("auto", "push", "sets"):
            raise InvalidError(f"descriptors is {self.descriptors!r}; expected 'auto', 'push' or 'sets'")


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory type: VkMemoryPropertyFlags and the heap it draws on."""

    index: int
    flags: int
    heap: int


@dataclass(frozen=True, slots=True)
class Heap:
    """A memory heap: bytes and VkMemoryHeapFlags."""

    size: int
    flags: int


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """A device that could be opened.

    Attributes:
        index: its place in the list; a driver listed twice gives two devices with one UUID.
        version: the Vulkan version it is used as.
        queue_family: the family chosen for all its work.
        extensions: those it lists.
        present: feature name -> whether it has it.
        info: as `devices` would report it, with the features that `open_device` enables by default.
    """

    index: int
    handle: int
    instance: Instance
    version: Version
    queue_family: int
    timestamp_bits: int
    extensions: frozenset[str]
    present: dict[str, bool]
    cache_uuid: bytes
    driver_uuid: bytes
    vendor_id: int
    device_id: int
    driver_version: int
    memory_types: tuple[MemoryType, ...]
    heaps: tuple[Heap, ...]
    info: DeviceInfo


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
        self.enabled = wanted(physical.present, robustness2=options.robustness2)
        self.calls: binding.Calls
        self.hot: Hot
        self.raw: Raw

        limits = physical.info.limits
        self.limits: dict[str, Any] = limits
        self.storage_alignment: int = limits["minStorageBufferOffsetAlignment"]
        self.uniform_alignment: int = limits["minUniformBufferOffsetAlignment"]
        self.max_storage_range: int = limits["maxStorageBufferRange"]
        self.max_uniform_range: int = limits["maxUniformBufferRange"]
        self.atom_size: int = limits["nonCoherentAtomSize"]
        self.host_pointer_alignment: int = (
            limits.get("minImportedHostPointerAlignment", 0) if options.external_memory_host else 0
        )
        """For memory imported from the host; 0 when that cannot be done."""
        self.robust_ranges = self.enabled.get("robustBufferAccess2", False)
        self.robust_storage_alignment: int = limits.get("robustStorageBufferAccessSizeAlignment", 4)
        self.robust_uniform_alignment: int = limits.get("robustUniformBufferAccessSizeAlignment", 4)
        self.push_descriptors = _push_descriptors(self, options.descriptors)
        self.max_push_descriptors: int = limits["maxPushDescriptors"] if self.push_descriptors else 0
        self.debug_labels = options.debug_labels and self.instance.debug_utils
        self.timestamp_period = float(limits["timestampPeriod"]) if physical.timestamp_bits else 0.0
        self.timestamp_mask = (1 << physical.timestamp_bits) - 1
        self.info = _info_of(physical, self.enabled, self.extensions, self.max_push_descriptors)

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

    def memory_budget(self) -> tuple[tuple[int, int], ...]:
        """(budget, usage) in bytes of each heap, of all processes; (heap size, 0) where the driver does not tell."""
        if "VK_EXT_memory_budget" not in self.extensions:
            return tuple((heap.size, 0) for heap in self.heaps)
        with Arena() as arena:
            budget = arena.struct("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
            properties = arena.struct("VkPhysicalDeviceMemoryProperties2", pNext=budget)
            self.instance.calls.vkGetPhysicalDeviceMemoryProperties2(self.physical.handle, properties)
            return tuple((budget.heapBudget[i], budget.heapUsage[i]) for i in range(len(self.heaps)))

    def close(self) -> None:
        """Destroy the device; its objects must be destroyed and its queue idle. A second call does nothing."""
        if self.handle:
            self.calls.vkDestroyDevice(self.handle, binding.ffi.NULL)
            self.live.add("VkDevice", -1)
            self.handle = 0


def list_devices(instance: Instance) -> list[PhysicalDevice]:
    """The usable devices: discrete, integrated, virtual, cpu, other; in each in the loader's order.

    A device without a compute queue, or older than Vulkan 1.1, is left out.

    Raises:
        VkqueueError: the loader or a driver failed.
    """
    handles = listing(instance.calls.vkEnumeratePhysicalDevices, "VkPhysicalDevice", instance.handle)
    found = []
    for handle in handles:
        properties = binding.ffi.new("VkPhysicalDeviceProperties *")
        instance.calls.vkGetPhysicalDeviceProperties(handle, properties)
        place = _ORDER.index(properties.deviceType) if properties.deviceType in TYPES else len(_ORDER)
        family = _queue_family(instance, handle)
        name = binding.ffi.string(properties.deviceName).decode(errors="replace")
        if family is None or split_version(properties.apiVersion)[:2] < (1, 1):
            log.info("device %s is left out: it has no compute queue, or is older than Vulkan 1.1", name)
            continue
        found.append((place, handle, properties, family))
    found.sort(key=lambda entry: entry[0])
    return [
        _describe(instance, index, handle, properties, family)
        for index, (_, handle, properties, family) in enumerate(found)
    ]


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
            f"descriptors = 'push', but {device.physical.info.name} has no VK_KHR_push_descriptor; "
            "use 'auto' or 'sets'"
        )
    return possible and choice != "sets"


def _queue_family(instance: Instance, handle: Any) -> tuple[int, int] | None:
    """(index, valid timestamp bits) of the family to use: compute without graphics before compute with."""
    families = listing(
        instance.calls.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", handle
    )
    best = None
    for index, family in enumerate(families):
        if family.queueCount and family.queueFlags & QUEUE_COMPUTE:
            if not family.queueFlags & QUEUE_GRAPHICS:
                return index, family.timestampValidBits
            if best is None:
                best = (index, family.timestampValidBits)
    return best


def _describe(
    instance: Instance, index: int, handle: Any, core: Any, family: tuple[int, int]
) -> PhysicalDevice:
    ffi = binding.ffi
    version = min(split_version(core.apiVersion)[:2], instance.version)
    found = listing(
        instance.calls.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", handle, ffi.NULL
    )
    extensions = frozenset(ffi.string(item.extensionName).decode() for item in found)
    facts = _query_properties(instance, handle, version, extensions)
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    instance.calls.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = tuple(Heap(h.size, h.flags) for h in memory.memoryHeaps[0 : memory.memoryHeapCount])
    types = memory.memoryTypes[0 : memory.memoryTypeCount]
    physical = PhysicalDevice(
        index=index,
        handle=binding.address(handle),
        instance=instance,
        version=version,
        queue_family=family[0],
        timestamp_bits=family[1],
        extensions=extensions,
        present=_query_features(instance, handle, version, extensions),
        cache_uuid=bytes(core.pipelineCacheUUID),
        driver_uuid=facts.driver_uuid,
        vendor_id=core.vendorID,
        device_id=core.deviceID,
        driver_version=core.driverVersion,
        memory_types=tuple(MemoryType(i, t.propertyFlags, t.heapIndex) for i, t in enumerate(types)),
        heaps=heaps,
        info=DeviceInfo(
            index=index,
            uuid=facts.uuid.hex(),
            name=ffi.string(core.deviceName).decode(errors="replace"),
            type=TYPES.get(core.deviceType, "other"),
            driver=facts.driver or f"vendor {core.vendorID:#x}, driver version {core.driverVersion:#x}",
            api_version=".".join(map(str, split_version(core.apiVersion))),
            memory_bytes=max((h.size for h in heaps if h.flags & HEAP_DEVICE_LOCAL), default=0),
            limits=facts.limits,
            features={},
            timestamps=bool(family[1]),
        ),
    )
    used = used_extensions(version, extensions)
    info = _info_of(
        physical,
        wanted(physical.present, robustness2=True),
        frozenset(used),
        physical.info.limits.get("maxPushDescriptors", 0),
    )
    physical.info.features.update(info.features)
    return physical


def _info_of(
    physical: PhysicalDevice, enabled: dict[str, bool], extensions: frozenset[str], max_push: int
) -> DeviceInfo:
    features = {name: enabled.get(name, False) for name in all_feature_names()}
    features["bufferDeviceAddress"] = False
    features.update(dict.fromkeys(sorted(extensions), True))
    base = physical.info
    return DeviceInfo(
        index=base.index,
        uuid=base.uuid,
        name=base.name,
        type=base.type,
        driver=base.driver,
        api_version=base.api_version,
        memory_bytes=base.memory_bytes,
        limits=base.limits,
        features=features,
        max_push_descriptors=max_push,
        timestamps=base.timestamps,
    )


@dataclass(slots=True)
class _Facts:
    limits: dict[str, Any] = field(default_factory=dict)
    uuid: bytes = b""
    driver_uuid: bytes = b""
    driver: str = ""


def _query_properties(
    instance: Instance, handle: Any, version: Version, extensions: frozenset[str]
) -> _Facts:
    facts = _Facts()
    with Arena() as arena:
        head = arena.struct("VkPhysicalDeviceProperties2")
        links = chain(arena, head, PROPERTIES, version, extensions)
        instance.calls.vkGetPhysicalDeviceProperties2(handle, head)
        facts.limits.update(_plain(head.properties.limits))
        for block, link in links:
            if block.struct == "VkPhysicalDeviceIDProperties":
                facts.uuid, facts.driver_uuid = bytes(link.deviceUUID), bytes(link.driverUUID)
            elif block.struct == "VkPhysicalDeviceDriverProperties":
                words = (binding.ffi.string(link.driverName), binding.ffi.string(link.driverInfo))
                facts.driver = " ".join(word.decode(errors="replace") for word in words if word)
            for name in block.names:
                value = getattr(link, name)
                truth = name.startswith("shader") or name.startswith("quad")
                facts.limits[RENAMED.get(name, name)] = bool(value) if truth else value
    for name in BOOLEANS:
        facts.limits[name] = bool(facts.limits[name])
    facts.limits["spirvVersionMajor"], facts.limits["spirvVersionMinor"] = spirv_version(version, extensions)
    return facts


def _plain(struct: Any) -> dict[str, Any]:
    """A struct of numbers and arrays of numbers as a dict."""
    values: dict[str, Any] = {}
    for name, member in binding.ffi.typeof(struct).fields:
        value = getattr(struct, name)
        values[name] = list(value) if member.type.kind == "array" else value
    return values


def _query_features(
    instance: Instance, handle: Any, version: Version, extensions: frozenset[str]
) -> dict[str, bool]:
    present = dict.fromkeys(all_feature_names(), False)
    with Arena() as arena:
        head = arena.struct("VkPhysicalDeviceFeatures2")
        links = chain(arena, head, FEATURES, version, extensions)
        instance.calls.vkGetPhysicalDeviceFeatures2(handle, head)
        for name in CORE_FEATURES:
            present[name] = bool(getattr(head.features, name))
        for block, link in links:
            for name, member in fields(block):
                present[name] = bool(getattr(link, member))
    return present
