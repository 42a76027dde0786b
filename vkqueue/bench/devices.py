"""Two devices beside one: long kernels from two clients, each on a device of its own, or one client on one device."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vkqueue.bench.scale import Load

ELEMENTS = 1 << 24
"""Of an axpy: 192 MiB to and from memory, so some 50 us on an H200 and 20 ms on two cores."""
_WINDOW = 32


def compare(load: Load, devices: tuple[int, int], *, repeats: int, seconds: float) -> dict[str, Any]:
    """Medians over `repeats` of launches per second on the first device and on both at once, and their ratio.

    Args:
        load: one run of the load generator, see `measure.Bench`.
        devices: indices at the daemon.
    """
    one: list[float] = []
    two: list[float] = []

    def run(device: int) -> float:
        result = load(clients=1, window=_WINDOW, independent=False, elements=ELEMENTS, seconds=seconds, device=device)
        return result["jobs_per_s"]

    with ThreadPoolExecutor(2) as pool:
        for _ in range(repeats):
            one.append(run(devices[0]))
            two.append(sum(pool.map(run, devices)))
    medians = {"one_jobs_per_s": statistics.median(one), "two_jobs_per_s": statistics.median(two)}
    return {"medians": medians, "ratio": medians["two_jobs_per_s"] / medians["one_jobs_per_s"]}
