"""Models in a service whose device and helper are the test's: order, accounts, failures, a device that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.affine import W, inputs, loading, settled
from support.inprocess import AtOnce, InProcessClient, Rig

from vkqueue.daemon import model_graphs
from vkqueue.errors import JobTimeoutError, OutOfDeviceMemoryError
from vkqueue.model import COPY, GRAPH, ROW_OP, ROW_PAYLOAD, ROW_TARGET, Pieces, Row
from vkqueue.models.repository import Found
from vkqueue.models.source import KernelSource, ModelSource, Weight


async def turns() -> None:
    """Let tasks run until they wait for something that is not the loop's, nor a thread's."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
    for _ in range(20):
        await asyncio.sleep(0)


async def settle(rig: Rig) -> None:
    """Let everything happen that can."""
    while True:
        await turns()
        if not rig.turn():
            await turns()
            if not rig.turn():
                return


async def call(rig: Rig, client: InProcessClient, method: str, **params: Any) -> Any:
    msgid = client.send(method, **params)
    await settle(rig)
    return client.result(msgid)


async def load(rig: Rig, client: InProcessClient, name: str = "m", **changes: Any) -> None:
    await call(rig, client, "model.load", **loading(name, **changes))


def statistics(client: InProcessClient, name: str = "m") -> dict[str, Any]:
    [found] = client.call("model.statistics", name=name)
    return dict(found)


@pytest.fixture
async def unloading() -> AsyncIterator[Callable[[Rig], None]]:
    """Unloads every model of the rigs that are named to it, and looks at the counts before."""
    rigs: list[Rig] = []
    yield rigs.append
    for rig in rigs:
        await settle(rig)
        for version in rig.service.models.table.all():
            counted = version.statistics
            assert counted.accepted == sum(each.count for each in counted.requests.values())
            rig.service.models.spawn(rig.service.models.unload(version.name, version.number))
        await settle(rig)
        assert rig.service.models.table.all() == []
        assert not [session for session in rig.service.sessions.values() if session.internal]


@pytest.fixture
async def served(make_rig: Callable[..., Rig], unloading: Callable[[Rig], None]) -> tuple[Rig, InProcessClient]:
    """A service with the model loaded, and a client."""
    rig = make_rig()
    unloading(rig)
    client = rig.client()
    await load(rig, client)
    return rig, client


def infer(client: InProcessClient, x: Any, name: str = "m", **params: Any) -> int:
    return client.send("model.infer", name=name, inputs=inputs(x), **params)


def rows(rig: Rig) -> list[Row]:
    """What is on the device."""
    return [row for batch in rig.thread.batches for row in batch.rows]


Served = tuple[Rig, InProcessClient]


async def test_a_lone_request_is_one_row(served: Served) -> None:
    """Its bytes go as they came, and what it is launched by is there already."""
    rig, client = served
    for _ in range(3):
        msgid = infer(client, [[1, 2, 3, 4]])
        [row] = rows(rig)
        assert row[ROW_OP] == GRAPH
        assert [kind for kind, _ in row[ROW_PAYLOAD]] == ["in", "in", "out", "out"]
        assert not isinstance(row[ROW_PAYLOAD][0][1], Pieces)
        rig.thread.finish()
        assert client.result(msgid)["outputs"]["rows"]["shape"] == [1, 4, 4]


async def test_a_backlog_is_one_row_with_gathered_bytes(served: Served) -> None:
    rig, client = served
    first = [infer(client, [[1]]) for _ in range(2)]
    assert len(rig.thread.batches) == 2  # as many as there are instances
    behind = [infer(client, [[i, i]]) for i in range(3)]
    other = infer(client, [[5] * 9])
    rig.thread.finish()
    [batch] = list(rig.thread.batches)[1:]
    [row] = batch.rows
    gathered = row[ROW_PAYLOAD][0][1]
    assert isinstance(gathered, Pieces)
    # pieces of requests are what came, not copies
    assert bytes(gathered) == b"".join(inputs([[i, i, 1000, 1000]])["x"]["data"] for i in range(3))
    rig.settle()
    for msgid in [*first, *behind, other]:
        assert client.code(msgid) is None
    counted = statistics(client)
    assert counted["closed"]["backlog"] >= 1
    assert counted["batch_sizes"]["3"] == 1
    assert settled(counted) == counted["accepted"] == 6


