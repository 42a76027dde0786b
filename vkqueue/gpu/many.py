"""MANY rows: thousands of launches of one pipeline, recorded without a line of Python for each.

Descriptors and constants of a chunk of launches are laid out by NumPy in memory at a fixed address, so that the ctypes
arguments that point to each launch's part are made once for all rows. The calls themselves are chained iterators
(`zip` of a `map` for each command), which the interpreter runs through at the cost of the calls alone.

Imported when the first MANY row comes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.errors import InternalError, NotFoundError
from vkqueue.gpu.buffers import Buffers, ClientBuffer
from vkqueue.gpu.commands import Commands
from vkqueue.gpu.descriptors import Place, Ring
from vkqueue.gpu.device import Device
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.hot import param
from vkqueue.gpu.layout import DESCRIPTOR_BYTES, PipelineLayout
from vkqueue.gpu.payload import Payloads
from vkqueue.gpu.pipeline import Pipeline, PipelineTable
from vkqueue.kernels.launches import Many
from vkqueue.model import Completion, Row

Column: TypeAlias = npt.NDArray[Any]

# Launches that are laid out at once, and bytes of it at most: enough that NumPy's cost for each operation is nothing,
# and little enough to stay in the cache.
CHUNK = 1024
_CHUNK_BYTES = 1 << 20
# Launches that are recorded before other threads may have the interpreter: some 0.3 ms, less than the switch interval.
_UNBROKEN = 256
# Sizes of a launch's part for which arguments are kept. Arbitrary; each takes 80 KiB.
_MAX_STRIDES = 16

_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_COMPUTE_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE


class _Scratch:
    """Memory at a fixed address, seen as rows of some stride; `pointers` of them are arguments for `Device.raw`."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)
        self._pointers: dict[int, list[Any]] = {}

    def rows(self, stride: int, count: int) -> tuple[Column, list[Any]]:
        """`count` rows of `stride` bytes, and a pointer to each. What was there is lost."""
        size = stride * count
        if size > len(self._memory):
            self._memory = np.zeros(max(size, _CHUNK_BYTES), np.uint8)
            self._pointers.clear()
        pointers = self._pointers.get(stride)
        if pointers is None or len(pointers) < count:
            if len(self._pointers) >= _MAX_STRIDES:
                self._pointers.clear()
            first = int(self._memory.ctypes.data)
            pointers = self._pointers[stride] = list(map(param, range(first, first + size, stride)))
        return self._memory[:size].reshape(count, stride), pointers


