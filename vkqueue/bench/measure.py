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
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vkqueue.bench.limit import Limit
from vkqueue.client.sync import Client

_TICK = os.sysconf("SC_CLK_TCK")
_MIB = 2**20

Say = Callable[[str], None]


def cpu_seconds(pid: int) -> tuple[float, float]:
    """(of the main thread, of the whole process): user and system time from /proc."""

    def of(path: Path) -> float:
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK  # utime, stime: proc(5) fields 14 and 15

    return of(Path(f"/proc/{pid}/task/{pid}/stat")), of(Path(f"/proc/{pid}/stat"))


class Bench:
    """One run on a running daemon.

    Args:
        path: the daemon's socket.
        pid: the daemon's process, for its CPU time; None when it is not known.
        spirv: the axpy kernel of `dispatch_limit.c`.
        limit: the C limit, None to leave it out.
        device: index at the daemon.
    """

    def __init__(self, path: str, pid: int | None, spirv: Path, limit: Limit | None, device: int, say: Say) -> None:
        self._path = path
        self._pid = pid
        self._spirv = spirv
        self._limit = limit
        self._say = say
        self._client = Client.connect_to(path, device=device)
        self._device = device
        self._uuid: str = self._client.devices()[device].uuid
        self.samples: dict[str, list[float]] = {}

    def close(self) -> None:
        self._client.close()

    def _note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def _load(self, **options: Any) -> dict[str, float]:
        """One run of the load generator, with what the daemon counted meanwhile."""
        options = {"elements": 64, "independent": True, "device": self._device, **options}
        before, cpu_before = self._client.stats(), cpu_seconds(self._pid) if self._pid else (0.0, 0.0)
        done = subprocess.run(
            [sys.executable, "-m", "vkqueue.bench.load", self._path, str(self._spirv), json.dumps(options)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
        after, cpu_after = self._client.stats(), cpu_seconds(self._pid) if self._pid else (0.0, 0.0)
        result: dict[str, float] = json.loads(done.stdout)
        jobs = after["jobs_completed"] - before["jobs_completed"]
        batches = after["batches"] - before["batches"]
        result["jobs_per_batch"] = jobs / max(batches, 1)
        result["submits_per_job"] = (after["submits"] - before["submits"]) / max(jobs, 1)
        if self._pid:
            result["front_cpu_us_per_job"] = (cpu_after[0] - cpu_before[0]) / jobs * 1e6
            result["cpu_us_per_job"] = (cpu_after[1] - cpu_before[1]) / jobs * 1e6
        return result

    def latency(self, count: int) -> None:
        """Depth 1: one dispatch, one answer, beside C's submit and fence wait."""
        if self._limit is not None:
            self._note(
                "c_round_trip_us", self._limit.run(self._uuid, jobs=1, batches=count, barrier=False, in_flight=1)
            )
        self._note("round_trip_us", self._load(clients=1, window=1, count=count)["p50_us"])

    def pipelined(self, clients: int, seconds: float, *, independent: bool) -> None:
        """Windows kept full on every connection, beside C in batches of 256 with three in flight."""
        kind = "independent" if independent else "dependent"
        if self._limit is not None:
            us = self._limit.run(self._uuid, jobs=256, batches=40, barrier=not independent, in_flight=3)
            self._note(f"c_{kind}_jobs_per_s", 1e6 / us)
        window = max(1024 // clients, 64)
        result = self._load(clients=clients, window=window, seconds=seconds, independent=independent)
        for name in ("jobs_per_s", "jobs_per_batch", "submits_per_job", "cpu_us_per_job", "front_cpu_us_per_job"):
            if name in result:
                self._note(f"{kind}_{clients}_{name}", result[name])

    def payload(self, size: int, repeats: int) -> None:
        """`buffer.write` and `buffer.read` of one size, beside a bare copy through a Unix socket."""
        self._note("socket_gb_per_s", socket_bandwidth(size, repeats))
        data = os.urandom(size)
        with self._client.empty((size,), "uint8") as array:
            array.set(data)
            started = time.perf_counter()
            for _ in range(repeats):
                array.set(data)
            self._note("upload_gb_per_s", size * repeats / (time.perf_counter() - started) / 1e9)
            started = time.perf_counter()
            for _ in range(repeats):
                got = array.get()
            self._note("download_gb_per_s", size * repeats / (time.perf_counter() - started) / 1e9)
            if got.tobytes() != data:
                raise RuntimeError("the bytes read back are not those written")

    def run(self, *, repeats: int, seconds: float, clients: tuple[int, ...]) -> dict[str, Any]:
        """Everything, `repeats` times over; the report."""
        for repeat in range(repeats):
            self._say(f"repeat {repeat + 1} of {repeats}")
            self.latency(500)
            for independent in (True, False):
                for count in clients:
                    self.pipelined(count, seconds, independent=independent)
            self.payload(4 * _MIB, 16)
        return self.report(clients)

    def report(self, clients: tuple[int, ...]) -> dict[str, Any]:
        """Medians and ratios."""
        medians = {name: statistics.median(values) for name, values in self.samples.items()}
        ratios: dict[str, float] = {}
        if self._limit is not None:
            ratios["round_trip / C"] = medians["round_trip_us"] / medians["c_round_trip_us"]
            for kind in ("independent", "dependent"):
                best = max(medians[f"{kind}_{count}_jobs_per_s"] for count in clients)
                ratios[f"{kind} jobs/s / C"] = best / medians[f"c_{kind}_jobs_per_s"]
        for way in ("upload", "download"):
            ratios[f"{way} / socket"] = medians[f"{way}_gb_per_s"] / medians["socket_gb_per_s"]
        device = self._client.devices()[self._device]
        return {
            "device": {"name": device.name, "driver": device.driver, "api_version": device.api_version},
            "cores": os.cpu_count(),
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
