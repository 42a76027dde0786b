"""The guarantees that stand above vkqueue/worker/bridge.py, one after the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

import pytest

from vkqueue.worker.bridge import Inbox, KeySet, Latch, Outbox


class Loop:
    """A loop by hand: calls are scheduled by threads and run by the test."""

    def __init__(self) -> None:
        self.scheduled: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.scheduled.append(call)

    def turn(self) -> None:
        calls, self.scheduled = self.scheduled, []
        for call in calls:
            call()


def test_a_burst_is_one_wake_up_and_one_list():
    loop, bursts = Loop(), []
    outbox: Outbox[int] = Outbox(loop.call_soon, bursts.append)
    assert all(outbox.post(i) for i in range(100))
    assert len(loop.scheduled) == 1
    loop.turn()
    assert bursts == [list(range(100))]
    assert outbox.post(100)
    assert len(loop.scheduled) == 1


def test_a_drain_takes_only_what_was_there_on_entry():
    loop, bursts = Loop(), []

    def handle(items: list[int]) -> None:
        bursts.append(items)
        if items[0] < 3:
            outbox.post(items[0] + 1)

    outbox: Outbox[int] = Outbox(loop.call_soon, handle)
    outbox.post(0)
    loop.turn()
    assert bursts == [[0]]
    loop.turn()
    assert bursts == [[0], [1]]


def test_close_hands_over_what_was_taken_and_refuses_the_rest():
    loop, bursts = Loop(), []
    outbox: Outbox[int] = Outbox(loop.call_soon, bursts.append)
    assert outbox.post(1)
    outbox.close()
    assert bursts == [[1]]
    assert not outbox.post(2)
    loop.turn()
    outbox.close()
    assert bursts == [[1]]


def test_a_post_races_with_close_and_is_delivered_or_refused():
    for _ in range(200):
        loop, handled = Loop(), []
        outbox: Outbox[int] = Outbox(loop.call_soon, handled.extend)
        accepted: list[int] = []
        start = threading.Barrier(2)
        poster = threading.Thread(target=post_when_all_are_there, args=(outbox, accepted, start))
        poster.start()
        start.wait()
        outbox.close()
        poster.join()
        loop.turn()
        assert handled == accepted


def post_when_all_are_there(outbox: Outbox[int], accepted: list[int], start: threading.Barrier) -> None:
    start.wait()
    accepted.extend(i for i in range(20) if outbox.post(i))


def test_a_loop_that_ended_refuses(caplog: pytest.LogCaptureFixture):
    loop = asyncio.new_event_loop()
    loop.close()
    outbox: Outbox[int] = Outbox(loop.call_soon_threadsafe, lambda items: None)
    assert not outbox.post(1)
    assert "before its outbox was closed" in caplog.text
    assert not outbox.post(2)


async def test_many_threads_post_to_a_loop_that_never_blocks():
    seen: list[tuple[int, int]] = []
    wake_ups = 0
    everything = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(items: list[tuple[int, int]]) -> None:
        nonlocal wake_ups
        wake_ups += 1
        seen.extend(items)
        if len(seen) == 4000:
            everything.set()

    outbox: Outbox[tuple[int, int]] = Outbox(loop.call_soon_threadsafe, handle)

    def post(poster: int) -> None:
        for i in range(1000):
            assert outbox.post((poster, i))

    threads = [threading.Thread(target=post, args=(poster,)) for poster in range(4)]
    for thread in threads:
        thread.start()
    await everything.wait()
    outbox.close()
    for poster in range(4):
        assert [i for p, i in seen if p == poster] == list(range(1000))
    assert wake_ups < 4000


def test_an_inbox_keeps_order_and_refuses_after_close():
    inbox: Inbox[int] = Inbox()
    assert inbox.post(1) and inbox.post(2) and inbox.post(3)
    assert inbox.get() == 1
    assert inbox.close() == [2, 3]
    assert not inbox.post(4)
    with pytest.raises(queue.Empty):
        inbox.get_nowait()


def test_an_inbox_wakes_its_owner():
    inbox: Inbox[int] = Inbox()
    got: list[int] = []
    owner = threading.Thread(target=lambda: got.append(inbox.get()))
    owner.start()
    inbox.post(7)
    owner.join(5)
    assert got == [7]


def test_an_inbox_waits_no_longer_than_told():
    inbox: Inbox[int] = Inbox()
    with pytest.raises(queue.Empty):
        inbox.get(0.001)


def test_of_many_threads_one_sets_a_latch():
    latch: Latch[int] = Latch()
    start = threading.Barrier(8)
    winners: list[int] = []

    def attempt(value: int) -> None:
        start.wait()
        if latch.set(value):
            winners.append(value)

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [latch.value]


def test_a_key_is_underway_until_it_is_discarded():
    keys = KeySet()
    assert keys.add(1)
    assert not keys.add(1)
    assert keys.add(2)
    keys.discard(1)
    assert keys.add(1)
