"""What a job costs when there are many clients, or many buffers: jobs per second and the daemon's CPU time per job,
with windows of one size kept full by 1 and by 1,000 connections, and by one connection over 10 and 10,000 buffers.

Connections are compared at the same window each, so that each brings bursts of the same size.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

CLIENTS = (1, 1000)
BUFFERS = (10, 10_000)
CLIENT_WINDOW = 16
"""Launches under way on each connection where connections are compared."""
_BUFFER_WINDOW = 1024

Load = Callable[..., dict[str, float]]


def compare(load: Load, *, repeats: int, seconds: float) -> dict[str, Any]:
    """Medians over `repeats` of jobs per second and CPU microseconds per job, and the ratios of what a job costs with
    many to what it costs with few: `clients`, `buffers` of CPU time (where it is known), `…_time` of time.

    Args:
        load: one run of the load generator, see `measure.Bench`.
    """
    samples: dict[str, list[float]] = {}
    for _ in range(repeats):
        for count in CLIENTS:
            _note(samples, f"clients_{count}", load(clients=count, window=CLIENT_WINDOW, buffers=4, seconds=seconds))
        for count in BUFFERS:
            _note(samples, f"buffers_{count}", load(clients=1, window=_BUFFER_WINDOW, buffers=count, seconds=seconds))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {}
    for what, (few, many) in (("clients", CLIENTS), ("buffers", BUFFERS)):
        ratios[f"{what}_time"] = medians[f"{what}_{few}_jobs_per_s"] / medians[f"{what}_{many}_jobs_per_s"]
        name = "cpu_us_per_job"
        if f"{what}_{few}_{name}" in medians:
            ratios[what] = medians[f"{what}_{many}_{name}"] / medians[f"{what}_{few}_{name}"]
    return {"medians": medians, "ratios": ratios, "samples": samples}


def _note(samples: dict[str, list[float]], what: str, result: dict[str, float]) -> None:
    for name in ("jobs_per_s", "cpu_us_per_job", "front_cpu_us_per_job", "jobs_per_batch"):
        if name in result:
            samples.setdefault(f"{what}_{name}", []).append(result[name])
