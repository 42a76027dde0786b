"""Device memory without a device: which types are chosen, how few allocations are made, what errors say."""

from __future__ import annotations

import pytest

from vkqueue.errors import OutOfDeviceMemoryError, TooLargeError
from vkqueue.gpu.memory import MIB, Allocation, Memory, MemoryType, choose_types

GIB = 1 << 30


class FakeSource:
    """Hands out block numbers until `capacity` bytes are gone."""

    def __init__(self, capacity: int = 1 << 60) -> None:
        self.capacity = capacity
        self.live: dict[int, int] = {}
        self.calls = 0
        self.dedicated: dict[int, int] = {}

    def allocate(self, memory_type: MemoryType, size: int, buffer: int) -> tuple[int, None]:
        if sum(self.live.values()) + size > self.capacity:
            raise OutOfDeviceMemoryError("vkAllocateMemory failed")
        self.calls += 1
        self.live[self.calls] = size
        if buffer:
            self.dedicated[self.calls] = buffer
        return self.calls, None

    def free(self, handle: int) -> None:
        del self.live[handle]


def mtype(index: int, heap: int, size: int, flags: str) -> MemoryType:
    return MemoryType(index, heap, size, "d" in flags, "v" in flags, "c" in flags, "h" in flags)


LOCAL = mtype(0, 0, 16 * GIB, "d")


def make(capacity: int = 1 << 60, **limits: int) -> tuple[Memory, FakeSource]:
    source = FakeSource(capacity)
    limits = {"max_allocations": 4096, "max_allocation_size": 4 * GIB} | limits
    return Memory(source, **limits), source


