"""Pipelines, layouts and templates: every module of the corpus runs, pushed and from sets; nothing is left alive."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu.rig import HostBuffer, launch, layout_of, run_once, specialization_of, unavailable
from support.cases import Case, by_name, of_kind

from vkqueue import errors
from vkqueue.gpu import binding
from vkqueue.gpu.device import Device, DeviceOptions, list_devices, open_device
from vkqueue.gpu.instance import Instance
from vkqueue.gpu.pipeline import PipelineLayout, PipelineTable
from vkqueue.model import STORAGE, UNIFORM, Layout, PipelineSpec

pytestmark = pytest.mark.gpu

AXPY = by_name("glsl_axpy_10")


@pytest.fixture(params=["push", "sets"])
def either(request: pytest.FixtureRequest, open_test_device: Callable[..., Device]) -> Device:
    """A device with descriptors pushed, and one with them in sets."""
    return open_test_device(descriptors=request.param)


@pytest.fixture(scope="module")
def both(vulkan: Instance) -> Iterator[dict[str, Device]]:
    """The same, opened once for all modules of the corpus: opening one costs more than running one."""
    if not (devices := list_devices(vulkan)):
        unavailable("no Vulkan device")
    opened = {choice: open_device(devices[0], DeviceOptions(descriptors=choice)) for choice in ("push", "sets")}
    yield opened
    for device in opened.values():
        device.close()


@pytest.fixture
def table(device: Device) -> Iterator[PipelineTable]:
    opened = PipelineTable(device)
    yield opened
    opened.close()


def spec_of(case: Case, id: int = 1, layout: Layout | None = None, **fields: Any) -> PipelineSpec:
    return PipelineSpec(id, layout or layout_of(case), case.spirv, fields.pop("entry", case.entry), **fields)


@pytest.mark.parametrize("choice", ["push", "sets"])
@pytest.mark.parametrize("case", of_kind("run"), ids=str)
@pytest.mark.usefixtures("instance")
def test_every_module_gives_its_results(
    case: Case, choice: str, both: dict[str, Device], allow_module: Callable[[bytes], None]
) -> None:
    device = both[choice]
    info = device.info
    if missing := case.missing(info.limits, info.features, info.api_version):
        pytest.skip(f"the device lacks {missing}")
    allow_module(case.spirv)
    table = PipelineTable(device)
    try:
        for id, run in enumerate(case.runs):
            table.build(spec_of(case, id, specialization=specialization_of(run)))
            pipeline = table.get(id)
            assert pipeline is not None
            run.check(run_once(device, pipeline, run, raw=bool(id % 2)), info.name)
    finally:
        table.close()


class TestLayouts:
    def test_the_lowest_set_that_fits_is_pushed_and_the_rest_come_from_rings(
        self, device: Device, table: PipelineTable
    ) -> None:
        shape = Layout(1, ((1, ((0, STORAGE, 2), (3, UNIFORM, 1))), (3, ((0, STORAGE, 1),))), 6)
        table.build(spec_of(by_name("glsl_zero_bindings"), layout=shape))
        layout = table.get(1).layout  # type: ignore[union-attr]
        assert layout.push_set == 1
        assert [(r.number, r.storage, r.uniform) for r in layout.rings] == [(3, 1, 0)]
        assert len(layout.set_layouts) == 4
        assert layout.push_constant_bytes == 8

    def test_without_push_descriptors_every_set_comes_from_a_ring(
        self, open_test_device: Callable[..., Device]
    ) -> None:
        table = PipelineTable(open_test_device(descriptors="sets"))
        shape = Layout(1, ((1, ((0, STORAGE, 2), (3, UNIFORM, 1))), (3, ((0, STORAGE, 1),))), 4)
        table.build(spec_of(by_name("glsl_zero_bindings"), layout=shape))
        layout = table.get(1).layout  # type: ignore[union-attr]
        assert layout.push_set is None
        assert [(r.number, r.storage, r.uniform) for r in layout.rings] == [(1, 2, 1), (3, 1, 0)]
        table.close()

    def test_pipelines_of_one_shape_share_its_objects(self, device: Device, table: PipelineTable) -> None:
        shape = layout_of(AXPY)
        for id in (1, 2):
            table.build(spec_of(AXPY, id, shape))
        assert table.get(1).layout is table.get(2).layout  # type: ignore[union-attr]
        assert device.live.counts()["VkPipelineLayout"] == 1
        table.destroy(1)
        assert device.live.counts()["VkPipelineLayout"] == 1
        table.destroy(2)
        assert "VkPipelineLayout" not in device.live.counts()
        assert "VkDescriptorUpdateTemplate" not in device.live.counts()

    def test_rings_hear_of_a_layouts_end_before_its_objects_go(self, device: Device) -> None:
        gone: list[tuple[PipelineLayout, int]] = []
        table = PipelineTable(
            device, None, lambda layout: gone.append((layout, device.live.counts()["VkPipelineLayout"]))
        )
        table.build(spec_of(AXPY))
        layout = table.get(1).layout  # type: ignore[union-attr]
        table.destroy(1)
        assert gone == [(layout, 1)]
        table.close()
        assert len(gone) == 1

    @pytest.mark.parametrize(
        ("shape", "limit"),
        [
            (Layout(9, ((4000, ((0, STORAGE, 1),)),), 0), "maxBoundDescriptorSets"),
            (Layout(9, ((0, ((0, STORAGE, 2**31),)),), 0), "maxPerStageDescriptorStorageBuffers"),
            (Layout(9, ((0, ((0, UNIFORM, 2**31),)),), 0), "maxPerStageDescriptorUniformBuffers"),
            (Layout(9, (), 100_000), "maxPushConstantsSize"),
            (Layout(9, ((0, ((2**32 - 1, STORAGE, 1),)),), 0), "binding 4294967295"),
        ],
    )
    def test_a_shape_beyond_the_devices_limits_never_reaches_the_driver(
        self, device: Device, table: PipelineTable, shape: Layout, limit: str
    ) -> None:
        before = device.live.counts()
        with pytest.raises(errors.UnsupportedError, match=limit):
            table.build(spec_of(AXPY, layout=shape))
        assert device.live.counts() == before

    def test_arrays_of_descriptors_in_two_sets_read_their_own_part_of_the_token(
        self, either: Device, allow_module: Callable[[bytes], None]
    ) -> None:
        """One buffer a descriptor, over two sets with an array: each is written through its own place."""
        table = PipelineTable(either)
        case = by_name("slang_two_entries")
        allow_module(case.spirv)
        table.build(spec_of(case))
        run = case.runs[0]
        run.check(run_once(either, table.get(1), run))  # type: ignore[arg-type]
        table.close()


class TestFailures:
    @pytest.mark.parametrize(
        "call",
        [
            "vkCreateDescriptorSetLayout",
            "vkCreatePipelineLayout",
            "vkCreateDescriptorUpdateTemplate",
            "vkCreateShaderModule",
            "vkCreateComputePipelines",
        ],
    )
    def test_a_build_that_fails_anywhere_leaves_nothing_and_the_next_works(
        self, device: Device, table: PipelineTable, call: str
    ) -> None:
        before = device.live.counts()
        with (
            binding.inject(call, "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
            pytest.raises(errors.OutOfDeviceMemoryError, match=call),
        ):
            table.build(spec_of(AXPY))
        assert table.get(1) is None
        table.destroy(1)
        assert device.live.counts() == before
        table.build(spec_of(AXPY))
        assert table.get(1) is not None

    @pytest.mark.parametrize(
        "result", ["VK_ERROR_UNKNOWN", "VK_ERROR_INVALID_SHADER_NV", "VK_ERROR_INITIALIZATION_FAILED"]
    )
    def test_the_drivers_refusal_is_a_compile_error_that_names_the_entry_point(
        self, table: PipelineTable, result: str
    ) -> None:
        with (
            binding.inject("vkCreateComputePipelines", result),
            pytest.raises(errors.CompileError, match=f"'main'.*{result}"),
        ):
            table.build(spec_of(AXPY))

    def test_device_loss_stays_device_loss(self, table: PipelineTable) -> None:
        with (
            binding.inject("vkCreateComputePipelines", "VK_ERROR_DEVICE_LOST"),
            pytest.raises(errors.DeviceLostError),
        ):
            table.build(spec_of(AXPY))

    def test_half_a_word_never_reaches_the_driver(self, table: PipelineTable) -> None:
        spec = PipelineSpec(1, layout_of(AXPY), AXPY.spirv + b"\0", "main")
        with pytest.raises(errors.InvalidError, match="multiple of 4"):
            table.build(spec)


class TestLifetimes:
    def test_an_unknown_id_is_ignored(self, table: PipelineTable) -> None:
        table.destroy(77)
        assert table.get(77) is None

    def test_building_twice_builds_once(self, device: Device, table: PipelineTable) -> None:
        table.build(spec_of(AXPY))
        first = table.get(1)
        table.build(spec_of(AXPY))
        assert table.get(1) is first
        assert device.live.counts()["VkPipeline"] == 1

    def test_destroyed_while_it_is_built(self, device: Device, table: PipelineTable) -> None:
        before = device.live.counts()
        create = device.calls.vkCreateComputePipelines

        def destroyed_meanwhile(*args: Any) -> int:
            table.destroy(1)
            return create(*args)

        device.calls.vkCreateComputePipelines = destroyed_meanwhile  # type: ignore[method-assign]
        table.build(spec_of(AXPY))
        assert table.get(1) is None
        table.destroy(0)
        assert device.live.counts() == before

    def test_a_layout_that_a_failed_build_revived_is_still_there_for_the_next(
        self, device: Device, table: PipelineTable
    ) -> None:
        shape = layout_of(AXPY)
        table.build(spec_of(AXPY, 1, shape))
        layout = table.get(1).layout  # type: ignore[union-attr]
        with (
            binding.inject("vkCreateComputePipelines", "VK_ERROR_UNKNOWN"),
            pytest.raises(errors.CompileError),
        ):
            table.build(spec_of(AXPY, 2, shape))
        table.build(spec_of(AXPY, 3, shape))
        table.destroy(1)
        assert table.get(3).layout is layout  # type: ignore[union-attr]
        assert device.live.counts()["VkPipelineLayout"] == 1

    def test_shaders_are_dumped_where_asked(self, open_test_device: Callable[..., Device], tmp_path: Path) -> None:
        table = PipelineTable(open_test_device(dump_shaders=tmp_path / "shaders"))
        table.build(spec_of(AXPY))
        table.close()
        files = list((tmp_path / "shaders").iterdir())
        assert [file.read_bytes() for file in files] == [AXPY.spirv]


def test_constants_beyond_the_block_are_not_needed(either: Device) -> None:
    """The block of 6 bytes is pushed as 8: the range is rounded up to whole words."""
    case = by_name("glsl_uint16_push")
    table = PipelineTable(either)
    table.build(spec_of(case))
    pipeline = table.get(1)
    assert pipeline is not None
    run = case.runs[0]
    run.check(run_once(either, pipeline, run))
    table.close()


def test_more_descriptors_than_can_be_pushed_come_from_a_ring(device: Device, table: PipelineTable) -> None:
    count = device.max_push_descriptors + 1
    if count > device.limits["maxPerStageDescriptorStorageBuffers"]:
        count = device.max_push_descriptors
        shape = Layout(1, ((0, ((0, STORAGE, count - 1), (1, UNIFORM, 2))),), 4)
    else:
        shape = Layout(1, ((0, ((0, STORAGE, count),)),), 4)
    table.build(spec_of(by_name("glsl_zero_bindings"), layout=shape))
    pipeline = table.get(1)
    assert pipeline is not None and pipeline.layout.push_set is None
    buffer = HostBuffer(device, 64)
    size = sum(ring.storage + ring.uniform for ring in pipeline.layout.rings)
    launch(device, pipeline, struct.pack("<QQQ", buffer.handle, 0, 64) * size, bytes(4), (1, 1, 1))
    buffer.destroy()


def test_nothing_the_driver_reads_is_freed_too_early(physical: Any) -> None:
    """In a child whose allocator fills freed memory with rubbish: a dangling pointer would be refused or crash."""
    code = """
import sys
sys.path.insert(0, "tests")
from gpu.rig import layout_of, run_once, specialization_of
from support.cases import by_name
from vkqueue.gpu.device import DeviceOptions, list_devices, open_device, open_instance
from vkqueue.gpu.pipeline import PipelineTable
from vkqueue.model import PipelineSpec
instance = open_instance()
for choice in ("auto", "sets"):
    device = open_device(list_devices(instance)[0], DeviceOptions(descriptors=choice))
    table = PipelineTable(device)
    case = by_name("glsl_spec_constants")
    for id, run in enumerate(case.runs):
        table.build(PipelineSpec(id, layout_of(case), case.spirv, case.entry, specialization_of(run)))
        run.check(run_once(device, table.get(id), run))
    table.close()
    device.close()
instance.close()
assert not instance.live.counts()
print("fine")
"""
    root = Path(__file__).resolve().parents[2]
    path = filter(None, (str(root), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(path)}
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stdout) == (0, "fine\n"), child.stderr
