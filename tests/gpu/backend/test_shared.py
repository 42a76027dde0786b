"""Memory that a client shares, used by the device itself or mirrored: what either side wrote is seen by the other."""

from __future__ import annotations

import ctypes
import gc
import mmap
import struct
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.gpu_rig import CACHED, COHERENT, KINDS, LOCAL, MEMORY, VISIBLE, Rig, error_of, ints

from vkqueue.errors import DeviceLostError, OutOfDeviceMemoryError
from vkqueue.gpu import binding
from vkqueue.gpu.imported import ImportedBuffer
from vkqueue.gpu.mirrored import MirroredBuffer, merged, without
from vkqueue.model import Options, Shared

pytestmark = pytest.mark.gpu

N = 256
GRID = (N // 64, 1, 1)
SECRET = 0x5EC2E701


class Pages:
    """A client's memory, whole pages; `view` is the client's side of it."""

    def __init__(self, size: int) -> None:
        length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, length, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)
        self.shared = Shared((ctypes.c_char * length).from_buffer(self._map))

    def ints(self, first: int = 0, count: int = N) -> list[int]:
        return list(struct.unpack_from(f"<{count}i", self.view, 4 * first))

    def put(self, *values: int, first: int = 0) -> None:
        struct.pack_into(f"<{len(values)}i", self.view, 4 * first, *values)


def share(rig: Rig, size: int = 4 * N) -> tuple[int, Pages]:
    pages = Pages(size)
    id, row = rig.share(pages.shared, size)
    assert rig.run(row).errors == {}
    return id, pages


@pytest.fixture(params=["imported", "mirrored"])
def open_either(request: pytest.FixtureRequest, open_rig: Callable[..., Rig]) -> Callable[..., Rig]:
    """`open_rig` for a device that uses the pages, and one that does not."""

    def open_it(**options: Any) -> Rig:
        rig = open_rig(**options, external_memory_host=request.param == "imported")
        if request.param == "imported" and not rig.backend.device.host_pointer_alignment:
            pytest.skip("the device cannot import memory")
        return rig

    return open_it


CASES = [(memory, naive) for memory in KINDS for naive in (False, True)]


@pytest.mark.parametrize(("memory", "naive"), CASES)
def test_a_launch_reads_and_writes_the_clients_memory(
    open_either: Callable[..., Rig], memory: str, naive: bool
) -> None:
    rig = open_either(memory=memory, naive=naive)
    (x, theirs), (y, ours) = share(rig), share(rig)
    for turn in (1, 2, 3):
        theirs.put(*range(turn, N + turn))
        assert rig.run(rig.dispatch("scale", (x, y), ints(turn), GRID)).errors == {}
        assert ours.ints() == [turn * (i + turn) for i in range(N)]
    assert rig.ints_of(y) == ours.ints()


@pytest.mark.parametrize(("memory", "naive"), CASES)
def test_copies_go_both_ways(open_either: Callable[..., Rig], memory: str, naive: bool) -> None:
    rig = open_either(memory=memory, naive=naive)
    shared, pages = share(rig, 100_000)
    own = rig.buffer(100_000)
    pages.view[:100_000] = bytes(i % 251 for i in range(100_000))
    before = bytes(pages.view)
    assert rig.run(rig.copy(shared, 3, own, 5, 70_001)).errors == {}
    assert rig.bytes_of(own) == bytes(5) + before[3:70_004] + bytes(100_000 - 70_006)
    pages.view[:4] = b"mine"
    assert rig.run(rig.copy(own, 6, shared, 7, 9)).errors == {}
    assert bytes(pages.view) == b"mine" + before[4:7] + before[4:13] + before[16:]


