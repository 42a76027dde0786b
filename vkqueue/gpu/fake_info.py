"""What the fake device says of itself: a device that can do all the daemon knows of, with lavapipe's limits."""

from __future__ import annotations

import dataclasses
from typing import Any

from vkqueue.model import DeviceInfo

_LIMITS: dict[str, Any] = {
    "maxUniformBufferRange": 65536,
    "maxStorageBufferRange": 128 * 2**20,
    "maxPushConstantsSize": 256,
    "maxMemoryAllocationCount": 4096,
    "maxBoundDescriptorSets": 8,
    "maxPerStageDescriptorUniformBuffers": 15,
    "maxPerStageDescriptorStorageBuffers": 32,
    "maxPerStageResources": 128,
    "maxDescriptorSetUniformBuffers": 256,
    "maxDescriptorSetStorageBuffers": 256,
    "maxPerSetDescriptors": 1024,
    "maxComputeSharedMemorySize": 49152,
    "maxComputeWorkGroupCount": [65535, 65535, 65535],
    "maxComputeWorkGroupInvocations": 1024,
    "maxComputeWorkGroupSize": [1024, 1024, 1024],
    "minMemoryMapAlignment": 64,
    "minUniformBufferOffsetAlignment": 16,
    "minStorageBufferOffsetAlignment": 16,
    "optimalBufferCopyOffsetAlignment": 128,
    "nonCoherentAtomSize": 64,
    "timestampPeriod": 1.0,
    "timestampComputeAndGraphics": True,
    "maxPushDescriptors": 32,
    "maxBufferSize": 2**31,
    "maxMemoryAllocationSize": 2**31,
    "subgroupSize": 8,
    "minSubgroupSize": 8,
    "maxSubgroupSize": 8,
    "maxComputeWorkgroupSubgroups": 128,
    "requiredSubgroupSizeStages": 0x20,
    "subgroupSupportedOperations": 0xFF,
    "subgroupSupportedStages": 0x20,
    "subgroupQuadOperationsInAllStages": True,
    "spirvVersionMajor": 1,
    "spirvVersionMinor": 6,
    "robustStorageBufferAccessSizeAlignment": 1,
    "robustUniformBufferAccessSizeAlignment": 1,
} | {
    f"shader{what}Float{bits}": True
    for what in (
        "SignedZeroInfNanPreserve", "DenormPreserve", "DenormFlushToZero", "RoundingModeRTE", "RoundingModeRTZ",
    )
    for bits in (16, 32, 64)
}  # fmt: skip

_FEATURES = """
robustBufferAccess robustBufferAccess2 nullDescriptor
shaderFloat64 shaderInt64 shaderInt16 shaderFloat16 shaderInt8
shaderUniformBufferArrayDynamicIndexing shaderStorageBufferArrayDynamicIndexing
shaderUniformBufferArrayNonUniformIndexing shaderStorageBufferArrayNonUniformIndexing runtimeDescriptorArray
storageBuffer16BitAccess uniformAndStorageBuffer16BitAccess storagePushConstant16
storageBuffer8BitAccess uniformAndStorageBuffer8BitAccess storagePushConstant8
variablePointersStorageBuffer variablePointers
shaderBufferInt64Atomics shaderSharedInt64Atomics
shaderBufferFloat16Atomics shaderBufferFloat16AtomicAdd shaderBufferFloat16AtomicMinMax
shaderBufferFloat32Atomics shaderBufferFloat32AtomicAdd shaderBufferFloat32AtomicMinMax
shaderBufferFloat64Atomics shaderBufferFloat64AtomicAdd shaderBufferFloat64AtomicMinMax
shaderSharedFloat16Atomics shaderSharedFloat16AtomicAdd shaderSharedFloat16AtomicMinMax
shaderSharedFloat32Atomics shaderSharedFloat32AtomicAdd shaderSharedFloat32AtomicMinMax
shaderSharedFloat64Atomics shaderSharedFloat64AtomicAdd shaderSharedFloat64AtomicMinMax
scalarBlockLayout uniformBufferStandardLayout shaderSubgroupExtendedTypes hostQueryReset timelineSemaphore
vulkanMemoryModel vulkanMemoryModelDeviceScope vulkanMemoryModelAvailabilityVisibilityChains
subgroupBroadcastDynamicId subgroupSizeControl computeFullSubgroups synchronization2
shaderZeroInitializeWorkgroupMemory shaderIntegerDotProduct maintenance4
cooperativeMatrix cooperativeMatrixRobustBufferAccess
workgroupMemoryExplicitLayout workgroupMemoryExplicitLayoutScalarBlockLayout
workgroupMemoryExplicitLayout8BitAccess workgroupMemoryExplicitLayout16BitAccess
shaderSubgroupClock shaderDeviceClock shaderSubgroupUniformControlFlow
computeDerivativeGroupQuads computeDerivativeGroupLinear
shaderSubgroupRotate shaderSubgroupRotateClustered shaderMaximalReconvergence shaderExpectAssume
shaderFloatControls2
""".split()


def fake_info(**changes: Any) -> DeviceInfo:
    """The fake's DeviceInfo, with `changes` to its fields; each call gives limits and features of its own."""
    info = DeviceInfo(
        index=0,
        uuid="66616b65" * 4,
        name="fake",
        type="cpu",
        driver="vkqueue fake",
        api_version="1.3.0",
        memory_bytes=2**30,
        limits=dict(_LIMITS),
        features=dict.fromkeys(_FEATURES, True),
        max_push_descriptors=32,
        direct_write_max=65536,
        direct_read_max=65536,
        timestamps=True,
    )
    return dataclasses.replace(info, **changes)
