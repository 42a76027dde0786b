"""Inputs and outputs of a model, and the dimensions that requests choose."""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vkqueue.errors import InvalidError, brief
from vkqueue.models.expression import RESERVED
from vkqueue.models.nodes import WEIGHTS
from vkqueue.models.reading import Table

TYPES: dict[str, str] = {
    "TYPE_BOOL": "?", "TYPE_UINT8": "B", "TYPE_UINT16": "H", "TYPE_UINT32": "I", "TYPE_UINT64": "Q",
    "TYPE_INT8": "b", "TYPE_INT16": "h", "TYPE_INT32": "i", "TYPE_INT64": "q",
    "TYPE_FP16": "e", "TYPE_BF16": "bf16", "TYPE_FP32": "f", "TYPE_FP64": "d",
}  # fmt: skip
"""Triton's names of element types → struct's codes."""

LENGTHS = "LENGTHS"
"""`kind` of an input that the daemon makes: of each sample the true length of a dimension."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_BUCKETS = 64  # arbitrary, as the two below: each bucket is a graph of its own
_MAX_DIMS = 8
_MAX_TENSORS = 256


@dataclass(frozen=True, slots=True)
class Dimension:
    """A length that each request chooses.

    Attributes:
        buckets: rising; a request is padded up to the next. Empty: any length from `low` to `high`, without padding.
        low, high: the least and the greatest length, both included.
    """

    name: str
    buckets: tuple[int, ...]
    low: int
    high: int

    @classmethod
    def read(cls, name: str, value: Any) -> Dimension:
        """A dimension of the configuration.

        Raises:
            InvalidError: its name is none, or its bounds contradict each other; with the key.
        """
        table = Table(value, f"dimensions.{name}", ("buckets", "min", "max"))
        if not _IDENTIFIER.fullmatch(name) or name in RESERVED:
            raise table.error("", "a dimension's name is letters, digits and _, and neither batch nor a function")
        if "buckets" not in table:
            low, high = table.integer("min", 1, 1), table.integer("max", low=1)
            if low > high:
                raise table.error("min", f"{low} is over max ({high})")
            return cls(name, (), low, high)
        buckets = table.list("buckets", most=_MAX_BUCKETS)
        rising = all(type(b) is int and b > 0 for b in buckets) and sorted(set(buckets)) == buckets
        if not buckets or not rising:
            raise table.error("buckets", f"expected rising positive integers, got {brief(buckets)}")
        low, high = table.integer("min", 1, 1), table.integer("max", buckets[-1], 1)
        if not low <= buckets[0] or high != buckets[-1]:
            raise table.error("buckets", f"go with min up to {buckets[0]} and max = {buckets[-1]} alone")
        return cls(name, tuple(buckets), low, high)

    def to_map(self) -> dict[str, Any]:
        """As the configuration has it."""
        bounds = {"min": self.low, "max": self.high}
        return {"buckets": list(self.buckets), **bounds} if self.buckets else bounds

    def bucket(self, size: int) -> int | None:
        """What a length is padded to; None where it is out of bounds."""
        if not self.low <= size <= self.high:
            return None
        return self.buckets[bisect_left(self.buckets, size)] if self.buckets else size

    @property
    def smallest(self) -> int:
        """The smallest bucket."""
        return self.buckets[0] if self.buckets else self.low

    @property
    def allowed(self) -> str:
        """For messages."""
        return f"{self.low} to {self.high}" if self.low != self.high else str(self.low)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output.

    Attributes:
        dims: without the batch dimension; lengths, and names of dimensions.
        batch_dimension: where among `dims` the batch dimension is put.
        pad_value: what an input is filled up with.
        of: of a LENGTHS input the dimension; else empty.
    """

    name: str
    data_type: str
    dims: tuple[int | str, ...]
    batch_dimension: int = 0
    pad_value: float = 0
    of: str = ""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return 2 if self.data_type == "TYPE_BF16" else struct.calcsize(TYPES[self.data_type])

    @property
    def pad(self) -> bytes:
        """An element of padding, little endian."""
        if self.data_type == "TYPE_BF16":
            return struct.pack("<f", self.pad_value)[2:]
        return struct.pack("<" + TYPES[self.data_type], self.pad_value)

    def lengths(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """`dims` in numbers."""
        return tuple(sizes[d] if type(d) is str else int(d) for d in self.dims)

    def whole(self, batch: int, sizes: Mapping[str, int], batched: bool) -> tuple[int, ...]:
        """The shape with its batch dimension."""
        lengths = self.lengths(sizes)
        return (*lengths[: self.batch_dimension], batch, *lengths[self.batch_dimension :]) if batched else lengths

    def nbytes(self, batch: int, sizes: Mapping[str, int]) -> int:
        """Bytes of it for so many samples (1 where there is no batch dimension)."""
        return math.prod(self.lengths(sizes)) * batch * self.item_bytes

    def to_map(self, output: bool) -> dict[str, Any]:
        """As the configuration has it."""
        if self.of:
            return {"name": self.name, "kind": LENGTHS, "of": self.of}
        found: dict[str, Any] = {"name": self.name, "data_type": self.data_type, "dims": list(self.dims)}
        if not output:
            found["pad_value"] = self.pad_value
        found["batch_dimension"] = self.batch_dimension
        return found


def read_tensors(value: Any, key: str, dimensions: Mapping[str, Dimension] | None, batched: bool) -> dict[str, Tensor]:
    """The inputs or outputs (`key`) by name.

    Args:
        dimensions: None where they are not known yet (of an ensemble they come from its members).

    Raises:
        InvalidError
    """
    if type(value) is not list or not value or len(value) > _MAX_TENSORS:
        raise InvalidError(f"config: {key}: expected a list of 1 to {_MAX_TENSORS} maps, got {brief(value)}")
    found: dict[str, Tensor] = {}
    for index, item in enumerate(value):
        tensor = _read(item, f"{key}[{index}]", key == "output", dimensions, batched)
        if tensor.name in found:
            raise InvalidError(f"config: {key}[{index}].name: {brief(tensor.name)} is there twice")
        found[tensor.name] = tensor
    return found


def _read(value: Any, path: str, output: bool, dimensions: Mapping[str, Dimension] | None, batched: bool) -> Tensor:
    keys = ["name", "data_type", "dims", "batch_dimension", *(() if output else ("pad_value", "kind", "of"))]
    table = Table(value, path, keys)
    name = table.text("name")
    if name.startswith(WEIGHTS):
        raise table.error("name", f'{brief(name)}: names that begin with "{WEIGHTS}" are those of weights')
    if not output and table.text("kind", "", (LENGTHS,)):
        of = table.text("of")
        if dimensions is not None and of not in dimensions:
            raise table.error("of", f"no dimension is called {brief(of)}; there are {_listed(dimensions)}")
        for key in ("dims", "data_type", "pad_value", "batch_dimension"):
            if key in table:
                raise table.error(key, "an input of kind LENGTHS has none: it is one int32 for each sample")
        return Tensor(name, "TYPE_INT32", (), of=of)
    if "of" in table:
        raise table.error("of", 'goes with kind = "LENGTHS" only')
    data_type = table.text("data_type", choices=TYPES)
    dims = tuple(_dim(table, d, dimensions) for d in table.list("dims", most=_MAX_DIMS))
    place = table.integer("batch_dimension", 0, 0, len(dims))
    if place and not batched:
        raise table.error("batch_dimension", "there is none without max_batch_size")
    return Tensor(name, data_type, dims, place, _pad_value(table, data_type))


def _dim(table: Table, value: Any, dimensions: Mapping[str, Dimension] | None) -> int | str:
    if type(value) is int and 1 <= value < 2**31:
        return value
    if type(value) is str and (dimensions is None or value in dimensions):
        return value
    hint = "; a length that requests choose has a name and stands in [dimensions]" if value == -1 else ""
    there = "" if dimensions is None else f" ({_listed(dimensions)})"
    raise table.error("dims", f"expected positive integers and names of dimensions{there}, got {brief(value)}{hint}")


def _pad_value(table: Table, data_type: str) -> float:
    value = table.get("pad_value", 0)
    code = TYPES[data_type]
    exact = code in "?bBhHiIqQ"
    if type(value) not in ((int, bool) if exact else (int, float, bool)):
        raise table.error("pad_value", f"expected a number for {data_type}, got {brief(value)}")
    try:
        struct.pack("<f" if code == "bf16" else "<" + code, value)
    except (struct.error, OverflowError):
        raise table.error("pad_value", f"{brief(value)} is no value of {data_type}") from None
    return value  # type: ignore[no-any-return]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


__all__ = ["LENGTHS", "TYPES", "Dimension", "Tensor", "read_tensors"]
