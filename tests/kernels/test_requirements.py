"""A kernel is refused exactly when the device lacks something it needs, and the text says what."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from support.cases import CORPUS, SUBGROUP_BITS, TVM_CORPUS, by_name

from vkqueue.kernels.grammar import ENUMS
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.requirements import CAPABILITIES, FEATURES, unsupported

# The smallest that Vulkan allows where the corpus does not need more.
LIMITS: dict[str, Any] = {
    "maxComputeWorkGroupInvocations": 1024,
    "maxComputeWorkGroupSize": [1024, 1024, 64],
    "maxComputeSharedMemorySize": 16384,
    "maxPushConstantsSize": 128,
    "maxBoundDescriptorSets": 4,
    "maxPerStageDescriptorStorageBuffers": 8,
    "maxPerStageDescriptorUniformBuffers": 12,
    "maxDescriptorSetStorageBuffers": 24,
    "maxDescriptorSetUniformBuffers": 72,
    "maxPerStageResources": 128,
    "maxUniformBufferRange": 16384,
    "maxStorageBufferRange": 1 << 27,
    "subgroupSupportedOperations": 0xFF,
}
ALL_FEATURES = dict.fromkeys(FEATURES, True)
RUNNABLE = [case for case in (*CORPUS, *TVM_CORPUS) if case.runs]


@cache
def kernel_of(name: str) -> dict[str, Any]:
    case = by_name(name)
    kernel: dict[str, Any] = analyse(case.spirv)["kernels"][case.entry]
    return kernel


def reason(name: str, *, limits=LIMITS, features=ALL_FEATURES, api_version="1.3.0", **options) -> str | None:
    return unsupported(kernel_of(name), limits, features, api_version=api_version, **options)


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_a_device_with_everything_runs_it(case):
    assert reason(case.name) is None


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_each_need_is_a_need(case):
    """Take away one thing after the other: refused, and named, if and only if the case needs it."""
    for feature in FEATURES:
        text = reason(case.name, features={**ALL_FEATURES, feature: False})
        if feature in case.needs:
            assert text is not None and feature in text
        else:
            assert text is None
    for operation, bit in SUBGROUP_BITS.items():
        text = reason(case.name, limits={**LIMITS, "subgroupSupportedOperations": 0xFF & ~bit})
        assert (text is not None) == (f"subgroup:{operation}" in case.needs)
        assert text is None or operation in text


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_the_version_is_needed_where_the_module_says_so(case):
    """TVM's cases with a 1.0 header ask for 1.1 for an extension that a device of 1.0 can have too."""
    wanted = next((need for need in case.needs if need.startswith("apiVersion")), "apiVersion>=1.0")
    if case.reflection["spirv_version"] == "1.0":
        wanted = "apiVersion>=1.0"
    for version in ("1.0", "1.1", "1.2", "1.3", "1.4"):
        text = reason(case.name, api_version=f"{version}.230")
        assert (text is None) == (f"apiVersion>={version}" >= wanted)
        if text is not None:
            assert case.reflection["spirv_version"] in text and version in text


def test_the_versions_a_device_reports_go_before_its_api_version():
    """SPIR-V 1.4 on Vulkan 1.1 by extension."""
    limits = {**LIMITS, "spirvVersionMajor": 1, "spirvVersionMinor": 4}
    assert reason("tint_axpy", limits=limits, api_version="1.1.0") is None
    assert "1.5" in str(reason("slang_scale_push", limits=limits, api_version="1.1.0"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("image_storage", "an image .set 0, binding 0"),
        ("refuse_buffer_reference", "PhysicalStorageBufferAddresses.*device addresses"),
        ("refuse_ray_query", "RayQueryKHR.*acceleration structure"),
        ("refuse_runtime_desc_array", "unsized array of descriptors .*capability RuntimeDescriptorArray"),
        ("refuse_push_too_big", "1024 bytes of push constants.*maxPushConstantsSize is 128.*uniform buffer"),
        ("refuse_workgroup_too_big", r"maxComputeWorkGroupInvocations is 1024; use a smaller work group"),
    ],
)
def test_what_is_refused(name, words):
    assert re.search(words, str(reason(name)))


