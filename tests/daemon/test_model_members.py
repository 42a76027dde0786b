"""Ensembles with their members: also of ensembles, and never of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from models.test_ensemble import both, member, pool

from vkqueue.daemon.model_loading import warmups
from vkqueue.daemon.model_members import with_members
from vkqueue.errors import InvalidError, NotFoundError, TooLargeError
from vkqueue.models.definition import Definition, Step
from vkqueue.models.source import KernelSource, ModelSource, Weight


def source(config: dict[str, Any]) -> ModelSource:
    kernels = {"k": KernelSource("k", config["name"].encode(), "spirv", None, "test")}
    weights = {"w": Weight("U8", (1,), config["name"].encode())}
    return ModelSource(config["name"], 1, config, kernels, weights, None)


def chain(name: str, inner: str) -> dict[str, Any]:
    """An ensemble that does what `inner` does, from `in` to `out`."""
    step = {"model_name": inner, "input_map": {"in": "in"}, "output_map": {"out": "out"}}
    return both(name=name, ensemble_scheduling={"step": [step]})


async def flattened(
    *configs: dict[str, Any], max_nodes: int = 100, asked: list[str] | None = None
) -> tuple[Definition, ModelSource]:
    """The first of these models; the others are its members. `asked` gets the names of those that are looked for."""
    known = {config["name"]: source(config) for config in configs}

    async def find(step: Step) -> ModelSource:
        if asked is not None:
            asked.append(step.model_name)
        if step.model_name not in known:
            raise NotFoundError(f"no model {step.model_name!r}")
        return known[step.model_name]

    first = known[configs[0]["name"]]
    return await with_members(Definition.from_map(first.config), first, find, max_nodes)


async def test_an_ensemble_of_ensembles_has_all_kernels_and_weights() -> None:
    definition, whole = await flattened(chain("outer", "both"), both(), pool(), member("tokens"))
    assert {name: bytes(k.code) for name, k in whole.kernels.items()} == {
        "both.tokens.k": b"tokens",
        "both.pool.k": b"pool",
    }
    assert all(name == kernel.name for name, kernel in whole.kernels.items())
    assert bytes(whole.weights["both.tokens.w"].data) == b"tokens"
    assert [operand.name for operand in definition.nodes[1].operands][2] == "weights.both.tokens.w"
    assert definition.inputs["both.tokens.n"].of == "s"
    assert (whole.name, definition.name) == ("outer", "outer")


async def test_a_model_that_is_none_stays_as_it_is() -> None:
    definition, whole = await flattened(pool())
    assert definition.nodes
    assert whole == source(pool())


async def test_an_ensemble_is_no_step_of_itself() -> None:
    with pytest.raises(InvalidError, match="ensemble 'b': its step 'a' has it as a step itself"):
        await flattened(chain("a", "b"), chain("b", "a"))
    with pytest.raises(InvalidError, match="ensemble 'a': its step 'a' has it"):
        await flattened(chain("a", "a"))


def twice(name: str, inner: str) -> dict[str, Any]:
    """An ensemble of two steps that both are `inner`."""
    found = chain(name, inner)
    [step] = found["ensemble_scheduling"]["step"]
    found["ensemble_scheduling"]["step"].append({**step, "output_map": {"out": "nobody's"}})
    return found


async def test_a_member_of_many_steps_is_put_together_once() -> None:
    """Ensembles in ensembles have 256 leaves here, and each model is looked for once."""
    asked: list[str] = []
    levels = [twice(f"e{i}", f"e{i + 1}") for i in range(8)]
    definition, _ = await flattened(
        *levels, chain("e8", "both"), both(), pool(), member("tokens"), max_nodes=1000, asked=asked
    )
    assert len(definition.nodes) == 256 * 3
    assert asked == [*(f"e{i}" for i in range(1, 9)), "both", "pool", "tokens"]


async def test_ensembles_are_bounded_before_they_are_put_together() -> None:
    levels = [twice(f"e{i}", f"e{i + 1}") for i in range(12)]
    with pytest.raises(
        TooLargeError, match=r"ensemble 'e5': the 384 nodes of its steps are over max_graph_nodes \(255\)"
    ):
        await flattened(*levels, chain("e12", "both"), both(), pool(), member("tokens"), max_nodes=255)
    deep = [chain(f"e{i}", f"e{i + 1}") for i in range(40)]
    with pytest.raises(InvalidError, match="ensemble 'e0': ensembles are steps of each other over 16 deep"):
        await flattened(*deep)


async def test_a_member_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="no model 'tokens'"):
        await flattened(both(), pool())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, [(1, (32,)), (4, (32,))]),
        ([{"batch_size": 2, "dimensions": {"s": 33}}, {"batch_size": 2, "dimensions": {"s": 64}}], [(2, (64,))]),
        ([], []),
        ([{"batch_size": 5}], "5 samples of"),
        ([{"dimensions": {"s": 65}}], "this model takes up to 4, and s 1 to 64"),
        ([{"dimensions": {"other": 1}}], "this model takes up to 4"),
    ],
)
async def test_warm_ups_of_an_ensemble(given: Any, wanted: Any) -> None:
    config = both() if given is None else both(model_warmup=given)
    definition, _ = await flattened(config, pool(), member("tokens"))
    if isinstance(wanted, list):
        assert warmups(definition) == wanted
    else:
        with pytest.raises(InvalidError, match=wanted):
            warmups(definition)
