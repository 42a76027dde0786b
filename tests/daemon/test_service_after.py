"""`after`: jobs that wait for other requests, and what becomes of them, whatever the other request is and wherever
the job runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.inprocess import AXPY, HISTOGRAM, InProcessClient, Rig, axpy

from vkqueue.errors import InternalError, InvalidError


def prepared(rig: Rig, **params: Any) -> tuple[InProcessClient, int, int, int]:
    """A client with AXPY, launched once, and two buffers."""
    client = rig.client(**params)
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    return client, module, x, y


async def test_a_job_runs_once_the_request_before_it_has_succeeded(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    z = client.buffer()
    first = client.launch(module, x, y)
    second = client.launch(module, x, z, after=[first])
    assert len(rig.thread.batches) == 1
    rig.thread.finish()
    assert client.code(first) is None
    [batch] = rig.thread.batches
    assert [row[1] for row in batch.rows] == [second]
    rig.settle()
    assert client.code(second) is None


async def test_a_job_behind_a_failed_one_fails_as_dependency_and_never_runs(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    first = client.launch(module, x, y)
    second = client.launch(module, x, y, after=[first])
    rig.thread.finish({first: InternalError("scripted")})
    assert client.code(first) == "internal"
    assert client.code(second) == "dependency"
    assert not rig.thread.batches


async def test_a_failure_is_remembered_for_requests_that_come_later(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    failed = client.send("buffer.read", buffer=99)
    assert client.code(failed) == "not_found"
    assert client.code(client.launch(module, x, y, after=[failed])) == "dependency"


async def test_what_the_connection_refuses_itself_has_failed(rig: Rig) -> None:
    """Also in the burst of `hello`, behind which the connection looks only once it is accepted."""
    client = rig.client(hello=False)
    hello = ("hello", {"protocol": 1, "client": "test"})
    greeted, loaded, refused, launched = client.burst(
        hello,
        ("module.load", {"spirv": AXPY, "as": 1}),
        hello,
        ("dispatch", axpy(1, {"in": bytes(256)}, {"inout": bytes(256)}, after=[3])),
    )
    assert refused == 3
    rig.settle()
    assert [client.code(msgid) for msgid in (greeted, loaded, refused, launched)] == [
        None, None, "invalid", "dependency",
    ]  # fmt: skip


async def test_only_the_newest_failures_are_remembered(make_rig: Callable[..., Rig]) -> None:
    """The failures of the last `max_queued_jobs` requests; what is older counts as done."""
    rig = make_rig(config={"limits": {"max_queued_jobs": 4, "total_queued_jobs": 64}})
    client, module, x, y = prepared(rig)
    failures = [client.send("buffer.read", buffer=99) for _ in range(5)]
    codes = []
    for failed in failures:
        msgid = client.launch(module, x, y, after=[failed])
        rig.settle()
        codes.append(client.code(msgid))
    # Each refused launch is a failure as well, and pushes an older one out.
    assert codes[0] is None
    assert codes[-1] == "dependency"


async def test_msgids_that_never_were_and_its_own_count_as_done(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    msgid = client.launch(module, x, y, after=[0, 4_000_000_000, client.msgid + 1])
    rig.settle()
    assert client.code(msgid) is None


async def test_a_failed_msgid_that_is_used_again_counts_as_its_new_request(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    client.msgid = 1000
    assert client.code(client.send("buffer.read", buffer=99)) == "not_found"
    client.msgid = 1000
    again = client.launch(module, x, y)
    assert again == 1001
    behind = client.launch(module, x, y, after=[again])
    rig.settle()
    assert client.code(again) is None
    assert client.code(behind) is None
    assert rig.service.devices[0].scheduler.failed_before(client.session.id, [again]) is None


async def test_a_used_again_msgid_does_not_hide_another_failure(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    client.msgid = 1000
    assert client.code(client.send("buffer.read", buffer=99)) == "not_found"
    other = client.send("buffer.read", buffer=99)
    client.msgid = 1000
    again = client.launch(module, x, y)
    client.msgid = 2000
    assert client.code(client.launch(module, x, y, after=[again, other])) == "dependency"


async def test_a_job_waits_for_an_analysis_and_goes_when_it_comes(rig: Rig) -> None:
    """With the device idle nothing else would wake it."""
    client, module, x, y = prepared(rig)
    rig.helper.holding = True
    load = client.send("module.load", spirv=HISTOGRAM)
    job = client.launch(module, x, y, after=[load])
    assert not rig.thread.batches
    rig.helper.answer()
    assert client.code(load) is None
    rig.thread.finish()
    assert client.code(job) is None


async def test_a_job_waits_for_a_listing_and_goes_when_it_comes(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    rig.helper.holding = True
    listing = client.send("module.inspect", module=module, format="spirv-asm")
    job = client.launch(module, x, y, after=[listing])
    assert not rig.thread.batches
    rig.helper.answer()
    assert "OpEntryPoint" in client.result(listing)["text"]
    rig.thread.finish()
    assert client.code(job) is None


async def test_a_job_behind_a_failed_analysis_fails(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    rig.helper.holding = True
    load = client.send("module.load", spirv=HISTOGRAM)
    job = client.launch(module, x, y, after=[load])
    rig.helper.answer(InvalidError("scripted"))
    assert client.code(load) == "invalid"
    assert client.code(job) == "dependency"


async def test_a_load_that_fails_at_once_is_remembered_as_a_failure(rig: Rig) -> None:
    """The module is known to the daemon, so its analysis does not have to be waited for."""
    client, module, x, y = prepared(rig)
    failed = client.send("module.load", spirv=AXPY, entry="nobody")
    assert client.code(failed) == "not_found"
    assert client.code(client.launch(module, x, y, after=[failed])) == "dependency"


@pytest.mark.parametrize("params", [[3], [{}, {}], {"buffer": 1}, None], ids=repr)
async def test_a_request_refused_for_its_shape_is_a_failure(rig: Rig, params: Any) -> None:
    """It is answered before the service sees it, and has failed all the same."""
    client, module, x, y = prepared(rig)
    client.send_bytes(msgpack.packb([0, 70_000, "ping", params]))
    assert client.code(70_000) == "invalid"
    assert client.code(client.launch(module, x, y, after=[70_000])) == "dependency"


async def test_refusals_without_end_are_not_remembered_without_end(rig: Rig) -> None:
    client = rig.client()
    malformed = msgpack.packb([0, 5, "ping", [3]])
    for _ in range(20):
        client.send_bytes(malformed * 1000)
        client.session.conn.data_to_send()
    assert len(client.session.conn.refused) < 10_000


async def test_a_cancelled_request_takes_those_behind_it_along(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    rig.thread.batches.clear()
    waiting = client.launch(module, x, y, after=[client.launch(module, x, y)])
    behind = client.launch(module, x, y, after=[waiting])
    assert client.result(client.send("cancel", msgid=waiting)) == {"cancelled": True}
    assert client.code(waiting) == "cancelled"
    assert client.code(behind) == "dependency"
    assert client.answered.index(waiting) < client.answered.index(behind)


async def test_a_long_chain_fails_without_recursion(rig: Rig) -> None:
    """As long as the queue may be: each has its answer, in order."""
    client, module, x, y = prepared(rig)
    first = client.launch(module, x, y)
    count = rig.service.config.limits.max_queued_jobs - 1
    chain = client.burst(
        *(("dispatch", axpy(module, x, y, after=[client.msgid + index])) for index in range(count))
    )
    rig.thread.finish({first: InternalError("scripted")})
    assert client.code(first) == "internal"
    assert {client.code(msgid) for msgid in chain} == {"dependency"}
    assert client.answered[-count:] == chain
    stats = client.call("stats")
    assert (stats["jobs_queued"], stats["jobs_failed"]) == (0, count + 1)


async def test_a_job_on_another_device_goes_when_the_first_is_done(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(devices=2)
    client, module, x, y = prepared(rig, device=0)
    there = [client.call("buffer.create", size=256, device=1)["buffer"] for _ in range(2)]
    client.call("dispatch", **axpy(module, *there))
    first = client.launch(module, x, y)
    second = client.launch(module, *there, after=[first])
    assert not rig.threads[1].batches
    rig.threads[0].finish()
    assert [row[1] for batch in rig.threads[1].batches for row in batch.rows] == [second]


async def test_a_failure_on_one_device_reaches_a_job_on_another(make_rig: Callable[..., Rig]) -> None:
    """And a job behind that one, back on the first."""
    rig = make_rig(devices=2)
    client, module, x, y = prepared(rig, device=0)
    there = [client.call("buffer.create", size=256, device=1)["buffer"] for _ in range(2)]
    first = client.launch(module, x, y)
    second = client.launch(module, *there, after=[first])
    third = client.launch(module, x, y, after=[second])
    rig.threads[0].finish({first: InternalError("scripted")})
    assert [client.code(msgid) for msgid in (first, second, third)] == ["internal", "dependency", "dependency"]


async def test_an_expired_job_takes_those_behind_it_along(rig: Rig) -> None:
    client, module, x, y = prepared(rig)
    running = client.launch(module, x, y)
    late = client.launch(module, x, y, after=[running], deadline_ms=1)
    behind = client.launch(module, x, y, after=[late])
    assert await client.answer(late) == "expired"
    assert client.code(behind) == "dependency"


async def test_long_lists_are_held_against_the_connection(make_rig: Callable[..., Rig]) -> None:
    """4,096 jobs that each name all before them are eight million entries; they count as queued bytes."""
    config = {"limits": {"max_queued_bytes": 65536, "max_message_bytes": 65536, "max_module_bytes": 65536}}
    rig = make_rig(config=config)
    client, module, x, y = prepared(rig)
    first = client.msgid + 1
    msgids = client.burst(
        *(("dispatch", axpy(module, x, y, after=list(range(first, first + index)))) for index in range(200))
    )
    assert 1 < client.session.open_jobs < 100
    assert not client.reading
    while rig.turn():
        client.collect()
    assert {client.code(msgid) for msgid in msgids} == {None}
    assert client.reading


async def test_only_requests_sent_before_are_waited_for(rig: Rig) -> None:
    """A later one of the same burst may itself wait for this one, on a common buffer: neither would ever run."""
    client, module, x, y = prepared(rig)
    burst = [
        msgpack.packb([0, 500, "dispatch", [axpy(module, x, y, after=[501])]]),
        msgpack.packb([0, 501, "dispatch", [axpy(module, x, y)]]),
    ]
    client.send_bytes(b"".join(burst))
    rig.settle()
    assert (client.code(500), client.code(501)) == (None, None)
