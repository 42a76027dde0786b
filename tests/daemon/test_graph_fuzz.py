"""Whatever is sent as a graph or a launch of one: an answer that says what is wrong, and never a fault of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.inprocess import Rig

VALUES: list[Any] = [
    None, True, 0, 1, -1, 2, 3, 64, 2**31, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"), "", "x", "main",
    b"", bytes(7), bytes(256), [], {}, [1, 0, 64], ["x", 0, 64], ["x", -4, 8], ["x", 2**62, 2**62], ["x"],
    ["x", "y", "t"], {"x": 2**62}, {"": 1}, {"\N{GREEK SMALL LETTER XI}": 1}, {"z" * 300: 8}, {"k": "uint8"},
    {"in": bytes(8)}, {"in": 5}, {"out": 64}, {"inout": bytes(64)}, {"values": {}}, {"array": ["x", "y"]}, {"array": 3},
    {"scalar": "k"}, {"scalar": "n"}, {"scalar": 3}, {"scalar": "k", "x": 1}, [{"scalar": "n"}], {"k": {"scalar": "k"}},
]  # fmt: skip


ROUNDS = 300


def anything(rng: random.Random, depth: int = 0) -> Any:
    if depth < 2 and rng.random() < 0.2:
        return [anything(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return rng.choice(VALUES)


def good_node(rng: random.Random, module: int) -> dict[str, Any]:
    kind = rng.randint(0, 3)
    if kind == 0:
        return {"fill": rng.choice(["x", "y", "t"]), "value": 3}
    if kind == 1:
        return {"copy": ["x", "y"]}
    scalars: Any = rng.choice([[64, 0.5], [{"scalar": "n"}, {"scalar": "k"}], {"n": 64, "k": {"scalar": "k"}}])
    return {"kernel": [module, "main"], "args": ["x", "y"], "scalars": scalars, "grid": [1]}


def spoiled(rng: random.Random, good: Any) -> Any:
    """The same with some part replaced, left out, or more."""
    if isinstance(good, dict) and good and rng.random() < 0.9:
        key = rng.choice(list(good))
        what = rng.random()
        if what < 0.15:
            return {k: v for k, v in good.items() if k != key}
        if what < 0.3:
            return {**good, rng.choice(["grid", "launch", "label", "value", "copy", "wrong"]): anything(rng)}
        return {**good, key: spoiled(rng, good[key])}
    if isinstance(good, list) and good and rng.random() < 0.8:
        place = rng.randrange(len(good))
        return [spoiled(rng, v) if i == place else v for i, v in enumerate(good)]
    return anything(rng)


@pytest.mark.parametrize("seed", range(4))
async def test_any_graph_and_any_launch_is_answered(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    assert (module, x, y) == (1, 2, 3)
    made = launched = 0
    for _ in range(ROUNDS):
        params: dict[str, Any] = {
            "nodes": [good_node(rng, module) for _ in range(rng.randint(1, 5))],
            "inputs": {"x": 256}, "outputs": {"y": 256}, "temporaries": {"t": 256},
            "scalars": {"n": "uint32", "k": "float32"},
        }  # fmt: skip
        for _ in range(rng.randint(0, 2)):
            if rng.random() < 0.8 and isinstance(params.get("nodes"), list):
                params = {**params, "nodes": spoiled(rng, params["nodes"])}  # there is most to get wrong
            else:
                key = rng.choice(list(params))
                params = {**params, key: spoiled(rng, params[key])}
        msgid = client.send("graph.create", **params)
        rig.settle()
        code = client.code(msgid)
        assert code in (None, "invalid", "not_found", "too_large", "quota"), (code, params)
        if code is not None:
            continue
        made += 1
        graph = client.session.next_handle - 1
        for _ in range(3):
            launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}, "scalars": {"n": 64, "k": 0.5}}
            if rng.random() < 0.8:
                launch = spoiled(rng, launch)
            msgid = client.send("graph.launch", **(launch if isinstance(launch, dict) else {"graph": launch}))
            rig.settle()
            code = client.code(msgid)
            launched += code is None
            assert code in (None, "invalid", "not_found", "too_large", "quota"), (code, launch)
        client.call("graph.free", graph=graph)
    assert made > 20 and launched > 20
