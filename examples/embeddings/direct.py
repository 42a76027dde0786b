"""The network by the client's own graphs, without a model in the daemon: for tests, and to measure single launches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vkqueue
from network import Architecture, Tuning, config
from vkqueue.models.definition import Definition
from vkqueue.models.instantiate import instantiate
from weights import Array, Tensors

HERE = Path(__file__).parent
INTEGERS = ("input_ids", "lengths")


class Network:
    """Weights and kernels on a device, and a graph for each shape that was asked for.

    Args:
        weights: as of `weights.converted`.
    """

    def __init__(self, gpu: vkqueue.Client, weights: Tensors, shape: Architecture, tuning: Tuning) -> None:
        self._gpu = gpu
        self._definition = Definition.from_map(config(shape, tuning))
        self._names = list(weights)
        self._weights = {name: gpu.array(array) for name, array in weights.items()}
        self._kernels = {name: gpu.load(HERE / f"kernels/{name}.spv").kernel for name in tuning.kernels}
        self._graphs: dict[tuple[int, int], Any] = {}

    def plan(self, batch: int, seq: int) -> dict[str, Any]:
        """The nodes for a shape, with numbers in place of expressions; weights are numbers too, see `memory`."""
        by_number = {name: number for number, name in enumerate(self._names)}
        return instantiate(self._definition, batch, {"seq": seq}, by_number)

    def memory(self, name: str | int, others: dict[str, Any]) -> Any:
        """The array that a node names."""
        return others[name] if isinstance(name, str) else self._weights[self._names[name]]

    def launch(self, node: dict[str, Any], others: dict[str, Any], **more: Any) -> Any:
        """One node, run or recorded."""
        options = {key: node[key] for key in ("scalars", "grid", "specialization") if key in node}
        return self._kernels[node["kernel"]](*(self.memory(a, others) for a in node["args"]), **options, **more)

    def graph(self, batch: int, seq: int) -> Any:
        """The graph for a shape; it takes `input_ids` and `lengths`, and gives embeddings."""
        if (batch, seq) not in self._graphs:
            plan = self.plan(batch, seq)
            with self._gpu.graph() as g:
                memory = {name: g.input(name, size // 4, "int32") for name, size in plan["inputs"].items()}
                memory |= {name: g.temporary(size // 4, "float32", name) for name, size in plan["temporaries"].items()}
                memory |= {
                    name: g.output(name, (batch, size // 4 // batch), "float32")
                    for name, size in plan["outputs"].items()
                }
                for node in plan["nodes"]:
                    self.launch(node, memory)
            self._graphs[batch, seq] = g
        return self._graphs[batch, seq]

    def embed(self, ids: Sequence[Sequence[int]], seq: int, pad: int = 0) -> Array:
        """Embeddings of texts by their tokens, padded to `seq`: (texts, hidden)."""
        padded, lengths = batch_of(ids, seq, pad)
        found: Array = self.graph(len(ids), seq)(input_ids=padded.ravel(), lengths=lengths)
        return found


def batch_of(ids: Sequence[Sequence[int]], seq: int, pad: int = 0) -> tuple[Array, Array]:
    """(Padded tokens (texts, seq), lengths)."""
    padded = np.full((len(ids), seq), pad, "int32")
    for row, text in zip(padded, ids, strict=True):
        row[: len(text)] = text
    return padded, np.array([len(text) for text in ids], "int32")