async def test_one_that_fails_in_a_batch_fails_alone(served: Served) -> None:
    rig, client = served
    held = [infer(client, [[1]]) for _ in range(2)]
    sent = [infer(client, [[i]]) for i in range(3)]
    rig.thread.finish()
    rig.thread.finish()
    [row] = rows(rig)
    error = OutOfDeviceMemoryError("no room for a batch")
    rig.thread.finish({row[1]: error})
    alone = rows(rig)
    assert len(alone) == 3
    assert [client.has(msgid) for msgid in sent] == [False] * 3
    failing = alone[1][1]
    while rig.thread.batches:
        batch = rig.thread.batches[0]
        rig.thread.finish({failing: error} if any(row[1] == failing for row in batch.rows) else None)
    assert [client.code(msgid) for msgid in sent] == [None, "out_of_memory", None]
    assert [client.code(msgid) for msgid in held] == [None] * 2
    assert statistics(client)["inference_stats"]["fail"]["count"] == 1


async def test_a_batch_past_its_limit(served: Served) -> None:
    """It is not run again, and its requests are told once."""
    rig, client = served
    sent = [infer(client, [[1]]) for _ in range(2)]
    behind = [infer(client, [[1]]) for _ in range(2)]
    rig.thread.late(JobTimeoutError("late"))
    assert client.code(sent[0]) == "timeout"
    rig.settle()
    for msgid in (sent[1], *behind):
        assert client.code(msgid) is None
    assert not client.has(sent[0])


async def test_a_buffer_is_held_until_the_answer(served: Served) -> None:
    rig, client = served
    buffer = client.buffer(16)
    device = rig.service.devices[0]
    used = device.memory_bytes
    msgid = client.send("model.infer", name="m", inputs={"x": {"shape": [1, 4], "buffer": buffer}})
    assert client.call("ping") == {}
    assert [row[ROW_OP] for row in rows(rig)][-2:] == [COPY, GRAPH]
    freed = client.send("buffer.free", buffer=buffer)
    assert client.code(freed) is None
    released = set(rig.thread.released)
    [source] = {id for id, _, _ in next(row for row in rows(rig) if row[ROW_OP] == COPY)[3].reads}
    assert source not in released
    assert client.code(client.send("buffer.read", buffer=buffer)) == "not_found"
    rig.settle()
    assert client.code(msgid) is None
    assert source in rig.thread.released
    assert device.memory_bytes == used - 16
    assert (client.session.buffers, client.session.memory_bytes) == (0, 0)


async def test_who_is_gone_is_waited_for_by_nobody(served: Served) -> None:
    """What waited leaves at once, with its buffers; what runs finishes unseen."""
    rig, client = served
    gone = rig.client()
    buffer = gone.buffer(16)
    running = [gone.send("model.infer", name="m", inputs={"x": {"shape": [1, 4], "buffer": buffer}}) for _ in range(2)]
    waiting = [infer(gone, [[1]]) for _ in range(3)]
    mine = infer(client, [[1]])
    assert running and waiting
    gone.close()
    assert statistics(client)["queued"] == 1
    assert statistics(client)["cancelled"] == 3
    rig.settle()
    assert client.code(mine) is None
    counted = statistics(client)
    assert counted["inference_stats"]["success"]["count"] == 3
    assert settled(counted) == 6


async def test_cancel(served: Served) -> None:
    rig, client = served
    sent = [infer(client, [[1]]) for _ in range(4)]
    assert client.call("cancel", msgid=sent[3]) == {"cancelled": True}
    assert client.call("cancel", msgid=sent[0]) == {"cancelled": False}
    assert client.code(sent[3]) == "cancelled"
    rig.settle()
    for msgid in sent[:3]:
        assert client.code(msgid) is None


