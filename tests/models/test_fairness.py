"""Clients take turns in a model's queue."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from vkqueue.models.batcher import Batch, DynamicBatcher, Wait
from vkqueue.models.fair import Turns
from vkqueue.models.policy import BatchingPolicy, QueuePolicy
from vkqueue.models.queue import Request

US = 1_000


class Line:
    """A batcher of one instance, which is busy until `serve` asks for a batch. Requests are (client, number of it)."""

    def __init__(self, most: int = 8, **policy: Any) -> None:
        self.batcher = DynamicBatcher(BatchingPolicy(**policy), most, 1)
        self.sent: dict[Hashable, int] = {}
        self.send("first")
        self.serial = self._next(0).serial

    def send(self, client: Hashable, count: int = 1, samples: int = 1, now: int = 0, group: Hashable = 0,
             **more: Any) -> None:  # fmt: skip
        for _ in range(count):
            number = self.sent[client] = self.sent.get(client, 0) + 1
            request = Request((client, number), samples, group, received_ns=now, client=client, **more)
            self.batcher.enqueue(request, now)

    def _next(self, now: int) -> Batch:
        decision = self.batcher.decide(now)
        assert isinstance(decision, Batch), decision
        return decision

    def serve(self, now: int = 0) -> list[Any]:
        """The next batch's requests."""
        self.batcher.done(self.serial, now)
        batch = self._next(now)
        self.serial = batch.serial
        return [request.id for request in batch.requests]

    def clients(self, batches: int, now: int = 0) -> str:
        """Whose requests the next ones are."""
        return "".join(client for _ in range(batches) for client, _ in self.serve(now))


@pytest.mark.parametrize("served", [0, 1, 100])
def test_one_request_is_in_the_next_batch_however_many_another_client_has(served: int) -> None:
    line = Line()
    line.send("a", 5000)
    for _ in range(served):
        line.serve()
    line.send("b")
    assert ("b", 1) in line.serve()


def test_one_request_waits_behind_one_of_each_other_client() -> None:
    line = Line(most=1)
    for client in "abcde":
        line.send(client, 1000)
    line.clients(501)
    line.send("x")
    assert line.clients(6).index("x") <= 5


def test_a_clients_own_keep_their_order() -> None:
    line = Line()
    for turn in range(50):
        for client in "abc":
            line.send(client, 1 + turn % 3, samples=1 + turn % 2)
        if turn % 4 == 0:
            line.batcher.cancel(("a", line.sent["a"]))
            line.batcher.cancel(("b", line.sent["b"] - 1))
    served: list[Any] = []
    while len(line.batcher):
        served += line.serve()
    for client in "abc":
        own = [number for whose, number in served if whose == client]
        assert own == sorted(own)


def test_turns_are_weighed_by_samples() -> None:
    line = Line(most=1)
    line.send("a", 100, samples=3)
    line.send("b", 300)
    served = line.clients(200)
    assert served.count("a") == 50
    assert served.count("b") == 150


def test_large_requests_one_at_a_time_do_not_get_more_than_small_ones_that_wait() -> None:
    """Two clients send eight samples, then wait; what they were served is remembered meanwhile."""
    line = Line()
    line.send("y", 2000)
    samples = dict.fromkeys("xzy", 0)
    line.send("x", samples=8)
    line.send("z", samples=8)
    for _ in range(150):
        served = line.serve()
        for client, _ in served:
            samples[client] += 1 if client == "y" else 8
            if client != "y":
                line.send(client, samples=8)
    assert max(samples.values()) - min(samples.values()) <= 32


def test_newcomers_without_end_starve_nobody() -> None:
    line = Line(most=1)
    line.send("a", 10)
    for number in range(40):
        line.send(f"new {number}")
        line.send(f"newer {number}")
        line.serve()
    left = len([number for number in range(1, 11) if line.batcher.find(("a", number)) is not None])
    assert left < 9


def test_groups_go_by_the_same_order() -> None:
    line = Line(most=4)
    line.send("a", 400, group=1)
    line.send("b", 1, group=2)
    line.send("c", 400, group=3)
    assert ("b", 1) in line.serve() + line.serve()
    served = line.clients(20)
    assert served.count("a") == served.count("c") == 40


