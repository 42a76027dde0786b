"""The same network in NumPy, in 64 bits, straight from its definition: what others are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from network import Architecture
from weights import Array, Tensors

_erf = np.frompyfunc(math.erf, 1, 1)


def embed(weights: Tensors, shape: Architecture, ids: Sequence[int]) -> Array:
    """The embedding of one text.

    Args:
        weights: named as in the file, in any precision.
        ids: of its tokens, without padding.
    """

    def get(name: str) -> Array:
        return weights[name].astype("float64")

    def linear(x: Array, name: str) -> Array:
        return x @ get(name + ".weight").T + get(name + ".bias")

    def norm(x: Array, name: str) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + shape.epsilon)
        return centered / deviation * get(name + ".weight") + get(name + ".bias")

    count, width = len(ids), shape.hidden // shape.heads
    table = "embeddings.{}_embeddings.weight".format
    places = weights[table("position")][:count].astype("float64")
    x = weights[table("word")][np.asarray(ids)] + places + weights[table("token_type")][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(shape.layers):
        at = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{at}attention.self.{name}").reshape(count, shape.heads, width).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(width)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        context = (share @ v).swapaxes(0, 1).reshape(count, shape.hidden)
        x = norm(x + linear(context, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        up = linear(x, at + "intermediate.dense")
        up = up * 0.5 * (1 + _erf(up / math.sqrt(2)).astype("float64"))
        x = norm(x + linear(up, at + "output.dense"), at + "output.LayerNorm")
    pooled: Array = x.mean(0)
    return pooled / max(float(np.linalg.norm(pooled)), 1e-12)


def difference(found: Any, expected: Any) -> tuple[float, float]:
    """(Lowest cosine, largest absolute difference) of rows."""
    a, b = np.asarray(found, "float64"), np.asarray(expected, "float64")
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return float(cosine.min()), float(abs(a - b).max())
