"""Time on the device: of whole batches, of each of the network's launches, and of other tiles.

    python examples/embeddings/measure.py [--shapes 1x16,8x32,32x128] [--weights FILE] [--launches] [--sweep]

Without --weights they are random, which takes as long. Needs no compiler and no tokenizer: the compiled modules and
NumPy do. Embeddings are compared with NumPy in 64 bits. A launch is timed in a graph of --repeats of it, each of which
waits for the one before, so a barrier is in its time. It uses your daemon, and starts one if none runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import reference
import vkqueue
import weights
from direct import Network, batch_of
from network import TUNINGS, Architecture, LaneTile, Tile, kind_of

Shape = tuple[int, int]
SHAPES = "1x16,1x32,8x32,1x128,32x32,8x128,32x128,32x256"
TAKEN = 5  # measurements of each; the median is shown

CANDIDATES = [
    Tile(16, 16, 192, 4, 1, 16), Tile(16, 16, 128, 4, 1, 16), Tile(16, 16, 96, 4, 1, 8), Tile(16, 16, 64, 4, 1, 8),
    Tile(16, 32, 96, 4, 1, 8), Tile(32, 32, 96, 4, 1, 8), Tile(16, 32, 64, 4, 1, 8), Tile(16, 32, 128, 4, 1, 8),
    Tile(16, 64, 64, 4, 1, 4), Tile(16, 64, 64, 8, 1, 8), Tile(32, 32, 64, 4, 1, 4), Tile(32, 32, 32, 4, 1, 4),
    Tile(32, 32, 64, 8, 1, 8), Tile(32, 64, 32, 4, 1, 2), Tile(32, 64, 64, 8, 1, 4), Tile(64, 32, 32, 4, 1, 2),
    Tile(64, 64, 16, 4, 1, 1), Tile(64, 64, 32, 4, 1, 1), Tile(64, 64, 32, 8, 1, 2), Tile(64, 64, 32, 8, 2, 4),
    Tile(128, 64, 16, 8, 1, 1), Tile(128, 64, 32, 8, 1, 1), Tile(64, 128, 16, 8, 1, 1), Tile(64, 128, 32, 8, 2, 2),
    Tile(128, 128, 16, 8, 2, 1), Tile(128, 128, 8, 8, 2, 1), Tile(32, 64, 32, 8, 2, 2), Tile(64, 64, 32, 8, 2, 1),
]  # fmt: skip
LANE_CANDIDATES = [LaneTile(8, rows, columns) for rows in (1, 2, 4, 8) for columns in (1, 2, 4)]


class Launches:
    """Single launches of the network for one shape, on arrays of their own.

    Args:
        repeats: in one graph.
    """

    def __init__(self, gpu: vkqueue.Client, net: Network, shape: Shape, repeats: int) -> None:
        batch, seq = shape
        self._gpu, self._net, self._repeats = gpu, net, repeats
        plan = net.plan(batch, seq)
        self._memory: dict[str, Any] = {n: gpu.zeros(s // 4, "int32") for n, s in plan["inputs"].items()}
        self._memory["lengths"].set(np.full(batch, seq, "int32"))
        for name, size in (plan["temporaries"] | plan["outputs"]).items():
            self._memory[name] = gpu.array(np.random.default_rng(1).normal(size=size // 4).astype("float32"))
        embed, *layer = plan["nodes"][:6]
        self.nodes = dict(zip(("embed", "qkv", "attention", "out", "up", "down"), (embed, *layer), strict=True))
        self.nodes["pool"] = plan["nodes"][-1]

    def time_us(self, node: dict[str, Any]) -> float:
        """Of one launch."""
        with self._gpu.graph() as g:
            for _ in range(self._repeats):
                self._net.launch(node, self._memory)
        return statistics.median(device_us(g) for _ in range(TAKEN)) / self._repeats


def device_us(graph: Any, **values: Any) -> float:
    """Time of one launch of a graph on the device."""
    found = graph(**values, timing=True).timing.device_us
    if found is None:
        raise SystemExit("this device tells no times")
    return float(found)


def operations(node: dict[str, Any]) -> float:
    """Multiplications and additions of a product."""
    scalars = node["scalars"]
    return 2.0 * scalars["rows"] * scalars["columns"] * scalars["k"]


def with_tile(node: dict[str, Any], tile: Tile | LaneTile) -> dict[str, Any]:
    """The same product in other tiles."""
    scalars = node["scalars"]
    gelu = {name: value for name, value in node["specialization"].items() if name == "GELU"}
    grid = [-(-scalars["columns"] // tile.n), -(-scalars["rows"] // tile.m)]
    return node | {"grid": grid, "specialization": {**gelu, **tile.constants(scalars["k"])}}


def whole(net: Network, shape: Shape, source: weights.Tensors, architecture: Architecture) -> list[str]:
    """A row about batches of a shape."""
    batch, seq = shape
    rng = np.random.default_rng(2)
    words = len(source["embeddings.word_embeddings.weight"])
    texts = [rng.integers(0, words, max(1, seq - sample)).tolist() for sample in range(batch)]
    padded, lengths = batch_of(texts, seq)
    graph = net.graph(batch, seq)
    values = {"input_ids": padded.ravel(), "lengths": lengths}
    found = graph(**values)
    few = slice(0, 2)
    cosine, most = reference.difference(found[few], [reference.embed(source, architecture, t) for t in texts[few]])
    times = [device_us(graph, **values) for _ in range(2 * TAKEN)]
    trips = []
    for _ in range(2 * TAKEN):
        started = time.perf_counter()
        graph(**values)
        trips.append((time.perf_counter() - started) * 1e6)
    each = statistics.median(times)
    rate = f"{batch / each * 1e6:,.0f}"
    error = f"{1 - cosine:.0e}, {most:.0e}"
    return [f"{batch} x {seq}", f"{each:,.0f}", f"{min(times):,.0f}", f"{statistics.median(trips):,.0f}", rate, error]


def launch_rows(launches: Launches, shape: Shape, layers: int) -> Iterator[list[str]]:
    """A row for each launch of a layer, for those around, and for all together."""
    total = 0.0
    for name, node in launches.nodes.items():
        each = launches.time_us(node)
        times = 1 if name in ("embed", "pool") else layers
        total += times * each
        rate = f"{operations(node) / each / 1e3:,.0f}" if "k" in node["scalars"] else ""
        groups = str(int(np.prod(node["grid"])))
        yield [f"{shape[0]} x {shape[1]}", name, str(times), groups, f"{each:,.1f}", rate]
    yield [f"{shape[0]} x {shape[1]}", "sum", "", "", f"{total:,.0f}", ""]


def fits(tile: dict[str, int], k: int, limits: dict[str, Any]) -> bool:
    """Whether a tile's parts are whole, and its shared memory is there."""
    shared = tile["SHARED4"] * 16 + tile["TILE_M"] * 8
    whole = k % tile["TILE_K"] == 0 and tile["TILE_K"] % tile["SPLIT"] == 0
    return whole and shared <= int(limits["maxComputeSharedMemorySize"])


