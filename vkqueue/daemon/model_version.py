"""What the daemon keeps of one version of a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.model_statistics import ModelStatistics
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
            **self.statistics.to_map(),
            "queued": len(serving.batcher) if serving is not None else 0,
            "predicted_error": (serving.predictor if serving is not None else Predictor()).error(),
        }


__all__ = ["LOADING", "READY", "UNAVAILABLE", "UNLOADING", "Version"]