async def test_a_request_expires_while_the_device_is_busy(make_rig: Callable[..., Rig], unloading: Any) -> None:
    """By the timer, not by the next batch; and it is never recorded."""
    rig = make_rig()
    unloading(rig)
    client = rig.client()
    await load(rig, client, dynamic_batching={"default_queue_policy": {"default_timeout_microseconds": 5000}})
    running = [infer(client, [[1]]) for _ in range(2)]
    late = infer(client, [[2]])
    assert await client.answer(late) == "expired"
    assert not any(client.has(msgid) for msgid in running)
    rig.settle()
    assert [client.code(msgid) for msgid in running] == [None] * 2
    counted = statistics(client)
    assert (counted["expired"], counted["execution_count"]) == (1, 2)


async def test_the_limit_of_queued_jobs_counts_requests(make_rig: Callable[..., Rig], unloading: Any) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 3}})
    unloading(rig)
    client = rig.client()
    await load(rig, client)
    sent = [infer(client, [[1]]) for _ in range(4)]
    assert client.code(sent[3]) == "overloaded"
    assert client.session.open_jobs == 3
    rig.settle()
    assert [client.code(msgid) for msgid in sent[:3]] == [None] * 3
    assert client.session.open_jobs == 0


async def test_rule_35_a_lost_device_gives_its_models_back(served: Served) -> None:
    """Each request is told once; then the model is loaded from what the daemon has kept, and serves again."""
    rig, client = served
    running = [infer(client, [[1]]) for _ in range(2)]
    waiting = [infer(client, [[1]]) for _ in range(3)]
    rig.thread.lose()
    assert [client.code(msgid) for msgid in (*running, *waiting)] == ["device_lost"] * 5
    assert not client.session.conn.pending
    [found] = client.call("model.list")
    assert (found["state"], found["reason"]) == ("LOADING", "its device was lost")
    assert client.code(infer(client, [[1]])) == "device_lost"
    rig.thread.open()
    await settle(rig)
    assert client.call("model.list")[0]["state"] == "READY"
    msgid = infer(client, [[1, 2]])
    rig.settle()
    assert client.code(msgid) is None
    counted = statistics(client)
    assert counted["inference_stats"]["fail"]["count"] == 5
    assert counted["inference_stats"]["success"]["count"] == 1


async def test_a_device_lost_again_while_models_come_back(served: Served) -> None:
    rig, client = served
    rig.thread.lose()
    rig.thread.open()
    await turns()
    rig.thread.lose()
    await turns()
    assert client.call("model.list")[0]["state"] == "LOADING"
    rig.thread.open()
    await settle(rig)
    assert client.call("model.list")[0]["state"] == "READY"


async def test_a_device_lost_while_a_model_leaves(served: Served) -> None:
    rig, client = served
    running = infer(client, [[1]])
    gone = client.send("model.unload", name="m")
    await turns()
    assert not client.has(gone)
    rig.thread.lose()
    await turns()
    assert client.code(running) == "device_lost"
    assert client.code(gone) is None
    assert client.call("model.list") == []
    rig.thread.open()


async def test_a_device_lost_while_a_model_is_loaded(make_rig: Callable[..., Rig], unloading: Any) -> None:
    rig = make_rig()
    unloading(rig)
    client = rig.client()
    msgid = client.send("model.load", **loading())
    await turns()
    rig.turn()
    await turns()
    rig.thread.lose()
    await turns()
    assert client.code(msgid) == "device_lost"
    assert client.call("model.list") == []
    rig.thread.open()
    await load(rig, client)


async def test_a_stop_answers_who_waits(served: Served) -> None:
    """Requests that are queued and a load that is going on: told so, once the drain is over."""
    rig, client = served
    sent = [infer(client, [[1]]) for _ in range(4)]
    loads = client.send("model.load", **loading("other"))
    await turns()
    idle: list[bool] = []
    rig.service.drain(lambda: idle.append(True))
    assert client.code(infer(client, [[1]])) == "shutting_down"
    rig.service.fail_queued()
    assert [client.code(msgid) for msgid in sent[2:]] == ["shutting_down"] * 2
    assert client.code(loads) == "shutting_down"
    assert not idle
    rig.settle()
    assert [client.code(msgid) for msgid in sent[:2]] == [None] * 2
    await settle(rig)
    assert idle == [True]


