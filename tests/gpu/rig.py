"""The least that runs one pipeline once: a buffer with memory of its own for each array, one command buffer.

Stands in for the recorder and the memory allocator, so that pipelines are tested without them.
"""

from __future__ import annotations

import gc
import os
import struct
from typing import Any, NoReturn

import pytest
from support.cases import Case, Run

from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.pipeline import Pipeline
from vkqueue.model import STORAGE, UNIFORM, Layout

_FORMATS = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "bool32": "I",
}  # fmt: skip
_STORAGE_USAGE, _UNIFORM_USAGE, _TRANSFER = 0x20, 0x10, 0x3
_VISIBLE_COHERENT = 0x6
_COMPUTE_STAGE, _HOST_STAGE, _SHADER_WRITE, _HOST_READ = 0x800, 0x4000, 0x40, 0x2000


def unavailable(reason: str) -> NoReturn:
    """Skip here, fail in CI, where a missing device would hide every fault."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have a Vulkan device and the validation layer: {reason}")
    pytest.skip(reason)


def layout_of(case: Case, id: int = 1) -> Layout:
    """The descriptor shape that the corpus says the case has."""
    sets: dict[int, list[tuple[int, str, int]]] = {}
    for b in case.reflection["bindings"]:
        kind = UNIFORM if b["kind"] == "uniform_buffer" else STORAGE
        sets.setdefault(b["set"], []).append((b["binding"], kind, b["count"]))
    push = case.reflection["push_constants"]
    shape = tuple((number, tuple(sorted(sets[number]))) for number in sorted(sets))
    return Layout(id, shape, push["size"] if push else 0)


def specialization_of(run: Run) -> tuple[tuple[int, bytes], ...]:
    """The run's specialization as a pipeline spec wants it."""
    types = {c["id"]: c["type"] for c in run.case.reflection["spec_constants"]}
    return tuple((id, struct.pack("<" + _FORMATS[types[id]], value)) for id, value in run.spec.items())


class HostBuffer:
    """A buffer in memory that the host sees."""

    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        self.size = size
        with Arena() as arena:
            usage = _STORAGE_USAGE | _UNIFORM_USAGE | _TRANSFER
            self.handle = device.create("VkBuffer", arena.struct("VkBufferCreateInfo", size=size, usage=usage))
            needs = arena.struct("VkMemoryRequirements")
            device.calls.vkGetBufferMemoryRequirements(device.handle, self.handle, needs)
            kind = next(
                t.index
                for t in device.memory_types
                if needs.memoryTypeBits >> t.index & 1 and t.flags & _VISIBLE_COHERENT == _VISIBLE_COHERENT
            )
            info = arena.struct("VkMemoryAllocateInfo", allocationSize=needs.size, memoryTypeIndex=kind)
            self.memory = device.create("VkDeviceMemory", info)
            device.calls.vkBindBufferMemory(device.handle, self.handle, self.memory, 0)
            out = arena.out("void *")
            device.calls.vkMapMemory(device.handle, self.memory, 0, needs.size, 0, out)
            self.view = binding.ffi.buffer(out[0], size)

    def destroy(self) -> None:
        self._device.destroy("VkBuffer", self.handle)
        self._device.destroy("VkDeviceMemory", self.memory)


def run_once(device: Device, pipeline: Pipeline, run: Run, *, raw: bool = False) -> dict[str, bytes]:
    """Contents of every array after the run."""
    buffers = {}
    for name, array in run.arrays().items():
        buffers[name] = HostBuffer(device, max(array.nbytes, 1))
        buffers[name].view[: array.nbytes] = array.tobytes()
    entries = [buffers[entry.array] for entry in run.entries]
    packed = b"".join(struct.pack("<QQQ", b.handle, 0, b.size) for b in entries)
    try:
        launch(device, pipeline, packed, run.push_bytes(), run.grid, raw=raw)
        return {name: bytes(buffer.view) for name, buffer in buffers.items()}
    finally:
        for buffer in buffers.values():
            buffer.destroy()


