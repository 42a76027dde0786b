"""`vkqueue demo`: it is green where a driver is, and red where results are wrong or nothing can run."""

from __future__ import annotations

import io
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support.daemon import Daemon

from vkqueue.cli.demo import ClientProcess, show
from vkqueue.cli.demo_client import WAYS, Case, kernel_bytes, work
from vkqueue.cli.own_daemon import complaints
from vkqueue.kernels.reflect import analyse

from .conftest import Run

NO_DRIVER = {"VK_DRIVER_FILES": "/nowhere", "VK_ICD_FILENAMES": "/nowhere"}


@pytest.mark.gpu
def test_demo_starts_a_daemon_and_checks_every_result(vkqueue: Run) -> None:
    done = vkqueue("demo", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for kernel, way in WAYS:
        row = next(line for line in lines if kernel in line and way in line)
        assert "all right" in row
    assert lines[-1].startswith("OK: 6 client processes at once, 128 launches of 3 kernels in ")
    assert lines[-1].endswith("all 23 results equal to NumPy's.")


@pytest.mark.gpu
def test_demo_on_a_running_daemon_as_json(vkqueue: Run, daemon: Daemon) -> None:
    done = vkqueue("demo", "--rounds", "2", "--json", "--socket", str(daemon.path))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"ok", "device", "clients", "daemon", "seconds"}
    assert report["ok"] is True
    assert [(client["kernel"], client["client"]) for client in report["clients"]] == list(WAYS)
    for client in report["clients"]:
        assert client["jobs"] >= client["checked"] > 0
        assert (client["wrong"], client["error"]) == (0, None)
    counted = report["daemon"]
    assert counted["jobs_completed"] >= sum(client["jobs"] for client in report["clients"])
    assert counted["jobs_failed"] == 0
    assert 0 < counted["batches"] <= counted["jobs_completed"]
    with daemon.client() as client:  # it is not the demo's to stop
        assert client.call("ping") == {}


@pytest.mark.parametrize("words", [["demo"], ["bench", "--repeats", "1"]])
def test_without_a_driver_the_package_to_install_is_named(vkqueue: Run, words: list[str]) -> None:
    """Rule 33."""
    done = vkqueue(*words, **NO_DRIVER)
    assert done.returncode == 1
    assert "vkqueue: unsupported: no Vulkan device works: " in done.stderr
    assert "package mesa-vulkan-drivers" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_driver_json_says_so_too(vkqueue: Run) -> None:
    done = vkqueue("demo", "--json", **NO_DRIVER)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert report["error"]["code"] == "unsupported"
    assert "mesa-vulkan-drivers" in report["error"]["message"]


def test_a_daemon_that_does_not_start_is_quoted(vkqueue: Run) -> None:
    done = vkqueue("demo", VKQUEUE_BATCHING_MAX_BATCH_JOBS="0")
    assert done.returncode == 1
    assert "the daemon ended with status 2" in done.stderr
    assert "batching.max_batch_jobs" in done.stderr


def test_no_daemon_at_the_socket(vkqueue: Run) -> None:
    done = vkqueue("demo", "--socket", "/nowhere/socket")
    assert done.returncode == 1
    assert "no vkqueue daemon answers; tried /nowhere/socket" in done.stderr


def case(result: list[int], expected: list[int]) -> Case:
    """A case whose result is known beforehand."""
    future: Any = SimpleNamespace(result=lambda: np.array(result))
    return Case(3, np.array(expected), lambda: future)


def test_wrong_results_are_counted() -> None:
    cases = [case([1, 2], [1, 2]), case([1, 2], [1, 3]), case([1, 2], [1, 2, 2])]
    done = work(cases, rounds=2)
    assert (done["jobs"], done["checked"], done["wrong"]) == (18, 6, 4)


def test_a_client_that_fails_is_told_from_one_with_wrong_results() -> None:
    process = ClientProcess("/nowhere/socket", "axpy", "inline", 1)
    process.wait_until_ready()
    process.go()
    failed = process.result(time.monotonic() + 20)
    assert failed["error"].startswith("vkqueue.errors.ConnectionLostError: no vkqueue daemon answers")
    assert failed["jobs"] == 0
    wrong = {**failed, "error": None, "checked": 7, "wrong": 5}
    counted = {"jobs_completed": 0, "batches": 0, "submits": 0, "jobs_per_batch": 0}
    report = {"ok": False, "device": {"name": "x"}, "clients": [failed, wrong], "daemon": counted, "seconds": 1.0}
    text = io.StringIO()
    show(report, Console(file=text, width=300))
    assert "failed: vkqueue.errors.ConnectionLostError" in text.getvalue()
    assert "5 wrong" in text.getvalue()
    assert text.getvalue().splitlines()[-1].startswith("FAILED")


def test_a_log_is_cut_down_to_its_complaints() -> None:
    log = (
        "2026-01-01 00:00:00.000 WARNING vkqueue.daemon: no driver: install one\n"
        "2026-01-01 00:00:00.001 INFO    vkqueue.daemon: not ready: a device does not work;\n"
        "2026-01-01 00:00:00.002 ERROR   vkqueue.daemon: device 0: lost\n"
        "Traceback\n"
    )
    assert complaints(log) == "no driver: install one; device 0: lost"


@pytest.mark.parametrize(
    ("name", "local_size", "scalars"),
    [("axpy", [64, 1, 1], ["n", "k"]), ("matmul", [16, 16, 1], ["m", "n", "k"]), ("histogram", [256, 1, 1], ["words"])],
)
def test_the_compiled_kernels_are_those_of_the_sources(name: str, local_size: list[int], scalars: list[str]) -> None:
    kernel = analyse(kernel_bytes(name))["kernels"]["main"]
    assert kernel["local_size"] == local_size
    assert [scalar["name"] for scalar in kernel["scalars"]] == scalars
