"""What a device's threads tell the loop, beside the answers to batches and pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from vkqueue.errors import DeviceLostError, VkqueueError
from vkqueue.model import Completion, DeviceInfo, PipelineBuilt


@dataclass(frozen=True, slots=True)
class Opened:
    """The device works. The first event of a DeviceThread, unless it is Failed."""

    info: DeviceInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """The device could not be opened; no other event but Stopped follows, and everything posted is refused."""

    error: VkqueueError


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """The device is lost. Comes once, before the completions that it spoils; the threads then take no work,
    and answer what is posted with the error, until they are stopped. Go on with a new DeviceThread."""

    error: DeviceLostError


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event, but for the answer to a build that was abandoned.

    Attributes:
        clean: everything on the device is freed. If not, a wait or a build was abandoned, and the objects of
            this device are left for the end of the process to free.
    """

    clean: bool


Event: TypeAlias = Opened | Failed | Completion | PipelineBuilt | DeviceLost | Stopped
