"""Steps become one graph: names, dimensions, order; and what does not fit is said with both sides."""

from __future__ import annotations

from typing import Any

import pytest

from vkqueue.errors import InvalidError
from vkqueue.models.definition import Definition
from vkqueue.models.ensemble import Flattened, flatten
from vkqueue.models.instantiate import instantiate
from vkqueue.models.tensors import Dimension


def member(name: str, **changes: Any) -> dict[str, Any]:
    """x [seq] → y [seq, 4], with a temporary, a weight and lengths."""
    found: dict[str, Any] = {
        "name": name,
        "max_batch_size": 8,
        "dimensions": {"seq": {"buckets": [16, 32, 64]}},
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": ["seq"]},
            {"name": "n", "kind": "LENGTHS", "of": "seq"},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["seq", 4]}],
        "kernel": [{"name": "k"}],
        "temporary": [{"name": "t", "size": "batch * seq * 4"}],
        "node": [
            {"copy": ["x", "t"]},
            {"kernel": "k", "args": ["t", "n", "weights.w", "y"], "scalars": {"rows": "batch * seq"}, "grid": ["seq"]},
        ],
    }
    return found | changes


def pool(**changes: Any) -> dict[str, Any]:
    """h [length, width] → p [width]"""
    found: dict[str, Any] = {
        "name": "pool",
        "max_batch_size": 4,
        "dimensions": {"length": {"buckets": [32, 64, 128]}, "width": {"min": 1, "max": 8}},
        "input": [{"name": "h", "data_type": "TYPE_FP32", "dims": ["length", "width"]}],
        "output": [{"name": "p", "data_type": "TYPE_FP32", "dims": ["width"]}],
        "kernel": [{"name": "k"}],
        "node": [{"kernel": "k", "args": ["h", "p"], "scalars": ["length", "width"], "grid": ["batch"]}],
    }
    return found | changes


def both(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": "both",
        "max_batch_size": 8,
        "dynamic_batching": {"preferred_batch_size": [2, 8]},
        "input": [{"name": "in", "data_type": "TYPE_FP32", "dims": ["s"]}],
        "output": [{"name": "out", "data_type": "TYPE_FP32", "dims": [4]}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": "pool", "input_map": {"h": "hidden"}, "output_map": {"p": "out"}},
                {"model_name": "tokens", "input_map": {"x": "in"}, "output_map": {"y": "hidden"}},
            ]
        },
    }
    return found | changes


def made(ensemble: dict[str, Any] | None = None, *members: dict[str, Any]) -> Flattened:
    given = members or (pool(), member("tokens"))
    return flatten(Definition.from_map(ensemble or both()), [Definition.from_map(m) for m in given])


def test_steps_become_one_graph_in_the_order_of_their_tensors() -> None:
    flat = made()
    definition = flat.definition
    assert definition.max_batch_size == 4
    assert definition.batching is not None
    assert definition.batching.preferred_batch_size == (2,)
    assert definition.dimensions == {"s": Dimension("s", (32, 64), 1, 64)}
    assert flat.kernels == {"tokens.k": (1, "k"), "pool.k": (0, "k")}
    assert flat.prefixes == ("pool.", "tokens.")
    assert definition.inputs["in"].dims == ("s",)
    assert definition.inputs["tokens.n"].of == "s"
    graph = instantiate(definition, 2, {"s": 32}, {"tokens.w": 9})
    assert graph == {
        "inputs": {"in": 2 * 32 * 4, "tokens.n": 8},
        "outputs": {"out": 2 * 4 * 4},
        "temporaries": {"tokens.t": 2 * 32 * 4, "hidden": 2 * 32 * 4 * 4},
        "nodes": [
            {"copy": ["in", "tokens.t"]},
            {
                "kernel": "tokens.k",
                "args": ["tokens.t", "tokens.n", 9, "hidden"],
                "scalars": {"rows": 64},
                "grid": [32],
            },
            {"kernel": "pool.k", "args": ["hidden", "out"], "scalars": [32, 4], "grid": [2]},
        ],
    }
    assert Definition.from_map(definition.to_map()) == definition


def test_one_model_in_several_steps() -> None:
    ensemble = both(
        output=[{"name": n, "data_type": "TYPE_FP32", "dims": ["s", 4]} for n in ("one", "two")],
        ensemble_scheduling={
            "step": [
                {"model_name": "tokens", "input_map": {"x": "in"}, "output_map": {"y": name}} for name in ("one", "two")
            ]
        },
    )
    flat = made(ensemble, member("tokens"), member("tokens"))
    assert flat.kernels == {"tokens.0.k": (0, "k"), "tokens.1.k": (1, "k")}
    graph = instantiate(flat.definition, 1, {"s": 16}, {"tokens.0.w": 1, "tokens.1.w": 2})
    assert graph["inputs"].keys() == {"in", "tokens.0.n", "tokens.1.n"}
    assert [node["args"][2] for node in graph["nodes"] if "kernel" in node] == [1, 2]


def test_outputs_that_nobody_takes_stay_on_the_device() -> None:
    two = member(
        "tokens",
        output=[*member("m")["output"], {"name": "z", "data_type": "TYPE_FP16", "dims": ["seq"]}],
        node=[*member("m")["node"], {"fill": "z"}],
    )
    flat = made(None, pool(), two)
    graph = instantiate(flat.definition, 2, {"s": 64}, {"tokens.w": 1})
    assert graph["temporaries"]["tokens.z"] == 2 * 64 * 2
    assert graph["outputs"].keys() == {"out"}


