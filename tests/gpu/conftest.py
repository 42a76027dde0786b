"""A Vulkan device for the tests: lavapipe unless VK_DRIVER_FILES says otherwise, under the validation layer.

A test that asks for `instance`, `physical`, `device` or `open_test_device` fails when the validation layer says
anything, and when it leaves a Vulkan object alive. Without a device such tests are skipped, and fail when CI is set.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu.rig import unavailable

from vkqueue.errors import VkqueueError
from vkqueue.gpu.device import Device, DeviceOptions, PhysicalDevice, list_devices, open_device, open_instance
from vkqueue.gpu.instance import Instance

LAVAPIPE = [
    *Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"),
    *Path("/usr/local/share/vulkan/icd.d").glob("lvp_icd*.json"),
]

# The spirv-val inside Debian 12's validation layer wrongly refuses these modules of the corpus (Slang, Zig, one of
# IREE, one of naga), by SHA-256; of two of them newer ones say that an extension or a version is not declared. They
# say so by these ids, old and new, and nothing else is allowed.
VALIDATOR = {"UNASSIGNED-CoreValidation-Shader-InconsistentSpirv", "VUID-VkShaderModuleCreateInfo-pCode-08737"}
REFUSED_BY_VALIDATOR = frozenset(
    {
        "5f6139c1bb6e15fb2a0d8ac69dd9df75a6277358b383dd3fa6f4d4dcac3d1510",  # iree_f16_i8_vec4
        "641af8a2bbf455e5638789db09b321412ed2a1edf100896cfa86dec1868a24b4",  # naga_subgroup_f16
        "57952140436ef66c38135fd0168696e87138d2715e43075b88f6472194a1c103",  # slang_desc_array
        "9bcb88846e5a04a481161fd8efcfbe9d9eef93263bb15b0b2b2d9edbfaf55055",  # slang_generic_half
        "a0fd72fdee7ddc2e6992a73b67716a445e9179d8325b3d0794e90d47d74eaa8e",  # slang_scalar_layout
        "abf21c49e5f41fd394d87c28c10335bf223e762bdf87f32c1de853e7a2d1e357",  # slang_scale_push
        "09d424c57b44c5fef22711483dc597668b2b5a6f6115b8d97e93c26f00d5872f",  # slang_two_entries
        "8ee3a1913449250a810a56f3df1d1bcb4f3c46b40e1a1f9bb385e35d67f122bc",  # zig_scale
    }
)


@pytest.fixture(scope="session")
def vulkan() -> Iterator[Instance]:
    """One instance for the session; use `instance`."""
    if LAVAPIPE and "VK_DRIVER_FILES" not in os.environ:
        os.environ["VK_DRIVER_FILES"] = str(LAVAPIPE[0])
    try:
        opened = open_instance(validation=True)
    except VkqueueError as error:
        if (error.data or {}).get("missing") != "VK_LAYER_KHRONOS_validation":
            unavailable(error.message)
        if os.environ.get("CI"):
            unavailable(error.message)
        opened = open_instance()
    gc.collect()
    gc.freeze()  # the binding's 20,000 names never die; without them a collection between steps is cheap
    yield opened
    gc.unfreeze()
    opened.close()
    assert list(opened.messages) == []
    assert opened.live.counts() == {}


@pytest.fixture
def allow_module() -> Callable[[bytes], None]:
    """Tell the check of messages which module the test uses: known wrong refusals of it are let pass."""

    def allow(spirv: bytes) -> None:
        allow.known |= hashlib.sha256(spirv).hexdigest() in REFUSED_BY_VALIDATOR  # type: ignore[attr-defined]

    allow.known = False  # type: ignore[attr-defined]
    return allow


@pytest.fixture
def instance(vulkan: Instance, allow_module: Any) -> Iterator[Instance]:
    """The instance, with the checks of messages and of objects left alive."""
    vulkan.messages.clear()
    before = vulkan.live.counts()
    yield vulkan
    messages = [m for m in vulkan.messages if not (allow_module.known and m.id in VALIDATOR)]
    vulkan.messages.clear()
    assert messages == []
    assert vulkan.live.counts() == before


@pytest.fixture
def physical(instance: Instance) -> PhysicalDevice:
    """The first device."""
    devices = list_devices(instance)
    if not devices:
        unavailable("no Vulkan device")
    return devices[0]


@pytest.fixture
def open_test_device(physical: PhysicalDevice) -> Iterator[Callable[..., Device]]:
    """Opens the first device with the given options; closed at the test's end."""
    opened = []

    def open_it(**options: Any) -> Device:
        gc.collect()
        device = open_device(physical, DeviceOptions(**options))
        opened.append(device)
        return device

    yield open_it
    for device in opened:
        device.close()


@pytest.fixture
def device(open_test_device: Callable[..., Device]) -> Device:
    """The first device, with default options."""
    return open_test_device()
