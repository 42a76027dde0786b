"""A device thread over the fake, with real threads: what is answered, when, and in what order."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.rows import batch, create, dispatch, layout, read, token, write

from vkqueue.errors import (
    CompileError,
    DeviceLostError,
    InternalError,
    NotFoundError,
    OutOfDeviceMemoryError,
    ShuttingDownError,
    UnsupportedError,
)
from vkqueue.gpu.fake import FakeBackend
from vkqueue.model import DIRECT, INIT, Completion, PipelineBuilt, PipelineSpec, Release
from vkqueue.worker.bridge import Inbox, Outbox
from vkqueue.worker.events import DeviceLost, Failed, Opened, Stopped
from vkqueue.worker.thread import DeviceThread

from .conftest import PATIENCE_S, Gate, Mailbox, Rig

MakeRig = Callable[..., Rig]


def by_hand(**options: Any) -> FakeBackend:
    return FakeBackend(automatic=False, **options)


def final(rig: Rig) -> Completion:
    completion = rig.events.next(Completion)
    assert completion.final
    return completion


def codes(completion: Completion) -> list[str | None]:
    """The error code of each row, None for success."""
    errors = completion.errors
    return [errors[i].code if i in errors else None for i in range(len(completion.batch.rows))]


# The normal course


def test_a_batch_is_run_and_answered(rig: MakeRig):
    r = rig()
    assert r.thread.post(batch(1, create(1, 1, 4), write(2, 1, b"abcd"), read(3, 1, 4), flags=[0, 1, 1]))
    completion = final(r)
    assert codes(completion) == [None, None, None]
    assert completion.results == {2: [b"abcd"]}
    assert completion.submits == 1
    assert 0 < completion.submitted_ns <= completion.finished_ns
    assert r.thread.memory()["buffers"] == 1


def test_the_next_batch_is_submitted_while_one_is_waited_for(rig: MakeRig):
    r = rig(by_hand())
    r.thread.post(batch(1, create(1, 1, 4)))
    submitted = wait_for_call(r.fake, "submit", 3)
    r.thread.post(batch(2, create(2, 2, 4)))
    r.thread.post(batch(3, create(3, 3, 4)))
    assert submitted.wait(PATIENCE_S)
    assert r.events.rest() == []
    for serial in (1, 2, 3):
        r.fake.complete(serial)
        assert final(r).batch.serial == serial


def test_a_batch_is_retired_before_the_next_is_recorded(rig: MakeRig):
    r = rig()
    for serial in (1, 2):
        r.thread.post(batch(serial, create(serial, serial, 4)))
        final(r)
    assert r.calls("submit", "collect", "retire")[:4] == [("submit", 1), ("collect", 1), ("retire", 1), ("submit", 2)]


@pytest.mark.parametrize("waiter", ["companion"])
def test_a_companion_does_not_wake_the_worker_to_retire(rig: MakeRig):
    r = rig()
    r.thread.post(batch(1, create(1, 1, 4)))
    final(r)
    assert r.calls("retire") == []


def test_what_the_host_did_does_not_wait_for_the_device(rig: MakeRig):
    r = rig(by_hand())
    r.thread.post(batch(1, create(1, 1, 4)))
    r.thread.post(batch(2, create(2, 2, 4, b"abcd"), read(3, 2, 4), flags=[DIRECT, DIRECT]))
    early = final(r)
    assert (early.batch.serial, early.submits, early.results) == (2, 0, {1: [b"abcd"]})
    r.fake.complete(1)
    assert final(r).batch.serial == 1
    r.stop()
    # In the order of submission nevertheless: the fake checks it too.
    assert r.calls("retire") == [("retire", 1), ("retire", 2)]


def test_rule_9_what_the_host_did_does_not_keep_its_bytes_for_a_batch_ahead(rig: MakeRig):
    """Else a client could send gigabytes while something long runs."""

    class Payload(bytearray):
        pass

    r = rig(by_hand())
    r.thread.post(batch(1, create(1, 1, 4), flags=[DIRECT]))
    final(r)
    r.thread.post(batch(2, create(2, 2, 4)))
    data = Payload(b"abcd")
    there = weakref.ref(data)
    r.thread.post(batch(3, write(3, 1, data), flags=[DIRECT]))
    del data
    final(r)
    # The worker is past the third batch once it has taken another.
    r.thread.post(batch(4, read(4, 1, 4), flags=[DIRECT]))
    assert final(r).results == {0: [b"abcd"]}
    gc.collect()
    assert there() is None
    r.fake.complete(2)
    assert final(r).batch.serial == 2


def test_a_release_behind_a_batch_in_flight_wakes_the_worker_when_it_ends(rig: MakeRig):
    r = rig(by_hand())
    retired = wait_for_call(r.fake, "retire", 1)
    released = wait_for_call(r.fake, "release", 1)
    r.thread.post(batch(1, create(1, 1, 4)))
    r.thread.post(Release(buffers=(1,)))
    assert released.wait(PATIENCE_S)
    assert r.fake.buffer(1)
    r.fake.complete(1)
    final(r)
    assert retired.wait(PATIENCE_S)  # nothing else was posted
    r.thread.post(batch(2, read(2, 1, 4)))
    assert codes(final(r)) == ["not_found"]


def test_a_bad_row_fails_alone(rig: MakeRig):
    r = rig()
    r.fake.fail_row(2, OutOfDeviceMemoryError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4), create(2, 2, 4), read(3, 9, 4), create(4, 4, 4)))
    assert codes(final(r)) == [None, "out_of_memory", "not_found", None]


def test_a_batch_of_bad_rows_only_is_answered_without_a_submission(rig: MakeRig):
    r = rig(by_hand())
    r.thread.post(batch(1, read(1, 9, 4)))
    completion = final(r)
    assert (codes(completion), completion.submits) == (["not_found"], 0)


# Pipelines (rule 15, S5)


def test_batches_pass_a_pipeline_that_is_being_built(rig: MakeRig, gate: Gate):
    r = rig()
    r.fake.on_call = lambda call, _: gate.stop_here() if call == "compile" else None
    shape = layout()
    assert r.thread.compile(PipelineSpec(7, shape, b"", "main"))
    gate.wait_reached()
    r.thread.post(batch(1, create(1, 1, 4)))
    assert codes(final(r)) == [None]
    gate.go()
    built = r.events.next(PipelineBuilt)
    assert (built.id, built.error) == (7, None)
    use = token(layout=shape, entries=((1, 0, 4),), reads=((1, 0, 4),))
    r.thread.post(batch(2, dispatch(2, 7, use), flags=[INIT]))
    assert codes(final(r)) == [None]


def test_an_equal_pipeline_underway_is_built_once(rig: MakeRig, gate: Gate):
    r = rig()
    r.fake.on_call = lambda call, _: gate.stop_here() if call == "compile" else None
    spec = PipelineSpec(7, layout(), b"", "main")
    r.thread.compile(spec)
    gate.wait_reached()
    assert r.thread.compile(spec)
    r.thread.compile(PipelineSpec(8, layout(), b"", "main"))
    gate.go()
    gate.wait_reached()
    gate.go()
    assert [r.events.next(PipelineBuilt).id for _ in range(2)] == [7, 8]
    r.stop()
    assert r.calls("compile") == [("compile", 7), ("compile", 8)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(CompileError("no"), "compile"), (UnsupportedError("no"), "unsupported"), (ValueError("no"), "compile")],
)
def test_a_pipeline_that_does_not_build_says_why(rig: MakeRig, error: Exception, code: str):
    r = rig()
    r.fake.fail("compile", error)
    r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    built = r.events.next(PipelineBuilt)
    assert built.error is not None and built.error.code == code
    r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    assert r.events.next(PipelineBuilt).error is None


# Late batches (rule 38)


def test_a_late_batch_is_answered_and_its_objects_are_left_alone(rig: MakeRig, caplog: pytest.LogCaptureFixture):
    r = rig(by_hand(), batch_timeout_s=0.05)
    r.fake.fail_row(3, OutOfDeviceMemoryError("scripted"))
    retired = wait_for_call(r.fake, "retire", 1)
    rows = [create(1, 1, 4, b"abcd"), read(2, 1, 4), create(3, 3, 4), create(4, 4, 4)]
    r.thread.post(batch(1, *rows, flags=[DIRECT, DIRECT, 0, 0]))
    r.thread.post(Release(buffers=(1, 4)))

    late = r.events.next(Completion)
    assert not late.final
    assert codes(late) == [None, None, "out_of_memory", "timeout"]
    assert late.results == {1: [b"abcd"]}
    assert "another job" in str(late.errors[3])
    assert "past its limit" in caplog.text
    assert r.calls("collect", "retire") == []
    assert r.fake.buffer(1) == b"abcd"

    r.fake.complete(1)
    completion = final(r)
    assert codes(completion) == [None, None, "out_of_memory", None]
    assert retired.wait(PATIENCE_S)
    assert r.events.rest() == []


def test_work_goes_on_beside_and_after_a_late_batch(rig: MakeRig):
    r = rig(by_hand(), batch_timeout_s=0.05)
    r.thread.post(batch(1, create(1, 1, 4)))
    assert not r.events.next(Completion).final
    r.thread.post(batch(2, create(2, 2, 4, b"abcd"), flags=[DIRECT]))
    assert final(r).batch.serial == 2
    r.thread.post(batch(3, create(3, 3, 4)))
    behind = r.events.next(Completion)
    assert (behind.batch.serial, behind.final, codes(behind)) == (3, False, ["timeout"])
    for serial in (1, 3):
        r.fake.complete(serial)
        assert final(r).batch.serial == serial


# Failing calls


def test_a_failed_submission_fails_its_rows(rig: MakeRig):
    r = rig()
    r.fake.fail("submit", OutOfDeviceMemoryError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4), create(2, 2, 4)))
    r.thread.post(batch(2, create(3, 3, 4)))
    assert codes(final(r)) == ["out_of_memory", "out_of_memory"]
    assert codes(final(r)) == [None]


def test_an_unforeseen_failure_is_internal_and_logged_and_the_thread_lives(
    rig: MakeRig, caplog: pytest.LogCaptureFixture
):
    r = rig()
    r.fake.fail("submit", ZeroDivisionError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4)))
    completion = final(r)
    assert type(completion.errors[0]) is InternalError
    assert "ZeroDivisionError: scripted" in completion.errors[0].message
    assert "Traceback" in caplog.text
    r.thread.post(batch(2, create(2, 2, 4)))
    assert codes(final(r)) == [None]


def test_results_that_cannot_be_collected_fail_the_rows(rig: MakeRig):
    r = rig()
    r.fake.fail_row(1, NotFoundError("scripted"))
    r.fake.fail("collect", OutOfDeviceMemoryError("scripted"))
    retired = wait_for_call(r.fake, "retire", 1)
    r.thread.post(batch(1, create(1, 1, 4), create(2, 2, 4, b"abcd"), read(3, 2, 4), flags=[0, 0, 1]))
    completion = final(r)
    assert codes(completion) == ["not_found", "out_of_memory", "out_of_memory"]
    assert completion.results == {}
    r.thread.post(batch(2, create(4, 4, 4)))
    assert codes(final(r)) == [None]
    assert retired.wait(PATIENCE_S)


def test_failures_that_nobody_waits_for_are_logged(rig: MakeRig, caplog: pytest.LogCaptureFixture):
    r = rig()
    r.fake.fail("release", OutOfDeviceMemoryError("scripted"))
    r.fake.fail("release", KeyError("scripted"))
    r.thread.post(Release(buffers=(1,)))
    r.thread.post(Release(buffers=(1,)))
    r.thread.post(batch(1, create(1, 1, 4)))
    assert codes(final(r)) == [None]
    assert "releasing" in caplog.text and "Traceback" in caplog.text


def test_a_wait_that_fails_once_answers_and_is_tried_again(rig: MakeRig):
    r = rig(by_hand())
    r.fake.fail("wait", OutOfDeviceMemoryError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4)))
    early = r.events.next(Completion)
    assert (early.final, codes(early)) == (False, ["out_of_memory"])
    r.fake.complete(1)
    assert final(r).batch.serial == 1


def test_waits_that_keep_failing_lose_the_device(rig: MakeRig):
    r = rig(by_hand())
    r.fake.fail("wait", ZeroDivisionError("scripted"), times=100)
    r.thread.post(batch(1, create(1, 1, 4)))
    early = r.events.next(Completion)
    assert (early.final, codes(early)) == (False, ["internal"])
    assert "keeps failing" in str(r.events.next(DeviceLost).error)
    completion = final(r)
    assert (completion.lost, codes(completion)) == (True, ["device_lost"])


# A lost device (rules 35 and 36)


def test_a_lost_device_fails_all_in_flight_once(rig: MakeRig):
    r = rig(by_hand())
    submitted = wait_for_call(r.fake, "submit", 2)
    r.fake.fail_row(2, NotFoundError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4), create(2, 2, 4)))
    r.thread.post(batch(2, create(3, 3, 4, b"abcd"), read(4, 3, 4), create(5, 5, 4), flags=[DIRECT, DIRECT, 0]))
    assert submitted.wait(PATIENCE_S)
    r.fake.lose()
    assert str(r.events.next(DeviceLost).error) == "scripted"
    first, second = final(r), final(r)
    assert first.lost and second.lost
    assert codes(first) == ["device_lost", "not_found"]
    assert codes(second) == ["device_lost"] * 3
    assert second.results == {}
    assert r.events.rest() == []


def test_after_the_loss_nothing_reaches_the_device(rig: MakeRig):
    r = rig()
    r.fake.lose()
    r.thread.post(batch(1, create(1, 1, 4)))
    r.events.next(DeviceLost)
    assert codes(final(r)) == ["device_lost"]
    calls = len(r.fake.log)
    assert r.thread.post(batch(2, create(2, 2, 4)))
    completion = final(r)
    assert (completion.lost, codes(completion)) == (True, ["device_lost"])
    assert r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    assert isinstance(r.events.next(PipelineBuilt).error, DeviceLostError)
    r.thread.post(Release(buffers=(1,)))
    assert r.stop() == Stopped(clean=True)
    assert list(r.fake.log)[calls:] == [("close", 0)]


@pytest.mark.parametrize("call", ["submit", "wait", "collect"])
def test_each_call_may_notice_the_loss(rig: MakeRig, call: Any):
    r = rig()
    r.fake.fail(call, DeviceLostError("scripted"))
    r.thread.post(batch(1, create(1, 1, 4), read(2, 1, 4), flags=[0, 1]))
    r.events.next(DeviceLost)
    completion = final(r)
    assert (completion.lost, codes(completion), completion.results) == (True, ["device_lost"] * 2, {})


def test_a_loss_noticed_while_building_fails_what_is_in_flight(rig: MakeRig):
    r = rig(by_hand())
    submitted = wait_for_call(r.fake, "submit", 1)
    r.thread.post(batch(1, create(1, 1, 4)))
    assert submitted.wait(PATIENCE_S)
    r.fake.fail("compile", DeviceLostError("scripted"))
    r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    r.events.next(DeviceLost)
    answers = [r.events.next(Completion | PipelineBuilt) for _ in range(2)]  # type: ignore[arg-type]
    assert {type(answer) for answer in answers} == {Completion, PipelineBuilt}
    r.fake.complete(1)  # too late to be a success
    assert r.events.rest() == []


@pytest.mark.parametrize("waiter", ["companion"])
def test_a_loss_noticed_by_the_worker_is_no_success_for_the_batch_before(rig: MakeRig, gate: Gate):
    r = rig()
    r.fake.on_call = lambda call, _: gate.stop_here() if call == "collect" else None
    r.thread.post(batch(1, create(1, 1, 4), read(2, 1, 4), flags=[0, 1]))
    gate.wait_reached()  # the fence of batch 1 is known
    r.fake.fail("submit", DeviceLostError("scripted"))
    r.thread.post(batch(2, create(3, 3, 4)))
    r.events.next(DeviceLost)
    assert (final(r).batch.serial, r.events.rest()) == (2, [])
    gate.go()
    completion = final(r)
    assert (completion.lost, codes(completion), completion.results) == (True, ["device_lost"] * 2, {})


def test_a_late_batch_of_a_lost_device_is_closed_by_a_final_answer(rig: MakeRig):
    r = rig(by_hand(), batch_timeout_s=0.02)
    r.thread.post(batch(1, create(1, 1, 4)))
    assert codes(r.events.next(Completion)) == ["timeout"]
    r.fake.lose()
    r.events.next(DeviceLost)
    assert final(r).lost
    assert r.events.rest() == []


# Beginning and end


def test_a_device_that_does_not_open_answers_everything(waiter: Any, gate: Gate):
    def fail() -> FakeBackend:
        gate.stop_here()
        raise UnsupportedError("no such device")

    events = Mailbox()
    thread = DeviceThread("device", fail, events.put, batch_timeout_s=1, waiter=waiter)
    thread.start()
    assert thread.memory() == {}
    gate.wait_reached()
    assert thread.post(batch(1, create(1, 1, 4)))
    assert thread.compile(PipelineSpec(7, layout(), b"", "main"))
    gate.go()
    assert events.next(Failed).error.code == "unsupported"
    answers = [events.next(Completion | PipelineBuilt) for _ in range(2)]  # type: ignore[arg-type]
    assert {type(answer) for answer in answers} == {Completion, PipelineBuilt}
    events.next(Stopped)
    assert thread.join(PATIENCE_S)
    assert not thread.post(batch(2, create(2, 2, 4)))
    assert not thread.compile(PipelineSpec(8, layout(), b"", "main"))
    assert events.rest() == []


def test_an_unforeseen_failure_to_open_is_internal(waiter: Any):
    def fail() -> FakeBackend:
        raise ZeroDivisionError("scripted")

    events = Mailbox()
    thread = DeviceThread("device", fail, events.put, batch_timeout_s=1, waiter=waiter)
    thread.start()
    assert events.next(Failed).error.code == "internal"
    assert thread.stop()


def test_stop_finishes_what_was_posted_and_frees_the_device(rig: MakeRig):
    r = rig()
    for serial in range(1, 21):
        r.thread.post(batch(serial, create(serial, serial, 4)))
    assert r.thread.stop()
    assert [final(r).batch.serial for _ in range(20)] == list(range(1, 21))
    assert r.events.next(Stopped) == Stopped(clean=True)
    assert r.calls("retire", "close")[-2:] == [("retire", 20), ("close", 0)]
    assert not r.thread.post(batch(21, create(21, 21, 4)))
    assert not r.thread.post(Release(buffers=(1,)))


def test_stop_with_a_wait_in_progress_takes_less_than_a_second(rig: MakeRig):
    r = rig(by_hand())
    waiting = wait_for_call(r.fake, "wait", 1)
    r.thread.post(batch(1, create(1, 1, 4, b"abcd"), create(2, 2, 4), flags=[DIRECT, 0]))
    assert waiting.wait(PATIENCE_S)
    started = time.monotonic()
    assert r.thread.stop()
    assert time.monotonic() - started < 1
    answer = r.events.next(Completion)
    assert (answer.final, codes(answer)) == (False, [None, "shutting_down"])
    assert r.events.next(Stopped) == Stopped(clean=False)
    assert r.calls("retire", "close") == []


def test_stop_lets_the_device_finish_in_the_time_given(rig: MakeRig):
    r = rig(by_hand())
    waiting = wait_for_call(r.fake, "wait", 2)
    r.thread.post(batch(1, create(1, 1, 4)))
    r.thread.request_stop(PATIENCE_S)
    r.thread.request_stop(0)  # the first word counts
    assert waiting.wait(PATIENCE_S)
    r.fake.complete(1)
    assert codes(final(r)) == [None]
    assert r.thread.join(PATIENCE_S)
    assert r.events.next(Stopped) == Stopped(clean=True)


def test_stop_does_not_wait_for_a_late_batch_to_be_answered_again(rig: MakeRig):
    r = rig(by_hand(), batch_timeout_s=0.02)
    r.thread.post(batch(1, create(1, 1, 4)))
    assert codes(r.events.next(Completion)) == ["timeout"]
    assert r.stop() == Stopped(clean=False)


def test_stop_with_a_build_in_progress_leaves_the_device_open(rig: MakeRig, gate: Gate):
    r = rig()
    r.fake.on_call = lambda call, _: gate.stop_here() if call == "compile" else None
    r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    r.thread.compile(PipelineSpec(8, layout(), b"", "main"))
    gate.wait_reached()
    started = time.monotonic()
    assert r.thread.stop()
    assert time.monotonic() - started < 1
    assert r.events.next(Stopped) == Stopped(clean=False)
    assert r.calls("close") == []
    gate.go()
    assert r.events.next(PipelineBuilt).id == 7
    assert isinstance(r.events.next(PipelineBuilt).error, ShuttingDownError)


def test_a_call_that_does_not_return_is_left_behind(rig: MakeRig, gate: Gate):
    r = rig()
    r.fake.on_call = lambda call, _: gate.stop_here() if call == "submit" else None
    r.thread.post(batch(1, create(1, 1, 4)))
    gate.wait_reached()
    assert not r.thread.stop(0.05)
    gate.go()  # it comes back after all, with a batch that it would take too long to wait for
    assert r.thread.join(PATIENCE_S)
    assert r.events.next(Completion).batch.serial == 1
    r.events.next(Stopped)


def test_posts_that_race_with_the_stop_are_answered_or_refused(rig: MakeRig):
    r = rig()
    accepted: list[int] = []
    serials = iter(range(1, 10**6))
    enough = threading.Event()

    def post() -> None:
        while True:
            serial = next(serials)
            if not r.thread.post(batch(serial, create(serial, serial, 0))):
                return
            accepted.append(serial)
            if serial == 50:
                enough.set()

    poster = threading.Thread(target=post)
    poster.start()
    assert enough.wait(PATIENCE_S)
    assert r.thread.stop(5)
    poster.join(PATIENCE_S)
    events = r.events.rest()
    assert isinstance(events.pop(), Stopped)
    assert [event.batch.serial for event in events] == accepted
    # Run, or told why not.
    assert all(codes(event) in ([None], ["shutting_down"]) for event in events)


# Idleness (rule 24) and the loop (rule 40)


def test_idle_threads_sleep_without_a_time_limit(rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    patience: dict[str, float | None] = {}
    settled = queue.SimpleQueue()  # type: ignore[var-annotated]
    original = Inbox.get

    def recorded(self: Inbox[Any], timeout_s: float | None = None, spin_s: float = 0.0) -> Any:
        assert not spin_s
        patience[threading.current_thread().name] = timeout_s
        settled.put(None)
        return original(self, timeout_s)

    monkeypatch.setattr(Inbox, "get", recorded)
    r = rig(cache_quiet_s=0.01)
    saved = wait_for_call(r.fake, "save_cache", 1)
    r.thread.compile(PipelineSpec(7, layout(), b"", "main"))
    r.events.next(PipelineBuilt)
    r.thread.post(batch(1, create(1, 1, 4)))
    final(r)
    assert saved.wait(PATIENCE_S)
    names = {"device", "device-compile"} | ({"device-wait"} if "device-wait" in patience else set())
    while set(patience) != names or any(patience.values()):
        settled.get(timeout=PATIENCE_S)
    calls = len(r.fake.log)
    before = switches(names)
    threading.Event().wait(0.3)  # time has to pass to see that nothing happens in it
    # Each may still have been about to go to sleep; waking up every 50 ms would be six.
    assert all(after - before[name] <= 1 for name, after in switches(names).items())
    assert len(r.fake.log) == calls


def switches(names: set[str]) -> dict[str, int]:
    """How often each thread gave up its processor."""
    counts = {}
    for thread in threading.enumerate():
        if thread.name in names:
            with open(f"/proc/self/task/{thread.native_id}/status") as status:
                counts[thread.name] = next(int(line.split()[1]) for line in status if line.startswith("voluntary"))
    return counts


async def test_the_loop_never_blocks_on_a_device(waiter: Any):
    fake = FakeBackend(kernels={"main": lambda *_: None})
    answered: list[int] = []
    opened, done, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def handle(burst: list[Any]) -> None:
        for event in burst:
            if isinstance(event, Opened):
                opened.set()
            elif isinstance(event, Completion):
                answered.append(event.batch.serial)
            elif isinstance(event, Stopped):
                stopped.set()
        if len(answered) == 200:
            done.set()

    outbox: Outbox[Any] = Outbox(asyncio.get_running_loop().call_soon_threadsafe, handle)
    thread = DeviceThread("device", fake.open, outbox.post, batch_timeout_s=60, waiter=waiter)
    thread.start()
    await opened.wait()
    for serial in range(1, 201):
        thread.post(batch(serial, create(serial, serial, 4)))
        thread.post(Release(buffers=(serial,)))
    await done.wait()
    thread.request_stop()
    await stopped.wait()
    outbox.close()
    assert answered == list(range(1, 201))
    assert await asyncio.to_thread(thread.join, PATIENCE_S)
    assert fake.violations == []


def wait_for_call(fake: FakeBackend, name: str, count: int) -> threading.Event:
    """An event that is set when the call comes for the count-th time from now."""
    reached = threading.Event()
    left = [count]
    before = fake.on_call

    def watch(call: Any, number: int) -> None:
        if before is not None:
            before(call, number)
        if call == name:
            left[0] -= 1
            if left[0] == 0:
                reached.set()

    fake.on_call = watch
    return reached


# A lone batch


def test_a_lone_batch_that_ends_soon_is_answered_by_the_worker_itself(rig: MakeRig):
    r = rig(glance_us=200_000)
    r.thread.post(batch(1, create(1, 1, 4)))
    final(r)
    r.thread.post(batch(2, write(2, 1, b"abcd")))
    assert codes(final(r)) == [None]


def test_a_batch_outlasting_the_glance_is_left_to_the_waiting_side(rig: MakeRig):
    r = rig(by_hand(), glance_us=1)
    submitted = wait_for_call(r.fake, "submit", 2)
    r.thread.post(batch(1, create(1, 1, 4)))
    r.thread.post(batch(2, create(2, 2, 4)))
    assert submitted.wait(PATIENCE_S)
    r.fake.complete(1)
    r.fake.complete(2)
    assert [final(r).batch.serial, final(r).batch.serial] == [1, 2]


def test_what_goes_wrong_in_a_glance_is_told_once(rig: MakeRig):
    r = rig(glance_us=200_000)
    r.fake.fail("wait", DeviceLostError("gone"), 10)
    r.thread.post(batch(1, create(1, 1, 4), flags=[1]))
    r.events.next(DeviceLost)
    completion = r.events.next(Completion)
    assert completion.lost and codes(completion) == ["device_lost"]


def test_a_spinning_worker_looks_for_the_next_batch_before_it_sleeps(rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    spins: dict[str, float] = {}
    original = Inbox.get

    def recorded(self: Inbox[Any], timeout_s: float | None = None, spin_s: float = 0.0) -> Any:
        spins[threading.current_thread().name] = spin_s
        return original(self, timeout_s, spin_s)

    monkeypatch.setattr(Inbox, "get", recorded)
    r = rig(glance_us=1000, spin_us=500)
    for serial in (1, 2, 3):
        r.thread.post(batch(serial, create(serial, serial, 4)))
        assert final(r).batch.serial == serial
    # It alone: the companion and the compiler sleep at once.
    assert {name: spin for name, spin in spins.items() if spin} == {"device": 0.0005}
