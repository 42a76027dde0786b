"""`vkqueue demo`: three kernels, six client processes at once, every result compared with NumPy's."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import IO, Any, cast

import click
from rich.console import Console
from rich.table import Table

from vkqueue.bench import child
from vkqueue.cli.demo_client import WAYS
from vkqueue.cli.own_daemon import hosted
from vkqueue.client.info import Device
from vkqueue.client.sync import Client
from vkqueue.errors import VkqueueError

# Arbitrary: many times what a slow machine takes; a client that hangs must not keep the demo for ever.
_TIMEOUT_S = 120.0


class ClientProcess:
    """A process of `demo_client`."""

    def __init__(self, path: str, kernel: str, way: str, rounds: int) -> None:
        self.about = {"kernel": kernel, "client": way, "sizes": WAYS[kernel, way][1]}
        self._process = subprocess.Popen(
            child.command("vkqueue.cli.demo_client", path, kernel, way, str(rounds)),
            env=child.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Return when it is, or when it has ended."""
        cast(IO[str], self._process.stdout).readline()

    def go(self) -> None:
        """Let it work; `result` tells if it has ended already."""
        try:
            stdin = cast(IO[str], self._process.stdin)
            stdin.write("go\n")
            stdin.flush()
        except BrokenPipeError:
            pass

    def result(self, end: float) -> dict[str, Any]:
        """What it did; with `error` if it failed or is not done by `end`."""
        error = None
        try:
            stdout, stderr = self._process.communicate(timeout=max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            stdout, stderr = self._process.communicate()
            error = "not done in time"
        if self._process.returncode and error is None:
            error = stderr.strip().rpartition("\n")[2] or f"ended with status {self._process.returncode}"
        if error is not None:
            return {**self.about, "jobs": 0, "checked": 0, "wrong": 0, "seconds": 0.0, "jobs_per_s": 0, "error": error}
        done: dict[str, Any] = json.loads(stdout)
        return {**self.about, **done, "jobs_per_s": round(done["jobs"] / done["seconds"]), "error": None}

    def kill(self) -> None:
        """Nothing if it has ended."""
        self._process.kill()
        self._process.communicate()


def run(path: str, gpu: Client, rounds: int) -> dict[str, Any]:
    """The report: what every client did, and what the daemon counted meanwhile."""
    end = time.monotonic() + _TIMEOUT_S
    processes: list[ClientProcess] = []
    try:
        processes.extend(ClientProcess(path, kernel, way, rounds) for kernel, way in WAYS)
        for process in processes:
            process.wait_until_ready()
        before, started = gpu.stats(), time.monotonic()
        for process in processes:
            process.go()
        clients = [process.result(end) for process in processes]
        seconds, after = time.monotonic() - started, gpu.stats()
    finally:
        for process in processes:
            process.kill()
    counted = {key: after[key] - before[key] for key in ("jobs_completed", "jobs_failed", "batches", "submits")}
    counted["jobs_per_batch"] = round(counted["jobs_completed"] / max(counted["batches"], 1), 1)
    device = cast(Device, gpu.device)
    return {
        "ok": all(client["error"] is None and client["wrong"] == 0 for client in clients),
        "device": {"name": device.name, "type": device.type, "driver": device.driver},
        "clients": clients,
        "daemon": counted,
        "seconds": round(seconds, 3),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    table = Table(title=f"vkqueue on {report['device']['name']}", title_justify="left")
    for heading in ("kernel", "client", "sizes"):
        table.add_column(heading)
    for heading in ("jobs", "checked", "jobs/s"):
        table.add_column(heading, justify="right")
    table.add_column("results")
    for client in report["clients"]:
        verdict = "[green]all right[/]" if not client["wrong"] else f"[red]{client['wrong']} wrong[/]"
        if client["error"]:
            verdict = f"[red]failed: {client['error']}[/]"
        numbers = (f"{client[key]:,}" for key in ("jobs", "checked", "jobs_per_s"))
        table.add_row(client["kernel"], client["client"], client["sizes"], *numbers, verdict)
    console.print(table)
    counted = report["daemon"]
    console.print(
        f"The daemon ran {counted['jobs_completed']:,} launches and transfers in {counted['batches']:,} batches "
        f"({counted['jobs_per_batch']} each) and {counted['submits']:,} submits.",
        soft_wrap=True,
    )
    jobs, checked = (sum(client[key] for client in report["clients"]) for key in ("jobs", "checked"))
    if report["ok"]:
        console.print(
            f"[bold green]OK[/]: {len(report['clients'])} client processes at once, {jobs:,} launches of 3 kernels in "
            f"{report['seconds']:.1f} s, all {checked:,} results equal to NumPy's.",
            soft_wrap=True,
        )
    else:
        console.print("[bold red]FAILED[/]: not every result is as NumPy has it; see the last column.")


@click.command(short_help="Run three kernels from several processes and check every result.")
@click.option("--socket", metavar="PATH", help="Use the daemon that listens there, not one of the demo's own.")
@click.option("--rounds", type=click.IntRange(1), default=60, show_default=True, help="How often to do it all.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(socket: str | None, rounds: int, as_json: bool) -> None:
    """Start a daemon in a temporary folder, and let six client processes at once run axpy, a tiled matrix product and a
    histogram on it: with arrays that stay on the device, and with arrays sent along with each launch.

    Exit status: 0 if every result was equal to NumPy's, else 1.
    """
    console = Console(stderr=as_json, highlight=False)
    try:
        with hosted(socket) as host, host.connect() as gpu:
            if not as_json:
                console.print(f"{gpu.server} is at {host.path}; six clients are starting …")
            report = run(host.path, gpu, rounds)
    except VkqueueError as error:
        if as_json:
            print(json.dumps({"ok": False, "error": {"code": error.code, "message": error.message}}))
        raise
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report, console)
    sys.exit(0 if report["ok"] else 1)
