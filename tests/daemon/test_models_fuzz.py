"""Requests to models with anything anywhere: an answer or an error of the client's, never a fault of the daemon's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from daemon.test_models import settle
from models.test_config_fuzz import mutated
from support.affine import inputs, loading
from support.inprocess import InProcessClient, Rig

FINE = {None, "invalid", "not_found", "too_large", "unsupported", "overloaded", "protocol"}


def requests(rng: random.Random, buffer: int) -> tuple[str, dict[str, Any]]:
    """A request with a few things wrong in it."""
    kind = rng.randrange(4)
    if kind == 3:
        return "model.load", mutated(rng, loading("other"))
    params: dict[str, Any] = {"name": "m", "inputs": inputs([[1, 2], [3, 4]]), "outputs": ["rows", "total"]}
    if kind == 1:
        params["inputs"]["x"] = {"shape": [2, 2], "buffer": buffer, "offset": 4}
        params["outputs"] = {"rows": {"buffer": buffer, "offset": 128}, "total": {}}
    if kind == 2:
        params |= {"priority": 1, "timeout_us": 5, "timing": True, "version": 1}
    return "model.infer", mutated(rng, params)


def sendable(value: Any) -> bool:
    """Whether MessagePack has a form for it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and sendable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(sendable, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64


async def one(rig: Rig, client: InProcessClient, method: str, params: dict[str, Any]) -> str | None:
    msgid = client.send(method, **params)
    await settle(rig)
    return client.code(msgid)


@pytest.mark.parametrize("seed", range(6))
async def test_any_request(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig().start()
    client = rig.client()
    assert await one(rig, client, "model.load", loading()) is None
    buffer = client.buffer(1024)
    answered = dict.fromkeys(FINE, 0)
    for _ in range(250):
        method, params = requests(rng, buffer)
        if not sendable(params):
            continue
        code = await one(rig, client, method, params)
        assert code in FINE, (method, params)
        answered[code] += 1
    assert answered[None]
    assert answered["invalid"] > 50
    assert await one(rig, client, "model.infer", {"name": "m", "inputs": inputs([[1, 2]])}) is None
    for version in rig.service.models.table.all():
        assert await one(rig, client, "model.unload", {"name": version.name}) in (None, "not_found")
    rig.finish()
