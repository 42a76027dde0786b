"""How long launches take, as far as it is known, so that parts of many launches hold the device for a bounded time.

Learned from finished batches, for each pipeline and order of magnitude of the grid: quickly when launches turn out to
take longer, slowly when they take less.
"""

from __future__ import annotations

from collections import OrderedDict

PART_NS = 10_000_000
"""Time of launches of MANY rows in one batch. Arbitrary: what other connections' jobs have to wait for, and next to
which a batch's own cost is small."""

# Launches of an unknown kernel: as many in a batch as single jobs are by default.
_UNKNOWN_NS = PART_NS // 256
# Of any: about what it takes to record one.
_LEAST_NS = PART_NS // 4096
# Pipelines and grids that are remembered; arbitrary.
_MOST = 4096


class Pace:
    """What is known of a device."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], int] = OrderedDict()

    def launch_ns(self, pipeline: int, groups: int) -> int:
        """What to reckon with for one launch of a pipeline over so many work groups; at least 1."""
        return self._known.get((pipeline, groups.bit_length()), _UNKNOWN_NS)

    def took(self, pipeline: int, groups: int, ns: int) -> None:
        """A launch took so long on average, in a batch of several."""
        key = (pipeline, groups.bit_length())
        known = self._known.pop(key, _UNKNOWN_NS)
        self._known[key] = max(ns, known - known // 8, _LEAST_NS)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