def test_a_length_that_a_step_fixes() -> None:
    fixed = pool(
        dimensions={"width": {"min": 1, "max": 8}},
        input=[{"name": "h", "data_type": "TYPE_FP32", "dims": [64, "width"]}],
        node=[{"kernel": "k", "args": ["h", "p"], "grid": ["width"]}],
    )
    plain = member(
        "tokens", input=[member("m")["input"][0]], node=[{"kernel": "k", "args": ["x", "y"], "grid": ["seq"]}]
    )
    flat = made(both(input=[{"name": "in", "data_type": "TYPE_FP32", "dims": [64]}]), fixed, plain)
    assert flat.definition.dimensions == {}
    assert instantiate(flat.definition, 1, {}, {})["nodes"][0]["grid"] == [64]
    with pytest.raises(InvalidError, match="LENGTHS.*is always 64 here"):
        made(both(input=[{"name": "in", "data_type": "TYPE_FP32", "dims": [64]}]), fixed, member("tokens"))


def step(index: int, **changes: Any) -> dict[str, Any]:
    """The ensemble with a step changed."""
    steps = both()["ensemble_scheduling"]["step"]
    steps[index] |= changes
    return both(ensemble_scheduling={"step": steps})


@pytest.mark.parametrize(
    ("ensemble", "members", "said"),
    [
        (step(0, input_map={"g": "hidden"}), (), "step 0 (pool): input_map: the model has no 'g'; it has h"),
        (step(0, input_map={}), (), "step 0 (pool): input_map: the model's input 'h' is missing"),
        (step(0, input_map={"h": "hiden"}), (), "input_map: h: nothing makes 'hiden'; there are in, out, hidden"),
        (step(1, output_map={"y": "out"}), (), "step 1 (tokens): output_map: 'out' is made by step 0 (pool) already"),
        (step(1, output_map={"n": "hidden"}), (), "output_map: the model has no 'n'; it has y"),
        (step(1, input_map={"x": "in", "n": "in"}), (), "input_map: the model has no 'n'; it has x"),
        (both(output=[{"name": "o", "data_type": "TYPE_FP32", "dims": [4]}]), (), "output 'o': no step makes it"),
        (
            both(output=[{"name": "out", "data_type": "TYPE_FP32", "dims": [5]}]),
            (),
            "but this dimension is 4 elsewhere",
        ),
        (both(output=[{"name": "out", "data_type": "TYPE_FP32", "dims": [4, 1]}]), (), "makes dims ['width']"),
        (both(output=[{"name": "out", "data_type": "TYPE_FP16", "dims": [4]}]), (), "makes TYPE_FP32, the ensemble t"),
        (both(input=[*both()["input"], {"name": "u", "data_type": "TYPE_FP32", "dims": [1]}]), (), "no step uses it"),
        (None, (pool(max_batch_size=0), member("tokens")), "max_batch_size is 8, of its steps pool 0, tokens 8"),
        (
            None,
            (pool(), member("tokens", dimensions={"seq": {"buckets": [16]}})),
            "no length fits all of pool.length [32, 64, 128], tokens.seq [16], which are one dimension",
        ),
        (both(dimensions={"s": {"max": 20}}), (), "no length fits all of s (1 to 20)"),
        (
            both(input=[{"name": "in", "data_type": "TYPE_FP32", "dims": [33]}]),
            (),
            "the ensemble's input makes 33, step 1 (tokens) takes 'seq': 33 is no length of",
        ),
    ],
)
def test_what_does_not_fit(ensemble: Any, members: Any, said: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(ensemble, *members)
    assert said in error.value.message


def test_steps_that_wait_for_each_other() -> None:
    def same(name: str) -> dict[str, Any]:
        return member(
            name,
            input=[{"name": "x", "data_type": "TYPE_FP32", "dims": ["seq"]},
                   {"name": "g", "data_type": "TYPE_FP32", "dims": ["seq"]}],
            output=[{"name": "y", "data_type": "TYPE_FP32", "dims": ["seq"]}],
            node=[{"kernel": "k", "args": ["x", "g", "y"], "grid": [1]}],
        )  # fmt: skip

    ensemble = both(
        output=[{"name": "one", "data_type": "TYPE_FP32", "dims": ["s"]}],
        ensemble_scheduling={
            "step": [
                {"model_name": "a", "input_map": {"x": "in", "g": "two"}, "output_map": {"y": "one"}},
                {"model_name": "b", "input_map": {"x": "in", "g": "one"}, "output_map": {"y": "two"}},
            ]
        },
    )
    with pytest.raises(InvalidError, match=r"steps 0 \(a\), 1 \(b\) wait for each other"):
        made(ensemble, same("a"), same("b"))


def test_padding_that_steps_want_differently() -> None:
    def padded(name: str, value: int) -> dict[str, Any]:
        found = member(name)
        found["input"][0]["pad_value"] = value
        return found

    ensemble = both(
        output=[{"name": n, "data_type": "TYPE_FP32", "dims": ["s", 4]} for n in ("one", "two")],
        ensemble_scheduling={
            "step": [
                {"model_name": name, "input_map": {"x": "in"}, "output_map": {"y": out}}
                for name, out in (("a", "one"), ("b", "two"))
            ]
        },
    )
    assert made(ensemble, padded("a", 7), padded("b", 7)).definition.inputs["in"].pad_value == 7
    with pytest.raises(InvalidError, match="input 'in': its steps want padding by 0 and by 7"):
        made(ensemble, padded("a", 7), padded("b", 0))
