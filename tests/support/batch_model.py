"""The dynamic batcher's rules again, as plainly as they can be said: every question looks at all that waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vkqueue.models.policy import BatchingPolicy


@dataclass(eq=False)
class Waiting:
    id: int
    samples: int
    group: Any
    level: int
    received_ns: int
    deadline_ns: int
    number: int
    client: Any
    start: int = 0
    delayed: bool = False

    @property
    def turn(self) -> tuple[int, bool, int, int]:
        return self.level, self.delayed, self.start, self.number


class PlainTurns:
    """Start-time fair queueing of those in time of a level, or of its delayed ones. Forgets nobody while one waits."""

    def __init__(self) -> None:
        self.now = self.since = 0
        self.waiting: list[Waiting] = []
        self.starts: dict[Any, int] = {}
        self.ends: dict[Any, int] = {}
        self.served: dict[Any, int] = {}

    def enter(self, w: Waiting) -> None:
        last = self.starts[w.client] if any(other.client == w.client for other in self.waiting) else 0
        w.start = max(self.now, self.ends.get(w.client, 0), last)
        self.starts[w.client], self.ends[w.client] = w.start, w.start + w.samples
        self.waiting.append(w)

    def leave(self, w: Waiting, served: bool) -> None:
        self.waiting.remove(w)
        if served:
            self.served[w.client] = w.start + w.samples
        self.ends[w.client] -= 0 if served else w.samples
        if all(other.client != w.client for other in self.waiting):
            self.ends[w.client] = self.served.get(w.client, 0)
        if not self.waiting:
            self.ends.clear()
            self.served.clear()


class PlainBatcher:
    """What `vkqueue.models.batcher.DynamicBatcher` is to do.

    Args:
        most: group → samples that a batch of it may have.
    """

    def __init__(self, policy: BatchingPolicy, largest: int, instances: int, most: Callable[[Any], int]) -> None:
        self.policy, self.largest, self.instances, self.most = policy, largest, instances, most
        self.preferred = [size for size in policy.preferred_batch_size if size <= largest] or [largest]
        self.delay_ns = policy.max_queue_delay_microseconds * 1000
        self.waiting: list[Waiting] = []
        self.turns: dict[tuple[int, bool], PlainTurns] = defaultdict(PlainTurns)
        self.expired: list[int] = []
        self.in_flight: list[int] = []
        self.left_waiting_ns = -1
        self.numbers = self.serial = self.answered = 0
        self.done_serials: set[int] = set()

    def enqueue(
        self, id: int, samples: int, group: Any, priority: int, timeout_us: int, now: int, client: Any
    ) -> bool:  # fmt: skip
        """Whether there is room."""
        self.sweep(now)
        level = self.policy.level(priority)
        most = self.policy.queue_policy(level).max_queue_size
        if most and sum(w.level == level for w in self.waiting) >= most:
            return False
        self.numbers += 1
        deadline = self.policy.deadline_ns(priority, now, timeout_us)
        client = None if self.policy.preserve_ordering else client
        self._enter(Waiting(id, samples, group, level, now, deadline, self.numbers, client))
        if len(self.in_flight) == self.instances:
            self.left_waiting_ns = now
        return True

    def cancel(self, id: int) -> bool:
        found = [w for w in self.waiting if w.id == id]
        for w in found:
            self._leave(w, False)
        return bool(found)

    def _enter(self, w: Waiting) -> None:
        self.waiting.append(w)
        self.turns[w.level, w.delayed].enter(w)

    def _leave(self, w: Waiting, served: bool) -> None:
        self.waiting.remove(w)
        self.turns[w.level, w.delayed].leave(w, served)

    def sweep(self, now: int) -> None:
        for w in sorted(self.waiting, key=lambda w: (w.deadline_ns, w.number)):
            if w.deadline_ns and w.deadline_ns <= now and not w.delayed:
                self._leave(w, False)
                if self.policy.queue_policy(w.level).timeout_action == "DELAY":
                    self.numbers += 1
                    w.delayed, w.number = True, self.numbers
                    self._enter(w)
                else:
                    self.expired.append(w.id)

    def expire(self, now: int) -> list[int]:
        self.sweep(now)
        expired, self.expired = self.expired, []
        return expired

    def decide(self, now: int) -> tuple[list[int], str] | int | None:
        """A batch as ids and reason, or when to ask again."""
        self.sweep(now)
        if not self.waiting or len(self.in_flight) == self.instances:
            return None
        turns = sorted(self.waiting, key=lambda w: w.turn)
        if self.policy.preserve_ordering:
            lines = [turns]
        else:
            lines = [[w for w in turns if w.group == group] for group in dict.fromkeys(w.group for w in turns)]
        for line in lines:
            batch = self._batch(line, now)
            if batch is not None:
                return batch
        return min(w.received_ns for w in self.waiting) + self.delay_ns

    def _batch(self, line: list[Waiting], now: int) -> tuple[list[int], str] | None:
        most = self.most(line[0].group)
        sums = [sum(w.samples for w in line[: count + 1]) for count in range(len(line))]
        others = [count for count, w in enumerate(line) if w.group != line[0].group]
        same = others[0] if others else len(line)
        fits = max(sum(size <= most for size in sums[:same]), 1)
        over = sums[fits] if fits < same else 0
        reason = ""
        if sums[fits - 1] >= most:
            reason = "predicted" if most < self.largest else "full"
        elif over:
            reason = "predicted" if over <= self.largest else "full"
        elif fits < len(line):
            reason = "full"
        met = [count + 1 for count in range(fits) if sums[count] in self.preferred]
        if not met and any(size > max(self.preferred) for size in sums[: min(fits + 1, same)]):
            met = [max(sum(size <= max(self.preferred) for size in sums[:fits]), 1)]
        oldest = min(w.received_ns for w in line)
        due, backlog = now >= oldest + self.delay_ns, oldest <= self.left_waiting_ns
        take = fits
        if met and not backlog and not (due and self.delay_ns):
            if met[-1] < fits or not reason:
                take, reason = met[-1], "preferred"
        elif backlog and (reason == "full" or met or due) and reason != "predicted":
            reason = "backlog"
        elif due and not reason:
            reason = "delay" if self.delay_ns or self.in_flight else "idle"
        return ([w.id for w in line[:take]], reason) if reason else None

    def leave(self, ids: list[int], now: int) -> int:
        """A batch goes; its serial."""
        batch = sorted((w for w in self.waiting if w.id in ids), key=lambda w: w.turn)
        for key, turns in self.turns.items():
            first = next((w for w in batch if (w.level, w.delayed) == key), None)
            if first is not None and first.start >= turns.now:
                late = first.start == turns.now
                if not late or first.number > turns.since:
                    turns.now, turns.since = first.start + late, self.numbers
        for w in batch:
            self._leave(w, True)
        self.serial += 1
        self.in_flight.append(self.serial)
        if self.waiting and len(self.in_flight) == self.instances:
            self.left_waiting_ns = now
        return self.serial

    def done(self, serial: int, now: int) -> list[int]:
        if self.waiting and len(self.in_flight) == self.instances:
            self.left_waiting_ns = now
        self.in_flight.remove(serial)
        if not self.policy.preserve_ordering:
            return [serial]
        self.done_serials.add(serial)
        before = self.answered
        while self.answered + 1 in self.done_serials:
            self.answered += 1
        return list(range(before + 1, self.answered + 1))
