"""Where the transient entries of a launch lie: data that came with the job, and results that leave with it.

What the device reaches quickly in memory that the host sees is bound there. The rest lies in scratch memory on the
device; the batch's `setup` commands copy data into it, and what it holds in the end is copied out after the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vkqueue.gpu.buffers import Buffers, DeviceBuffer
from vkqueue.gpu.commands import Commands, Target
from vkqueue.gpu.descriptors import Place
from vkqueue.gpu.device import Device
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.landing import Landed, Landings
from vkqueue.gpu.memory import MemoryType
from vkqueue.gpu.space import align_up
from vkqueue.gpu.staging import Slice, StagingPool

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Tuning:
    """Thresholds in bytes. None: by the kind of memory.

    Attributes:
        direct_write_max: largest write into a client's buffer that the host does through mapped memory.
            Write-combined memory behind a bus takes 64 KiB in a few microseconds; above, the worker has better to do
            than to wait for the bus.
        host_in_max: largest `in` or uniform entry that a kernel reads from memory of the host's.
        host_out_max: largest `out` or `inout` entry that a kernel writes in memory of the host's, where each access
            crosses the bus. On an H200 64 KiB that are written once took 87 µs there and 130 µs with copies,
            1 MiB the same either way; kernels that come back to their data gain from copies sooner.
        staging_keep: idle bytes of each kind of staging kept for the next batches.
        staging_limit: bytes of each kind of staging at once.
    """

    direct_write_max: int = 64 << 10
    host_in_max: int | None = None
    host_out_max: int | None = None
    staging_keep: int = 128 << 20
    staging_limit: int | None = None


class Payloads:
    """The staging pools of a device, and the choice between them.

    Attributes:
        upload, download, scratch: pools of slices that the host writes, that the host reads, and that only the
            device sees.
    """

    def __init__(self, device: Device, buffers: Buffers, commands: Commands, tuning: Tuning) -> None:
        self._commands = commands
        types = buffers.types
        # Robust access lets a kernel reach the end of its range rounded up to these.
        alignment = max(
            4,
            device.storage_alignment,
            device.uniform_alignment,
            device.robust_storage_alignment,
            device.robust_uniform_alignment,
        )

        def pool(name: str, memory_type: MemoryType) -> StagingPool:
            def make(size: int) -> DeviceBuffer:
                return buffers.make(size, memory_type)

            return StagingPool(
                name,
                make,
                buffers.destroy,
                alignment=alignment if memory_type.coherent else max(alignment, device.atom_size),
                keep=tuning.staging_keep,
                limit=tuning.staging_limit or memory_type.heap_size // 4,
            )

        self.upload = pool("upload", types.upload)
        self.download = pool("download", types.download)
        self.scratch = pool("scratch", types.client)
        near = types.upload.device_local
        self._host_in_max = _or(tuning.host_in_max, UNLIMITED if near else 64 << 10)
        near = types.download.device_local
        self._host_out_max = _or(tuning.host_out_max, UNLIMITED if near else 64 << 10)
        self._per_session = not device.robust_ranges
        self._landings = Landings(device, buffers.usage, buffers.imports)
        buffers.reclaim = self.trim

    @property
    def reserved(self) -> int:
        """Bytes of all staging blocks."""
        return self.upload.reserved + self.download.reserved + self.scratch.reserved

    def place(
        self, frame: Frame, session: object, payload: Sequence[tuple[str, Any]]
    ) -> tuple[list[Place], list[Slice | Landed]]:
        """Find room for a launch's transient entries and put their data there.

        Returns:
            Where each lies; and the slices that hold the results once the batch is done, in the payload's order.

        Raises:
            OutOfDeviceMemoryError
        """
        key = session if self._per_session else None
        places: list[Place] = []
        results: list[Slice | Landed] = []
        for kind, value in payload:
            if kind == "out" or kind == "inout":
                data = b"" if kind == "out" else value
                size = value if kind == "out" else len(value)
                bound, result = self._output(frame, key, size, data)
                results.append(result)
            else:
                bound = self._input(frame, key, value)
            places.append((bound.handle, bound.offset))
        # A kernel may write what it was given to read; the host must not write there again before that is done.
        frame.host_sees = True
        return places, results

    def source(self, frame: Frame, data: Any, room: int) -> tuple[Target, int]:
        """(buffer, offset) of `data`, followed by zeros up to `room` bytes, for a copy by the device.

        Raises:
            OutOfDeviceMemoryError
        """
        passage = self._landings.source(data, room)
        if passage is not None:
            frame.passages.append(passage)
            return passage.landing.buffer, 0
        source = frame.slices.take(self.upload, room)
        source.fill(data)
        return source.block.buffer, source.offset

    def result(self, frame: Frame, size: int) -> Slice | Landed:
        """Where the device may copy `size` bytes to that the host will read.

        Raises:
            OutOfDeviceMemoryError
        """
        passage = self._landings.target(size)
        if passage is None:
            return frame.slices.take(self.download, size)
        frame.passages.append(passage)
        return Landed(passage)

    def trim(self) -> None:
        """Free the idle blocks."""
        self._landings.trim()
        for pool in (self.upload, self.download, self.scratch):
            pool.trim()

    def close(self) -> None:
        """Free all blocks."""
        self._landings.close()
        for pool in (self.upload, self.download, self.scratch):
            pool.close()

    def _input(self, frame: Frame, key: object, data: Any) -> Slice:
        size = len(data)
        if size > self._host_in_max:
            return self._scratch(frame, key, size, data)
        bound = frame.slices.take(self.upload, size, key)
        bound.fill(data)
        return bound

    def _output(self, frame: Frame, key: object, size: int, data: Any) -> tuple[Slice, Slice | Landed]:
        if size <= self._host_out_max:
            bound = frame.slices.take(self.download, size, key)
            bound.fill(data)
            return bound, bound
        bound = self._scratch(frame, key, size, data)
        result = self.result(frame, size)
        frame.copies_out.append((bound, result))
        return bound, result

    def _scratch(self, frame: Frame, key: object, size: int, data: Any) -> Slice:
        source = self.source(frame, data, align_up(size or 1, self.scratch.alignment)) if len(data) else None
        bound = frame.slices.take(self.scratch, size, key)
        commands = self._commands
        setup = commands.open_setup(frame)
        target = bound.block.buffer
        if bound.fresh:
            commands.fill(setup, target, 0, bound.block.size, 0)
            commands.barrier(setup)
        if source is None:
            commands.fill(setup, target, bound.offset, bound.room, 0)
        else:
            commands.copy(setup, source[0], source[1], target, bound.offset, bound.room)
        return bound


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
