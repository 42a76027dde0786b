"""The modules of examples/embeddings, a small network that needs no weights, and the real one where it is there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "examples/embeddings"
MODULES = tuple(path.stem for path in FOLDER.glob("*.py"))

Import = Callable[[str], ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Import one of them by its name; they are forgotten after the test, as others may have such names."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def small(module: Import) -> Any:
    """Two layers with random weights: `shape`, `weights` as in a file, `converted`, `expected(texts)`, `difference`."""
    network, weights, reference = module("network"), module("weights"), module("reference")
    shape = network.Architecture(layers=2, hidden=64, heads=4, intermediate=256, vocabulary=100, longest=64)
    made = weights.random(shape, seed=3)

    def expected(texts: Any) -> Any:
        return np.stack([reference.embed(made, shape, text) for text in texts])

    return SimpleNamespace(
        shape=shape, weights=made, converted=weights.converted(made, shape), expected=expected,
        difference=reference.difference,
    )  # fmt: skip


@pytest.fixture
def real(module: Import) -> Any:
    """The weights of the package; skips where it is not installed."""
    weights = module("weights")
    try:
        return weights.read(weights.package_folder() / "model.safetensors")
    except weights.MissingError as missing:
        pytest.skip(str(missing).splitlines()[0])


@pytest.fixture(scope="session")
def kept() -> Any:
    """reference.npz: `ids` by text, and `vectors`."""
    with np.load(Path(__file__).parent / "reference.npz") as file:
        ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
        return SimpleNamespace(ids=[text.tolist() for text in ids], vectors=file["vectors"])
