"""The model's configuration, its expressions, and the weights as the kernels want them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkqueue.models.definition import Definition
from vkqueue.models.instantiate import instantiate

from .conftest import FOLDER, Import

# What every device has that Vulkan's table of limits promises or that lavapipe has.
MOST_INVOCATIONS, MOST_SHARED_BYTES = 1024, 32 << 10


def test_what_is_kept_is_what_is_written(module: Import) -> None:
    network = module("network")
    written = network.toml(network.config(network.Architecture(), network.TUNINGS["gpu"]))
    kept = (FOLDER / "config.toml").read_text()
    assert kept.partition("\n")[2] == written
    assert tomllib.loads(written) == network.config(network.Architecture(), network.TUNINGS["gpu"])


@pytest.mark.parametrize("kind", ["gpu", "cpu", "cpu4"])
def test_every_shape_has_a_graph_that_fits(kind: str, module: Import) -> None:
    """Work groups and shared memory, all rows and columns in a tile, and as many invocations as the tile needs."""
    network = module("network")
    definition = Definition.from_map(network.config(network.Architecture(), network.TUNINGS[kind]))
    weights = module("weights").converted(
        module("weights").random(network.Architecture(vocabulary=9)), network.Architecture()
    )
    handles = {name: number for number, name in enumerate(weights)}
    used = set()
    for batch in (1, 2, 3, 7, 8, 16, 31, 32):
        for seq in network.BUCKETS:
            for node in instantiate(definition, batch, {"seq": seq}, handles)["nodes"]:
                used |= {argument for argument in node["args"] if isinstance(argument, int)}
                constants = node.get("specialization", {})
                assert constants.get("THREADS", 64) <= MOST_INVOCATIONS
                if node["kernel"].startswith("matmul"):
                    check_product(node["scalars"], constants, node["grid"])
                elif node["kernel"] in ("lanes_norm", "lanes_residual"):
                    check_lanes(node["scalars"], constants, node["grid"])
    assert used == set(handles.values())


@pytest.mark.parametrize("kind", ["gpu", "cpu", "cpu4"])
def test_kernels_are_compiled_before_the_model_is_ready(kind: str, module: Import) -> None:
    """What a shape specializes, some warm-up does too."""
    network = module("network")
    shape = network.Architecture(layers=1)
    definition = Definition.from_map(network.config(shape, network.TUNINGS[kind]))
    names = module("weights").converted(module("weights").random(shape), shape)

    def pipelines(batch: int, seq: int) -> set[str]:
        found = instantiate(definition, batch, {"seq": seq}, {name: 1 for name in names})["nodes"]
        return {f"{node['kernel']} {node.get('specialization')}" for node in found}

    assert definition.warmup is not None
    warm = set().union(*(pipelines(warmup.batch_size, warmup.dimensions["seq"]) for warmup in definition.warmup))
    for batch in range(1, network.MAX_BATCH_SIZE + 1):
        for seq in network.BUCKETS:
            assert pipelines(batch, seq) <= warm


def check_product(scalars: dict[str, Any], tile: dict[str, Any], grid: list[int]) -> None:
    m, n, k, split = (tile[name] for name in ("TILE_M", "TILE_N", "TILE_K", "SPLIT"))
    assert grid[0] * n >= scalars["columns"] > (grid[0] - 1) * n
    assert grid[1] * m >= scalars["rows"] > (grid[1] - 1) * m
    assert scalars["k"] % k == 0 and k % split == 0 and k % 4 == 0
    assert tile["THREADS"] == m // tile["BLOCK_M"] * (n // 4 // tile["BLOCK_N4"]) * split
    assert m % tile["BLOCK_M"] == 0 and tile["BLOCK_M"] % 4 == 0 and n // 4 % tile["BLOCK_N4"] == 0
    assert m & (m - 1) == 0 and k // split % tile["UNROLL"] == 0
    sums = 8 * (m // 4) * (k // 4) + 4 * max(m, tile["THREADS"])
    assert tile["SHARED4"] * 4 >= max((m + n) * k, split * m * n if split > 1 else 0, sums)
    assert tile["SHARED4"] * 16 + m * 8 <= MOST_SHARED_BYTES


def check_lanes(scalars: dict[str, Any], tile: dict[str, Any], grid: list[int]) -> None:
    m, n = tile["LANES"] * tile["ROWS"], tile["LANES"] * tile["COLUMNS4"] * 4
    assert tile["LANES"] in (4, 8)
    assert grid[0] * n >= scalars["columns"] > (grid[0] - 1) * n
    assert grid[1] * m >= scalars["rows"] > (grid[1] - 1) * m


def test_steps_of_expressions(module: Import) -> None:
    from vkqueue.models.expression import Expression

    value = Expression(str(module("network").stepwise([(0, 16), (33, 64), (65, 64), (257, 8)])))
    rows = (1, 32, 33, 64, 65, 256, 257, 8192)
    assert [value({"batch": count, "seq": 1}) for count in rows] == [16, 16, 64, 64, 64, 64, 8, 8]


def test_weights_go_through_a_file(module: Import, small: Any, tmp_path: Path) -> None:
    weights = module("weights")
    weights.write(tmp_path / "a.safetensors", small.converted)
    found = weights.read(tmp_path / "a.safetensors")
    assert found.keys() == small.converted.keys()
    assert all(np.array_equal(found[name], array) for name, array in small.converted.items())


def test_the_random_network_has_the_files_names(module: Import, real: Any) -> None:
    network = module("network")
    made = module("weights").random(network.Architecture(vocabulary=9))
    unused = {"pooler.dense.weight", "pooler.dense.bias"}
    assert made.keys() == real.keys() - unused
    for name, array in made.items():
        assert array.shape[1:] == real[name].shape[1:]
        assert len(array) == len(real[name]) or "_embeddings" in name
