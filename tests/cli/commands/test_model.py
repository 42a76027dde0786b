"""`vkqueue model` on a daemon that computes in NumPy."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from client.fake_models import SUMS

from vkqueue import cli
from vkqueue.cli.model_tables import toml_of
from vkqueue.client.sync import connect
from vkqueue.models.definition import Definition


@pytest.fixture
def model(vkqueue: Callable[..., Any], fake: Any) -> Callable[..., Any]:
    """Runs `vkqueue model …` on the fake daemon."""
    return lambda *words: vkqueue("model", *words, "--socket", fake.path)


def test_list(model: Callable[..., Any], fake: Any) -> None:
    ended = model("list")
    assert ended.code == 0
    assert all(word in ended.out for word in ("sums", "READY", "broken", "UNAVAILABLE", "no config.toml"))
    first = model("list", "--json").json["models"][0]
    assert first == {"name": "sums", "version": 1, "state": "READY", "reason": "", "device": 0}


def test_list_of_none(model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkqueue.client.sync.Client.models", lambda self: [])
    assert "no models; `vkqueue model load`" in model("list").out


def test_load_and_unload(model: Callable[..., Any], fake: Any) -> None:
    ended = model("load", "stored", "--version", 3, "--device", 0)
    assert (ended.code, ended.out) == (0, "stored 3 is ready: x: int32 (batch, seq) → y: float32 (batch, 1)\n")
    assert ("model.load", {"name": "stored", "version": 3, "device": 0}) in fake.log
    assert model("unload", "sums", "--version", 1).out == "version 1 of sums is unloaded\n"
    assert model("unload", "pair", "--json").json == {"ok": True, "name": "pair", "version": None}
    ended = model("unload", "pair")
    assert (ended.code, ended.err) == (1, "vkqueue: not_found: no model 'pair' of version None\n")
    assert model("load", "stored", "--json").json["config"]["max_batch_size"] == 4


def test_load_a_folder(model: Callable[..., Any], fake: Any, tmp_path: Path) -> None:
    ended = model("load", tmp_path / "net")
    assert ended.code == 1 and ended.err.startswith("vkqueue: not_found: there is no folder ")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "config.toml").write_text(toml_of({key: SUMS[key] for key in ("input", "output")}))
    assert model("load", tmp_path / "net").out.startswith("net 1 is ready")


def test_config_can_be_used_as_a_file(model: Callable[..., Any]) -> None:
    ended = model("config", "sums")
    assert ended.out.startswith("# version 1: x: int32 (batch, seq) → y: float32 (batch, 1)\n")
    assert tomllib.loads(ended.out) == {key: value for key, value in SUMS.items() if key != "version"}
    assert model("config", "sums", "--version", "1", "--json").json["config"] == SUMS


TRICKY = """
[[input]]
name = "x"
data_type = "TYPE_FP32"
dims = [2]
pad_value = -inf
[[input]]
name = "a\\nb\\u007f\\u0085\\u001b\\"c"
data_type = "TYPE_FP32"
dims = [2]
pad_value = inf
[[output]]
name = "y"
data_type = "TYPE_FP32"
dims = [2]
"""


def test_config_with_what_json_does_not_have(model: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "config.toml").write_text(TRICKY)
    assert model("load", tmp_path / "net", "--json").json["config"]["input"][0]["pad_value"] == "-inf"
    given, ended = tomllib.loads(TRICKY), model("config", "net")
    assert ended.code == 0, ended.err
    assert "pad_value = -inf\n" in ended.out and "pad_value = inf\n" in ended.out
    assert ended.out.startswith("# version 1: x: float32 (2,); a\\nb")
    shown = tomllib.loads(ended.out)
    assert {key: shown[key] for key in given} == given
    inputs = model("config", "net", "--json").json["config"]["input"]
    assert [one["pad_value"] for one in inputs] == ["-inf", "inf"]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 1e16, 1e-7, 2**63, True, "\x7f", "\x9f\t"]
)
def test_a_value_as_toml(value: Any) -> None:
    config = {"a": value, "b": [{"c": [value], "d\x7f": {"e": value}}]}
    assert repr(tomllib.loads(toml_of(config))) == repr(config)


def test_config_of_what_a_client_sent(model: Callable[..., Any], fake: Any) -> None:
    config = {
        **{key: SUMS[key] for key in ("max_batch_size", "dimensions", "input", "output")},
        "kernel": [{"name": "k"}, {"name": "of a file", "file": "f.spv"}, {"name": "l m"}],
        "node": [{"kernel": "k", "args": ["x", ["weights.w", 0, 16], "y"], "grid": [1]}, {"copy": ["x", "y"]}],
    }

    def comments(**changes: Any) -> list[str]:
        with connect(fake.path) as gpu:
            gpu.load_model("own", {**config, **changes})
        shown = model("config", "own").out
        assert tomllib.loads(shown)["name"] == "own"
        return [line for line in shown.splitlines() if line.startswith("#")][1:]

    rest = 'sent by a client and in no file; to use this as a config.toml, add file = "…"'
    assert comments() == [f'# kernels k, "l m" and the weights: {rest}']
    assert comments(weights={"file": "w.safetensors"}) == [f'# kernels k, "l m": {rest}']
    node = [{"copy": ["weights.w", "y"]}]
    assert comments(kernel=[], node=node) == [f"# the weights: {rest}"]
    assert comments(kernel=[{"name": "k", "file": "k.spv"}], node=[{"copy": ["x", "y"]}]) == []


def test_any_configuration_as_toml() -> None:
    config: dict[str, Any] = {
        "name": "a b", "max_batch_size": 8,
        "dynamic_batching": {
            "preferred_batch_size": [4, 8], "default_queue_policy": {"timeout_action": "DELAY"},
            "priority_levels": 2, "default_priority_level": 1, "priority_queue_policy": {"1": {"max_queue_size": 3}},
        },
        "dimensions": {"n": {"buckets": [1, 2]}},
        "input": [{"name": 'x"y\\é', "data_type": "TYPE_FP32", "dims": ["n", 2]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["n", 2]}],
        "kernel": [{"name": "k", "file": "k.spv"}], "temporary": [{"name": "t", "size": "batch * n"}],
        "node": [
            {"kernel": "k", "args": ["y", ["t", 0, "n"]], "scalars": {"a.b": "n", "f": 0.5}, "grid": ["batch", 1]},
            {"copy": ["t", "y"]}, {"fill": "t", "value": 0},
        ],
    }  # fmt: skip
    assert tomllib.loads(toml_of(config)) == config
    whole = Definition.from_map(config).to_map()
    assert Definition.from_map(tomllib.loads(toml_of(whole))).to_map() == whole


def test_stats(model: Callable[..., Any]) -> None:
    ended = model("stats")
    row = next(line for line in ended.out.splitlines() if " 2 │" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "sums", "2", "9", "1", "6", "20", "4", "5.00", "0.500", "2.000",
    ]  # fmt: skip
    assert "closed because" not in ended.out
    ended = model("stats", "sums")
    assert "closed because" in ended.out and "idle" in ended.out and "batch size" in ended.out
    assert model("stats", "sums", "--json").json["model_stats"][1]["inference_count"] == 20
    assert model("stats", "--version", "1").code == 2


@pytest.mark.parametrize(
    ("argument", "sent"),
    [
        ("1,2,3", [[1, 2, 3]]),
        ("x=0:4", [[0, 1, 2, 3]]),
        ("[1,2;3,4]", [[1, 2], [3, 4]]),
        ("x=[0:3]", [[0, 1, 2]]),
        ("full:2x2:7", [[7, 7], [7, 7]]),
        ("random:1x3:seed=7:high=2", None),
    ],
)
def test_infer(model: Callable[..., Any], fake: Any, argument: str, sent: list[list[int]] | None) -> None:
    ended = model("infer", "sums", argument, "--json")
    assert ended.code == 0, ended.err
    (infer,) = (params for method, params in fake.log if method == "model.infer")
    tensor = infer["inputs"]["x"]
    x = np.frombuffer(tensor["data"], np.int32).reshape(tensor["shape"])
    assert sent is None or x.tolist() == sent
    (result,) = ended.json["results"]
    assert (result["name"], result["shape"]) == ("y", [len(x), 1])
    assert result["head"] == (2 * x.sum(-1)).tolist()
    assert ended.json["timing"] == {"queued_us": 5, "batch": 3, "device_us": None, "total_us": 9}


def test_infer_with_files(model: Callable[..., Any], fake: Any, tmp_path: Path) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", a)
    ended = model("infer", "pair", f"a={tmp_path / 'a.npy'}", "b-bits=zeros:2", "--out", f"q={tmp_path / 'q.npy'}")
    assert ended.code == 0, ended.err
    assert np.array_equal(np.load(tmp_path / "q.npy"), 2 * a)
    assert " p " in ended.out and " q " in ended.out
    ended = model(
        "infer", "pair", tmp_path / "a.npy", "1,2", "--output", "p", "--timing", "--priority", 2, "--timeout", 0.5
    )
    assert " p " in ended.out and " q " not in ended.out and "samples in the batch" in ended.out
    (*_, (_, last)) = fake.log
    assert (last["outputs"], last["priority"], last["timeout_us"]) == (["p"], 2, 500_000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "takes 1 inputs, got 0. They are x: int32 (batch, seq)"),
        (("1", "2"), "takes 1 inputs, got 2"),
        (("z=1",), "the model has no input 'z'; it has x"),
        (("x=1", "x=2"), "'x' is given twice"),
        (("[1;2,3]",), "samples of one request have one shape"),
        (("out:1x2",), "'out:1x2' is no input"),
        (("1.5,x",), "cannot read '1.5,x'"),
        (("0:9",), "seq may be 1 to 8"),
        (("1:2", "--out", "q=q.npy"), "--out: the model has no output 'q'; it has y"),
    ],
)
def test_infer_of_what_does_not_fit(model: Callable[..., Any], arguments: tuple[str, ...], message: str) -> None:
    ended = model("infer", "sums", *arguments)
    assert ended.code == 1 and ended.err.startswith("vkqueue: invalid: ")
    assert message in ended.err


def test_completion(clean: None, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(*words: str) -> list[str]:
        found = ShellComplete(cli.group, {}, "vkqueue", "_VKQUEUE_COMPLETE").get_completions(
            list(words[:-1]), words[-1]
        )
        return [item.value for item in found if item.type == "plain"]

    monkeypatch.setenv("VKQUEUE_SOCKET", fake.path)
    assert complete("mod") == ["model"]
    assert complete("model", "") == ["config", "infer", "list", "load", "stats", "unload"]
    assert complete("model", "infer", "s") == ["sums"]
    assert complete("model", "load", "") == ["broken", "pair", "sums"]
    assert complete("model", "load", "./s") == []
    monkeypatch.setenv("VKQUEUE_SOCKET", "/nonexistent/s")
    assert complete("model", "infer", "") == []
