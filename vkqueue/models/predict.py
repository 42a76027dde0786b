"""How long batches take on the device, as far as it is known: for each group and size, learned from timestamps.

What was measured for a size is an average in which newer batches weigh more. Between known sizes time is taken to grow
along a line, above and below them along the one fitted to all of them: a share for the batch and one for each sample.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable

# All arbitrary.
_WEIGHT = 1 / 8  # of the newest measurement in an average
_FAR = 4  # times the average: a measurement further from it counts as that
_TRUSTED = 3  # measurements of a size before they bound the next one so
_FORGET = 64  # batches of a group after which a size not seen among them is unknown again
_GROUPS = 1024  # that are remembered


class _Size:
    __slots__ = ("count", "seen", "us")

    def __init__(self) -> None:
        self.us = 0.0
        self.count = 0
        self.seen = 0  # the group's batch that was the last of this size

    def learn(self, us: float, batch: int) -> None:
        if self.count >= _TRUSTED:
            us = min(max(us, self.us / _FAR), self.us * _FAR)
        self.count += 1
        self.us += (us - self.us) * max(1 / self.count, _WEIGHT)
        self.seen = batch


class _Curve:
    """Times of one group, by samples."""

    __slots__ = ("_base", "_batches", "_fitted", "_slope", "sizes", "times")

    def __init__(self) -> None:
        self.times: dict[int, _Size] = {}
        self.sizes: list[int] = []  # keys of `times`, rising
        self._batches = 0
        self._base = self._slope = 0.0
        self._fitted = False

    def learn(self, samples: int, us: float) -> None:
        self._batches += 1
        known = self.times.get(samples)
        if known is None:
            known = self.times[samples] = _Size()
            insort(self.sizes, samples)
        known.learn(us, self._batches)
        # Else a size that seems to take too long would never be tried, and so never be found to take less by now.
        old = [size for size in self.sizes if self.times[size].seen <= self._batches - _FORGET]
        for size in old:
            del self.times[size]
        if old:
            self.sizes = [size for size in self.sizes if size in self.times]
        self._fitted = False

    def _fit(self) -> None:
        """Least squares over the known sizes; neither share is below 0."""
        self._fitted = True
        count = len(self.sizes)
        mean_n = sum(self.sizes) / count
        mean_us = sum(known.us for known in self.times.values()) / count
        spread = sum((n - mean_n) ** 2 for n in self.sizes)
        if spread:
            slope = sum((n - mean_n) * (self.times[n].us - mean_us) for n in self.sizes) / spread
            self._slope = min(max(slope, 0.0), mean_us / mean_n)
        else:  # one size: all of it for the samples, so that more of them are not taken to be free
            self._slope = mean_us / mean_n
        self._base = mean_us - self._slope * mean_n

    def predict(self, samples: int) -> float:
        known = self.times.get(samples)
        if known is not None:
            return known.us
        if not self._fitted:
            self._fit()
        place = bisect_left(self.sizes, samples)
        if place == len(self.sizes):
            return self.times[self.sizes[-1]].us + self._slope * (samples - self.sizes[-1])
        above = self.sizes[place]
        high = self.times[above].us
        if place == 0:
            return min(self._base + self._slope * samples, high)
        below = self.sizes[place - 1]
        low = self.times[below].us
        return low + (high - low) * (samples - below) / (above - below)

    def most(self, limit_us: float, largest: int) -> int:
        """The first size whose next one is thought to take longer."""
        size = 0
        for known in self.sizes:
            if known >= largest:
                break
            if self.times[known].us > limit_us:
                return self._last(size, known, limit_us)
            size = known
        return self._last(size, largest + 1, limit_us)

    def _last(self, within: int, over: int, limit_us: float) -> int:
        """Of the sizes from `within` up to `over`, which is too large, the last that is not; times rise or fall along
        one line between them."""
        while over - within > 1:
            middle = (within + over) // 2
            if self.predict(middle) > limit_us:
                over = middle
            else:
                within = middle
        return within


class Predictor:
    """What is known of one model on one device.

    Attributes:
        checked: batches whose time was known beforehand from others.
    """

    def __init__(self) -> None:
        self._curves: OrderedDict[Hashable, _Curve] = OrderedDict()
        self.checked = 0
        self._absolute = 0.0
        self._signed = 0.0

    def learn(self, group: Hashable, samples: int, device_us: float) -> None:
        """A batch of so many samples took so long. Nothing is learned from a time that is not above 0."""
        if device_us <= 0:
            return
        predicted = self.predict(group, samples)
        if predicted is not None:
            error = (predicted - device_us) / device_us
            self.checked += 1
            self._absolute += abs(error)
            self._signed += error
        curve = self._curves.get(group)
        if curve is None:
            curve = self._curves[group] = _Curve()
            if len(self._curves) > _GROUPS:
                self._curves.popitem(last=False)
        self._curves.move_to_end(group)
        curve.learn(samples, device_us)

    def predict(self, group: Hashable, samples: int) -> float | None:
        """Microseconds that a batch is thought to take; None for a group of which nothing is known."""
        curve = self._curves.get(group)
        return curve.predict(samples) if curve is not None else None

    def most(self, group: Hashable, limit_us: float, largest: int) -> int:
        """Samples up to `largest` that a batch may have to take no longer than `limit_us`; at least 1."""
        curve = self._curves.get(group)
        return max(curve.most(limit_us, largest), 1) if curve is not None else largest

    def longest(self, group: Hashable) -> float | None:
        """Microseconds of the size that takes longest of those known; None for a group of which nothing is."""
        curve = self._curves.get(group)
        return max(known.us for known in curve.times.values()) if curve is not None else None

    def error(self) -> dict[str, float]:
        """How far predictions were off, relative to what was measured after them.

        Returns:
            checked: predictions; mean_absolute: of the errors' sizes; bias: of the errors, above 0 where predictions
            were too long. All 0 before the first.
        """
        count = max(self.checked, 1)
        return {"checked": self.checked, "mean_absolute": self._absolute / count, "bias": self._signed / count}
