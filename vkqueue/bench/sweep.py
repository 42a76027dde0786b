"""Throughput and latency over depth (requests that a connection has under way) and connections, and a plot of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vkqueue.errors import UnsupportedError

DEPTHS = (1, 4, 16, 64, 256, 1024)

Load = Callable[..., dict[str, float]]
"""Runs the load generator: options in, figures out (`measure.Bench.load`)."""


def sweep(load: Load, *, clients: Sequence[int], seconds: float) -> list[dict[str, float]]:
    """One point for each number of connections and depth.

    Returns:
        {clients, depth, jobs_per_s, latency_us, jobs_per_batch}: the latency is the mean time of a job under way, by
        Little's law (connections times depth over throughput); at depth 1 of one connection it is the median measured.
    """
    points = []
    for count in clients:
        for depth in DEPTHS:
            if depth == 1 and count == 1:
                alone = load(clients=1, window=1, count=500)
                rate, latency, size = 1e6 / alone["p50_us"], alone["p50_us"], alone["jobs_per_batch"]
            else:
                # A window is sent in halves, so it has two at least.
                window = max(depth, 2)
                run = load(clients=count, window=window, seconds=seconds)
                rate, size = run["jobs_per_s"], run["jobs_per_batch"]
                latency = count * window / rate * 1e6
            points.append(
                {"clients": count, "depth": depth, "jobs_per_s": rate, "latency_us": latency, "jobs_per_batch": size}
            )
    return points


def plot(points: Sequence[dict[str, float]], limits: dict[str, float], title: str, path: Path) -> None:
    """Write a PNG: throughput over depth, and latency over throughput, a line for each number of connections.

    Args:
        limits: "jobs_per_s" and "round_trip_us" of the C loop, where they are known.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("the plot needs matplotlib (pip install 'vkqueue[plot]')") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    rate, latency = axes
    for count in sorted({point["clients"] for point in points}):
        line = [point for point in points if point["clients"] == count]
        label = f"{count:.0f} client" + ("s" if count > 1 else "")
        rate.plot([p["depth"] for p in line], [p["jobs_per_s"] for p in line], marker="o", label=label)
        latency.plot([p["jobs_per_s"] for p in line], [p["latency_us"] for p in line], marker="o", label=label)
    if "jobs_per_s" in limits:
        rate.axhline(limits["jobs_per_s"], color="gray", linestyle="--", label="C loop, batches of 256")
    if "round_trip_us" in limits:
        latency.axhline(limits["round_trip_us"], color="gray", linestyle="--", label="C loop, one at a time")
    rate.set(xscale="log", yscale="log", xlabel="requests under way per client", ylabel="jobs/s")
    latency.set(xscale="log", yscale="log", xlabel="jobs/s", ylabel="latency of a job (µs)")
    for axis in axes:
        axis.grid(True, which="both", alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
