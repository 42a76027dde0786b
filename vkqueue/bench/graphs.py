"""What graphs are worth: launches of one with 64 nodes beside a C loop that records and submits the same dispatches,
beside the same dispatches sent one by one, and with a barrier at each node instead of where one is needed.

Ratios are what counts, of sides that are measured in turns; see `measure`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from vkqueue.bench.limit import Limit
from vkqueue.bench.load import Connection, Counters, throughput

NODES = 64
_ELEMENTS = 64
_WINDOW = 64
_ROUND_TRIPS = 100
_C_BATCHES = 60


class GraphConnection(Connection):
    """One client that launches one graph, its nodes dependent (all add to one buffer) or independent, or dispatches
    the same launches one by one."""

    def __init__(self, path: str, spirv: bytes, device: int, *, independent: bool, eager: bool = False) -> None:
        self._nodes_independent = independent
        self._eager = eager
        window = NODES * 4 if eager else _WINDOW
        super().__init__(path, spirv, window=window, independent=independent, elements=_ELEMENTS, device=device)

    def requests(
        self, module: int, x: int, ys: list[int], elements: int, count: int
    ) -> list[tuple[str, dict[str, Any]]]:
        """See `load.Connection.requests`."""
        if self._eager:
            return super().requests(module, x, ys, elements, count)
        names = [f"y{i}" for i in range(NODES)] if self._nodes_independent else ["y"]
        ys = [*ys, *(self.buffer(elements) for _ in range(len(names) - len(ys)))]
        groups = [-(-elements // 64)]
        nodes = [
            {"kernel": module, "args": ["x", names[i % len(names)]], "scalars": [elements, 0.5], "grid": groups}
            for i in range(NODES)
        ]
        graph = self.call(
            "graph.create", nodes=nodes, inputs={"x": 4 * elements}, outputs=dict.fromkeys(names, 4 * elements)
        )["graph"]
        buffers = {"x": x, **dict(zip(names, ys, strict=False))}
        return [("graph.launch", {"graph": graph, "buffers": buffers})] * count


class GraphBench:
    """One run.

    Args:
        path: socket of a daemon; `pid`: its process, None when it is not known.
        every_path: of one that puts a barrier before every node (device.graph_barriers = "all"), None to leave it out.
        spirv: the axpy kernel of `dispatch_limit.c`.
        limit: the C limit, None to leave it out.
        device: index at both daemons; `uuid`: its own.
    """

    def __init__(
        self, path: str, pid: int | None, every_path: str | None, spirv: bytes, limit: Limit | None, device: int,
        uuid: str,
    ) -> None:  # fmt: skip
        self._path, self._pid, self._every_path = path, pid, every_path
        self._spirv, self._limit, self._device, self._uuid = spirv, limit, device, uuid
        self.samples: dict[str, list[float]] = {}

    def _note(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def _connection(self, path: str | None = None, **options: Any) -> GraphConnection:
        connection = GraphConnection(path or self._path, self._spirv, self._device, **options)
        connection.warm_up()
        return connection

    def alone(self) -> None:
        """One launch after the other, beside C: record, submit, wait."""
        if self._limit is not None:
            us = self._limit.run(self._uuid, jobs=NODES, batches=_C_BATCHES, barrier=True, in_flight=1)
            self._note("c_launch_us", us * NODES)
        connection = self._connection(independent=False)
        times = []
        for _ in range(_ROUND_TRIPS):
            started = time.perf_counter_ns()
            connection.round_trip()
            times.append((time.perf_counter_ns() - started) / 1000)
        self._note("launch_us", statistics.median(times))
        connection.sock.close()

    def pipelined(self, seconds: float) -> None:
        """Windows kept full, beside C with three batches in flight, and beside the same dispatches one by one."""
        if self._limit is not None:
            us = self._limit.run(self._uuid, jobs=NODES, batches=_C_BATCHES, barrier=True, in_flight=3)
            self._note("c_pipelined_us", us * NODES)
        connection = self._connection(independent=False)
        counters = Counters(connection, self._pid)
        self._note("pipelined_us", 1e6 / throughput([connection], seconds)["jobs_per_s"])
        for name, value in counters.per_job().items():
            self._note(f"pipelined_{name}", value)
        connection.sock.close()
        connection = self._connection(independent=False, eager=True)
        self._note("eager_us", NODES * 1e6 / throughput([connection], seconds)["jobs_per_s"])
        connection.sock.close()

    def barriers(self, seconds: float) -> None:
        """Independent nodes without barriers, and with one at each."""
        for name, path in (("elided_us", self._path), ("every_us", self._every_path)):
            if path is not None:
                connection = self._connection(path, independent=True)
                self._note(name, 1e6 / throughput([connection], seconds)["jobs_per_s"])
                connection.sock.close()

    def run(self, *, repeats: int, seconds: float) -> dict[str, Any]:
        """Everything, `repeats` times over. Medians in microseconds per launch of the graph, and ratios of speeds: to
        C's (`launch`, `pipelined`), and to the other way of doing it (`over_eager`, `over_every`)."""
        for _ in range(repeats):
            self.alone()
            self.pipelined(seconds)
            self.barriers(seconds)
        medians = {name: statistics.median(values) for name, values in self.samples.items()}
        pairs = {
            "launch": ("c_launch_us", "launch_us"),
            "pipelined": ("c_pipelined_us", "pipelined_us"),
            "over_eager": ("eager_us", "pipelined_us"),
            "over_every": ("every_us", "elided_us"),
        }
        ratios = {
            name: medians[theirs] / medians[ours]
            for name, (theirs, ours) in pairs.items()
            if theirs in medians and ours in medians
        }
        return {"nodes": NODES, "medians": medians, "ratios": ratios, "samples": self.samples}