def launch(
    device: Device,
    pipeline: Pipeline,
    packed: bytes,
    push: bytes,
    grid: tuple[int, int, int],
    *,
    raw: bool = False,
) -> None:
    """Record, submit, and wait for one dispatch."""
    with Arena() as arena:
        info = arena.struct("VkCommandPoolCreateInfo", queueFamilyIndex=device.queue_family)
        pool = device.create("VkCommandPool", info)
        fence = device.create("VkFence", arena.struct("VkFenceCreateInfo"))
        descriptor_pool = 0
        try:
            info = arena.struct("VkCommandBufferAllocateInfo", commandPool=pool, commandBufferCount=1)
            out = arena.out("VkCommandBuffer")
            device.calls.vkAllocateCommandBuffers(device.handle, info, out)
            commands = binding.address(out[0])
            begin = binding.address(arena.struct("VkCommandBufferBeginInfo", flags=1))
            device.hot.begin_command_buffer(commands, begin)
            descriptor_pool = _record(device, arena, commands, pipeline, packed, push, grid, raw)
            device.hot.end_command_buffer(commands)
            gc.collect()
            submit = arena.struct("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[commands])
            device.calls.vkQueueSubmit(device.queue, 1, submit, fence)
            fences = arena.array("VkFence", [fence])
            result = device.calls.vkWaitForFences(device.handle, 1, fences, 1, 20 * 10**9)
            assert result == binding.VK_SUCCESS, "the dispatch did not finish within 20 s"
        finally:
            device.destroy("VkDescriptorPool", descriptor_pool)
            device.destroy("VkFence", fence)
            device.destroy("VkCommandPool", pool)


def _record(
    device: Device,
    arena: Arena,
    commands: int,
    pipeline: Pipeline,
    packed: bytes,
    push: bytes,
    grid: tuple[int, int, int],
    raw: bool,
) -> int:
    layout = pipeline.layout
    table: Any = device.raw if raw else device.hot
    wrap: Any = param if raw else int
    commands_arg, layout_arg = wrap(commands), wrap(layout.handle)
    table.cmd_bind_pipeline(commands_arg, 1, wrap(pipeline.handle))
    if layout.push_set is not None:
        template = layout.push_template_param if raw else layout.push_template
        table.cmd_push_descriptor_set_with_template(commands_arg, template, layout_arg, layout.push_set, packed)
    descriptor_pool, sets = _ring_sets(device, arena, layout.rings) if layout.rings else (0, [])
    for ring, descriptor_set in zip(layout.rings, sets, strict=True):
        table.update_descriptor_set_with_template(
            wrap(device.handle), wrap(descriptor_set), wrap(ring.template), packed
        )
        address = binding.address(arena.array("VkDescriptorSet", [descriptor_set]))
        table.cmd_bind_descriptor_sets(commands_arg, 1, layout_arg, ring.number, 1, wrap(address), 0, None)
    if layout.push_constant_bytes:
        data = push.ljust(layout.push_constant_bytes, b"\0")
        table.cmd_push_constants(commands_arg, layout_arg, 0x20, 0, len(data), data)
    table.cmd_dispatch(commands_arg, *grid)
    barrier = arena.struct("VkMemoryBarrier", srcAccessMask=_SHADER_WRITE, dstAccessMask=_HOST_READ)
    table.cmd_pipeline_barrier(
        commands_arg, _COMPUTE_STAGE, _HOST_STAGE, 0, 1, wrap(binding.address(barrier)), 0, None, 0, None
    )
    return descriptor_pool


def _ring_sets(device: Device, arena: Arena, rings: Any) -> tuple[int, list[int]]:
    counts = {7: sum(r.storage for r in rings), 6: sum(r.uniform for r in rings)}
    sizes = [
        arena.struct("VkDescriptorPoolSize", type=kind, descriptorCount=count)
        for kind, count in counts.items()
        if count
    ]
    info = arena.struct("VkDescriptorPoolCreateInfo", maxSets=len(rings), poolSizeCount=len(sizes), pPoolSizes=sizes)
    pool = device.create("VkDescriptorPool", info)
    layouts = [r.set_layout for r in rings]
    info = arena.struct(
        "VkDescriptorSetAllocateInfo", descriptorPool=pool, descriptorSetCount=len(rings), pSetLayouts=layouts
    )
    out = arena.out("VkDescriptorSet[]", len(rings))
    device.calls.vkAllocateDescriptorSets(device.handle, info, out)
    return pool, [binding.address(item) for item in out]
