"""A configuration becomes a definition and comes back whole; and what is wrong is said by its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vkqueue.errors import InvalidError
from vkqueue.models.definition import Definition


def config(**changes: Any) -> dict[str, Any]:
    """A model with a padded dimension, a kernel and two more nodes; None takes a key out."""
    found: dict[str, Any] = {
        "name": "tokens",
        "max_batch_size": 8,
        "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 500},
        "dimensions": {"seq": {"buckets": [16, 32]}},
        "input": [
            {"name": "ids", "data_type": "TYPE_INT32", "dims": ["seq"], "pad_value": -1},
            {"name": "lengths", "kind": "LENGTHS", "of": "seq"},
        ],
        "output": [{"name": "out", "data_type": "TYPE_FP32", "dims": ["seq", 4]}],
        "kernel": [{"name": "embed", "file": "embed.comp"}],
        "temporary": [{"name": "hidden", "size": "batch * seq * 16"}],
        "node": [
            {"fill": "hidden", "value": 7},
            {
                "kernel": "embed",
                "args": ["ids", "lengths", "weights.table", ["hidden", 0, "batch * seq * 16"]],
                "scalars": {"rows": "batch * seq", "scale": 0.5},
                "grid": ["ceil(batch * seq, 64)", 1],
                "specialization": {"width": "seq"},
            },
            {"copy": ["hidden", "out"]},
        ],
    }
    found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def test_what_is_given_comes_back_with_the_rest_filled_in() -> None:
    definition = Definition.from_map(config())
    whole = definition.to_map()
    assert whole["instance_group"] == {"count": 2}
    assert whole["version_policy"] == {"latest": {"num_versions": 1}}
    assert whole["input"][0]["batch_dimension"] == 0
    assert whole["dynamic_batching"]["max_queue_delay_microseconds"] == 500
    assert whole["node"][1]["grid"] == ["ceil(batch * seq, 64)", 1]
    assert whole["node"][1]["scalars"] == {"rows": "batch * seq", "scale": 0.5}
    assert whole["node"][0] == {"fill": "hidden", "value": 7}
    assert Definition.from_map(whole) == definition
    assert Definition.from_map(whole).to_map() == whole


def test_without_batches() -> None:
    definition = Definition.from_map(config(max_batch_size=None, dynamic_batching=None))
    assert not definition.batched
    assert definition.batching is None
    assert Definition.from_map(definition.to_map()) == definition


def test_the_name_may_come_from_outside() -> None:
    assert Definition.from_map(config(name=None), "given").name == "given"
    with pytest.raises(InvalidError, match="'tokens', but the model is loaded as 'given'"):
        Definition.from_map(config(), "given")


def ensemble(**step: Any) -> dict[str, Any]:
    return {
        "name": "both",
        "max_batch_size": 4,
        "input": [{"name": "text", "data_type": "TYPE_INT32", "dims": ["seq"]}],
        "output": [{"name": "out", "data_type": "TYPE_FP32", "dims": [4]}],
        "ensemble_scheduling": {
            "step": [{"model_name": "a", "input_map": {"ids": "text"}, "output_map": {"x": "out"}, **step}]
        },
    }


@pytest.mark.parametrize("version", [-1, 1, 7])
def test_the_version_of_a_step(version: int) -> None:
    definition = Definition.from_map(ensemble(model_version=version))
    assert definition.steps[0].model_version == version
    assert Definition.from_map(definition.to_map()) == definition


@pytest.mark.parametrize(
    ("version", "said"), [(0, "expected a version, from 1 on, or -1 for the latest, got 0"), (-2, "got -2")]
)
def test_a_version_that_no_step_has(version: int, said: str) -> None:
    with pytest.raises(InvalidError, match=rf"config: ensemble_scheduling.step\[0\].model_version: .*{said}"):
        Definition.from_map(ensemble(model_version=version))


def test_an_ensemble() -> None:
    definition = Definition.from_map(ensemble())
    assert definition.steps[0].model_version == -1
    assert Definition.from_map(definition.to_map()) == definition


def within(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts a value where the path says."""

    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (within("inptu", value=[]), 'inptu: no such key; did you mean "input"?'),
        (within("input", value=None), "input: is missing"),
        (within("max_batch_size", value="8"), "max_batch_size: expected an integer from 0 to 65536, got '8'"),
        (within("max_batch_size", value=0), "dynamic_batching: needs max_batch_size"),
        (within("dynamic_batching", "max_delay", value=3), "dynamic_batching has no key 'max_delay'"),
        (within("instance_group", value={"count": 0}), "instance_group.count: expected an integer from 1 to 16, got 0"),
        (within("version_policy", value={"latest": {}, "all": {}}), "expected one of latest, all and specific"),
        (within("version_policy", value={"specific": {"versions": [0]}}), "specific.versions: expected positive"),
        (within("dimensions", "seq", value={"buckets": [32, 16]}), "dimensions.seq.buckets: expected rising"),
        (within("dimensions", "seq", value={"min": 4}), "dimensions.seq.max: is missing"),
        (within("dimensions", "seq", value={"min": 4, "max": 3}), "dimensions.seq.min: 4 is over max (3)"),
        (within("dimensions", "batch", value={"max": 3}), "neither batch nor a function"),
        (within("dimensions", "other", value={"max": 3}), "dimensions.other: no input has it"),
        (within("input", 0, "data_type", value="TYPE_INT"), 'input[0].data_type: expected one of'),
        (within("input", 0, "dims", value=["seqq"]), "input[0].dims: expected positive integers and names of dim"),
        (within("input", 0, "dims", value=[-1]), "stands in [dimensions]"),
        (within("input", 0, "pad_value", value=0.5), "input[0].pad_value: expected a number for TYPE_INT32, got 0.5"),
        (within("input", 0, "pad_value", value=2**31), "is no value of TYPE_INT32"),
        (within("input", 0, "batch_dimension", value=2), "input[0].batch_dimension: expected an integer from 0 to 1"),
        (within("input", 1, "of", value="width"), "input[1].of: no dimension is called 'width'; there are seq"),
        (within("input", 1, "dims", value=[1]), "an input of kind LENGTHS has none"),
        (within("input", 1, "name", value="ids"), "input[1].name: 'ids' is there twice"),
        (within("output", 0, "name", value="ids"), "'ids' is an input as well"),
        (within("output", 0, "pad_value", value=1), "output[0].pad_value: no such key"),
        (within("kernel", value=[{"name": "embed"}, {"name": "embed"}]), "kernel[1].name: 'embed' is there twice"),
        (within("temporary", 0, "name", value="out"), "temporary[0].name: 'out': a name is of one thing only"),
        (within("temporary", 0, "size", value="batch * sec"), "no dimension is called 'sec'"),
        (within("node", value=[]), "a model has one node at least"),
        (within("node", 0, value={"kernel": "embed", "copy": []}), "node[0]: expected a map with one of"),
        (within("node", 0, "fill", value="hiden"), "no input, output or temporary is called 'hiden'"),
        (within("node", 1, "kernel", value="emb"), "node[1].kernel: expected one of embed, got 'emb'"),
        (within("node", 1, "grid", value=["ceil(batch * seq, 64"]), "at character 21: expected ')'"),
        (within("node", 1, "grid", value=[1, 1, 1, 1]), "node[1].grid: expected one to three numbers, got 4"),
        (within("node", 1, "launch", value=[1]), "node[1]: give one of grid and launch"),
        (within("node", 1, "args", 0, value=["ids", 0]), "args[0]: expected a name or [name, offset, size]"),
        (within("node", 1, "scalars", "rows", value=[1]), "node[1].scalars.rows: expected an integer or an expr"),
        (within("node", 2, "copy", value=["hidden"]), "node[2].copy: expected [source, target]"),
        (within("model_warmup", value=[{"batch_size": 9}]), "model_warmup[0].batch_size: expected an integer from 1"),
        (within("model_warmup", value=[{"dimensions": {"seq": 33}}]), "seq: expected 1 to 32, got 33"),
        (within("ensemble_scheduling", value={"step": []}), "an ensemble has none: its steps are other models"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_its_key(change: Callable[[dict[str, Any]], None], said: str) -> None:
    wrong = config()
    change(wrong)
    with pytest.raises(InvalidError) as error:
        Definition.from_map(wrong)
    assert said in error.value.message
    assert error.value.message.startswith("config: ")


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_map(value: Any) -> None:
    with pytest.raises(InvalidError, match="config: the whole: expected a map"):
        Definition.from_map(value)
