"""How long things live: buffers freed in flight, pipelines, staging, teardown."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from support.gpu_rig import KINDS, Rig, error_of, ints

from vkqueue.errors import NotFoundError, OutOfDeviceMemoryError, TooLargeError
from vkqueue.gpu import binding
from vkqueue.gpu.device import DeviceOptions
from vkqueue.gpu.payload import Tuning
from vkqueue.gpu.vulkan import open_backend
from vkqueue.model import CREATE, Batch, Release

pytestmark = pytest.mark.gpu

N = 256
GRID = (N // 64, 1, 1)


def client_bytes(rig: Rig) -> int:
    memory = rig.backend.memory()
    return memory["bytes_used"] - memory["staging_bytes"]


def own_allocation(rig: Rig) -> int:
    """A size that gets an allocation of its own."""
    buffers = rig.backend.buffers
    return buffers.memory.block_size(buffers.types.client) // 2 + 1


def test_rule_04_s15_a_buffer_freed_after_a_launch_was_sent_is_still_there_for_it(rig: Rig) -> None:
    x, y = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    used = client_bytes(rig)
    launch = rig.submit(rig.dispatch("scale", (x, y), ints(3), GRID))
    rig.release(x)
    assert rig.backend.has_deferred and rig.backend.memory()["buffers"] == 2
    # What is created meanwhile must not get its memory.
    z = rig.buffer(b"\xff" * 4 * N)
    assert client_bytes(rig) > used
    rig.finish(launch)
    assert not rig.backend.has_deferred and rig.backend.memory()["buffers"] == 2
    assert rig.ints_of(y) == [3 * i for i in range(N)]
    assert rig.bytes_of(z) == b"\xff" * 4 * N
    assert client_bytes(rig) == used


def test_rule_04_s15_freeing_waits_for_every_batch_before_it_and_none_after(rig: Rig) -> None:
    x, y = rig.buffer(4 * N), rig.buffer(4 * N)
    first, second = (rig.submit(rig.dispatch("increment", (id,), grid=GRID)) for id in (x, y))
    rig.release(x)
    third = rig.submit(rig.dispatch("increment", (y,), grid=GRID))
    rig.finish(second)
    assert rig.backend.has_deferred
    rig.finish(first)
    assert not rig.backend.has_deferred
    rig.finish(third)
    assert rig.ints_of(y) == [2] * N


def test_a_released_buffer_is_not_found_by_any_row(rig: Rig) -> None:
    x, y = rig.buffer(4 * N), rig.buffer(4 * N)
    launch = rig.dispatch("scale", (x, y), ints(3), GRID)
    rig.results(launch)
    rig.release(x)
    rows = [launch, rig.read(x), rig.write(x, b"1234"), rig.fill(x, 0, 0, 4), rig.copy(x, 0, y, 0, 4)]
    completion = rig.run(*rows)
    assert set(completion.errors) == set(range(len(rows)))
    for error in completion.errors.values():
        assert isinstance(error, NotFoundError) and f"buffer {x} was never created or is gone" in error.message


def test_ids_that_do_not_exist_are_ignored_by_release(rig: Rig) -> None:
    rig.backend.release(Release((123456,), (654321,)))
    assert not rig.backend.has_deferred


def test_s21_a_pipeline_released_in_flight_is_destroyed_after_it_and_not_found_meanwhile(rig: Rig) -> None:
    x = rig.buffer(4 * N)
    launch = rig.dispatch("increment", (x,), grid=GRID)
    flying = rig.submit(launch)
    rig.release(pipelines=(rig.pipeline("increment"),))
    live = rig.backend.device.live
    assert live.counts()["VkPipeline"] == 1
    assert isinstance(error_of(rig.run(launch), 0), NotFoundError)
    rig.finish(flying)
    assert "VkPipeline" not in live.counts() and "VkDescriptorPool" not in live.counts()
    rig._pipelines.clear()
    rig.results(rig.dispatch("increment", (x,), grid=GRID))
    assert rig.ints_of(x) == [2] * N, "built again under another id, with the layout of before"


@pytest.mark.parametrize("memory", KINDS)
def test_rule_06_s16_an_empty_buffer_can_be_bound_and_read(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory)
    empty, size = rig.buffer(0), rig.buffer(4)
    assert rig.bytes_of(empty) == b""
    rig.results(rig.write(empty, b""), rig.dispatch("length", (empty, size)))
    assert rig.ints_of(size) == [0]
    assert rig.results(rig.dispatch("length", (("in", b""), ("out", 4)))) == [[ints(0)]]
    assert rig.results(rig.dispatch("increment", (("inout", b""),))) == [[b""]]


@pytest.mark.parametrize("robustness2", [True, False], ids=["null", "byte"])
@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_rule_06_s16_an_empty_range_does_not_expose_its_buffer(
    open_rig: Callable[..., Rig], descriptors: str, robustness2: bool
) -> None:
    """Nothing is bound, or a byte that is no byte of the buffer."""
    rig = open_rig(descriptors=descriptors, robustness2=robustness2)
    buffer, size = rig.buffer(b"\xff" * 512), rig.buffer(4)
    for offset in (0, 256, 512):
        rig.results(rig.dispatch("length", ((buffer, offset, 0), size)))
        assert rig.ints_of(size) == [0]
        rig.results(rig.dispatch("increment", ((buffer, offset, 0),)))
    assert rig.bytes_of(buffer) == b"\xff" * 512
    rig.release(buffer)
    assert rig.backend.memory()["buffers"] == 1


@pytest.mark.parametrize("limit", ["maxBufferSize", "maxMemoryAllocationSize"])
def test_rule_06_a_size_over_the_devices_largest_is_one_clear_error(
    open_rig: Callable[..., Rig], limit: str
) -> None:
    rig = open_rig()
    largest = rig.backend.info.limits[limit]
    assert largest > 1 << 20
    _, too_large = rig.create(largest + 1)
    good, create = rig.create(ints(1, 2, 3))
    completion = rig.run(too_large, create, rig.read(good))
    error = error_of(completion, 0)
    assert isinstance(error, TooLargeError)
    assert f"{largest + 1:,} bytes" in error.message and f"{error.data['limit']:,}" in error.message  # type: ignore[index]
    assert completion.results[2] == [ints(1, 2, 3)]


def test_rule_08_out_of_device_memory_is_the_rows_own_error(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    kept = rig.buffer(ints(5))
    _, row = rig.create(own_allocation(rig))
    with binding.inject("vkAllocateMemory", "VK_ERROR_OUT_OF_DEVICE_MEMORY", times=4):
        completion = rig.run(row, rig.read(kept))
    error = error_of(completion, 0)
    assert isinstance(error, OutOfDeviceMemoryError)
    for word in ("no device memory for ", "used", "left", "largest free block"):
        assert word in error.message
    assert completion.results[1] == [ints(5)]
    assert rig.run(row).errors == {}, "the next request works"


def test_rule_08_idle_staging_makes_room_for_a_buffer(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(naive=True)
    rig.buffer(bytes(8 << 20))
    assert rig.backend.memory()["staging_bytes"] >= 8 << 20
    _, row = rig.create(own_allocation(rig))
    with binding.inject("vkAllocateMemory", "VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        assert rig.run(row).errors == {}
    assert rig.backend.memory()["staging_bytes"] == 0


@pytest.mark.parametrize("call", ["vkCreateBuffer", "vkMapMemory", "vkBindBufferMemory"])
def test_a_buffer_that_fails_half_way_leaves_nothing_behind(open_rig: Callable[..., Rig], call: str) -> None:
    rig = open_rig()
    rig.run()
    before = rig.backend.device.live.counts()
    id, row = rig.create(own_allocation(rig))
    with binding.inject(call, "VK_ERROR_OUT_OF_DEVICE_MEMORY", times=4):
        assert isinstance(error_of(rig.run(row), 0), OutOfDeviceMemoryError)
    memory = rig.backend.memory()
    assert memory["buffers"] == memory["bytes_used"] == memory["bytes_reserved"] == 0
    assert rig.backend.device.live.counts() == before
    assert isinstance(error_of(rig.run(rig.read(id)), 0), NotFoundError)


def test_rule_07_ten_thousand_small_buffers_and_nothing_left_after(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    device = rig.backend.device
    content = [struct.pack("<I", i) * 4 for i in range(10_000)]
    ids, rows = zip(*(rig.create(data) for data in content), strict=True)
    for start in range(0, len(rows), 1000):
        assert rig.run(*rows[start : start + 1000]).errors == {}
    memory = rig.backend.memory()
    assert memory["buffers"] == 10_000 and memory["allocations"] <= 5
    assert device.live.counts()["VkDeviceMemory"] == memory["allocations"]
    assert [rig.bytes_of(ids[i]) for i in (0, 4999, 9999)] == [content[i] for i in (0, 4999, 9999)]
    rig.release(*ids)
    memory = rig.backend.memory()
    assert memory["buffers"] == 0 and memory["bytes_used"] == memory["staging_bytes"]
    instance = device.instance
    rig.backend.close()
    assert set(instance.live.counts()) <= {"VkInstance", "VkDebugUtilsMessengerEXT"}


@pytest.mark.parametrize("memory", KINDS)
def test_rule_09_staging_does_not_grow_over_many_batches(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory, naive=True)
    target = rig.buffer(1 << 20)
    seen = []
    for _ in range(12):
        flying = [
            rig.submit(
                rig.write(target, bytes(1 << 20)),
                rig.read(target),
                rig.dispatch("increment", (("inout", bytes(400_000)),), grid=(10, 1, 1)),
            )
            for _ in range(3)
        ]
        for submission in flying:
            assert not rig.finish(submission).errors
        seen.append(rig.backend.memory()["staging_bytes"])
    assert len(set(seen[1:])) == 1 and seen[-1] < 20 << 20


def test_rule_09_a_burst_over_the_bound_fails_row_by_row_and_passes_later(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(tuning=Tuning(staging_limit=4 << 20), naive=True)
    target = rig.buffer(1 << 20)
    writes = [rig.write(target, bytes([i]) * (1 << 20)) for i in range(8)]
    completion = rig.run(*writes)
    assert 0 < len(completion.errors) < 8
    assert rig.backend.memory()["staging_bytes"] <= 4 << 20
    for index, error in completion.errors.items():
        assert isinstance(error, OutOfDeviceMemoryError) and "try again" in error.message
        assert rig.run(writes[index]).errors == {}
    assert rig.bytes_of(target) == bytes([max(completion.errors)]) * (1 << 20)


def test_s14_memory_that_is_not_coherent_is_flushed_and_invalidated(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig(memory="not coherent")
    if rig.backend.buffers.types.client.coherent:
        pytest.skip("only for the memory that lavapipe is disguised with")
    calls: list[str] = []
    device_calls = rig.backend.device.calls
    for name in ("vkFlushMappedMemoryRanges", "vkInvalidateMappedMemoryRanges", "vkQueueSubmit"):
        real = getattr(device_calls, name)

        def logged(*args: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name[2:])
            return real(*args)

        monkeypatch.setattr(device_calls, name, logged)
    x = rig.buffer(ints(*range(N)))
    assert calls == ["FlushMappedMemoryRanges"]
    calls.clear()
    out = rig.results(rig.dispatch("scale", (("in", ints(*range(N))), ("out", 4 * N)), ints(2), GRID))
    assert out == [[ints(*(2 * i for i in range(N)))]]
    assert calls == ["FlushMappedMemoryRanges", "QueueSubmit", "InvalidateMappedMemoryRanges"]
    calls.clear()
    assert rig.ints_of(x) == list(range(N))
    assert calls == ["InvalidateMappedMemoryRanges"]


def test_s21_close_with_work_in_flight_leaves_nothing(rig: Rig) -> None:
    x = rig.buffer(4 * N)
    for _ in range(3):
        rig.submit(rig.dispatch("increment", (x,), grid=GRID), rig.read(x))
    rig.release(x)
    instance = rig.backend.device.instance
    rig.backend.close()
    rig.backend.close()
    assert set(instance.live.counts()) <= {"VkInstance", "VkDebugUtilsMessengerEXT"}


def test_rule_41_close_gives_up_on_a_device_that_does_not_finish(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    x = rig.buffer(4 * N)
    flying = rig.submit(rig.dispatch("increment", (x,), grid=GRID))
    with binding.inject("vkWaitForFences", "VK_TIMEOUT"):
        rig.backend.close()
    assert rig.backend.device.live.counts()["VkBuffer"] >= 1, "what the device may still use is not destroyed"
    assert rig.backend.wait(flying, 10)
    rig.backend._closed = False


def test_a_batch_with_no_work_for_the_device_is_not_submitted(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    if not rig.backend.info.direct_read_max:
        pytest.skip("the host does not see this device's buffers")
    id, create = rig.create(ints(1, 2, 3))
    nothing = rig.dispatch("increment", (("inout", ints(7)),), grid=(1, 0, 1))
    submission = rig.submit(create, rig.write(id, ints(9), 4), rig.read(id), nothing)
    assert not submission.pending and submission.completion.submits == 0
    assert submission.completion.results == {2: [ints(1, 9, 3)], 3: [ints(7)]}
    assert rig.finish(submission) is submission.completion


def test_open_backend_owns_its_instance_and_names_the_devices_it_has(vulkan: Any) -> None:
    backend = open_backend(0, DeviceOptions())
    backend.submit(Batch(1, [(1, 1, CREATE, None, 5, b"", (0, 0, 0), (0, None), 0, None)], [0], [-1]))
    instance = backend.device.instance
    backend.close()
    assert instance.live.counts() == {} and instance is not vulkan
    with pytest.raises(NotFoundError, match=r"no device 99; those that can be used: 0: "):
        open_backend(99, DeviceOptions())