def sweep_rows(launches: Launches, shape: Shape, limits: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each of the best tiles of each product."""
    for name in ("qkv", "out", "up", "down"):
        node = launches.nodes[name]
        found = []
        for tile in CANDIDATES if node["kernel"].startswith("matmul") else LANE_CANDIDATES:
            trial = with_tile(node, tile)
            if isinstance(tile, LaneTile) or fits(trial["specialization"], trial["scalars"]["k"], limits):
                found.append((launches.time_us(trial), tile, trial))
        mine = launches.time_us(node)
        yield [f"{shape[0]} x {shape[1]}", name, "as configured", "", f"{mine:,.1f}", ""]
        for each, tile, trial in sorted(found, key=lambda entry: entry[0])[:5]:
            groups = str(int(np.prod(trial["grid"])))
            yield ["", "", str(tuple(tile)), groups, f"{each:,.1f}", f"{operations(trial) / each / 1e3:,.0f}"]


def table(title: str, columns: str, rows: Iterator[list[str]] | list[list[str]]) -> None:
    """Print a table."""
    made = Table(title=title)
    for index, column in enumerate(columns.split("; ")):
        made.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    Console(width=120).print(made)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the network's launches.")
    parser.add_argument("--shapes", default=SHAPES, help="batch x length, with commas between")
    parser.add_argument("--weights", type=Path, help="model.safetensors of the package; else random")
    parser.add_argument("--tiles", choices=TUNINGS, help="else those for the kind of the device")
    parser.add_argument("--launches", action="store_true", help="each kind of launch by itself")
    parser.add_argument("--sweep", action="store_true", help="other tiles of each product")
    parser.add_argument("--repeats", type=int, default=50, help="of a launch in the graph that is timed")
    options = parser.parse_args()

    shapes = [(int(a), int(b)) for a, b in (text.split("x") for text in options.shapes.split(","))]
    source = weights.read(options.weights) if options.weights else weights.random(Architecture())
    architecture = Architecture(vocabulary=len(source["embeddings.word_embeddings.weight"]))
    with vkqueue.connect(spawn=True) as gpu:
        assert gpu.device is not None
        kind = options.tiles or kind_of(gpu.device)
        net = Network(gpu, weights.converted(source, architecture), architecture, TUNINGS[kind])
        rows = [whole(net, shape, source, architecture) for shape in shapes]
        columns = "batch x length; device, us; least; round trip, us; embeddings/s; 1 - cosine, difference"
        table(f"batches on {gpu.device.name}, tiles for {kind}", columns, rows)
        for shape in shapes:
            if options.launches or options.sweep:
                launches = Launches(gpu, net, shape, options.repeats)
            if options.launches:
                columns = "batch x length; launch; times; work groups; us; GFLOP/s"
                table("launches", columns, launch_rows(launches, shape, architecture.layers))
            if options.sweep:
                columns = "batch x length; product; tile; work groups; us; GFLOP/s"
                table("tiles", columns, sweep_rows(launches, shape, dict(gpu.device.limits)))


if __name__ == "__main__":
    main()
