"""The network as a model of vkqueue: its configuration, with a node for each launch.

    python examples/embeddings/network.py > config.toml

Five launches a layer, none of them for a layer norm: the product that a norm feeds takes it along, see
kernels/matmul.comp. Tiles are chosen by the number of rows, batch times length: few rows make small tiles, so that
there are enough work groups for a device, and many rows make large ones.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

ROWS = "batch * seq"
BUCKETS = (16, 32, 64, 128, 256)
MAX_BATCH_SIZE = 64
SOURCES = {
    "embed": ("embed.comp",),
    "matmul_norm": ("matmul.comp", "-DNORM"),
    "matmul_residual": ("matmul.comp",),
    "attention": ("attention.comp",),
    "lanes_norm": ("matmul_lanes.comp", "-DNORM"),
    "lanes_residual": ("matmul_lanes.comp",),
    "lanes_attention": ("attention_lanes.comp",),
    "pool": ("pool.comp",),
}
"""Compiled module → its source in kernels/, and what the compiler is told."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a BERT; the defaults are those of all-MiniLM-L6-v2."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    intermediate: int = 1536
    vocabulary: int = 30522
    longest: int = 256
    epsilon: float = 1e-12


class Tile(NamedTuple):
    """Specialization constants of kernels/matmul.comp."""

    m: int
    n: int
    k: int
    block_m: int
    block_n4: int
    split: int

    def constants(self, k: int) -> dict[str, int]:
        """By name, for rows of k values."""
        depth = math.gcd(self.k, k)
        threads = self.m // self.block_m * (self.n // 4 // self.block_n4) * self.split
        factors, products = (self.m + self.n) * depth // 4, self.split * self.m * self.n // 4 if self.split > 1 else 0
        sums = 2 * (self.m // 4) * (depth // 4) + max(threads, self.m)
        return {
            "THREADS": threads,
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": depth,
            "BLOCK_M": self.block_m,
            "BLOCK_N4": self.block_n4,
            "SPLIT": self.split,
            "SHARED4": max(factors, products, sums),
            "UNROLL": math.gcd(8, depth // self.split),
        }


class LaneTile(NamedTuple):
    """Specialization constants of kernels/matmul_lanes.comp."""

    lanes: int
    rows: int
    columns4: int

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.lanes * self.rows

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.lanes * self.columns4 * 4

    def constants(self, k: int) -> dict[str, int]:
        """By name; whatever k is."""
        return {"LANES": self.lanes, "ROWS": self.rows, "COLUMNS4": self.columns4}


Tiles = tuple[tuple[int, Tile | LaneTile], ...]
"""(From so many rows on, this tile), ascending from 0."""


@dataclass(frozen=True)
class Tuning:
    """What suits a kind of device.

    Attributes:
        norm, residual, attention: modules.
        wide: tiles of products with more columns than `hidden`.
        narrow: of those with `hidden` columns.
        queries: of a work group of the attention.
        constants: of its module; HEAD4 is added.
        delay_us: how long an idle device waits for more requests: some hundredths of what a batch takes.
    """

    norm: str
    residual: str
    attention: str
    wide: Tiles
    narrow: Tiles
    queries: int
    constants: dict[str, int]
    delay_us: int = 0

    @property
    def kernels(self) -> list[str]:
        """All modules."""
        return ["embed", self.norm, self.attention, self.residual, "pool"]


def lanes(width: int) -> Tuning:
    """For processors whose vectors have so many floats, and their subgroups so many invocations."""
    # On lavapipe, with two cores. Larger ones take it seconds to compile.
    wide: Tiles = ((0, LaneTile(width, 2, 4)), (65, LaneTile(width, 4, 4)))
    narrow: Tiles = ((0, LaneTile(width, 2, 2)), (17, LaneTile(width, 2, 4)), (65, LaneTile(width, 4, 4)))
    attention = {"LANES": width, "ROWS": 4}
    return Tuning("lanes_norm", "lanes_residual", "lanes_attention", wide, narrow, 4 * width, attention, 5000)


TUNINGS = {
    "gpu": Tuning(
        norm="matmul_norm",
        residual="matmul_residual",
        attention="attention",
        wide=(
            (0, Tile(16, 16, 192, 4, 1, 16)),
            (65, Tile(16, 32, 96, 4, 1, 8)),
            (193, Tile(32, 32, 64, 4, 1, 4)),
            (513, Tile(64, 64, 32, 4, 1, 1)),
            (1025, Tile(64, 64, 32, 8, 2, 1)),
        ),
        narrow=(
            (0, Tile(16, 16, 192, 4, 1, 16)),
            (129, Tile(16, 32, 128, 4, 1, 8)),
            (513, Tile(32, 32, 64, 4, 1, 4)),
            (1025, Tile(32, 64, 32, 8, 2, 2)),
        ),
        queries=32,
        constants={"THREADS": 128, "QUERIES": 32, "SPLIT": 4, "KEYS": 64},
    ),
    "cpu": lanes(8),
    "cpu4": lanes(4),
}


def kind_of(device: Any) -> str:
    """The tuning that suits a device of the client's."""
    if device is None or device.type != "cpu":
        return "gpu"
    return "cpu" if device.limits.get("subgroupSize", 0) >= 8 else "cpu4"


def stepwise(steps: list[tuple[int, int]]) -> int | str:
    """The value of the last step that is not above the number of rows, as an expression."""
    terms = [str(steps[0][1])]
    for (_, before), (start, value) in zip(steps, steps[1:], strict=False):
        if value != before:
            terms.append(f"{'+' if value > before else '-'} {abs(value - before)} * min(1, {ROWS} // {start})")
    return " ".join(terms) if len(terms) > 1 else steps[0][1]


def product(kernel: str, args: list[str], k: int, columns: int, tiles: Tiles, **more: Any) -> dict[str, Any]:
    """A node that multiplies."""
    by_step = [(start, tile.constants(k)) for start, tile in tiles]
    chosen = {name: stepwise([(start, constants[name]) for start, constants in by_step]) for name in by_step[0][1]}
    across, down = stepwise([(start, t.n) for start, t in tiles]), stepwise([(start, t.m) for start, t in tiles])
    return {
        "kernel": kernel,
        "args": args,
        "scalars": {"rows": ROWS, "columns": columns, "k": k, **more.pop("scalars", {})},
        "grid": [f"ceil({columns}, {across})", f"ceil({ROWS}, {down})"],
        "specialization": chosen | more,
    }


def layer_nodes(shape: Architecture, tuning: Tuning, number: int) -> list[dict[str, Any]]:
    """The nodes of one layer, from `hidden` to `hidden`; what it reads and leaves lacks its norm."""
    weight = f"weights.layer.{number}."
    norm = {"scalars": {"epsilon": shape.epsilon}}

    def normed(name: str, source: str, stats: str, target: str, columns: int, **more: Any) -> dict[str, Any]:
        args = [source, *(f"{weight}{name}.{part}" for part in ("weight", "total", "shift")), stats, target]
        return product(tuning.norm, args, shape.hidden, columns, tuning.wide, **norm, **more)

    def added(name: str, source: str, residual: str, stats: str, target: str, k: int) -> dict[str, Any]:
        w, bias, gain = (f"{weight}{name}.{part}" for part in ("weight", "bias", "gain"))
        return product(
            tuning.residual, [source, w, bias, residual, gain, stats, target], k, shape.hidden, tuning.narrow
        )

    attention = {
        "kernel": tuning.attention,
        "args": ["qkv", "lengths", "context"],
        "scalars": {"seq": "seq", "heads": shape.heads},
        "grid": [f"ceil(seq, {tuning.queries})", shape.heads, "batch"],
        "specialization": {**tuning.constants, "HEAD4": shape.hidden // shape.heads // 4},
    }
    return [
        normed("qkv", "hidden", "hidden_stats", "qkv", 3 * shape.hidden),
        attention,
        added("out", "context", "hidden", "hidden_stats", "middle", shape.hidden),
        normed("up", "middle", "middle_stats", "up", shape.intermediate, GELU=1),
        added("down", "up", "middle", "middle_stats", "hidden", shape.intermediate),
    ]


def nodes(shape: Architecture, tuning: Tuning) -> list[dict[str, Any]]:
    """All launches, in order."""
    quarters = shape.hidden // 4
    lanes = next(lanes for lanes in (32, 16, 8, 4, 2, 1) if quarters % lanes == 0)
    embed = {
        "kernel": "embed",
        "args": ["input_ids", "weights.words", "weights.places", "hidden"],
        "scalars": {"rows": ROWS, "seq": "seq", "quarters": quarters, "vocabulary": shape.vocabulary},
        "grid": [f"ceil({ROWS} * {quarters}, 64)"],
    }
    pool = {
        "kernel": "pool",
        "args": ["hidden", "weights.gain", "weights.bias", "lengths", "embedding"],
        "scalars": {"seq": "seq", "epsilon": shape.epsilon},
        "grid": ["batch"],
        "specialization": {"THREADS": 256, "LANES": lanes, "ROWS": 256 // lanes, "QUARTERS": quarters // lanes},
    }
    return [embed, *(node for i in range(shape.layers) for node in layer_nodes(shape, tuning, i)), pool]


def warmups(tuning: Tuning, buckets: list[int]) -> list[dict[str, Any]]:
    """The smallest shape of each choice of tiles: kernels are compiled before the model is ready."""
    shapes = sorted((batch * seq, seq, batch) for seq in buckets for batch in range(1, MAX_BATCH_SIZE + 1))
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for rows, seq, batch in shapes:
        wide, narrow = (sum(rows >= start for start, _ in tiles) for tiles in (tuning.wide, tuning.narrow))
        found.setdefault((wide, narrow), {"batch_size": batch, "dimensions": {"seq": seq}})
    return list(found.values())


def config(shape: Architecture, tuning: Tuning, weights: str = "model.safetensors") -> dict[str, Any]:
    """The model's configuration.

    Args:
        weights: the file that has them as the kernels want them.
    """
    row = f"{ROWS} * 4 * "
    sizes = {
        "hidden": shape.hidden,
        "hidden_stats": 2,
        "qkv": 3 * shape.hidden,
        "context": shape.hidden,
        "middle": shape.hidden,
        "middle_stats": 2,
        "up": shape.intermediate,
    }
    buckets = [size for size in BUCKETS if size <= shape.longest]
    return {
        "name": "minilm",
        "max_batch_size": MAX_BATCH_SIZE,
        # One batch at a time: what comes meanwhile is the next one. A second would be cut from it, and wait for it.
        "instance_group": {"count": 1},
        "dynamic_batching": {"max_queue_delay_microseconds": tuning.delay_us},
        "dimensions": {"seq": {"buckets": buckets}},
        "input": [
            {"name": "input_ids", "data_type": "TYPE_INT32", "dims": ["seq"], "pad_value": 0},
            {"name": "lengths", "kind": "LENGTHS", "of": "seq"},
        ],
        "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [shape.hidden]}],
        "weights": {"file": weights},
        "kernel": [{"name": name, "file": f"{name}.spv"} for name in tuning.kernels],
        "temporary": [{"name": name, "size": f"{row}{width}"} for name, width in sizes.items()],
        "node": nodes(shape, tuning),
        "model_warmup": warmups(tuning, buckets),
    }


def toml(value: dict[str, Any]) -> str:
    """A configuration as TOML: a table for each map and each map in a list, whose own maps stay on one line."""
    plain = {key: item for key, item in value.items() if not isinstance(item, dict) and not _tables(item)}
    lines = [f"{key} = {_inline(item)}" for key, item in plain.items()]
    for key, item in value.items():
        if key in plain:
            continue
        for table in item if isinstance(item, list) else [item]:
            lines += ["", f"[[{key}]]" if isinstance(item, list) else f"[{key}]"]
            lines += [f"{name} = {_inline(inner)}" for name, inner in table.items()]
    return "\n".join(lines) + "\n"


def _tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the model's configuration.")
    parser.add_argument("--tiles", choices=TUNINGS, default="gpu", help="for which kind of device")
    options = parser.parse_args()
    print("# Written by network.py.", toml(config(Architecture(), TUNINGS[options.tiles])), sep="\n", end="")


if __name__ == "__main__":
    main()
