"""Which of the devices that were found the daemon uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkqueue.config import ConfigError


def select_devices(wanted: Sequence[int | str], found: Sequence[Mapping[str, Any]]) -> list[int]:
    """Indices of the devices to open, in the order of `wanted`, each once.

    Args:
        wanted: as `DeviceConfig.select`.
        found: devices as the probe describes them: index, uuid, name, type, and error, why it cannot be opened.

    Raises:
        ConfigError: something in `wanted` is none of the devices, or is one that cannot be opened.
    """
    usable = [device for device in found if device.get("error") is None]
    if tuple(wanted) == ("all",):
        return [device["index"] for device in usable]
    if tuple(wanted) == ("auto",):
        hardware = [device for device in usable if device["type"] != "cpu"]
        return [device["index"] for device in hardware or usable]
    chosen: dict[int, None] = {}
    problems: list[str] = []
    for item in wanted:
        matching = [device for device in found if _matches(item, device)]
        if not matching:
            there = ", ".join(f"{device['index']}: {device['name']}" for device in found) or "none"
            problems.append(f"device.select: {item!r} is none of the devices found ({there})")
        for device in matching:
            if device.get("error") is not None:
                problems.append(f"device.select: {item!r}, which is {device['name']}, does not open: {device['error']}")
            chosen[device["index"]] = None
    if problems:
        raise ConfigError("settings", problems)
    return list(chosen)


def _matches(item: int | str, device: Mapping[str, Any]) -> bool:
    if isinstance(item, int):
        return bool(device["index"] == item)
    text = item.lower()
    return text.replace("-", "") == device["uuid"].replace("-", "").lower() or text in device["name"].lower()
