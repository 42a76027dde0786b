"""A small model for tests of the daemon, with what it should answer.

rows  [batch, seq, 4] = x[b][s] * w[j] + the length of the request
total [batch]         = the sum over x[b], padding (by 1000) included
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.e2e import kernel
from support.rawclient import RawClient

W = np.array([1, 10, 100, 1000], np.float32)
BUCKETS = [4, 8, 16]
PAD = 1000.0


def config(**changes: Any) -> dict[str, Any]:
    """The configuration; None takes a key out."""
    found: dict[str, Any] = {
        "max_batch_size": 8,
        "dynamic_batching": {"max_queue_delay_microseconds": 0},
        "dimensions": {"seq": {"buckets": BUCKETS}},
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": ["seq"], "pad_value": PAD},
            {"name": "lengths", "kind": "LENGTHS", "of": "seq"},
        ],
        "output": [
            {"name": "rows", "data_type": "TYPE_FP32", "dims": ["seq", 4]},
            {"name": "total", "data_type": "TYPE_FP32", "dims": []},
        ],
        "kernel": [{"name": "affine"}, {"name": "total"}],
        "temporary": [{"name": "copy", "size": "batch * seq * 4"}],
        "node": [
            {"copy": ["x", "copy"]},
            {
                "kernel": "affine",
                "args": ["copy", "lengths", "weights.w", "rows"],
                "scalars": {"rows": "batch * seq", "seq": "seq", "columns": 4},
                "grid": ["ceil(batch * seq * 4, 64)"],
            },
            {
                "kernel": "total",
                "args": ["x", "total"],
                "scalars": {"batch": "batch", "seq": "seq"},
                "grid": ["ceil(batch, 64)"],
            },
        ],
    }
    found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def ensemble(**changes: Any) -> dict[str, Any]:
    """rows of one model → its sum over seq by a second one: total of rows seen as [batch, seq * 4]."""
    found = {
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{"name": "in", "data_type": "TYPE_FP32", "dims": ["s"]}],
        "output": [
            {"name": "sums", "data_type": "TYPE_FP32", "dims": []},
            {"name": "middle", "data_type": "TYPE_FP32", "dims": ["s"]},
        ],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "second",
                    "input_map": {"x": "middle"},
                    "output_map": {"rows": "ignored", "total": "sums"},
                },
                {"model_name": "first", "input_map": {"x": "in"}, "output_map": {"doubled": "middle"}},
            ]
        },
    }
    return found | changes


def first(**changes: Any) -> dict[str, Any]:
    """doubled [batch, seq] = 2 * x + the length"""
    found = {
        "max_batch_size": 4,
        "dimensions": {"seq": {"buckets": [8, 16, 32]}},
        "input": config()["input"],
        "output": [{"name": "doubled", "data_type": "TYPE_FP32", "dims": ["seq"]}],
        "kernel": [{"name": "affine"}],
        "node": [
            {
                "kernel": "affine",
                "args": ["x", "lengths", "weights.w", "doubled"],
                "scalars": {"rows": "batch * seq", "seq": "seq", "columns": 1},
                "grid": ["ceil(batch * seq, 64)"],
            }
        ],
    }
    return found | changes


def kernels() -> list[dict[str, Any]]:
    """What `model.load` gets beside the configuration."""
    return [{"name": name, "code": kernel(name)} for name in ("affine", "total")]


def loading(name: str = "m", *, w: Any = W, version: int = 1, **changes: Any) -> dict[str, Any]:
    """Parameters of `model.load`."""
    params = {key: changes.pop(key) for key in ("device", "weights") if key in changes}
    weights = {"w": np.asarray(w, np.float32).tobytes()}
    return {
        "name": name,
        "version": version,
        "config": config(**changes),
        "kernels": kernels(),
        "weights": weights,
        **params,
    }


def load(client: RawClient, name: str = "m", **changes: Any) -> None:
    """Load the model."""
    params = loading(name, **changes)
    assert client.call("model.load", **params) == {"name": name, "version": params["version"]}


def inputs(x: Any) -> dict[str, Any]:
    """`inputs` of `model.infer`, of samples [n, seq]."""
    array = np.asarray(x, np.float32)
    return {"x": {"shape": list(array.shape), "data": array.tobytes()}}


def infer(client: RawClient, x: Any, name: str = "m", **params: Any) -> int:
    """Send a request; its msgid."""
    return client.send("model.infer", name=name, inputs=inputs(x), **params)


def expected(x: Any, w: Any = W) -> dict[str, np.ndarray]:
    """What the model says to these samples."""
    array = np.asarray(x, np.float32)
    length = array.shape[1]
    bucket = next(b for b in BUCKETS if b >= length)
    return {
        "rows": array[:, :, None] * np.asarray(w, np.float32) + np.float32(length),
        "total": array.sum(1) + np.float32(PAD * (bucket - length)),
    }


def outputs(answer: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of an answer."""
    return {
        name: np.frombuffer(found["data"], np.float32).reshape(found["shape"])
        for name, found in answer["outputs"].items()
    }


def check(answer: dict[str, Any], x: Any, w: Any = W) -> None:
    """Assert that the answer is the right one."""
    found, wanted = outputs(answer), expected(x, w)
    assert found
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5)


def statistics(client: RawClient, name: str = "m") -> dict[str, Any]:
    """Of the model's one version."""
    [found] = client.call("model.statistics", name=name)
    return dict(found)


def settled(found: dict[str, Any]) -> int:
    """Requests that have ended, of a version's statistics."""
    counted = found["inference_stats"]
    return sum((counted["success"]["count"], counted["fail"]["count"], found["cancelled"], found["expired"]))


def lay_out(root: Path, name: str, **changes: Any) -> None:
    """A model's folder in a repository, with two versions whose weights differ."""
    folder = root / name
    for version in (1, 2):
        (folder / str(version)).mkdir(parents=True)
        entries = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
        head = json.dumps(entries).encode()
        data = (W * version).tobytes()
        (folder / str(version) / "w.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    files = [{"name": n, "file": f"{n}.spv"} for n in ("affine", "total")]
    for entry in files:
        (folder / entry["file"]).write_bytes(kernel(entry["name"]))
    written = config(kernel=files, weights={"file": "w.safetensors"}, **changes)
    (folder / "config.toml").write_text(toml(written))


def toml(value: Any) -> str:
    """A configuration as TOML."""

    def one(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {one(v)}" for key, v in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(map(one, item)) + "]"
        return json.dumps(item)

    return "".join(f"{key} = {one(item)}\n" for key, item in value.items())
