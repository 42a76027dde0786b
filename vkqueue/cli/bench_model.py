"""`vkqueue bench model`: a model under load from more and more clients, with its batcher and without."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from vkqueue.bench import model as bench
from vkqueue.bench.model_inputs import Wanted
from vkqueue.cli.own_daemon import Host, hosted
from vkqueue.errors import InvalidError

N = TypeVar("N", int, float)

# A process that makes load answers for tens of thousands of requests a second. Arbitrary.
_CORES_EACH = 4


def counts(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Numbers of clients."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= 1000 for word in words):
        raise click.BadParameter(f"expected numbers from 1 to 1000 such as 1,4,16, got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))


def _ranges(number: Callable[[str], N], example: str) -> Callable[..., dict[str, tuple[N, N]]]:
    def read(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> dict[str, tuple[N, N]]:
        found = {}
        for text in given:
            name, _, span = text.partition("=")
            low, colon, high = span.partition(":")
            try:
                found[name] = first, last = number(low), number(high if colon else low)
            except ValueError:
                raise click.BadParameter(f"expected NAME=LOW:HIGH such as {example}, got {text!r}") from None
            if not name or not first <= last:
                raise click.BadParameter(f"expected NAME=LOW:HIGH such as {example}, got {text!r}")
        return found

    return read


def show(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    console.print(f"{report['model']} on {report['device']}, {report['cores']} cores")
    table = Table(title=f"Medians of {report['repeats']}", title_justify="left")
    headings = ("clients", "samples/s", "p50 ms", "p95", "p99", "batch", "errors")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    kinds = report["measured"]
    for number in range(len(report["clients"])):
        for kind, points in kinds.items():
            point = points[number]
            times = [f"{point[f'p{quantile}_us'] / 1000:,.2f}" for quantile in bench.QUANTILES]
            cells = (f"{point['clients']}", f"{point['samples_per_s']:,.0f}", *times)
            table.add_row(kind, *cells, f"{point['samples_per_batch']:.1f}", f"{point['errors'] or ''}")
    console.print(table)
    for kind, points in kinds.items():
        console.print(f"Batches with {points[-1]['clients']} clients, {kind}: {_sizes(points[-1])}", soft_wrap=True)


def _sizes(point: Mapping[str, Any]) -> str:
    sizes = sorted((int(size), count) for size, count in point["batch_sizes"].items())
    closed = ", ".join(f"{reason} {count:,}" for reason, count in point["closed"].items())
    return ", ".join(f"{count:,} of {size}" for size, count in sizes) + f" (closed: {closed})"


def _measured(
    name: str, host: Host, device: int | None, version: int | None, options: dict[str, Any], load: dict[str, Any]
) -> dict[str, Any]:
    with host.connect(device) as gpu:
        assert gpu.device is not None  # `connect` sees to it

        def run(model: str, clients: int) -> bench.Point:
            return bench.measure(gpu, host.path, model, None if folder else version, clients=clients, **load)

        folder = "/" in name or name in (".", "..")
        if folder:
            with bench.both(gpu, Path(name), version, device) as models:
                measured = bench.compare(models, run, **options)
        else:
            measured = bench.compare({"as configured": name}, run, **options)
        return {"model": name, "device": gpu.device.name, "measured": measured}


@click.command(short_help="Measure a model, with its batcher and without.")
@click.argument("name", metavar="FOLDER|NAME")
@click.option("--version", type=click.IntRange(1), metavar="NUMBER", help="Else the latest.")
@click.option("--socket", metavar="PATH", help="Use the daemon that listens there, not one of the bench's own.")
@click.option("--device", type=click.IntRange(0), metavar="INDEX", help="Index at the daemon.")
@click.option(
    "--clients", default="1,2,4,8,16,32,64", show_default=True, callback=counts, help="Numbers of connections."
)
@click.option("--seconds", type=click.FloatRange(0.05), default=3.0, show_default=True, help="Of each run.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Medians are of so many.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Of each request.")
@click.option(
    "--dimension", "dimensions", multiple=True, metavar="NAME=LOW:HIGH", callback=_ranges(int, "seq=16:64"),
    help="Sizes that requests draw from; else all that the model allows.",
)  # fmt: skip
@click.option(
    "--values", multiple=True, metavar="INPUT=LOW:HIGH", callback=_ranges(float, "input_ids=0:30000"),
    help="Values that an input draws from; else integers from 0 to 99, and numbers from -1 to 1.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(exists=True, dir_okay=False), default=None, metavar="FILE.npz",
    help="Take samples from this file, an array for each input.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--processes", type=click.IntRange(1), help="That make the load; else one for every four cores, to leave some over."
)
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw it to this PNG (needs matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def command(
    name: str,
    version: int | None,
    socket: str | None,
    device: int | None,
    clients: tuple[int, ...],
    seconds: float,
    repeats: int,
    samples: int,
    dimensions: dict[str, tuple[int, int]],
    values: dict[str, tuple[float, float]],
    data: str | None,
    seed: int,
    processes: int | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Measure a model under load: throughput, latencies and sizes of batches, over more and more clients, each of which
    sends a request when it has the answer to the one before.

    The model in a FOLDER (a path with a "/", such as ./minilm) is loaded twice: as it is, and without its dynamic
    batcher, so that requests run one by one. With NAME, and --socket, it is one that a daemon has, as it is configured.
    """
    console = Console(stderr=as_json, highlight=False)
    if socket is None and "/" not in name and name not in (".", ".."):
        raise InvalidError(
            f"{name!r} is the name of a model that a daemon has: say which daemon by --socket, or give a folder, such "
            f"as ./{name}"
        )
    wanted = Wanted(samples, dimensions, values, os.path.abspath(data) if data else "", seed)
    load = {
        "wanted": wanted,
        "processes": processes or max((os.cpu_count() or 1) // _CORES_EACH, 1),
        "seconds": seconds,
    }
    options = {"clients": clients, "repeats": repeats, "say": lambda text: console.print(text, style="dim")}
    with hosted(socket) as host:
        measured = _measured(name, host, device, version, options, load)
    report = {**measured, "clients": clients, "seconds": seconds, "repeats": repeats, "cores": os.cpu_count()}
    if plot:
        bench.plot(report["measured"], f"{name} on {report['device']}", Path(plot))
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report, console)
