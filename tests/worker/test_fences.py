"""The time limits of batches, under a clock that only waiting moves."""

from __future__ import annotations

from typing import Any

import pytest
from support.rows import batch, create

from vkqueue.errors import DeviceLostError
from vkqueue.model import Batch, Completion
from vkqueue.worker import fences
from vkqueue.worker.bridge import Latch
from vkqueue.worker.fences import FenceLine


class Clock:
    """In the place of the time module."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class Submission:
    def __init__(self, batch: Batch, now: int, takes_s: float) -> None:
        self.batch = batch
        self.completion = Completion(batch, submits=1, submitted_ns=now)
        self.pending = True
        self.takes_s = takes_s


class Device:
    """Runs submissions one after the other, each for its time from when the one before it ended."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.slices: list[float] = []

    def wait(self, submission: Any, timeout_s: float) -> bool:
        self.slices.append(timeout_s)
        step = min(timeout_s, submission.takes_s)
        self.clock.sleep(step)
        submission.takes_s -= step
        return submission.takes_s <= 1e-9

    def collect(self, submission: Any) -> Completion:
        return submission.completion


class Bench:
    def __init__(self, clock: Clock, limit_s: float) -> None:
        self.clock = clock
        self.device: Any = Device(clock)
        self.answers: list[tuple[int, str, float]] = []
        self.retired: list[int] = []
        self.lost: Latch[DeviceLostError] = Latch()
        self.line = FenceLine(
            self.device,
            self.deliver,
            lambda submission: self.retired.append(submission.batch.serial),
            self.lost,
            lambda error: None,
            batch_timeout_s=limit_s,
            slice_s=0.05,
        )
        self.start = clock.ns

    def deliver(self, completion: Any) -> None:
        what = "final" if completion.final else completion.errors[0].code
        self.answers.append((completion.batch.serial, what, round((self.clock.ns - self.start) / 1e9, 3)))

    def add(self, serial: int, takes_s: float) -> None:
        self.line.add(Submission(batch(serial, create(serial, serial, 4)), self.clock.ns, takes_s), False)

    def run(self, until_s: float = 1e9) -> None:
        while self.line and (self.clock.ns - self.start) / 1e9 < until_s:
            self.line.step()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fences, "time", clock)
    return clock


def test_batches_in_time_are_waited_for_in_slices(clock: Clock):
    bench = Bench(clock, limit_s=1)
    bench.add(1, 0.12)
    bench.add(2, 0.01)
    bench.run()
    assert bench.answers == [(1, "final", 0.12), (2, "final", 0.13)]
    assert bench.retired == [1, 2]
    assert bench.device.slices == [0.05, 0.05, 0.05, 0.05]


def test_a_batch_does_not_pay_for_those_before_it(clock: Clock):
    bench = Bench(clock, limit_s=1)
    for serial in (1, 2, 3):
        bench.add(serial, 0.9)
    bench.run()
    assert [what for _, what, _ in bench.answers] == ["final"] * 3


def test_a_late_batch_is_answered_on_time_and_once(clock: Clock):
    bench = Bench(clock, limit_s=0.33)
    bench.add(1, 2.0)
    bench.run()
    assert bench.answers == [(1, "timeout", 0.33), (1, "final", 2.0)]
    assert max(bench.device.slices) <= 0.05


def test_behind_one_that_never_ends_each_is_answered_in_its_turn(clock: Clock):
    bench = Bench(clock, limit_s=1)
    for serial in (1, 2, 3):
        bench.add(serial, 1e9)
    bench.run(until_s=10)
    assert bench.answers == [(1, "timeout", 1), (2, "timeout", 2), (3, "timeout", 3)]
    assert bench.retired == []


def test_a_batch_gets_its_full_time_once_a_late_one_has_ended(clock: Clock):
    bench = Bench(clock, limit_s=1)
    bench.add(1, 1.5)
    bench.add(2, 0.9)
    bench.run()
    assert bench.answers == [(1, "timeout", 1), (1, "final", 1.5), (2, "final", 2.4)]


def test_a_line_that_is_abandoned_is_idle_only_if_it_was_empty(clock: Clock):
    bench = Bench(clock, limit_s=1)
    assert bench.line.idle
    bench.add(1, 9)
    assert not bench.line.idle
    bench.line.abandon()
    assert bench.answers == [(1, "shutting_down", 0)]
    assert not bench.line.idle
    assert not bench.line


def test_an_unforeseen_failure_of_the_line_itself_answers_its_jobs(clock: Clock, caplog: pytest.LogCaptureFixture):
    bench = Bench(clock, limit_s=1)
    said: list[DeviceLostError] = []
    bench.line._lose = said.append
    bench.add(1, 0.01)
    bench.device.collect = lambda submission: None  # what no backend returns
    bench.line.step()
    assert "the daemon failed while waiting" in str(said[0])
    bench.lost.set(said[0])
    bench.line.step()
    assert [what for _, what, _ in bench.answers] == ["final"]
    assert not bench.line.idle
    assert "Traceback" in caplog.text
