"""From the tensors of a request to the shape that runs it; and where its bytes lie in the tensors of a batch.

A request brings samples (along the batch dimension) and a length for each dimension of the model. Lengths are padded to
buckets, and requests of equal buckets (`group`) can share a batch: along the batch dimension each has its samples, and
what it leaves of its buckets is padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from vkqueue.errors import InvalidError, brief
from vkqueue.models.definition import Definition
from vkqueue.models.tensors import Tensor

Shape = tuple[int, ...]

# Arbitrary: combinations of shapes that are remembered.
_MAX_KNOWN = 4096
_PATTERN_BYTES = 64 << 10
# Runs of a request's bytes that cost less than the request itself. Arbitrary.
_FEW_RUNS = 64


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What a request's tensors say.

    Attributes:
        samples: along the batch dimension; 1 where there is none.
        lengths: of each dimension of the model, in its order.
        group: what these are padded to.
    """

    samples: int
    lengths: Shape
    group: Shape

    @property
    def padded(self) -> bool:
        """Whether any length is not its bucket."""
        return self.lengths != self.group


class Shapes:
    """Reads the shapes of requests for a model."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._together = definition.max_batch_size if definition.batching is not None else 0
        self._asked = [tensor for tensor in definition.inputs.values() if not tensor.of]
        self.names = tuple(tensor.name for tensor in self._asked)
        self._known: dict[Any, RequestShape] = {}

    def read(self, given: Mapping[str, Sequence[int]]) -> RequestShape:
        """The shape of a request.

        Args:
            given: input → its shape, with the batch dimension where the model has one.

        Raises:
            InvalidError: an input is missing or unknown; or with its name, what was expected and what came: a number of
                dimensions, a length, or one that two inputs say differently.
        """
        try:
            key = tuple([(name, *given[name]) for name in self.names])
            found = self._known.get(key)
        except (KeyError, TypeError):  # missing, or no list of numbers: said below
            found = None
            key = ()
        if found is not None and len(given) == len(self.names) and all([_integers(given[n]) for n in self.names]):
            return found
        found = self._read(given)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = found
        return found

    def _read(self, given: Mapping[str, Sequence[int]]) -> RequestShape:
        self._check_names(given)
        definition = self._definition
        said: dict[str, tuple[int, str]] = {}  # what → (its length, the input that said so)
        for tensor in self._asked:
            shape = given[tensor.name]
            names = self._named(tensor)
            if type(shape) not in (list, tuple) or len(shape) != len(names) or not _integers(shape):
                raise InvalidError(
                    f"inputs: {tensor.name}: expected the shape [{self._expected(tensor)}], got {brief(shape)}",
                    {"input": tensor.name},
                )
            for index, (name, length) in enumerate(zip(names, shape, strict=True)):
                self._check_length(tensor, shape, index, name, length, said)
        lengths = tuple(said[name][0] for name in definition.dimensions)
        group = []
        for dimension, length in zip(definition.dimensions.values(), lengths, strict=True):
            bucket = dimension.bucket(length)
            if bucket is None:
                raise InvalidError(
                    f"inputs: {said[dimension.name][1]}: its dimension {dimension.name} has {length}; this model takes "
                    f"{dimension.allowed}",
                    {"input": said[dimension.name][1], "dimension": dimension.name},
                )
            group.append(bucket)
        samples = said["batch"][0] if "batch" in said else 1
        return RequestShape(samples, lengths, tuple(group))

    def _check_names(self, given: Mapping[str, Any]) -> None:
        for name in self.names:
            if name not in given:
                raise InvalidError(f"inputs: {name} ([{self._expected(self._definition.inputs[name])}]) is missing")
        for name in given:
            if name not in self.names:
                made = name in self._definition.inputs
                raise InvalidError(
                    f"inputs: {brief(name)}: {'is made by the daemon; leave it out' if made else 'no such input'}; the "
                    f"model takes {', '.join(self.names)}"
                )

    def _check_length(
        self, tensor: Tensor, shape: Sequence[int], index: int, name: str | int, length: int,
        said: dict[str, tuple[int, str]],
    ) -> None:  # fmt: skip
        label = f"inputs: {tensor.name}: shape {brief(shape)}, dimension {index}"
        data = {"input": tensor.name}
        if type(name) is int:
            if length != name:
                raise InvalidError(f"{label}: expected {name}, got {length}", data)
            return
        assert type(name) is str
        if name in said and said[name][0] != length:
            raise InvalidError(
                f"{label}: {name} is {length} here and {said[name][0]} in {said[name][1]}; they must agree", data
            )
        if name == "batch" and not 1 <= length <= self._definition.max_batch_size:
            raise InvalidError(
                f"{label}: {length} samples; this model takes 1 to {self._definition.max_batch_size} (max_batch_size)",
                data,
            )
        said[name] = (length, tensor.name)

    def _named(self, tensor: Tensor) -> tuple[str | int, ...]:
        if not self._definition.batched:
            return tensor.dims
        at = tensor.batch_dimension
        return (*tensor.dims[:at], "batch", *tensor.dims[at:])

    def _expected(self, tensor: Tensor) -> str:
        return ", ".join(map(str, self._named(tensor)))

    def sizes(self, lengths: Shape) -> dict[str, int]:
        """Lengths by dimension."""
        return dict(zip(self._definition.dimensions, lengths, strict=True))

    def own(self, tensor: Tensor, shape: RequestShape) -> Shape:
        """The shape of a tensor of a request by itself, without padding."""
        return tensor.whole(shape.samples, self.sizes(shape.lengths), self._definition.batched)

    def runs(self, tensor: Tensor, shape: RequestShape) -> int:
        """In how many runs the bytes of a request's tensor lie in a batch with others, as far as they fit in."""
        whole, part = self.whole(tensor, shape.samples, shape.group), self.own(tensor, shape)
        cut = max((index for index in range(len(whole)) if part[index] != whole[index]), default=0)
        if shape.samples < self._together:
            cut = max(cut, tensor.batch_dimension)
        return math.prod(part[:cut])

    def share(self, most: int, shape: RequestShape) -> int:
        """What one request may have of so many runs of a full batch; some it may have always."""
        return max(most // max(self._together // shape.samples, 1), _FEW_RUNS)

    def whole(self, tensor: Tensor, batch: int, group: Shape) -> Shape:
        """The shape of a tensor of a batch."""
        return tensor.whole(batch, self.sizes(group), self._definition.batched)


def _integers(shape: Sequence[Any]) -> bool:
    """Not True or 1.0, which are equal to 1 as keys."""
    for length in shape:
        if type(length) is not int:
            return False
    return True


def runs(whole: Shape, part: Shape, axis: int, first: int, item: int) -> Iterator[tuple[int, int]]:
    """Where the bytes of a part lie in a whole: (first byte, bytes) of each run, in the part's own order.

    Args:
        axis: along which the part begins at `first`; along all others it begins at 0.
        item: bytes of an element.
    """
    strides = [item] * len(whole)
    for index in range(len(whole) - 2, -1, -1):
        strides[index] = strides[index + 1] * whole[index + 1]
    start = first * strides[axis] if first else 0
    cut = max((index for index in range(len(whole)) if part[index] != whole[index]), default=0)
    length = math.prod(part[cut:]) * item
    if cut == 0 or math.prod(part[:cut]) == 1:
        yield start, length
        return
    for place in product(*map(range, part[:cut])):
        yield start + sum(index * stride for index, stride in zip(place, strides, strict=False)), length


def gather(tensor: Tensor, whole: Shape, parts: Sequence[tuple[Shape, Any]]) -> list[Any]:
    """The bytes of a batch's tensor in pieces, one after the other: those of its parts, and padding between them.

    Args:
        parts: shape and bytes-like of each, in the order of the batch dimension.
    """
    axis, item = tensor.batch_dimension, tensor.item_bytes
    placed: list[tuple[int, int, Any]] = []
    first = 0
    for shape, data in parts:
        at, view = 0, memoryview(data)
        for offset, length in runs(whole, shape, axis, first, item):
            placed.append((offset, length, view[at : at + length]))
            at += length
        first += shape[axis] if len(parts) > 1 else 0
    if axis:
        placed.sort(key=lambda run: run[0])
    pieces, end = [], 0
    for offset, length, data in placed:
        if offset > end:
            pieces += padding(tensor.pad, offset - end)
        pieces.append(data)
        end = offset + length
    total = math.prod(whole) * item
    return pieces + padding(tensor.pad, total - end) if total > end else pieces


def padding(element: bytes, size: int) -> list[bytes | memoryview]:
    """So many bytes of an element, in pieces: what is padded to may be far larger than all that came."""
    pattern = _pattern(element)
    full, rest = divmod(size, len(pattern))
    return [pattern] * full + ([memoryview(pattern)[:rest]] if rest else [])


@lru_cache(maxsize=64)
def _pattern(element: bytes) -> bytes:
    return element * (_PATTERN_BYTES // len(element))


def scatter(tensor: Tensor, whole: Shape, part: Shape, first: int, data: Any) -> Any:
    """The bytes of a part out of those of the whole; not copied where they are in one run.

    Args:
        first: of the part along the batch dimension.
    """
    view = memoryview(data)
    found = [view[a : a + n] for a, n in runs(whole, part, tensor.batch_dimension, first, tensor.item_bytes)]
    return found[0] if len(found) == 1 else b"".join(found)


__all__ = ["RequestShape", "Shape", "Shapes", "gather", "padding", "runs", "scatter"]
