"""Descriptors: pushed and from rings of sets, packed once, written again where a row before failed (rules 10, 13)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.gpu_rig import Rig, error_of, ints

from vkqueue.errors import InternalError, NotFoundError, OutOfDeviceMemoryError
from vkqueue.gpu import binding
from vkqueue.gpu.descriptors import POOL_SLOTS, Descriptors
from vkqueue.model import INIT, Batch, Row

pytestmark = pytest.mark.gpu

N = 64


def hand_made(rig: Rig, rows: Sequence[Row], flags: Sequence[int], slots: Sequence[int]) -> Any:
    """Run a batch that did not come from the stream."""
    return rig.finish(rig.backend.submit(Batch(next(rig._ids), list(rows), list(flags), list(slots))))


def adds(rig: Rig, args: tuple[int, int], digit: int) -> Row:
    y, _ = args
    return rig.dispatch("add_uniform", (y, ("uniform", struct.pack("<iI", digit, N))))


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_rule_13_sets_with_holes_arrays_and_uniform_blocks(open_rig: Callable[..., Rig], descriptors: str) -> None:
    rig = open_rig(descriptors=descriptors)
    source = rig.buffer(ints(*range(N)))
    sums, products, more = (rig.buffer(4 * N) for _ in range(3))
    constant = rig.buffer(ints(7))
    rig.results(
        rig.dispatch("sets", (source, constant, sums, products)),
        rig.dispatch("sets", (source, ("uniform", ints(100)), products, more)),
        rig.dispatch("sets", (source, constant, sums, products)),
    )
    assert rig.ints_of(sums) == [i + 7 for i in range(N)]
    assert rig.ints_of(products) == [i * 7 for i in range(N)]
    assert rig.ints_of(more) == [i * 100 for i in range(N)]


@pytest.mark.parametrize("result", ["VK_ERROR_FRAGMENTED_POOL", "VK_ERROR_OUT_OF_POOL_MEMORY"])
def test_rule_10_a_full_or_fragmented_pool_means_another_one(open_rig: Callable[..., Rig], result: str) -> None:
    rig = open_rig(descriptors="sets")
    y = rig.buffer(ints(*range(N)))
    with binding.inject("vkAllocateDescriptorSets", result):
        rig.results(rig.dispatch("increment", (y,)))
    assert rig.ints_of(y) == [i + 1 for i in range(N)]
    assert rig.backend.device.live.counts()["VkDescriptorPool"] == 2


def test_rule_10_no_memory_for_any_pool_fails_the_row_alone(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="sets")
    x, y = rig.buffer(ints(*range(N))), rig.buffer(ints(*range(N)))
    with binding.inject("vkAllocateDescriptorSets", "VK_ERROR_OUT_OF_POOL_MEMORY", times=2):
        completion = rig.run(rig.dispatch("increment", (x,)), rig.dispatch("increment", (y,)))
    assert isinstance(error_of(completion, 0), OutOfDeviceMemoryError)
    assert rig.ints_of(x) == list(range(N)) and rig.ints_of(y) == [i + 1 for i in range(N)]


def test_rings_grow_pool_by_pool(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="sets")
    buffers = [rig.buffer(ints(i)) for i in range(2 * POOL_SLOTS + 1)]
    rig.results(*(rig.dispatch("increment", (id,)) for id in buffers))
    assert rig.backend.device.live.counts()["VkDescriptorPool"] == 3
    assert [rig.ints_of(id)[0] for id in buffers] == [i + 1 for i in range(len(buffers))]


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_s10_many_different_launches_of_one_kernel_share_a_batch(
    open_rig: Callable[..., Rig], descriptors: str
) -> None:
    rig = open_rig(descriptors=descriptors)
    buffers = [rig.buffer(ints(*[i] * N)) for i in range(40)]
    rows = [rig.dispatch("scale", (buffers[i], buffers[i + 20]), ints(i)) for i in range(20)]
    rows += [rig.dispatch("scale", (buffers[i], buffers[i + 20]), ints(i + 1)) for i in range(20)]
    completion = rig.run(*rows)
    assert not completion.errors and completion.submits == 1
    assert [rig.ints_of(id)[0] for id in buffers[20:]] == [i * (i + 1) for i in range(20)]


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_an_equal_token_is_packed_once_and_dropped_with_its_buffer(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, descriptors: str
) -> None:
    rig = open_rig(descriptors=descriptors)
    descriptors_of = rig.backend.descriptors
    packs: list[int] = []
    real = descriptors_of.pack

    def counted(token: Any, places: Any = None) -> bytes:
        packs.append(token.id)
        return real(token, places)

    monkeypatch.setattr(descriptors_of, "pack", counted)
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    launch = rig.dispatch("scale", (x, y), ints(2))
    other = rig.dispatch("scale", (y, x), ints(2))
    for _ in range(3):
        rig.results(launch, other, launch)
    assert len(packs) == 2 and set(descriptors_of.packed) == set(packs)
    rig.release(y)
    assert not descriptors_of.packed and not descriptors_of._tokens.get(y)


def test_transient_tokens_are_not_remembered(rig: Rig) -> None:
    y = rig.buffer(ints(*[0] * N))
    rig.results(*(adds(rig, (y, 0), digit) for digit in (1, 2, 3)))
    assert rig.ints_of(y) == [123] * N
    assert not rig.backend.descriptors.packed and not rig.backend.descriptors._tokens


def test_packed_tokens_are_bounded(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    small = Descriptors(rig.backend.device, rig.backend.buffers, max_packed=8)
    buffer = rig.buffer(4096)
    tokens = [rig.dispatch("increment", ((buffer, 64 * i, 64),))[3] for i in range(50)]
    for token in tokens:
        assert len(small.pack(token)) == 24
    assert len(small.packed) <= 8 and tokens[-1].id in small.packed
    assert small._tokens[buffer] == set(small.packed)


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_rule_21_the_row_after_a_failed_one_brings_its_own_descriptors(
    open_rig: Callable[..., Rig], descriptors: str
) -> None:
    rig = open_rig(descriptors=descriptors)
    x, y, other = rig.buffer(ints(*range(N))), rig.buffer(4 * N), rig.buffer(4 * N)
    launch = rig.dispatch("scale", (x, y), ints(3))
    missing = (*launch[:4], 999_999, *launch[5:])  # the same token, on a pipeline that does not exist
    slots = [0, 1, 1] if descriptors == "sets" else [-1] * 3
    first = rig.dispatch("scale", (x, other), ints(5))
    completion = hand_made(rig, [first, missing, launch], [INIT, INIT, 0], slots)
    assert isinstance(error_of(completion, 1), NotFoundError)
    assert rig.ints_of(y) == [3 * i for i in range(N)], "INIT was on the row that failed"
    assert rig.ints_of(other) == [5 * i for i in range(N)]


@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_a_launch_that_fails_after_its_descriptors_does_not_leave_them_to_the_next(
    open_rig: Callable[..., Rig], descriptors: str
) -> None:
    rig = open_rig(descriptors=descriptors)
    x, y, z = rig.buffer(ints(*range(N))), rig.buffer(4 * N), rig.buffer(4 * N)
    good = rig.dispatch("scale", (x, y), ints(3))
    bad = rig.dispatch("scale", (x, z), b"\0\0")  # two bytes of constants where there are four
    completion = rig.run(good, bad, good)
    assert isinstance(error_of(completion, 1), InternalError)
    assert "2 bytes of constants for a block of 4" in completion.errors[1].message
    assert rig.ints_of(y) == [3 * i for i in range(N)] and rig.ints_of(z) == [0] * N


def test_a_slot_does_not_keep_a_token_whose_buffer_is_gone(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="sets")
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    launch = rig.dispatch("scale", (x, y), ints(3))
    assert not hand_made(rig, [launch], [INIT], [0]).errors
    rig.release(x)
    assert isinstance(error_of(hand_made(rig, [launch], [0], [0]), 0), NotFoundError)


def test_broken_rows_fail_alone_and_reach_nothing(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="auto", naive=True)
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    good = rig.dispatch("scale", (x, y), ints(3))
    rig.sizes[x] = 1 << 20
    bad = [
        rig.dispatch("scale", (x, y), ints(3)),  # a range past the buffer's end
        (*good[:3], rig.dispatch("increment", (y,))[3], *good[4:]),  # another layout's token
        rig.read(x, 0, 1 << 20),
        rig.write(y, bytes(1 << 20)),
        rig.fill(y, 0, 2, 4),
        rig.copy(x, 0, y, 0, 1 << 20),
        (1, 2, 77, None, 0, b"", (1, 1, 1), None, 0, None),
        (*good[:6], None, *good[7:]),
    ]
    completion = rig.run(*bad, good)
    assert set(completion.errors) == set(range(len(bad)))
    assert all(isinstance(error, InternalError) for error in completion.errors.values())
    assert rig.ints_of(y) == [3 * i for i in range(N)]
