"""What the daemon says of itself and its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What the daemon grants this connection.

    Attributes:
        max_message_bytes: of one message; larger transfers are split by the client.
        max_queued_jobs: launches and transfers under way; the client holds back what is over it.
        max_many_launches: of one `kernel.many`; 0 if the daemon is older than that.
    """

    max_message_bytes: int
    max_buffers: int
    max_memory_bytes: int
    max_queued_jobs: int
    max_many_launches: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """A Vulkan device of the daemon's; `limits` and `features` go by Vulkan's own names."""

    index: int
    uuid: str
    name: str
    type: str
    driver: str
    api_version: str
    memory_bytes: int
    limits: Mapping[str, Any]
    features: Mapping[str, bool]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Device:
        return cls(**{name: wire[name] for name in cls.__slots__})

    def __repr__(self) -> str:
        return f"<Device {self.index}: {self.name} ({self.type}, Vulkan {self.api_version})>"


@dataclass(frozen=True, slots=True)
class Hello:
    """The daemon's answer to `hello`.

    Attributes:
        server: name and version.
        device: index of this connection's device, None without any.
    """

    server: str
    session: int
    device: int | None
    devices: tuple[Device, ...]
    limits: Limits

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Hello:
        limits = wire["limits"]
        return cls(
            server=wire["server"],
            session=wire["session"],
            device=wire.get("device"),
            devices=tuple(Device.from_wire(d) for d in wire["devices"]),
            limits=Limits(**{name: limits[name] for name in Limits.__slots__ if name in limits}),
        )

    @property
    def own_device(self) -> Device | None:
        """The connection's device."""
        return next((d for d in self.devices if d.index == self.device), None)
