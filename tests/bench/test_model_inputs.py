"""Requests that the load generator makes up, or takes from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkqueue.bench.model_inputs import Inputs, Wanted
from vkqueue.client.model import BaseModel
from vkqueue.errors import InvalidError


def model(*, batch: int = 8, dimensions: Any = None, **inputs: Any) -> BaseModel:
    """One with these inputs: (data type, dims)."""
    given = [{"name": name, "data_type": kind, "dims": dims} for name, (kind, dims) in inputs.items()]
    config = {
        "max_batch_size": batch,
        "dimensions": {"seq": {"buckets": [4, 16]}} if dimensions is None else dimensions,
        "input": [*given, {"name": "lengths", "kind": "LENGTHS", "of": "seq"}],
        "output": [],
    }
    return BaseModel(None, "m", None, config)


IDS = {"ids": ("TYPE_INT32", ["seq"]), "mask": ("TYPE_FP32", ["seq", 2])}


def test_shapes_go_together_and_sizes_are_what_the_model_allows() -> None:
    inputs = Inputs(model(**IDS), Wanted(samples=3))
    sizes = set()
    for _ in range(200):
        made = inputs.request()
        assert set(made) == {"ids", "mask"}
        assert made["ids"].dtype == np.int32
        assert made["mask"].dtype == np.float32
        assert made["mask"].shape == (*made["ids"].shape, 2)
        assert made["ids"].shape[0] == 3
        sizes.add(made["ids"].shape[1])
    assert sizes == set(range(1, 17))


def test_sizes_and_values_as_asked_for() -> None:
    wanted = Wanted(dimensions={"seq": (5, 6)}, values={"ids": (1000, 1001), "mask": (7.0, 8.0)})
    inputs = Inputs(model(**IDS), wanted)
    made = [inputs.request() for _ in range(50)]
    assert {one["ids"].shape for one in made} == {(1, 5), (1, 6)}
    assert set(np.concatenate([one["ids"].ravel() for one in made])) == {1000, 1001}
    masks = np.concatenate([one["mask"].ravel() for one in made])
    assert masks.min() >= 7 and masks.max() < 8


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("TYPE_BOOL", 0, 1),
        ("TYPE_UINT8", 0, 99),
        ("TYPE_INT64", 0, 99),
        ("TYPE_FP16", -1, 1),
        ("TYPE_FP64", -1, 1),
    ],
)
def test_values_by_type(kind: str, low: float, high: float) -> None:
    made = Inputs(model(x=(kind, [1000])), Wanted()).request()["x"]
    assert low <= made.min() < made.max() <= high


def test_bfloat16() -> None:
    made = Inputs(model(x=("TYPE_BF16", [1000])), Wanted()).request()["x"]
    values = (made.astype(np.uint32) << 16).view(np.float32)
    assert made.dtype == np.uint16
    assert -1 <= values.min() < values.max() <= 1


def test_the_same_seed_gives_the_same_requests() -> None:
    one, same, other = (Inputs(model(**IDS), Wanted(seed=seed)) for seed in (1, 1, 2))
    for _ in range(5):
        mine = one.request()["mask"].tobytes()
        assert mine == same.request()["mask"].tobytes() != other.request()["mask"].tobytes()


def test_without_a_batch_dimension() -> None:
    made = Inputs(model(batch=0, x=("TYPE_FP32", [2, 3])), Wanted()).request()
    assert made["x"].shape == (2, 3)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(samples=9), "9 samples a request: the model 'm' takes 8 at most"),
        (Wanted(dimensions={"length": (1, 2)}), "give no dimension 'length'; they give seq"),
        (Wanted(dimensions={"seq": (1, 17)}), "seq from 1 to 17: the model takes 1 to 16"),
        (Wanted(dimensions={"seq": (0, 4)}), "seq from 0 to 4"),
        (Wanted(values={"lengths": (1, 2)}), "give no input 'lengths'; they give ids, mask"),
    ],
)
def test_what_the_model_does_not_take(wanted: Wanted, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        Inputs(model(**IDS), wanted)


def test_a_size_that_nobody_says() -> None:
    with pytest.raises(InvalidError, match="--dimension seq=LOW:HIGH"):
        Inputs(model(dimensions={}, **IDS), Wanted())
    made = Inputs(model(dimensions={}, **IDS), Wanted(dimensions={"seq": (3, 3)})).request()
    assert made["ids"].shape == (1, 3)


# From a file


def test_samples_of_a_file_in_turn(tmp_path: Path) -> None:
    ids = np.arange(5, dtype=np.int32)[:, None] * np.ones((1, 4), np.int32)
    np.savez(tmp_path / "data.npz", ids=ids, mask=np.zeros((5, 4, 2), np.float32))
    inputs = Inputs(model(**IDS), Wanted(samples=2, data=str(tmp_path / "data.npz")))
    taken = [inputs.request()["ids"][:, 0].tolist() for _ in range(4)]
    assert taken == [[0, 1], [2, 3], [4, 0], [1, 2]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": np.zeros((5, 4), np.int32)}, "has no array 'mask'; it has ids"),
        (
            {"ids": np.zeros((5, 4), np.int32), "mask": np.zeros((6, 4, 2), np.float32)},
            "have to have the same number of samples",
        ),
        ({"ids": np.zeros((5, 4)), "mask": np.zeros((5, 4, 2))}, "ids: the model takes int32"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, arrays: Any, message: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InvalidError, match=message):
        Inputs(model(**IDS), Wanted(data=str(tmp_path / "data.npz")))
