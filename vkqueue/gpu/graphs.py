"""Graphs: each instance is recorded once, into a secondary command buffer, and executed by each of its launches.

What a recording names (buffers, pipelines, descriptor sets) must stay as it is for as long as the recording lives, so
it goes when one of these goes. Its sets are its own, for no others may be written while it lives.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from vkqueue.errors import InternalError, NotFoundError, VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.buffers import Buffers
from vkqueue.gpu.commands import Commands
from vkqueue.gpu.descriptors import Descriptors, Ring
from vkqueue.gpu.device import Device
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.hot import param
from vkqueue.gpu.landing import Landed
from vkqueue.gpu.layout import PipelineLayout
from vkqueue.gpu.order import Order
from vkqueue.gpu.payload import Payloads
from vkqueue.gpu.pipeline import Pipeline, PipelineTable
from vkqueue.gpu.staging import Slice
from vkqueue.model import COPY, DISPATCH, FILL, Completion, GraphInstance, GraphNode, Row

# Recordings kept; the longest unused one makes room, and is recorded anew when it is launched again. Arbitrary: with
# 64 nodes each they take some 20 MB.
MAX_RECORDINGS = 1024

_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_COMPUTE_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE
_SECONDARY = 1  # VK_COMMAND_BUFFER_LEVEL_SECONDARY
_SIMULTANEOUS_USE = 0x4  # VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT: launches of one instance overlap


class Recording:
    """An instance's commands.

    Attributes:
        handle: VkCommandBuffer; `param`, `pointer`: for recording into it, for executing it.
        slots: descriptor sets that it has to itself.
        buffers, pipelines: ids of what it names.
    """

    __slots__ = ("buffers", "handle", "param", "pipelines", "pointer", "slots")

    def __init__(self, handle: int, instance: GraphInstance) -> None:
        self.handle = handle
        self.param = param(handle)
        self.pointer = struct.pack("<Q", handle)
        self.slots: list[tuple[_Sets, int]] = []
        self.buffers = frozenset(buffer for buffer, _ in instance.places)
        self.pipelines = frozenset(node.pipeline for node in instance.nodes if node.pipeline)


class _Sets:
    """Descriptor sets of one layout for recordings."""

    def __init__(self, device: Device, layout: PipelineLayout) -> None:
        self.ring = Ring(device, layout)
        self._free: list[int] = []
        self._count = 0

    def take(self, data: bytes) -> int:
        """A slot with these descriptors."""
        slot = self._free[-1] if self._free else self._count
        self.ring.write(slot, None, data)
        if self._free:
            self._free.pop()
        else:
            self._count += 1
        return slot

    def give_back(self, slot: int) -> None:
        self._free.append(slot)


class Graphs:
    """The recordings of a device.

    Attributes:
        gone: pipelines that were released and may not be named any more; the recorder's.
        dropped: recordings to be destroyed once all that was submitted so far is over.
    """

    def __init__(
        self,
        device: Device,
        pipelines: PipelineTable,
        buffers: Buffers,
        descriptors: Descriptors,
        payloads: Payloads,
        commands: Commands,
    ) -> None:
        self._device = device
        self._pipelines = pipelines
        self._buffers = buffers
        self._descriptors = descriptors
        self._payloads = payloads
        self._commands = commands
        self._timestamps = device.timestamp_period > 0
        self._recordings: OrderedDict[int, Recording] = OrderedDict()
        self._sets: dict[int, _Sets] = {}  # by layout id
        self._pool = 0
        self._inheritance = binding.ffi.new("VkCommandBufferInheritanceInfo *")
        self._inheritance.sType = binding.vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO
        self._begin = binding.ffi.new("VkCommandBufferBeginInfo *")
        self._begin.sType = binding.vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = _SIMULTANEOUS_USE
        self._begin.pInheritanceInfo = self._inheritance
        self._begin_address = binding.address(self._begin)
        self.gone: set[int] = set()
        self.dropped: list[Recording] = []

    def launch(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        """A GRAPH row, as a method of `transfers.Transfers`. Nothing stays bound in the frame's commands behind it.

        Raises:
            NotFoundError: a buffer or pipeline is gone.
            OutOfDeviceMemoryError: no memory for the instance's arenas, its recording, or staging.
        """
        instance: GraphInstance = row[4]
        payload, options = row[7], row[9]
        recording = self._recordings.get(instance.id)
        if recording is None:
            self._make_arenas(frame, instance)
            recording = self._record(instance)
        else:
            self._recordings.move_to_end(instance.id)
        # All that may fail comes first: a launch that failed must not have run.
        if payload is not None or instance.transients:
            self._bring(frame, instance, payload or ())
        results = self._room(frame, instance, payload) if instance.results else []
        timed = frame.start_timing(index) if options is not None and options.timing and self._timestamps else None
        self._commands.execute(frame.main_param, recording.pointer)
        if timed is not None:
            frame.stop_timing(timed)
        if instance.results:
            self._fetch(frame, index, instance, results)
        return True

    def forget(
        self, buffers: Iterable[int] = (), pipelines: Iterable[int] = (), instances: Iterable[int] = ()
    ) -> list[Recording]:
        """Take out the recordings of these instances, and those that name one of the others; for `destroy`."""
        gone = [recording for id in instances if (recording := self._recordings.pop(id, None)) is not None]
        lost_buffers, lost_pipelines = set(buffers), set(pipelines)
        if self._recordings and (lost_buffers or lost_pipelines):
            for id, recording in list(self._recordings.items()):
                if not (lost_buffers.isdisjoint(recording.buffers) and lost_pipelines.isdisjoint(recording.pipelines)):
                    del self._recordings[id]
                    gone.append(recording)
        return gone

    def take_dropped(self) -> list[Recording]:
        """`dropped`, which is empty then."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def destroy(self, recordings: Iterable[Recording]) -> None:
        """Destroy what `forget` returned; nothing in flight may use it."""
        device = self._device
        for recording in recordings:
            for sets, slot in recording.slots:
                sets.give_back(slot)
            handle = binding.ffi.cast("VkCommandBuffer", recording.handle)
            array = binding.ffi.new("VkCommandBuffer[]", [handle])
            device.calls.vkFreeCommandBuffers(device.handle, self._pool, 1, array)

    def layout_gone(self, layout: PipelineLayout) -> None:
        """Destroy the sets of a layout that no recording uses any more."""
        sets = self._sets.pop(layout.layout.id, None)
        if sets is not None:
            sets.ring.close()

    def close(self) -> None:
        """Destroy everything; the device is idle."""
        self._recordings.clear()
        for sets in self._sets.values():
            sets.ring.close()
        self._sets.clear()
        if self._pool:
            self._device.destroy("VkCommandPool", self._pool)
            self._pool = 0

    # Memory

    def _make_arenas(self, frame: Frame, instance: GraphInstance) -> None:
        """Those that are not there yet; zeroed, for the memory was someone else's before."""
        for id, size in instance.arenas:
            try:
                self._buffers.get(id)
            except NotFoundError:
                setup = self._commands.open_setup(frame)
                buffer = self._buffers.create(id, size)
                frame.new_arenas.append(id)
                self._commands.fill(setup, buffer, 0, buffer.capacity, 0)

    def _bring(self, frame: Frame, instance: GraphInstance, payload: Any) -> None:
        """Put what came with the launch into its places."""
        main, commands = frame.main_param, self._commands
        for (kind, value), (place, size) in zip(payload, instance.transients, strict=True):
            if not size:
                continue
            id, first = instance.places[place]
            target = self._buffers.get(id)
            if kind == "out":
                commands.fill(main, target, first, -(-size // 4) * 4, 0)  # places have room for whole words
                continue
            if len(value) != size:
                raise InternalError(f"{len(value)} bytes came for a place of {size}")
            source, offset = self._payloads.source(frame, value, size)
            commands.copy(main, source, offset, target, first, size)
        commands.barrier(main)

    def _room(self, frame: Frame, instance: GraphInstance, payload: Any) -> list[tuple[Slice | Landed, int, int]]:
        """Where the host reads what leaves with the launch, with its place and size."""
        return [
            (self._payloads.result(frame, size), place, size)
            for (kind, _), (place, size) in zip(payload, instance.transients, strict=True)
            if kind != "in"
        ]

    def _fetch(
        self, frame: Frame, index: int, instance: GraphInstance, results: list[tuple[Slice | Landed, int, int]]
    ) -> None:
        """Copy what leaves with the launch there."""
        main, commands = frame.main_param, self._commands
        commands.barrier(main)
        for target, place, size in results:
            if size:
                id, first = instance.places[place]
                commands.copy(main, self._buffers.get(id), first, target.block.buffer, target.offset, size)
        frame.results.append((index, [target for target, _, _ in results]))
        frame.host_sees = True

    # Recording

    def _record(self, instance: GraphInstance) -> Recording:
        recording = Recording(self._new_command(), instance)
        hot = self._device.hot
        try:
            hot.begin_command_buffer(recording.handle, self._begin_address)
            self._record_nodes(recording, instance)
            hot.end_command_buffer(recording.handle)
        except VkqueueError:
            self.destroy((recording,))
            raise
        self._recordings[instance.id] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self.dropped.append(self._recordings.popitem(last=False)[1])
        return recording

    def _record_nodes(self, recording: Recording, instance: GraphInstance) -> None:
        command, commands, labels = recording.param, self._commands, self._device.debug_labels
        bound: Pipeline | None = None
        constants: bytes | None = None
        order = Order(commands)  # a barrier in here is for what is in here
        for node in instance.nodes:
            order.before(command, node.barrier, moves=node.op != DISPATCH)
            if labels:
                commands.begin_label(command, node.label)
            if node.op == DISPATCH:
                pipeline = self._pipeline(node)
                if bound is None or bound.layout is not pipeline.layout:
                    constants = None  # other layouts are taken to disturb them
                if bound is not pipeline:
                    self._device.raw.cmd_bind_pipeline(command, _COMPUTE_POINT, pipeline.handle_param)
                    bound = pipeline
                self._bind(recording, pipeline.layout, self._packed(instance, node))
                wanted = instance.constants(node)
                self._dispatch(command, pipeline.layout, wanted if wanted != constants else None, instance.grid(node))
                constants = wanted
            else:
                self._move(command, instance, node)
            if labels:
                commands.end_label(command)

    def _dispatch(
        self, command: Any, layout: PipelineLayout, constants: bytes | None, grid: tuple[int, int, int]
    ) -> None:
        """Constants only where they are not pushed already."""
        size, raw = layout.push_constant_bytes, self._device.raw
        if size and constants is not None:
            if len(constants) != size:
                raise InternalError(f"{len(constants)} bytes of constants for a block of {size}")
            raw.cmd_push_constants(command, layout.handle_param, _COMPUTE_STAGE, 0, size, constants)
        if all(grid):
            raw.cmd_dispatch(command, *grid)

    def _pipeline(self, node: GraphNode) -> Pipeline:
        pipeline = self._pipelines.get(node.pipeline)
        if pipeline is None or node.pipeline in self.gone:
            raise NotFoundError(f"pipeline {node.pipeline} was never built or is gone", {"pipeline": node.pipeline})
        if pipeline.layout.layout is not node.layout:
            raise InternalError(f"node {node.label!r} was made for another layout than its pipeline's")
        return pipeline

    def _packed(self, instance: GraphInstance, node: GraphNode) -> bytes:
        values: list[int] = []
        for place, offset, size in node.entries:
            id, first = instance.places[place]
            values += self._descriptors.client_entry(id, first + offset, size)
        return struct.pack(f"<{len(values)}Q", *values)

    def _bind(self, recording: Recording, layout: PipelineLayout, data: bytes) -> None:
        raw, command = self._device.raw, recording.param
        if layout.push_template_param is not None:
            raw.cmd_push_descriptor_set_with_template(
                command, layout.push_template_param, layout.handle_param, layout.push_set or 0, data
            )
        if layout.rings:
            sets = self._sets.get(layout.layout.id)
            if sets is None:
                sets = self._sets[layout.layout.id] = _Sets(self._device, layout)
            slot = sets.take(data)
            recording.slots.append((sets, slot))
            for first, count, handles in sets.ring.bindings(slot):
                raw.cmd_bind_descriptor_sets(
                    command, _COMPUTE_POINT, layout.handle_param, first, count, handles, 0, None
                )

    def _move(self, command: Any, instance: GraphInstance, node: GraphNode) -> None:
        """A node that moves bytes."""
        where = []
        for place, offset, size in node.entries:
            id, first = instance.places[place]
            buffer = self._buffers.get(id)
            if first + offset + size > buffer.size:
                raise InternalError(f"range {first + offset} + {size} lies outside buffer {id} of {buffer.size} bytes")
            where.append((buffer, first + offset))
        size = node.entries[0][2]
        if not size:
            return
        if node.op == COPY:
            (source, start), (target, place) = where
            self._commands.copy(command, source, start, target, place, size)
        elif node.op == FILL:
            self._commands.fill(command, where[0][0], where[0][1], size, instance.data(node))
        else:
            self._commands.update(command, where[0][0], where[0][1], instance.data(node))

    def _new_command(self) -> int:
        device = self._device
        with Arena() as arena:
            if not self._pool:
                info = arena.struct("VkCommandPoolCreateInfo", queueFamilyIndex=device.queue_family)
                self._pool = device.create("VkCommandPool", info)
            info = arena.struct(
                "VkCommandBufferAllocateInfo", commandPool=self._pool, level=_SECONDARY, commandBufferCount=1
            )
            out = arena.out("VkCommandBuffer[]", 1)
            device.calls.vkAllocateCommandBuffers(device.handle, info, out)
            return binding.address(out[0])
