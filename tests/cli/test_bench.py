"""`vkqueue bench`: what it reports, never how fast."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.daemon import Daemon

from vkqueue.bench.measure import KINDS
from vkqueue.bench.window import DEPTHS

from .conftest import Run

TINY = ["bench", "--repeats", "2", "--seconds", "0.05", "--clients", "1,2"]
PIPELINED = ["jobs_per_s", "jobs_per_batch", "submits_per_job"]
CPU = ["cpu_us_per_job", "front_cpu_us_per_job"]


def names(*of_pipelined: str) -> set[str]:
    return {f"{kind}_{count}_{name}" for kind in KINDS for count in (1, 2) for name in of_pipelined}


@pytest.mark.gpu
def test_the_report_has_medians_and_ratios_of_all(vkqueue: Run) -> None:
    done = vkqueue(*TINY, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    transfers = {f"{way}{depth}" for way in ("upload", "download") for depth in DEPTHS}
    bandwidth = {"socket_gb_per_s", *(f"{what}_gb_per_s" for what in transfers)}
    expected = {"round_trip_us", *bandwidth, *names(*PIPELINED, *CPU)}
    ratios = set(transfers)
    if report["no_c_limit"] is None:
        expected |= {"c_round_trip_us", "c_independent_jobs_per_s", "c_dependent_jobs_per_s"}
        ratios |= {"round_trip", *names("jobs_per_s")}
    else:  # a machine without a compiler; CI has one
        assert shutil.which("cc") is None or not Path("/usr/include/vulkan").exists()
    assert set(report["medians"]) == set(report["samples"]) == expected
    assert set(report["ratios"]) == ratios
    assert all(value > 0 for name, value in report["medians"].items() if "cpu" not in name)
    assert {len(report["samples"][name]) for name in names(*PIPELINED)} == {2}
    assert all(report["medians"][name] >= 1 for name in names("jobs_per_batch"))
    assert all(report["medians"][name] <= 1 for name in names("submits_per_job"))
    assert report["device"]["name"]


@pytest.mark.gpu
def test_without_a_compiler_on_a_running_daemon(vkqueue: Run, daemon: Daemon) -> None:
    """The C limit is left out and the word says what to install; of a daemon not its own, CPU time is not told."""
    done = vkqueue(*TINY, "--socket", str(daemon.path), PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "without the C limit: the C limit needs a C compiler (Debian: apt install gcc" in done.stdout
    for kind in KINDS:
        what, _, limit, ratio = _cells(done.stdout, f"{kind}, 1 client")
        assert (what, limit, ratio) == (f"{kind}, 1 client", "-", "-")
    assert _cells(done.stdout.partition("meanwhile")[2], "dependent, 2 clients")[-2:] == ["-", "-"]
    with daemon.client() as client:
        assert client.call("ping") == {}


def _cells(text: str, what: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"│ {what}"))
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.mark.gpu
def test_a_device_that_is_not_there(vkqueue: Run) -> None:
    done = vkqueue("bench", "--device", "99")
    assert done.returncode == 1
    assert done.stderr.startswith("vkqueue: invalid: device: 99 is none of the ")


@pytest.mark.parametrize("text", ["0", "1,", "one", "1001"])
def test_numbers_of_clients_are_checked(vkqueue: Run, text: str) -> None:
    done = vkqueue("bench", "--clients", text)
    assert done.returncode == 2
    assert "expected numbers from 1 to 1000" in done.stderr
