"""The devices of a machine: their order, and what each can do."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Any

from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.features import (
    BOOLEANS,
    CORE_FEATURES,
    FEATURES,
    KNOWS_RECENT,
    PLAIN_EXTENSIONS,
    PROMOTED_EXTENSIONS,
    PROPERTIES,
    RENAMED,
    Version,
    all_feature_names,
    chain,
    fields,
    recent_extensions,
    spirv_version,
    wanted,
)
from vkqueue.gpu.instance import Instance, listing, split_version
from vkqueue.model import DeviceInfo

log = logging.getLogger("vkqueue.gpu")

# In the order in which devices are listed; VkPhysicalDeviceType -> name.
TYPES = {2: "discrete", 1: "integrated", 3: "virtual", 4: "cpu", 0: "other"}
_ORDER = list(TYPES)

QUEUE_GRAPHICS, QUEUE_COMPUTE = 0x1, 0x2
HEAP_DEVICE_LOCAL = 0x1


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


def _queue_family(instance: Instance, handle: Any) -> tuple[int, int] | None:
    """(index, valid timestamp bits) of the family to use: compute without graphics before compute with."""
    families = listing(instance.calls.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", handle)
    best = None
    for index, family in enumerate(families):
        if family.queueCount and family.queueFlags & QUEUE_COMPUTE:
            if not family.queueFlags & QUEUE_GRAPHICS:
                return index, family.timestampValidBits
            if best is None:
                best = (index, family.timestampValidBits)
    return best


def _describe(instance: Instance, index: int, handle: Any, core: Any, family: tuple[int, int]) -> PhysicalDevice:
    ffi = binding.ffi
    version = min(split_version(core.apiVersion)[:2], instance.version)
    found = listing(instance.calls.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", handle, ffi.NULL)
    extensions = frozenset(ffi.string(item.extensionName).decode() for item in found)
    if instance.validation and instance.layer_version < KNOWS_RECENT:
        extensions -= recent_extensions()
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
    info = info_of(physical, wanted(physical.present), physical.info.limits.get("maxPushDescriptors", 0))
    return dataclasses.replace(physical, info=info)


def info_of(physical: PhysicalDevice, enabled: dict[str, bool], max_push: int) -> DeviceInfo:
    """What `devices` reports of a device with these features enabled."""
    features = {name: enabled.get(name, False) for name in all_feature_names()}
    features["bufferDeviceAddress"] = False
    # Some capabilities of a module stand for an extension that has no features: report those by its name.
    for name in (*PLAIN_EXTENSIONS, *PROMOTED_EXTENSIONS):
        core = PROMOTED_EXTENSIONS.get(name)
        features[name] = name in physical.extensions or (core is not None and physical.version >= core)
    return dataclasses.replace(physical.info, features=features, max_push_descriptors=max_push)


@dataclass(slots=True)
class _Facts:
    limits: dict[str, Any] = field(default_factory=dict)
    uuid: bytes = b""
    driver_uuid: bytes = b""
    driver: str = ""


def _query_properties(instance: Instance, handle: Any, version: Version, extensions: frozenset[str]) -> _Facts:
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


def _query_features(instance: Instance, handle: Any, version: Version, extensions: frozenset[str]) -> dict[str, bool]:
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
