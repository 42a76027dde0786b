"""What the daemon keeps of one version of a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.model_statistics import ModelStatistics
from vkqueue.errors import DeviceLostError, NotFoundError
from vkqueue.models.definition import Definition
from vkqueue.models.predict import Predictor
from vkqueue.models.source import ModelSource

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.model_serving import Serving

LOADING, READY, UNAVAILABLE, UNLOADING = "LOADING", "READY", "UNAVAILABLE", "UNLOADING"


class Version:
    """One version of a model.

    Attributes:
        source: what it is made from, kept so that it can be made again; None while it was never read.
        device: where it is, or is to be.
        lost: whether it is made again when its device works.
        leaving: what was served once all its requests are answered.
    """

    __slots__ = (
        "definition", "device", "leaving", "lost", "name", "number", "reason", "serving", "source", "state",
        "statistics",
    )  # fmt: skip

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.state = LOADING
        self.reason = ""
        self.source: ModelSource | None = None
        self.definition: Definition | None = None
        self.device: Device | None = None
        self.serving: Serving | None = None
        self.statistics = ModelStatistics()
        self.lost = False
        self.leaving: list[asyncio.Future[None]] = []

    def to_wire(self) -> dict[str, Any]:
        """As `model.list` has it."""
        found = {"name": self.name, "version": self.number, "state": self.state, "reason": self.reason}
        return found if self.device is None else {**found, "device": self.device.index}

    def statistics_to_wire(self) -> dict[str, Any]:
        """As `model.statistics` has it."""
        serving = self.serving
        return {
            "name": self.name,
            "version": self.number,
            "state": self.state,
            **self.statistics.to_map(),
            "queued": len(serving.batcher) if serving is not None else 0,
            "predicted_error": (serving.predictor if serving is not None else Predictor()).error(),
        }


class VersionTable:
    """Versions by name and number."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, Version]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._versions.values()))

    def all(self) -> list[Version]:
        """Every version, by name and number."""
        return [version for name in sorted(self._versions) for version in self.of(name)]

    def of(self, name: str) -> list[Version]:
        """The versions of a model, ascending."""
        versions = self._versions.get(name, {})
        return [versions[number] for number in sorted(versions)]

    def find(self, name: str, number: int) -> Version | None:
        """That very version."""
        return self._versions.get(name, {}).get(number)

    def put(self, version: Version) -> None:
        """Add it, or let it take the place of the one that has its number."""
        self._versions.setdefault(version.name, {})[version.number] = version

    def remove(self, version: Version) -> None:
        """Take out what has its number; nothing if there is none."""
        versions = self._versions.get(version.name, {})
        versions.pop(version.number, None)
        if not versions:
            self._versions.pop(version.name, None)

    def get(self, name: str, number: int | None) -> Version:
        """A version in whatever state; if None the newest that is ready, else the newest.

        Raises:
            NotFoundError
        """
        versions = self._versions.get(name)
        if not versions:
            there = ", ".join(sorted(self._versions)[:16]) or "none"
            raise NotFoundError(f"no model {name[:60]!r} is loaded; there are {there}")
        if number is None:
            ready = [version for version in versions.values() if version.serving is not None]
            return max(ready or versions.values(), key=lambda v: v.number)
        if number not in versions:
            have = ", ".join(map(str, sorted(versions)))
            raise NotFoundError(f"model {name!r} has no version {number}; it has {have}")
        return versions[number]

    def serving(self, name: str, number: int | None) -> Serving:
        """What takes the requests for a version: that number, or the newest that is ready.

        Raises:
            NotFoundError: there is none; the message says why.
            DeviceLostError: it is being made again.
        """
        version = self.get(name, number)
        if version.serving is not None:
            return version.serving
        if version.lost:
            raise DeviceLostError(f"model {name!r} is being loaded anew after its device was lost; try again later")
        why = f": {version.reason}" if version.reason else ""
        raise NotFoundError(f"model {name!r}, version {version.number} is {version.state}{why}")


__all__ = ["LOADING", "READY", "UNAVAILABLE", "UNLOADING", "Version", "VersionTable"]
