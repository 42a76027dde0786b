"""A device that is lost, late, or does not open: answers exactly once, and what can be goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.inprocess import AXPY, HISTOGRAM, InProcessClient, Rig, axpy

from vkqueue.errors import InternalError, JobTimeoutError, OutOfDeviceMemoryError, UnsupportedError


def prepared(rig: Rig, **params: object) -> tuple[InProcessClient, int, int, int]:
    client = rig.client(**params)
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    return client, module, x, y


async def test_rule_35_every_job_gets_one_answer(rig: Rig) -> None:
    """In flight, queued, held for a pipeline, behind another: each exactly once."""
    client, module, x, y = prepared(rig)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    in_flight = [client.launch(module, x, y) for _ in range(3)]
    queued = [client.launch(module, x, y), client.send("buffer.read", buffer=x), client.send("buffer.create", size=8)]
    held = client.send("dispatch", module=histogram, args=[x, counts], scalars=[64], grid=[1])
    behind = client.launch(module, x, y, after=[in_flight[0]])
    assert len(rig.thread.batches) == 3
    rig.thread.lose()
    codes = {msgid: client.code(msgid) for msgid in [*in_flight, *queued, held, behind]}
    assert set(codes.values()) <= {"device_lost", "dependency"}
    assert all(codes[msgid] == "device_lost" for msgid in [*in_flight, *queued, held])
    assert not client.session.conn.pending
    assert rig.opened == 2
    rig.thread.open()


async def test_rule_35_buffers_are_reported_lost_and_new_work_is_served(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    rig.thread.lose()
    rig.thread.open()
    for method, params in (
        ("buffer.read", {"buffer": x}),
        ("buffer.write", {"buffer": x, "data": b"1234"}),
        ("dispatch", axpy(module, x, y)),
        ("dispatch", axpy(module, [x, 0, 256], {"inout": bytes(256)})),
    ):
        assert client.code(client.send(method, **params)) == "device_lost", method
    held = client.session.memory_bytes
    for buffer in (x, y):
        assert client.call("buffer.free", buffer=buffer) == {}
        assert client.code(client.send("buffer.read", buffer=buffer)) == "not_found"
    assert (held, client.session.memory_bytes, client.session.buffers) == (512, 0, 0)
    # The module is there still: it is loaded again by the launch that needs it.
    x, y = client.buffer(), client.buffer()
    assert client.call("dispatch", **axpy(module, x, y)) == {"outputs": []}
    stats = client.call("stats")["devices"][0]
    assert (stats["generation"], stats["working"]) == (1, True)


async def test_rule_35_a_repeated_launch_does_not_outlive_the_device(rig: Rig) -> None:
    """Byte for byte the request that succeeded before."""
    client, module, x, y = prepared(rig)
    for _ in range(4):
        client.call("dispatch", **axpy(module, x, y))
    rig.thread.lose()
    rig.thread.open()
    assert client.code(client.launch(module, x, y)) == "device_lost"


async def test_rule_35_while_it_is_being_rebuilt(rig: Rig) -> None:
    client, module, x, _ = prepared(rig)
    rig.thread.lose()
    assert rig.health[-1] is False
    assert client.code(client.send("buffer.create", size=4)) == "device_lost"
    assert client.call("ping") == {}
    assert client.code(client.send("module.load", spirv=HISTOGRAM)) == "unsupported"
    assert rig.client().welcome["device"] is None
    launch = client.send("dispatch", **axpy(module, {"in": bytes(256)}, {"inout": bytes(256)}))
    rig.settle()
    assert not client.has(launch)
    rig.thread.open()
    assert rig.health[-1] is True
    rig.settle()
    assert client.result(launch) == {"outputs": [bytes(256)]}
    assert client.call("buffer.free", buffer=x) == {}


async def test_rule_36_a_completion_of_the_old_device_is_no_answer(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    launch = client.launch(module, x, y)
    old = rig.thread
    [batch] = old.batches
    build = client.send("dispatch", module=histogram, args=[x, counts], scalars=[1], grid=[1])
    spec = old.specs[0]
    old.lose()
    rig.thread.open()
    assert client.code(launch) == "device_lost"
    assert client.code(build) == "device_lost"
    completed = client.call("stats")["jobs_completed"]
    old.deliver(old.completion(batch))
    old.specs.append(spec)
    old.build()
    assert client.call("stats")["jobs_completed"] == completed


async def test_rule_35_38_a_batch_that_was_late_and_is_then_lost_is_answered_once(rig: Rig) -> None:
    """What a hang usually becomes: the limit passes, then the driver gives up."""
    client, module, x, y = prepared(rig)
    late, other = client.launch(module, x, y), client.launch(module, x, y)
    rig.thread.late(JobTimeoutError("scripted"))
    assert client.code(late) == "timeout"
    rig.thread.lose()
    assert client.code(other) == "device_lost"
    assert client.session.open_jobs == 0
    assert rig.opened == 2
    rig.thread.open()
    assert client.buffer()


async def test_what_is_queued_behind_batches_that_never_end_is_answered(make_rig: Callable[..., Rig]) -> None:
    """As many as may be in flight are past their limits: nobody knows whether another will ever be submitted."""
    rig = make_rig(config={"batching": {"batch_timeout_s": 0.02, "batches_in_flight": 2}})
    client, module, x, y = prepared(rig)
    in_flight = [client.launch(module, x, y) for _ in range(2)]
    queued = [client.launch(module, x, y), client.send("buffer.create", size=8)]
    client.send("buffer.free", buffer=y)
    for _ in in_flight:
        rig.thread.late(JobTimeoutError("scripted"))
        rig.thread.batches.rotate(1)
    assert [client.code(msgid) for msgid in in_flight] == ["timeout"] * 2
    for msgid in queued:
        assert await client.answer(msgid) == "timeout"
    later = client.send("buffer.read", buffer=x)
    assert await client.answer(later) == "timeout", "it has its own time to wait for"
    assert client.session.memory_bytes == 512, "what the batches use is not freed, nor is the turn to free it lost"
    while rig.thread.batches:
        rig.thread.finish()
    assert client.session.memory_bytes == 256
    rig.settle()
    assert client.call("buffer.read", buffer=x) == {"data": bytes(256)}
    assert client.session.open_jobs == 0


async def test_rule_38_a_late_batch_is_answered_while_it_runs_and_stays(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    late = client.launch(module, x, y)
    client.send("buffer.free", buffer=y)
    rig.thread.late(JobTimeoutError("scripted"))
    assert client.code(late) == "timeout"
    assert client.session.memory_bytes == 512  # its objects stay until the fence is known
    assert rig.service.busy
    other = client.send("buffer.read", buffer=x)
    assert len(rig.thread.batches) == 2  # others go on behind it
    rig.thread.finish()
    assert client.session.memory_bytes == 256
    rig.settle()
    assert client.code(other) is None
    stats = client.call("stats")
    assert stats["jobs_failed"] == 1


async def test_rule_38_a_late_create_is_taken_back(rig: Rig) -> None:
    """The client was told `timeout`, so it has no buffer."""
    client = rig.client()
    create = client.send("buffer.create", size=64)
    rig.thread.late(JobTimeoutError("scripted"))
    assert client.code(create) == "timeout"
    assert client.code(client.send("buffer.read", buffer=1)) == "not_found"
    assert (client.session.buffers, client.session.memory_bytes) == (0, 0)
    rig.thread.finish()
    assert rig.thread.created <= rig.thread.released


async def test_rule_37_rebuilding_that_fails_a_few_times_in_a_row_is_fatal(rig: Rig) -> None:
    rig.thread.lose()
    for _ in range(3):
        assert rig.service.fatal is None
        rig.thread.fail_to_open(UnsupportedError("scripted"))
    assert rig.service.fatal is not None
    assert rig.opened == 4
    rig.service.fatal = None


async def test_rule_37_a_device_that_is_lost_again_at_once_is_given_up(rig: Rig) -> None:
    """It opens each time, and nothing ever succeeds on it."""
    client = rig.client()
    for _ in range(3):
        rig.thread.lose()
        assert rig.service.fatal is None
        rig.thread.open()
        client.send("buffer.create", size=64)
    rig.thread.lose()
    assert rig.service.fatal is not None


async def test_rule_37_losses_that_lie_apart_are_not_counted_together(rig: Rig) -> None:
    client = rig.client()
    for _ in range(10):
        rig.thread.lose()
        rig.thread.open()
        client.buffer()
    assert rig.service.fatal is None
    assert client.call("stats")["devices"][0]["generation"] == 10
    for buffer in range(1, 10):
        client.call("buffer.free", buffer=buffer)


async def test_rule_37_a_failed_rebuild_then_a_good_one(rig: Rig) -> None:
    client, module, *_ = prepared(rig)
    rig.thread.lose()
    held = client.send("dispatch", **axpy(module, {"in": bytes(256)}, {"inout": bytes(256)}))
    refused = rig.thread
    assert len(refused.specs) == 1
    refused.fail_to_open(UnsupportedError("scripted"))
    assert rig.thread is not refused
    rig.thread.open()
    assert rig.service.healthy
    rig.settle()
    assert client.result(held) == {"outputs": [bytes(256)]}


async def test_a_lost_connection_and_a_lost_device(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    client.launch(module, x, y)
    client.send("buffer.free", buffer=y)
    client.close()
    rig.thread.lose()
    rig.thread.open()
    assert rig.service.devices[0].memory_bytes == 0
    assert rig.client().buffer()


async def test_what_waits_for_an_analysis_meets_the_new_device(rig: Rig) -> None:
    client, *_ = prepared(rig)
    x = client.buffer()
    rig.helper.holding = True
    load = client.send("module.load", spirv=HISTOGRAM)
    handle = client.session.next_handle - 1
    launch = client.send("dispatch", module=handle, args=[x, {"inout": bytes(1024)}], scalars=[1], grid=[1])
    transient = client.send(
        "dispatch", module=handle, args=[{"in": bytes(4)}, {"inout": bytes(1024)}], scalars=[1], grid=[1]
    )
    rig.thread.lose()
    rig.thread.open()
    rig.helper.answer()
    rig.settle()
    assert client.code(load) is None
    assert client.code(launch) == "device_lost"
    assert client.result(transient) == {"outputs": [bytes(1024)]}


async def test_other_devices_notice_nothing(make_rig: Callable[..., Rig]) -> None:
    """Their buffers, kernels and cached launches stay as they are, and are still forgotten when they are freed."""
    rig = make_rig(devices=2)
    first, module, x, y = prepared(rig, device=0)
    there = [first.call("buffer.create", size=256, device=1)["buffer"] for _ in range(2)]
    for _ in range(3):
        first.call("dispatch", **axpy(module, *there))
    running = first.launch(module, *there)
    rig.threads[0].lose()
    rig.settle()
    assert first.code(running) is None
    assert first.call("dispatch", **axpy(module, *there)) == {"outputs": []}
    first.call("buffer.free", buffer=there[0])
    assert first.code(first.launch(module, *there)) == "not_found"
    rig.threads[0].open()
    assert first.code(first.launch(module, x, y)) == "device_lost"


async def test_a_device_lost_before_the_other_has_opened_does_not_count_twice() -> None:
    rig = Rig(devices=2)
    rig.service.start(lambda: setattr(rig, "started", rig.started + 1), rig.health.append)
    rig.threads[0].open()
    rig.threads[0].lose()
    rig.threads[0].open()
    assert rig.started == 0
    rig.threads[1].open()
    assert rig.started == 1


async def test_a_device_that_does_not_open_at_the_start_leaves_the_others() -> None:
    rig = Rig(devices=2)
    rig.service.start(lambda: setattr(rig, "started", rig.started + 1), rig.health.append)
    rig.threads[0].fail_to_open(UnsupportedError("scripted"))
    rig.threads[1].open()
    assert rig.started == 1
    assert not rig.service.healthy
    client = rig.client()
    assert client.welcome["device"] == 1
    assert [device["index"] for device in client.welcome["devices"]] == [1]
    assert client.buffer()
    assert client.code(client.send("buffer.create", size=4, device=0)) == "device_lost"


async def test_no_device_at_all() -> None:
    rig = Rig(devices=0)
    rig.service.start(lambda: setattr(rig, "started", 1), rig.health.append)
    assert rig.started == 1
    client = rig.client()
    assert client.welcome["device"] is None
    assert client.welcome["devices"] == []
    assert client.code(client.send("buffer.create", size=4)) == "unsupported"
    assert client.code(client.send("module.load", spirv=AXPY)) == "unsupported"
    assert client.call("stats")["devices"] == []


async def test_rule_21_one_bad_job_fails_alone(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    other = rig.client()
    theirs = other.buffer()
    rig.service.devices[0].batcher.max_batch_delay_ns = 10**12
    blocker = client.send("buffer.read", buffer=x)
    jobs = client.burst(("dispatch", axpy(module, x, y)), ("dispatch", axpy(module, x, y)))
    read = other.send("buffer.read", buffer=theirs)
    rig.thread.finish()
    [batch] = rig.thread.batches
    assert len(batch.rows) == 3
    rig.thread.finish({jobs[0]: OutOfDeviceMemoryError("scripted")})
    assert [client.code(msgid) for msgid in (blocker, *jobs)] == [None, "out_of_memory", None]
    assert other.code(read) is None
    stats = client.call("stats")
    assert (stats["jobs_failed"], stats["jobs_queued"]) == (1, 0)


@pytest.mark.parametrize("count", [1, 5])
async def test_a_batch_that_failed_as_a_whole_leaves_nothing(rig: Rig, count: int) -> None:
    client, module, x, y = prepared(rig)
    jobs = client.burst(*[("dispatch", axpy(module, {"in": bytes(256)}, {"inout": bytes(256)}))] * count)
    rig.thread.finish(dict.fromkeys(jobs, InternalError("scripted")))
    assert [client.code(msgid) for msgid in jobs] == ["internal"] * count
    assert client.call("dispatch", **axpy(module, x, y)) == {"outputs": []}
