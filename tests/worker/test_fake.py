"""The fake device does what a device does, and complains of what a device would not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.rows import batch, copy, create, dispatch, fill, layout, read, token, write

from vkqueue.errors import DeviceLostError, OutOfDeviceMemoryError
from vkqueue.gpu.contract import ContractError
from vkqueue.gpu.fake import FakeBackend, FakeSubmission
from vkqueue.gpu.fake_info import fake_info
from vkqueue.model import BARRIER, CREATE, DIRECT, INIT, Batch, Completion, Options, PipelineSpec, Release, Shared


def run(fake: FakeBackend, work: Batch) -> Completion:
    submission = fake.submit(work)
    finish(fake, submission)
    return submission.completion


def finish(fake: FakeBackend, submission: Any) -> None:
    if submission.pending:
        assert fake.wait(submission, 1)
        fake.collect(submission)
    fake.retire(submission)


def test_transfers_move_bytes():
    fake = FakeBackend()
    rows = [
        create(1, 1, 8), create(2, 2, 8, b"01234567"), write(3, 1, b"ab", 2), copy(4, (2, 4, 8), (1, 4, 8)),
        fill(5, 2, 4, 0x04030201), read(6, 1, 8), read(7, 2, 8), create(8, 3, 0), read(9, 3, 0),
    ]  # fmt: skip
    done = run(fake, batch(1, *rows, flags=[0, 0, 1, 1, 1, 1, 0, 0, 0]))
    assert done.errors == {}
    assert done.results == {5: [b"\0\0ab4567"], 6: [b"\1\2\3\0044567"], 8: [b""]}
    assert fake.memory()["bytes_used"] == 16


def test_shared_memory_is_used_where_it_is():
    fake, pages = FakeBackend(memory_bytes=0), bytearray(b"01234567")
    share = (1, 1, CREATE, token(cached=False), 1, b"", None, (6, Shared(pages)), 0, None)
    done = run(fake, batch(1, share, write(2, 1, b"ab", 2), read(3, 1, 6), flags=[DIRECT, DIRECT, 0]))
    assert done.errors == {}
    assert (pages, done.results) == (b"01ab4567", {2: [b"01ab45"]})
    counters = fake.memory()
    assert (counters["buffers"], counters["bytes_used"], counters["shared_bytes"]) == (1, 0, 6)
    fake.release(Release(buffers=(1,)))
    assert fake.memory()["shared_bytes"] == 0


def test_a_launch_runs_its_kernel_on_what_is_bound():
    def kernel(bound: list[memoryview], constants: bytes, grid: tuple[int, int, int]) -> None:
        source, held, both, out = bound
        assert (bytes(source), bytes(held), bytes(both), grid) == (b"in", b"cd", b"io", (1, 1, 1))
        out[:] = constants
        both[0:1] = b"I"
        held[:] = b"CD"

    fake = FakeBackend(kernels={"main": kernel})
    fake.compile(PipelineSpec(5, shape := layout(4), b"", "main"))
    entries = ((0, 0, 2), (1, 2, 2), (0, 1, 2), (0, 2, 3))
    use = token(layout=shape, entries=entries, reads=((1, 2, 4),), writes=((1, 2, 4),), cached=False)
    payload = (("in", b"in"), ("inout", b"io"), ("out", 3))
    launch = dispatch(2, 5, use, b"xyz", payload, Options(timing=True))
    done = run(fake, batch(1, create(1, 1, 4, b"abcd"), launch, flags=[DIRECT, INIT]))
    assert done.results == {1: [b"Io", b"xyz"]}
    assert done.device_us == {1: 1}
    assert fake.buffer(1) == b"abCD"


def test_a_kernel_without_a_function_leaves_memory_alone():
    fake = FakeBackend()
    fake.compile(PipelineSpec(5, shape := layout(1), b"", "main"))
    use = token(layout=shape, entries=((0, 0, 2),), cached=False)
    done = run(fake, batch(1, dispatch(1, 5, use, payload=(("out", 2),)), flags=[INIT]))
    assert done.results == {0: [b"\xcd\xcd"]}


def test_the_device_works_as_late_as_it_may():
    fake = FakeBackend(automatic=False)
    submission: Any = fake.submit(batch(1, create(1, 1, 2, b"ab"), create(2, 2, 2), flags=[DIRECT, 0]))
    assert fake.buffer(1) == b"ab"
    assert fake.buffer(2) == b"\xcd\xcd"
    assert not fake.wait(submission, 0.001)
    fake.complete(1)
    assert fake.wait(submission, 1) and fake.wait(submission, 1)
    assert fake.buffer(2) == b"\0\0"


def test_memory_is_bounded():
    fake = FakeBackend(memory_bytes=100)
    done = run(fake, batch(1, create(1, 1, 60), create(2, 2, 60), create(3, 3, 40)))
    assert isinstance(done.errors[1], OutOfDeviceMemoryError)
    assert done.errors[1].data == {"asked": 60, "used": 60, "left": 40, "largest_free": 40}
    assert list(done.errors) == [1]


def test_a_release_waits_for_the_batches_before_it():
    fake = FakeBackend()
    first: Any = fake.submit(batch(1, create(1, 1, 4)))
    fake.release(Release(buffers=(1, 99)))
    second: Any = fake.submit(batch(2, create(2, 2, 4)))
    assert fake.has_deferred
    assert fake.memory()["buffers"] == 2
    finish(fake, first)
    assert not fake.has_deferred
    assert fake.memory()["buffers"] == 1
    finish(fake, second)
    fake.release(Release(buffers=(2,)))
    assert fake.memory()["buffers"] == 0


def test_a_lost_device_stays_lost():
    fake = FakeBackend()
    fake.lose("gone")
    for call in (lambda: fake.submit(batch(1, create(1, 1, 4))), lambda: fake.compile(spec())):
        with pytest.raises(DeviceLostError, match="gone"):
            call()


def spec() -> PipelineSpec:
    return PipelineSpec(5, layout(), b"", "main")


def test_its_info_can_be_sent():
    wire = fake_info(index=3).to_wire()
    assert json.loads(json.dumps(wire)) == wire
    assert wire["index"] == 3


# The contract


def submitted(*batches: Batch, info: Any = None) -> list[FakeSubmission]:
    """Submit all, none of them finished."""
    fake = FakeBackend(info, automatic=False)
    for id in range(1, 4):
        fake._buffers[id] = bytearray(16)
    shapes = {row[3].layout for work in batches for row in work.rows if row[3].layout is not None}
    for shape in shapes:
        fake.compile(PipelineSpec(shape.id, shape, b"", "main"))
    return [fake.submit(work) for work in batches]  # type: ignore[misc]


W, R = write, read


@pytest.mark.parametrize(
    ("rows", "hazard"),
    [
        ((W(1, 1, b"abcd"), R(2, 1, 4)), "read after write on buffer 1, bytes 0 to 4"),
        ((R(1, 1, 4), W(2, 1, b"ab", 3)), "write after read on buffer 1, bytes 3 to 4"),
        ((W(1, 1, b"abcd"), fill(2, 1, 4, 0)), "write after write"),
    ],
)
def test_hazards_want_a_barrier(rows: tuple[Any, Any], hazard: str):
    first, second = rows
    with pytest.raises(ContractError, match=hazard):
        submitted(batch(1, first, second))
    with pytest.raises(ContractError, match=hazard):
        submitted(batch(1, first), batch(2, second))
    submitted(batch(1, first, second, flags=[0, BARRIER]))
    submitted(batch(1, first), batch(2, W(3, 2, b"abcd"), second, flags=[BARRIER, 0]))


def test_no_barrier_is_wanted_where_nothing_conflicts():
    submitted(batch(1, R(1, 1, 4), R(2, 1, 4), W(3, 1, b"ab", 4), W(4, 2, b"ab")))


def test_no_barrier_is_wanted_after_the_fence():
    fake = FakeBackend()
    run(fake, batch(1, create(1, 1, 4)))
    run(fake, batch(2, R(2, 1, 4)))


def test_the_host_keeps_away_from_what_is_in_use():
    with pytest.raises(ContractError, match="the host would touch"):
        submitted(batch(1, R(1, 1, 4)), batch(2, W(2, 1, b"ab"), flags=[DIRECT]))
    with pytest.raises(ContractError, match="the host would touch"):
        submitted(batch(1, W(1, 1, b"ab"), R(2, 1, 4), flags=[0, DIRECT | BARRIER]))
    submitted(batch(1, R(1, 1, 4), R(2, 1, 4), W(3, 1, b"ab", 4), flags=[0, DIRECT, DIRECT]))


def launch(token: Any) -> Any:
    return dispatch(1, token.layout.id, token)


def test_descriptors_are_pushed_in_each_command_buffer():
    shape = layout()
    a, b = (token(layout=shape, entries=((1, 0, 4),), reads=((1, 0, 4),)) for _ in range(2))
    with pytest.raises(ContractError, match="not the one last pushed"):
        submitted(batch(1, launch(a)))
    with pytest.raises(ContractError, match="not the one last pushed"):
        submitted(batch(1, launch(a), launch(b), launch(a), flags=[INIT, INIT, 0]))
    with pytest.raises(ContractError, match="not the one last pushed"):
        submitted(batch(1, launch(a), flags=[INIT]), batch(2, launch(a)))
    with pytest.raises(ContractError, match="needs none"):
        submitted(batch(1, launch(a), flags=[INIT], slots=[0]))
    submitted(batch(1, launch(a), launch(a), launch(b), flags=[INIT, 0, INIT]))


def test_slots_of_the_ring_outlive_command_buffers_and_are_not_rewritten_in_use():
    info = fake_info(max_push_descriptors=0)
    shape = layout()
    a, b = (token(layout=shape, entries=((1, 0, 4),), reads=((1, 0, 4),)) for _ in range(2))
    with pytest.raises(ContractError, match="needs a slot"):
        submitted(batch(1, launch(a), flags=[INIT]), info=info)
    with pytest.raises(ContractError, match="is not in slot 0"):
        submitted(batch(1, launch(a), launch(b), flags=[INIT, 0], slots=[0, 0]), info=info)
    with pytest.raises(ContractError, match="rewritten"):
        submitted(batch(1, launch(a), flags=[INIT], slots=[0]), batch(2, launch(b), flags=[INIT], slots=[0]), info=info)
    submitted(
        batch(1, launch(a), launch(b), launch(a), flags=[INIT, INIT, 0], slots=[0, 1, 0]),
        batch(2, launch(a), slots=[0]),
        info=info,
    )


def test_transient_entries_are_written_for_each_launch():
    shape = layout()
    once = token(layout=shape, entries=((0, 0, 4),), cached=False)
    row = dispatch(1, shape.id, once, payload=(("in", b"abcd"),))
    with pytest.raises(ContractError, match="transient"):
        submitted(batch(1, row, row, flags=[INIT, 0]))


def test_batches_are_retired_in_order_and_when_they_are_done():
    fake = FakeBackend()
    first, second = fake.submit(batch(1, create(1, 1, 4))), fake.submit(batch(2, create(2, 2, 4)))
    with pytest.raises(ContractError, match="before it is done"):
        fake.retire(first)
    with pytest.raises(ContractError, match="batch 1 is the oldest"):
        fake.retire(second)
    with pytest.raises(ContractError, match="before its fence"):
        fake.collect(first)
    with pytest.raises(ContractError, match="in flight"):
        fake.close()
    assert len(fake.violations) == 4


def test_serials_rise():
    with pytest.raises(ContractError, match="comes after"):
        submitted(batch(2, create(1, 1, 4)), batch(2, create(2, 2, 4)))


def test_ranges_lie_inside_their_buffer():
    fake = FakeBackend()
    with pytest.raises(ContractError, match="which has 4"):
        run(fake, batch(1, create(1, 1, 4), read(2, 1, 8), flags=[0, BARRIER]))
