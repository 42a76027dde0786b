"""The checked layer: results, faults, threads, lifetimes. Needs the loader, no device."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from vkqueue import errors
from vkqueue.gpu import binding, features, hot
from vkqueue.gpu.arena import Arena, structure_type
from vkqueue.gpu.instance import listing

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def loader() -> None:
    try:
        binding.load()
    except errors.UnsupportedError as error:
        pytest.skip(error.message)


def calls_of(name: str, function: object, **options: object) -> binding.Calls:
    """Calls whose driver is a Python function in place of the Vulkan one."""
    callback = binding.ffi.callback(f"PFN_{name}", function)
    calls = binding.Calls(lambda asked: binding.address(callback) if asked == name else 0, **options)  # type: ignore[arg-type]
    calls.keep = callback  # type: ignore[attr-defined]
    return calls


@pytest.mark.parametrize(
    ("result", "cls"),
    [
        ("VK_ERROR_DEVICE_LOST", errors.DeviceLostError),
        ("VK_ERROR_OUT_OF_HOST_MEMORY", errors.OutOfDeviceMemoryError),
        ("VK_ERROR_OUT_OF_DEVICE_MEMORY", errors.OutOfDeviceMemoryError),
        ("VK_ERROR_FRAGMENTED_POOL", binding.DescriptorPoolFullError),
        ("VK_ERROR_OUT_OF_POOL_MEMORY", binding.DescriptorPoolFullError),
        ("VK_ERROR_FEATURE_NOT_PRESENT", errors.UnsupportedError),
        ("VK_ERROR_UNKNOWN", errors.InternalError),
    ],
)
def test_a_negative_result_raises_its_class_and_names_call_and_result(
    result: str, cls: type[errors.VkqueueError]
) -> None:
    value = binding.RESULTS[result][0]
    calls = calls_of("vkDeviceWaitIdle", lambda device: value)
    with pytest.raises(cls, match=f"vkDeviceWaitIdle returned {result}") as caught:
        calls.vkDeviceWaitIdle(1)
    assert type(caught.value) is cls
    assert caught.value.data == {"call": "vkDeviceWaitIdle", "result": result}


def test_an_unknown_negative_result_raises_too() -> None:
    calls = calls_of("vkDeviceWaitIdle", lambda device: -77)
    with pytest.raises(errors.InternalError, match="VkResult -77"):
        calls.vkDeviceWaitIdle(1)


@pytest.mark.parametrize("value", [binding.VK_SUCCESS, binding.VK_TIMEOUT, binding.VK_INCOMPLETE])
def test_other_results_are_returned(value: int) -> None:
    assert calls_of("vkDeviceWaitIdle", lambda device: value).vkDeviceWaitIdle(1) == value


def test_results_have_the_values_of_the_headers() -> None:
    wrong_sign_in_the_package = {
        "VK_ERROR_OUT_OF_POOL_MEMORY",
        "VK_ERROR_INVALID_EXTERNAL_HANDLE",
        "VK_ERROR_FRAGMENTATION",
    }
    for name, (value, _) in binding.RESULTS.items():
        constant = getattr(binding.vk, name)
        if name in wrong_sign_in_the_package:
            assert value == -constant, name
        elif name != "VK_ERROR_VALIDATION_FAILED_EXT":  # is None there
            assert value == constant, name
        assert (value < 0) == name.startswith("VK_ERROR"), name


def test_a_missing_function_is_an_error_when_called_for() -> None:
    calls = binding.Calls(lambda name: 0)
    assert not calls.has("vkDeviceWaitIdle")
    with pytest.raises(errors.UnsupportedError, match="vkDeviceWaitIdle"):
        calls.vkDeviceWaitIdle(1)


def test_ints_are_handles() -> None:
    seen = []
    calls = calls_of("vkDeviceWaitIdle", lambda device: seen.append(binding.address(device)) or 0)
    calls.vkDeviceWaitIdle(0x7F1234567890)
    assert seen == [0x7F1234567890]


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        calls_of("vkDeviceWaitIdle", lambda device: 0).vkDeviceWaitIdle(1, 2)


class TestInject:
    def test_the_nth_call_fails_and_is_not_made(self) -> None:
        made = []
        calls = calls_of("vkDeviceWaitIdle", lambda device: made.append(1) or 0)
        with binding.inject("vkDeviceWaitIdle", "VK_ERROR_DEVICE_LOST", nth=2, times=2):
            calls.vkDeviceWaitIdle(1)
            for _ in range(2):
                with pytest.raises(errors.DeviceLostError):
                    calls.vkDeviceWaitIdle(1)
            calls.vkDeviceWaitIdle(1)
        assert len(made) == 2

    def test_nothing_is_left_after_the_block(self) -> None:
        calls = calls_of("vkDeviceWaitIdle", lambda device: 0)
        with binding.inject("vkDeviceWaitIdle", "VK_ERROR_DEVICE_LOST", nth=5):
            pass
        for _ in range(6):
            calls.vkDeviceWaitIdle(1)
        assert binding.faults == {}

    def test_other_calls_go_on(self) -> None:
        calls = calls_of("vkDeviceWaitIdle", lambda device: 0)
        with binding.inject("vkQueueSubmit", "VK_ERROR_DEVICE_LOST"):
            calls.vkDeviceWaitIdle(1)

    def test_a_result_that_is_no_error_can_be_injected(self) -> None:
        calls = calls_of("vkDeviceWaitIdle", lambda device: 0)
        with binding.inject("vkDeviceWaitIdle", "VK_TIMEOUT"):
            assert calls.vkDeviceWaitIdle(1) == binding.VK_TIMEOUT

    def test_hot_calls_that_return_a_result_are_reached(self) -> None:
        made = []
        callback = binding.ffi.callback("PFN_vkEndCommandBuffer", lambda buffer: made.append(1) or 0)
        table = hot.Hot(lambda name: binding.address(callback) if name == "vkEndCommandBuffer" else 0)
        with binding.inject("vkEndCommandBuffer", "VK_ERROR_OUT_OF_DEVICE_MEMORY"):
            with pytest.raises(errors.OutOfDeviceMemoryError, match="vkEndCommandBuffer"):
                table.end_command_buffer(1)
            assert made == []
            assert table.end_command_buffer(1) == 0
        assert made == [1]

    def test_hot_calls_raise_what_the_driver_returns(self) -> None:
        callback = binding.ffi.callback("PFN_vkGetFenceStatus", lambda device, fence: -4 if device else 1)
        table = hot.Hot(lambda name: binding.address(callback) if name == "vkGetFenceStatus" else 0)
        assert table.get_fence_status(0, 1) == binding.VK_NOT_READY
        with pytest.raises(errors.DeviceLostError, match="vkGetFenceStatus"):
            table.get_fence_status(1, 1)


class TestThreads:
    def test_a_device_belongs_to_the_thread_that_claimed_it(self) -> None:
        owner = binding.Owner()
        calls = calls_of("vkDeviceWaitIdle", lambda device: 0, owner=owner)
        calls.vkDeviceWaitIdle(1)
        other = threading.Thread(target=owner.claim)
        other.start()
        other.join()
        with pytest.raises(errors.InternalError, match=r"vkDeviceWaitIdle.*thread"):
            calls.vkDeviceWaitIdle(1)
        owner.claim()
        calls.vkDeviceWaitIdle(1)

    def test_shared_calls_may_come_from_any_thread(self) -> None:
        owner = binding.Owner()
        calls = calls_of("vkDeviceWaitIdle", lambda d: 0, owner=owner, shared=frozenset({"vkDeviceWaitIdle"}))
        other = threading.Thread(target=owner.claim)
        other.start()
        other.join()
        calls.vkDeviceWaitIdle(1)

    def test_the_event_loops_thread_may_call_nothing(self) -> None:
        calls = calls_of("vkDeviceWaitIdle", lambda d: 0, shared=frozenset({"vkDeviceWaitIdle"}))
        binding.forbid_this_thread()
        try:
            with pytest.raises(errors.InternalError, match="event loop"):
                calls.vkDeviceWaitIdle(1)
        finally:
            binding.allow_this_thread()
        calls.vkDeviceWaitIdle(1)


class TestArena:
    def test_nested_structs_strings_and_arrays_outlive_their_makers(self) -> None:
        with Arena() as arena:

            def build() -> object:
                stage = arena.struct("VkPipelineShaderStageCreateInfo", pName="an entry point of some length" * 50)
                info = arena.struct("VkComputePipelineCreateInfo", stage=stage)
                layers = [f"layer number {i}" for i in range(50)]
                instance = arena.struct("VkInstanceCreateInfo", pNext=info, ppEnabledLayerNames=layers)
                return instance

            instance = build()
            gc.collect()
            litter = [bytearray(b"\xdd" * size) for size in range(1, 2000)]
            del litter
            info = binding.ffi.cast("VkComputePipelineCreateInfo *", instance.pNext)  # type: ignore[attr-defined]
            assert binding.ffi.string(info.stage.pName) == b"an entry point of some length" * 50
            names = instance.ppEnabledLayerNames  # type: ignore[attr-defined]
            assert binding.ffi.string(names[49]) == b"layer number 49"

    def test_the_type_is_filled_in(self) -> None:
        with Arena() as arena:
            info = arena.struct("VkPhysicalDeviceVulkan11Features")
            assert info.sType == binding.vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES

    def test_every_struct_of_the_feature_tables_is_known(self) -> None:
        for block in (*features.FEATURES, *features.PROPERTIES):
            assert structure_type(block.struct) is not None
            members = dict(binding.ffi.typeof(block.struct).fields)
            for _, member in features.fields(block):
                assert member in members, (block.struct, member)

    def test_a_chain_keeps_its_order(self) -> None:
        with Arena() as arena:
            head, first, second = (arena.struct("VkPhysicalDeviceFeatures2") for _ in range(3))
            arena.chain(head, first, second)
            assert binding.address(head.pNext) == binding.address(first)
            assert binding.address(first.pNext) == binding.address(second)
            assert second.pNext == binding.ffi.NULL

    def test_an_unknown_field_is_refused(self) -> None:
        with Arena() as arena, pytest.raises(KeyError):
            arena.struct("VkFenceCreateInfo", colour=1)


class TestHot:
    def test_the_tables_have_the_argument_counts_of_the_headers(self) -> None:
        for name, count in (*hot.COMMANDS.values(), *hot.OPTIONAL_COMMANDS.values(), *hot.CHECKED.values()):
            assert len(binding.ffi.typeof(f"PFN_{name}").args) == count, name

    def test_raw_functions_take_no_number_of_64_bits(self) -> None:
        names = {**hot.COMMANDS, **hot.OPTIONAL_COMMANDS}
        for attribute in hot.RAW:
            for ctype in binding.ffi.typeof(f"PFN_{names[attribute][0]}").args:
                assert ctype.kind in ("pointer", "enum") or binding.ffi.sizeof(ctype) == 4, attribute

    @pytest.mark.parametrize("raw", [False, True])
    def test_arguments_arrive_whole(self, raw: bool) -> None:
        seen: list[object] = []

        def push(buffer: object, layout: object, stages: int, offset: int, size: int, values: object) -> None:
            data = bytes(binding.ffi.buffer(binding.ffi.cast("char *", values), size))
            seen.append((binding.address(buffer), binding.address(layout), stages, offset, size, data))

        callback = binding.ffi.callback("PFN_vkCmdPushConstants", push)

        def resolve(name: str) -> int:
            return binding.address(callback) if name == "vkCmdPushConstants" else 0

        table = hot.Raw(resolve) if raw else hot.Hot(resolve)
        first, second = 0x7F1234567890, 0xFEDCBA9876543210
        if raw:
            first, second = hot.param(first), hot.param(second)
        gc.collect()
        table.cmd_push_constants(first, second, 32, 4, 5, b"\1\2\0\4\5")
        assert seen == [(0x7F1234567890, 0xFEDCBA9876543210, 32, 4, 5, b"\1\2\0\4\5")]

    def test_a_function_the_driver_lacks_says_so_when_called(self) -> None:
        table = hot.Hot(lambda name: 0)
        with pytest.raises(errors.UnsupportedError, match="vkCmdBeginDebugUtilsLabelEXT"):
            table.cmd_begin_label(1, 2)


def test_listing_asks_again_when_the_list_grew() -> None:
    sizes = iter([1, 3, 3, 3])

    def enumerate_(instance: object, count: object, array: object) -> int:
        if array == binding.ffi.NULL:
            count[0] = next(sizes)  # type: ignore[index]
            return 0
        room, there = count[0], 3  # type: ignore[index]
        count[0] = min(room, there)  # type: ignore[index]
        return binding.VK_INCOMPLETE if room < there else 0

    calls = calls_of("vkEnumeratePhysicalDevices", enumerate_)
    assert len(listing(calls.vkEnumeratePhysicalDevices, "VkPhysicalDevice", 1)) == 3


def test_counts_forget_types_that_are_gone() -> None:
    live = binding.LiveObjects()
    live.add("VkFence", 2)
    live.add("VkBuffer")
    live.add("VkFence", -2)
    assert live.counts() == {"VkBuffer": 1}


@pytest.mark.parametrize(
    ("failure", "text"),
    [(OSError("Cannot find Vulkan SDK version"), "libvulkan1"), (ModuleNotFoundError("vulkan"), "pip install")],
)
def test_without_loader_or_package_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, text: str
) -> None:
    def fail(name: str) -> None:
        raise failure

    monkeypatch.setattr(binding.importlib, "import_module", fail)
    with pytest.raises(errors.UnsupportedError, match=text):
        binding.load()


def test_importing_the_package_loads_no_vulkan() -> None:
    code = (
        "import sys, vkqueue, vkqueue.gpu.device, vkqueue.gpu.pipeline, vkqueue.gpu.probe;"
        "sys.exit('vulkan' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
