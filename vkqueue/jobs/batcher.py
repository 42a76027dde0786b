"""When a batch is closed. The whole policy is `Batcher.decide`.

With b batches in flight and B the most there may be:

=========  ==========================================================================================
b = 0      at once, all that is queued, up to `max_batch_jobs` ("idle")
0 < b < B  when `max_batch_jobs` are queued ("full"), or the oldest waits `max_batch_delay_us` ("delay")
b = B      not; when one comes back, by the row that then holds: the backlog leaves as one batch ("backlog")
=========  ==========================================================================================

So a lone job never waits, and under load batches grow with the backlog instead of shrinking: nothing is sent in
small pieces merely because it has waited.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Close:
    """Close a batch now, of at most `count` rows."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again at `until_ns`, unless something happens before."""

    until_ns: int


class Batcher:
    """Decides when a batch is closed; counts why, and how large.

    Args:
        max_batch_jobs: rows of a batch at most.
        max_batch_delay_us: microseconds that the oldest ready row waits at most while the device is busy but could
            take another batch.
        batches_in_flight: B above.

    Attributes:
        reasons: batches closed, by reason.
        sizes: batches closed, by size: the largest power of two that is not above it.
    """

    def __init__(self, max_batch_jobs: int, max_batch_delay_us: int, batches_in_flight: int) -> None:
        self.max_batch_jobs = max_batch_jobs
        self.max_batch_delay_ns = max_batch_delay_us * 1000
        self.batches_in_flight = batches_in_flight
        self.reasons = {"idle": 0, "full": 0, "delay": 0, "backlog": 0}
        self.sizes: dict[int, int] = {}
        self._full_ns = -1  # when rows last found all batches in flight

    def decide(self, queued: int, oldest_ns: int, in_flight: int, now_ns: int) -> Close | Wait | None:
        """What to do with `queued` ready rows, the oldest received at `oldest_ns`.

        Returns:
            Close, Wait, or None: nothing until a batch comes back or a row arrives.
        """
        if not queued:
            return None
        if in_flight >= self.batches_in_flight:
            self._full_ns = now_ns
            return None
        if in_flight == 0:
            reason = "idle"
        elif queued >= self.max_batch_jobs:
            reason = "full"
        else:
            due = oldest_ns + self.max_batch_delay_ns
            if now_ns < due:
                return Wait(due)
            reason = "delay"
        if oldest_ns <= self._full_ns:
            reason = "backlog"
        return Close(reason, min(queued, self.max_batch_jobs))

    def count(self, reason: str, size: int) -> None:
        """A batch of `size` rows was closed."""
        self.reasons[reason] += 1
        bucket = 1 << size.bit_length() - 1
        self.sizes[bucket] = self.sizes.get(bucket, 0) + 1

    def reset(self) -> None:
        """The device was lost: nothing is in flight. Counts stay."""
        self._full_ns = -1
