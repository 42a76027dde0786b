"""What `vkqueue bench` measures: the daemon beside the C limit on the same device, in interleaved repeats.

Ratios are what counts: both sides of each are measured within seconds of each other, and the medians over the repeats
are compared, since the machine's speed drifts.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vkqueue.bench import child, sweep
from vkqueue.bench.limit import Limit
from vkqueue.bench.window import DEPTHS, rate
from vkqueue.client.sync import Client, connect
from vkqueue.errors import InternalError

_MIB = 2**20

KINDS = ("independent", "dependent")
"""Launches with buffers of their own; launches that all write one buffer."""

PER_JOB = ("jobs_per_s", "jobs_per_batch", "submits_per_job", "cpu_us_per_job", "front_cpu_us_per_job")
"""What is noted of a pipelined run: CPU times (of the daemon's process, and its event loop's part) only where that
process is known. A software device computes in the daemon's process, so the kernels' time is among it."""

# Of one launch after the other in a repeat, and of batches that C times.
_ROUND_TRIPS = 500
_C_BATCHES = 40

Say = Callable[[str], None]


class Bench:
    """One run on a running daemon.

    Args:
        path: the daemon's socket.
        pid: the daemon's process, for its CPU time; None when it is not known.
        spirv: the axpy kernel of `dispatch_limit.c`.
        limit: the C limit, None to leave it out.
        device: index at the daemon.

    Attributes:
        devices: how many the daemon has.
    """

    def __init__(self, path: str, pid: int | None, spirv: Path, limit: Limit | None, device: int, say: Say) -> None:
        self._path = path
        self._pid = pid
        self._spirv = spirv
        self._limit = limit
        self._say = say
        self._client: Client = connect(path, device=device)
        self._device = device
        found = self._client.devices()
        self._uuid: str = found[device].uuid
        self.devices = len(found)
        self.samples: dict[str, list[float]] = {}

    def close(self) -> None:
        self._client.close()

    def _note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def load(self, **options: Any) -> dict[str, float]:
        """One run of the load generator; see `load.main` for the options and the result."""
        options = {"elements": 64, "independent": True, "device": self._device, "pid": self._pid, **options}
        done = subprocess.run(
            child.command("vkqueue.bench.load", self._path, str(self._spirv), json.dumps(options)),
            env=child.environment(),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise InternalError(f"the load generator failed: {done.stderr[-2000:]}")
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def latency(self, count: int) -> None:
        """Depth 1: one dispatch, one answer, beside C's submit and fence wait."""
        if self._limit is not None:
            self._note(
                "c_round_trip_us", self._limit.run(self._uuid, jobs=1, batches=count, barrier=False, in_flight=1)
            )
        self._note("round_trip_us", self.load(clients=1, window=1, count=count)["p50_us"])

    def pipelined(self, kind: str, clients: int, seconds: float) -> None:
        """Windows kept full on every connection, beside C in batches of 256 with three in flight."""
        independent = kind == "independent"
        if self._limit is not None:
            us = self._limit.run(self._uuid, jobs=256, batches=_C_BATCHES, barrier=not independent, in_flight=3)
            self._note(f"c_{kind}_jobs_per_s", 1e6 / us)
        window = max(1024 // clients, 64)
        result = self.load(clients=clients, window=window, seconds=seconds, independent=independent)
        for name in PER_JOB:
            if name in result:
                self._note(f"{kind}_{clients}_{name}", result[name])

    def payload(self, size: int, repeats: int) -> None:
        """`buffer.write` and `buffer.read` of one size, beside a bare copy through a Unix socket."""
        self._note("socket_gb_per_s", socket_bandwidth(size, repeats))
        data = np.random.default_rng().integers(0, 256, size, dtype=np.uint8)
        with self._client.empty((size,), "uint8") as array:
            for name, under_way in DEPTHS.items():
                sets, _ = rate(lambda: array.submit_set(data), under_way=under_way, count=repeats)
                gets, got = rate(array.submit_get, under_way=under_way, count=repeats)
                self._note(f"upload{name}_gb_per_s", size * sets / 1e9)
                self._note(f"download{name}_gb_per_s", size * gets / 1e9)
                if not np.array_equal(got, data):
                    raise InternalError("the bytes read back are not those written")

    def run(self, *, repeats: int, seconds: float, clients: tuple[int, ...]) -> dict[str, Any]:
        """Everything, `repeats` times over; the report."""
        before = self._closed()
        for repeat in range(repeats):
            self._say(f"repeat {repeat + 1} of {repeats}")
            self.latency(_ROUND_TRIPS)
            for kind in KINDS:
                for count in clients:
                    self.pipelined(kind, count, seconds)
            self.payload(4 * _MIB, 16)
        closed = {reason: count - before[reason] for reason, count in self._closed().items()}
        return {**self.report(clients), "batches_closed": closed}

    def sweep(self, *, seconds: float, clients: tuple[int, ...], plot: Path | None) -> list[dict[str, float]]:
        """Throughput and latency over depth and connections; `plot`: a PNG to draw them to.

        Raises:
            UnsupportedError: there is to be a plot, and matplotlib is not installed.
        """
        points = sweep.sweep(self.load, clients=clients, seconds=seconds)
        if plot is not None:
            limits: dict[str, float] = {}
            if self._limit is not None:
                us = self._limit.run(self._uuid, jobs=256, batches=_C_BATCHES, barrier=False, in_flight=3)
                limits["jobs_per_s"] = 1e6 / us
                limits["round_trip_us"] = self._limit.run(
                    self._uuid, jobs=1, batches=_ROUND_TRIPS, barrier=False, in_flight=1
                )
            name = self._client.devices()[self._device].name
            sweep.plot(points, limits, f"vkqueue on {name}: axpy of 64 threads, independent launches", plot)
        return points

    def _closed(self) -> dict[str, int]:
        """Batches that the device's queue closed so far, by reason."""
        closed: dict[str, int] = self._client.stats()["devices"][self._device]["closed"]
        return closed

    def report(self, clients: tuple[int, ...]) -> dict[str, Any]:
        """Medians of the samples, and their ratios to the C limit (payloads: to the socket), by the same names."""
        medians = {name: statistics.median(values) for name, values in self.samples.items()}
        ratios: dict[str, float] = {}
        if self._limit is not None:
            ratios["round_trip"] = medians["round_trip_us"] / medians["c_round_trip_us"]
            for kind in KINDS:
                for count in clients:
                    ours = medians[f"{kind}_{count}_jobs_per_s"]
                    ratios[f"{kind}_{count}_jobs_per_s"] = ours / medians[f"c_{kind}_jobs_per_s"]
        for way in ("upload", "download"):
            for depth in DEPTHS:
                ratios[way + depth] = medians[f"{way}{depth}_gb_per_s"] / medians["socket_gb_per_s"]
        device = self._client.devices()[self._device]
        return {
            "device": {"name": device.name, "driver": device.driver, "api_version": device.api_version},
            "cores": os.cpu_count(),
            "clients": list(clients),
            "medians": medians,
            "ratios": ratios,
            "samples": self.samples,
        }


def socket_bandwidth(size: int, repeats: int) -> float:
    """GB/s of a bare copy between two ends of a Unix socket, into a preallocated buffer."""
    here, there = socket.socketpair()
    data = bytes(size)

    def send() -> None:
        for _ in range(repeats):
            there.sendall(data)

    view = memoryview(bytearray(size))
    sender = threading.Thread(target=send)
    started = time.perf_counter()
    sender.start()
    for _ in range(repeats):
        got = 0
        while got < size:
            got += here.recv_into(view[got:])
    elapsed = time.perf_counter() - started
    sender.join()
    here.close()
    there.close()
    return size * repeats / elapsed / 1e9
