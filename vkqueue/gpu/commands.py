"""The commands beside launches: barriers, copies, fills, labels. Recorded with the GIL kept."""

from __future__ import annotations

import struct
from typing import Any, Protocol

from vkqueue.gpu import binding
from vkqueue.gpu.device import Device
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.hot import param

COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000  # VkPipelineStageFlagBits
_HOST_READ, _HOST_WRITE = 0x2000, 0x4000  # VkAccessFlagBits
_MEMORY_READ, _MEMORY_WRITE = 0x8000, 0x10000
_UNIFORM_READ, _SHADER_READ, _SHADER_WRITE = 0x8, 0x20, 0x40

_region = struct.Struct("<3Q").pack  # VkBufferCopy
_barrier = struct.Struct("<IIQII")  # VkMemoryBarrier
_MEMORY_BARRIER = 46  # VK_STRUCTURE_TYPE_MEMORY_BARRIER


class Target(Protocol):
    """A VkBuffer to copy from or to."""

    handle: int
    param: Any


class Commands:
    """Records into the command buffers of frames, which are given as handles prepared with `hot.param`."""

    def __init__(self, device: Device) -> None:
        self._hot = device.hot
        self._pipeline_barrier = device.raw.cmd_pipeline_barrier
        self._copy_buffer = device.raw.cmd_copy_buffer
        self._execute = device.raw.cmd_execute_commands
        self._begin_label = device.raw.cmd_begin_label
        self._end_label = device.raw.cmd_end_label
        # The bytes live as long as this object, so their addresses may be kept.
        self._all = _barrier.pack(_MEMORY_BARRIER, 0, 0, _MEMORY_WRITE, _MEMORY_READ | _MEMORY_WRITE)
        self._launches = _barrier.pack(
            _MEMORY_BARRIER, 0, 0, _SHADER_WRITE, _UNIFORM_READ | _SHADER_READ | _SHADER_WRITE
        )
        self._host = _barrier.pack(_MEMORY_BARRIER, 0, 0, _MEMORY_WRITE, _HOST_READ | _HOST_WRITE)
        self._label = binding.ffi.new("VkDebugUtilsLabelEXT *")
        self._label.sType = binding.vk.VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT
        self._label_param = param(binding.address(self._label))

    def barrier(self, command: Any) -> None:
        """Order everything before, on the queue, with everything after: launches, copies and fills."""
        both = COMPUTE | TRANSFER
        self._pipeline_barrier(command, both, both, 0, 1, self._all, 0, None, 0, None)

    def barrier_of_launches(self, command: Any) -> None:
        """Order the launches before with the launches after; see `order.Order` for when that is enough."""
        self._pipeline_barrier(command, COMPUTE, COMPUTE, 0, 1, self._launches, 0, None, 0, None)

    def barrier_to_host(self, command: Any) -> None:
        """Make everything written so far visible to the host once the fence has signalled.

        Waiting for the fence alone does not: it makes writes available, not visible to the host. The host may then
        also write there itself without an older write of the device's arriving later.
        """
        self._pipeline_barrier(command, COMPUTE | TRANSFER, HOST, 0, 1, self._host, 0, None, 0, None)

    def copy(self, command: Any, source: Target, start: int, target: Target, place: int, size: int) -> None:
        """Copy `size` bytes, at least 1."""
        self._copy_buffer(command, source.param, target.param, 1, _region(start, place, size))

    def fill(self, command: Any, target: Target, place: int, size: int, word: int) -> None:
        """Fill a range, multiples of 4, with a 32-bit word."""
        self._hot.cmd_fill_buffer(command, target.param, place, size, word)

    def update(self, command: Any, target: Target, place: int, data: bytes) -> None:
        """Write data that stays in the command buffer: a multiple of 4, at most 64 KiB."""
        self._hot.cmd_update_buffer(command, target.param, place, len(data), data)

    def execute(self, command: Any, recorded: bytes) -> None:
        """Execute a secondary command buffer, given as the bytes of its handle. Nothing stays bound behind it."""
        self._execute(command, 1, recorded)

    def open_setup(self, frame: Frame) -> Any:
        """The frame's `setup` command buffer, begun.

        Raises:
            OutOfDeviceMemoryError
        """
        if not frame.setup_used:
            frame.begin(frame.setup)
            frame.setup_used = True
        return frame.setup_param

    def close_setup(self, frame: Frame) -> None:
        """End `setup`; what it did is ordered before the rows.

        Raises:
            OutOfDeviceMemoryError
        """
        self.barrier(frame.setup_param)
        frame.end(frame.setup)

    def begin_label(self, command: Any, text: str) -> None:
        """Open a label round what follows, for graphics debuggers."""
        name = binding.ffi.new("char[]", text.encode())
        self._label.pLabelName = name
        self._begin_label(command, self._label_param)

    def end_label(self, command: Any) -> None:
        """Close the last label."""
        self._end_label(command)