class _Sets:
    """Descriptor sets for the launches of one batch at a time; then for another's."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.used = 0
        self.free = True


class _Table:
    """The VkBuffers of a request, as columns. They are there for as long as `Buffers.undone` is the same."""

    def __init__(self, buffers: list[ClientBuffer], undone: int) -> None:
        self.buffers = buffers
        self.undone = undone
        self.handles = np.array([b.handle for b in buffers], np.uint64)
        self.sizes = np.array([b.size for b in buffers], np.uint64)


class ManyLauncher:
    """Records the MANY rows of a device.

    Args:
        gone: pipelines that were released and may not be named any more.
    """

    def __init__(
        self,
        device: Device,
        pipelines: PipelineTable,
        buffers: Buffers,
        payloads: Payloads,
        commands: Commands,
        gone: set[int],
    ) -> None:
        self._device = device
        self._raw = device.raw
        self._pipelines = pipelines
        self._buffers = buffers
        self._payloads = payloads
        self._commands = commands
        self._gone = gone
        self._timestamps = device.timestamp_period > 0
        self._descriptors = _Scratch()
        self._constants = _Scratch()
        self._sets: dict[int, list[_Sets]] = {}  # layout id to those in use and not

    def launch(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        """A MANY row, as a method of `transfers.Transfers`. What it leaves bound in the frame's commands is anything.

        Raises:
            NotFoundError: the pipeline or a buffer is gone.
            OutOfDeviceMemoryError: no memory for descriptor sets or transient entries. Nothing was recorded.
            InternalError: the row breaks the contract of `model`.
        """
        session, _, _, token, target, _, _, many, _, options = row
        pipeline = self._pipeline(target)
        layout = pipeline.layout
        if token.layout is not layout.layout or len(many.slots) != _descriptors(layout):
            raise InternalError(f"{len(many.slots)} descriptors were made for another layout than the pipeline's")
        table = self._table(many)
        places: list[Place] = []
        if many.transients:
            places, _ = self._payloads.place(frame, session, [(kind, _flat(v)) for kind, v in many.transients])
        recording = _Recording(self, frame, layout, many, table, places)
        if options is not None and options.timing and self._timestamps:
            started = frame.start_timing(index)
            recording.record(pipeline)
            frame.stop_timing(started)
        else:
            recording.record(pipeline)
        return True

    def layout_gone(self, layout: PipelineLayout) -> None:
        """Destroy the sets of a layout whose set layouts are about to go; nothing in flight uses it."""
        for sets in self._sets.pop(layout.layout.id, ()):
            sets.ring.close()

    def close(self) -> None:
        """Destroy the sets."""
        for every in self._sets.values():
            for sets in every:
                sets.ring.close()
        self._sets.clear()

    def _pipeline(self, id: int) -> Pipeline:
        pipeline = self._pipelines.get(id)
        if pipeline is None or id in self._gone:
            raise NotFoundError(f"pipeline {id} was never built or is gone", {"pipeline": id})
        return pipeline

    def _table(self, many: Many) -> _Table:
        # For all requests that bind the same: none of these buffers is freed before the last part of the last of them.
        table, undone = many.args.resolved, self._buffers.undone
        if table is None or table.undone != undone:
            table = many.args.resolved = _Table([self._buffers.get(id) for id in many.buffers], undone)
        return table  # type: ignore[no-any-return]  # what `resolved` holds is this file's business

    def _sets_for(self, frame: Frame, layout: PipelineLayout, count: int) -> tuple[Ring, int]:
        """Room for `count` groups of sets in a ring that is the batch's alone, and the first of them."""
        for sets in frame.sets:
            if sets.ring.layout is layout:
                break
        else:
            every = self._sets.setdefault(layout.layout.id, [])
            sets = next((known for known in every if known.free), None)
            if sets is None:
                sets = _Sets(Ring(self._device, layout))
                every.append(sets)
            sets.free, sets.used = False, 0
            frame.sets.append(sets)
        sets.ring.reserve(sets.used + count)
        first = sets.used
        sets.used += count
        return sets.ring, first


