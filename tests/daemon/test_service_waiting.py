"""Requests that wait for an analysis: in order, cancellable, bounded, and forgotten with their connection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.cases import by_name
from support.inprocess import AXPY, HISTOGRAM, InProcessClient, Rig, axpy

from vkqueue.errors import InternalError


@pytest.fixture
def waiting(rig: Rig) -> InProcessClient:
    """A client with buffers 1 and 2, and a module 3 whose analysis is held back."""
    client = rig.client()
    for handle in (1, 2):
        client.call("buffer.create", size=256, **{"as": handle})
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 3})
    return client


async def test_rule_23_control_messages_pass_those_that_wait(rig: Rig, waiting: InProcessClient) -> None:
    launch = waiting.launch(3, 1, 2)
    read = waiting.send("buffer.read", buffer=1)
    assert waiting.call("ping") == {}
    assert waiting.call("stats")["clients"] == 1
    assert len(waiting.call("devices")) == 1
    assert waiting.call("cancel", msgid=12345) == {"cancelled": False}
    assert waiting.code(waiting.send("no such method")) == "unknown_method"
    assert not waiting.has(launch)
    assert not waiting.has(read)


async def test_what_waits_runs_in_the_order_sent(rig: Rig, waiting: InProcessClient) -> None:
    launch = waiting.launch(3, 1, 2)
    read = waiting.send("buffer.read", buffer=2)
    free = waiting.send("buffer.free", buffer=2)
    dead = waiting.send("buffer.read", buffer=2)
    assert not waiting.has(free)
    rig.helper.answer()
    rig.settle()
    assert [waiting.code(msgid) for msgid in (launch, read, free, dead)] == [None, None, None, "not_found"]


async def test_requests_before_the_first_that_waits_are_not_held_up(rig: Rig, waiting: InProcessClient) -> None:
    assert waiting.call("buffer.read", buffer=1) == {"data": bytes(256)}
    assert waiting.code(waiting.send("buffer.create", size=-1, **{"as": 9})) == "invalid"


async def test_what_waits_can_be_cancelled_and_the_rest_goes_on(rig: Rig, waiting: InProcessClient) -> None:
    """Also before the analysis comes: nobody else waits for it."""
    launch = waiting.launch(3, 1, 2)
    write = waiting.send("buffer.write", buffer=1, data=b"1234")
    assert waiting.result(waiting.send("cancel", msgid=launch)) == {"cancelled": True}
    assert waiting.code(launch) == "cancelled"
    rig.settle()
    assert waiting.code(write) is None
    rig.helper.answer()
    rig.settle()


async def test_a_cancelled_one_in_the_middle_leaves_the_first_waiting(rig: Rig, waiting: InProcessClient) -> None:
    launch, write = waiting.launch(3, 1, 2), waiting.send("buffer.write", buffer=1, data=b"1234")
    assert waiting.result(waiting.send("cancel", msgid=write)) == {"cancelled": True}
    assert not waiting.has(launch)
    rig.helper.answer()
    rig.settle()
    assert (waiting.code(launch), waiting.code(write)) == (None, "cancelled")


async def test_rule_19_a_deadline_passes_while_its_module_is_analysed(rig: Rig, waiting: InProcessClient) -> None:
    launch = waiting.launch(3, 1, 2, deadline_ms=1)
    read = waiting.send("buffer.read", buffer=2)
    assert await waiting.answer(launch) == "expired"
    rig.settle()
    assert waiting.code(read) is None  # it waited for nothing but the launch
    rig.helper.answer()
    assert not rig.thread.batches


async def test_rule_19_the_deadline_counts_from_receipt_not_from_the_analysis(
    rig: Rig, waiting: InProcessClient
) -> None:
    launch = waiting.launch(3, 1, 2, deadline_ms=1)
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.003
    while loop.time() < until:  # the loop's timers do not run meanwhile
        pass
    rig.helper.answer()
    while rig.thread.specs:
        rig.thread.build()
    assert not rig.thread.batches
    assert await waiting.answer(launch) == "expired"


async def test_a_deadline_far_away_does_not_keep_the_request(rig: Rig, waiting: InProcessClient) -> None:
    """Once it has gone its way nothing holds its bytes, neither a timer nor anything else."""
    launch = waiting.send("dispatch", **axpy(3, {"in": bytes(70_000)}, 2, deadline_ms=10**12))
    [entry] = waiting.session.deferred
    there = weakref.ref(entry.timer)
    params = entry.params
    del entry
    rig.helper.answer()
    rig.settle()
    assert waiting.code(launch) is None
    waiting.session.conn.data_to_send()
    rig.thread.posted.clear()
    gc.collect()
    assert not [holder for holder in gc.get_referrers(params) if type(holder).__name__ == "Deferral"]
    timer = there()
    assert timer is None or timer.cancelled()


async def test_rule_22_a_connection_that_closes_forgets_what_waits(rig: Rig, waiting: InProcessClient) -> None:
    other = rig.client()
    waiting.send("dispatch", **axpy(3, {"in": bytes(70_000)}, 2, deadline_ms=50_000))
    waiting.launch(3, 1, 2)
    assert rig.service._queued_bytes > 70_000
    waiting.close()
    assert rig.service._queued_bytes == 0
    rig.helper.answer()
    rig.settle()
    assert other.call("stats")["jobs_completed"] == 2  # the creations


async def test_rule_20_what_waits_is_bounded_by_count(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 5, "total_queued_jobs": 50}})
    client = rig.client()
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 1})
    msgids = [client.send("dispatch", **axpy(1, {"in": bytes(256)}, {"inout": bytes(256)})) for _ in range(6)]
    assert client.code(msgids.pop()) == "overloaded"
    rig.helper.answer()
    rig.settle()
    assert [client.code(msgid) for msgid in msgids] == [None] * 5


@pytest.mark.parametrize(
    "args",
    [
        [{"in": bytes(50_000)}, {"inout": bytes(50_000)}],
        [{"array": [{"in": bytes(50_000)}, {"in": bytes(50_000)}]}, 2],
        [{"values": {"x" * 50_000: 1, "y": ["z" * 50_000]}}, 2],
    ],
    ids=["bins", "in arrays", "text"],
)
async def test_rule_20_what_waits_is_bounded_by_bytes(make_rig: Callable[..., Rig], args: list[Any]) -> None:
    """Wherever in a message the bytes are."""
    rig = make_rig(config={"limits": {"max_queued_bytes": 16 * 2**20, "max_message_bytes": 16 * 2**20}})
    client = rig.client()
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 1})
    sent = []
    while client.reading and len(sent) < 500:
        sent.append(client.send("dispatch", **axpy(1, args[0], args[1])))
    assert 100 < len(sent) < 180
    assert client.call("ping") == {}  # what was read already is answered
    rig.helper.answer()
    rig.settle()
    assert all(client.has(msgid) for msgid in sent)
    assert client.reading


async def test_rule_9_modules_on_their_way_count_as_queued_bytes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(
        config={"limits": {"max_queued_bytes": 2**20, "max_message_bytes": 2**20, "max_module_bytes": 2**20}}
    )
    client = rig.client()
    rig.helper.holding = True
    count = 0
    while client.reading and count < 1000:
        client.send("module.load", spirv=AXPY[:8] + count.to_bytes(4, "little") + AXPY[12:] + bytes(10_000))
        count += 1
    assert count < 150
    rig.helper.holding = False
    rig.settle()
    assert client.reading


async def test_rule_27_listings_on_their_way_count_as_queued_bytes(make_rig: Callable[..., Rig]) -> None:
    """One read holds thousands of such requests, and each answer is many times its module."""
    config = {"limits": {"max_queued_bytes": 2**16, "max_message_bytes": 2**16, "max_module_bytes": 2**16}}
    rig = make_rig(config=config)
    client = rig.client()
    module = client.load()
    rig.helper.holding = True
    msgids = client.burst(*[("module.inspect", {"module": module, "format": "spirv-asm"})] * 200)
    assert len(rig.helper.requests) < 10
    assert not client.reading
    rig.helper.holding = False
    while rig.turn():
        client.collect()
    assert [client.code(msgid) for msgid in msgids] == [None] * 200
    assert client.reading


SPECIALIZED = by_name("glsl_spec_constants")


async def specialized(rig: Rig) -> tuple[InProcessClient, int, list[int], dict[str, Any]]:
    """A client with a module that has specialization constants, buffers for it, and the parameters of a launch."""
    client = rig.client()
    module = client.load(SPECIALIZED.spirv)
    run = next(run for run in SPECIALIZED.runs if run.spec)
    buffers = [client.call("buffer.create", data=array.tobytes())["buffer"] for array in run.arrays().values()]
    values = {str(id): value for id, value in run.spec.items()}
    launch = {"module": module, "args": buffers, "grid": list(run.grid), "specialization": values}
    return client, module, buffers, launch


async def test_a_variant_is_analysed_once_and_what_follows_waits(rig: Rig) -> None:
    client, _, buffers, launch = await specialized(rig)
    rig.helper.holding = True
    first = client.send("dispatch", **launch)
    read = client.send("buffer.read", buffer=buffers[-1])
    second = client.send("dispatch", **launch)
    assert len(rig.helper.requests) == 1
    assert not client.has(read)
    rig.helper.answer()
    rig.settle()
    assert [client.code(msgid) for msgid in (first, read, second)] == [None] * 3
    third = client.send("dispatch", **launch)
    assert not rig.helper.requests
    rig.settle()
    assert client.code(third) is None


async def test_rule_44_a_helper_that_dies_fails_one_request_and_is_asked_again(rig: Rig) -> None:
    client, _, buffers, launch = await specialized(rig)
    rig.helper.holding = True
    first = client.send("dispatch", **launch)
    read = client.send("buffer.read", buffer=buffers[-1])
    rig.helper.answer(InternalError("the process died"))
    assert client.code(first) == "internal"
    rig.settle()
    assert client.code(read) is None
    second = client.send("dispatch", **launch)
    assert len(rig.helper.requests) == 1
    rig.helper.answer()
    rig.settle()
    assert client.code(second) is None


async def test_rule_44_the_failure_of_a_cancelled_request_is_nobody_elses(rig: Rig) -> None:
    client, _, _, launch = await specialized(rig)
    rig.helper.holding = True
    first = client.send("dispatch", **launch)
    client.call("cancel", msgid=first)
    assert client.code(first) == "cancelled"
    rig.helper.answer(InternalError("the process died"))
    second = client.send("dispatch", **launch)
    assert len(rig.helper.requests) == 1
    rig.helper.answer()
    rig.settle()
    assert client.code(second) is None
    assert not client.session.analysis_errors


async def test_two_connections_wait_for_one_analysis(rig: Rig) -> None:
    first, second = rig.client(), rig.client()
    rig.helper.holding = True
    loads = [client.send("module.load", spirv=HISTOGRAM) for client in (first, second)]
    assert len(rig.helper.requests) == 1
    rig.helper.answer()
    assert first.result(loads[0]) == second.result(loads[1])


async def test_rule_31_what_waited_at_shutdown_runs_and_new_work_does_not(rig: Rig, waiting: InProcessClient) -> None:
    launch = waiting.launch(3, 1, 2)
    read = waiting.send("buffer.read", buffer=2)
    idle = []
    rig.service.drain(lambda: idle.append(True))
    assert waiting.code(waiting.launch(3, 1, 2)) == "shutting_down"
    assert waiting.call("ping") == {}
    assert not idle
    rig.helper.answer()
    assert not idle
    rig.settle()
    assert (waiting.code(launch), waiting.code(read)) == (None, None)
    assert idle == [True]
    assert waiting.code(waiting.send("buffer.read", buffer=2)) == "shutting_down"


async def test_rule_31_what_is_still_queued_when_the_time_is_up_is_answered(
    rig: Rig, waiting: InProcessClient
) -> None:
    deferred = waiting.launch(3, 1, 2)
    other = rig.client()
    buffer = other.send("buffer.create", size=64)
    rig.service.devices[0].batcher.batches_in_flight = 1
    queued = other.send("buffer.read", buffer=1)
    idle = []
    rig.service.drain(lambda: idle.append(True))
    rig.service.fail_queued()
    assert waiting.code(deferred) == "shutting_down"
    assert other.code(queued) == "shutting_down"
    rig.thread.finish()
    assert other.code(buffer) is None
    rig.helper.answer()
    assert idle == [True]
