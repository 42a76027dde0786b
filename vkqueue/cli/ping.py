"""`vkqueue ping`: whether the daemon answers, and how fast."""

from __future__ import annotations

import statistics
import time

import click

from vkqueue.cli.options import json_option, socket_option, spawn_option
from vkqueue.cli.output import dump, say


@click.command(short_help="Whether the daemon answers, and how fast.")
@socket_option
@spawn_option
@click.option("--count", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Round trips.")
@json_option
def command(socket: str | None, spawn: bool, count: int, as_json: bool) -> None:
    """Connect to the daemon, and measure round trips of an empty request.

    Exit status: 0 if it answers, else 1.
    """
    from vkqueue.client.sync import connect

    started = time.perf_counter_ns()
    with connect(socket, spawn=spawn, client_name="vkqueue ping") as gpu:
        connected = time.perf_counter_ns() - started
        trips = []
        for _ in range(count):
            started = time.perf_counter_ns()
            gpu.ping()
            trips.append(time.perf_counter_ns() - started)
        least, middle, most = (round(ns / 1000, 1) for ns in (min(trips), statistics.median(trips), max(trips)))
        if as_json:
            report = {"ok": True, "server": gpu.server, "connect_us": round(connected / 1000, 1), "count": count}
            dump({**report, "min_us": least, "median_us": middle, "max_us": most})
        else:
            where = "no device" if gpu.device is None else f"device {gpu.device.index}: {gpu.device.name}"
            say(f"{gpu.server} answers ({where}); connected in {connected / 1e6:.1f} ms")
            say(f"{count} round trips: {least} µs at least, {middle} µs in the middle, {most} µs at most")
