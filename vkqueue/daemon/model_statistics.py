"""What a version of a model has done: Triton's ModelStatistics, and what became of each request.

Each accepted request ends in exactly one of success, fail, cancelled and expired; a refused one is counted as rejected
and as nothing else.
"""

from __future__ import annotations

import time
from typing import Any

from vkqueue.models.batcher import REASONS


class Duration:
    """How often, and how long in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        """So many more, of so long together."""
        self.count += count
        self.ns += max(ns, 0)

    def to_map(self) -> dict[str, int]:
        """As it travels."""
        return {"count": self.count, "ns": self.ns}


_PARTS = ("compute_input", "compute_infer", "compute_output")


class ModelStatistics:
    """Of one loaded version.

    Attributes:
        requests: by how they ended ("success", "fail", "cancelled", "expired"), from receipt to that.
        queue: of successful requests, from receipt to leaving the queue; parts: from there on, to the device, on it,
            and back.
        rejected: requests that were refused.
        closed, sizes: batches that have left the queue, by why and by samples.
    """

    def __init__(self) -> None:
        self.requests = {name: Duration() for name in ("success", "fail", "cancelled", "expired")}
        self.queue = Duration()
        self.parts = {name: Duration() for name in _PARTS}
        self.batches: dict[int, dict[str, Duration]] = {}
        self.accepted = 0
        self.rejected = 0
        self.inferences = 0
        self.executions = 0
        self.last_inference_ms = 0
        self.closed = dict.fromkeys(REASONS, 0)
        self.sizes: dict[int, int] = {}

    def left(self, reason: str, samples: int) -> None:
        """A batch was closed."""
        self.closed[reason] += 1
        self.sizes[samples] = self.sizes.get(samples, 0) + 1

    def executed(self, samples: int, times_ns: tuple[int, int, int]) -> None:
        """A batch ran; times are of its parts."""
        self.executions += 1
        self.last_inference_ms = time.time_ns() // 1_000_000
        known = self.batches.get(samples)
        if known is None:
            known = self.batches[samples] = {name: Duration() for name in _PARTS}
        for duration, ns in zip(known.values(), times_ns, strict=True):
            duration.add(ns)

    def succeeded(
        self, count: int, samples: int, total_ns: int, queue_ns: int, times_ns: tuple[int, int, int]
    ) -> None:  # fmt: skip
        """So many requests of one batch got their results; times are of all of them together, `times_ns` of each."""
        self.inferences += samples
        self.requests["success"].add(total_ns, count)
        self.queue.add(queue_ns, count)
        for duration, ns in zip(self.parts.values(), times_ns, strict=True):
            duration.add(ns * count, count)

    def to_map(self) -> dict[str, Any]:
        """As it travels."""
        parts = {"queue": self.queue, **self.parts}
        return {
            "last_inference": self.last_inference_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.requests["success"].to_map(),
                "fail": self.requests["fail"].to_map(),
                **{name: duration.to_map() for name, duration in parts.items()},
            },
            "batch_stats": [
                {"batch_size": size, **{name: duration.to_map() for name, duration in known.items()}}
                for size, known in sorted(self.batches.items())
            ],
            "accepted": self.accepted,
            "rejected": self.rejected,
            "cancelled": self.requests["cancelled"].count,
            "expired": self.requests["expired"].count,
            "closed": dict(self.closed),
            "batch_sizes": {str(size): count for size, count in sorted(self.sizes.items())},
        }


__all__ = ["Duration", "ModelStatistics"]
