"""Each kernel by itself beside NumPy, with sizes that do not fill its tiles; and modules are what their sources say."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkqueue
from vkqueue.kernels.reflect import analyse

from .conftest import FOLDER, Import

NAMES = (
    "embed", "matmul_norm", "matmul_residual", "attention", "lanes_norm", "lanes_residual", "lanes_attention", "pool",
)  # fmt: skip
EPSILON = 1e-12


def tiles(module: Import) -> list[tuple[Any, Any]]:
    """Every tuning with each of its tiles. (Of subgroups of four invocations eight are a part.)"""
    tunings = module("network").TUNINGS.values()
    return [
        (tuning, tile) for tuning in tunings for tile in dict.fromkeys(t for _, t in (*tuning.wide, *tuning.narrow))
    ]


@pytest.fixture
def kernels(gpu: vkqueue.Client) -> dict[str, Any]:
    return {name: gpu.load(FOLDER / f"kernels/{name}.spv").kernel for name in NAMES}


def normed(x: Any) -> tuple[Any, Any, Any]:
    """(Normed rows, mean, 1 / deviation)."""
    mean = x.mean(1, keepdims=True)
    deviation = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + EPSILON)
    return (x - mean) * deviation, mean, deviation


@pytest.mark.gpu
@pytest.mark.parametrize("gelu", [0, 1])
def test_products_behind_a_norm(gelu: int, gpu: vkqueue.Client, kernels: dict[str, Any], module: Import) -> None:
    rng = np.random.default_rng(2)
    rows, columns, k = 75, 152, 128
    a = rng.normal(1, 3, (rows, k)).astype("float32")
    weight, shift = rng.normal(0, 0.1, (k, columns)).astype("float32"), rng.normal(0, 1, columns).astype("float32")
    x, mean, deviation = normed(a.astype("float64"))
    expected = x @ weight + shift
    if gelu:
        expected = expected / 2 * (1 + np.vectorize(math.erf)(expected / math.sqrt(2)))
    for tuning, tile in tiles(module):
        stats, result = gpu.zeros((rows, 2), "float32"), gpu.zeros((rows, columns), "float32")
        kernels[tuning.norm](
            a, weight, weight.sum(0), shift, stats, result, rows=rows, columns=columns, k=k, epsilon=EPSILON,
            grid=(-(-columns // tile.n), -(-rows // tile.m)), specialization={**tile.constants(k), "GELU": gelu},
        )  # fmt: skip
        np.testing.assert_allclose(result.numpy(), expected, atol=2e-5, err_msg=str(tile))
        np.testing.assert_allclose(stats.numpy(), np.hstack([mean, deviation]), rtol=1e-5, err_msg=str(tile))


@pytest.mark.gpu
def test_products_to_which_a_norm_is_added(gpu: vkqueue.Client, kernels: dict[str, Any], module: Import) -> None:
    rng = np.random.default_rng(3)
    rows, columns, k = 33, 72, 256
    a, residual = (rng.normal(0, 2, (rows, n)).astype("float32") for n in (k, columns))
    weight = rng.normal(0, 0.1, (k, columns)).astype("float32")
    bias, gain = rng.normal(0, 1, (2, columns)).astype("float32")
    x, mean, deviation = normed(residual.astype("float64"))
    expected = a.astype("float64") @ weight + bias + x * gain
    stats = np.hstack([mean, deviation]).astype("float32")
    for tuning, tile in tiles(module):
        result = gpu.zeros((rows, columns), "float32")
        kernels[tuning.residual](
            a, weight, bias, residual, gain, stats, result, rows=rows, columns=columns, k=k,
            grid=(-(-columns // tile.n), -(-rows // tile.m)), specialization=tile.constants(k),
        )  # fmt: skip
        np.testing.assert_allclose(result.numpy(), expected, atol=3e-5, err_msg=str(tile))


def grouped(queries: int, split: int, keys: int) -> dict[str, int]:
    return {"THREADS": queries * split, "QUERIES": queries, "SPLIT": split, "KEYS": keys}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "queries", "constants"),
    [
        ("attention", 32, grouped(32, 4, 64)),
        ("attention", 32, grouped(32, 1, 64)),
        ("attention", 16, grouped(16, 2, 16)),
        ("attention", 8, grouped(8, 8, 32)),
        ("lanes_attention", 8, {"LANES": 8, "ROWS": 1}),
        ("lanes_attention", 12, {"LANES": 4, "ROWS": 3}),
    ],
)
def test_attention(
    name: str, queries: int, constants: dict[str, int], gpu: vkqueue.Client, kernels: dict[str, Any]
) -> None:
    """Scores up to hundreds, so that sums without the maximum would overflow; what is behind a length is left alone."""
    rng = np.random.default_rng(4)
    seq, heads, width = 70, 3, 16
    lengths = np.array([70, 1, 33, 0, 64, 500], "int32")
    qkv = rng.normal(0, 5, (len(lengths), seq, 3, heads, width)).astype("float32")
    context = gpu.array(np.full((len(lengths), seq, heads, width), 7, "float32"))
    grid = (-(-seq // queries), heads, len(lengths))
    specialization = {**constants, "HEAD4": width // 4}
    kernels[name](qkv, lengths, context, seq=seq, heads=heads, grid=grid, specialization=specialization)
    found = context.numpy()
    for sample, length in enumerate(np.minimum(lengths, seq)):
        q, k, v = qkv[sample, :length].astype("float64").transpose(1, 2, 0, 3)
        scores = q @ k.swapaxes(1, 2)
        share = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        expected = (share / share.sum(-1, keepdims=True)) @ v
        np.testing.assert_allclose(found[sample, :length], expected.swapaxes(0, 1), atol=3e-4)
        assert (found[sample, length:] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8])
def test_pool(rows: int, gpu: vkqueue.Client, kernels: dict[str, Any]) -> None:
    """Rows behind the length hold no numbers, and do not matter."""
    rng = np.random.default_rng(5)
    seq, width = 20, 96
    lengths = np.array([20, 1, 9, 8, 0], "int32")
    hidden = rng.normal(2, 3, (len(lengths), seq, width)).astype("float32")
    gain, bias = rng.normal(0, 1, (2, width)).astype("float32")
    expected = np.zeros((len(lengths), width))
    for sample, length in enumerate(lengths):
        if length:
            mean = normed(hidden[sample, :length].astype("float64"))[0].mean(0) * gain + bias
            expected[sample] = mean / np.linalg.norm(mean)
        hidden[sample, length:] = np.nan
    found = kernels["pool"](
        hidden, gain, bias, lengths, vkqueue.out((len(lengths), width), "float32"), seq=seq, epsilon=EPSILON,
        grid=len(lengths), specialization={"THREADS": 8 * rows, "LANES": 8, "ROWS": rows, "QUARTERS": 3},
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.gpu
def test_subgroups_that_are_too_small_are_told(gpu: vkqueue.Client, kernels: dict[str, Any]) -> None:
    """Results are no numbers then. Here by work groups of 16 invocations, which have two subgroups of eight."""
    if gpu.device is None or gpu.device.limits["subgroupSize"] >= 16:
        pytest.skip("the device's subgroups are large")
    ones = np.ones((8, 16), "float32")
    qkv, found = np.ones((1, 8, 3, 1, 4), "float32"), gpu.zeros((8, 4), "float32")
    kernels["lanes_attention"](
        qkv, np.array([8], "int32"), found, seq=8, heads=1, grid=(1, 1, 1),
        specialization={"LANES": 16, "ROWS": 1, "HEAD4": 1},
    )  # fmt: skip
    assert np.isnan(found.numpy()).all()
    vector, stats, result = ones[0], gpu.zeros((8, 2), "float32"), gpu.zeros((8, 16), "float32")
    kernels["lanes_norm"](
        ones, np.ones((16, 16), "float32"), vector, vector, stats, result, rows=8, columns=16, k=16, epsilon=1.0,
        grid=(1, 1), specialization={"LANES": 16, "ROWS": 1, "COLUMNS4": 1},
    )  # fmt: skip
    assert np.isnan(result.numpy()).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_what_its_source_says(name: str, module: Import, tmp_path: Path) -> None:
    """By its reflection: compilers' releases write different modules."""
    if shutil.which("glslc") is None:
        pytest.skip("no glslc")
    made = module("build").build(name, tmp_path)
    shipped = (FOLDER / f"kernels/{name}.spv").read_bytes()
    assert analyse(shipped)["kernels"] == analyse(made.read_bytes())["kernels"]
