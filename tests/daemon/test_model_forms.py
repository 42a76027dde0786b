"""Requests for inference whose form is known: every rule holds for them as for any other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from daemon.test_models import call, load, settle, statistics
from support.affine import PAD, inputs, loading
from support.inprocess import InProcessClient, Rig

from vkqueue.daemon import model_infer
from vkqueue.model import ROW_PAYLOAD

Served = tuple[Rig, InProcessClient]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Msgids of the requests that were looked at in full."""
    seen: list[int] = []
    known = model_infer.InferReader.read

    def reading(self: Any, session: Any, msgid: int, *rest: Any) -> Any:
        seen.append(msgid)
        return known(self, session, msgid, *rest)

    monkeypatch.setattr(model_infer.InferReader, "read", reading)
    return seen


@pytest.fixture
async def make(make_rig: Callable[..., Rig]) -> AsyncIterator[Callable[..., Rig]]:
    """As `make_rig`; afterwards the models are unloaded."""
    rigs: list[Rig] = []

    def made(**options: Any) -> Rig:
        rigs.append(make_rig(**options))
        return rigs[-1]

    yield made
    for rig in rigs:
        await settle(rig)
        for name in {version.name for version in rig.service.models.table.all()}:
            rig.service.models.spawn(rig.service.models.unload(name, None))
        await settle(rig)


@pytest.fixture
async def served(make: Callable[..., Rig]) -> Served:
    rig = make(config={"limits": {"max_queued_jobs": 4}})
    client = rig.client()
    await load(rig, client)
    return rig, client


def infer(client: InProcessClient, x: list[Any], **params: Any) -> int:
    return client.send("model.infer", name="m", inputs=inputs(x), **params)


async def known(served: Served, x: list[Any], **params: Any) -> None:
    """Have the form of such a request known: at the first it is seen, the second is looked at in full."""
    rig, client = served
    for _ in range(2):
        msgid = infer(client, x, **params)
        await settle(rig)
        assert client.code(msgid) is None


async def test_from_the_third_on_nothing_is_looked_at(served: Served, read: list[int]) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    before = len(read)
    sent = [infer(client, [[number, 2]], timing=None) for number in range(3)]  # another form: nil is there
    third = infer(client, [[7, 8]])
    await settle(rig)
    assert read[before:] == sent[:2]
    answer = client.result(third)
    assert answer["version"] == 1
    assert {name: found["shape"] for name, found in answer["outputs"].items()} == {"rows": [1, 2, 4], "total": [1]}
    assert statistics(client)["accepted"] == 6


async def test_its_own_bytes_go_to_the_device(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    infer(client, [[7, 8]])
    [batch] = rig.thread.batches
    pieces = batch.rows[0][ROW_PAYLOAD][0][1]
    assert np.frombuffer(b"".join(pieces.parts), np.float32).tolist() == [7, 8, PAD, PAD]


async def test_inputs_go_by_their_names(make: Callable[..., Rig], read: list[int]) -> None:
    rig = make()
    client = rig.client()
    both = loading("m")
    both["config"]["input"].insert(0, {"name": "z", "data_type": "TYPE_FP32", "dims": ["seq"]})
    both["config"]["output"].append({"name": "copied", "data_type": "TYPE_FP32", "dims": ["seq"]})
    both["config"]["node"].append({"copy": ["z", "copied"]})
    await call(rig, client, "model.load", **both)
    for round in range(3):
        x, z = (inputs([[round + number] * 4])["x"] for number in (10, 20))
        msgid = client.send("model.infer", name="m", inputs={"x": x, "z": z})
        [batch] = rig.thread.batches
        payload = [value for kind, value in batch.rows[0][ROW_PAYLOAD] if kind == "in"]
        assert [bytes(value) for value in payload[:2]] == [z["data"], x["data"]]
        await settle(rig)
        assert client.code(msgid) is None
    assert len(read) == 2


async def test_a_model_that_was_loaded_anew_is_asked_anew(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2], [3, 4]])
    await load(rig, client, max_batch_size=1)
    refused = infer(client, [[1, 2], [3, 4]])
    assert client.code(refused) == "invalid"
    await load(rig, client, max_batch_size=2)
    taken = infer(client, [[1, 2], [3, 4]])
    await settle(rig)
    assert client.code(taken) is None


async def test_a_newer_version_takes_the_requests_that_name_none(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    await load(rig, client, version=2)
    for _ in range(3):
        msgid = infer(client, [[1, 2]])
        await settle(rig)
        assert client.result(msgid)["version"] == 2


async def test_a_model_that_is_gone_is_not_found(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    await call(rig, client, "model.unload", name="m")
    assert client.code(infer(client, [[1, 2]])) == "not_found"


async def test_a_full_queue_refuses_it_and_counts_it(served: Served, read: list[int]) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    before = len(read)
    sent = [infer(client, [[1, 2]]) for _ in range(5)]
    assert client.code(sent[4]) == "overloaded"
    await settle(rig)
    assert [client.code(msgid) for msgid in sent[:4]] == [None] * 4
    assert len(read) == before
    assert statistics(client)["rejected"] == 1


async def test_a_daemon_that_drains_takes_none(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2]])
    rig.service.drain(lambda: None)
    assert client.code(infer(client, [[1, 2]])) == "shutting_down"


async def test_it_can_be_cancelled_and_expires(make: Callable[..., Rig]) -> None:
    rig = make()
    client = rig.client()
    levels = {"default_queue_policy": {"allow_timeout_override": True}}
    await load(rig, client, dynamic_batching=levels)
    await known((rig, client), [[1, 2]])
    await known((rig, client), [[1, 2]], timeout_us=1000)
    running = [infer(client, [[1, 2]]) for _ in range(2)]  # as many as there are instances
    waiting, late = infer(client, [[1, 2]]), infer(client, [[1, 2]], timeout_us=1000)
    client.call("cancel", msgid=waiting)
    assert client.code(waiting) == "cancelled"
    assert await client.answer(late) == "expired"
    await settle(rig)
    assert [client.code(msgid) for msgid in running] == [None, None]


async def test_times_are_told_to_those_who_ask(served: Served) -> None:
    rig, client = served
    await known(served, [[1, 2]], timing=True)
    msgid = infer(client, [[1, 2]], timing=True)
    await settle(rig)
    assert client.result(msgid)["timing"]["batch"] == 1
