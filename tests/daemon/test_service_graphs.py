"""Graphs in the service: their life, quotas, waiting, instances and lanes, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.inprocess import AXPY, HISTOGRAM, InProcessClient, Rig, ServiceError

from vkqueue.daemon import graph as graph_file
from vkqueue.errors import CompileError
from vkqueue.model import FREE, GRAPH, ROW_OP, ROW_TARGET, Batch, Row

SIZE = 256


def node(module: int, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """A launch of AXPY."""
    return {"kernel": [module, "main"], "args": [x, y], "scalars": [64, 0.5], "grid": [1], **more}


def chain(module: int, **more: Any) -> dict[str, Any]:
    """y += (x/2 + t)/2 through a temporary."""
    return {
        "nodes": [{"fill": "t"}, node(module, "x", "t"), node(module, "t", "y")],
        "inputs": {"x": SIZE}, "outputs": {"y": SIZE}, "temporaries": {"t": SIZE}, **more,
    }  # fmt: skip


def prepared(rig: Rig, **more: Any) -> tuple[InProcessClient, int, int, int, int]:
    """(client, module, graph, x, y)."""
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    graph = client.call("graph.create", **chain(module, **more))["graph"]
    return client, module, graph, x, y


def rows(rig: Rig) -> list[Row]:
    """Launches of graphs that were posted."""
    return [
        row for item in rig.thread.posted if isinstance(item, Batch) for row in item.rows if row[ROW_OP] == GRAPH
    ]


async def test_create_launch_free(rig: Rig) -> None:
    client, module, graph, x, y = prepared(rig)
    assert graph == 4
    created = client.call("graph.create", **chain(module))
    assert created == {"graph": 5, "nodes": 3, "barriers": 2, "memory_bytes": SIZE}
    assert client.call("graph.launch", graph=graph, buffers={"x": x, "y": y}) == {"outputs": {}}
    assert client.session.memory_bytes == 4 * SIZE
    assert client.call("graph.free", graph=graph) == {}
    assert client.session.memory_bytes == 3 * SIZE
    assert client.code(client.send("graph.launch", graph=graph, buffers={"x": x, "y": y})) == "not_found"
    assert client.code(client.send("graph.free", graph=graph)) == "not_found"
    assert client.code(client.send("buffer.free", buffer=5)) == "not_found"
    assert client.code(client.send("graph.launch", graph=x)) == "not_found"


async def test_launches_that_bind_the_same_are_one_instance_and_repeats_are_not_looked_at(rig: Rig) -> None:
    client, _, graph, x, y = prepared(rig)
    z = client.buffer()
    for buffer in (y, z, y, z, y):
        client.call("graph.launch", graph=graph, buffers={"x": x, "y": buffer})
    instances = [row[ROW_TARGET] for row in rows(rig)]
    assert instances[0] is instances[2] is instances[4]
    assert instances[1] is instances[3]
    messages = [("graph.launch", {"graph": graph, "buffers": {"x": x, "y": y}})] * 5
    msgids = client.burst(*messages)
    assert len(rig.thread.batches) == 1
    rig.settle()
    assert [client.result(msgid) for msgid in msgids] == [{"outputs": {}}] * 5
    assert {id(row[ROW_TARGET]) for row in rows(rig)[5:]} == {id(instances[0])}


async def test_a_repeated_launch_sees_that_its_buffer_or_graph_was_freed(rig: Rig) -> None:
    client, _, graph, x, y = prepared(rig)
    launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}}
    for _ in range(3):
        client.call("graph.launch", **launch)
    msgids = client.burst(
        ("graph.launch", launch), ("buffer.free", {"buffer": y}), ("graph.launch", launch), ("graph.launch", launch)
    )
    rig.settle()
    assert [client.code(msgid) for msgid in msgids] == [None, None, "not_found", "not_found"]
    launch["buffers"]["y"] = client.buffer()
    for _ in range(3):
        client.call("graph.launch", **launch)
    msgids = client.burst(("graph.launch", launch), ("graph.free", {"graph": graph}), ("graph.launch", launch))
    rig.settle()
    assert [client.code(msgid) for msgid in msgids] == [None, None, "not_found"]


async def test_a_buffer_that_nodes_name_is_the_same_in_every_launch_until_it_is_freed(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    graph = client.call("graph.create", nodes=[node(module, x, "y")], outputs={"y": SIZE})["graph"]
    assert client.call("graph.launch", graph=graph, buffers={"y": y}) == {"outputs": {}}
    client.call("buffer.free", buffer=x)
    msgid = client.send("graph.launch", graph=graph, buffers={"y": y})
    with pytest.raises(ServiceError, match=f"not_found: a node of the graph: no buffer {x}"):
        client.result(msgid)


async def test_everything_may_be_sent_without_waiting(rig: Rig) -> None:
    """The graph waits for the analysis, its launch for the pipeline; nothing overtakes them."""
    rig.helper.holding = True
    client = rig.client()
    msgids = client.burst(
        ("module.load", {"spirv": AXPY, "as": 1}),
        ("buffer.create", {"size": SIZE, "as": 2}),
        ("graph.create", {**chain(1), "as": 3}),
        ("graph.launch", {"graph": 3, "buffers": {"x": 2, "y": 2}}),
        ("graph.free", {"graph": 3}),
        ("buffer.read", {"buffer": 2}),
    )
    rig.settle()
    assert not client.has(msgids[2])
    rig.helper.holding = False
    rig.settle()
    assert [client.code(msgid) for msgid in msgids] == [None] * 6
    assert client.answered.index(msgids[2]) < client.answered.index(msgids[3])


async def test_a_pipeline_that_cannot_be_built_fails_the_creation(rig: Rig) -> None:
    client = rig.client()
    module, x = client.load(), client.buffer()
    created = client.send("graph.create", **chain(module))
    launched = client.send("graph.launch", graph=3, buffers={"x": x, "y": x})
    assert not client.has(created)
    rig.thread.build(CompileError("it does not build"))
    assert client.code(created) == "compile"
    assert client.code(launched) == "not_found"
    assert client.session.memory_bytes == SIZE
    assert client.code(client.send("graph.create", **chain(module))) == "compile"


async def test_a_module_may_be_unloaded_and_pipelines_stay(make_rig: Callable[..., Rig]) -> None:
    """Whatever else is used meanwhile, of however few pipelines."""
    rig = make_rig(config={"limits": {"max_device_pipelines": 1, "max_pipelines": 1}})
    client, module, graph, x, y = prepared(rig)
    client.call("module.unload", module=module)
    histogram, counts = client.load(HISTOGRAM), client.buffer(1024)
    for _ in range(2):
        client.call("dispatch", module=histogram, args=[x, counts], scalars=[64], grid=[1])
        client.call("graph.launch", graph=graph, buffers={"x": x, "y": y})
    assert rig.service.devices[0].counters["pipelines_built"] == 2
    assert not any(release.pipelines for release in rig.thread.releases)
    two = {"nodes": [{"kernel": histogram, "args": [x, counts], "scalars": [64], "grid": [1]}]}
    with pytest.raises(ServiceError, match="quota: max_pipelines"):
        client.call("graph.create", **two)
    client.call("graph.free", graph=graph)
    assert client.call("graph.create", **two)["nodes"] == 1


async def test_quotas(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_graphs": 2, "max_graph_nodes": 3, "max_memory_bytes": 4 * SIZE}})
    client, module, graph, x, y = prepared(rig)
    with pytest.raises(ServiceError, match="quota: temporaries: max_memory_bytes"):
        client.call("graph.create", **chain(module, temporaries={"t": 2 * SIZE, "u": 0}))
    with pytest.raises(ServiceError, match="too_large: nodes: 4 are over max_graph_nodes"):
        client.call("graph.create", nodes=[node(module, x, y)] * 4)
    assert client.call("graph.create", nodes=[node(module, x, y)])
    with pytest.raises(ServiceError, match="quota: max_graphs"):
        client.call("graph.create", nodes=[node(module, x, y)])
    with pytest.raises(ServiceError, match="quota: inputs and outputs: max_memory_bytes"):
        client.call("graph.launch", graph=graph, buffers={"x": {"in": bytes(SIZE)}})
    assert client.session.memory_bytes == 3 * SIZE


async def test_launches_at_once_take_lanes_as_far_as_the_quota_allows(make_rig: Callable[..., Rig]) -> None:
    for most, lanes in ((100 * SIZE, 4), (12 * SIZE, 2), (11 * SIZE, 1)):
        rig = make_rig(config={"limits": {"max_memory_bytes": most}})
        client, _, graph, x, _ = prepared(rig)
        ys = [client.buffer() for _ in range(8)]
        for y in ys:
            client.call("graph.launch", graph=graph, buffers={"x": x, "y": y})
        assert len({row[ROW_TARGET].arenas for row in rows(rig)}) == 1  # one after the other: one is enough
        client.burst(*[("graph.launch", {"graph": graph, "buffers": {"x": y, "y": x}}) for y in ys])
        rig.settle()
        assert len({row[ROW_TARGET].arenas for row in rows(rig)}) == lanes
        assert client.session.memory_bytes == (10 + lanes) * SIZE


async def test_launches_with_data_of_their_own_take_turns_among_lanes(rig: Rig) -> None:
    client, _, graph, _, _ = prepared(rig)
    msgids = client.burst(*[("graph.launch", {"graph": graph, "buffers": {"x": {"in": bytes([n]) * SIZE}}})
                            for n in range(12)])  # fmt: skip
    rig.settle()
    assert [client.result(msgid) for msgid in msgids] == [{"outputs": {"y": bytes(SIZE)}}] * 12
    assert len({row[ROW_TARGET].id for row in rows(rig)}) == 4
    arenas = {arena for row in rows(rig) for arena, _ in row[ROW_TARGET].arenas}
    assert len(arenas) == 8
    assert client.session.memory_bytes == (2 + 4 + 8) * SIZE


async def test_instances_that_are_not_used_make_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "_MAX_INSTANCES", 2)
    client, _, graph, x, y = prepared(rig)
    z, w = client.buffer(), client.buffer()
    for buffer in (y, z, y, w):
        client.call("graph.launch", graph=graph, buffers={"x": x, "y": buffer})
    [_, second, *_] = rows(rig)
    assert [release.instances for release in rig.thread.releases] == [(second[ROW_TARGET].id,)]


async def test_numbers_that_come_with_a_launch(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    nodes = [node(module, "x", "y", scalars=[64, {"scalar": "k"}])]
    graph = client.call(
        "graph.create", nodes=nodes, inputs={"x": SIZE}, outputs={"y": SIZE}, scalars={"k": "float32"}
    )["graph"]  # fmt: skip
    values = [0.0, -0.0, 1, 1.0, 1.0]
    for k in values:
        client.call("graph.launch", graph=graph, buffers={"x": x, "y": y}, scalars={"k": k})
    found = [row[ROW_TARGET] for row in rows(rig)]
    assert found[2] is found[3] is found[4]
    assert len({instance.constants(instance.nodes[0]) for instance in found}) == 3
    assert len({instance.id for instance in found}) == 3
    for scalars in ({}, {"k": "1"}, {"k": 1, "j": 1}, {"k": 1e39}):
        msgid = client.send("graph.launch", graph=graph, buffers={"x": x, "y": y}, scalars=scalars)
        assert client.code(msgid) == "invalid"


@pytest.mark.parametrize(
    ("buffers", "says"),
    [
        ({"x": 2}, None),
        ({}, "input 'x' .256 bytes. is missing"),
        ({"x": None}, "is missing"),
        ({"x": 2, "z": 2}, "no input or output 'z'"),
        ({"x": 2, "t": 2}, "no input or output 't'"),
        ({"x": "2"}, "expected a buffer handle"),
        ({"x": True}, "expected a buffer handle"),
        ({"x": [2, 0]}, "a range is"),
        ({"x": [2, 0, 128]}, "the graph uses 256 bytes"),
        ({"x": [2, 256, 256]}, "of a buffer of 256"),
        ({"x": 4}, "of a buffer of 64"),
        ({"x": [3, 4, 256]}, "offset 4 is no multiple of 16"),
        ({"x": {"in": bytes(255)}}, "the graph uses 256 bytes, got 255"),
        ({"x": {"in": bytes(256), "out": 1}}, "expected {'in'"),
        ({"x": {"inout": bytes(256)}}, "an input that no node writes"),
        ({"x": {"out": 256}}, "an input that no node writes"),
        ({"x": 2, "y": {"in": bytes(256)}}, "'in' is not for an output"),
        ({"x": 2, "y": {"out": True}}, "expected {'in'"),
    ],
)
async def test_what_may_be_bound(rig: Rig, buffers: dict[str, Any], says: str | None) -> None:
    client = rig.client()
    module, _, _, _ = client.load(), client.buffer(), client.buffer(512), client.buffer(64)
    graph = client.call("graph.create", **chain(module))["graph"]
    if says is None:
        assert client.call("graph.launch", graph=graph, buffers=buffers) == {"outputs": {"y": bytes(SIZE)}}
        return
    with pytest.raises(ServiceError, match=f"invalid: .*{says}"):
        client.call("graph.launch", graph=graph, buffers=buffers)


async def test_results_that_no_message_holds(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_message_bytes": 65536, "max_module_bytes": 65536}})
    client = rig.client()
    graph = client.call("graph.create", nodes=[{"fill": "y"}], outputs={"y": 65536})["graph"]
    assert client.code(client.send("graph.launch", graph=graph)) == "too_large"


async def test_cancel_deadline_after_and_priority_are_those_of_jobs(rig: Rig) -> None:
    client, _, graph, x, y = prepared(rig)
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}}
    flying = [client.send("graph.launch", **launch) for _ in range(3)]
    queued = client.send("graph.launch", **launch)
    assert client.call("cancel", msgid=flying[0]) == {"cancelled": False}
    assert client.call("cancel", msgid=queued) == {"cancelled": True}
    assert client.code(queued) == "cancelled"
    behind = client.send("graph.launch", **launch, after=[queued])
    assert client.code(behind) == "dependency"
    timed = client.send("graph.launch", **launch, timing=True, priority=3, label="x", deadline_ms=60_000)
    rig.settle()
    answer = client.result(timed)
    assert answer["outputs"] == {} and answer["device"] == 0 and answer["timing"]["device_us"] == 3


async def test_a_graph_is_lost_with_its_device(rig: Rig) -> None:
    client, module, graph, x, y = prepared(rig)
    launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}}
    for _ in range(3):
        client.call("graph.launch", **launch)
    histogram, _ = client.load(HISTOGRAM), client.buffer(1024)
    flying = client.send("graph.launch", **launch)
    creating = client.send(
        "graph.create", nodes=[{"kernel": histogram, "args": ["x", "y"], "scalars": [64], "grid": [1]}],
        inputs={"x": SIZE}, outputs={"y": 1024},
    )  # fmt: skip
    rig.thread.lose()
    assert [client.code(msgid) for msgid in (flying, creating)] == ["device_lost"] * 2
    rig.thread.open()
    for _ in range(2):
        with pytest.raises(ServiceError, match=f"device_lost: graph: {graph} was lost"):
            client.call("graph.launch", **launch)
    client.call("graph.free", graph=graph)
    for buffer in (x, y):
        client.call("buffer.free", buffer=buffer)
    again = client.call("graph.create", **chain(module))["graph"]
    x, y = client.buffer(), client.buffer()
    assert client.call("graph.launch", graph=again, buffers={"x": x, "y": y}) == {"outputs": {}}


async def test_rule_4_memory_comes_back_behind_the_last_launch(rig: Rig) -> None:
    client, _, graph, x, y = prepared(rig)
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}}
    flying = [client.send("graph.launch", **launch) for _ in range(4)]
    assert client.result(client.send("graph.free", graph=graph)) == {}
    arena = rows(rig)[0][ROW_TARGET].arenas[0][0]
    assert arena not in rig.thread.released
    assert client.session.memory_bytes == 3 * SIZE
    rig.settle()
    assert [client.code(msgid) for msgid in flying] == [None] * 4
    assert arena in rig.thread.released
    assert client.session.memory_bytes == 2 * SIZE
    assert FREE not in {row[ROW_OP] for row in rows(rig)}


async def test_a_connection_that_goes_takes_its_graphs_along(rig: Rig) -> None:
    client, _, graph, x, y = prepared(rig)
    client.send("graph.launch", graph=graph, buffers={"x": x, "y": y})
    client.close()
    rig.settle()
    assert rows(rig)[0][ROW_TARGET].arenas[0][0] in rig.thread.released
    half = rig.client()
    module = half.load(HISTOGRAM)
    half.send("graph.create", nodes=[{"kernel": module, "args": ["x", "y"], "scalars": [64], "grid": [1]}],
              inputs={"x": SIZE}, outputs={"y": 1024})  # fmt: skip
    half.close()
