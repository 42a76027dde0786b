"""When a batch is closed: the table, row by row, and what it amounts to under load."""

from __future__ import annotations

import pytest

from vkqueue.jobs.batcher import Batcher, Close, Wait

MAX, DELAY_US, DELAY_NS, B = 8, 100, 100_000, 3
NOW = 1_000_000


def batcher(b: int = B) -> Batcher:
    return Batcher(MAX, DELAY_US, b)


@pytest.mark.parametrize(
    ("queued", "oldest", "in_flight", "expected"),
    [
        pytest.param(0, 0, 0, None, id="nothing"),
        pytest.param(0, 0, 1, None, id="nothing, busy"),
        pytest.param(1, NOW, 0, Close("idle", 1), id="b=0: at once, though it came just now"),
        pytest.param(5, NOW, 0, Close("idle", 5), id="b=0: all that is queued"),
        pytest.param(20, NOW, 0, Close("idle", MAX), id="b=0: up to the most"),
        pytest.param(MAX, NOW, 1, Close("full", MAX), id="0<b<B: full"),
        pytest.param(20, NOW, B - 1, Close("full", MAX), id="0<b<B: more than full"),
        pytest.param(MAX - 1, NOW, 1, Wait(NOW + DELAY_NS), id="0<b<B: neither full nor old"),
        pytest.param(1, NOW - DELAY_NS + 1, 1, Wait(NOW + 1), id="0<b<B: not quite old"),
        pytest.param(1, NOW - DELAY_NS, 1, Close("delay", 1), id="0<b<B: old"),
        pytest.param(3, NOW - 10 * DELAY_NS, B - 1, Close("delay", 3), id="0<b<B: very old"),
        pytest.param(20, NOW - 10 * DELAY_NS, B, None, id="b=B: not"),
        pytest.param(20, NOW - 10 * DELAY_NS, B + 1, None, id="b>B: not"),
    ],
)
def test_the_table(queued: int, oldest: int, in_flight: int, expected: Close | Wait | None) -> None:
    assert batcher().decide(queued, oldest, in_flight, NOW) == expected


def test_rule_17_the_backlog_leaves_as_one_batch_when_one_comes_back() -> None:
    b = batcher()
    for queued in range(1, 7):
        assert b.decide(queued, NOW, B, NOW + queued) is None
    assert b.decide(6, NOW, B - 1, NOW + DELAY_NS) == Close("backlog", 6)
    assert b.decide(1, NOW + DELAY_NS + 1, B - 1, NOW + 3 * DELAY_NS) == Close("delay", 1), "the next is none"


def test_rule_17_one_that_comes_back_does_not_make_a_young_backlog_leave_in_pieces() -> None:
    b = batcher()
    assert b.decide(3, NOW, B, NOW) is None
    assert b.decide(3, NOW, B - 1, NOW + 10) == Wait(NOW + DELAY_NS)
    assert b.decide(MAX, NOW, B - 1, NOW + 20) == Close("backlog", MAX)


def test_rule_17_with_one_batch_in_flight_at_most_the_backlog_leaves_at_once() -> None:
    b = batcher(1)
    assert b.decide(5, NOW, 1, NOW + 1) is None
    assert b.decide(5, NOW, 0, NOW + 2) == Close("backlog", 5)


def test_rule_17_a_backlog_of_several_batches() -> None:
    b = batcher(1)
    assert b.decide(20, NOW, 1, NOW) is None
    assert b.decide(20, NOW, 0, NOW + 2) == Close("backlog", MAX)
    assert b.decide(12, NOW, 1, NOW + 3) is None
    assert b.decide(12, NOW, 0, NOW + 4) == Close("backlog", MAX)


def test_a_backlog_that_was_cancelled_does_not_name_later_work() -> None:
    b = batcher()
    assert b.decide(2, NOW, B, NOW) is None
    assert b.decide(1, NOW + 50, 0, NOW + 50) == Close("idle", 1)


def test_after_a_lost_device_nothing_is_a_backlog() -> None:
    b = batcher()
    assert b.decide(2, NOW, B, NOW) is None
    b.reset()
    assert b.decide(2, NOW, 0, NOW + 1) == Close("idle", 2)


def test_rule_18_the_delay_counts_from_the_oldest() -> None:
    b = batcher()
    # A row every 30 µs would put off for ever a delay that counts from the newest.
    decisions = [b.decide(n, NOW, 1, NOW + n * 30_000) for n in range(1, 5)]
    assert decisions == [Wait(NOW + DELAY_NS)] * 3 + [Close("delay", 4)]


def mean_batch(gap_ns: int, jobs: int = 3000) -> float:
    """A row every `gap_ns`; the device takes 20 µs and 1 µs a row, one batch after the other."""
    b = Batcher(64, DELAY_US, B)
    now = sent = device_free = 0
    queue: list[int] = []
    ends: list[int] = []
    batches = 0
    while sent < jobs:
        arrival = (jobs - len(queue) - sent > 0) and (sent + len(queue)) * gap_ns
        decision = b.decide(len(queue), queue[0] if queue else 0, len(ends), now)
        if isinstance(decision, Close):
            del queue[: decision.count]
            sent += decision.count
            batches += 1
            device_free = max(device_free, now) + 20_000 + 1_000 * decision.count
            ends.append(device_free)
            continue
        due = [decision.until_ns] if isinstance(decision, Wait) else []
        coming = [int(arrival)] if arrival is not False else []
        now = max(now, min(due + coming + ends[:1]))
        while ends and ends[0] <= now:
            ends.pop(0)
        if coming and coming[0] <= now:
            queue.append(coming[0])
    return sent / batches


def test_rule_18_batches_grow_with_the_load() -> None:
    gaps_us = (1000, 300, 100, 30, 10, 5, 3, 2, 1)
    sizes = [mean_batch(gap * 1000) for gap in gaps_us]
    assert sizes[0] == 1.0
    assert sizes == sorted(sizes)
    assert sizes[-1] > 50


def test_rule_25_reasons_and_sizes_are_counted() -> None:
    b = batcher()
    for reason, size in [("idle", 1), ("full", 8), ("delay", 2), ("delay", 3), ("backlog", 7), ("full", 300)]:
        b.count(reason, size)
    assert b.reasons == {"idle": 1, "full": 2, "delay": 2, "backlog": 1}
    assert b.sizes == {1: 1, 2: 2, 4: 1, 8: 1, 256: 1}
