"""Histories by chance: requests of several connections, answers of helper and devices, faults, ends, in any order.

Whatever happens: each request is answered exactly once (the client sees to that), no account and no buffer is left over
(the rig sees to that), and no batch breaks the backend's contract or names what is gone (the scripted thread).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import by_name
from support.inprocess import AXPY, HISTOGRAM, MATMUL, InProcessClient, Rig, axpy

from vkqueue.errors import CompileError, InternalError, InvalidError, JobTimeoutError, OutOfDeviceMemoryError

KIB = 1024
SPECIALIZED = by_name("glsl_spec_constants").spirv
LIMITS = {
    "max_queued_jobs": 40, "total_queued_jobs": 90, "max_queued_bytes": 256 * KIB, "max_message_bytes": 256 * KIB,
    "max_module_bytes": 64 * KIB, "max_output_bytes": 256 * KIB, "total_queued_bytes": 600 * KIB, "max_pipelines": 3,
    "max_device_pipelines": 4, "max_buffers": 30, "max_modules": 8, "max_memory_bytes": 4 * 2**20,
}  # fmt: skip


class Actor:
    """A connection that does what comes to its mind."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.chooses = rng.random() < 0.5
        self.client: InProcessClient = rig.client(device=rng.randrange(len(rig.threads)))
        self.handle = 0
        self.handles: list[int] = []

    def requests(self, count: int) -> None:
        """One read of the socket with so many requests."""
        if self.client.reading:
            self.client.burst(*(self.request() for _ in range(count)))

    def request(self) -> tuple[str, dict[str, Any]]:
        rng = self.rng
        act = rng.random()
        if act < 0.12:
            return self.creating("buffer.create", {"size": rng.choice([0, 64, 4096, 70_000, 2**22])})
        if act < 0.17:
            return self.creating("buffer.create", {"data": bytes(rng.choice([0, 256, 50_000]))})
        if act < 0.23:
            spirv = rng.choice([AXPY, HISTOGRAM, MATMUL, SPECIALIZED, b"no module"])
            return self.creating("module.load", {"spirv": spirv})
        if act < 0.28:
            return rng.choice(["buffer.free", "module.unload"]), {
                rng.choice(["buffer", "module"]): self.any_handle()
            }
        if act < 0.36:
            return "buffer.write", {"buffer": self.any_handle(), "data": bytes(rng.choice([0, 64, 40_000]))}
        if act < 0.44:
            return "buffer.read", {"buffer": self.any_handle()}
        if act < 0.48:
            return "cancel", {"msgid": max(self.client.msgid - rng.randrange(20), 0)}
        if act < 0.52:
            return rng.choice([("ping", {}), ("stats", {}), ("devices", {}), ("nothing", {})])
        if act < 0.55:
            format = rng.choice(["json", "spirv-asm"])
            return "module.inspect", {"module": self.any_handle(), "format": format}
        return "dispatch", self.launch()

    def creating(self, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.handle += 1
        self.handles.append(self.handle)
        if self.rng.random() < 0.2:
            params["device"] = self.rng.randrange(3)
        if self.chooses or self.rng.random() < 0.02:
            params["as"] = self.handle
        return method, params

    def any_handle(self) -> int:
        recent = self.handles[-12:]
        return self.rng.choice(recent) if recent and self.rng.random() < 0.95 else self.rng.randrange(50)

    def entry(self) -> Any:
        rng = self.rng
        act = rng.random()
        if act < 0.7:
            return self.any_handle()
        if act < 0.8:
            return [self.any_handle(), 0, 64]
        return rng.choice([{"in": bytes(256)}, {"inout": bytes(30_000)}, {"out": 20_000}])

    def launch(self) -> dict[str, Any]:
        rng = self.rng
        params = axpy(self.any_handle(), self.entry(), self.entry())
        if rng.random() < 0.1:
            params["args"] = [self.entry() for _ in range(3)]
        if rng.random() < 0.2:
            params["specialization"] = {str(rng.randrange(3)): rng.randrange(4)}
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
            if rng.random() < 0.05
        }
        thread.finish(errors)
    elif act < 0.7 and thread.specs:
        thread.build(CompileError("scripted") if rng.random() < 0.2 else None)
    elif act < 0.9 and rig.helper.requests:
        fault = rng.choice([None] * 6 + [InternalError("scripted"), InvalidError("scripted")])
        rig.helper.answer(fault)
    elif act < 0.93 and thread.batches and thread.batches[0].serial not in rig.late:
        rig.late.add(thread.batches[0].serial)
        thread.late(JobTimeoutError("scripted"))


def lose(rig: Rig, rng: random.Random) -> None:
    index = rng.randrange(len(rig.threads))
    rig.threads[index].lose()
    if rng.random() < 0.5:
        rig.threads[index].fail_to_open(InternalError("scripted"))
    rig.threads[index].open()
    rig.service.devices[index].rebuilds = 0  # how often in a row is another test's


@pytest.mark.parametrize("seed", range(30))
async def test_any_history_ends_with_every_answer_given_and_nothing_left(
    make_rig: Callable[..., Rig], seed: int
) -> None:
    rng = random.Random(seed)
    rig = make_rig(devices=2, config={"limits": LIMITS, "batching": {"max_batch_jobs": 8, "max_batch_delay_us": 0}})
    rig.late = set()  # type: ignore[attr-defined]
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
