"""What a launch has written, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkqueue.cli.output import add_row, show, table
from vkqueue.client.array import Array
from vkqueue.client.signature import Binding


class Result:
    """One array that a launch has written.

    Attributes:
        place: of its argument; `element`: its place in an array of descriptors.
        name: of the binding, else its place.
    """

    def __init__(self, place: int, element: int, name: str, array: Array) -> None:
        self.place = place
        self.element = element
        self.name = name
        self.array = array
        self._file: str | None = None

    def save(self, path: Path) -> None:
        """Write it as a .npy file of exactly this name."""
        with path.open("wb") as file:
            np.save(file, self.array)
        self._file = str(path)

    def summary(self, head: int) -> dict[str, Any]:
        """Its form, some statistics, and the first `head` numbers; what JSON has no word for is text or None."""
        array = self.array
        finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        stats = (finite.min(), finite.mean(dtype=np.float64), finite.max()) if finite.size else (None, None, None)
        return {
            "name": self.name,
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            **{key: _number(value) for key, value in zip(("min", "mean", "max"), stats, strict=True)},
            "not_finite": int(array.size - finite.size),
            "head": [_number(value) for value in array.reshape(-1)[:head]],
            "file": self._file,
        }


def _number(value: Any) -> Any:
    if value is None:
        return None
    # A float32 as the shortest decimal that is it, and not as the float64 that it converts to.
    number = float(str(value)) if isinstance(value, np.floating) else value.item()
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)


def show_results(results: Sequence[Result], head: int) -> None:
    """The table."""
    made = table("result", "dtype", "shape", ">least", ">mean", ">largest", "numbers", "file")
    for result in results:
        row = result.summary(head)
        numbers = " ".join(map(str, row["head"])) + (" …" if result.array.size > head else "")
        stats = ("" if row[key] is None else f"{row[key]:.6g}" for key in ("min", "mean", "max"))
        shape = "x".join(map(str, row["shape"]))
        add_row(made, row["name"], row["dtype"], shape, *stats, numbers, row["file"] or "")
    show(made)


def named(bindings: Sequence[Binding], value: Any) -> Iterator[Result]:
    """The results of a call, with what they are of: one for each descriptor that the kernel writes."""
    arrays = iter(value if isinstance(value, tuple) else () if value is None else (value,))
    for place, binding in enumerate(bindings):
        if binding.written:
            for element in range(binding.count):
                name = binding.name or str(place)
                yield Result(place, element, name if binding.count == 1 else f"{name}[{element}]", next(arrays))
