"""Arguments of `vkqueue run`: each way to write one, and what is said of those that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkqueue.cli.element_types import element_types
from vkqueue.cli.values import buffer_value, extents, scalar_value
from vkqueue.client.array import Out
from vkqueue.client.signature import Binding
from vkqueue.errors import InvalidError

BINDING = Binding(0, 1, name="x")
CORPUS = Path(__file__).parents[2] / "corpus"


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("0:4", "float32", np.arange(4, dtype="float32")),
        ("0:4:uint8", "float32", np.arange(4, dtype="uint8")),
        ("0:1:0.25", "float64", np.arange(0, 1, 0.25)),
        ("4:0:-2", "int8", np.array([4, 2], "int8")),
        ("1,2,-3", "int32", np.array([1, 2, -3], "int32")),
        ("5", "float16", np.array([5], "float16")),
        ("-inf,inf,1e3:float32", None, np.array([-np.inf, np.inf, 1000], "float32")),
        ("zeros:2x3", "int16", np.zeros((2, 3), "int16")),
        ("ones:2:uint64", None, np.ones(2, "uint64")),
        ("full:2x2:-7", "int8", np.full((2, 2), -7, "int8")),
        ("zeros:0", "float32", np.zeros(0, "float32")),
    ],
)
def test_arrays(text: str, dtype: str | None, expected: Any) -> None:
    value = buffer_value(text, dtype, BINDING)
    assert value.dtype == expected.dtype and value.shape == expected.shape
    assert np.array_equal(value, expected) and value.flags.writeable


def test_random_numbers_are_the_same_each_time() -> None:
    first, second = (buffer_value("random:1000:float32:seed=7", None, BINDING) for _ in range(2))
    assert np.array_equal(first, second) and first.dtype == np.float32
    assert 0 <= first.min() < 0.1 and 0.9 < first.max() < 1
    assert not np.array_equal(first, buffer_value("random:1000", "float32", BINDING))
    dice = buffer_value("random:1000:low=1:high=7", "uint8", BINDING)
    assert set(dice.tolist()) == {1, 2, 3, 4, 5, 6}


def test_results_blocks_and_lists() -> None:
    result = buffer_value("out:4x4:int32", None, BINDING)
    assert isinstance(result, Out) and (result.shape, result.dtype) == ((4, 4), np.int32)
    assert buffer_value('{"n": 3, "v": [1, 2]}', None, BINDING) == {"n": 3, "v": [1, 2]}
    left, right = buffer_value("[0:2;zeros:3:int8]", "float32", BINDING)
    assert left.dtype == np.float32 and right.dtype == np.int8


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    (tmp_path / "a.bin").write_bytes(b"\x01\x02")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    assert buffer_value(f"{tmp_path}/a.npy", None, BINDING).shape == (2, 3)
    assert buffer_value(f"@{tmp_path}/a.bin", None, BINDING).tolist() == [1, 2]
    with pytest.raises(InvalidError, match="no array can be read"):
        buffer_value(f"{tmp_path}/broken.npy", None, BINDING)
    with pytest.raises(FileNotFoundError):
        buffer_value(f"{tmp_path}/absent.npy", None, BINDING)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InvalidError, match="no array can be read"):
        buffer_value(f"{tmp_path}/a.npy", None, BINDING)


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ("axpy.txt", "float32", "cannot read 'axpy.txt' as an argument; it can be FILE.npy"),
        ("0:4", None, "'0:4' needs a dtype, such as 0:4:float32: argument 'x' "),
        ("0:300", "uint8", "values from 0 to 299 do not fit uint8"),
        ("-1", "uint64", "values from -1 to -1 do not fit uint64"),
        ("1.5", "int32", "expected an integer, got '1.5'"),
        ("0:4:0", "int32", "'0:4:0': "),
        ("zeros:ax2", "int8", "expected a shape such as 100 or 4x25, got 'ax2'"),
        ("zeros", "int8", "expected a shape"),
        ("zeros:4:5", "int8", "too much after the shape: 5"),
        ("full:4", "int8", "expected full:SHAPE:NUMBER"),
        ("random:4:sed=1", "int8", "expected seed=, low= or high=, got 'sed=1'"),
        ("random:4:low=9:high=1", "int8", "low >= high"),
        ("{n: 3}", None, "no JSON"),
    ],
)
def test_what_cannot_be_read(text: str, dtype: str | None, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        buffer_value(text, dtype, BINDING)
    assert words in caught.value.message


def test_scalars() -> None:
    assert scalar_value("0x10", "uint32", None) == 16
    assert scalar_value("2", "float32", None) == 2.0
    assert scalar_value("1,2,3", "int32", 3) == [1, 2, 3]
    assert scalar_value("true", "bool32", None) is True
    for text, kind in (("1.5", "int32"), ("x", "float32"), ("2", "bool32")):
        with pytest.raises(ValueError):
            scalar_value(text, kind, None)


def test_extents() -> None:
    assert extents("100") == (100,) and extents("4x5x6") == (4, 5, 6) and extents("4,5") == (4, 5)
    assert extents("1,2,3,4", 16) == (1, 2, 3, 4)
    for text in ("", "1x2x3x4", "-1", "a", "1.5"):
        with pytest.raises(ValueError, match="expected one to 3 sizes"):
            extents(text)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("dxc/dxc_saxpy_13", {(0, 1): "float16", (0, 2): "float16", (1, 3): "float32"}),
        ("clspv/clspv_half_long_double", {(0, 0): "uint16", (0, 1): "float32", (0, 2): "uint64", (0, 3): "float64"}),
        ("glslang/glsl_int8_storage", {(0, 0): "int8", (0, 1): "uint8", (0, 2): "int16", (0, 3): "uint8"}),
        ("glslang/glsl_struct_runtime", {}),  # members of several types
        ("iree/iree_f16_i8_vec4", {(0, 0): "float16", (0, 1): "uint8", (0, 2): "float16"}),  # vectors
        ("slang/slang_desc_array", {(0, 0): "int32", (0, 2): "int32"}),  # an array of descriptors
        ("naga/naga_axpy", {(0, 0): "float32", (0, 2): "float32"}),
    ],
)
def test_element_types(module: str, expected: dict[tuple[int, int], str]) -> None:
    assert element_types((CORPUS / f"{module}.spv").read_bytes()) == expected