@pytest.mark.parametrize(("memory", "naive"), CASES)
def test_transfers_of_the_host_keep_their_order(open_either: Callable[..., Rig], memory: str, naive: bool) -> None:
    """Small reads and writes may be the host's own work, which is done when the batch is recorded."""
    rig = open_either(memory=memory, naive=naive)
    x, pages = share(rig)
    pages.put(*[1] * N)
    completion = rig.run(
        rig.write(x, ints(10)),
        rig.dispatch("increment", (x,), grid=GRID),
        rig.read(x, 0, 8),
        rig.write(x, ints(20), 4),
        rig.dispatch("increment", (x,), grid=GRID),
        rig.fill(x, 7, 8, 4),
        rig.read(x, 0, 16),
    )
    assert completion.errors == {}
    assert completion.results == {2: [ints(11, 2)], 6: [ints(12, 21, 7, 3)]}
    assert pages.ints() == [12, 21, 7, *[3] * (N - 3)]
    pages.put(5)
    assert rig.results(rig.read(x, 0, 8)) == [[ints(5, 21)]]


@pytest.mark.parametrize(("memory", "naive"), CASES)
def test_batches_in_flight_see_what_those_before_them_wrote(
    open_either: Callable[..., Rig], memory: str, naive: bool
) -> None:
    rig = open_either(memory=memory, naive=naive)
    x, pages = share(rig)
    pages.put(*range(N))
    half = (x, 0, 2 * N)
    flying = [rig.submit(rig.dispatch("increment", (half,), grid=GRID)) for _ in range(3)]
    # Nothing under way uses the other half, so it is the client's.
    pages.put(*[100] * (N // 2), first=N // 2)
    flying.append(rig.submit(rig.dispatch("increment", (x,), grid=GRID), rig.read(x)))
    for submission in flying[:3]:
        assert rig.finish(submission).errors == {}
    completion = rig.finish(flying[3])
    expected = [*(i + 4 for i in range(N // 2)), *[101] * (N // 2)]
    assert completion.results == {1: [ints(*expected)]}
    assert pages.ints() == expected


def test_what_a_launch_leaves_alone_stays_the_clients(open_either: Callable[..., Rig]) -> None:
    rig = open_either()
    (x, pages), source = share(rig), rig.buffer(ints(*range(100, 100 + N)))
    pages.put(*range(N))
    launch = rig.dispatch("scale", (source, x), ints(1), (1, 1, 1))  # it only writes, and not everywhere
    assert rig.run(launch).errors == {}
    pages.put(-1, first=200)
    assert rig.run(launch).errors == {}
    assert pages.ints() == [*range(100, 164), *range(64, 200), -1, *range(201, N)]


def test_what_was_answered_is_the_clients_again_at_once(open_either: Callable[..., Rig]) -> None:
    """A batch is collected, and its clients are told, before the worker finds time to retire it."""
    rig = open_either()
    x, pages = share(rig)
    first = rig.submit(rig.dispatch("increment", (x,), grid=GRID))
    assert rig.backend.wait(first, 30)
    assert rig.backend.collect(first).errors == {}
    assert pages.ints() == [1] * N
    pages.put(*range(N))
    second = rig.submit(rig.dispatch("increment", (x,), grid=GRID))
    rig.backend.retire(first)
    assert rig.finish(second).errors == {}
    assert pages.ints() == list(range(1, N + 1))


def test_what_the_host_wrote_beside_work_of_the_device_stays(open_either: Callable[..., Rig]) -> None:
    rig = open_either()
    (x, pages), other = share(rig), rig.buffer(4 * N)
    assert rig.run(rig.write(x, ints(8)), rig.dispatch("increment", (other,), grid=GRID)).errors == {}
    assert pages.ints() == [8, *[0] * (N - 1)]


def test_a_batch_that_is_not_submitted_changes_nothing(open_either: Callable[..., Rig]) -> None:
    rig = open_either()
    x, pages = share(rig)
    pages.put(*range(N))
    launch = rig.dispatch("increment", (x,), grid=GRID)
    with binding.inject("vkQueueSubmit", "VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        assert isinstance(error_of(rig.run(launch), 0), OutOfDeviceMemoryError)
    assert pages.ints() == list(range(N))
    pages.put(50)
    assert rig.run(launch).errors == {}
    assert pages.ints() == [51, *range(2, N + 1)]


def test_the_client_s_next_words_are_seen_after_a_failed_row(open_either: Callable[..., Rig]) -> None:
    rig = open_either()
    x, pages = share(rig)
    rig.sizes[10**6] = 256
    bad = rig.dispatch("scale", (10**6, x), ints(1), GRID)
    pages.put(*range(N))
    assert list(rig.run(bad, rig.dispatch("increment", (x,), grid=GRID)).errors) == [0]
    assert pages.ints() == list(range(1, N + 1))
    other = rig.buffer(4)
    pages.put(*range(N))
    assert list(rig.run(rig.copy(10**6, 0, x, 0, 256), rig.dispatch("increment", (other,))).errors) == [0]
    assert pages.ints() == list(range(N))


def test_the_pages_stay_until_the_last_use_and_no_longer(open_either: Callable[..., Rig]) -> None:
    rig = open_either()
    pages = Pages(4 * N)
    gone = weakref.ref(pages.shared)
    x, row = rig.share(pages.shared, 4 * N)
    assert rig.run(row).errors == {}
    del pages.shared, row
    counters = rig.backend.memory()
    assert (counters["buffers"], counters["shared_bytes"]) == (1, mmap.PAGESIZE)
    submission = rig.submit(rig.dispatch("increment", (x,), grid=GRID))
    rig.release(x)
    gc.collect()
    assert gone() is not None
    assert rig.finish(submission).errors == {}
    del submission
    assert gone() is None, "the collector may come late"
    assert pages.ints() == [1] * N
    counters = rig.backend.memory()
    assert (counters["buffers"], counters["shared_bytes"]) == (0, 0)


@pytest.mark.parametrize("robustness2", [True, False])
def test_rule_42_nothing_beyond_the_clients_own_pages_is_reached(
    open_either: Callable[..., Rig], robustness2: bool
) -> None:
    rig = open_either(robustness2=robustness2)
    secrets = struct.pack("<I", SECRET) * 1024
    hidden = [rig.buffer(secrets), share(rig, 4096)[0], rig.buffer(secrets)]
    rig.run(rig.write(hidden[1], secrets))
    mine, pages = share(rig, 100)
    count = 8192
    for start in (0, 25, 1024, -count, -(1 << 30) + 16):
        for mode in (0, 1):
            constants = struct.pack("<3I", start % (1 << 32), count, mode)
            out = ("out", 4 * count if mode == 0 else 4)
            launch = rig.dispatch("reach", (mine, ("uniform", bytes(64)), out), constants, (count // 64, 1, 1))
            [seen] = rig.results(launch)[0]
            assert SECRET not in struct.unpack(f"<{len(seen) // 4}I", seen)
    assert len(pages.view) == mmap.PAGESIZE
    for id in hidden:
        assert rig.bytes_of(id) == secrets


def test_a_mirror_has_nothing_of_what_lay_there_before(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(external_memory_host=False)
    first = rig.buffer(b"\xff" * 100)
    rig.release(first)
    x, _ = share(rig, 5)
    mirror = rig.backend.buffers.get(x)
    assert isinstance(mirror, MirroredBuffer) and mirror.store.mapping is not None
    assert mirror.store.mapping.read(mirror.store.offset, mirror.capacity) == bytes(mirror.capacity)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("vkAllocateMemory", "VK_ERROR_INVALID_EXTERNAL_HANDLE"),
        ("vkGetMemoryHostPointerPropertiesEXT", "VK_ERROR_INVALID_EXTERNAL_HANDLE"),
        ("vkBindBufferMemory", "VK_ERROR_OUT_OF_HOST_MEMORY"),
    ],
)
def test_pages_that_the_driver_refuses_are_mirrored(open_rig: Callable[..., Rig], call: str, result: str) -> None:
    rig = open_rig()
    if not rig.backend.device.host_pointer_alignment:
        pytest.skip("the device cannot import memory")
    with binding.inject(call, result):
        x, pages = share(rig)
    assert isinstance(rig.backend.buffers.get(x), MirroredBuffer)
    y, others = share(rig)
    assert isinstance(rig.backend.buffers.get(y), ImportedBuffer)
    pages.put(*range(N))
    assert rig.run(rig.dispatch("scale", (x, y), ints(2), GRID), rig.copy(y, 0, x, 4, 8)).errors == {}
    assert others.ints() == [2 * i for i in range(N)]
    assert pages.ints() == [0, 0, 2, *range(3, N)]


def test_no_memory_for_a_mirror_is_told(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(external_memory_host=False)
    _, row = rig.share(Pages(64 << 20).shared, 64 << 20)
    with binding.inject("vkAllocateMemory", "VK_ERROR_OUT_OF_DEVICE_MEMORY", times=2):
        assert isinstance(error_of(rig.run(row), 0), OutOfDeviceMemoryError)
    assert rig.backend.memory()["buffers"] == 0


def test_a_lost_device_is_not_taken_for_a_refusal(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    if not rig.backend.device.host_pointer_alignment:
        pytest.skip("the device cannot import memory")
    _, row = rig.share(Pages(4096).shared, 4096)
    with binding.inject("vkAllocateMemory", "VK_ERROR_DEVICE_LOST"), pytest.raises(DeviceLostError):
        rig.run(row)


def test_rule_43_what_the_device_writes_there_is_made_visible_to_the_host(
    open_either: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_either(memory="discrete")
    if len(rig.backend.device.memory_types) > 2:
        pytest.skip("counts barriers for the memory that lavapipe is disguised with")
    calls: list[object] = []
    commands = rig.backend._recorder._commands
    real = commands.barrier_to_host

    def counted(command: object) -> None:
        calls.append(command)
        real(command)

    monkeypatch.setattr(commands, "barrier_to_host", counted)
    other = rig.buffer(4 * N)
    rig.run(rig.dispatch("increment", (other,), grid=GRID))
    assert not calls
    x, _ = share(rig)
    rig.run(rig.dispatch("increment", (x,), grid=GRID))
    assert len(calls) == 1
    rig.release(x)
    rig.run(rig.dispatch("increment", (other,), grid=GRID))
    assert len(calls) == 1


def test_timing_and_labels_go_with_shared_memory(open_either: Callable[..., Rig]) -> None:
    rig = open_either(debug_labels=True)
    x, pages = share(rig)
    completion = rig.run(rig.dispatch("increment", (x,), grid=GRID, options=Options(timing=True, label="x")))
    assert completion.errors == {} and pages.ints() == [1] * N
    assert (0 in completion.device_us) == rig.backend.info.timestamps


@pytest.mark.parametrize(
    ("spans", "others", "rest"),
    [
        ([], [(0, 5)], []),
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(2, 4), (6, 8)], [(0, 2), (4, 6), (8, 10)]),
        ([(0, 10), (20, 30)], [(25, 40), (5, 21)], [(0, 5), (21, 25)]),
        ([(5, 10)], [(0, 5), (10, 20)], [(5, 10)]),
    ],
)
def test_ranges_without_others(
    spans: list[tuple[int, int]], others: list[tuple[int, int]], rest: list[tuple[int, int]]
) -> None:
    assert without(spans, others) == rest


def test_ranges_are_merged() -> None:
    assert merged([(8, 9), (0, 4), (2, 6), (6, 7)]) == [(0, 7), (8, 9)]


def test_a_mirror_lies_in_coherent_memory_where_there_is_some(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host brings parts of it while the device writes others; a flush would take those along."""
    mobile = (LOCAL | VISIBLE | COHERENT, 0), (LOCAL | VISIBLE | CACHED, 0)
    monkeypatch.setitem(MEMORY, "mobile", mobile)
    rig = open_rig(memory="mobile", external_memory_host=False)
    if len(rig.backend.device.memory_types) != len(mobile):
        pytest.skip("the device keeps its own memory types")
    id, _ = share(rig)
    mirror = rig.backend.buffers.mirrored[id]
    assert not rig.backend.buffers.types.download.coherent
    assert mirror.store.allocation.block.memory_type.coherent
