"""What one connection may make the daemon hold: counted for each request, not only for each read of the socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.inprocess import AXPY, InProcessClient, Rig, ServiceError, axpy

KIB = 1024
SMALL = {"max_queued_bytes": 256 * KIB, "max_message_bytes": 256 * KIB, "max_module_bytes": 64 * KIB}


@pytest.fixture
def small(make_rig: Callable[..., Rig]) -> Rig:
    """A service whose connections may hold 256 KiB."""
    return make_rig(config={"limits": {**SMALL, "max_output_bytes": 256 * KIB}})


def drain(rig: Rig, *clients: InProcessClient) -> None:
    """Let everything end while the clients read their answers."""
    while rig.turn() or not all(client.reading for client in clients):
        for client in clients:
            client.collect()


async def test_rule_20_past_the_count_the_answer_is_overloaded_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 4, "total_queued_jobs": 40}})
    client, other = rig.client(), rig.client()
    assert client.welcome["limits"]["max_queued_jobs"] == 4
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    rig.service.devices[0].batcher.batches_in_flight = 1
    taken = [
        client.launch(module, x, y),
        client.send("buffer.read", buffer=x),
        client.send("buffer.write", buffer=x, data=b"1234"),
        client.send("buffer.create", size=4),
    ]
    for method, params in (
        ("dispatch", axpy(module, x, y)),
        ("dispatch", axpy(module, x, {"inout": bytes(256)})),
        ("buffer.read", {"buffer": x}),
        ("buffer.write", {"buffer": x, "data": b"1234"}),
        ("buffer.create", {"size": 4}),
    ):
        with pytest.raises(ServiceError) as error:
            client.result(client.send(method, **params))
        assert error.value.code == "overloaded", method
        assert error.value.data == {"max_queued_jobs": 4}
    assert client.call("ping") == {}
    assert other.code(other.send("buffer.create", size=4)) if other.has(other.msgid) else True
    rig.settle()
    assert [client.code(msgid) for msgid in taken] == [None] * 4
    assert client.call("dispatch", **axpy(module, x, y)) == {"outputs": []}


async def test_rule_20_frees_and_unloads_are_no_jobs(make_rig: Callable[..., Rig]) -> None:
    """A full queue must not keep a client from giving things back."""
    rig = make_rig(config={"limits": {"max_queued_jobs": 2, "total_queued_jobs": 40}})
    client = rig.client()
    module, x = client.load(), client.buffer()
    taken = [client.send("buffer.read", buffer=x) for _ in range(2)]
    assert client.code(client.send("buffer.read", buffer=x)) == "overloaded"
    assert client.result(client.send("buffer.free", buffer=x)) == {}
    assert client.result(client.send("module.unload", module=module)) == {}
    rig.settle()
    assert [client.code(msgid) for msgid in taken] == [None] * 2


async def test_rule_20_the_queue_is_bounded_over_all_connections(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 4, "total_queued_jobs": 6}})
    clients = [rig.client() for _ in range(3)]
    buffers = [client.buffer() for client in clients]
    rig.service.devices[0].batcher.batches_in_flight = 1
    clients[0].send("buffer.read", buffer=buffers[0])  # leaves at once
    for client, buffer in zip(clients[:2], buffers, strict=False):
        for _ in range(3):
            client.send("buffer.read", buffer=buffer)
    with pytest.raises(ServiceError) as error:
        clients[2].result(clients[2].send("buffer.read", buffer=buffers[2]))
    assert error.value.code == "overloaded"
    assert error.value.data == {"total_queued_jobs": 6}
    rig.settle()
    assert clients[2].call("buffer.read", buffer=buffers[2])


async def test_rule_20_a_full_daemon_does_not_refuse_what_it_accepted_before(make_rig: Callable[..., Rig]) -> None:
    """Accepted, and deferred for its analysis, while the others filled the queue, which is empty again by then."""
    rig = make_rig(config={"limits": {"max_queued_jobs": 4, "total_queued_jobs": 4}})
    client, other = rig.client(), rig.client()
    x = other.buffer()
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 1})
    waits = client.send("dispatch", **axpy(1, {"in": bytes(256)}, {"inout": bytes(256)}))
    rig.service.devices[0].batcher.batches_in_flight = 1
    for _ in range(4):
        other.send("buffer.read", buffer=x)
    assert other.code(other.send("buffer.read", buffer=x)) == "overloaded"
    rig.settle()
    rig.helper.answer()
    rig.settle()
    assert client.code(waits) is None


@pytest.mark.parametrize("what", ["write", "in", "out", "read", "create"])
async def test_rule_9_past_the_bytes_further_requests_wait_even_of_one_read(small: Rig, what: str) -> None:
    """A read of the socket may bring thousands of small requests for large results."""
    client, other = small.client(), small.client()
    module, x = client.load(), client.buffer(64 * KIB)
    y = client.buffer()
    data = bytes(64 * KIB)
    request = {
        "write": ("buffer.write", {"buffer": x, "data": data}),
        "in": ("dispatch", axpy(module, {"in": data}, y)),
        "out": ("dispatch", axpy(module, y, {"out": 64 * KIB})),
        "read": ("buffer.read", {"buffer": x}),
        "create": ("buffer.create", {"data": data}),
    }[what]
    msgids = client.burst(*[request] * 100)
    assert client.session.queued_bytes - client.session.deferred_bytes <= 320 * KIB
    assert 4 <= client.session.open_jobs <= 5
    assert not client.reading
    assert client.call("ping") == {}
    assert other.call("buffer.create", size=4)["buffer"]
    drain(small, client)
    assert [client.code(msgid) for msgid in msgids] == [None] * 100


async def test_rule_9_what_waits_for_its_bytes_stays_in_order(small: Rig) -> None:
    client = small.client()
    x = client.buffer(128 * KIB)
    large = ("buffer.write", {"buffer": x, "data": bytes(128 * KIB)})
    msgids = client.burst(large, large, large, ("buffer.free", {"buffer": x}), ("buffer.read", {"buffer": x}))
    assert not client.has(msgids[3])
    drain(small, client)
    assert [client.code(msgid) for msgid in msgids] == [None, None, None, None, "not_found"]


async def test_rule_9_a_client_that_was_stopped_goes_on_where_it_was(small: Rig) -> None:
    client = small.client()
    x = client.buffer(64 * KIB)
    for round in range(5):
        sent = []
        while client.reading:
            sent.append(client.send("buffer.write", buffer=x, data=bytes(64 * KIB)))
        assert len(sent) == 5, round
        drain(small, client)
        assert [client.code(msgid) for msgid in sent] == [None] * 5


async def test_rule_9_one_request_may_be_as_large_as_a_message(small: Rig) -> None:
    """However low the bound, whatever fits a message goes through."""
    client = small.client()
    x = client.buffer(256 * KIB - 1024)
    for _ in range(3):
        sent = client.send("buffer.write", buffer=x, data=bytes(256 * KIB - 1024))
        drain(small, client)
        assert client.code(sent) is None


async def test_rule_9_the_bytes_of_all_connections_are_bounded(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {**SMALL, "total_queued_bytes": 300 * KIB}})
    clients = [rig.client() for _ in range(8)]
    buffers = [client.buffer(64 * KIB) for client in clients]
    sent = [
        client.burst(*[("buffer.write", {"buffer": buffer, "data": bytes(64 * KIB)})] * 3)
        for client, buffer in zip(clients, buffers, strict=True)
    ]
    assert rig.service._queued_bytes - rig.service._deferred_bytes <= 364 * KIB
    assert not any(client.reading for client in clients[2:])
    drain(rig, *clients)
    for client, msgids in zip(clients, sent, strict=True):
        assert [client.code(msgid) for msgid in msgids] == [None] * 3


async def test_rule_9_the_bytes_of_a_closed_connection_let_the_others_go_on(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {**SMALL, "total_queued_bytes": 300 * KIB}})
    rig.service.devices[0].batcher.batches_in_flight = 1
    greedy, other = rig.client(), rig.client()
    x, y = greedy.buffer(64 * KIB), other.buffer(64 * KIB)
    other.send("buffer.read", buffer=y)  # keeps the device busy
    greedy.burst(*[("buffer.write", {"buffer": x, "data": bytes(64 * KIB)})] * 5)
    waits = other.send("buffer.write", buffer=y, data=bytes(64 * KIB))
    assert not other.reading and len(other.session.deferred) == 1
    greedy.close()
    assert other.reading
    rig.settle()
    assert other.code(waits) is None


async def test_rule_27_answers_that_nobody_takes_stop_the_connection(small: Rig) -> None:
    """The requests come in one read; only so many are run as the bound of unread answers allows."""
    client = small.client()
    x = client.buffer(64 * KIB)
    client.burst(*[("buffer.read", {"buffer": x})] * 200)
    while small.turn():
        pass
    held = client.session.conn.bytes_out
    assert held <= 2 * 320 * KIB
    assert client.session.deferred
    drain(small, client)
    assert len(client.answered) == client.msgid


@pytest.mark.parametrize("method", ["devices", "stats", "module.inspect"])
async def test_rule_27_answers_without_a_job_are_bounded_as_well(small: Rig, method: str) -> None:
    client = small.client()
    module = client.load()
    params = {"module": module, "format": "json"} if method == "module.inspect" else {}
    msgids = client.burst(*[(method, params)] * 3000)
    assert client.session.conn.bytes_out < 256 * KIB + 64 * KIB
    assert not client.reading
    drain(small, client)
    assert [client.code(msgid) for msgid in msgids] == [None] * 3000
    assert client.reading


async def test_a_reply_that_would_be_too_large_runs_nothing(small: Rig) -> None:
    client = small.client()
    module, x, y = client.load(), client.buffer(1024 * KIB), client.buffer()
    sent = len(small.thread.posted)
    for method, params in (
        ("buffer.read", {"buffer": x}),
        ("buffer.read", {"buffer": x, "size": 256 * KIB}),
        ("dispatch", axpy(module, y, {"out": 256 * KIB})),
    ):
        with pytest.raises(ServiceError) as error:
            client.result(client.send(method, **params))
        assert error.value.code == "too_large", method
    assert len(small.thread.posted) == sent


@pytest.mark.parametrize("timing", [False, True])
async def test_the_largest_reply_that_is_promised_fits(small: Rig, timing: bool) -> None:
    """Whatever passes the check before the launch is answered with its outputs, to the last byte."""
    client = small.client()
    module, y = client.load(), client.buffer()
    limit = 256 * KIB
    passed = refused = 0
    for size in range(limit - 160, limit - 40):
        msgid = client.launch(module, y, {"out": size}, timing=timing)
        small.settle()
        code = client.code(msgid)
        assert code in (None, "too_large")
        passed += code is None
        refused += code is not None
        completed = client.call("stats")["jobs_completed"]
        assert completed == passed + 1, f"{size} bytes ran, and did not fit"
        drain(small, client)
    assert passed
    assert refused


async def test_names_for_logs_do_not_hold_memory(rig: Rig) -> None:
    client = rig.client(hello=False)
    client.send("hello", protocol=1, client="c" * 10**6)
    assert client.has(client.msgid)
    assert len(client.session.client) < 1000
    module, x, y = client.load(), client.buffer(), client.buffer()
    client.call("dispatch", **axpy(module, x, y))
    msgid = client.launch(module, x, y, label="l" * 10**6)
    [batch] = rig.thread.batches
    assert len(batch.rows[0][9].label) < 1000
    rig.settle()
    assert client.code(msgid) is None
