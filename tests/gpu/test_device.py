"""Devices: order and queue family (S18) by a loader that is made up, features by tables, and the real one at hand."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkqueue import errors
from vkqueue.gpu import binding, features
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device, DeviceOptions, PhysicalDevice, list_devices, open_device, open_instance
from vkqueue.gpu.instance import Instance, make_version, split_version
from vkqueue.kernels import requirements

pytestmark = pytest.mark.gpu

OTHER, INTEGRATED, DISCRETE, VIRTUAL, CPU = range(5)
GRAPHICS, COMPUTE, TRANSFER = 1, 2, 4


class MadeUpLoader:
    """The functions that `list_devices` calls, over (name, type, flags of each queue family, version)."""

    def __init__(self, *devices: tuple[str, int, list[int], tuple[int, int]]) -> None:
        self.devices = devices
        self.chained: list[list[int]] = []

    def vkEnumeratePhysicalDevices(self, instance: int, count: Any, array: Any) -> int:
        if array:
            for i in range(count[0]):
                array[i] = binding.ffi.cast("VkPhysicalDevice", i + 1)
        count[0] = len(self.devices)
        return 0

    def vkGetPhysicalDeviceProperties(self, handle: Any, out: Any) -> int:
        name, kind, _, version = self.devices[binding.address(handle) - 1]
        out.deviceName = name.encode()
        out.deviceType = kind
        out.apiVersion = make_version(version)
        return 0

    def vkGetPhysicalDeviceQueueFamilyProperties(self, handle: Any, count: Any, array: Any) -> int:
        families = self.devices[binding.address(handle) - 1][2]
        if array:
            for i, flags in enumerate(families):
                array[i].queueFlags = flags
                array[i].queueCount = 1
        count[0] = len(families)
        return 0

    def vkEnumerateDeviceExtensionProperties(self, handle: Any, layer: Any, count: Any, array: Any) -> int:
        count[0] = 0
        return 0

    def vkGetPhysicalDeviceProperties2(self, handle: Any, head: Any) -> int:
        self.chained.append(chained_types(head))
        return 0

    vkGetPhysicalDeviceFeatures2 = vkGetPhysicalDeviceProperties2

    def vkGetPhysicalDeviceMemoryProperties(self, handle: Any, out: Any) -> int:
        out.memoryHeapCount = 2
        out.memoryHeaps[0].size, out.memoryHeaps[0].flags = 500, 0
        out.memoryHeaps[1].size, out.memoryHeaps[1].flags = 300, 1
        return 0


def chained_types(head: Any) -> list[int]:
    types = []
    link = binding.ffi.cast("VkBaseOutStructure *", head.pNext)
    while link:
        types.append(link.sType)
        link = link.pNext
    return types


def listed(loader: MadeUpLoader, version: tuple[int, int] = (1, 3)) -> list[PhysicalDevice]:
    instance = Instance.__new__(Instance)
    instance.handle, instance.version, instance.validation = 1, version, False
    instance.calls = loader  # type: ignore[assignment]
    return list_devices(instance)


@pytest.fixture(autouse=True)
def loader() -> None:
    try:
        binding.load()
    except errors.UnsupportedError as error:
        pytest.skip(error.message)


class TestOrder:
    def test_discrete_integrated_virtual_cpu_other_and_stable_within(self) -> None:
        kinds = [CPU, OTHER, DISCRETE, VIRTUAL, INTEGRATED, DISCRETE, CPU]
        found = listed(MadeUpLoader(*((f"d{i}", kind, [COMPUTE], (1, 3)) for i, kind in enumerate(kinds))))
        assert [d.info.name for d in found] == ["d2", "d5", "d4", "d3", "d0", "d6", "d1"]
        assert [d.info.type for d in found] == [
            "discrete", "discrete", "integrated", "virtual", "cpu", "cpu", "other",
        ]  # fmt: skip
        assert [d.index for d in found] == [d.info.index for d in found] == list(range(7))

    def test_devices_without_compute_or_too_old_are_left_out(self) -> None:
        found = listed(
            MadeUpLoader(
                ("graphics only", DISCRETE, [GRAPHICS | TRANSFER], (1, 3)),
                ("old", DISCRETE, [COMPUTE], (1, 0)),
                ("good", CPU, [COMPUTE], (1, 1)),
            )
        )
        assert [(d.index, d.info.name) for d in found] == [(0, "good")]

    @pytest.mark.parametrize(
        ("families", "chosen"),
        [
            ([GRAPHICS | COMPUTE], 0),
            ([GRAPHICS | COMPUTE, TRANSFER, COMPUTE | TRANSFER], 2),
            ([GRAPHICS, GRAPHICS | COMPUTE, GRAPHICS | COMPUTE], 1),
            ([COMPUTE, COMPUTE], 0),
        ],
    )
    def test_a_queue_family_without_graphics_is_preferred(self, families: list[int], chosen: int) -> None:
        assert listed(MadeUpLoader(("d", DISCRETE, families, (1, 2))))[0].queue_family == chosen

    def test_memory_is_the_largest_heap_on_the_device(self) -> None:
        assert listed(MadeUpLoader(("d", DISCRETE, [COMPUTE], (1, 2))))[0].info.memory_bytes == 300

    def test_a_device_newer_than_the_headers_is_used_as_the_newest_known(self) -> None:
        device = listed(MadeUpLoader(("d", DISCRETE, [COMPUTE], (1, 4))))[0]
        assert device.version == (1, 3)
        assert device.info.api_version == "1.4.0"
        assert (device.info.limits["spirvVersionMajor"], device.info.limits["spirvVersionMinor"]) == (1, 6)

    def test_no_device_is_an_empty_list(self) -> None:
        assert listed(MadeUpLoader()) == []


class TestFeatureTables:
    @pytest.mark.parametrize("version", [(1, 1), (1, 2), (1, 3)])
    @pytest.mark.parametrize("extensions", [True, False])
    def test_each_feature_comes_from_one_struct_and_each_struct_is_chained_once(
        self, version: features.Version, extensions: bool
    ) -> None:
        """The specification forbids VkPhysicalDeviceVulkan12Features beside the structs it replaces."""
        listed_ = {b.extension for b in features.FEATURES if b.extension} if extensions else set()
        known = [block for block in features.FEATURES if block.known(version, listed_)]
        names = list(itertools.chain.from_iterable(block.names for block in known))
        assert len(names) == len(set(names))
        structs = [(block.struct, block.stype) for block in known]
        assert len(structs) == len(set(structs))

    def test_a_device_is_shown_only_structs_of_its_version_and_extensions(self) -> None:
        vk = binding.vk
        loader = MadeUpLoader(("d", DISCRETE, [COMPUTE], (1, 1)))
        listed(loader)
        assert sorted(loader.chained[1]) == sorted(
            [
                vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
                vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VARIABLE_POINTERS_FEATURES,
            ]
        )
        loader = MadeUpLoader(("d", DISCRETE, [COMPUTE], (1, 2)))
        listed(loader)
        assert loader.chained[1] == [
            vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
            vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        ]

    def test_extensions_that_became_core_are_not_enabled_again(self) -> None:
        everything = frozenset(
            {b.extension for b in features.FEATURES if b.extension}
            | set(features.PLAIN_EXTENSIONS)
            | set(features.PROMOTED_EXTENSIONS)
        )
        by_version = {v: set(features.used_extensions(v, everything)) for v in ((1, 1), (1, 2), (1, 3))}
        assert by_version[1, 1] == everything
        assert by_version[1, 1] - by_version[1, 2] >= {"VK_KHR_8bit_storage", "VK_KHR_spirv_1_4"}
        assert by_version[1, 2] - by_version[1, 3] >= {"VK_KHR_maintenance4", "VK_KHR_synchronization2"}

    def test_device_addresses_are_never_enabled(self, device: Device) -> None:
        assert "bufferDeviceAddress" not in features.all_feature_names()
        assert device.info.features["bufferDeviceAddress"] is False
        assert "VK_KHR_buffer_device_address" not in device.extensions

    def test_cooperative_matrices_only_where_their_accesses_are_bounded(self) -> None:
        for bounded in (False, True):
            present = {
                "cooperativeMatrix": True,
                "shaderBFloat16CooperativeMatrix": True,
                "cooperativeMatrixRobustBufferAccess": bounded,
            }
            assert features.wanted(present)["cooperativeMatrix"] is bounded
            assert features.wanted(present)["shaderBFloat16CooperativeMatrix"] is bounded
            assert features.wanted(present, isolate=False)["cooperativeMatrix"] is True

    def test_what_modules_ask_for_can_be_enabled(self) -> None:
        """All but what needs images, which no kernel of the daemon has, and drawing."""
        images = {"imageCubeArray", "shaderDrawParameters", "shaderResourceMinLod", "shaderResourceResidency"}
        rest = requirements.FEATURES - set(features.all_feature_names()) - images
        assert {name for name in rest if "Image" not in name} == set()

    def test_structs_newer_than_the_headers_have_the_right_type(self) -> None:
        borrowed = [block for block in features.FEATURES if block.stype]
        assert borrowed
        with Arena() as arena:
            head = arena.struct("VkPhysicalDeviceFeatures2")
            every = frozenset(block.extension for block in borrowed if block.extension)
            links = features.chain(arena, head, borrowed, (1, 3), every)
            assert chained_types(head) == [block.stype for block in borrowed]
            for block, link in links:
                for _, member in features.fields(block):
                    assert getattr(link, member) == 0


class TestInfo:
    def test_limits_have_vulkans_names_and_more(self, device: Device) -> None:
        limits = device.info.limits
        names = [name for name, _ in binding.ffi.typeof("VkPhysicalDeviceLimits").fields]
        assert set(names) <= set(limits)
        assert len(limits["maxComputeWorkGroupCount"]) == 3
        for name in (
            "maxBufferSize", "maxMemoryAllocationSize", "subgroupSize", "subgroupSupportedOperations",
            "subgroupSupportedStages", "spirvVersionMajor", "spirvVersionMinor",
        ):  # fmt: skip
            assert limits[name] >= 1, name
        assert limits["timestampComputeAndGraphics"] in (True, False)

    def test_it_is_plain_data(self, device: Device) -> None:
        def plain(value: Any) -> bool:
            if isinstance(value, dict):
                return all(isinstance(k, str) and plain(v) for k, v in value.items())
            if isinstance(value, list):
                return all(map(plain, value))
            return isinstance(value, (bool, int, float, str))

        wire = device.info.to_wire()
        assert plain(wire)
        assert len(bytes.fromhex(wire["uuid"])) == 16

    def test_present_features_are_enabled_and_reported(self, device: Device) -> None:
        assert device.info.features["robustBufferAccess"] is True
        for name, present in device.physical.present.items():
            if not name.lower().endswith("cooperativematrix"):
                assert device.info.features[name] is present, name
        assert device.info.features["VK_KHR_push_descriptor"] is device.push_descriptors

    def test_an_old_validation_layer_is_spared_what_it_does_not_know(
        self, instance: Instance, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vkqueue.gpu.physical.recent_extensions", lambda: frozenset({"VK_KHR_push_descriptor"}))
        monkeypatch.setattr(instance, "validation", True)
        for version, spared in (((1, 3, 239), True), ((2, 0, 0), False)):
            monkeypatch.setattr(instance, "layer_version", version)
            assert ("VK_KHR_push_descriptor" not in list_devices(instance)[0].extensions) is spared

    def test_the_list_says_what_the_opened_device_says(self, physical: PhysicalDevice, device: Device) -> None:
        assert physical.info == device.info


class TestOptions:
    def test_descriptors(self, open_test_device: Callable[..., Device]) -> None:
        auto, sets = open_test_device(), open_test_device(descriptors="sets")
        assert auto.push_descriptors
        assert auto.info.max_push_descriptors == auto.limits["maxPushDescriptors"] >= 32
        assert (sets.push_descriptors, sets.info.max_push_descriptors) == (False, 0)

    def test_push_demanded_of_a_device_that_cannot(self, physical: PhysicalDevice) -> None:
        without = dataclasses.replace(physical, extensions=physical.extensions - {"VK_KHR_push_descriptor"})
        assert not open_and_close(without, descriptors="auto").push_descriptors
        with pytest.raises(errors.UnsupportedError, match="VK_KHR_push_descriptor"):
            open_device(without, DeviceOptions(descriptors="push"))

    def test_a_misspelt_choice(self) -> None:
        with pytest.raises(errors.InvalidError, match=r"'pull'.*'auto', 'push' or 'sets'"):
            DeviceOptions(descriptors="pull")

    def test_robustness2_off(self, open_test_device: Callable[..., Device]) -> None:
        off = open_test_device(robustness2=False)
        assert (off.robust_ranges, off.info.features["robustBufferAccess2"]) == (False, False)
        assert off.info.features["robustBufferAccess"]

    def test_host_memory_import_off(self, open_test_device: Callable[..., Device]) -> None:
        assert open_test_device(external_memory_host=False).host_pointer_alignment == 0


def open_and_close(physical: PhysicalDevice, **options: Any) -> Device:
    device = open_device(physical, DeviceOptions(**options))
    device.close()
    return device


class TestDevice:
    def test_objects_are_counted(self, device: Device) -> None:
        with Arena() as arena:
            fence = device.create("VkFence", arena.struct("VkFenceCreateInfo"))
        assert device.live.counts()["VkFence"] == 1
        device.destroy("VkFence", fence)
        device.destroy("VkFence", 0)
        assert "VkFence" not in device.live.counts()

    def test_an_object_that_was_not_made_is_not_counted(self, device: Device) -> None:
        with (
            Arena() as arena,
            binding.inject("vkCreateFence", "VK_ERROR_OUT_OF_HOST_MEMORY"),
            pytest.raises(errors.OutOfDeviceMemoryError),
        ):
            device.create("VkFence", arena.struct("VkFenceCreateInfo"))
        assert "VkFence" not in device.live.counts()

    def test_a_device_that_cannot_be_made_leaves_nothing(self, physical: PhysicalDevice) -> None:
        with (
            binding.inject("vkCreateDevice", "VK_ERROR_INITIALIZATION_FAILED"),
            pytest.raises(errors.UnsupportedError, match="vkCreateDevice"),
        ):
            open_device(physical, DeviceOptions())
        assert "VkDevice" not in physical.instance.live.counts()

    def test_close_twice(self, physical: PhysicalDevice) -> None:
        open_and_close(physical).close()

    def test_another_thread_may_wait_but_not_submit(self, device: Device) -> None:
        with Arena() as arena:
            fence = device.create("VkFence", arena.struct("VkFenceCreateInfo", flags=1))
            fences = arena.array("VkFence", [fence])
            outcome: list[object] = []

            def elsewhere() -> None:
                outcome.append(device.calls.vkWaitForFences(device.handle, 1, fences, 1, 0))
                try:
                    device.calls.vkQueueSubmit(device.queue, 0, binding.ffi.NULL, 0)
                except errors.InternalError as error:
                    outcome.append(error.message)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            device.destroy("VkFence", fence)
        assert outcome[0] == binding.VK_SUCCESS
        assert "vkQueueSubmit was called from thread" in str(outcome[1])

    def test_names_are_taken(self, device: Device) -> None:
        with Arena() as arena:
            fence = device.create("VkFence", arena.struct("VkFenceCreateInfo"))
        device.set_name(binding.vk.VK_OBJECT_TYPE_FENCE, fence, "a fence")
        device.destroy("VkFence", fence)


class TestInstance:
    def test_the_layer_is_heard_and_synchronization_is_validated(self, device: Device) -> None:
        """A write after a write of copies with no barrier between: only synchronization validation sees it."""
        instance = device.instance
        if not instance.validation:
            pytest.skip("no validation layer")
        racing_fills(device)
        ids = {message.id for message in instance.messages}
        instance.messages.clear()
        assert ids == {"SYNC-HAZARD-WRITE-AFTER-WRITE"}

    def test_a_missing_layer_names_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vkqueue.gpu.instance.VALIDATION_LAYER", "VK_LAYER_nowhere")
        with pytest.raises(errors.UnsupportedError, match="vulkan-validationlayers"):
            open_instance(validation=True)

    def test_versions(self) -> None:
        assert split_version(make_version((1, 3)) | 230) == (1, 3, 230)

    def test_one_driver_listed_twice_is_two_devices_with_one_uuid(self, instance: Instance, tmp_path: Path) -> None:
        """Twice under two names, since the loader reads a manifest once."""
        manifest = Path(os.environ.get("VK_DRIVER_FILES", ""))
        if not manifest.is_file():
            pytest.skip("VK_DRIVER_FILES names no single manifest")
        copy = tmp_path / "again.json"
        copy.write_bytes(manifest.read_bytes())
        code = (
            "from vkqueue.gpu.device import *\n"
            "i = open_instance()\n"
            "print([(d.index, d.info.uuid) for d in list_devices(i)])\n"
        )
        child = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "VK_DRIVER_FILES": f"{manifest}:{copy}"},
            capture_output=True,
            text=True,
            check=True,
        )
        found = eval(child.stdout)
        assert [index for index, _ in found] == list(range(len(found)))
        assert len(found) == 2 * len({uuid for _, uuid in found})


def racing_fills(device: Device) -> None:
    from gpu.rig import HostBuffer

    buffer = HostBuffer(device, 64)
    with Arena() as arena:
        pool = device.create(
            "VkCommandPool", arena.struct("VkCommandPoolCreateInfo", queueFamilyIndex=device.queue_family)
        )
        out = arena.out("VkCommandBuffer")
        info = arena.struct("VkCommandBufferAllocateInfo", commandPool=pool, commandBufferCount=1)
        device.calls.vkAllocateCommandBuffers(device.handle, info, out)
        commands = binding.address(out[0])
        begin = arena.struct("VkCommandBufferBeginInfo")
        gc.collect()
        device.hot.begin_command_buffer(commands, binding.address(begin))
        for word in (1, 2):
            device.hot.cmd_fill_buffer(commands, buffer.handle, 0, 64, word)
        device.hot.end_command_buffer(commands)
    device.destroy("VkCommandPool", pool)
    buffer.destroy()
