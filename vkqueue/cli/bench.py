"""`vkqueue bench`: the daemon beside a C loop on the same device, and beside bare copies through a socket."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from vkqueue.bench import devices, scale, sharing
from vkqueue.bench.graphs import GraphBench
from vkqueue.bench.limit import CopyLimit, Limit
from vkqueue.bench.many import FORMS, compare
from vkqueue.bench.measure import KINDS, Bench
from vkqueue.bench.sharing import WAYS
from vkqueue.bench.window import DEPTHS
from vkqueue.cli import bench_model
from vkqueue.cli.bench_model import counts
from vkqueue.cli.demo_client import kernel_bytes
from vkqueue.cli.own_daemon import Host, hosted
from vkqueue.errors import UnsupportedError

MANY = 4096
"""Launches of one dispatch_many that is measured."""


def limit_for(folder: Path, spirv: Path, uuid: str) -> tuple[Limit | None, str | None]:
    """(the C limit, None), or (None, why it cannot be had)."""
    try:
        limit = Limit(folder, spirv)
        limit.run(uuid, jobs=1, batches=1, barrier=False, in_flight=1)
    except UnsupportedError as error:
        return None, error.message
    return limit, None


def show(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    device, medians, ratios = report["device"], report["medians"], report["ratios"]
    console.print(f"{device['name']}, {device['driver']}, Vulkan {device['api_version']}, {report['cores']} cores")
    if report["no_c_limit"]:
        console.print(f"[yellow]without the C limit[/]: {report['no_c_limit']}", soft_wrap=True)
    table = Table(title=f"Medians of {report['repeats']}", title_justify="left")
    table.add_column("what")
    for heading in ("vkqueue", "limit", "vkqueue/limit"):
        table.add_column(heading, justify="right")

    def row(what: str, name: str, limit: str, form: str, unit: str) -> None:
        theirs = form.format(medians[limit]) + unit if limit in medians else "-"
        short = name.removesuffix("_gb_per_s").removesuffix("_us")
        ratio = f"{ratios[short]:.2f}" if short in ratios else "-"
        table.add_row(what, form.format(medians[name]) + unit, theirs, ratio)

    row("round trip of one small launch", "round_trip_us", "c_round_trip_us", "{:,.0f}", " µs")
    for kind in KINDS:
        for count in report["clients"]:
            what = f"{kind}, {_clients(count)}"
            row(what, f"{kind}_{count}_jobs_per_s", f"c_{kind}_jobs_per_s", "{:,.0f}", "/s")
    for way in ("upload", "download"):
        for depth, under_way in DEPTHS.items():
            what = f"{way}, 4 MiB each, {under_way} under way"
            row(what, f"{way}{depth}_gb_per_s", "socket_gb_per_s", "{:.2f}", " GB/s")
    console.print(table)
    console.print(
        "Limit: of launches a C loop on the same device (batches of 256, three in flight; the round trip: one launch, "
        "submit, fence), of transfers a bare copy through a Unix socket.",
        soft_wrap=True,
    )
    console.print(_per_job(report))
    closed = ", ".join(f"{reason} {count:,}" for reason, count in report["batches_closed"].items() if count)
    console.print(f"Batches closed because: {closed}", soft_wrap=True)
    if "sweep" in report:
        console.print(_swept(report["sweep"]))
    if "graphs" in report:
        console.print(_further(report))


def _further(report: dict[str, Any]) -> Table:
    table = Table(title="Many launches in one request, many clients, shared memory", title_justify="left")
    table.add_column("what")
    for heading in ("vkqueue", "beside", "ratio of speeds"):
        table.add_column(heading, justify="right")

    def row(what: str, ours: str, theirs: str, ratio: float | None) -> None:
        table.add_row(what, ours, theirs, "-" if ratio is None else f"{ratio:.2f}")

    if "graphs" in report:
        medians, ratios = report["graphs"]["medians"], report["graphs"]["ratios"]
        for what, ours, theirs, ratio in (
            ("graph of 64 dependent launches, one at a time; C", "launch_us", "c_launch_us", "launch"),
            ("the same, pipelined; C", "pipelined_us", "c_pipelined_us", "pipelined"),
            ("the same, pipelined; its launches one by one", "pipelined_us", "eager_us", "over_eager"),
            ("graph of 64 independent ones; a barrier at each", "elided_us", "every_us", "over_every"),
        ):
            cells = [f"{medians[name]:,.0f} µs" if name in medians else "-" for name in (ours, theirs)]
            row(what, cells[0], cells[1], ratios.get(ratio))
    if "many" in report:
        many = report["many"]
        for form in FORMS:
            theirs = f"{many['c_launches_per_s']:,.0f}/s"
            what = f"dispatch_many of {MANY:,}, {form} of their own; C"
            row(what, f"{many[f'{form}_launches_per_s']:,.0f}/s", theirs, many[f"{form}_ratio"])
    _add_scale(report, row)
    if "shared" in report:
        shared = report["shared"]
        for way, what in zip(WAYS, ("from shared memory to the device", "back"), strict=True):
            for depth, count in DEPTHS.items():
                ours, theirs = (
                    f"{shared['medians'][name]:,.2f} GB/s" if name in shared["medians"] else "-"
                    for name in (f"{way}{depth}_gb_per_s", f"c_{way}_gb_per_s")
                )
                label = f"{shared['bytes'] >> 20} MiB {what}, {count} under way; C"
                row(label, ours, theirs, shared["ratios"].get(way + depth))
    return table


def _add_scale(report: dict[str, Any], row: Callable[[str, str, str, float | None], None]) -> None:
    if "scale" in report:
        medians, ratios = report["scale"]["medians"], report["scale"]["ratios"]
        for what, (few, many) in (("clients", scale.CLIENTS), ("buffers", scale.BUFFERS)):
            cells = [
                f"{medians[name]:,.1f} µs" if (name := f"{what}_{count}_cpu_us_per_job") in medians else "-"
                for count in (many, few)
            ]
            label = f"CPU time of a launch, {many:,} {what}; {few}"
            row(label, cells[0], cells[1], 1 / ratios[what] if what in ratios else None)
    if "devices" in report:
        medians = report["devices"]["medians"]
        rates = [f"{medians[f'{count}_jobs_per_s']:,.0f}/s" for count in ("two", "one")]
        row("long launches on two devices; on one", rates[0], rates[1], report["devices"]["ratio"])


def _swept(points: list[dict[str, float]]) -> Table:
    table = Table(title="Over depth and clients", title_justify="left")
    for heading in ("clients", "depth", "jobs/s", "latency µs", "jobs/batch"):
        table.add_column(heading, justify="right")
    for point in points:
        cells = (point["clients"], point["depth"], point["jobs_per_s"], point["latency_us"])
        table.add_row(*(f"{cell:,.0f}" for cell in cells), f"{point['jobs_per_batch']:,.1f}")
    return table


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _per_job(report: dict[str, Any]) -> Table:
    medians = report["medians"]
    table = Table(title="What the daemon did meanwhile", title_justify="left")
    table.add_column("launches")
    for heading in ("jobs/batch", "submits/job", "CPU µs/job", "of the loop"):
        table.add_column(heading, justify="right")
    forms = {
        "jobs_per_batch": "{:,.1f}",
        "submits_per_job": "{:.4f}",
        "cpu_us_per_job": "{:.1f}",
        "front_cpu_us_per_job": "{:.1f}",
    }
    for kind in KINDS:
        for count in report["clients"]:
            names = {f"{kind}_{count}_{name}": form for name, form in forms.items()}
            cells = (form.format(medians[name]) if name in medians else "-" for name, form in names.items())
            table.add_row(f"{kind}, {_clients(count)}", *cells)
    return table


def _everything(
    bench: Bench, host: Host, spirv: Path, limit: Limit | None, device: int, uuid: str, repeats: int, seconds: float
) -> dict[str, Any]:
    """The figures of graphs, dispatch_many, many clients and buffers, several devices, and shared memory."""
    with hosted(None, "device.graph_barriers=all") as every:
        kernel = spirv.read_bytes()
        graphs = GraphBench(host.path, host.pid, every.path, kernel, limit, device, uuid)
        measured: dict[str, Any] = {"graphs": graphs.run(repeats=repeats, seconds=seconds)}
    if limit is not None:
        measured["many"] = compare(host.path, kernel, limit, uuid, device, count=MANY, seconds=seconds, repeats=repeats)
    # Longer: what is learned of ten thousand requests takes a while to pay.
    measured["scale"] = scale.compare(bench.load, repeats=repeats, seconds=4 * seconds)
    others = [index for index in range(bench.devices) if index != device]
    if others:
        measured["devices"] = devices.compare(bench.load, (device, others[0]), repeats=repeats, seconds=seconds)
    measured["shared"] = sharing.compare(host.path, _copy_limit(spirv.parent, uuid), uuid, device, repeats=repeats)
    return measured


def _copy_limit(folder: Path, uuid: str) -> CopyLimit | None:
    """None where it does not build, or the device cannot use shared memory itself."""
    try:
        limit = CopyLimit(folder)
        limit.run(uuid, size=1 << 16, copies=1)
    except UnsupportedError:
        return None
    return limit


@click.group(invoke_without_command=True, short_help="Measure the daemon beside what the device can do at most.")
@click.option("--socket", metavar="PATH", help="Use the daemon that listens there, not one of the bench's own.")
@click.option("--device", type=click.IntRange(0), default=0, show_default=True, help="Index at the daemon.")
@click.option("--clients", default="1,4,16", show_default=True, callback=counts, help="Numbers of connections.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Medians are of so many.")
@click.option("--seconds", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Of each pipelined run.")
@click.option("--all", "everything", is_flag=True, help="Measure graphs, dispatch_many, 1,000 clients and more too.")
@click.option("--sweep", is_flag=True, help="Measure throughput and latency over depth and clients too.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the sweep to this PNG (needs matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print medians, ratios and all samples as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    socket: str | None,
    device: int,
    clients: tuple[int, ...],
    repeats: int,
    seconds: float,
    everything: bool,
    sweep: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Measure a daemon (its own, unless --socket names one): the round trip of one small launch, launches per second
    with windows kept full by 1, 4 and 16 clients, jobs per batch, submits and CPU time per job, and the speed of
    transfers; beside a C loop on the same device, and a bare socket copy.

    Both sides are measured by turns, since a machine's speed drifts: compare ratios. CPU time is told of a daemon of
    its own only. VKQUEUE_SECTION_KEY variables reach that daemon too, such as VKQUEUE_BATCHING_MAX_BATCH_JOBS=64.
    """
    if ctx.invoked_subcommand is not None:
        return
    console = Console(stderr=as_json, highlight=False)
    with tempfile.TemporaryDirectory(prefix="vkqueue-") as folder, hosted(socket) as host:
        spirv = Path(folder, "axpy.spv")
        spirv.write_bytes(kernel_bytes("axpy"))
        with host.connect(device) as gpu:
            own = gpu.device
            assert own is not None  # `connect` sees to it
        limit, why = limit_for(Path(folder), spirv, own.uuid)
        bench = Bench(host.path, host.pid, spirv, limit, device, lambda text: console.print(text, style="dim"))
        try:
            measured = bench.run(repeats=repeats, seconds=seconds, clients=clients)
            if sweep or plot:
                path = Path(plot) if plot else None
                measured["sweep"] = bench.sweep(seconds=seconds, clients=clients, plot=path)
            if everything:
                measured |= _everything(bench, host, spirv, limit, device, own.uuid, repeats, seconds)
        finally:
            bench.close()
    report = {**measured, "repeats": repeats, "no_c_limit": why}
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report, console)


command.add_command(bench_model.command, "model")
