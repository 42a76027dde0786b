"""A dynamic batcher's day under a virtual clock: requests, cancellations, time-outs and batches that come back, at
random, against the rules said plainly. A million steps, half a minute; `VKQUEUE_RANDOM_STEPS` is another number.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from support.batch_model import PlainBatcher

from vkqueue.errors import OverloadedError
from vkqueue.models.batcher import REASONS, Batch, DynamicBatcher, Wait
from vkqueue.models.policy import BatchingPolicy, QueuePolicy
from vkqueue.models.predict import Predictor
from vkqueue.models.queue import Request

STEPS = int(os.environ.get("VKQUEUE_RANDOM_STEPS", "1000000"))

REJECT = QueuePolicy(default_timeout_microseconds=300, allow_timeout_override=True)
DELAY = QueuePolicy(default_timeout_microseconds=150, timeout_action="DELAY", allow_timeout_override=True)
SHORT = QueuePolicy(max_queue_size=3)

POLICIES = {
    "plain": BatchingPolicy(),
    "delay": BatchingPolicy(max_queue_delay_microseconds=100, default_queue_policy=REJECT),
    "preferred": BatchingPolicy((3, 5), 200, default_queue_policy=DELAY),
    "preferred, no delay": BatchingPolicy((4,)),
    "levels": BatchingPolicy((2, 8), 120, False, 3, 2, QueuePolicy(max_queue_size=30), {1: SHORT, 2: REJECT, 3: DELAY}),
    "ordered": BatchingPolicy((3, 5), 150, True, default_queue_policy=REJECT),
    "ordered levels": BatchingPolicy((), 80, True, 2, 1, DELAY, {1: REJECT}),
}


class Fixed(Predictor):
    """Knows the time of group g: 100 µs and 10 for each sample, times g."""

    def most(self, group: int, limit_us: float, largest: int) -> int:  # type: ignore[override]
        return max(min(int((limit_us / max(group, 1) - 100) // 10), largest), 1)


class World:
    """The batcher and its model side by side, and what must be true of both."""

    def __init__(self, seed: int, policy: BatchingPolicy, largest: int, instances: int, limit_us: int) -> None:
        self.random = Random(seed)
        self.now = 0
        self.policy = policy
        predictor = Fixed() if limit_us else None
        self.batcher = DynamicBatcher(policy, largest, instances, predictor, limit_us / 1000)
        self.plain = PlainBatcher(
            policy, largest, instances, lambda g: predictor.most(g, limit_us, largest) if predictor else largest
        )
        self.largest = largest
        self.ids = 0
        self.alive: dict[int, Request] = {}
        self.flying: dict[int, Batch] = {}
        self.left: list[int] = []  # requests in the order in which they left, while order is kept
        self.answers: list[int] = []
        self.outcomes = dict.fromkeys(["served", "cancelled", "expired", "refused", "delayed"], 0)
        self.timer: int | None = None

    def send(self) -> None:
        rng = self.random
        self.ids += 1
        samples = min(rng.choice([1, 1, 1, 2, 4, 7]), self.largest)
        priority, timeout_us = rng.choice([0, 1, 2, 3, 9]), rng.choice([0, 0, 40, 1000])
        deadline = self.policy.deadline_ns(priority, self.now, timeout_us)
        client = rng.choice([1, 1, 1, 1, 2, 2, 3, self.ids])
        request = Request(self.ids, samples, rng.choice([1, 1, 2, 3]), priority, self.now, deadline, client=client)
        room = self.plain.enqueue(self.ids, samples, request.group, priority, timeout_us, self.now, client)
        if room:
            self.batcher.enqueue(request, self.now)
            self.alive[self.ids] = request
        else:
            with pytest.raises(OverloadedError, match="max_queue_size"):
                self.batcher.enqueue(request, self.now)
            self.outcomes["refused"] += 1

    def cancel(self) -> None:
        id = self.random.randint(max(self.ids - 30, 1), self.ids + 1)
        request = self.batcher.cancel(id)
        assert (request is not None) == self.plain.cancel(id)
        if request is not None:
            assert self.alive.pop(id) is request, "rule 22: it left at once"
            self.outcomes["cancelled"] += 1

    def expire(self) -> None:
        expired = [request.id for request in self.batcher.expire(self.now)]
        assert expired == self.plain.expire(self.now)
        for id in expired:
            assert self.alive.pop(id).deadline_ns <= self.now
            self.outcomes["expired"] += 1
        due = self.batcher.next_expiry_ns()
        assert due == min((w.deadline_ns for w in self.plain.waiting if w.deadline_ns and not w.delayed), default=None)

    def complete(self) -> None:
        if self.flying:
            serial = self.random.choice(list(self.flying))
            del self.flying[serial]
            answered = self.batcher.done(serial, self.now)
            assert answered == self.plain.done(serial, self.now)
            self.answers += answered

    def tick(self) -> None:
        """To the next thing that has to happen, or a little on."""
        due = [self.now + self.random.choice([1, 20_000, 90_000])]
        due += [at for at in (self.timer, self.batcher.next_expiry_ns()) if at is not None]
        self.now = max(self.now, min(due))

    def pump(self) -> None:
        self.timer = None
        while True:
            expected, decision = self.plain.decide(self.now), self.batcher.decide(self.now)
            if not isinstance(decision, Batch):
                assert decision == (Wait(expected) if isinstance(expected, int) else expected)
                break
            assert isinstance(expected, tuple), f"a batch, {decision.reason}, where none is due"
            assert ([request.id for request in decision.requests], decision.reason) == expected
            assert decision.serial == self.plain.leave(expected[0], self.now)
            self._check(decision)
        if isinstance(decision, Wait):
            assert decision.until_ns > self.now, "a timer that is over asks again without end"
            self.timer = decision.until_ns
        if decision is None:
            assert not len(self.batcher) or len(self.flying) == self.batcher.instances, "a lost wake-up"

    def _check(self, batch: Batch) -> None:
        assert batch.serial not in self.flying
        self.flying[batch.serial] = batch
        assert len(self.flying) <= self.batcher.instances
        assert batch.samples == sum(r.samples for r in batch.requests)
        assert batch.samples <= self.largest or len(batch.requests) == 1
        assert {request.group for request in batch.requests} == {batch.group}
        for request in batch.requests:
            assert self.alive.pop(request.id) is request, "served once, and neither cancelled nor expired"
            assert request.delayed or not request.deadline_ns or request.deadline_ns > self.now, "rule 19"
            self.outcomes["delayed"] += request.delayed
        self.outcomes["served"] += len(batch.requests)

    def step(self) -> None:
        [what] = self.random.choices(["send", "complete", "tick", "cancel", "expire"], [45, 20, 25, 5, 5])
        if what == "send":
            for _ in range(self.random.choice([1, 1, 3]) if len(self.plain.waiting) < 40 else 0):
                self.send()
        else:
            getattr(self, what)()
        self.pump()
        assert len(self.batcher) == len(self.plain.waiting)

    def finish(self) -> None:
        """Nothing new comes: what waits leaves, with no help but the clock's and the device's."""
        steps = 0
        while self.alive:
            self.complete()
            self.expire()
            self.pump()
            self.now = max(self.now, self.timer or 0)
            steps += 1
            assert steps < 10_000, "something waits for ever"
        assert self.batcher.decide(self.now) is None, "rule 24: no timer for nothing"
        assert self.batcher.next_expiry_ns() is None
        while self.flying:
            self.complete()
        if self.policy.preserve_ordering:
            assert self.answers == list(range(1, len(self.answers) + 1))
        assert sum(self.batcher.reasons.values()) == sum(self.batcher.sizes.values()) == len(self.answers)


@pytest.mark.parametrize("limit_us", [0, 240], ids=["sizes", "times"])
@pytest.mark.parametrize("name", POLICIES)
def test_random_steps(name: str, limit_us: int) -> None:
    """Rules 17 to 25 as far as they are the batcher's."""
    worlds = [
        World(seed, POLICIES[name], largest, instances, limit_us)
        for seed, (largest, instances) in enumerate([(8, 2), (8, 1), (16, 3), (1, 2)])
    ]
    for world in worlds:
        for _ in range(max(STEPS // (2 * len(POLICIES) * len(worlds)), 100)):
            world.step()
        world.finish()
    policy = POLICIES[name]
    # The day was a busy one.
    reasons = {reason for world in worlds for reason, count in world.batcher.reasons.items() if count}
    outcomes = {outcome for world in worlds for outcome, count in world.outcomes.items() if count}
    levels = [policy.default_queue_policy, *policy.priority_queue_policy.values()]
    assert outcomes >= {"served", "cancelled"}
    assert ("delayed" in outcomes) == any(queue.timeout_action == "DELAY" for queue in levels)
    assert ("refused" in outcomes) == any(queue is SHORT for queue in levels)
    assert reasons >= set(REASONS) - {"idle", "delay", "preferred", "predicted"}
    assert ("predicted" in reasons) == bool(limit_us)


def test_times_that_are_learned_meanwhile_lose_nobody() -> None:
    """A predictor that changes its mind: whoever waits leaves by the end of the delay, if an instance is free."""
    rng = Random(1)
    predictor = Predictor()
    batcher = DynamicBatcher(BatchingPolicy((4, 8), 100), 16, 2, predictor, 1.0)
    now, served, flying = 0, 0, {}
    for id in range(10_000):
        now += rng.randrange(60_000)
        batcher.enqueue(Request(id, rng.choice([1, 2]), rng.randrange(3), 0, now), now)
        if flying and rng.random() < 0.4:
            batch = flying.pop(rng.choice(list(flying)))
            batcher.done(batch.serial, now)
            predictor.learn(batch.group, batch.samples, (50 + 100 * batch.samples) * rng.choice([0.5, 1, 1, 2]))
        while isinstance(decision := batcher.decide(now), Batch):
            served += len(decision.requests)
            flying[decision.serial] = decision
            assert len(decision.requests) == 1 or predictor.most(decision.group, 1000, 16) >= decision.samples
        if isinstance(decision, Wait):
            assert now < decision.until_ns <= now + 100_000
        else:
            assert not len(batcher) or len(flying) == 2
    assert served + len(batcher) == 10_000
    assert batcher.reasons["predicted"] > 100
