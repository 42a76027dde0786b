"""Faults of the device and what each job is told: no memory, device lost, batches that take long (rules 21, 36, 38)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.gpu_rig import KINDS, Rig, error_of, ints

from vkqueue.errors import DeviceLostError, NotFoundError, OutOfDeviceMemoryError
from vkqueue.gpu import binding
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.payload import Tuning
from vkqueue.model import BARRIER, Options

pytestmark = pytest.mark.gpu

N = 64


def test_rule_21_one_bad_job_fails_alone(rig: Rig) -> None:
    y = rig.buffer(ints(*[0] * N))
    good = rig.dispatch("increment", (y,))
    rig.sizes[10**6] = 256
    completion = rig.run(good, rig.dispatch("increment", (10**6,)), good, rig.read(y))
    error = error_of(completion, 1)
    assert isinstance(error, NotFoundError) and error.message == "buffer 1000000 was never created or is gone"
    assert completion.results == {3: [ints(*[2] * N)]}


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkBeginCommandBuffer", "vkEndCommandBuffer"])
def test_a_batch_that_cannot_be_submitted_fails_but_for_what_the_host_did(
    open_rig: Callable[..., Rig], call: str
) -> None:
    rig = open_rig()
    if not rig.backend.info.direct_write_max:
        pytest.skip("the host does not see this device's buffers")
    a, b = rig.buffer(ints(*range(N))), rig.buffer(4 * N)
    by_host, create = rig.create(ints(5))
    large, create_large = rig.create(4 * N)
    create_large = (*create_large[:7], (4 * N, None), *create_large[8:])
    batch = rig.batch([create, rig.dispatch("scale", (a, b), ints(2)), create_large, rig.read(b)])
    batch.flags[2] &= ~4  # the device zeroes it
    with binding.inject(call, "VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        completion = rig.finish(rig.backend.submit(batch))
    assert set(completion.errors) >= {1, 3} and 0 not in completion.errors and completion.results == {}
    assert all(isinstance(error, OutOfDeviceMemoryError) for error in completion.errors.values())
    assert rig.ints_of(by_host) == [5] and rig.ints_of(b) == [0] * N
    # The barrier of the batch that never was is made up for: what comes next is ordered after what ran before.
    completion = rig.run(rig.dispatch("scale", (a, b), ints(2)), rig.read(b))
    assert completion.results[1] == [ints(*(2 * i for i in range(N)))]


def test_a_buffer_whose_creation_was_not_submitted_is_not_there(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(memory="discrete", naive=True)
    if rig.backend.info.direct_write_max:
        pytest.skip("the host sees this device's buffers")
    id, create = rig.create(ints(5))
    with binding.inject("vkQueueSubmit", "VK_ERROR_OUT_OF_HOST_MEMORY"):
        assert isinstance(error_of(rig.run(create), 0), OutOfDeviceMemoryError)
    assert rig.backend.memory()["buffers"] == 0
    assert isinstance(error_of(rig.run(rig.read(id)), 0), NotFoundError)
    assert rig.run(create, rig.read(id)).results == {1: [ints(5)]}


def test_a_barrier_that_was_not_submitted_is_owed_to_the_next_batch(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig()
    y = rig.buffer(4 * N)
    launch = rig.dispatch("increment", (y,))
    rig.results(launch)
    commands = rig.backend._recorder._commands
    barriers: list[object] = []

    def counted(real: Callable[[object], None]) -> Callable[[object], None]:
        def record(command: object) -> None:
            barriers.append(command)
            real(command)

        return record

    for kind in ("barrier", "barrier_of_launches"):
        monkeypatch.setattr(commands, kind, counted(getattr(commands, kind)))
    first = rig.submit(launch)
    rig.sizes[10**6] = 256
    bad = rig.dispatch("add", (y, y, 10**6))
    assert isinstance(rig.submit(bad).completion.errors[0], NotFoundError)
    assert len(barriers) == 1, "recorded before the row that failed, with nothing to submit it for"
    barriers.clear()
    harmless = rig.dispatch("increment", (("inout", ints(1)),))
    second = rig.submit(harmless)
    assert len(barriers) == 1, "no flag asked for it here"
    barriers.clear()
    third = rig.submit(harmless)
    assert barriers == []
    for submission in (first, second, third):
        assert not rig.finish(submission).errors


def test_what_moves_bytes_behind_an_owed_barrier_is_waited_for(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owed barrier stands before it, and does not count as the one behind it."""
    rig = open_rig(naive=True)
    x, y, z = rig.buffer(ints(*range(N))), rig.buffer(4 * N), rig.buffer(4 * N)
    launch = rig.dispatch("increment", (y,))
    rig.results(launch)
    log: list[str] = []
    commands = rig.backend._recorder._commands
    for name in ("barrier", "barrier_of_launches", "copy"):
        real = getattr(commands, name)

        def logged(*args: object, name: str = name, real: Callable[..., None] = real) -> None:
            log.append(name)
            real(*args)

        monkeypatch.setattr(commands, name, logged)
    first = rig.submit(launch)
    rig.sizes[10**6] = 256
    assert isinstance(rig.submit(rig.dispatch("add", (y, y, 10**6))).completion.errors[0], NotFoundError)
    log.clear()
    increment = rig.dispatch("increment", (z,))
    second = rig.submit(rig.copy(x, 0, z, 0, 4 * N), increment, increment)
    assert log == ["barrier", "copy", "barrier", "barrier_of_launches"]
    for submission in (first, second):
        assert not rig.finish(submission).errors
    assert rig.ints_of(z) == [i + 2 for i in range(N)]