async def test_a_model_without_work_sets_no_timer(served: Served) -> None:
    rig, client = served
    msgid = infer(client, [[1]])
    rig.settle()
    assert client.code(msgid) is None
    loop = asyncio.get_running_loop()
    assert not [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


async def test_memory_of_a_lane_grows_with_the_shapes(served: Served) -> None:
    """And what a smaller shape had is given back; a failure to make it is told, and tried again."""
    rig, client = served
    thread = rig.thread
    small = infer(client, [[1]])
    thread.finish()
    assert client.code(small) is None
    before = set(thread.released)
    large = infer(client, [[1] * 16] * 8)
    rig.settle()
    assert client.code(large) is None
    assert set(thread.released) > before
    again = infer(client, [[1]])
    [row] = rows(rig)
    rig.settle()
    assert row[ROW_OP] == GRAPH
    assert client.code(again) is None


async def test_the_longest_unused_shape_makes_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_graphs, "MAX_SHAPES", 3)
    rig, client = served

    def launched(length: int) -> Any:
        msgid = infer(client, [[1] * length])
        [row] = [row for row in rows(rig) if row[ROW_OP] == GRAPH]
        rig.settle()
        assert client.code(msgid) is None
        return row[ROW_TARGET]

    first, second, third = (launched(length) for length in (1, 5, 9))  # with the warm-up's full batch one too many
    assert launched(5) is second
    assert launched(9) is third
    assert launched(1) is first
    infer(client, [[1] * 5] * 2)
    rig.settle()
    gone = {id for release in rig.thread.releases for id in release.instances}
    assert second.id in gone
    assert gone.isdisjoint((first.id, third.id))
    assert launched(5) is not second


async def test_all_queues_are_bounded_together(make_rig: Callable[..., Rig], unloading: Any) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 3, "total_queued_jobs": 4}})
    unloading(rig)
    clients = [rig.client() for _ in range(3)]
    await load(rig, clients[0])
    sent = [(client, infer(client, [[1]])) for client in clients[:2] for _ in range(3)]  # two of them run
    assert clients[2].code(infer(clients[2], [[1]])) == "overloaded"
    rig.settle()
    assert [client.code(msgid) for client, msgid in sent] == [None] * 6


async def test_clients_share_models_and_not_their_numbers(served: Served) -> None:
    rig, client = served
    assert client.call("stats")["clients"] == 1
    used = client.session.memory_bytes
    assert used == 0
    assert rig.service.devices[0].memory_bytes > 0


class Stored:
    """In place of a repository: one model in two versions, of which the second is served."""

    def __init__(self) -> None:
        self._sent = loading("m")

    def scan(self) -> list[Found]:
        return [self.look("m")]

    def look(self, name: str) -> Found:
        return Found(name, (2,))

    def read(self, name: str, version: int | None = None) -> ModelSource:
        sent = self._sent
        kernels = {k["name"]: KernelSource(k["name"], k["code"], "spirv", None, "stored") for k in sent["kernels"]}
        return ModelSource(name, version or 2, sent["config"], kernels, {"w": Weight("F32", (4,), W.tobytes())}, None)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_device_lost_while_the_repository_is_loaded(unloading: Any, at_once: bool) -> None:
    """What was being loaded is loaded when the device is back, though nobody asks for it again."""
    rig = Rig()
    unloading(rig)
    rig.service.models.repository = Stored()  # type: ignore[assignment]
    rig.start()
    assert rig.started == 0
    await turns()
    rig.turn()
    await turns()
    assert rig.thread.specs or rig.thread.batches
    rig.thread.lose()
    if not at_once:
        await turns()
        assert rig.started == 1
    rig.thread.open()
    await settle(rig)
    client = rig.client()
    assert [(f["version"], f["state"]) for f in client.call("model.list")] == [(2, "READY")]
    msgid = infer(client, [[1]])
    rig.settle()
    assert client.code(msgid) is None


async def test_the_daemon_starts_when_its_models_are_ready(unloading: Any) -> None:
    rig = Rig()
    unloading(rig)
    rig.service.models.repository = Stored()  # type: ignore[assignment]
    rig.start()
    await turns()
    assert rig.started == 0
    await settle(rig)
    assert rig.started == 1
