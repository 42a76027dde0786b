"""Which features and extensions the daemon uses, and what a device says of itself, by tables.

A struct is put into a pNext chain only when the device knows it: through its core version or an extension that it
lists. Where a core struct replaces those of extensions (`until`), only the core one is chained, as the
specification demands.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena

Version = tuple[int, int]

NEWEST: Version = (1, 3)
"""The newest version whose structs the binding has; newer devices are used as this one."""

KNOWS_RECENT = (1, 4, 320)
"""A validation layer of this version knows every struct below; older ones report the recent ones as unknown."""


@dataclass(frozen=True, slots=True)
class Block:
    """A feature or property struct.

    Attributes:
        core: version since which every device knows it, None for never.
        until: version from which another block takes its place.
        extension: a device that lists this extension knows it too.
        names: the fields of interest; for properties also (field, reported name).
        stype: for structs newer than the binding's headers, which are borrowed the shape of another one
            (`names` are then its VkBool32 fields in order).
    """

    struct: str
    names: tuple[str, ...]
    core: Version | None = None
    until: Version | None = None
    extension: str | None = None
    stype: int | None = None

    @property
    def recent(self) -> bool:
        """Whether validation layers before `KNOWS_RECENT` take the struct for an error."""
        return self.stype is not None or self.extension == "VK_KHR_cooperative_matrix"

    def known(self, version: Version, extensions: Container[str | None]) -> bool:
        """Whether a device of this version with these extensions knows the struct."""
        if self.until is not None and version >= self.until:
            return False
        return self.in_core(version) or self.extension in extensions

    def in_core(self, version: Version) -> bool:
        """Whether the struct needs no extension."""
        return self.core is not None and version >= self.core


_BOOLS = "VkPhysicalDeviceRobustness2FeaturesEXT"  # the shape of three VkBool32

CORE_FEATURES = (
    "robustBufferAccess",
    "shaderFloat64",
    "shaderInt64",
    "shaderInt16",
    "shaderUniformBufferArrayDynamicIndexing",
    "shaderStorageBufferArrayDynamicIndexing",
)

# bufferDeviceAddress is missing on purpose: an address reaches any memory of the device, whoever's it is.
FEATURES = (
    Block(
        "VkPhysicalDeviceVulkan11Features",
        (
            "storageBuffer16BitAccess",
            "uniformAndStorageBuffer16BitAccess",
            "storagePushConstant16",
            "storageInputOutput16",
            "variablePointersStorageBuffer",
            "variablePointers",
        ),
        core=(1, 2),
    ),
    Block(
        "VkPhysicalDeviceVulkan12Features",
        (
            "storageBuffer8BitAccess",
            "uniformAndStorageBuffer8BitAccess",
            "storagePushConstant8",
            "shaderBufferInt64Atomics",
            "shaderSharedInt64Atomics",
            "shaderFloat16",
            "shaderInt8",
            "shaderUniformBufferArrayNonUniformIndexing",
            "shaderStorageBufferArrayNonUniformIndexing",
            "runtimeDescriptorArray",
            "scalarBlockLayout",
            "uniformBufferStandardLayout",
            "shaderSubgroupExtendedTypes",
            "hostQueryReset",
            "timelineSemaphore",
            "vulkanMemoryModel",
            "vulkanMemoryModelDeviceScope",
            "vulkanMemoryModelAvailabilityVisibilityChains",
            "subgroupBroadcastDynamicId",
        ),
        core=(1, 2),
    ),
    Block(
        "VkPhysicalDeviceVulkan13Features",
        (
            "subgroupSizeControl",
            "computeFullSubgroups",
            "shaderDemoteToHelperInvocation",
            "synchronization2",
            "shaderZeroInitializeWorkgroupMemory",
            "shaderIntegerDotProduct",
            "maintenance4",
        ),
        core=(1, 3),
    ),
    Block(
        "VkPhysicalDevice16BitStorageFeatures",
        (
            "storageBuffer16BitAccess",
            "uniformAndStorageBuffer16BitAccess",
            "storagePushConstant16",
            "storageInputOutput16",
        ),
        core=(1, 1),
        until=(1, 2),
    ),
    Block(
        "VkPhysicalDeviceVariablePointersFeatures",
        ("variablePointersStorageBuffer", "variablePointers"),
        core=(1, 1),
        until=(1, 2),
    ),
    Block(
        "VkPhysicalDevice8BitStorageFeatures",
        ("storageBuffer8BitAccess", "uniformAndStorageBuffer8BitAccess", "storagePushConstant8"),
        until=(1, 2),
        extension="VK_KHR_8bit_storage",
    ),
    Block(
        "VkPhysicalDeviceShaderAtomicInt64Features",
        ("shaderBufferInt64Atomics", "shaderSharedInt64Atomics"),
        until=(1, 2),
        extension="VK_KHR_shader_atomic_int64",
    ),
    Block(
        "VkPhysicalDeviceShaderFloat16Int8Features",
        ("shaderFloat16", "shaderInt8"),
        until=(1, 2),
        extension="VK_KHR_shader_float16_int8",
    ),
    Block(
        "VkPhysicalDeviceScalarBlockLayoutFeatures",
        ("scalarBlockLayout",),
        until=(1, 2),
        extension="VK_EXT_scalar_block_layout",
    ),
    Block(
        "VkPhysicalDeviceUniformBufferStandardLayoutFeatures",
        ("uniformBufferStandardLayout",),
        until=(1, 2),
        extension="VK_KHR_uniform_buffer_standard_layout",
    ),
    Block(
        "VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures",
        ("shaderSubgroupExtendedTypes",),
        until=(1, 2),
        extension="VK_KHR_shader_subgroup_extended_types",
    ),
    Block(
        "VkPhysicalDeviceHostQueryResetFeatures",
        ("hostQueryReset",),
        until=(1, 2),
        extension="VK_EXT_host_query_reset",
    ),
    Block(
        "VkPhysicalDeviceTimelineSemaphoreFeatures",
        ("timelineSemaphore",),
        until=(1, 2),
        extension="VK_KHR_timeline_semaphore",
    ),
    Block(
        "VkPhysicalDeviceVulkanMemoryModelFeatures",
        (
            "vulkanMemoryModel",
            "vulkanMemoryModelDeviceScope",
            "vulkanMemoryModelAvailabilityVisibilityChains",
        ),
        until=(1, 2),
        extension="VK_KHR_vulkan_memory_model",
    ),
    Block(
        "VkPhysicalDeviceSubgroupSizeControlFeatures",
        ("subgroupSizeControl", "computeFullSubgroups"),
        until=(1, 3),
        extension="VK_EXT_subgroup_size_control",
    ),
    Block(
        "VkPhysicalDeviceSynchronization2Features",
        ("synchronization2",),
        until=(1, 3),
        extension="VK_KHR_synchronization2",
    ),
    Block(
        "VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures",
        ("shaderZeroInitializeWorkgroupMemory",),
        until=(1, 3),
        extension="VK_KHR_zero_initialize_workgroup_memory",
    ),
    Block(
        "VkPhysicalDeviceShaderIntegerDotProductFeatures",
        ("shaderIntegerDotProduct",),
        until=(1, 3),
        extension="VK_KHR_shader_integer_dot_product",
    ),
    Block(
        "VkPhysicalDeviceMaintenance4Features",
        ("maintenance4",),
        until=(1, 3),
        extension="VK_KHR_maintenance4",
    ),
    Block(
        "VkPhysicalDeviceRobustness2FeaturesEXT",
        ("robustBufferAccess2", "nullDescriptor"),
        extension="VK_EXT_robustness2",
    ),
    Block(
        "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT",
        (
            "shaderBufferFloat32Atomics",
            "shaderBufferFloat32AtomicAdd",
            "shaderBufferFloat64Atomics",
            "shaderBufferFloat64AtomicAdd",
            "shaderSharedFloat32Atomics",
            "shaderSharedFloat32AtomicAdd",
            "shaderSharedFloat64Atomics",
            "shaderSharedFloat64AtomicAdd",
        ),
        extension="VK_EXT_shader_atomic_float",
    ),
    Block(
        "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT",
        (
            "shaderBufferFloat16Atomics",
            "shaderBufferFloat16AtomicAdd",
            "shaderBufferFloat16AtomicMinMax",
            "shaderBufferFloat32AtomicMinMax",
            "shaderBufferFloat64AtomicMinMax",
            "shaderSharedFloat16Atomics",
            "shaderSharedFloat16AtomicAdd",
            "shaderSharedFloat16AtomicMinMax",
            "shaderSharedFloat32AtomicMinMax",
            "shaderSharedFloat64AtomicMinMax",
        ),
        extension="VK_EXT_shader_atomic_float2",
    ),
    Block(
        "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
        ("cooperativeMatrix", "cooperativeMatrixRobustBufferAccess"),
        extension="VK_KHR_cooperative_matrix",
    ),
    Block(
        "VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
        (
            "workgroupMemoryExplicitLayout",
            "workgroupMemoryExplicitLayoutScalarBlockLayout",
            "workgroupMemoryExplicitLayout8BitAccess",
            "workgroupMemoryExplicitLayout16BitAccess",
        ),
        extension="VK_KHR_workgroup_memory_explicit_layout",
    ),
    Block(
        "VkPhysicalDeviceShaderClockFeaturesKHR",
        ("shaderSubgroupClock", "shaderDeviceClock"),
        extension="VK_KHR_shader_clock",
    ),
    Block(
        "VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR",
        ("shaderSubgroupUniformControlFlow",),
        extension="VK_KHR_shader_subgroup_uniform_control_flow",
    ),
    Block(
        "VkPhysicalDeviceComputeShaderDerivativesFeaturesNV",
        ("computeDerivativeGroupQuads", "computeDerivativeGroupLinear"),
        extension="VK_NV_compute_shader_derivatives",
    ),
    Block(
        _BOOLS,
        ("shaderSubgroupRotate", "shaderSubgroupRotateClustered"),
        extension="VK_KHR_shader_subgroup_rotate",
        stype=1000416000,
    ),
    Block(
        _BOOLS,
        ("shaderMaximalReconvergence",),
        extension="VK_KHR_shader_maximal_reconvergence",
        stype=1000434000,
    ),
    Block(
        _BOOLS,
        ("shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix"),
        extension="VK_KHR_shader_bfloat16",
        stype=1000141000,
    ),
    Block(
        _BOOLS,
        ("shaderFloat8", "shaderFloat8CooperativeMatrix"),
        extension="VK_EXT_shader_float8",
        stype=1000567000,
    ),
    Block(_BOOLS, ("shaderQuadControl",), extension="VK_KHR_shader_quad_control", stype=1000235000),
    Block(
        _BOOLS,
        ("shaderRelaxedExtendedInstruction",),
        extension="VK_KHR_shader_relaxed_extended_instruction",
        stype=1000558000,
    ),
    Block(
        _BOOLS,
        ("shaderReplicatedComposites",),
        extension="VK_EXT_shader_replicated_composites",
        stype=1000564000,
    ),
    Block(
        _BOOLS,
        ("shaderFloat16VectorAtomics",),
        extension="VK_NV_shader_atomic_float16_vector",
        stype=1000563000,
    ),
    Block(
        "VkPhysicalDeviceShaderSMBuiltinsFeaturesNV",
        ("shaderSMBuiltins",),
        extension="VK_NV_shader_sm_builtins",
    ),
    Block(_BOOLS, ("shaderExpectAssume",), extension="VK_KHR_shader_expect_assume", stype=1000544000),
    Block(_BOOLS, ("shaderFloatControls2",), extension="VK_KHR_shader_float_controls2", stype=1000528000),
)

PLAIN_EXTENSIONS = (
    "VK_KHR_push_descriptor",
    "VK_KHR_external_memory_fd",
    "VK_EXT_external_memory_host",
    "VK_EXT_shader_subgroup_ballot",
    "VK_EXT_shader_subgroup_vote",
)
"""Used when present, without a feature struct."""
PROMOTED_EXTENSIONS: dict[str, Version] = {
    "VK_KHR_driver_properties": (1, 2),
    "VK_KHR_shader_float_controls": (1, 2),
    "VK_KHR_spirv_1_4": (1, 2),
    "VK_KHR_shader_non_semantic_info": (1, 3),
}
"""The same, needed only below the version that took them in."""

PROPERTIES = (
    Block("VkPhysicalDeviceIDProperties", (), core=(1, 1)),
    Block(
        "VkPhysicalDeviceSubgroupProperties",
        ("subgroupSize", "supportedStages", "supportedOperations", "quadOperationsInAllStages"),
        core=(1, 1),
    ),
    Block(
        "VkPhysicalDeviceMaintenance3Properties",
        ("maxPerSetDescriptors", "maxMemoryAllocationSize"),
        core=(1, 1),
    ),
    Block("VkPhysicalDeviceDriverProperties", (), core=(1, 2), extension="VK_KHR_driver_properties"),
    Block(
        "VkPhysicalDeviceFloatControlsProperties",
        tuple(
            f"shader{what}Float{bits}"
            for what in (
                "SignedZeroInfNanPreserve",
                "DenormPreserve",
                "DenormFlushToZero",
                "RoundingModeRTE",
                "RoundingModeRTZ",
            )
            for bits in (16, 32, 64)
        ),
        core=(1, 2),
        extension="VK_KHR_shader_float_controls",
    ),
    Block(
        "VkPhysicalDeviceSubgroupSizeControlProperties",
        ("minSubgroupSize", "maxSubgroupSize", "maxComputeWorkgroupSubgroups", "requiredSubgroupSizeStages"),
        core=(1, 3),
        extension="VK_EXT_subgroup_size_control",
    ),
    Block(
        "VkPhysicalDeviceMaintenance4Properties",
        ("maxBufferSize",),
        core=(1, 3),
        extension="VK_KHR_maintenance4",
    ),
    Block(
        "VkPhysicalDevicePushDescriptorPropertiesKHR",
        ("maxPushDescriptors",),
        extension="VK_KHR_push_descriptor",
    ),
    Block(
        "VkPhysicalDeviceRobustness2PropertiesEXT",
        ("robustStorageBufferAccessSizeAlignment", "robustUniformBufferAccessSizeAlignment"),
        extension="VK_EXT_robustness2",
    ),
    Block(
        "VkPhysicalDeviceExternalMemoryHostPropertiesEXT",
        ("minImportedHostPointerAlignment",),
        extension="VK_EXT_external_memory_host",
    ),
)
# The names under which VkPhysicalDeviceVulkan11Properties has them.
RENAMED = {
    "supportedStages": "subgroupSupportedStages",
    "supportedOperations": "subgroupSupportedOperations",
    "quadOperationsInAllStages": "subgroupQuadOperationsInAllStages",
}
BOOLEANS = ("strictLines", "standardSampleLocations", "timestampComputeAndGraphics")

SPIRV_OF_VERSION: dict[Version, Version] = {(1, 1): (1, 3), (1, 2): (1, 5), (1, 3): (1, 6)}


def spirv_version(version: Version, extensions: Container[str]) -> Version:
    """The newest SPIR-V that a device of this Vulkan version takes."""
    if version == (1, 1) and "VK_KHR_spirv_1_4" in extensions:
        return (1, 4)
    return SPIRV_OF_VERSION[version]


def used_extensions(version: Version, available: frozenset[str]) -> tuple[str, ...]:
    """What to enable of the extensions that a device lists."""
    names = [name for name in PLAIN_EXTENSIONS if name in available]
    names += [name for name, core in PROMOTED_EXTENSIONS.items() if name in available and version < core]
    for block in FEATURES:
        if block.known(version, available) and not block.in_core(version):
            assert block.extension is not None
            names.append(block.extension)
    return tuple(names)


def recent_extensions() -> frozenset[str]:
    """Those that an old validation layer must not see."""
    return frozenset(block.extension for block in FEATURES if block.recent and block.extension)


def chain(
    arena: Arena, head: Any, blocks: Iterable[Block], version: Version, available: frozenset[str]
) -> list[tuple[Block, Any]]:
    """Chain to `head` every block that the device knows; returns them with their structs."""
    links = []
    for block in blocks:
        if block.known(version, available):
            link = arena.struct(block.struct)
            if block.stype is not None:
                link.sType = block.stype
            links.append((block, link))
    arena.chain(head, *(link for _, link in links))
    return links


def fields(block: Block) -> list[tuple[str, str]]:
    """(name, field of the struct that holds it) for each name of a feature block."""
    if block.stype is None:
        return [(name, name) for name in block.names]
    shape = [name for name, _ in binding.ffi.typeof(block.struct).fields if name not in ("sType", "pNext")]
    return list(zip(block.names, shape, strict=False))


def wanted(present: dict[str, bool], *, robustness2: bool = True, isolate: bool = True) -> dict[str, bool]:
    """Which of the features that are present get enabled.

    Args:
        robustness2: False leaves accesses bounded by buffers only, to try that path on a device that has it.
        isolate: leave out what would reach beyond the bounds of buffers.
    """
    chosen = dict(present)
    # Without it, loads and stores of matrices are not bounded and reach other clients' memory (NVIDIA 580).
    if isolate and not present.get("cooperativeMatrixRobustBufferAccess"):
        for name in chosen:
            if name.lower().endswith("cooperativematrix"):
                chosen[name] = False
    if not robustness2:
        chosen["robustBufferAccess2"] = chosen["nullDescriptor"] = False
    return chosen


def all_feature_names() -> list[str]:
    """Every feature name of the tables, once."""
    return list(dict.fromkeys([*CORE_FEATURES, *(name for block in FEATURES for name in block.names)]))