@pytest.mark.parametrize("call", ["vkCreateCommandPool", "vkAllocateCommandBuffers", "vkCreateFence"])
def test_a_barrier_of_a_batch_for_which_there_was_no_memory_is_owed_to_the_next(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    rig = open_rig()
    y, z, w = (rig.buffer(4 * N) for _ in range(3))
    launches = rig.dispatch("increment", (y,)), rig.dispatch("add", (y, y, z)), rig.dispatch("scale", (y, w), ints(3))
    flying = rig.submit(launches[0])
    batches = [rig.batch([launch]) for launch in launches[1:]]
    assert [batch.flags[0] & BARRIER for batch in batches] == [BARRIER, 0], "the second counts on the first one's"
    with binding.inject(call, "VK_ERROR_OUT_OF_HOST_MEMORY"), pytest.raises(OutOfDeviceMemoryError):
        rig.backend.submit(batches[0])
    barriers: list[object] = []
    monkeypatch.setattr(rig.backend._recorder._commands, "barrier", barriers.append)
    monkeypatch.setattr(rig.backend._recorder._commands, "barrier_of_launches", barriers.append)
    last = rig.backend.submit(batches[1])
    monkeypatch.undo()
    assert len(barriers) == 1
    for submission in (flying, last):
        assert not rig.finish(submission).errors


def test_a_fault_of_the_daemons_own_takes_back_what_the_batch_made(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows fail, and nobody sees what is in a buffer that nothing was written to."""
    rig = open_rig()

    def fail(_: object) -> None:
        raise RuntimeError("unforeseen")

    id, create = rig.create(4 * N)
    monkeypatch.setattr(Frame, "submit", fail)
    launch = rig.dispatch("increment", (id,))
    with pytest.raises(RuntimeError, match="unforeseen"):
        rig.submit(create, launch)
    monkeypatch.undo()
    assert rig.backend.memory()["buffers"] == 0
    assert isinstance(error_of(rig.run(launch), 0), NotFoundError)


def test_rule_36_device_lost_at_submit_surfaces_and_nothing_is_submitted_after(rig: Rig) -> None:
    y = rig.buffer(4 * N)
    launch = rig.dispatch("increment", (y,))
    with binding.inject("vkQueueSubmit", "VK_ERROR_DEVICE_LOST"), pytest.raises(DeviceLostError):
        rig.submit(launch)
    with pytest.raises(DeviceLostError):
        rig.submit(launch)


def test_rule_36_device_lost_while_waiting_surfaces_and_close_works(rig: Rig) -> None:
    y = rig.buffer(4 * N)
    flying = rig.submit(rig.dispatch("increment", (y,)))
    rig.release(y)
    with binding.inject("vkWaitForFences", "VK_ERROR_DEVICE_LOST"), pytest.raises(DeviceLostError):
        rig.backend.wait(flying, 1)
    with pytest.raises(DeviceLostError):
        rig.submit(rig.dispatch("increment", (y,)))
    instance = rig.backend.device.instance
    rig.backend.close()
    assert set(instance.live.counts()) <= {"VkInstance", "VkDebugUtilsMessengerEXT"}


def test_rule_38_a_batch_over_its_limit_keeps_its_objects_until_its_fence_is_known(rig: Rig) -> None:
    data = rig.buffer(64)
    rig.pipeline("heavy")
    grid = (4000, 1, 1) if rig.backend.info.type == "cpu" else (65535, 256, 1)
    flying = rig.submit(rig.dispatch("heavy", (data,), grid=grid), rig.read(data, 0, 4))
    assert not rig.backend.wait(flying, 0.001)
    rig.release(data, pipelines=(rig.pipeline("heavy"),))
    live = rig.backend.device.live.counts()
    assert rig.backend.has_deferred and live["VkPipeline"] == 1
    completion = rig.finish(flying)
    assert completion.results == {1: [ints(1)]} and not rig.backend.has_deferred
    assert "VkPipeline" not in rig.backend.device.live.counts()


def test_a_row_that_asks_for_timing_gets_the_devices_microseconds(rig: Rig) -> None:
    if not rig.backend.info.timestamps:
        pytest.skip("the device has no timestamps")
    data = rig.buffer(64)
    heavy = rig.dispatch("heavy", (data,), grid=(500, 1, 1), options=Options(timing=True))
    light = rig.dispatch("increment", (data,), options=Options(timing=True))
    took: list[tuple[int, int]] = []
    for _ in range(5):  # the least of some: a busy machine makes any of them long
        completion = rig.run(rig.dispatch("increment", (data,)), heavy, light)
        assert set(completion.device_us) == {1, 2}
        took.append((completion.device_us[1], completion.device_us[2]))
    assert min(long for long, _ in took) > min(short for _, short in took) >= 0
    assert completion.submitted_ns <= completion.finished_ns


def test_timing_works_for_more_rows_than_one_query_pool_holds(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig()
    if not rig.backend.info.timestamps:
        pytest.skip("the device has no timestamps")
    data = rig.buffer(64)
    for _ in range(2):
        completion = rig.run(*[rig.dispatch("increment", (data,), options=Options(timing=True))] * 300)
        assert set(completion.device_us) == set(range(300))
    assert rig.ints_of(data)[0] == 600


def test_s17_labels_name_job_client_and_kernel(open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig(debug_labels=True, naive=True)
    if not rig.backend.device.debug_labels:
        pytest.skip("no VK_EXT_debug_utils")
    commands = rig.backend._recorder._commands
    opened: list[str] = []
    closed: list[object] = []
    begin, end = commands.begin_label, commands.end_label

    def began(command: object, text: str) -> None:
        opened.append(text)
        begin(command, text)

    def ended(command: object) -> None:
        closed.append(command)
        end(command)

    monkeypatch.setattr(commands, "begin_label", began)
    monkeypatch.setattr(commands, "end_label", ended)
    data = rig.buffer(4)
    opened.clear()
    closed.clear()
    rig.session = 17
    launch = rig.dispatch("increment", (data,), options=Options(label="warm-up"))
    rig.sizes[10**6] = 4
    rows = [launch, rig.dispatch("increment", (10**6,)), rig.read(data)]
    assert list(rig.run(*rows).errors) == [1]
    pipeline = rig.pipeline("increment")
    assert opened == [
        f"dispatch {pipeline}, session 17, job {rows[0][1]}, warm-up",
        f"dispatch {pipeline}, session 17, job {rows[1][1]}",
        f"read, session 17, job {rows[2][1]}",
    ]
    assert len(closed) == 3


def test_labels_are_off_unless_asked_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.backend._recorder._commands, "begin_label", None)
    data = rig.buffer(ints(1))
    assert rig.results(rig.dispatch("increment", (data,)), rig.read(data)) == [[ints(2)]]


@pytest.mark.parametrize("memory", KINDS)
def test_large_entries_go_through_scratch_memory_with_one_barrier_each_way(
    open_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    rig = open_rig(memory=memory, tuning=Tuning(host_in_max=16, host_out_max=16))
    log: list[str] = []
    commands = rig.backend._recorder._commands
    for name in ("barrier", "copy", "fill", "barrier_to_host"):
        real = getattr(commands, name)

        def logged(command: object, *args: object, name: str = name, real: object = real) -> None:
            log.append(name)
            real(command, *args)  # type: ignore[operator]

        monkeypatch.setattr(commands, name, logged)
    values = ints(*range(N))
    rows = [
        rig.dispatch("scale", (("in", values), ("out", 4 * N)), ints(3)),
        rig.dispatch("increment", (("inout", values),)),
        rig.dispatch("increment", (("inout", ints(41)),)),  # small: bound where the host sees it
    ]
    completion = rig.run(*rows)
    assert [bytes(completion.results[i][0]) for i in range(3)] == [
        ints(*(3 * i for i in range(N))), ints(*(i + 1 for i in range(N))), ints(42),
    ]  # fmt: skip
    assert log == ["copy", "fill", "copy", "barrier", "barrier", "copy", "copy", "barrier_to_host"]


@pytest.mark.parametrize("memory", KINDS)
def test_results_of_several_entries_come_in_the_payloads_order(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory)
    rows = [rig.dispatch("sets", (("in", ints(5, 6)), ("uniform", ints(10)), ("out", 8), ("inout", ints(1, 2))))]
    assert rig.results(*rows) == [[ints(15, 16), ints(50, 60)]]
