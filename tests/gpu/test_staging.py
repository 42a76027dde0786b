"""Staging without a device: slices, pools, whose block is whose, bounds (rules 9 and 42)."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from vkqueue.errors import OutOfDeviceMemoryError
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.staging import LARGE_STEP, SESSION_BLOCK, SHARED_BLOCK, Slice, Slices, StagingPool
from vkqueue.model import Pieces


class FakeBuffer:
    def __init__(self, handle: int, size: int, mapped: bool) -> None:
        self.handle = handle
        self.param = None
        self.capacity = size
        self.offset = 0
        self.memory = ctypes.create_string_buffer(b"\xaa" * size, size) if mapped else None
        self.mapping = Mapping(ctypes.addressof(self.memory), size) if self.memory is not None else None


class Rig:
    def __init__(self, *, mapped: bool = True, keep: int = 4 << 20, limit: int = 64 << 20) -> None:
        self.live: list[FakeBuffer] = []
        self.made = 0
        self.mapped = mapped
        self.pool = StagingPool("test", self.make, self.live.remove, alignment=256, keep=keep, limit=limit)

    def make(self, size: int) -> FakeBuffer:
        self.made += 1
        buffer = FakeBuffer(self.made, size, self.mapped)
        self.live.append(buffer)
        return buffer

    def slices(self) -> Slices:
        return Slices()

    def memory(self, piece: Slice) -> bytes:
        buffer: Any = piece.block.buffer
        data: bytes = buffer.memory.raw
        return data


def test_slices_are_aligned_padded_and_share_a_block() -> None:
    rig = Rig()
    slices = rig.slices()
    taken = [slices.take(rig.pool, size) for size in (1, 256, 257, 0, 100)]
    assert [(s.offset, s.room) for s in taken] == [(0, 256), (256, 256), (512, 512), (1024, 256), (1280, 256)]
    assert len(rig.live) == 1 and rig.live[0].capacity == SHARED_BLOCK


def test_filling_a_slice_zeroes_its_padding_and_nothing_else() -> None:
    rig = Rig()
    slices = rig.slices()
    first, second, third = (slices.take(rig.pool, 100) for _ in range(3))
    second.fill(b"x" * 100)
    assert rig.memory(second)[:768] == b"\xaa" * 256 + b"x" * 100 + bytes(156) + b"\xaa" * 256
    assert second.read() == b"x" * 100
    third.fill(b"")
    assert third.read() == bytes(100) and first.read() == b"\xaa" * 100


def test_pieces_lie_one_behind_the_other() -> None:
    rig = Rig()
    before, piece, behind = (rig.slices().take(rig.pool, 300) for _ in range(3))
    same = memoryview(b"ab")
    piece.fill(Pieces([same, bytearray(b"c" * 200), b"", same, same]))
    assert piece.read() == b"ab" + b"c" * 200 + b"abab" + bytes(94)
    assert before.read() == behind.read() == b"\xaa" * 300
    piece.fill(Pieces([]))
    assert piece.read() == bytes(300)


def test_large_slices_get_blocks_of_their_own_and_do_not_end_the_shared_one() -> None:
    rig = Rig()
    slices = rig.slices()
    slices.take(rig.pool, 100)
    large = slices.take(rig.pool, SHARED_BLOCK)
    assert large.offset == 0 and large.block.size == SHARED_BLOCK
    assert slices.take(rig.pool, SHARED_BLOCK + 1).block.size == SHARED_BLOCK + LARGE_STEP
    assert slices.take(rig.pool, 100).block is not large.block
    assert len(rig.live) == 3


def test_blocks_are_used_again_once_given_back_and_not_before() -> None:
    rig = Rig()
    first, second = rig.slices(), rig.slices()
    one = first.take(rig.pool, 100).block
    two = second.take(rig.pool, 100).block
    assert one is not two
    first.give_back()
    assert second.take(rig.pool, SHARED_BLOCK // 4).block is two
    again = rig.slices().take(rig.pool, 100)
    assert again.block is one and again.offset == 0 and rig.made == 2


def test_rule_42_a_block_that_comes_from_another_session_is_zeroed() -> None:
    rig = Rig()
    first = rig.slices()
    piece = first.take(rig.pool, 100, "alice")
    assert rig.memory(piece) == bytes(SESSION_BLOCK), "what the driver left there is nobody's to see"
    piece.fill(b"x" * 100)
    first.give_back()
    same = rig.slices()
    assert same.take(rig.pool, 100, "alice").read() == b"x" * 100, "no need to zero for the same session"
    same.give_back()
    other = rig.slices().take(rig.pool, 100, "bob")
    assert other.block is piece.block and rig.memory(other) == bytes(SESSION_BLOCK)


def test_rule_42_sessions_in_one_batch_have_blocks_of_their_own() -> None:
    rig = Rig()
    slices = rig.slices()
    blocks = [slices.take(rig.pool, 100, key).block for key in ("alice", "bob", None, "alice", "bob", None)]
    assert blocks[:3] == blocks[3:] and len(set(blocks)) == 3


def test_rule_42_the_device_zeroes_what_the_host_does_not_see() -> None:
    rig = Rig(mapped=False)
    slices = rig.slices()
    assert [slices.take(rig.pool, 100, "alice").fresh for _ in range(2)] == [True, False]
    slices.give_back()
    assert not rig.slices().take(rig.pool, 100, "alice").fresh
    assert rig.slices().take(rig.pool, 100, "bob").fresh
    assert not rig.slices().take(rig.pool, 100).fresh, "slices that are only copied, or bounded, need no zeroing"


def test_rule_42_what_a_batch_that_never_ran_was_to_zero_is_zeroed_by_the_next() -> None:
    rig = Rig(mapped=False)
    slices = rig.slices()
    assert slices.take(rig.pool, 100, "alice").fresh
    slices.give_back(ran=False)
    assert slices.take(rig.pool, 100, "alice").fresh
    slices.give_back()
    assert not slices.take(rig.pool, 100, "alice").fresh


def test_a_block_of_the_same_session_is_preferred() -> None:
    rig = Rig()
    batches = [rig.slices() for _ in range(3)]
    blocks = [batch.take(rig.pool, 100, key).block for batch, key in zip(batches, "abc", strict=True)]
    for batch in batches:
        batch.give_back()
    assert [rig.slices().take(rig.pool, 100, key).block for key in "cab"] == [blocks[2], blocks[0], blocks[1]]


def test_rule_09_idle_blocks_are_kept_up_to_a_bound() -> None:
    rig = Rig(keep=3 << 20)
    slices = rig.slices()
    for _ in range(6):
        slices.take(rig.pool, 1 << 20)
    assert rig.pool.reserved == 6 << 20
    slices.give_back()
    assert rig.pool.reserved == 3 << 20 and len(rig.live) == 3


def test_rule_09_lent_blocks_are_bounded_and_the_error_has_the_numbers() -> None:
    rig = Rig(limit=2 << 20)
    slices = rig.slices()
    slices.take(rig.pool, 1 << 20)
    slices.take(rig.pool, 1 << 20)
    with pytest.raises(OutOfDeviceMemoryError, match=r"1,048,576 bytes: 2,097,152 of at most 2,097,152"):
        slices.take(rig.pool, 1 << 20)
    slices.give_back()
    assert rig.slices().take(rig.pool, 1 << 20)


def test_rule_09_idle_blocks_of_the_wrong_size_make_room_under_the_bound() -> None:
    rig = Rig(limit=2 << 20)
    slices = rig.slices()
    slices.take(rig.pool, 100)
    slices.give_back()
    assert rig.slices().take(rig.pool, 2 << 20).block.size == 2 << 20
    assert rig.pool.reserved == 2 << 20


def test_close_frees_lent_blocks_too() -> None:
    rig = Rig()
    slices = rig.slices()
    slices.take(rig.pool, 100)
    slices.take(rig.pool, 1 << 20)
    rig.pool.close()
    assert rig.live == [] and rig.pool.reserved == 0
