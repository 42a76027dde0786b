"""`vkqueue stats`: what the daemon has done, and with `--watch` what it is doing."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from vkqueue.cli.options import json_option, socket_option
from vkqueue.cli.output import add_row, console, dump, show, size, table

Stats = Mapping[str, Any]

RATES = ("jobs_completed", "jobs_failed", "batches", "submits")
"""Counters whose growth is shown."""


def rates(before: Stats, after: Stats, seconds: float) -> dict[str, float]:
    """How much each counter grew per second; 0 for one that a restarted daemon counts anew."""
    return {key: max(after.get(key, 0) - before.get(key, 0), 0) / max(seconds, 1e-9) for key in RATES}


def overview(stats: Stats, growth: Stats | None) -> Table:
    """The whole daemon; with `growth` what each counter grows by."""
    made = table("daemon", ">value", *([">per second"] if growth is not None else []))
    for key, value in stats.items():
        if isinstance(value, (list, dict)):
            continue
        grown = [f"{growth[key]:,.0f}" if key in growth else ""] if growth is not None else []
        add_row(made, *_in_words(key, value), *grown)
    return made


def _in_words(key: str, value: Any) -> tuple[str, str]:
    name, _, unit = key.rpartition("_")
    if unit == "bytes":
        return name.replace("_", " "), size(value)
    if unit == "s":
        return name.replace("_", " "), f"{value:,.1f} s"
    return key.replace("_", " "), f"{value:,}"


def per_device(stats: Stats, before: Stats | None, seconds: float) -> Table:
    """A line for each device."""
    growing = [">jobs/s", ">jobs/batch now"] if before is not None else []
    made = table(
        ">device", "state", ">clients", ">buffers", ">memory", ">queued", ">completed", ">failed", ">batches",
        ">jobs/batch", *growing, "batches closed by",
    )  # fmt: skip
    olds = before["devices"] if before is not None else []
    for device, old in itertools.zip_longest(stats["devices"], olds):
        if device is None:
            break
        closed = ", ".join(f"{reason} {count:,}" for reason, count in device.get("closed", {}).items() if count)
        grown = []
        if before is not None:
            growth = rates(old or {}, device, seconds)
            grown = [f"{growth['jobs_completed']:,.0f}", _ratio(growth["jobs_completed"], growth["batches"])]
        add_row(
            made, device.get("index", ""), "works" if device.get("working", True) else "does not work",
            *(f"{device.get(key, 0):,}" for key in ("clients", "buffers")), size(device.get("memory_bytes", 0)),
            *(f"{device.get(key, 0):,}" for key in ("jobs_queued", "jobs_completed", "jobs_failed", "batches")),
            _ratio(device.get("jobs_completed", 0), device.get("batches", 0)), *grown, closed,
        )  # fmt: skip
    return made


def _ratio(jobs: float, batches: float) -> str:
    return f"{jobs / batches:.1f}" if batches else ""


@click.command(short_help="What the daemon has done, and does.")
@socket_option
@click.option("--watch", type=click.FloatRange(0.05), metavar="SECONDS", help="Show it again and again, with rates.")
@click.option("--count", type=click.IntRange(1), help="With --watch: how often; else until Ctrl-C.")
@json_option
def command(socket: str | None, watch: float | None, count: int | None, as_json: bool) -> None:
    """Counters of the daemon: clients, memory, jobs, batches and why they were closed.

    With --watch and --json there is a line of JSON each time.
    """
    from vkqueue.client.sync import connect

    if count is not None and watch is None:
        raise click.UsageError("--count goes with --watch")
    with connect(socket, client_name="vkqueue stats") as gpu:
        if watch is None:
            stats = gpu.stats()
            if as_json:
                dump({"ok": True, "server": gpu.server, **stats})
            else:
                show(overview(stats, None))
                if stats.get("devices"):
                    show(per_device(stats, None, 1))
            return
        turns = range(count) if count is not None else itertools.count()
        try:
            if as_json:
                for turn in turns:
                    time.sleep(watch if turn else 0)
                    click.echo(json.dumps(gpu.stats()))
            else:
                _watch(gpu.stats, turns, watch)
        except KeyboardInterrupt:
            pass  # how it is ended


def _watch(read: Any, turns: Any, seconds: float) -> None:
    screen = console()
    before, then = read(), time.monotonic()
    with contextlib.ExitStack() as stack:
        # One picture that changes, where there is a terminal; else one after the other.
        live = stack.enter_context(Live(console=screen, auto_refresh=False)) if screen.is_terminal else None
        for _ in turns:
            time.sleep(seconds)
            after, now = read(), time.monotonic()
            parts = [overview(after, rates(before, after, now - then))]
            if after.get("devices"):
                parts.append(per_device(after, before, now - then))
            if live is not None:
                live.update(Group(*parts), refresh=True)
            else:
                screen.print(*parts)
            before, then = after, now
