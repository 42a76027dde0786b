"""Configurations with anything anywhere: they become a definition and its graph, or an error that says why."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
from models.test_definition import config
from models.test_ensemble import both, member, pool

from vkqueue.errors import VkqueueError
from vkqueue.models.definition import Definition
from vkqueue.models.ensemble import flatten
from vkqueue.models.instantiate import instantiate
from vkqueue.models.shapes import Shapes

JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64, 10**400, 0.5, float("nan"), float("inf"), "", "x", "seq",
    "batch", "batch * seq", "seq / 0", "9" * 30, "((((", "é" * 300, b"", b"bytes", [], [[]], [1], ["seq"],
    ["a", "b", "c"], {}, {"x": {}}, {"": 1}, {"latest": {}}, [{}], ["ids", "seq", -1], ["weights.table", 0, "batch"],
    "weights.", "TYPE_FP32",
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def mutated(rng: random.Random, value: Any) -> Any:
    """The configuration with a few things in it changed, taken out, put twice or called otherwise."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        where, key = rng.choice(list(places(value)))
        kind = rng.random()
        if kind < 0.6:
            where[key] = copy.deepcopy(rng.choice(JUNK))
        elif kind < 0.75:
            del where[key]
        elif isinstance(where, list):
            where.append(copy.deepcopy(where[key]))
        else:
            where[rng.choice(["name", "seq", "of", "kind", "value", "label", "launch", key])] = where.pop(key)
        if not list(places(value)):
            break
    return value


@pytest.mark.parametrize("seed", range(6))
def test_any_configuration(seed: int) -> None:
    rng = random.Random(seed)
    good = 0
    for _ in range(700):
        try:
            definition = Definition.from_map(mutated(rng, config()))
            assert Definition.from_map(definition.to_map()).to_map() == definition.to_map()
            sizes = {name: dimension.smallest for name, dimension in definition.dimensions.items()}
            given = {
                name: tensor.whole(1, sizes, definition.batched)
                for name, tensor in definition.inputs.items()
                if not tensor.of
            }
            assert Shapes(definition).read(given).lengths == tuple(sizes.values())
            instantiate(definition, 1, sizes, {"table": 1})
            good += 1
        except VkqueueError as error:
            assert error.message
    assert good > 20


@pytest.mark.parametrize("seed", range(3))
def test_any_ensemble(seed: int) -> None:
    rng = random.Random(seed)
    good = 0
    for _ in range(400):
        which = rng.randrange(3)
        configs = [mutated(rng, c) if i == which else c for i, c in enumerate((both(), pool(), member("tokens")))]
        try:
            ensemble, *members = map(Definition.from_map, configs)
            if len(members) != len(ensemble.steps) or any(m.steps for m in members):
                continue
            flat = flatten(ensemble, members).definition
            assert Definition.from_map(flat.to_map()) == flat
            sizes = {name: dimension.smallest for name, dimension in flat.dimensions.items()}
            instantiate(flat, 1, sizes, {"tokens.w": 1})
            good += 1
        except VkqueueError as error:
            assert error.message
    assert good > 10
