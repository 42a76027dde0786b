"""Whether a device can run a kernel: capabilities, extensions, SPIR-V version and limits, by tables.

The tables follow the Vulkan specification ("Capabilities and SPIR-V version"), in Vulkan's own names. One departure:
StorageInputOutput16 is not asked for, since a compute kernel has no 16-bit inputs and outputs of its own, and
compilers (naga) declare it with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkqueue.model import STORAGE, UNIFORM

_SUBGROUP_BITS = {
    "BASIC": 1, "VOTE": 2, "ARITHMETIC": 4, "BALLOT": 8, "SHUFFLE": 16, "SHUFFLE_RELATIVE": 32, "CLUSTERED": 64,
    "QUAD": 128, "PARTITIONED": 256, "ROTATE": 512, "ROTATE_CLUSTERED": 1024,
}  # fmt: skip

_CORE = frozenset(
    "Matrix Shader InputAttachment Sampled1D Image1D SampledBuffer ImageBuffer ImageQuery DerivativeControl "
    "StorageImageExtendedFormats StorageInputOutput16".split()
)

# Any of the alternatives will do: a feature, "subgroup:OPERATION", "property:NAME", or "api:VERSION".
CAPABILITIES: dict[str, tuple[str, ...]] = {
    "Float64": ("shaderFloat64",),
    "Int64": ("shaderInt64",),
    "Int16": ("shaderInt16",),
    "Int8": ("shaderInt8",),
    "Float16": ("shaderFloat16",),
    "Int64Atomics": ("shaderBufferInt64Atomics", "shaderSharedInt64Atomics", "shaderImageInt64Atomics"),
    "Int64ImageEXT": ("shaderImageInt64Atomics",),
    "AtomicFloat16VectorNV": ("shaderFloat16VectorAtomics",),
    "StorageBuffer16BitAccess": ("storageBuffer16BitAccess",),
    "UniformAndStorageBuffer16BitAccess": ("uniformAndStorageBuffer16BitAccess",),
    "StoragePushConstant16": ("storagePushConstant16",),
    "StorageBuffer8BitAccess": ("storageBuffer8BitAccess",),
    "UniformAndStorageBuffer8BitAccess": ("uniformAndStorageBuffer8BitAccess",),
    "StoragePushConstant8": ("storagePushConstant8",),
    "UniformBufferArrayDynamicIndexing": ("shaderUniformBufferArrayDynamicIndexing",),
    "SampledImageArrayDynamicIndexing": ("shaderSampledImageArrayDynamicIndexing",),
    "StorageBufferArrayDynamicIndexing": ("shaderStorageBufferArrayDynamicIndexing",),
    "StorageImageArrayDynamicIndexing": ("shaderStorageImageArrayDynamicIndexing",),
    "ShaderNonUniform": ("api:1.2", "shaderStorageBufferArrayNonUniformIndexing"),
    "UniformBufferArrayNonUniformIndexing": ("shaderUniformBufferArrayNonUniformIndexing",),
    "StorageBufferArrayNonUniformIndexing": ("shaderStorageBufferArrayNonUniformIndexing",),
    "RuntimeDescriptorArray": ("runtimeDescriptorArray",),
    "VariablePointersStorageBuffer": ("variablePointersStorageBuffer",),
    "VariablePointers": ("variablePointers",),
    "VulkanMemoryModel": ("vulkanMemoryModel",),
    "VulkanMemoryModelDeviceScope": ("vulkanMemoryModelDeviceScope",),
    "DeviceGroup": ("api:1.1",),
    "DrawParameters": ("shaderDrawParameters",),
    "DemoteToHelperInvocation": ("shaderDemoteToHelperInvocation",),
    "ImageGatherExtended": ("shaderImageGatherExtended",),
    "StorageImageMultisample": ("shaderStorageImageMultisample",),
    "ImageMSArray": ("shaderStorageImageMultisample",),
    "ImageCubeArray": ("imageCubeArray",),
    "SampledCubeArray": ("imageCubeArray",),
    "SparseResidency": ("shaderResourceResidency",),
    "MinLod": ("shaderResourceMinLod",),
    "StorageImageReadWithoutFormat": ("api:1.3", "shaderStorageImageReadWithoutFormat"),
    "StorageImageWriteWithoutFormat": ("api:1.3", "shaderStorageImageWriteWithoutFormat"),
    "DotProduct": ("shaderIntegerDotProduct",),
    "DotProductInputAll": ("shaderIntegerDotProduct",),
    "DotProductInput4x8Bit": ("shaderIntegerDotProduct",),
    "DotProductInput4x8BitPacked": ("shaderIntegerDotProduct",),
    "WorkgroupMemoryExplicitLayoutKHR": ("workgroupMemoryExplicitLayout",),
    "WorkgroupMemoryExplicitLayout8BitAccessKHR": ("workgroupMemoryExplicitLayout8BitAccess",),
    "WorkgroupMemoryExplicitLayout16BitAccessKHR": ("workgroupMemoryExplicitLayout16BitAccess",),
    "ShaderClockKHR": ("shaderSubgroupClock", "shaderDeviceClock"),
    "ExpectAssumeKHR": ("shaderExpectAssume",),
    "FloatControls2": ("shaderFloatControls2",),
    "CooperativeMatrixKHR": ("cooperativeMatrix",),
    "CooperativeMatrixNV": ("cooperativeMatrix",),
    "BFloat16TypeKHR": ("shaderBFloat16Type",),
    "BFloat16DotProductKHR": ("shaderBFloat16DotProduct",),
    "BFloat16CooperativeMatrixKHR": ("shaderBFloat16CooperativeMatrix",),
    "Float8EXT": ("shaderFloat8",),
    "Float8CooperativeMatrixEXT": ("shaderFloat8CooperativeMatrix",),
    "QuadControlKHR": ("shaderQuadControl",),
    "ReplicatedCompositesEXT": ("shaderReplicatedComposites",),
    "ComputeDerivativeGroupQuadsKHR": ("computeDerivativeGroupQuads",),
    "ComputeDerivativeGroupLinearKHR": ("computeDerivativeGroupLinear",),
    "ShaderSMBuiltinsNV": ("shaderSMBuiltins",),
    "GroupNonUniformRotateKHR": ("shaderSubgroupRotate",),
    "SubgroupBallotKHR": ("subgroup:BALLOT",),
    "SubgroupVoteKHR": ("subgroup:VOTE",),
    "GroupNonUniform": ("subgroup:BASIC",),
    "GroupNonUniformVote": ("subgroup:VOTE",),
    "GroupNonUniformArithmetic": ("subgroup:ARITHMETIC",),
    "GroupNonUniformBallot": ("subgroup:BALLOT",),
    "GroupNonUniformShuffle": ("subgroup:SHUFFLE",),
    "GroupNonUniformShuffleRelative": ("subgroup:SHUFFLE_RELATIVE",),
    "GroupNonUniformClustered": ("subgroup:CLUSTERED",),
    "GroupNonUniformQuad": ("subgroup:QUAD",),
    "GroupNonUniformPartitionedNV": ("subgroup:PARTITIONED",),
}
for _what in ("Add", "MinMax"):
    for _bits in (16, 32, 64):
        CAPABILITIES[f"AtomicFloat{_bits}{_what}EXT"] = (
            f"shaderBufferFloat{_bits}Atomic{_what}",
            f"shaderSharedFloat{_bits}Atomic{_what}",
        )
for _what in ("DenormPreserve", "DenormFlushToZero", "SignedZeroInfNanPreserve", "RoundingModeRTE", "RoundingModeRTZ"):
    CAPABILITIES[_what] = tuple(f"property:shader{_what}Float{bits}" for bits in (16, 32, 64))

_NEVER = {
    "PhysicalStorageBufferAddresses": "device addresses reach any memory of the device; bind buffers instead",
    "RayQueryKHR": "the daemon binds no acceleration structures",
    "Kernel": "the module is written for OpenCL",
    "Linkage": "a module has to be linked before it is loaded",
}

# Extensions that need no capability, and so what else.
_EXTENSION_FEATURES = {
    "SPV_KHR_subgroup_uniform_control_flow": "shaderSubgroupUniformControlFlow",
    "SPV_KHR_maximal_reconvergence": "shaderMaximalReconvergence",
    "SPV_KHR_relaxed_extended_instruction": "shaderRelaxedExtendedInstruction",
}
# Extensions whose instructions and types need a capability, which is checked, or that only add decorations and
# debug information.
_EXTENSIONS = frozenset(
    "SPV_" + name
    for name in (
        "KHR_storage_buffer_storage_class KHR_16bit_storage KHR_8bit_storage KHR_variable_pointers "
        "KHR_vulkan_memory_model KHR_float_controls KHR_float_controls2 KHR_non_semantic_info KHR_device_group "
        "KHR_no_integer_wrap_decoration KHR_physical_storage_buffer KHR_shader_draw_parameters KHR_multiview "
        "KHR_terminate_invocation KHR_expect_assume KHR_integer_dot_product KHR_subgroup_vote KHR_shader_ballot "
        "KHR_subgroup_rotate KHR_workgroup_memory_explicit_layout KHR_shader_clock KHR_shader_atomic_counter_ops "
        "KHR_compute_shader_derivatives KHR_cooperative_matrix KHR_quad_control KHR_ray_query KHR_ray_tracing "
        "KHR_ray_cull_mask KHR_ray_tracing_position_fetch KHR_bfloat16 KHR_untyped_pointers KHR_linkonce_odr "
        "KHR_fragment_shader_barycentric KHR_fragment_shading_rate KHR_post_depth_coverage KHR_fma "
        "KHR_bit_instructions KHR_uniform_group_instructions EXT_descriptor_indexing EXT_demote_to_helper_invocation "
        "EXT_shader_atomic_float_add EXT_shader_atomic_float_min_max EXT_shader_atomic_float16_add "
        "EXT_shader_image_int64 EXT_physical_storage_buffer EXT_replicated_composites EXT_float8 EXT_mesh_shader "
        "EXT_shader_viewport_index_layer EXT_shader_stencil_export EXT_fragment_shader_interlock "
        "EXT_fragment_fully_covered EXT_fragment_invocation_density EXT_opacity_micromap EXT_shader_tile_image "
        "GOOGLE_decorate_string GOOGLE_hlsl_functionality1 GOOGLE_user_type NV_cooperative_matrix "
        "NV_cooperative_matrix2 NV_cooperative_vector NV_compute_shader_derivatives NV_raw_access_chains "
        "NV_shader_atomic_fp16_vector NV_shader_sm_builtins NV_shader_subgroup_partitioned NV_tensor_addressing"
    ).split()
)  # fmt: skip

FEATURES: frozenset[str] = frozenset(
    {
        alternative
        for alternatives in CAPABILITIES.values()
        for alternative in alternatives
        if ":" not in alternative
    }
    | set(_EXTENSION_FEATURES.values())
    | {"scalarBlockLayout", "uniformBufferStandardLayout", "maintenance4"}
)
"""Device features that are ever asked for here."""

_NEWEST_SPIRV = {(1, 0): (1, 0), (1, 1): (1, 3), (1, 2): (1, 5)}
"""Vulkan version to SPIR-V version; later ones take 1.6."""


def unsupported(
    kernel: Mapping[str, Any],
    limits: Mapping[str, Any],
    features: Mapping[str, Any],
    *,
    api_version: str,
    strict: bool = False,
    specializable: bool = False,
) -> str | None:
    """Why a device cannot run a kernel, or None when it can.

    Args:
        kernel: as `reflect.analyse` gives it, with `needs`.
        limits, features: the device's, by Vulkan's names; a limit that is missing is not checked.
        api_version: such as "1.3.230".
        strict: also refuse arrays of descriptors that are indexed by what is not constant; robustBufferAccess
            does not bound the index.
        specializable: whether specialization values may still come, so that a work-group size or amount of shared
            memory over the limit is not judged where a specialization constant decides it.

    Returns:
        One sentence that names the capability, feature or limit, with both numbers where there are two.
    """
    version = tuple(int(part) for part in api_version.split(".")[:2])
    device = _Device(limits, features, (version[0], version[1]))
    needs = kernel["needs"]
    if "reason" in needs:  # of a module of several shaders, one that cannot be used at all
        return str(needs["reason"])
    for name in kernel["capabilities"]:
        if name in _NEVER:
            return f"capability {name} is not supported: {_NEVER[name]}"
    if needs["refuse"]:
        return f"the kernel uses {needs['refuse'][0]}"
    if strict and needs["dynamic_descriptors"]:
        return (
            "an array of descriptors is indexed by a value that is not constant, which strict isolation does not "
            "allow; index with constants, or use one buffer"
        )
    return (
        _spirv_version(needs, device)
        or _capabilities(kernel, device)
        or _extensions(needs, device)
        or _work_group(kernel, device, specializable)
        or _bindings(kernel, device)
    )


class _Device:
    def __init__(self, limits: Mapping[str, Any], features: Mapping[str, Any], version: tuple[int, int]) -> None:
        self.limits = limits
        self.features = features
        self.version = version

    def has(self, alternative: str) -> bool:
        kind, _, name = alternative.rpartition(":")
        if kind == "subgroup":
            return bool(int(self.limits.get("subgroupSupportedOperations", 0)) & _SUBGROUP_BITS[name])
        if kind == "property":
            return bool(self.limits.get(name))
        if kind == "api":
            major, minor = name.split(".")
            return self.version >= (int(major), int(minor))
        return bool(self.features.get(name))


def _describe(alternatives: tuple[str, ...]) -> str:
    words = []
    for alternative in alternatives:
        kind, _, name = alternative.rpartition(":")
        words.append({"subgroup": f"subgroup operations {name}", "api": f"Vulkan {name}"}.get(kind, name))
    return " or ".join(words)


def _spirv_version(needs: Mapping[str, Any], device: _Device) -> str | None:
    major = device.limits.get("spirvVersionMajor")
    if major is not None:
        newest = (int(major), int(device.limits.get("spirvVersionMinor", 0)))
    else:
        newest = _NEWEST_SPIRV.get(device.version, (1, 6))
    module = tuple(needs["spirv_version"])
    if module <= newest:
        return None
    return (
        f"the module is SPIR-V {module[0]}.{module[1]}, the device takes up to {newest[0]}.{newest[1]} (Vulkan "
        f"{device.version[0]}.{device.version[1]}); compile for an older target environment"
    )


def _capabilities(kernel: Mapping[str, Any], device: _Device) -> str | None:
    for name in kernel["capabilities"]:
        if name in _CORE:
            continue
        alternatives = CAPABILITIES.get(name)
        if alternatives is None:
            return f"capability {name} is not supported: no Vulkan feature for compute kernels is known for it"
        if not any(map(device.has, alternatives)):
            return f"capability {name} needs {_describe(alternatives)}, which the device does not have"
    for feature in kernel["needs"]["features"]:
        if not device.has(feature):
            return f"{_REASONS.get(feature, 'the module')} needs {feature}, which the device does not have"
    return None


_REASONS = {
    "scalarBlockLayout": "the layout of a buffer's block",
    "uniformBufferStandardLayout": "the layout of a uniform block",
    "maintenance4": "a work-group size by LocalSizeId",
}


def _extensions(needs: Mapping[str, Any], device: _Device) -> str | None:
    for name in needs["extensions"]:
        feature = _EXTENSION_FEATURES.get(name)
        if feature is not None:
            if not device.has(feature):
                return f"extension {name} needs {feature}, which the device does not have"
        elif name not in _EXTENSIONS:
            return f"extension {name} is not supported"
    return None


def _over(device: _Device, limit: str, value: int, what: str, remedy: str) -> str | None:
    """The text for a value over a limit."""
    bound = device.limits.get(limit)
    if bound is None or value <= bound:
        return None
    return f"{what}, the device's {limit} is {bound}; {remedy}"


def _work_group(kernel: Mapping[str, Any], device: _Device, specializable: bool) -> str | None:
    needs = kernel["needs"]
    x, y, z = kernel["local_size"]
    if not (specializable and needs["local_size_spec"]):
        remedy = "use a smaller work group"
        if needs["local_size_spec"]:
            remedy += " (its specialization constants set it)"
        text = _over(
            device, "maxComputeWorkGroupInvocations", x * y * z,
            f"the work group of {x} x {y} x {z} has {x * y * z} invocations", remedy,
        )  # fmt: skip
        if text:
            return text
        for axis, size, most in zip("xyz", (x, y, z), device.limits.get("maxComputeWorkGroupSize", ()), strict=False):
            if size > most:
                return f"the work group has {size} in {axis}, the device's maxComputeWorkGroupSize is {most}; {remedy}"
    if specializable and needs["shared_spec"]:
        return None
    shared = needs["shared_bytes"]
    return _over(
        device, "maxComputeSharedMemorySize", shared,
        f"the kernel uses {shared} bytes of shared memory", "use smaller tiles",
    )  # fmt: skip


def _scalars(kernel: Mapping[str, Any], device: _Device) -> str | None:
    size = kernel["push_constant_bytes"]
    if any(scalar["where"] == UNIFORM for scalar in kernel["scalars"]):
        return _over(
            device, "maxUniformBufferRange", size,
            f"the kernel takes {size} bytes of scalars in a uniform buffer", "pass some of them in a storage buffer",
        )  # fmt: skip
    return _over(
        device, "maxPushConstantsSize", size,
        f"the kernel takes {size} bytes of push constants", "pass some of the scalars in a uniform buffer",
    )  # fmt: skip


def _bindings(kernel: Mapping[str, Any], device: _Device) -> str | None:
    counts = kernel["needs"]["limits"]
    text = _scalars(kernel, device) or _over(
        device, "maxBoundDescriptorSets", counts["sets"],
        f"the kernel uses set {counts['sets'] - 1}, which needs {counts['sets']} sets", "number the sets from 0",
    )  # fmt: skip
    for kind, plural in (("storage", "StorageBuffers"), ("uniform", "UniformBuffers")):
        for limit in (f"maxPerStageDescriptor{plural}", f"maxDescriptorSet{plural}"):
            count = counts[f"{kind}_buffers"]
            what = f"the kernel uses {count} {kind} buffers"
            text = text or _over(device, limit, count, what, "join some of them")
    text = text or _over(
        device, "maxPerStageResources", counts["storage_buffers"] + counts["uniform_buffers"],
        f"the kernel uses {counts['storage_buffers'] + counts['uniform_buffers']} buffers", "join some of them",
    )  # fmt: skip
    for binding in kernel["bindings"]:
        limit = {STORAGE: "maxStorageBufferRange", UNIFORM: "maxUniformBufferRange"}[binding["kind"]]
        text = text or _over(
            device, limit, binding["size"],
            f"the {binding['kind']} buffer at set {binding['set']}, binding {binding['binding']} has a fixed part of "
            f"{binding['size']} bytes",
            "make its arrays smaller" + (", or use a storage buffer" if binding["kind"] == UNIFORM else ""),
        )  # fmt: skip
    return text