# The memory types of real devices, in their drivers' order: d device-local, v host-visible, c coherent, h cached.
DEVICES = {
    "lavapipe": ([mtype(0, 0, 8 * GIB, "dvch")], (0, 0, 0)),
    "H200, resizable BAR": (
        [mtype(0, 1, 100 * GIB, ""), mtype(1, 0, 140 * GIB, "d"), mtype(2, 1, 100 * GIB, "vc"),
         mtype(3, 1, 100 * GIB, "vch"), mtype(4, 0, 140 * GIB, "dvc")],
        (4, 4, 3),
    ),
    "discrete, BAR window of 256 MiB": (
        [mtype(0, 1, 32 * GIB, ""), mtype(1, 0, 8 * GIB, "d"), mtype(2, 1, 32 * GIB, "vc"),
         mtype(3, 1, 32 * GIB, "vch"), mtype(4, 2, 256 * MIB, "dvc")],
        (1, 2, 3),
    ),
    "integrated, cached and write-combined": (
        [mtype(0, 0, 12 * GIB, "d"), mtype(1, 0, 12 * GIB, "dvc"), mtype(2, 0, 12 * GIB, "dvch")],
        (2, 1, 2),
    ),
    "mobile, cached only without coherence": (
        [mtype(0, 0, 4 * GIB, "dvc"), mtype(1, 0, 4 * GIB, "dvh")],
        (0, 0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
def test_types_chosen_on_real_devices(name: str) -> None:
    types, (client, upload, download) = DEVICES[name]
    choice = choose_types(types, 0xFF)
    assert (choice.client.index, choice.upload.index, choice.download.index) == (client, upload, download)
    assert choice.mirror.coherent and choice.mirror in (choice.upload, choice.download)


def test_types_that_buffers_may_not_use_are_not_chosen() -> None:
    types = DEVICES["H200, resizable BAR"][0]
    assert choose_types(types, 0b01110).client.index == 1
    with pytest.raises(OutOfDeviceMemoryError, match="no memory type"):
        choose_types(types, 0b00010)


def test_rule_07_ten_thousand_small_buffers_in_a_handful_of_allocations() -> None:
    memory, source = make()
    ranges = [memory.allocate(LOCAL, 4000, 256) for _ in range(10_000)]
    assert memory.allocations == len(source.live) <= 5
    assert memory.used == 10_000 * 4096
    for allocation in ranges:
        memory.free(allocation)
    assert memory.used == 0 and memory.allocations == 1, "one empty block is kept"
    assert memory.trim() == 1 and not source.live and memory.reserved == 0


def test_blocks_grow_and_large_buffers_get_their_own() -> None:
    memory, source = make()
    memory.allocate(LOCAL, 1000, 256)
    assert list(source.live.values()) == [8 * MIB]
    large = memory.allocate(LOCAL, 32 * MIB + 1, 256, buffer=77)
    assert list(source.live.values()) == [8 * MIB, 32 * MIB + 256] and large.offset == 0
    memory.allocate(LOCAL, 20 * MIB, 256)
    assert list(source.live.values())[2] == 64 * MIB
    assert source.dedicated == {2: 77}
    memory.free(large)
    assert len(source.live) == 2, "a dedicated block does not stay"


def test_small_heaps_have_small_blocks() -> None:
    memory, _ = make()
    assert memory.block_size(mtype(0, 0, 64 * MIB, "d")) == 4 * MIB
    assert memory.block_size(mtype(0, 0, 8 * MIB, "d")) == 1 * MIB
    assert memory.block_size(mtype(0, 0, 16 * GIB, "d")) == 64 * MIB
    assert memory.block_size(mtype(0, 0, 141 * GIB, "d")) == 256 * MIB


def test_a_nearly_full_device_gets_smaller_blocks() -> None:
    memory, source = make(capacity=3 * MIB)
    memory.allocate(LOCAL, 1000, 256)
    assert list(source.live.values()) == [2 * MIB]


def test_rule_08_out_of_memory_says_asked_used_left_and_largest() -> None:
    memory, _ = make(capacity=16 * MIB)
    kept: list[Allocation] = [memory.allocate(LOCAL, 3 * MIB, 256) for _ in range(4)]
    memory.free(kept.pop(0))
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        memory.allocate(LOCAL, 5 * MIB, 256)
    data = caught.value.data
    assert data is not None and data["asked"] == 5 * MIB
    assert data["used"] == 9 * MIB and 3 * MIB <= data["largest_free"] < 5 * MIB
    assert data["left"] == LOCAL.heap_size - 9 * MIB
    for number in data.values():
        assert f"{number:,}" in caught.value.message
    assert memory.allocate(LOCAL, 3 * MIB, 256), "the next request that fits works"


def test_rule_08_empty_blocks_of_another_type_make_room() -> None:
    memory, source = make(capacity=9 * MIB)
    memory.free(memory.allocate(LOCAL, 1000, 256))
    other = mtype(1, 0, 16 * GIB, "dvc")
    assert memory.allocate(other, 3 * MIB, 256).size == 3 * MIB
    assert len(source.live) == 1


def test_rule_06_over_the_largest_allocation_names_the_limit() -> None:
    memory, _ = make(max_allocation_size=GIB)
    with pytest.raises(TooLargeError, match=r"maxMemoryAllocationSize 1,073,741,824"):
        memory.allocate(LOCAL, GIB + 1, 256)
    assert memory.allocate(LOCAL, GIB, 256).size == GIB


def test_the_number_of_allocations_is_respected() -> None:
    memory, source = make(max_allocations=2)
    first = memory.allocate(LOCAL, 100 * MIB, 256)
    memory.allocate(LOCAL, 100 * MIB, 256)
    with pytest.raises(OutOfDeviceMemoryError, match="allows 2 allocations"):
        memory.allocate(LOCAL, 100 * MIB, 256)
    memory.free(first)
    memory.allocate(LOCAL, 100, 256)
    assert len(source.live) == 2


def test_close_frees_what_is_still_taken() -> None:
    memory, source = make()
    memory.allocate(LOCAL, 100, 256)
    memory.allocate(LOCAL, 100 * MIB, 256)
    memory.close()
    assert not source.live and memory.reserved == memory.used == memory.allocations == 0
