"""Requests to a model, made up from its configuration or taken from a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vkqueue.client.model import BaseModel, ModelTensor, bounds
from vkqueue.errors import InvalidError

INTEGERS = (0, 99)
"""Integers are from here, both included, unless something else is asked for. Arbitrary: as indices into tables they are
in range of most."""
FLOATS = (-1.0, 1.0)
"""Other numbers are from here, the end not included. Arbitrary: of the size of what networks take."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What requests are to be like.

    Attributes:
        samples: of each.
        dimensions: name → smallest and largest size, each request's drawn from them; else all that the model allows.
        values: input → smallest and largest value; else `INTEGERS` or `FLOATS`.
        data: a .npz file with an array for each input, of which requests take samples in turn; empty for none.
        seed: of the random numbers.
    """

    samples: int = 1
    dimensions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    data: str = ""
    seed: int = 0


class Inputs:
    """Makes requests.

    Raises:
        InvalidError: the model has no such dimension or input, or none of that size; or the file does not fit it.
        OSError: the file cannot be read.
    """

    def __init__(self, model: BaseModel, wanted: Wanted) -> None:
        self._model = model
        self._wanted = wanted
        self._random = np.random.default_rng(wanted.seed)
        self._next = wanted.seed
        self._check(wanted)
        self._sizes = {name: self._bounds(name) for name in self._names()}
        self._data = self._read(wanted.data) if wanted.data else {}

    def request(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays by the inputs' names, for one request."""
        if self._data:
            return self._take()
        sizes = {name: int(self._random.integers(low, high + 1)) for name, (low, high) in self._sizes.items()}
        sizes["batch"] = self._wanted.samples
        return {tensor.name: self._drawn(tensor, sizes) for tensor in self._model.inputs.values()}

    def _names(self) -> set[str]:
        sizes = {size for tensor in self._model.inputs.values() for size in tensor.shape}
        return {size for size in sizes if isinstance(size, str)} - {"batch"}

    def _check(self, wanted: Wanted) -> None:
        for what, given, known in (
            ("dimension", wanted.dimensions, self._names()),
            ("input", wanted.values, self._model.inputs),
        ):
            unknown = next((name for name in given if name not in known), None)
            if unknown is not None:
                has = ", ".join(sorted(known)) or "none"
                raise InvalidError(f"requests to {self._model.name!r} give no {what} {unknown!r}; they give {has}")
        most = self._model.max_batch_size
        if wanted.samples > max(most, 1):
            raise InvalidError(
                f"{wanted.samples} samples a request: the model {self._model.name!r} takes {max(most, 1)} at most "
                "(max_batch_size)"
            )

    def _bounds(self, name: str) -> tuple[int, int]:
        low, high = bounds(self._model.config, name)
        if name not in self._wanted.dimensions:
            if high == math.inf:
                raise InvalidError(
                    f"the model does not say how large {name!r} may be: give --dimension {name}=LOW:HIGH"
                )
            return low, int(high)
        first, last = self._wanted.dimensions[name]
        if not low <= first <= last <= high:
            raise InvalidError(f"{name} from {first} to {last}: the model takes {low} to {high}")
        return first, last

    def _drawn(self, tensor: ModelTensor, sizes: Mapping[str, int]) -> npt.NDArray[Any]:
        shape = tuple(size if isinstance(size, int) else sizes[size] for size in tensor.shape)
        kind = tensor.dtype.kind
        if kind == "b":
            return self._random.integers(0, 2, shape).astype(tensor.dtype)
        if tensor.data_type == "TYPE_BF16":  # the upper half of a float32
            low, high = self._wanted.values.get(tensor.name, FLOATS)
            wide = self._random.uniform(low, high, shape).astype(np.float32).view(np.uint32)
            return np.asarray(wide >> 16).astype(np.uint16)
        if kind in "iu":
            low, high = self._wanted.values.get(tensor.name, INTEGERS)
            return self._random.integers(int(low), int(high) + 1, shape).astype(tensor.dtype)
        low, high = self._wanted.values.get(tensor.name, FLOATS)
        return self._random.uniform(low, high, shape).astype(tensor.dtype)

    # From a file

    def _read(self, path: str) -> dict[str, npt.NDArray[Any]]:
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
        missing = next((name for name in self._model.inputs if name not in found), None)
        if missing is not None:
            raise InvalidError(f"{path} has no array {missing!r}; it has {', '.join(found) or 'none'}")
        arrays = {name: tensor.host(found[name]) for name, tensor in self._model.inputs.items()}
        counts = {
            arrays[name].shape[tensor.batch_axis]
            for name, tensor in self._model.inputs.items()
            if tensor.batch_axis is not None and arrays[name].ndim == len(tensor.shape)
        }
        batched = any(tensor.batch_axis is not None for tensor in self._model.inputs.values())
        if batched and (len(counts) != 1 or 0 in counts):
            raise InvalidError(f"{path}: its arrays have to have the same number of samples, along the batch dimension")
        return arrays

    def _take(self) -> dict[str, npt.NDArray[Any]]:
        found = {}
        for name, tensor in self._model.inputs.items():
            array = self._data[name]
            if tensor.batch_axis is not None:
                indices = range(self._next, self._next + self._wanted.samples)
                array = np.take(array, indices, axis=tensor.batch_axis, mode="wrap")
            found[name] = np.ascontiguousarray(array)
        self._next += self._wanted.samples
        return found