@pytest.mark.parametrize(
    ("name", "limit", "value", "words"),
    [
        ("glsl_matmul_tiled", "maxComputeSharedMemorySize", 511, ("512", "511")),
        ("glsl_eight_buffers", "maxPerStageDescriptorStorageBuffers", 7, ("8 storage buffers", "7")),
        ("naga_axpy", "maxPerStageDescriptorUniformBuffers", 0, ("1 uniform buffers", "0")),
        ("zig_scale", "maxBoundDescriptorSets", 1, ("set 1", "1")),
        ("zig_scale", "maxStorageBufferRange", 255, ("256", "255")),
        ("tint_axpy", "maxUniformBufferRange", 15, ("16", "15", "storage buffer")),
        ("glsl_push_mixed", "maxPushConstantsSize", 71, ("72", "71")),
        ("glsl_desc_array", "maxPerStageDescriptorStorageBuffers", 4, ("5 storage buffers", "4")),
        ("glsl_axpy_10", "maxComputeWorkGroupSize", [32, 32, 32], ("64 in x", "32")),
    ],
)
def test_limits_are_named_with_both_numbers(name, limit, value, words):
    text = str(reason(name, limits={**LIMITS, limit: value}))
    assert limit in text
    assert all(word in text for word in words)


def test_what_a_specialization_can_change_is_not_judged_before_it():
    case = by_name("glsl_spec_constants")
    kernel = analyse(case.spirv, {10: 64, 11: 32})["kernels"][case.entry]
    assert kernel["local_size"] == [64, 32, 1]
    text = unsupported(kernel, LIMITS, ALL_FEATURES, api_version="1.3.0")
    assert "2048 invocations" in str(text) and "specialization" in str(text)
    assert unsupported(kernel, LIMITS, ALL_FEATURES, api_version="1.3.0", specializable=True) is None
    fixed = by_name("refuse_workgroup_too_big")
    assert reason(fixed.name, specializable=True) is not None


def test_strict_isolation_refuses_dynamic_descriptors():
    assert "not constant" in str(reason("glsl_desc_array", strict=True))
    assert reason("glsl_eight_buffers", strict=True) is None


def test_capabilities_that_are_not_known_or_never_supported():
    kernel = deepcopy(kernel_of("glsl_axpy_O"))
    for name, words in (
        ("31337", "capability 31337"),
        ("TileImageColorReadAccessEXT", "TileImageColorReadAccessEXT"),
        ("PhysicalStorageBufferAddresses", "PhysicalStorageBufferAddresses"),
    ):
        kernel["capabilities"] = ["Shader", name]
        assert words in str(unsupported(kernel, LIMITS, ALL_FEATURES, api_version="1.3.0"))


def test_extensions():
    kernel = deepcopy(kernel_of("glsl_axpy_O"))
    for name, fine in (
        ("SPV_GOOGLE_user_type", True),
        ("SPV_KHR_no_integer_wrap_decoration", True),
        ("SPV_AMD_gcn_shader", False),
        ("SPV_MADE_up", False),
    ):
        kernel["needs"]["extensions"] = [name]
        text = unsupported(kernel, LIMITS, ALL_FEATURES, api_version="1.3.0")
        assert (text is None) is fine
        assert text is None or name in text
    kernel["needs"]["extensions"] = ["SPV_KHR_maximal_reconvergence"]
    assert "shaderMaximalReconvergence" in str(unsupported(kernel, LIMITS, {}, api_version="1.3.0"))


def test_any_of_several_features_will_do():
    kernel = deepcopy(kernel_of("glsl_axpy_O"))
    kernel["capabilities"] = ["AtomicFloat32AddEXT"]
    shared = {"shaderSharedFloat32AtomicAdd": True}
    assert unsupported(kernel, LIMITS, shared, api_version="1.3.0") is None
    text = str(unsupported(kernel, LIMITS, {}, api_version="1.3.0"))
    assert "shaderBufferFloat32AtomicAdd or shaderSharedFloat32AtomicAdd" in text
    kernel["capabilities"] = ["RoundingModeRTE"]
    assert unsupported(kernel, {**LIMITS, "shaderRoundingModeRTEFloat32": True}, {}, api_version="1.3.0") is None
    assert "shaderRoundingModeRTE" in str(unsupported(kernel, LIMITS, {}, api_version="1.3.0"))


def test_capabilities_of_the_table_exist():
    assert set(CAPABILITIES) - {entry.name for entry in ENUMS["C"].values()} == set()


REFUSED = [case for case in CORPUS if case.kind == "refuse" and "reflection" in case.doc]


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_the_text_names_what_the_corpus_blames(case):
    """What the case blames is what the text names; the one that lacks an entry point is told by look-up."""
    error = case.expect_error
    if error["kind"] == "entry_point_not_found":
        assert case.entry not in analyse(case.spirv)["kernels"]
        return
    blamed = error.get("capability") or error["limit"].split()[0]
    assert blamed in str(reason(case.name))
