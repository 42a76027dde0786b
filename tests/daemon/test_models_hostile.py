"""What a client may do with models to others and to the daemon: errors, nothing grows, and others get their turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from daemon.test_models import call, infer, load, settle, turns, unloading
from support.affine import config, loading
from support.inprocess import InProcessClient, Rig, ServiceError

from vkqueue.daemon import model_graphs
from vkqueue.model import READ, ROW_OP

__all__ = ["unloading"]


@pytest.fixture
def rig(make_rig: Callable[..., Rig], unloading: Callable[[Rig], None]) -> Rig:
    found: Rig = make_rig(config={"limits": {"max_queued_jobs": 4}})
    unloading(found)
    return found


def held(client: InProcessClient) -> tuple[int, int]:
    return client.session.open_jobs, client.session.queued_bytes


@pytest.mark.parametrize("name", ["a\0b", "../../etc", "a/b", "ä", "\n2026 ERROR forged", ".", "", "x" * 129])
async def test_names_that_are_none(rig: Rig, name: str) -> None:
    with pytest.raises(ServiceError, match="cannot be a model's name"):
        await call(rig, rig.client(), "model.load", **loading(name))


async def test_weights_that_no_node_names_are_not_read(rig: Rig) -> None:
    """A range of a buffer may be named any number of times."""
    client = rig.client()
    buffer = client.buffer(1 << 20)
    ranges = {f"w{i}": [buffer, 0, 1 << 20] for i in range(1000)}
    reads = []
    msgid = client.send("model.load", **loading(weights={"w": buffer, **ranges}))
    await turns()
    while rig.thread.batches:
        reads += [row for batch in rig.thread.batches for row in batch.rows if row[ROW_OP] == READ]
        rig.turn()
        await turns()
    await settle(rig)
    assert client.code(msgid) is None
    assert len(reads) == 1
    [version] = rig.service.models.table.all()
    assert version.source is not None
    assert version.source.weights.keys() == {"w"}


async def test_weights_over_the_device_s_memory_are_not_read(rig: Rig) -> None:
    client = rig.client()
    buffer = client.buffer(1 << 29)
    nodes = config()["node"] + [{"copy": [[f"weights.w{i}", 0, 4], ["copy", 0, 4]]} for i in range(3)]
    given = {"w": bytes(16), **{f"w{i}": buffer for i in range(3)}}
    with pytest.raises(ServiceError) as error:
        await call(rig, client, "model.load", **loading(weights=given, node=nodes))
    assert (error.value.code, error.value.data) == ("too_large", {"size": 3 * 2**29 + 16, "memory_bytes": 2**30})
    assert held(client) == (0, 0)


async def test_a_kernel_is_no_larger_than_a_module(make_rig: Callable[..., Rig], unloading: Any) -> None:
    rig = make_rig(config={"limits": {"max_module_bytes": 1024}})
    unloading(rig)
    with pytest.raises(ServiceError, match=r"kernel 'affine' \(of kernels\[0\]\): .* over max_module_bytes \(1024\)"):
        await call(rig, rig.client(), "model.load", **loading())


async def test_large_graphs_are_made_beside_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a thousand nodes takes a tenth of a second, and each of a model's many shapes is one."""
    client, made = rig.client(), []
    nodes = config()["node"] + [{"fill": "copy", "value": 1}] * model_graphs.MAX_NODES_AT_ONCE
    check_graph = model_graphs.check_graph

    def checked(*args: Any) -> Any:
        made.append(aside)
        return check_graph(*args)

    async def to_thread(function: Callable[[], Any]) -> Any:
        nonlocal aside
        aside = True
        try:
            return function()
        finally:
            aside = False

    aside = False
    monkeypatch.setattr(model_graphs, "check_graph", checked)
    await load(rig, client, "small")
    assert made == [False, False]
    await load(rig, client, "large", node=nodes)
    monkeypatch.setattr(model_graphs.asyncio, "to_thread", to_thread)
    sent = [infer(client, [[0] * length], "large") for length in (1, 5, 9, 9)]
    await settle(rig)
    assert [client.code(msgid) for msgid in sent] == [None] * 4
    assert made[4:] == [True] * 2  # the smallest is there already
    monkeypatch.undo()


