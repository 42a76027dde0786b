"""What launches take on the device, and which of them take so long that their number in a batch has to be bounded.

Learned from batches that were timed row by row: one in `_EVERY`, those behind one that took long, and those with a
kernel that is known to be slow. A kernel is slow while `max_batch_jobs` launches of it would pass the bound; as long as
none is, nothing is looked up for any row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from vkqueue.model import DISPATCH, GRAPH, ROW_GRID, ROW_OP, ROW_TARGET, Completion, Row
from vkqueue.models.predict import Predictor

# All arbitrary.
_EVERY = 64  # batches of which one is timed in any case
_LONG = 2  # a batch that takes the bound divided by this makes the next one be timed
_KINDS = 32  # kernels and sizes that are learned from one batch at most
_GRAPHS = 1024  # that are told apart at once


class Costs:
    """What is known of a device's launches.

    Args:
        bound_ms: what a batch is to take at most; 0: no bound, and nothing is learned.
        max_batch_jobs: rows of a batch at most.

    Attributes:
        bound_ns: of a batch, in nanoseconds.
        slow: kernels and graphs (see `target_of`) of which some size takes long.
        bounded: batches that were closed because of the bound; the scheduler counts.
    """

    def __init__(self, bound_ms: float, max_batch_jobs: int) -> None:
        self.bound_ns = int(bound_ms * 1e6)
        self.slow: set[int] = set()
        self.bounded = 0
        self._slow_us = bound_ms * 1000 / max_batch_jobs
        self._predictor = Predictor()
        self._nodes: OrderedDict[int, Any] = OrderedDict()  # keeps what graphs are told apart by from being another's
        self._known: dict[tuple[int, Any], int] = {}  # answers of `row_ns` since something was learned
        self._time_next = True
        self._since = 0  # batches since one was timed

    def row_ns(self, row: Row) -> int:
        """Nanoseconds that a row which is about to leave is thought to take; 0 unless it is slow."""
        target = target_of(row)
        if target not in self.slow:
            return 0
        self._time_next = True
        key = target, row[ROW_GRID]
        known = self._known.get(key)
        if known is None:
            us = self._predictor.predict(target, _groups(row))
            known = self._known[key] = int(us * 1000) if us is not None else 0
        return known

    def wants_times(self) -> bool:
        """Whether the batch that is about to be posted is to be timed."""
        if not self.bound_ns:
            return False
        self._since += 1
        if not self._time_next and self._since < _EVERY:
            return False
        self._time_next = False
        self._since = 0
        return True

    def finished(self, completion: Completion, took_ns: int) -> None:
        """A batch is over, and had the device to itself for so many nanoseconds."""
        if not self.bound_ns:
            return
        if completion.spent_ns:
            self._learn(completion)
        elif took_ns * _LONG > self.bound_ns or (completion.batch.timed and not completion.submits):
            self._time_next = True  # it took long, or the host did all of it

    def _learn(self, completion: Completion) -> None:
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        for index, ns in completion.spent_ns.items():
            row = completion.batch.rows[index]
            if row[ROW_OP] in (DISPATCH, GRAPH) and index not in completion.errors:
                key = target_of(row), _groups(row)
                if key not in sums and len(sums) == _KINDS:
                    continue
                count, total = sums.get(key, (0, 0))
                sums[key] = count + 1, total + ns
                if row[ROW_OP] == GRAPH:
                    self._keep(key[0], row[ROW_TARGET].nodes)
        self._time_next = self._time_next or not sums  # nothing but transfers: another one then
        for (target, groups), (count, total) in sums.items():
            self._predictor.learn(target, groups, total / count / 1000)
        for target in {target for target, _ in sums}:
            longest = self._predictor.longest(target)
            if longest is not None and longest > self._slow_us:
                self.slow.add(target)
            else:
                self.slow.discard(target)
        if len(self.slow) > _GRAPHS:
            self.slow = {target for target in self.slow if self._predictor.longest(target) is not None}
        self._known.clear()

    def _keep(self, target: int, nodes: Any) -> None:
        self._nodes[target] = nodes
        self._nodes.move_to_end(target)
        if len(self._nodes) > _GRAPHS:
            self.slow.discard(self._nodes.popitem(last=False)[0])

    def stats(self) -> Mapping[str, Any]:
        """For `stats`: the bound, what came of it, and how good predictions were."""
        error = self._predictor.error()
        return {
            "max_batch_gpu_ms": self.bound_ns / 1e6,
            "batches_bounded": self.bounded,
            "slow_kernels": len(self.slow),
            "predictions": error["checked"],
            "mean_absolute_error": error["mean_absolute"],
            "bias": error["bias"],
        }


def target_of(row: Row) -> int:
    """What a row's time is known by: its pipeline, or a number for its graph that is none of a pipeline."""
    if row[ROW_OP] == GRAPH:
        return -id(row[ROW_TARGET].nodes)
    target: int = row[ROW_TARGET]
    return target


def _groups(row: Row) -> int:
    """The size that a row's time depends on: its work groups, at least 1; a graph's is always the same."""
    if row[ROW_OP] == GRAPH:
        return 1
    x, y, z = row[ROW_GRID]
    groups: int = x * y * z
    return max(groups, 1)
