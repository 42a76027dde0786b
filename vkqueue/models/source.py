"""A model as it was read or received, before anything in it is checked against anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant tensor.

    Attributes:
        dtype: in safetensors' words: "F32", "BF16", "U8", … ("U8" for bytes of which nothing more is known).
        shape: in elements.
        data: bytes-like of the tensor's size, C order, little endian; of a file a view of its mapping.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A module that nodes of a model launch.

    Attributes:
        code: SPIR-V words, or source text in UTF-8.
        language: "spirv", "glsl", "hlsl" or "slang".
        entry: the entry point; None for the only one.
        path: for messages.
        includes: text by the name that the source includes it by.
    """

    name: str
    code: bytes = field(repr=False)
    language: str
    entry: str | None
    path: str
    includes: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One version of a model.

    Attributes:
        config: the map that a `config.toml` is, or that `model.load` brings.
        kernels: by name.
        weights: by the tensor's name.
        directory: of the model; None of one that a client sent.
    """

    name: str
    version: int
    config: dict[str, Any]
    kernels: dict[str, KernelSource]
    weights: dict[str, Weight]
    directory: Path | None