async def test_loads_count_as_jobs_with_all_that_they_bring(rig: Rig) -> None:
    client = rig.client()
    sent = [client.send("model.load", **loading(f"m{i}", weights={"w": bytes(1000)})) for i in range(5)]
    jobs, size = held(client)
    assert jobs == 4
    assert size > 4000
    assert client.code(sent[4]) == "overloaded"
    await settle(rig)
    assert [client.code(msgid) for msgid in sent[:4]] == [None] * 4
    assert held(client) == (0, 0)
    sent = [client.send("model.unload", name="m0")] + [client.send("model.unload", name=f"m{i}") for i in range(4)]
    assert client.code(sent[4]) == "overloaded"
    await settle(rig)
    assert held(client) == (0, 0)


async def test_each_connection_s_loads_take_turns(rig: Rig) -> None:
    """One with many does not keep others from theirs; those of who is gone are not begun."""
    many, other = rig.client(), rig.client()
    buffer = many.buffer(16)
    for i in range(4):
        many.send("model.load", **loading(f"m{i}", weights={"w": buffer}))
    msgid = other.send("model.load", **loading("own"))
    await turns()
    assert [version.name for version in rig.service.models.table.all()] == ["m0", "own"]
    many.close()
    await settle(rig)
    assert other.code(msgid) is None
    assert [version.name for version in rig.service.models.table.all()] == ["m0", "own"]
    assert other.call("stats")["buffers"] == rig.thread.memory().get("buffers", 0)
    await load(rig, other, "m1")


def copying(dims: list[Any], dimensions: dict[str, Any], axis: int = 0, **changes: Any) -> dict[str, Any]:
    """Parameters of `model.load`: y = x, of bytes."""
    tensor = {"data_type": "TYPE_UINT8", "dims": dims, "batch_dimension": axis}
    found = {
        "max_batch_size": 8,
        "dynamic_batching": {},
        "dimensions": dimensions,
        "input": [{"name": "x", "pad_value": 7, **tensor}],
        "output": [{"name": "y", **tensor}],
        "node": [{"copy": ["x", "y"]}],
        **changes,
    }
    return {"name": "copying", "config": found}


async def copied(rig: Rig, client: InProcessClient, shape: list[int], **given: Any) -> Any:
    given = given or {"data": bytes(math.prod(shape))}
    return await call(rig, client, "model.infer", name="copying", inputs={"x": {"shape": shape, **given}})


async def test_what_would_be_too_many_pieces_of_a_batch_is_refused(rig: Rig) -> None:
    """Padding of the last dimension, or a batch dimension behind others: the loop puts each piece in its place."""
    client = rig.client()
    rows, columns = {"min": 1, "max": 2**24}, {"buckets": [1, 4]}
    await call(rig, client, "model.load", **copying(["a", "b"], {"a": rows, "b": columns}))
    most = 32_768 // 8 // 2  # of one sample, input and output
    for shape in ([1, most, 2], [8, most, 2], [1, 100_000, 4], [1, 100_000, 1]):
        await copied(rig, client, shape)
    for shape in ([1, most + 1, 2], [8, most + 1, 2], [1, 1 << 20, 3]):
        with pytest.raises(ServiceError, match=r"x: this request's bytes would be \d+ pieces of a batch, at most"):
            await copied(rig, client, shape)
    await call(rig, client, "model.load", **copying(["a"], {"a": rows}, axis=1))
    await copied(rig, client, [100_000, 8])
    with pytest.raises(ServiceError, match="batch dimension, first"):
        await copied(rig, client, [100_000, 7])
    alone = copying(["a", "b"], {"a": rows, "b": columns}, dynamic_batching=None)
    await call(rig, client, "model.load", **alone)
    await copied(rig, client, [1, 16_384, 2])


async def test_what_would_be_too_many_copies_is_refused(rig: Rig) -> None:
    client = rig.client()
    buffer = client.buffer(1 << 20)
    rows, columns = {"min": 1, "max": 2**24}, {"buckets": [1, 4]}
    await call(rig, client, "model.load", **copying(["a", "b"], {"a": rows, "b": columns}))
    await copied(rig, client, [1, 512, 2], buffer=buffer)
    with pytest.raises(ServiceError, match="x: padding would take 513 copies, at most 512 are done"):
        await copied(rig, client, [1, 513, 2], buffer=buffer)
    await call(rig, client, "model.load", **copying(["a"], {"a": rows}, axis=1))
    with pytest.raises(ServiceError, match="x: padding would take 513 copies, at most 512 are done"):
        await copied(rig, client, [513, 1], buffer=buffer)
