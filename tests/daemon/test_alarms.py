"""Alarms: none too early, none twice, in order; with a timerfd and without."""

from __future__ import annotations

import asyncio
import time

import pytest

from vkqueue.daemon import alarms as module
from vkqueue.daemon.alarms import Alarms, Timer

US = 1000


@pytest.fixture(params=["timerfd", "the loop's"])
def alarms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Alarms:
    if request.param != "timerfd":
        monkeypatch.setattr(module, "_timerfd", lambda: -1)
    return Alarms()


class Log:
    """What went off, and when."""

    def __init__(self, alarms: Alarms) -> None:
        self.alarms = alarms
        self.times: dict[str, int] = {}
        self.more = asyncio.Event()

    def at(self, due_ns: int, name: str) -> module.Alarm:
        def off() -> None:
            assert name not in self.times
            self.times[name] = time.monotonic_ns()
            self.more.set()

        return self.alarms.at(due_ns, off)

    async def until(self, name: str) -> None:
        while name not in self.times:
            await self.more.wait()
            self.more.clear()


async def test_alarms_go_off_in_order_and_not_before_their_time(alarms: Alarms) -> None:
    log, now = Log(alarms), time.monotonic_ns()
    due = {"late": now + 3000 * US, "early": now + 200 * US, "middle": now + 1000 * US, "over": now - 5, "zero": 0}
    for name, at in due.items():
        log.at(at, name)
    assert not log.times, "never from within"
    await log.until("late")
    assert list(log.times) == ["zero", "over", "early", "middle", "late"]
    assert all(log.times[name] >= at for name, at in due.items())


async def test_a_cancelled_one_does_not(alarms: Alarms) -> None:
    log, now = Log(alarms), time.monotonic_ns()
    first, second = log.at(now + 100 * US, "first"), log.at(now + 300 * US, "second")
    log.at(now + 500 * US, "third")
    first.cancel()
    await log.until("second")
    second.cancel()
    await log.until("third")
    assert list(log.times) == ["second", "third"]


async def test_one_that_is_cancelled_by_another_at_its_time_does_not(alarms: Alarms) -> None:
    log, now = Log(alarms), time.monotonic_ns()
    alarms.at(now, lambda: second.cancel())
    second = log.at(now, "second")
    log.at(now, "third")
    await log.until("third")
    assert list(log.times) == ["third"]


async def test_one_for_earlier_than_the_first(alarms: Alarms) -> None:
    log, now = Log(alarms), time.monotonic_ns()
    log.at(now + 3_600_000_000 * US, "in an hour")
    log.at(now + 300 * US, "soon")
    await log.until("soon")
    log.at(time.monotonic_ns() + 300 * US, "again")
    await log.until("again")
    assert list(log.times) == ["soon", "again"]


async def test_one_may_be_set_by_another(alarms: Alarms) -> None:
    log = Log(alarms)
    for _ in range(3):
        alarms.at(time.monotonic_ns(), lambda: log.at(time.monotonic_ns() + 50 * US, f"{len(log.times)}") and None)
        await log.until(f"{len(log.times)}")
    assert list(log.times) == ["0", "1", "2"]


async def test_rule_24_an_alarm_that_is_over_wakes_nobody(alarms: Alarms, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(alarms)
    log.at(time.monotonic_ns(), "one")
    await log.until("one")
    looks = 0
    first = alarms._heap.first

    def counted() -> object:
        nonlocal looks
        looks += 1
        return first()

    monkeypatch.setattr(alarms._heap, "first", counted)
    await asyncio.sleep(0.01)
    assert looks == 0


async def test_a_timer_rings_at_the_earliest_time_asked_for(alarms: Alarms) -> None:
    rung: list[int] = []
    more = asyncio.Event()

    def off() -> None:
        rung.append(time.monotonic_ns())
        more.set()

    timer, now = Timer(alarms, off), time.monotonic_ns()
    timer.set(now + 50_000 * US)
    timer.set(now + 500 * US)
    timer.set(now + 70_000 * US)
    await more.wait()
    assert len(rung) == 1 and rung[0] >= now + 500 * US
    more.clear()
    timer.set(time.monotonic_ns() + 300 * US)
    timer.set(None)
    timer.set(again := time.monotonic_ns() + 1000 * US)
    await more.wait()
    assert len(rung) == 2 and rung[1] >= again, "what was taken back does not ring, nor what is later"
