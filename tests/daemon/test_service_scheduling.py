"""When jobs leave, in what company, and what can still happen to them before they do."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.inprocess import HISTOGRAM, InProcessClient, Rig, axpy


def prepared(rig: Rig, **params: object) -> tuple[InProcessClient, int, int, int]:
    client = rig.client(**params)
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    return client, module, x, y


def never_for_delay(rig: Rig) -> None:
    """Batches leave because the device is idle or they are full, not because time has passed."""
    for device in rig.service.devices:
        device.batcher.max_batch_delay_ns = 10**15


async def test_rule_17_an_idle_device_gets_a_job_at_once(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    assert len(rig.thread.batches) == 1


async def test_rule_17_a_backlog_leaves_as_one_batch_when_one_comes_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 2, "max_batch_delay_us": 0}})
    client, module, x, y = prepared(rig)
    for _ in range(2):
        client.launch(module, x, y)
    backlog = [client.launch(module, x, y) for _ in range(50)]
    assert len(rig.thread.batches) == 2
    rig.thread.finish()
    assert [[row[1] for row in batch.rows] for batch in rig.thread.batches][1] == backlog
    assert rig.thread.batches[1].reason == "backlog"


async def test_rule_18_batches_do_not_shrink_under_load(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1, "max_batch_delay_us": 0, "max_batch_jobs": 64}})
    client, module, x, y = prepared(rig)
    sizes = []
    client.launch(module, x, y)
    for load in (1, 10, 40, 64, 200):
        for _ in range(load):
            client.launch(module, x, y)
        rig.thread.finish()
        sizes.append(len(rig.thread.batches[0].rows))
        while len(rig.thread.batches[0].rows) < rig.service.devices[0].scheduler.queued:
            rig.thread.finish()
    assert sizes == sorted(sizes)
    assert sizes[-1] == 64


async def test_rule_18_the_delay_counts_from_the_oldest_job(make_rig: Callable[..., Rig]) -> None:
    """A steady trickle does not put it off."""
    rig = make_rig(config={"batching": {"max_batch_delay_us": 20_000}})
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    started = time.monotonic()
    while len(rig.thread.batches) < 2:
        client.launch(module, x, y)
        await asyncio.sleep(0.001)
    assert rig.thread.batches[1].reason == "delay"
    assert 0.019 < time.monotonic() - started < 5
    assert len(rig.thread.batches[1].rows) > 1


async def test_rule_2_clients_that_alternate_share_a_batch(rig: Rig) -> None:
    never_for_delay(rig)
    first, second = rig.client(), rig.client()
    sides = []
    for client in (first, second):
        module = client.load()
        sides.append((client, module, client.buffer(), client.buffer()))
        client.call("dispatch", **axpy(*sides[-1][1:]))
    blocker = first.send("buffer.read", buffer=sides[0][2])
    submits = first.call("stats")["submits"]
    msgids = [(client, client.launch(module, x, y)) for _ in range(20) for client, module, x, y in sides]
    rig.thread.finish()
    [batch] = rig.thread.batches
    assert len(batch.rows) == 40
    rig.settle()
    assert {client.code(msgid) for client, msgid in msgids} == {None}
    assert first.code(blocker) is None
    assert first.call("stats")["submits"] == submits + 2


async def test_clients_take_turns_when_not_all_fit(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1, "max_batch_jobs": 8}})
    busy, module, x, y = prepared(rig)
    other, module2, x2, y2 = prepared(rig)
    busy.launch(module, x, y)
    for _ in range(100):
        busy.launch(module, x, y)
    late = other.launch(module2, x2, y2)
    rig.thread.finish()
    assert (other.session.id, late) in [(row[0], row[1]) for row in rig.thread.batches[0].rows]


async def test_rule_20_other_connections_notice_nothing_of_a_full_one(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 4}, "batching": {"batches_in_flight": 1}})
    full, module, x, y = prepared(rig)
    other, module2, x2, y2 = prepared(rig)
    for _ in range(6):
        full.launch(module, x, y)
    assert full.code(full.msgid) == "overloaded"
    launch = other.launch(module2, x2, y2)
    rig.settle()
    assert other.code(launch) is None


async def test_rule_19_a_deadline_passes_while_the_device_is_busy(make_rig: Callable[..., Rig]) -> None:
    """On time, and the job is never recorded."""
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    running = client.launch(module, x, y)
    started = time.monotonic()
    late = client.launch(module, x, y, deadline_ms=20)
    in_time = client.launch(module, x, y, deadline_ms=60_000)
    plain = client.launch(module, x, y)
    assert await client.answer(late) == "expired"
    assert 0.019 < time.monotonic() - started < 5
    assert not client.has(running)
    rig.thread.finish()
    assert [row[1] for row in rig.thread.batches[0].rows] == [in_time, plain]
    rig.settle()
    assert [client.code(msgid) for msgid in (running, in_time, plain)] == [None] * 3


async def test_rule_19_deadlines_fire_in_their_own_order(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    later = client.launch(module, x, y, deadline_ms=30)
    sooner = client.launch(module, x, y, deadline_ms=10)
    assert await client.answer(sooner) == "expired"
    assert not client.has(later)
    assert await client.answer(later) == "expired"


async def test_rule_19_time_for_compiling_counts(rig: Rig) -> None:
    client, _, x, _ = prepared(rig)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    params = {"module": histogram, "args": [x, counts], "scalars": [64], "grid": [1]}
    late = client.send("dispatch", **params, deadline_ms=5)
    patient = client.send("dispatch", **params)
    assert await client.answer(late) == "expired"
    rig.settle()
    assert client.code(patient) is None


async def test_rule_19_a_job_past_its_deadline_is_not_taken_even_before_the_timer(
    make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    late = client.launch(module, x, y, deadline_ms=1)
    until = time.monotonic() + 0.003
    while time.monotonic() < until:  # the loop, and so the timer, does not run
        pass
    rig.thread.finish()
    assert not rig.thread.batches
    assert await client.answer(late) == "expired"


async def test_rule_15_others_go_on_while_a_pipeline_is_built(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    other, module2, x2, y2 = prepared(rig)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    waits = client.send("dispatch", module=histogram, args=[x, counts], scalars=[64], grid=[1])
    own = client.launch(module, x, y)  # shares a buffer that both only read
    theirs = other.launch(module2, x2, y2)
    rig.thread.finish()
    while rig.thread.batches:
        rig.thread.finish()
    assert (client.code(own), other.code(theirs)) == (None, None)
    assert not client.has(waits)
    rig.settle()
    assert client.code(waits) is None


async def test_a_job_does_not_pass_one_with_a_common_buffer_that_is_held(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    waits = client.send("dispatch", module=histogram, args=[x, counts], scalars=[64], grid=[1])
    read = client.send("buffer.read", buffer=counts)
    write = client.send("buffer.write", buffer=x, data=b"1234")
    assert not rig.thread.batches
    rig.settle()
    assert [client.code(msgid) for msgid in (waits, read, write)] == [None] * 3
    order = [row[1] for batch in rig.thread.posted if hasattr(batch, "rows") for row in batch.rows]
    assert order.index(waits) < order.index(read)
    assert order.index(waits) < order.index(write)


async def test_priority_orders_a_connections_own_jobs(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1, "max_batch_jobs": 1}})
    client, module, x, y = prepared(rig)
    pairs = [(client.buffer(), client.buffer()) for _ in range(3)]
    client.launch(module, x, y)
    low, middle, high = (
        client.launch(module, *pair, priority=priority) for pair, priority in zip(pairs, (-100, 0, 100), strict=True)
    )
    rig.settle()
    assert client.has(low)
    assert client.answered[-3:] == [high, middle, low]


async def test_priority_never_passes_a_job_with_a_common_buffer(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1, "max_batch_jobs": 1}})
    client, module, x, y = prepared(rig)
    z = client.buffer()
    client.launch(module, x, z)
    first = client.launch(module, x, y, priority=-100)
    second = client.launch(module, x, y, priority=100)
    rig.settle()
    assert client.has(second)
    assert client.answered[-2:] == [first, second]


async def test_cancel_takes_a_queued_job_out_and_answers_it_first(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    running = client.launch(module, x, y)
    queued = client.send("buffer.write", buffer=x, data=b"1234")
    behind = client.send("buffer.read", buffer=x)
    cancel = client.send("cancel", msgid=queued)
    assert client.result(cancel) == {"cancelled": True}
    assert client.code(queued) == "cancelled"
    assert client.answered[-2:] == [queued, cancel]
    assert client.result(client.send("cancel", msgid=queued)) == {"cancelled": False}
    assert client.result(client.send("cancel", msgid=running)) == {"cancelled": False}
    rig.settle()
    assert client.code(running) is None
    assert client.code(behind) is None  # as if it had not been sent
    assert client.result(client.send("cancel", msgid=running)) == {"cancelled": False}
    assert queued not in [row[1] for item in rig.thread.posted if hasattr(item, "rows") for row in item.rows]


async def test_cancel_reaches_no_other_connection(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    other = rig.client()
    client.launch(module, x, y)
    queued = client.launch(module, x, y)
    other.msgid = queued + 10
    assert other.result(other.send("cancel", msgid=queued)) == {"cancelled": False}
    rig.settle()
    assert client.code(queued) is None


async def test_cancel_of_a_creation_takes_its_handle_and_memory_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    before = client.session.memory_bytes
    create = client.send("buffer.create", size=4096)
    handle = client.session.next_handle - 1
    write = client.send("buffer.write", buffer=handle, data=b"1234")
    assert client.result(client.send("cancel", msgid=create)) == {"cancelled": True}
    assert client.session.memory_bytes == before
    assert client.code(client.send("buffer.read", buffer=handle)) == "not_found"
    rig.settle()
    assert client.code(create) == "cancelled"
    assert client.has(write)


async def test_rule_22_a_dead_clients_jobs_leave_the_queue_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)
    other, module2, x2, y2 = prepared(rig)
    client.launch(module, x, y)
    for index in range(50):
        client.launch(module, x, y, priority=index, after=[client.msgid], deadline_ms=60_000)
    assert other.call("ping") == {}
    client.close()
    assert rig.service.devices[0].scheduler.queued == 0
    launch = other.launch(module2, x2, y2)
    rig.thread.finish()
    [batch] = rig.thread.batches
    assert [(row[0], row[1]) for row in batch.rows] == [(other.session.id, launch)]


async def test_rule_22_nothing_is_said_to_a_dead_client(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    client.send("buffer.read", buffer=x)
    client.close()
    rig.settle()
    assert client.session.conn.data_to_send() == []
    assert rig.service.stats()["clients"] == 0


async def test_rule_23_control_messages_are_answered_while_everything_is_full(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 8, "total_queued_jobs": 16}})
    client, module, x, y = prepared(rig)
    for _ in range(20):
        client.launch(module, x, y)
    for method, params in (("ping", {}), ("stats", {}), ("devices", {}), ("cancel", {"msgid": 1})):
        assert client.has(client.send(method, **params))
    stats = client.call("stats")
    assert (stats["clients"], len(stats["devices"])) == (1, 1)


async def test_rule_25_reasons_and_sizes_of_batches_are_counted(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    for _ in range(3):
        client.launch(module, x, y)
    client.burst(*[("dispatch", axpy(module, x, y))] * 37)
    rig.settle()
    stats = client.call("stats")
    device = stats["devices"][0]
    assert sum(device["closed"].values()) == device["batches"] == stats["batches"]
    assert set(device["closed"]) == {"idle", "full", "delay", "backlog"}
    assert device["closed"]["backlog"] == 1
    assert device["batch_sizes"]["32"] == 1
    assert sum(device["batch_sizes"].values()) == device["batches"]


async def test_rule_3_equal_launches_cost_linear_time(make_rig: Callable[..., Rig]) -> None:
    """20,000 without a wait, against 2,000: ten times as many lines of Python run, not a hundred times."""
    rig = make_rig(config={"limits": {"max_queued_jobs": 50_000}, "batching": {"batches_in_flight": 1}})
    client, module, x, y = prepared(rig)

    def lines(count: int) -> int:
        client.launch(module, x, y)
        data = b"".join([client.encode("dispatch", **axpy(module, x, y)) for _ in range(count)])
        run = 0

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal run
            run += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            client.send_bytes(data)
            rig.settle()
        finally:
            sys.settrace(before)
        client.collect()
        return run

    lines(2_000)  # what is made once
    assert lines(20_000) < 12 * lines(2_000)
    assert client.call("stats")["jobs_queued"] == 0


async def test_timing_and_device_are_answered_on_demand(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    answer = client.call("dispatch", **axpy(module, x, y, timing=True))
    assert set(answer) == {"outputs", "timing", "device"}
    assert answer["device"] == 0
    timing = answer["timing"]
    assert set(timing) == {"queued_us", "device_us", "total_us"}
    assert all(type(value) is int for value in timing.values())
    assert timing["device_us"] == 3
    assert timing["total_us"] >= timing["queued_us"] >= 0
    assert client.call("dispatch", **axpy(module, x, y, timing=False, label="named")) == {"outputs": []}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "5"], ids=repr)
async def test_a_deadline_is_a_positive_integer(rig: Rig, wrong: object) -> None:
    client, module, x, y = prepared(rig)
    assert client.code(client.launch(module, x, y, deadline_ms=wrong)) == "invalid"


async def test_a_deadline_may_be_as_far_away_as_a_number_goes(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    msgid = client.launch(module, x, y, deadline_ms=2**63 - 1)
    rig.settle()
    assert client.code(msgid) is None


async def test_a_service_at_rest_has_no_timers(rig: Rig) -> None:
    """Rule 24: with nothing to do nothing wakes the loop."""
    client, module, x, y = prepared(rig)
    msgid = client.launch(module, x, y, deadline_ms=5)
    rig.settle()
    assert client.code(msgid) is None
    loop = asyncio.get_running_loop()

    def timers() -> list[asyncio.TimerHandle]:
        return [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    # The one for the deadline, that nobody waits for any more, may still fire; it sets no other.
    passed = asyncio.Event()
    loop.call_at(max((timer.when() for timer in timers()), default=0.0) + 0.001, passed.set)
    await passed.wait()
    assert not timers()
