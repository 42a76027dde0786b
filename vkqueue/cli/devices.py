"""`vkqueue devices`: which devices there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from vkqueue.cli.options import json_option, socket_option, spawn_option
from vkqueue.cli.output import add_row, dump, say, show, size, table

Device = Mapping[str, Any]

_SHOWN_LIMITS = (
    "maxComputeWorkGroupInvocations", "maxComputeWorkGroupSize", "maxComputeWorkGroupCount",
    "maxComputeSharedMemorySize", "maxPushConstantsSize", "maxStorageBufferRange", "minStorageBufferOffsetAlignment",
    "maxPushDescriptors", "subgroupSize",
)  # fmt: skip


def of_daemon(socket: str | None, spawn: bool) -> dict[str, Any]:
    """The daemon's devices: {server, devices}."""
    from vkqueue.client.sync import connect

    with connect(socket, spawn=spawn, client_name="vkqueue devices") as gpu:
        return {"server": gpu.server, "devices": [{**asdict(device), "error": None} for device in gpu.devices()]}


def of_machine() -> dict[str, Any]:
    """What the drivers have, asked in a process of their own: {status, message, devices, excluded}."""
    from vkqueue.cli.local import probe_devices

    found = probe_devices(os.environ)
    excluded = [{"manifest": path, "fault": fault} for path, fault in found.excluded]
    return {
        "status": found.status,
        "message": found.message,
        "devices": list(found.devices),
        "excluded": excluded,
    }


def show_devices(devices: Sequence[Device], title: str) -> None:
    """The table."""
    made = table(">index", "name", "type", "Vulkan", ">memory", "driver", "uuid", title=title)
    for device in devices:
        name = device["name"]
        if device["error"]:
            name = Text(f"{name}\ncannot be used: {device['error']}", style="red")
        add_row(
            made, device["index"], name, device["type"], device["api_version"], size(device["memory_bytes"]),
            device["driver"], device["uuid"],
        )  # fmt: skip
    show(made)


def show_details(device: Device) -> None:
    """Limits that matter to a kernel, and the features that it has."""
    limits = device["limits"]
    made = table("limit", ">value", title=f"{device['index']}: {device['name']}")
    for name in _SHOWN_LIMITS:
        if name in limits:
            value = limits[name]
            add_row(made, name, " x ".join(map(str, value)) if isinstance(value, Sequence) else value)
    show(made)
    say("features: " + (" ".join(name for name, present in device["features"].items() if present) or "none"))


@click.command(short_help="List the devices.")
@socket_option
@spawn_option
@click.option("--local", is_flag=True, help="Ask this machine's drivers, in a process of their own, and no daemon.")
@click.option("-v", "--verbose", is_flag=True, help="Limits and features too (--json has them all).")
@json_option
def command(socket: str | None, spawn: bool, local: bool, verbose: bool, as_json: bool) -> None:
    """List the devices of the daemon, or with --local those that the installed drivers have.

    A daemon may serve some of them only (its setting device.select), and numbers those from 0.

    Exit status: 0 if there is one that works, else 1.
    """
    if local and (socket or spawn):
        raise click.UsageError("--local asks no daemon; it does not go with --socket or --spawn")
    found = of_machine() if local else of_daemon(socket, spawn)
    devices = found["devices"]
    works = any(device["error"] is None for device in devices)
    if as_json:
        dump({"ok": works, **found})
    else:
        if devices:
            show_devices(devices, found.get("server", "this machine"))
        for device in devices if verbose else ():
            show_details(device)
        if found.get("message"):
            click.echo(f"vkqueue: {found['message']}", err=True)
        elif not works:
            click.echo("vkqueue: no device works; `vkqueue doctor` tells what is missing", err=True)
    sys.exit(0 if works else 1)
