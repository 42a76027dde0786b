"""What shapes say, and where bytes lie: gathering and scattering against NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.test_definition import config

from vkqueue.errors import InvalidError
from vkqueue.models.definition import Definition
from vkqueue.models.shapes import RequestShape, Shapes, gather, padding, runs, scatter
from vkqueue.models.tensors import Tensor


def shapes(**changes: Any) -> Shapes:
    return Shapes(Definition.from_map(config(**changes)))


def test_a_length_goes_to_the_next_bucket() -> None:
    known = shapes()
    assert known.read({"ids": [3, 7]}) == RequestShape(3, (7,), (16,))
    assert known.read({"ids": [1, 16]}) == RequestShape(1, (16,), (16,))
    assert known.read({"ids": (8, 17)}) == RequestShape(8, (17,), (32,))
    assert known.read({"ids": [3, 7]}).padded
    assert not known.read({"ids": [1, 16]}).padded


def test_without_buckets_each_length_is_its_own() -> None:
    known = shapes(dimensions={"seq": {"min": 2, "max": 9}})
    assert known.read({"ids": [1, 7]}) == RequestShape(1, (7,), (7,))
    with pytest.raises(InvalidError, match="dimension seq has 10; this model takes 2 to 9"):
        known.read({"ids": [1, 10]})


def test_without_batches_there_is_one_sample() -> None:
    known = shapes(max_batch_size=0, dynamic_batching=None)
    assert known.read({"ids": [7]}) == RequestShape(1, (7,), (16,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "ids ([batch, seq]) is missing"),
        ({"ids": [1, 2], "lengths": [1]}, "'lengths': is made by the daemon; leave it out"),
        ({"ids": [1, 2], "mask": [1]}, "'mask': no such input; the model takes ids"),
        ({"ids": [7]}, "ids: expected the shape [batch, seq], got [7]"),
        ({"ids": [1, 2.0]}, "expected the shape [batch, seq]"),
        ({"ids": 5}, "expected the shape [batch, seq], got 5"),
        ({"ids": [0, 7]}, "0 samples; this model takes 1 to 8"),
        ({"ids": [9, 7]}, "9 samples; this model takes 1 to 8"),
        ({"ids": [1, 33]}, "ids: its dimension seq has 33; this model takes 1 to 32"),
        ({"ids": [1, 0]}, "its dimension seq has 0"),
    ],
)
def test_what_is_wrong_is_said_with_the_tensor(given: Any, said: str) -> None:
    with pytest.raises(InvalidError) as error:
        shapes().read(given)
    assert said in error.value.message
    with pytest.raises(InvalidError):  # the second time too, when shapes are remembered
        shapes().read(given)


@pytest.mark.parametrize("shape", [[True, 7], [1.0, 7], [1, 7.0], "17"])
def test_what_equals_a_known_shape_is_not_one(shape: Any) -> None:
    known = shapes()
    assert known.read({"ids": [1, 7]}).samples == 1
    with pytest.raises(InvalidError, match="expected the shape"):
        known.read({"ids": shape})


def test_inputs_have_to_agree() -> None:
    two = [
        {"name": "ids", "data_type": "TYPE_INT32", "dims": ["seq"]},
        {"name": "mask", "data_type": "TYPE_INT32", "dims": ["seq", 3]},
    ]
    node = [{"copy": ["ids", "out"]}]
    known = shapes(input=two, node=node)
    assert known.read({"ids": [2, 7], "mask": [2, 7, 3]}).samples == 2
    with pytest.raises(InvalidError, match="seq is 8 here and 7 in ids; they must agree"):
        known.read({"ids": [2, 7], "mask": [2, 8, 3]})
    with pytest.raises(InvalidError, match="batch is 1 here and 2 in ids"):
        known.read({"ids": [2, 7], "mask": [1, 7, 3]})
    with pytest.raises(InvalidError, match=r"mask: shape \[2, 7, 4\], dimension 2: expected 3, got 4"):
        known.read({"ids": [2, 7], "mask": [2, 7, 4]})


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...], list[np.ndarray]]:
    """A tensor, its shape in the batch, and the parts of requests, each shorter somewhere."""
    dims = draw(st.lists(st.integers(1, 4), min_size=0, max_size=3))
    axis = draw(st.integers(0, len(dims)))
    data_type, dtype = draw(st.sampled_from([("TYPE_INT32", "<i4"), ("TYPE_UINT8", "u1"), ("TYPE_FP64", "<f8")]))
    samples = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    spare = draw(st.integers(0, 2))
    whole = (*dims[:axis], sum(samples) + spare, *dims[axis:])
    tensor = Tensor("x", data_type, tuple(dims), axis, draw(st.sampled_from([0, 7])))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    parts = []
    for count in samples:
        lengths = [draw(st.integers(1, d)) for d in dims]
        parts.append(rng.integers(1, 100, (*lengths[:axis], count, *lengths[axis:])).astype(dtype))
    return tensor, whole, parts


@given(batches())
def test_gathering_and_scattering(batch: tuple[Tensor, tuple[int, ...], list[np.ndarray]]) -> None:
    tensor, whole, parts = batch
    wanted = np.full(whole, tensor.pad_value, parts[0].dtype)
    first = 0
    for part in parts:
        place = [slice(0, n) for n in part.shape]
        place[tensor.batch_dimension] = slice(first, first + part.shape[tensor.batch_dimension])
        wanted[tuple(place)] = part
        first = place[tensor.batch_dimension].stop
    pieces = gather(tensor, whole, [(part.shape, part.tobytes()) for part in parts])
    assert b"".join(pieces) == wanted.tobytes()
    first = 0
    for part in parts:
        assert bytes(scatter(tensor, whole, part.shape, first, wanted.tobytes())) == part.tobytes()
        first += part.shape[tensor.batch_dimension]


def test_a_request_that_fills_the_batch_is_not_touched() -> None:
    tensor = Tensor("x", "TYPE_FP32", (4,))
    data = bytes(range(32))
    [piece] = gather(tensor, (2, 4), [((2, 4), data)])
    assert piece.obj is data
    found = scatter(tensor, (4, 4), (2, 4), 1, bytes(64))
    assert isinstance(found, memoryview)
    assert found.nbytes == 32


def test_much_padding_takes_no_memory() -> None:
    pieces = padding(b"\0\0\0\0", 1 << 30)
    assert sum(map(len, pieces)) == 1 << 30
    assert len({id(piece) for piece in pieces}) == 1


def test_the_number_of_runs_is_known_without_them() -> None:
    definition = Definition.from_map(
        {
            "name": "m",
            "max_batch_size": 4,
            "dynamic_batching": {},
            "dimensions": {"a": {"buckets": [2, 4]}, "b": {"buckets": [3, 6]}},
            "input": [
                {"name": f"x{axis}", "data_type": "TYPE_UINT8", "dims": ["a", 2, "b"], "batch_dimension": axis}
                for axis in range(4)
            ],
            "output": [{"name": "y", "data_type": "TYPE_UINT8", "dims": ["a", 2, "b"]}],
            "node": [{"copy": ["x0", "y"]}],
        }
    )
    shapes = Shapes(definition)
    for samples, a, b in product((1, 3, 4), (1, 2, 3, 4), (1, 3, 5, 6)):
        shape = RequestShape(samples, (a, b), (2 if a <= 2 else 4, 3 if b <= 3 else 6))
        for tensor in definition.inputs.values():
            whole = shapes.whole(tensor, 4, shape.group)
            found = list(runs(whole, shapes.own(tensor, shape), tensor.batch_dimension, 0, 1))
            assert shapes.runs(tensor, shape) == len(found), (shape, tensor)
