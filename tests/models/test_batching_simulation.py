"""What the batcher's rules amount to: clients that send their next request when they have an answer, on a device that
takes a time for a batch and a little for each sample. A virtual clock, no chance.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from vkqueue.models.batcher import Batch, DynamicBatcher, Wait
from vkqueue.models.policy import BatchingPolicy
from vkqueue.models.queue import Request

BATCH_NS, SAMPLE_NS, THINK_NS = 1_000_000, 20_000, 5_000


@dataclass
class Run:
    """`clients` of them, each with one request at a time, for `requests` requests in all."""

    batcher: DynamicBatcher
    clients: int
    requests: int
    now: int = 0
    sizes: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    in_flight_before: list[int] = field(default_factory=list)

    def run(self) -> Run:
        # (when, kind, what): a request that comes, a batch that is done, or nothing but a look.
        events: list[tuple[int, int, int]] = [(client * THINK_NS, 0, client) for client in range(self.clients)]
        flying: dict[int, Batch] = {}
        left, device_free = self.requests - self.clients, 0
        while events:
            self.now, kind, what = heapq.heappop(events)
            if kind == 0:
                self.batcher.enqueue(Request(what, 1, 0, received_ns=self.now), self.now)
            elif kind == 1:
                self.batcher.done(what, self.now)
                for request in flying.pop(what).requests:
                    if left > 0:
                        left -= 1
                        heapq.heappush(events, (self.now + THINK_NS, 0, request.id))  # type: ignore[misc]
            while isinstance(decision := self.batcher.decide(self.now), Batch):
                self.sizes.append(decision.samples)
                self.waited += [self.now - request.received_ns for request in decision.requests]
                self.in_flight_before.append(len(flying))
                flying[decision.serial] = decision
                device_free = max(device_free, self.now) + BATCH_NS + SAMPLE_NS * decision.samples
                heapq.heappush(events, (device_free, 1, decision.serial))
            if isinstance(decision, Wait):
                heapq.heappush(events, (decision.until_ns, 2, 0))
        assert sum(self.sizes) == self.requests
        return self

    @property
    def per_second(self) -> float:
        return self.requests / self.now * 1e9

    @property
    def typical(self) -> float:
        """Samples that a sample had in its batch, on average."""
        return sum(size * size for size in self.sizes) / sum(self.sizes)


def run(clients: int, most: int = 32, instances: int = 2, delay_us: int = 0, requests: int = 3200) -> Run:
    policy = BatchingPolicy(max_queue_delay_microseconds=delay_us)
    return Run(DynamicBatcher(policy, most, instances), clients, requests).run()


LOADS = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("delay_us", [0, 500])
@pytest.mark.parametrize("instances", [1, 2, 3])
def test_rule_18_batches_grow_with_the_load(instances: int, delay_us: int) -> None:
    typical = [run(clients, instances=instances, delay_us=delay_us).typical for clients in LOADS]
    assert all(later >= earlier for earlier, later in pairwise(typical)), typical


def test_rule_17_under_load_the_whole_backlog_goes_when_a_batch_comes_back() -> None:
    lone = run(64, instances=1)
    assert lone.sizes[0] == 1, "b = 0: at once"
    assert set(lone.sizes[1:-1]) == {32}
    assert set(run(20, instances=1).sizes[1:]) <= {19, 20, 1}


def test_a_batch_leaves_only_while_an_instance_is_free() -> None:
    for instances in (1, 2, 3):
        assert max(run(64, instances=instances).in_flight_before) == instances - 1


def test_one_client_alone_never_waits_without_a_delay_and_never_longer_with_one() -> None:
    assert set(run(1).waited) == {0}
    assert set(run(1, delay_us=500).waited) == {500_000}


def test_with_the_batcher_many_clients_have_many_times_the_throughput() -> None:
    one_by_one, batched = run(32, most=1), run(32)
    assert one_by_one.per_second == pytest.approx(1e9 / (BATCH_NS + SAMPLE_NS), rel=0.01)
    assert batched.per_second > 8 * one_by_one.per_second


def test_a_delay_makes_full_batches_of_clients_that_answer_each_other() -> None:
    """Without it the first to come goes alone, while the others wait for it; both are what was asked for."""
    assert run(8, instances=1, delay_us=500).sizes == [8] * 400
    assert set(run(8, instances=1).sizes) == {1, 7}