def test_each_level_has_turns_of_its_own() -> None:
    """What a client asks for urgently costs it nothing where it is not."""
    line = Line(most=1, priority_levels=2, default_priority_level=2)
    line.send("a", 100, priority=1)
    line.send("b", 100)
    assert line.clients(100) == "a" * 100
    line.send("a")
    assert "a" in line.clients(2)


def test_the_delay_counts_from_the_oldest_whoever_is_first() -> None:
    batcher = DynamicBatcher(BatchingPolicy(max_queue_delay_microseconds=100), 8, 2)
    for number in range(3):
        batcher.enqueue(Request(number, 2, 0, received_ns=number, client="a"), number)
    batcher.enqueue(Request("b", 1, 0, received_ns=50 * US, client="b"), 50 * US)
    batcher.cancel(0)  # the first now is b's
    assert batcher.decide(50 * US) == Wait(1 + 100 * US)
    batch = batcher.decide(1 + 100 * US)
    assert isinstance(batch, Batch)
    assert [request.id for request in batch.requests] == ["b", 1, 2]


def test_delayed_requests_take_turns_behind_those_in_time() -> None:
    policy = QueuePolicy(default_timeout_microseconds=100, timeout_action="DELAY")
    line = Line(most=1, default_queue_policy=policy)
    line.send("a", 100)
    line.send("b", now=50 * US)
    line.send("c", now=150 * US)
    assert [line.serve(151 * US) for _ in range(4)] == [[("c", 1)], [("a", 1)], [("b", 1)], [("a", 2)]]


def test_what_is_not_served_costs_no_turn() -> None:
    policy = QueuePolicy(default_timeout_microseconds=100)
    line = Line(most=1, default_queue_policy=policy)
    line.send("a", 1000)
    line.send("b", 50, now=200 * US)
    line.send("a", 50, now=200 * US)
    assert line.clients(20, 200 * US).count("a") == 10


def test_who_cancels_all_has_lost_no_turn_and_won_none() -> None:
    line = Line(most=1)
    line.send("b", 1000)
    line.send("a", 500)
    for number in range(1, 500):
        line.batcher.cancel(("a", number))
    line.send("a", 400)
    for number in range(500, 901):
        line.batcher.cancel(("a", number))
    line.send("a", 10)
    assert line.clients(20).count("a") == 10
    line.send("a", 500)
    for number in range(911, 1410):
        line.batcher.cancel(("a", number))
    line.send("a", 499)
    while line.batcher.find(("a", 1410)) is not None:
        line.serve()
    line.send("c")
    assert "c" in line.clients(4)


def test_order_across_clients_is_kept_where_it_is_asked_for() -> None:
    line = Line(most=1, preserve_ordering=True)
    line.send("a", 20)
    line.send("b")
    assert line.clients(21) == "a" * 20 + "b"


# What is remembered


def test_a_client_of_which_nothing_waits_is_forgotten() -> None:
    turns = Turns()
    turns.enter("waits", 1)
    for order in range(1, 10_000):
        start = turns.enter(order, 1)
        turns.serve(start, order, order)
        turns.leave(order, start, 1, True)
        assert len(turns) <= 2
    for client in range(1000):
        turns.leave(client, turns.enter(client, 1), 1, False)
        assert len(turns) <= 2


def test_clients_whose_service_still_counts_are_forgotten_later() -> None:
    turns = Turns()
    turns.enter("waits", 1)
    for order in range(1, 10_000):
        start = turns.enter(order, 8)
        turns.serve(start, order, order)
        turns.leave(order, start, 8, True)
        assert len(turns) <= 64
    turns.leave("waits", 0, 1, False)
    assert len(turns) == 0


def test_starts_of_requests_that_left_take_no_memory() -> None:
    """Whoever sends and cancels while nothing leaves."""
    line = Line()
    line.send("a", 3)
    for _ in range(2000):
        last = line.sent["a"]
        line.batcher.cancel(("a", last - 2))
        line.batcher.cancel(("a", last - 1))
        line.send("a", 2)
    [group] = line.batcher._queue._groups.values()
    [lane] = group._lanes.values()
    assert len(lane.starts) <= 2 * 3 + 65
    assert line.serve() == [("a", number) for number in range(line.sent["a"] - 2, line.sent["a"] + 1)]
