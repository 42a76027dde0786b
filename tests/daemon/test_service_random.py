"""Histories by chance: requests of several connections, answers of helper and devices, faults, ends, in any order.

Whatever happens: each request is answered exactly once (the client sees to that), no account and no buffer is left over
(the rig sees to that), and no batch breaks the backend's contract or names what is gone (the scripted thread).
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import by_name
from support.inprocess import AXPY, HISTOGRAM, MATMUL, InProcessClient, Rig, axpy

from vkqueue.errors import CompileError, InternalError, InvalidError, JobTimeoutError, OutOfDeviceMemoryError
from vkqueue.jobs import scheduler

KIB = 1024
SPECIALIZED = by_name("glsl_spec_constants").spirv
LIMITS = {
    "max_queued_jobs": 40, "total_queued_jobs": 90, "max_queued_bytes": 256 * KIB, "max_message_bytes": 256 * KIB,
    "max_module_bytes": 64 * KIB, "max_output_bytes": 256 * KIB, "total_queued_bytes": 600 * KIB, "max_pipelines": 3,
    "max_device_pipelines": 4, "max_buffers": 40, "max_graphs": 5, "max_modules": 8, "max_memory_bytes": 4 * 2**20,
}  # fmt: skip


class Actor:
    """A connection that does what comes to its mind."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.chooses = rng.random() < 0.5
        self.client: InProcessClient = rig.client(device=rng.randrange(len(rig.threads)))
        self.handle = 0
        self.handles: dict[str, list[int]] = {"buffer": [], "module": [], "graph": []}
        self.client.burst(
            self.creating("module.load", {"spirv": AXPY}),
            *(self.creating("buffer.create", {"size": 256, "device": self.client.welcome["device"]}) for _ in range(5)),
        )
        rig.settle()
        self.good = {kind: list(handles) for kind, handles in self.handles.items()}

    def requests(self, count: int) -> None:
        """One read of the socket with so many requests."""
        if self.client.reading:
            self.client.burst(*(self.request() for _ in range(count)))

    def request(self) -> tuple[str, dict[str, Any]]:
        acts = {self.create: 17, self.load: 6, self.end: 5, self.move: 19, self.control: 8, self.run: 45}
        [act] = self.rng.choices(list(acts), list(acts.values()))
        return act()

    def create(self) -> tuple[str, dict[str, Any]]:
        content = [{"size": 0}, {"size": 64}, {"size": 256}, {"size": 256}, {"size": 4096}, {"size": 70_000},
                   {"data": b""}, {"data": bytes(256)}, {"data": bytes(50_000)}]  # fmt: skip
        return self.creating("buffer.create", dict(self.rng.choice(content)))

    def load(self) -> tuple[str, dict[str, Any]]:
        spirv = self.rng.choice([AXPY, AXPY, HISTOGRAM, MATMUL, SPECIALIZED, b"no module"])
        return self.creating("module.load", {"spirv": spirv})

    def end(self) -> tuple[str, dict[str, Any]]:
        what = self.rng.choice(["buffer", "buffer", "module", "graph"])
        handle = self.of(what) if self.rng.random() < 0.05 else (self.handles[what] or [0])[-1]
        return {"module": "module.unload"}.get(what, f"{what}.free"), {what: handle}

    def move(self) -> tuple[str, dict[str, Any]]:
        buffer, size = self.of("buffer"), self.rng.choice([0, 64, 40_000])
        return self.rng.choice([
            ("buffer.write", {"buffer": buffer, "data": bytes(size)}),
            ("buffer.read", {"buffer": buffer}),
            ("buffer.copy", {"source": buffer, "target": self.of("buffer"), "size": 64}),
        ])  # fmt: skip

    def control(self) -> tuple[str, dict[str, Any]]:
        recent = max(self.client.msgid - self.rng.randrange(20), 0)
        format = self.rng.choice(["json", "spirv-asm"])
        return self.rng.choice([
            ("cancel", {"msgid": recent}), ("cancel", {"msgid": recent}), ("ping", {}), ("stats", {}), ("devices", {}),
            ("nothing", {}), ("module.inspect", {"module": self.of("module"), "format": format}),
        ])  # fmt: skip

    def run(self) -> tuple[str, dict[str, Any]]:
        act = self.rng.random()
        if act < 0.1:
            return self.creating("graph.create", self.graph())
        if act < 0.25:
            buffers = {"x": self.of("buffer") if self.rng.random() < 0.9 else {"in": bytes(256)}}
            if self.rng.random() < 0.5:
                buffers["y"] = self.of("buffer")
            return "graph.launch", {"graph": self.of("graph"), "buffers": buffers, **self.options()}
        if act < 0.4:
            return "dispatch_many", self.many()
        return "dispatch", self.launch()

    def creating(self, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not self.chooses and self.rng.random() < 0.02:
            return method, {**params, "as": self.handle + 1}  # refused, and takes no number
        self.handle += 1
        self.handles[{"buffer.create": "buffer", "module.load": "module"}.get(method, "graph")].append(self.handle)
        if self.rng.random() < 0.1 and method != "module.load":
            params["device"] = self.rng.randrange(3)
        if self.chooses:
            params["as"] = self.handle
        return method, params

    def of(self, kind: str) -> int:
        """Usually a handle of this kind, often one that fits; it may be dead, or never have been."""
        recent = self.handles[kind][-4:] if self.rng.random() < 0.4 else self.good[kind] or self.handles[kind][-1:]
        return self.rng.choice(recent) if recent and self.rng.random() < 0.95 else self.rng.randrange(50)

    def entry(self) -> Any:
        rng = self.rng
        act = rng.random()
        if act < 0.7:
            return self.of("buffer")
        if act < 0.8:
            return [self.of("buffer"), 0, 64]
        return rng.choice([{"in": bytes(256)}, {"inout": bytes(30_000)}, {"out": 20_000}])

    def graph(self) -> dict[str, Any]:
        """Two launches over a temporary, or now and then only a fill."""
        if self.rng.random() < 0.2:
            return {"inputs": {"x": 256}, "nodes": [{"fill": "x", "value": 5}]}
        module = self.of("module")
        fixed = self.of("buffer") if self.rng.random() < 0.3 else "y"
        args = [["x", "t"], ["t", "y"], ["t", fixed]]
        nodes = [{"kernel": module, "args": pair, "scalars": [64, 0.5], "grid": [1]} for pair in args]
        return {"inputs": {"x": 256}, "outputs": {"y": 256}, "temporaries": {"t": 256}, "nodes": nodes}

    def many(self) -> dict[str, Any]:
        """Launches over some of the newest buffers, more than go into one batch."""
        count = self.rng.choice([1, 3, 10, 30])
        handles = [struct.pack(f"<{count}I", *(self.of("buffer") for _ in range(count))) for _ in range(2)]
        if self.rng.random() < 0.6:
            handles = [struct.pack("<I", self.of("buffer")) * count for _ in range(2)]
        args = [{"handles": handles[0]}, {"handles": handles[1]}]
        return axpy(self.of("module"), *args, count=count, **self.options())

    def launch(self) -> dict[str, Any]:
        rng = self.rng
        params = axpy(self.of("module"), self.entry(), self.entry())
        if rng.random() < 0.04:
            params["args"] = [self.entry() for _ in range(3)]
        if rng.random() < 0.04:
            params["specialization"] = {str(rng.randrange(3)): rng.randrange(4)}
        return {**params, **self.options()}

    def options(self) -> dict[str, Any]:
        rng = self.rng
        params: dict[str, Any] = {}
        if rng.random() < 0.15:
            params["after"] = [max(self.client.msgid - rng.randrange(8), 0) for _ in range(rng.randrange(3))]
        if rng.random() < 0.1:
            params["priority"] = rng.randrange(-3, 4)
        if rng.random() < 0.1:
            params["deadline_ms"] = rng.choice([1, 10**6])
        if rng.random() < 0.1:
            params["timing"] = True
        return params


def devices_act(rig: Rig, rng: random.Random) -> None:
    """Something happens on a device or in the helper."""
    thread = rng.choice(rig.threads)
    act = rng.random()
    if act < 0.55 and thread.batches:
        errors = {
            row[1]: rng.choice([InternalError("scripted"), OutOfDeviceMemoryError("scripted")])
            for row in thread.batches[0].rows
            if rng.random() < 0.02
        }
        thread.finish(errors)
    elif act < 0.7 and thread.specs:
        thread.build(CompileError("scripted") if rng.random() < 0.05 else None)
    elif act < 0.9 and rig.helper.requests:
        fault = rng.choice([None] * 20 + [InternalError("scripted"), InvalidError("scripted")])
        rig.helper.answer(fault)
    elif act < 0.905 and thread.batches and thread.batches[0].serial not in rig.late:
        rig.late.add(thread.batches[0].serial)
        thread.late(JobTimeoutError("scripted"))


def lose(rig: Rig, rng: random.Random) -> None:
    index = rng.randrange(len(rig.threads))
    rig.threads[index].lose()
    if rng.random() < 0.5:
        rig.threads[index].fail_to_open(InternalError("scripted"))
    rig.threads[index].open()
    rig.service.devices[index].rebuilds = 0  # how often in a row is another test's


async def import_columns(rig: Rig) -> None:
    """The first `dispatch_many` waits for NumPy, which comes on another thread."""
    client = rig.client()
    client.call("buffer.create", size=256)
    many = client.send("dispatch_many", **axpy(2, 1, 1, count=1))
    assert await client.answer(many) == "not_found"
    client.close()


@pytest.mark.parametrize("seed", range(30))
async def test_any_history_ends_with_every_answer_given_and_nothing_left(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Many launches leave in parts of a few: however the scheduler bounds them, by their count or by their time.
    monkeypatch.setattr(scheduler, "MAX_LAUNCHES", 8, raising=False)
    monkeypatch.setattr(scheduler, "PART_NS", 300_000, raising=False)
    rng = random.Random(seed)
    rig = make_rig(devices=2, config={"limits": LIMITS, "batching": {"max_batch_jobs": 8, "max_batch_delay_us": 0}})
    rig.late = set()  # type: ignore[attr-defined]
    await import_columns(rig)
    actors = [Actor(rig, rng) for _ in range(3)]
    for _ in range(400):
        act = rng.random()
        if act < 0.5:
            rng.choice(actors).requests(rng.choice([1, 1, 2, 5, 12]))
        elif act < 0.985:
            devices_act(rig, rng)
        elif act < 0.993:
            lose(rig, rng)
        else:
            gone = rng.choice(actors)
            gone.client.close()
            actors.remove(gone)
            actors.append(Actor(rig, rng))
        rng.choice(actors).client.collect()
    while rig.turn() or not all(actor.client.reading for actor in actors) or rig.service.busy:
        for actor in actors:
            actor.client.collect()
        await asyncio.sleep(0)  # deadlines are the loop's
    for actor in actors:
        client = actor.client
        client.collect()
        assert sorted(client.answered) == list(range(1, client.msgid + 1))
