"""What one batch in flight has to itself: command buffers, fence, slices of staging memory, timestamps.

Frames are recycled: a batch takes one, and `retire` resets it once its fence has been waited for.
"""

from __future__ import annotations

from typing import Any

from vkqueue.errors import VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.landing import Landed, Passage
from vkqueue.gpu.mirrored import Taking
from vkqueue.gpu.staging import Slice, Slices

# Queries in one pool: two a row, for half the rows of a batch of 256, which is plenty for a rare option.
QUERIES = 256
_TOP_OF_PIPE, _BOTTOM_OF_PIPE = 0x1, 0x2000
_QUERY_64, _QUERY_WITH_AVAILABILITY = 0x1, 0x4


class Frame:
    """One batch's part of the device.

    Attributes:
        setup: command buffer for what has to happen before the rows: copies into scratch memory. Submitted before
            `main` in the same submission, if `setup_used`.
        main: command buffer of the rows.
        begun: whether `main` is being recorded.
        timed: whether the time of each row is measured; then `mark` follows the beginning of `main`, and each row.
        broken: a command buffer could not be begun; nothing of the batch can be submitted.
        slices: of staging memory.
        passages: what the batch copies from or to imported pages.
        results: (row index, slices to read), once the fence has signalled.
        host_sees: whether the device writes staging memory that the host reads or writes afterwards.
        copies_out: (scratch, staging) pairs to be copied after the rows.
        by_host: rows that the host has done.
        new_arenas: ids of the buffers of graphs that the batch makes.
        takings: what the batch writes of mirrored buffers.
        sets: descriptor sets that are the batch's alone (`many._Sets`).
    """

    def __init__(self, device: Device) -> None:
        vk = binding.vk
        self._device = device
        with Arena() as arena:
            info = arena.struct(
                "VkCommandPoolCreateInfo",
                flags=vk.VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
                queueFamilyIndex=device.queue_family,
            )
            self._pool = device.create("VkCommandPool", info)
            try:
                self._allocate(arena)
            except VkqueueError:
                device.destroy("VkCommandPool", self._pool)
                raise
        self.main_param, self.setup_param = param(self.main), param(self.setup)
        self.slices = Slices()
        self.begun = self.broken = self.setup_used = self.host_sees = False
        self.by_host: set[int] = set()
        self.new_arenas: list[int] = []
        self.takings: list[Taking] = []
        self.sets: list[Any] = []
        self.results: list[tuple[int, list[Slice | Landed]]] = []
        self.copies_out: list[tuple[Slice, Slice | Landed]] = []
        self.passages: list[Passage] = []
        self._begin = binding.ffi.new("VkCommandBufferBeginInfo *")
        self._begin.sType = vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        self._begin_address = binding.address(self._begin)
        self._submit = _SubmitInfo(self.setup, self.main)
        self._fences = binding.ffi.new("VkFence[]", [binding.ffi.cast("VkFence", self.fence)])
        self.timed = False
        self._query_pools: list[int] = []
        self._timings: list[tuple[int, int, int]] = []  # row index, query pool, first query
        self._queries_used = 0
        self._mark_pools: list[int] = []
        self._marks: list[int] = []  # row indices, in the order of the queries

    def _allocate(self, arena: Arena) -> None:
        device = self._device
        info = arena.struct(
            "VkCommandBufferAllocateInfo",
            commandPool=self._pool,
            level=binding.vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=2,
        )
        out = arena.out("VkCommandBuffer[]", 2)
        device.calls.vkAllocateCommandBuffers(device.handle, info, out)
        self.setup, self.main = binding.address(out[0]), binding.address(out[1])
        self.fence = device.create("VkFence", arena.struct("VkFenceCreateInfo"))

    def begin(self, command: int) -> None:
        """Begin `setup` or `main`.

        Raises:
            OutOfDeviceMemoryError: and `broken` is set.
        """
        self.broken = True
        self._device.hot.begin_command_buffer(command, self._begin_address)
        self.broken = False

    def end(self, command: int) -> None:
        """End `setup` or `main`.

        Raises:
            OutOfDeviceMemoryError
        """
        self._device.hot.end_command_buffer(command)

    def submit(self) -> None:
        """Submit what was recorded, with the fence.

        Raises:
            DeviceLostError, OutOfDeviceMemoryError
        """
        device = self._device
        device.calls.vkQueueSubmit(device.queue, 1, self._submit.pointer(self.setup_used), self.fence)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the fence; False when it has not signalled in time.

        Raises:
            DeviceLostError
        """
        timeout_ns = max(int(timeout_s * 1e9), 0)
        device = self._device
        result = device.calls.vkWaitForFences(device.handle, 1, self._fences, 1, timeout_ns)
        return result != binding.VK_TIMEOUT

    def start_timing(self, index: int) -> tuple[int, int]:
        """Record the first timestamp of a row; the token is for `stop_timing`."""
        pool, first = self._query(self._query_pools, self._queries_used)
        self._queries_used += 2
        self._device.hot.cmd_write_timestamp(self.main, _TOP_OF_PIPE, pool, first)
        self._timings.append((index, pool, first))
        return pool, first

    def _query(self, pools: list[int], used: int) -> tuple[int, int]:
        """The pool and place of the next query, of which so many were used."""
        if used // QUERIES == len(pools):
            with Arena() as arena:
                info = arena.struct(
                    "VkQueryPoolCreateInfo",
                    queryType=binding.vk.VK_QUERY_TYPE_TIMESTAMP,
                    queryCount=QUERIES,
                )
                pools.append(self._device.create("VkQueryPool", info))
        pool, first = pools[used // QUERIES], used % QUERIES
        if first == 0:
            self._device.hot.cmd_reset_query_pool(self.main, pool, 0, QUERIES)
        return pool, first

    def stop_timing(self, started: tuple[int, int]) -> None:
        """Record the second timestamp."""
        pool, first = started
        self._device.hot.cmd_write_timestamp(self.main, _BOTTOM_OF_PIPE, pool, first + 1)

    def times(self) -> dict[int, int]:
        """Row index -> microseconds between its timestamps. After the fence; any thread."""
        device = self._device
        times: dict[int, int] = {}
        values = binding.ffi.new("uint64_t[4]")
        flags = _QUERY_64 | _QUERY_WITH_AVAILABILITY
        for index, pool, first in self._timings:
            device.calls.vkGetQueryPoolResults(device.handle, pool, first, 2, 32, values, 16, flags)
            if values[1] and values[3]:
                ticks = (values[2] - values[0]) & device.timestamp_mask
                times[index] = round(ticks * device.timestamp_period / 1000)
        return times

    def mark(self, index: int) -> None:
        """Record when all that was recorded so far is done, up to this row; -1: before the first."""
        pool, place = self._query(self._mark_pools, len(self._marks))
        self._device.hot.cmd_write_timestamp(self.main, _BOTTOM_OF_PIPE, pool, place)
        self._marks.append(index)

    def spent(self) -> dict[int, int]:
        """Row index -> nanoseconds from the mark before it to its own. After the fence; any thread."""
        device = self._device
        spent: dict[int, int] = {}
        values = binding.ffi.new("uint64_t[]", 2 * QUERIES)
        flags = _QUERY_64 | _QUERY_WITH_AVAILABILITY
        before = None
        for number, index in enumerate(self._marks):
            place = number % QUERIES
            if place == 0:
                count = min(len(self._marks) - number, QUERIES)
                pool = self._mark_pools[number // QUERIES]
                device.calls.vkGetQueryPoolResults(device.handle, pool, 0, count, 16 * count, values, 16, flags)
            ticks, known = values[2 * place], values[2 * place + 1]
            if known and before is not None:
                spent[index] = round((ticks - before & device.timestamp_mask) * device.timestamp_period)
            before = ticks if known else None
        return spent

    def reset(self, ran: bool = True) -> None:
        """Make it ready for another batch. Its fence has been waited for, or it never ran."""
        device = self._device
        self._give_back(ran)
        self.begun = self.broken = self.setup_used = self.host_sees = False
        self.by_host.clear()
        self.new_arenas.clear()
        self.results.clear()
        self.copies_out.clear()
        self._timings.clear()
        self._queries_used = 0
        self._marks.clear()
        device.hot.reset_command_pool(device.handle, self._pool, 0)
        device.hot.reset_fences(device.handle, 1, binding.address(self._fences))

    def _give_back(self, ran: bool) -> None:
        """What it has of others'."""
        self.slices.give_back(ran)
        for taking in self.takings:
            taking.done = True
        self.takings.clear()
        for passage in self.passages:
            passage.over()
        self.passages.clear()
        for sets in self.sets:
            sets.free = True
        self.sets.clear()

    def close(self) -> None:
        """Destroy it; nothing of it may be in flight."""
        device = self._device
        self._give_back(ran=False)
        for pool in self._query_pools + self._mark_pools:
            device.destroy("VkQueryPool", pool)
        device.destroy("VkFence", self.fence)
        device.destroy("VkCommandPool", self._pool)


class _SubmitInfo:
    """A VkSubmitInfo for both command buffers or the second alone, made once."""

    def __init__(self, setup: int, main: int) -> None:
        ffi = binding.ffi
        self._commands = ffi.new("VkCommandBuffer[]", [ffi.cast("VkCommandBuffer", c) for c in (setup, main)])
        self._info: Any = ffi.new("VkSubmitInfo *")
        self._info.sType = binding.vk.VK_STRUCTURE_TYPE_SUBMIT_INFO

    def pointer(self, both: bool) -> Any:
        self._info.commandBufferCount = 2 if both else 1
        self._info.pCommandBuffers = self._commands if both else self._commands + 1
        return self._info
