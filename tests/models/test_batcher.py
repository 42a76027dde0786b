"""The dynamic batcher: each rule by itself."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from types import FrameType
from typing import Any

import pytest

from vkqueue.errors import OverloadedError
from vkqueue.models.batcher import Batch, DynamicBatcher, Wait
from vkqueue.models.policy import BatchingPolicy, QueuePolicy
from vkqueue.models.predict import Predictor
from vkqueue.models.queue import Request

US = 1_000
NOW = 1_000_000


class Bench:
    """A batcher, and requests that are called 1, 2, 3 and so on."""

    def __init__(
        self, most: int = 8, instances: int = 2, predictor: Predictor | None = None, ms: float = 0, **policy: Any
    ) -> None:
        self.batcher = DynamicBatcher(BatchingPolicy(**policy), most, instances, predictor, ms)
        self.count = 0

    def send(self, count: int = 1, now: int = NOW, group: Hashable = 0, samples: int = 1, **more: Any) -> list[int]:
        ids = list(range(self.count + 1, self.count + count + 1))
        self.count += count
        for id in ids:
            self.batcher.enqueue(Request(id, samples, group, received_ns=now, **more), now)
        return ids

    def busy(self) -> list[int]:
        """A batch for each instance, which left long ago; their serials."""
        serials = []
        while len(self.batcher.in_flight) < self.batcher.instances:
            self.send(group="busy", now=0)
            decision = self.batcher.decide(self.batcher.policy.max_queue_delay_microseconds * US)
            assert isinstance(decision, Batch)
            serials.append(decision.serial)
        return serials

    def leaves(self, now: int = NOW) -> tuple[list[int], str]:
        decision = self.batcher.decide(now)
        assert isinstance(decision, Batch), decision
        return [request.id for request in decision.requests], decision.reason


# Without a delay: the table of instances in flight


def test_idle_all_that_is_queued_leaves_at_once() -> None:
    bench = Bench()
    ids = bench.send(5)
    assert bench.leaves() == (ids, "idle")


def test_more_than_fits_leaves_in_full_batches() -> None:
    bench = Bench(instances=3)
    ids = bench.send(20)
    assert bench.leaves() == (ids[:8], "full")
    assert bench.leaves() == (ids[8:16], "full")
    assert bench.leaves() == (ids[16:], "delay")


def test_rule_17_the_whole_backlog_leaves_as_one_batch_when_one_comes_back() -> None:
    bench = Bench()
    serial, _ = bench.busy()
    ids = []
    for at in range(6):
        ids += bench.send(now=NOW + at)
        assert bench.batcher.decide(NOW + at) is None
    bench.batcher.done(serial, NOW + 10)
    assert bench.leaves(NOW + 10) == (ids, "backlog")
    assert bench.batcher.decide(NOW + 10) is None


def test_rule_17_what_does_not_fit_waits_for_the_next() -> None:
    bench = Bench()
    first, second = bench.busy()
    ids = bench.send(11)
    bench.batcher.done(first, NOW + 1)
    assert bench.leaves(NOW + 1) == (ids[:8], "backlog")
    assert bench.batcher.decide(NOW + 1) is None
    bench.batcher.done(second, NOW + 2)
    assert bench.leaves(NOW + 2) == (ids[8:], "backlog")


def test_rule_17_preferred_sizes_do_not_cut_a_backlog() -> None:
    bench = Bench(most=16, preferred_batch_size=(4,))
    serial, _ = bench.busy()
    ids = bench.send(11)
    bench.batcher.done(serial, NOW)
    assert bench.leaves() == (ids, "backlog")


# With a delay


def test_rule_18_the_delay_counts_from_the_oldest() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    bench.send(now=NOW)
    assert bench.batcher.decide(NOW) == Wait(NOW + 100 * US)
    bench.send(now=NOW + 60 * US)
    assert bench.batcher.decide(NOW + 60 * US) == Wait(NOW + 100 * US)
    assert bench.leaves(NOW + 100 * US) == ([1, 2], "delay")


def test_the_delay_counts_from_the_next_oldest_once_that_one_is_cancelled() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    bench.send(now=NOW)
    bench.send(now=NOW + 60 * US)
    bench.batcher.cancel(1)
    assert bench.batcher.decide(NOW + 100 * US) == Wait(NOW + 160 * US)


def test_the_delay_counts_while_instances_are_busy() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    serial, _ = bench.busy()
    bench.send(2)
    assert bench.batcher.decide(NOW + 500 * US) is None
    bench.batcher.done(serial, NOW + 500 * US)
    assert bench.leaves(NOW + 500 * US) == ([3, 4], "backlog")


def test_rule_18_a_young_backlog_does_not_leave_in_pieces() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    serial, _ = bench.busy()
    bench.send(2)
    bench.batcher.done(serial, NOW + 10 * US)
    assert bench.batcher.decide(NOW + 10 * US) == Wait(NOW + 100 * US)
    bench.send(6, now=NOW + 20 * US)
    assert bench.leaves(NOW + 20 * US) == ([3, 4, 5, 6, 7, 8, 9, 10], "backlog")


def test_a_full_batch_does_not_wait() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    ids = bench.send(9)
    assert bench.leaves() == (ids[:8], "full")
    assert bench.batcher.decide(NOW) == Wait(NOW + 100 * US)


def test_a_batch_that_the_next_request_does_not_fit_in_does_not_wait() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    bench.send(2, samples=3)
    assert isinstance(bench.batcher.decide(NOW), Wait)
    bench.send(samples=3)
    assert bench.leaves() == ([1, 2], "full")


def test_a_request_larger_than_a_batch_leaves_alone() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    bench.send(samples=9)
    bench.send()
    assert bench.leaves() == ([1], "full")


# Preferred sizes


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([1] * 3, None, id="below"),
        pytest.param([1] * 4, 4, id="met"),
        pytest.param([1] * 7, 4, id="the largest met"),
        pytest.param([1] * 9, 8, id="the larger"),
        pytest.param([3, 3], None, id="may still be met"),
        pytest.param([3, 3, 3], 2, id="can be met no more"),
        pytest.param([3, 1, 3], 2, id="met on the way"),
        pytest.param([9], 1, id="passed by one"),
    ],
)
def test_a_preferred_size_leaves_at_once(samples: list[int], expected: int | None) -> None:
    bench = Bench(most=16, preferred_batch_size=(4, 8), max_queue_delay_microseconds=100)
    for size in samples:
        bench.send(samples=size)
    if expected is None:
        assert bench.batcher.decide(NOW) == Wait(NOW + 100 * US)
    else:
        assert bench.leaves() == (list(range(1, expected + 1)), "preferred")


def test_after_the_delay_all_leaves_whatever_is_preferred() -> None:
    bench = Bench(most=16, preferred_batch_size=(4,), max_queue_delay_microseconds=100)
    ids = bench.send(7)
    assert bench.leaves(NOW + 100 * US) == (ids, "delay")


# Groups


def test_groups_never_share_a_batch_and_the_oldest_head_goes_first() -> None:
    bench = Bench(instances=3)
    for group in "abacb":
        bench.send(group=group)
    assert [bench.leaves()[0] for _ in range(3)] == [[1, 3], [2, 5], [4]]


def test_no_group_starves_behind_one_that_is_always_full() -> None:
    bench = Bench(most=2, instances=1, max_queue_delay_microseconds=50)
    bench.send(group="rare")
    served: list[Hashable] = []
    for step in range(20):
        now = NOW + step * 20 * US
        bench.send(2, now=now, group="busy")
        decision = bench.batcher.decide(now)
        assert isinstance(decision, Batch)
        served.append(decision.group)
        bench.batcher.done(decision.serial, now)
    assert served.index("rare") == 3, "once its delay is over"


def test_a_full_group_does_not_wait_for_an_older_one_that_does() -> None:
    bench = Bench(most=2, max_queue_delay_microseconds=50)
    bench.send(group="a")
    ids = bench.send(2, group="b")
    assert bench.leaves() == (ids, "full")
    assert bench.batcher.decide(NOW) == Wait(NOW + 50 * US)


# Priorities


def test_higher_levels_go_first_and_fill_up_with_lower_ones() -> None:
    bench = Bench(most=3, instances=9, priority_levels=3, default_priority_level=2)
    for priority in (3, 0, 1, 2, 1, 7):
        bench.send(priority=priority)
    assert bench.leaves()[0] == [3, 5, 2]
    assert bench.leaves()[0] == [4, 6, 1]


def test_the_group_with_the_highest_priority_goes_first() -> None:
    bench = Bench(instances=9, priority_levels=2, default_priority_level=2)
    bench.send(group="a")
    bench.send(group="b", priority=1)
    bench.send(group="a")
    assert [bench.leaves()[0] for _ in range(2)] == [[2], [1, 3]]


# Queue policies


def test_max_queue_size_is_for_each_level() -> None:
    bench = Bench(
        instances=1,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=QueuePolicy(max_queue_size=2),
        priority_queue_policy={2: QueuePolicy()},
    )
    bench.busy()
    bench.send(2)
    with pytest.raises(OverloadedError, match="2 requests wait"):
        bench.send()
    bench.send(5, priority=2)
    bench.batcher.cancel(2)
    bench.send()


def test_rule_19_time_outs_are_on_time_while_the_device_is_busy() -> None:
    bench = Bench(instances=1, default_queue_policy=QueuePolicy(default_timeout_microseconds=100))
    [serial] = bench.busy()
    bench.send(now=NOW)
    bench.send(now=NOW + 50 * US)
    assert bench.batcher.next_expiry_ns() == NOW + 100 * US
    assert bench.batcher.expire(NOW + 100 * US - 1) == []
    assert [request.id for request in bench.batcher.expire(NOW + 100 * US)] == [2]
    assert bench.batcher.next_expiry_ns() == NOW + 150 * US
    bench.batcher.done(serial, NOW + 150 * US)
    assert bench.batcher.decide(NOW + 150 * US) is None, "an expired request is in no batch, asked for or not"
    assert bench.batcher.next_expiry_ns() == NOW + 150 * US, "it has not been told yet"
    assert [request.id for request in bench.batcher.expire(NOW + 150 * US)] == [3]
    assert bench.batcher.next_expiry_ns() is None


def test_delayed_requests_go_behind_those_in_time() -> None:
    policy = QueuePolicy(default_timeout_microseconds=100, timeout_action="DELAY")
    bench = Bench(most=2, instances=1, default_queue_policy=policy)
    [serial] = bench.busy()
    bench.send(2)
    bench.send(now=NOW + 90 * US)
    assert bench.batcher.expire(NOW + 100 * US) == []
    bench.batcher.done(serial, NOW + 100 * US)
    assert bench.leaves(NOW + 100 * US)[0] == [4, 2]


def test_a_delayed_request_is_delayed_once() -> None:
    policy = QueuePolicy(default_timeout_microseconds=100, timeout_action="DELAY")
    bench = Bench(instances=1, default_queue_policy=policy)
    bench.busy()
    bench.send()
    bench.batcher.expire(NOW + 100 * US)
    assert bench.batcher.next_expiry_ns() is None


# Rules 22, 24 and 25


def test_rule_22_cancelled_requests_leave_at_once() -> None:
    bench = Bench(max_queue_delay_microseconds=100)
    bench.send(2)
    request = bench.batcher.cancel(1)
    assert request is not None
    assert request.id == 1
    assert bench.batcher.cancel(1) is None
    assert len(bench.batcher) == 1
    assert bench.leaves(NOW + 100 * US)[0] == [2]


def test_rule_24_nothing_queued_asks_for_no_timer() -> None:
    bench = Bench(max_queue_delay_microseconds=100, default_queue_policy=QueuePolicy(default_timeout_microseconds=9))
    bench.send()
    bench.batcher.cancel(1)
    assert bench.batcher.decide(NOW) is None
    assert bench.batcher.next_expiry_ns() is None


def test_rule_25_reasons_and_sizes_are_counted() -> None:
    bench = Bench()
    bench.busy()
    for serial in (1, 2):
        bench.send(3)
        bench.batcher.done(serial, NOW)
        bench.leaves()
    statistics = bench.batcher.statistics()
    assert statistics["closed"]["backlog"] == 2
    assert statistics["batch_sizes"] == {1: 2, 3: 2}
    assert statistics["queued"] == 0


def test_drained_requests_come_in_order() -> None:
    bench = Bench(instances=1)
    bench.busy()
    for group in "aba":
        bench.send(group=group)
    assert [request.id for request in bench.batcher.drain()] == [2, 3, 4]
    assert not len(bench.batcher)
    bench.batcher.done(1, NOW)
    assert bench.batcher.decide(NOW) is None


def test_an_id_that_waits_cannot_come_again() -> None:
    bench = Bench()
    bench.send()
    with pytest.raises(ValueError, match="waits already"):
        bench.batcher.enqueue(Request(1, 1, 0), NOW)


# Order


def test_order_is_kept_across_batches_and_groups() -> None:
    bench = Bench(instances=3, preserve_ordering=True)
    for group in "aabaa":
        bench.send(group=group)
    assert [bench.leaves()[0] for _ in range(3)] == [[1, 2], [3], [4, 5]]
    done = bench.batcher.done
    assert [done(2, NOW), done(1, NOW), done(3, NOW)] == [[], [1, 2], [3]]


def test_batches_are_answered_as_they_come_back_when_order_is_not_kept() -> None:
    bench = Bench(instances=3)
    bench.busy()
    assert [bench.batcher.done(serial, NOW) for serial in (2, 1, 3)] == [[2], [1], [3]]


# Time on the device


def predictor() -> Predictor:
    """100 µs and 10 for each sample."""
    known = Predictor()
    for samples in (1, 4, 16):
        known.learn(0, samples, 100 + 10 * samples)
    return known


def test_a_batch_closes_before_its_predicted_time_passes_the_bound() -> None:
    bench = Bench(most=16, instances=9, predictor=predictor(), ms=0.15, max_queue_delay_microseconds=100)
    ids = bench.send(7)
    assert bench.leaves() == (ids[:5], "predicted")
    assert bench.batcher.decide(NOW) == Wait(NOW + 100 * US)


def test_a_backlog_is_bounded_too() -> None:
    bench = Bench(most=16, instances=1, predictor=predictor(), ms=0.15)
    bench.busy()
    ids = bench.send(7)
    bench.batcher.done(1, NOW)
    assert bench.leaves() == (ids[:5], "predicted")


def test_one_request_may_take_longer() -> None:
    bench = Bench(most=16, predictor=predictor(), ms=0.05)
    bench.send(2, samples=3)
    assert bench.leaves() == ([1], "predicted")


def test_a_group_of_which_nothing_is_known_is_not_bounded() -> None:
    bench = Bench(most=16, predictor=predictor(), ms=0.15)
    ids = bench.send(9, group="new")
    assert bench.leaves() == (ids, "idle")


# Cost


def lines_run(bench: Bench) -> int:
    """Lines of the batcher's that one of each operation takes."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if "/vkqueue/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    middle, now = bench.count // 2, NOW + 1
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bench.send(now=now, group=3, priority=2)
        bench.batcher.cancel(middle)
        bench.batcher.expire(now)
        assert isinstance(bench.batcher.decide(now), Batch)
        bench.batcher.next_expiry_ns()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("groups", [1, 1000])
def test_operations_do_not_grow_with_the_queue(groups: int) -> None:
    def cost(queued: int) -> int:
        policy = QueuePolicy(default_timeout_microseconds=10**6)
        bench = Bench(priority_levels=4, default_priority_level=2, default_queue_policy=policy)
        for number in range(queued):
            bench.send(group=number % groups, priority=number % 4)
        return lines_run(bench)

    assert cost(10_000) < 2 * cost(100)
