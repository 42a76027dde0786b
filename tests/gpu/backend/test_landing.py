"""Large payloads in pages that come again are copied by the device alone."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from support.gpu_rig import Rig

from vkqueue.gpu import binding, landing
from vkqueue.gpu.landing import Landings
from vkqueue.large import LARGE, new_large, pages_at
from vkqueue.model import Release

pytestmark = pytest.mark.gpu

SIZE = LARGE + 12


def landed(seed: int, size: int = SIZE) -> memoryview:
    """A payload as it comes from the socket."""
    data = new_large(size)
    data[:] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()
    return data


@pytest.fixture
def rig(open_rig: Callable[..., Rig]) -> Rig:
    rig = open_rig(memory="discrete", naive=True)
    if not rig.backend.device.host_pointer_alignment:
        pytest.skip("the device cannot import memory")
    return rig


def landings(rig: Rig) -> Landings:
    return rig.backend.payloads._landings


def staging(rig: Rig) -> int:
    return rig.backend.memory()["staging_bytes"]


def test_pages_that_come_again_are_not_copied_by_the_host(rig: Rig) -> None:
    target = rig.buffer(SIZE)
    for turn in range(6):
        data = landed(turn)
        expected = bytes(data)
        assert rig.run(rig.write(target, data)).errors == {}
        del data
        assert rig.bytes_of(target) == expected
    before = staging(rig)
    assert 1 <= len(landings(rig)._imported) <= 4
    rig.backend.payloads.upload.trim()
    rig.backend.payloads.download.trim()
    for turn in range(6, 9):
        data = landed(turn)
        expected = bytes(data)
        assert rig.run(rig.write(target, data, 0)).errors == {}
        del data
        [[result]] = rig.results(rig.read(target))
        assert bytes(result) == expected
        del result
    assert staging(rig) < min(before, SIZE), "nothing of it went through staging memory"


def test_what_is_on_its_way_keeps_its_pages(rig: Rig) -> None:
    """Two writes in flight never share pages, and results stay as they were read whatever comes later."""
    target = rig.buffer(SIZE)
    results = []
    for turn in range(8):
        data = landed(turn)
        expected = bytes(data)
        [[result]] = rig.results(rig.write(target, data), rig.read(target))
        results.append((expected, result))
        del data
    for expected, result in results:
        assert bytes(result) == expected


def test_the_rest_of_a_buffer_is_zeros(rig: Rig) -> None:
    """What lies behind the data in its pages is an older message's; none of it reaches a new buffer's end."""
    size = LARGE + 1  # a buffer is larger than that: to a multiple of four at least
    for _ in range(4):
        rest = new_large(2 * LARGE)
        rest[:] = b"\xff" * len(rest)
        del rest
        data = landed(7, size)
        id, row = rig.create(data)  # type: ignore[arg-type]  # as it comes from the wire
        assert rig.run(row).errors == {}
        del data, row
        buffer = rig.backend.buffers.get(id)
        assert buffer.capacity > size
        rig.sizes[id] = buffer.capacity
        buffer.size, before = buffer.capacity, buffer.size
        assert rig.bytes_of(id)[size:] == bytes(buffer.capacity - size)
        buffer.size = before
        rig.backend.release(Release((id,)))


def test_what_lies_behind_a_part_of_what_came_stays_as_it_is(rig: Rig) -> None:
    """Of pages that are imported the first bytes go into a buffer that ends in zeros, and they are not put there."""
    for turn in range(4):
        whole = landed(turn, SIZE + 100)
        expected = bytes(whole)
        id, row = rig.create(whole[: LARGE + 1])  # type: ignore[arg-type]  # as it comes from the wire
        assert rig.run(row).errors == {}
        assert bytes(whole) == expected
        assert rig.bytes_of(id) == expected[: LARGE + 1]
        rig.backend.release(Release((id,)))
        del whole, row


def test_what_a_device_is_left_with_keeps_its_pages(rig: Rig) -> None:
    """It may go on with it when everybody has forgotten the batch; nothing else may come to lie there."""
    target = rig.buffer(SIZE)
    for turn in range(3):
        assert rig.run(rig.write(target, landed(turn))).errors == {}
        rig.bytes_of(target)
    flying = rig.submit(rig.read(target))
    frame = flying.frame
    assert frame is not None and len(frame.passages) == 1
    address = binding.address(binding.ffi.from_buffer(frame.passages[0].data))
    frame.passages, frame.results = [], []
    gc.collect()
    assert pages_at(address) is not None
    rig.finish(flying)
    [passage] = landing._UNDER_WAY
    passage.over()
    del passage
    assert pages_at(address) is None


def test_pages_that_cannot_be_imported_are_copied(rig: Rig) -> None:
    target = rig.buffer(SIZE)
    assert rig.run(rig.write(target, bytes(SIZE))).errors == {}  # staging memory is there now
    rig.bytes_of(target)

    def move(turns: int) -> None:
        for turn in range(turns):
            data = landed(turn)
            expected = bytes(data)
            assert rig.run(rig.write(target, data)).errors == {}
            del data
            assert rig.bytes_of(target) == expected

    with binding.inject("vkAllocateMemory", "VK_ERROR_INVALID_EXTERNAL_HANDLE", times=3):
        move(12)
        assert "vkAllocateMemory" not in binding.faults or not binding.faults["vkAllocateMemory"]
        move(6)
    assert landings(rig)._imported, "what is refused for a moment is tried again"
    landings(rig).trim()
    with binding.inject("vkAllocateMemory", "VK_ERROR_INVALID_EXTERNAL_HANDLE", times=100):
        move(30)
        left = len(binding.faults["vkAllocateMemory"])
        move(10)
        assert len(binding.faults["vkAllocateMemory"]) == left, "in the end the driver is not asked any more"
    assert not landings(rig)._imported


def test_what_never_comes_again_is_let_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkqueue.gpu.landing._MAX_BYTES", 4 * LARGE)
    target = rig.buffer(8 * LARGE)
    for turn in range(3):
        for size in (LARGE, 2 * LARGE - 4, 4 * LARGE, 8 * LARGE):
            data = landed(turn, size)
            expected = bytes(data)
            assert rig.run(rig.write(target, data)).errors == {}
            del data
            assert bytes(rig.results(rig.read(target, 0, size))[0][0]) == expected
    gc.collect()
    held = landings(rig)._imported
    assert sum(map(len, held)) <= 8 * LARGE, "the largest alone is over the bound, and is still taken"
    assert all(not each.users for each in held.values())
    rig.backend.payloads.trim()
    assert not held
