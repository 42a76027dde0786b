"""MANY rows on a device: each launch has its own descriptors, constants and grid, in order, however they are bound."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.gpu_rig import SHAPES, Rig, error_of, ints

from vkqueue.errors import InternalError, NotFoundError, OutOfDeviceMemoryError
from vkqueue.gpu import binding
from vkqueue.gpu import many as gpu_many
from vkqueue.kernels.launches import Many, ManyArgs, ManyJob, Slot
from vkqueue.kernels.many import token_of
from vkqueue.model import MANY, Options, Row, Shared

pytestmark = pytest.mark.gpu

N = 64
ROW = 4 * N


def column(values: Any, dtype: Any = np.uint64) -> Any:
    return np.array(values, dtype)


def constants(*rows: bytes) -> Any:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)


def many_row(
    rig: Rig,
    kernel: str,
    count: int,
    entries: list[tuple[Any, Any, Any]],
    *,
    buffers: tuple[int, ...] = (),
    constants: Any = b"",
    grids: Any = (1, 1, 1),
    transients: tuple[Any, ...] = (),
    options: Options | None = None,
) -> Row:
    """A row of launches; an entry is (place of the buffer or -1 - place of the transient, offset, size)."""
    accesses = [access for *_, number, access in SHAPES[kernel][0] for _ in range(number)]
    slots = [Slot(*entry, "r" in access, "w" in access) for entry, access in zip(entries, accesses, strict=True)]
    args = ManyArgs(buffers, tuple(slots), transients)
    launches = Many(ManyJob(count, 0), args, 0, count, constants, grids)
    token = token_of(next(rig._ids), rig.layout(kernel), args)
    return (1, next(rig._ids), MANY, token, rig.pipeline(kernel), b"", None, launches, 0, options)


def places(values: Any) -> Any:
    return column(values, np.int32)


def test_buffers_of_their_own(rig: Rig) -> None:
    count = 300
    targets = tuple(rig.buffer(ints(*[0] * N)) for _ in range(count))
    source = rig.buffer(ints(*range(N)))
    entries = [(count, 0, ROW), (places(range(count)), 0, column([ROW] * count))]
    row = many_row(rig, "scale", count, entries, buffers=(*targets, source),
                   constants=constants(*(ints(k) for k in range(count))))  # fmt: skip
    assert rig.results(row) == [] and row[7].barriers == []
    for k in (0, 1, 17, count - 1):
        assert rig.ints_of(targets[k]) == [k * i for i in range(N)]


def test_rows_of_a_buffer_with_grids_of_their_own(rig: Rig) -> None:
    """More launches than are laid out at once, not all of which do anything."""
    count = 2 * gpu_many.CHUNK + 300
    source, target = rig.buffer(ints(*range(N))), rig.buffer(count * ROW)
    grids = np.ones((count, 3), np.uint32)
    grids[::3, 0], grids[1::7, 2] = 0, 0
    entries = [(0, 0, ROW), (1, np.arange(count, dtype=np.uint64) * np.uint64(ROW), ROW)]
    scalars = np.arange(count, dtype="<i4").view(np.uint8).reshape(count, 4)
    row = many_row(rig, "scale", count, entries, buffers=(source, target), constants=scalars, grids=grids)
    assert rig.results(row) == []
    expected = np.arange(count)[:, None] * np.arange(N) * (grids.min(axis=1) > 0)[:, None]
    assert (np.array(rig.ints_of(target)).reshape(count, N) == expected).all()


def test_launches_that_conflict_take_effect_one_after_the_other(rig: Rig) -> None:
    count = 2500
    y = rig.buffer(ints(*range(N)))
    row = many_row(rig, "increment", count, [(0, 0, ROW)], buffers=(y,))
    rig.results(row, rig.dispatch("increment", (y,)), many_row(rig, "increment", 10, [(0, 0, ROW)], buffers=(y,)))
    assert len(row[7].barriers) == count - 1
    assert rig.ints_of(y) == [i + count + 11 for i in range(N)]


def test_a_chain_through_buffers_and_chunks(rig: Rig) -> None:
    """Each launch reads what the one before it wrote; every seventh starts from one long ago."""
    count = gpu_many.CHUNK + 100
    pool = [rig.buffer(ints(*[1] * N)), *(rig.buffer(ROW) for _ in range(count))]
    source = [i if i % 7 else i // 2 for i in range(count)]
    entries = [(places(source), 0, column([ROW] * count)), (places(range(1, count + 1)), 0, column([ROW] * count))]
    scalars = constants(*(ints(3 if i % 5 == 0 else 1) for i in range(count)))
    rig.results(many_row(rig, "scale", count, entries, buffers=tuple(pool), constants=scalars))
    expected = [1]
    for i in range(count):
        expected.append(expected[source[i]] * (3 if i % 5 == 0 else 1) & 0xFFFFFFFF)
    for i in (0, 1, 7, gpu_many.CHUNK, gpu_many.CHUNK + 1, count):
        assert rig.ints_of(pool[i])[0] & 0xFFFFFFFF == expected[i]


def test_other_rows_round_it_bring_their_own_descriptors(rig: Rig) -> None:
    x, y = rig.buffer(ints(*[1] * N)), rig.buffer(ints(*[1] * N))
    shift = rig.dispatch("scale", (x, y), ints(5))
    row = many_row(rig, "scale", 2, [(0, 0, ROW), (1, 0, ROW)], buffers=(y, x), constants=constants(ints(2), ints(3)))
    rig.results(shift, row, shift, rig.dispatch("increment", (y,)), row, rig.dispatch("increment", (x,)))
    # y = 5x = 5; x = 2y, then 3y = 15; y = 75; y = 76; x = 3y = 228; x = 229.
    assert (rig.ints_of(x), rig.ints_of(y)) == ([229] * N, [76] * N)


def test_sets_with_holes_arrays_and_uniform_blocks(rig: Rig) -> None:
    count = 70
    source = rig.buffer(ints(*range(N)))
    factors = rig.buffer(b"".join(ints(k).ljust(256, b"\0") for k in range(count)))
    sums, products = rig.buffer(count * ROW), rig.buffer(count * ROW)
    at = np.arange(count, dtype=np.uint64) * np.uint64(ROW)
    entries = [(0, 0, ROW), (1, at, 4), (2, at, ROW), (3, at, ROW)]
    rig.results(many_row(rig, "sets", count, entries, buffers=(source, factors, sums, products)))
    each, k = np.arange(N), np.arange(count)[:, None]
    assert (np.array(rig.ints_of(sums)).reshape(count, N) == each + k).all()
    assert (np.array(rig.ints_of(products)).reshape(count, N) == each * k).all()


def test_transient_entries_shared_and_by_rows(rig: Rig) -> None:
    y = rig.buffer(ints(*[0] * N))
    blocks = np.zeros((3, 256), np.uint8)
    for i in range(3):
        blocks[i, :8] = np.frombuffer(struct.pack("<iI", i + 1, N), np.uint8)
    pieces = (-1, column([0, 256, 512]), 16)
    rig.results(many_row(rig, "add_uniform", 3, [(0, 0, ROW), pieces], buffers=(y,), transients=(("uniform", blocks),)))
    assert rig.ints_of(y) == [123] * N
    target = rig.buffer(2 * ROW)
    entries = [(-1, 0, ROW), (0, column([0, ROW]), ROW)]
    rig.results(many_row(rig, "scale", 2, entries, buffers=(target,), constants=constants(ints(1), ints(-1)),
                         transients=(("in", ints(*range(N))),)))  # fmt: skip
    assert rig.ints_of(target) == [*range(N), *(-i for i in range(N))]


def test_empty_ranges_can_be_bound(rig: Rig) -> None:
    source, target, empty = rig.buffer(ints(*[7] * N)), rig.buffer(ROW), rig.buffer(0)
    entries = [(places([0, 2, 1]), column([0, 0, ROW]), column([ROW, 0, 0])), (1, 0, column([ROW, 0, 4]))]
    rig.results(many_row(rig, "length", 3, entries, buffers=(source, target, empty)))
    assert rig.ints_of(target)[0] == 0  # the last: a length of nothing


def test_no_descriptors_differ_but_constants_do(rig: Rig) -> None:
    y = rig.buffer(ints(*[1] * N))
    rig.results(many_row(rig, "shift", 3, [(0, 0, ROW)], buffers=(y,), constants=constants(*map(ints, (1, 2, 3)))))
    shifted = rig.buffer(ints(*[1] * N))
    rig.results(*(rig.dispatch("shift", (shifted,), ints(k)) for k in (1, 2, 3)))
    assert rig.ints_of(y) == rig.ints_of(shifted)


def test_a_row_in_parts(rig: Rig) -> None:
    target = rig.buffer(10 * ROW)
    source = rig.buffer(ints(*[1] * N))
    whole = many_row(rig, "scale", 10, [(0, 0, ROW), (1, np.arange(10, dtype=np.uint64) * np.uint64(ROW), ROW)],
                     buffers=(source, target), constants=constants(*map(ints, range(10))))  # fmt: skip
    first, rest = whole[7].cut(4)
    rig.results((*whole[:7], first, *whole[8:]))
    assert rig.ints_of(target) == [k for k in range(4) for _ in range(N)] + [0] * 6 * N
    rig.results((*whole[:7], rest, *whole[8:]))
    assert rig.ints_of(target) == [k for k in range(10) for _ in range(N)]


def test_timing_is_that_of_all_launches(rig: Rig) -> None:
    y = rig.buffer(ints(*[1] * N))
    completion = rig.run(many_row(rig, "increment", 50, [(0, 0, ROW)], buffers=(y,), options=Options(timing=True)))
    if rig.backend.info.timestamps:
        assert completion.device_us[0] > 0


def test_what_is_gone_fails_the_row_alone(rig: Rig) -> None:
    y = rig.buffer(ints(*[1] * N))
    gone = rig.buffer(ROW)
    rig.release(gone)
    lost = many_row(rig, "increment", 2, [(places([0, 1]), 0, column([ROW, ROW]))], buffers=(y, gone))
    completion = rig.run(lost, rig.dispatch("increment", (y,)))
    assert isinstance(error_of(completion, 0), NotFoundError)
    assert rig.ints_of(y) == [2] * N
    row = many_row(rig, "increment", 2, [(0, 0, ROW)], buffers=(y,))
    completion = rig.run((*row[:4], 10**9, *row[5:]), rig.dispatch("increment", (y,)))
    assert isinstance(error_of(completion, 0), NotFoundError)
    assert rig.ints_of(y) == [3] * N


@pytest.mark.parametrize(
    "entry", [(0, column([0, ROW]), ROW), (0, column([0, 2**64 - 4]), ROW), (0, 0, column([ROW, ROW + 1]))]
)
def test_a_range_outside_its_buffer_is_never_bound(rig: Rig, entry: Any) -> None:
    y = rig.buffer(ints(*[1] * N))
    completion = rig.run(many_row(rig, "increment", 2, [entry], buffers=(y,)), rig.dispatch("increment", (y,)))
    assert isinstance(error_of(completion, 0), InternalError)
    assert rig.ints_of(y) == [2] * N


def test_a_row_of_another_layout_is_refused(rig: Rig) -> None:
    x, y = rig.buffer(ints(*[1] * N)), rig.buffer(ints(*[1] * N))
    row = many_row(rig, "scale", 2, [(0, 0, ROW), (1, 0, ROW)], buffers=(x, y), constants=ints(2))
    wrong = (*row[:4], rig.pipeline("increment"), *row[5:])
    short = many_row(rig, "scale", 2, [(0, 0, ROW), (1, 0, ROW)], buffers=(x, y), constants=constants(b"12", b"34"))
    completion = rig.run(wrong, short, rig.dispatch("increment", (y,)))
    assert set(completion.errors) == {0, 1} and rig.ints_of(y) == [2] * N


def test_no_memory_for_sets_fails_the_row_before_anything_runs(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="sets")
    y = rig.buffer(300 * ROW)
    row = many_row(rig, "increment", 300, [(0, np.arange(300, dtype=np.uint64) * np.uint64(ROW), ROW)], buffers=(y,))
    with binding.inject("vkAllocateDescriptorSets", "VK_ERROR_OUT_OF_POOL_MEMORY", times=2):
        completion = rig.run(row, rig.dispatch("increment", (y,)))
    assert isinstance(error_of(completion, 0), OutOfDeviceMemoryError)
    assert rig.ints_of(y) == [1] * N + [0] * 299 * N
    rig.results(row)
    assert rig.ints_of(y) == [2] * N + [1] * 299 * N


def test_sets_are_used_again_once_their_batch_is_over(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(descriptors="sets")
    y = rig.buffer(100 * ROW)
    entry = (0, np.arange(100, dtype=np.uint64) * np.uint64(ROW), ROW)

    def row() -> Row:
        return many_row(rig, "increment", 100, [entry], buffers=(y,))

    rig.results(row(), row())
    pools = rig.backend.device.live.counts()["VkDescriptorPool"]
    for _ in range(3):
        rig.results(row(), row())
    assert rig.backend.device.live.counts()["VkDescriptorPool"] == pools
    first, second = rig.submit(row()), rig.submit(row())
    assert rig.backend.device.live.counts()["VkDescriptorPool"] > pools
    rig.finish(first)
    rig.finish(second)
    assert rig.ints_of(y) == [10] * 100 * N
    rig.release(pipelines=(rig.pipeline("increment"),))
    assert "VkDescriptorPool" not in rig.backend.device.live.counts()


def test_labels_name_it(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(debug_labels=True)
    y = rig.buffer(ints(*[1] * N))
    rig.results(many_row(rig, "increment", 3, [(0, 0, ROW)], buffers=(y,), options=Options(label="three")))
    assert rig.ints_of(y) == [4] * N


def test_kinds_of_memory(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(memory="discrete")
    y = rig.buffer(ints(*[1] * N))
    rig.results(many_row(rig, "increment", 3, [(0, 0, ROW)], buffers=(y,)))
    assert rig.ints_of(y) == [4] * N


def test_mirrored_memory_between_the_launches_ranges_stays_the_clients(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(external_memory_host=False)
    pages = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    id, created = rig.share(Shared((ctypes.c_char * mmap.PAGESIZE).from_buffer(pages)), 3 * ROW)
    rig.results(created)
    submission = rig.submit(many_row(rig, "increment", 2, [(0, column([0, 2 * ROW]), ROW)], buffers=(id,)))
    pages[ROW : 2 * ROW] = ints(*[7] * N)
    assert rig.finish(submission).errors == {}
    assert struct.unpack_from(f"<{3 * N}i", pages) == (*[1] * N, *[7] * N, *[1] * N)


def test_what_was_worked_out_for_a_batch_that_never_was_is_not_used_again(open_rig: Callable[..., Rig]) -> None:
    """A buffer that is made in it is gone with it, also for a request with the same arguments behind it."""
    rig = open_rig(memory="discrete", naive=True)
    if rig.backend.info.direct_write_max:
        pytest.skip("the host sees this device's buffers")
    source = rig.buffer(ints(*range(N)))
    target, create = rig.create(ROW)
    row = many_row(rig, "scale", 3, [(0, 0, ROW), (1, 0, ROW)], buffers=(source, target), constants=ints(5))
    with binding.inject("vkQueueSubmit", "VK_ERROR_OUT_OF_HOST_MEMORY"):
        assert set(rig.run(create, row).errors) == {0, 1}
    assert isinstance(error_of(rig.run(row), 0), NotFoundError)
    assert rig.run(create, row).errors == {}
    assert rig.ints_of(target) == [5 * i for i in range(N)]
