"""A model under load, with its dynamic batcher and without: throughput, latencies, sizes of batches."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from vkqueue.bench import child
from vkqueue.bench.model_inputs import Wanted
from vkqueue.client.model_source import plan
from vkqueue.client.sync import Client
from vkqueue.client.sync_models import send
from vkqueue.errors import InternalError, UnsupportedError

_WARM_UP = 5
"""Before each run there is one of its time divided by this, which is not counted. Arbitrary."""
QUANTILES = (50, 95, 99)

Point = dict[str, Any]
"""What was measured of a model under so many `clients`: `requests_per_s`, `samples_per_s`, latencies from sending to
the answer (`p50_us`, `p95_us`, `p99_us`), `samples_per_batch`; and counted, of the daemon's batches `batch_sizes` (by
samples) and `closed` (by reason), of requests `errors`."""
Say = Callable[[str], None]
"""Gets a line on what is being measured."""


class Generators:
    """Processes that put load on a model; a client is a connection of one of them.

    Args:
        clients: in all, shared out evenly.
        processes: at most; each costs memory and has to be on a core to be of use.

    Raises:
        InternalError: when entered: one does not start; says why.
    """

    def __init__(
        self, path: str, model: str, version: int | None, *, wanted: Wanted, clients: int, processes: int
    ) -> None:
        count = min(clients, processes)
        shares = [clients // count + (number < clients % count) for number in range(count)]
        self._children = [
            subprocess.Popen(
                child.command(
                    "vkqueue.bench.model_load",
                    path,
                    json.dumps(
                        {
                            "model": model,
                            "version": version,
                            "clients": share,
                            "wanted": asdict(replace(wanted, seed=wanted.seed + number)),
                        }
                    ),
                ),
                env=child.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, share in enumerate(shares)
        ]

    def __enter__(self) -> Generators:
        try:
            for process in self._children:
                self._line(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._children:
            process.kill()
            process.communicate()

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """All of them at once, for so long; see `model_load.run`."""
        for process in self._children:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return [json.loads(self._line(process)) for process in self._children]

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            last = process.stderr.read().strip().splitlines()[-1:]
            raise InternalError(f"a process that makes load ended: {''.join(last) or 'without a word'}")
        return line


def measure(
    gpu: Client,
    path: str,
    model: str,
    version: int | None,
    *,
    wanted: Wanted,
    clients: int,
    processes: int,
    seconds: float,
) -> Point:
    """One run of so many clients, each with one request under way.

    Args:
        version: else the latest that is ready now; all requests go to that one, and all figures are its own.

    Raises:
        InternalError: no request succeeded; says what the daemon says.
    """
    version = gpu.model(model, version).config["version"]
    with Generators(path, model, version, wanted=wanted, clients=clients, processes=processes) as generators:
        generators.run(seconds / _WARM_UP)
        [before] = gpu.model_statistics(model, version)
        runs = generators.run(seconds)
        [after] = gpu.model_statistics(model, version)
    latencies = [latency for run in runs for latency in run["latencies_us"]]
    errors = {code: error for run in runs for code, error in run["errors"].items()}
    if not latencies:
        said = "; ".join(f"{code}: {message}" for code, (_, message) in errors.items())
        raise InternalError(f"no request to the model {model!r} succeeded: {said}")
    rate = len(latencies) / max(run["seconds"] for run in runs)
    sizes = _grown(before["batch_sizes"], after["batch_sizes"])
    batches = sum(sizes.values())
    return {
        "clients": clients,
        "requests_per_s": rate,
        "samples_per_s": rate * wanted.samples,
        **{f"p{q}_us": float(value) for q, value in zip(QUANTILES, np.percentile(latencies, QUANTILES), strict=True)},
        "samples_per_batch": sum(int(size) * count for size, count in sizes.items()) / max(batches, 1),
        "batch_sizes": sizes,
        "closed": _grown(before["closed"], after["closed"]),
        "errors": sum(count for run in runs for count, _ in run["errors"].values()),
    }


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    grown = {key: count - before.get(key, 0) for key, count in after.items()}
    return {key: count for key, count in grown.items() if count}


def median(points: Sequence[Point]) -> Point:
    """Of several runs of the same: the median of each figure, and the sums of what is counted."""
    found = dict(points[0])
    for key, value in points[0].items():
        if isinstance(value, dict):
            found[key] = {
                name: sum(point[key].get(name, 0) for point in points) for point in points for name in point[key]
            }
        elif key == "errors":
            found[key] = sum(point[key] for point in points)
        elif key != "clients":
            found[key] = statistics.median(point[key] for point in points)
    return found


@contextlib.contextmanager
def both(gpu: Client, folder: Path, version: int | None, device: int | None) -> Iterator[dict[str, str]]:
    """Load a folder's model twice, as it is and without its batcher, for as long as this lasts.

    Returns:
        "batched" and "unbatched" → the names that they have at the daemon. A model without a batch dimension has only
        the second, one that has no `dynamic_batching` the batcher's defaults.

    Raises:
        VkqueueError: the folder is wrong, or does not load.
    """
    loaded: dict[str, str] = {}
    try:
        for kind in ("batched", "unbatched"):
            ready = plan(folder, None, None, None, version, device, gpu.core.payload)
            config = dict(ready.params["config"])
            if kind == "unbatched":
                config.pop("dynamic_batching", None)
            elif config.get("max_batch_size"):
                config.setdefault("dynamic_batching", {})
            else:
                continue
            name = f"bench-{os.getpid()}-{config.get('name', folder.name)}-{len(loaded)}"
            ready.params |= {"name": name, "config": {**config, "name": name}}
            send(gpu, ready, device)
            loaded[kind] = name
        yield loaded
    finally:
        for name in loaded.values():
            gpu.unload_model(name)


def compare(
    models: Mapping[str, str],
    run: Callable[[str, int], Point],
    *,
    clients: Sequence[int],
    repeats: int,
    say: Say,
) -> dict[str, list[Point]]:
    """Each model under each number of clients, by turns since a machine's speed drifts.

    Args:
        models: what they are called in the report → their names at the daemon.
        run: measures a model under so many clients.
    """
    report: dict[str, list[Point]] = {kind: [] for kind in models}
    for count in clients:
        runs: dict[str, list[Point]] = {kind: [] for kind in models}
        for number in range(repeats):
            for kind, name in models.items():
                say(f"{kind}, {count} client{'s' if count > 1 else ''}, run {number + 1} of {repeats}")
                runs[kind].append(run(name, count))
        for kind in models:
            report[kind].append(median(runs[kind]))
    return report


def plot(report: Mapping[str, Sequence[Point]], title: str, path: Path) -> None:
    """Write a PNG: throughput and latencies over clients, and sizes of batches with the most of them.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("the plot needs matplotlib (pip install 'vkqueue[plot]')") from None
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    rate, latency, sizes = axes
    for number, (kind, points) in enumerate(report.items()):
        color = f"C{number}"
        clients = [point["clients"] for point in points]
        rate.plot(clients, [point["samples_per_s"] for point in points], marker="o", color=color, label=kind)
        for quantile, style in zip(QUANTILES, ("-", "--", ":"), strict=True):
            times = [point[f"p{quantile}_us"] / 1000 for point in points]
            latency.plot(clients, times, style, marker="o", color=color, label=f"{kind}, p{quantile}")
        counts = {int(size): count for size, count in points[-1]["batch_sizes"].items()}
        shift = 0.4 * number - 0.2 * (len(report) - 1)
        sizes.bar([size + shift for size in counts], list(counts.values()), 0.4, color=color, label=kind)
    rate.set(xscale="log", yscale="log", xlabel="clients", ylabel="samples/s")
    latency.set(xscale="log", yscale="log", xlabel="clients", ylabel="latency (ms)")
    most = max(point["clients"] for points in report.values() for point in points)
    sizes.set(yscale="log", xlabel=f"samples of a batch, with {most} clients", ylabel="batches")
    for axis in (rate, latency):
        axis.set_xticks(clients, labels=map(str, clients))
        axis.minorticks_off()
    for axis in axes:
        axis.grid(True, which="both", alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