class _Recording:
    """One row being recorded."""

    def __init__(
        self,
        of: ManyLauncher,
        frame: Frame,
        layout: PipelineLayout,
        many: Many,
        table: _Table,
        places: list[Place],
    ) -> None:
        self._of = of
        self._raw = of._raw
        self._main = frame.main_param
        self._layout = layout
        self._many = many
        self._table = table
        self._places = places
        self._stride = DESCRIPTOR_BYTES * len(many.slots)
        self._differ = any(isinstance(value, np.ndarray) for slot in many.slots for value in slot[:3])
        self._ring: Ring | None = None
        self._first_set = 0
        if layout.rings:
            self._ring, self._first_set = of._sets_for(frame, layout, many.count if self._differ else 1)

    def record(self, pipeline: Pipeline) -> None:
        main, many, layout = self._main, self._many, self._layout
        self._raw.cmd_bind_pipeline(main, _COMPUTE_POINT, pipeline.handle_param)
        push_bytes = layout.push_constant_bytes
        if push_bytes and isinstance(many.constants, bytes):
            if len(many.constants) != push_bytes:
                raise InternalError(f"{len(many.constants)} bytes of constants for a block of {push_bytes}")
            self._raw.cmd_push_constants(main, layout.handle_param, _COMPUTE_STAGE, 0, push_bytes, many.constants)
        if many.slots and not self._differ:
            _run(self._bind(0, 1), 1)
        step = CHUNK if not self._differ else max(1, min(CHUNK, _CHUNK_BYTES // self._stride))
        for start in range(0, many.count, step):
            self._record_chunk(start, min(start + step, many.count))

    def _record_chunk(self, start: int, stop: int) -> None:
        count = stop - start
        calls: list[Iterator[Any]] = []
        if self._differ:
            calls += self._bind(start, count)
        if isinstance(self._many.constants, np.ndarray):
            calls.append(self._push_constants(start, stop))
        grids = self._many.grids
        xyz: Iterable[Any] = map(repeat, grids) if isinstance(grids, tuple) else grids[start:stop].T.tolist()
        calls.append(map(self._raw.cmd_dispatch, repeat(self._main, count), *xyz))
        launches = zip(*calls, strict=False)
        barriers = self._many.barriers
        at = start
        for place in range(bisect_left(barriers, start), bisect_left(barriers, stop)):
            _run_some(launches, barriers[place] - at)
            at = barriers[place]
            self._of._commands.barrier_of_launches(self._main)
        _run_some(launches, stop - at)

    def _push_constants(self, start: int, stop: int) -> Iterator[Any]:
        data, size = self._many.constants[start:stop], self._layout.push_constant_bytes
        if data.shape[1] != size:
            raise InternalError(f"{data.shape[1]} bytes of constants for a block of {size}")
        rows, pointers = self._of._constants.rows(size, stop - start)
        rows[:] = data
        return map(
            self._raw.cmd_push_constants, repeat(self._main), repeat(self._layout.handle_param), repeat(_COMPUTE_STAGE),
            repeat(0), repeat(size), islice(pointers, stop - start),
        )  # fmt: skip

    def _bind(self, start: int, count: int) -> list[Iterator[Any]]:
        """Calls that give launches their descriptors, an iterator for each command."""
        rows, pointers = self._of._descriptors.rows(self._stride, count)
        self._lay_out(rows.view(np.uint64).reshape(count, -1, 3), start)
        layout, main = self._layout, repeat(self._main)
        vk_layout = repeat(layout.handle_param)
        calls: list[Iterator[Any]] = []
        if layout.push_template_param is not None:
            push = self._raw.cmd_push_descriptor_set_with_template
            template, number = repeat(layout.push_template_param), repeat(layout.push_set or 0)
            calls.append(map(push, main, template, vk_layout, number, islice(pointers, count)))
        if self._ring is not None:
            ring, first = self._ring, self._first_set + start
            for i in range(count):
                ring.write(first + i, None, pointers[i])
            bound = [ring.bindings(first + i) for i in range(count)]
            bind = self._raw.cmd_bind_descriptor_sets
            for place, (number_of_first, sets, _) in enumerate(bound[0]):
                handles = [each[place][2] for each in bound]
                calls.append(map(
                    bind, main, repeat(_COMPUTE_POINT), vk_layout, repeat(number_of_first), repeat(sets), handles,
                    repeat(0), repeat(None),
                ))  # fmt: skip
        return calls

    def _lay_out(self, block: Column, start: int) -> None:
        """The VkDescriptorBufferInfos of launches from `start` on: (launch, descriptor, (buffer, offset, range))."""
        stop = start + len(block)

        def piece(value: Any) -> Any:
            return value[start:stop] if isinstance(value, np.ndarray) else value

        for number, slot in enumerate(self._many.slots):
            buffer, offset, size = piece(slot.buffer), piece(slot.offset), piece(slot.size)
            into = block[:, number]
            into[:, 1] = offset
            into[:, 2] = size
            if isinstance(buffer, int) and buffer < 0:
                handle, first = self._places[-1 - buffer]
                into[:, 0] = handle
                into[:, 1] += np.uint64(first)
                into[:, 2] = np.maximum(into[:, 2], 1)  # a range must not be empty; see `Descriptors.pack`
                continue
            into[:, 0] = self._table.handles[buffer]
            self._check(into, self._table.sizes[buffer])
            if not into[:, 2].all():
                self._replace_empty(into, buffer)

    def _check(self, ranges: Column, sizes: Any) -> None:
        if (ranges[:, 1] > sizes).any() or (ranges[:, 2] > sizes - ranges[:, 1]).any():
            raise InternalError("a range of dispatch_many lies outside its buffer")

    def _replace_empty(self, into: Column, places: Any) -> None:
        for launch in np.flatnonzero(into[:, 2] == 0).tolist():
            place = places if isinstance(places, int) else int(places[launch])
            into[launch] = self._of._buffers.empty_range(self._table.buffers[place])


def _run(calls: list[Iterator[Any]], count: int) -> None:
    _run_some(zip(*calls, strict=False), count)


def _run_some(launches: Iterator[Any], count: int) -> None:
    """Record the next `count` launches; other threads get a chance now and then."""
    while count > 0:
        some = min(count, _UNBROKEN)
        deque(islice(launches, some), maxlen=0)
        count -= some


def _descriptors(layout: PipelineLayout) -> int:
    return sum(count for _, bindings in layout.layout.sets for _, _, count in bindings)


def _flat(value: Any) -> Any:
    return value.reshape(-1).data if isinstance(value, np.ndarray) else value
