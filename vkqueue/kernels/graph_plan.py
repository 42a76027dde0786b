"""A checked graph: its steps over places, and what of them comes with each launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vkqueue.errors import InvalidError, brief
from vkqueue.kernels.plan import Plan
from vkqueue.kernels.scalars import ScalarPacker, pack_value, type_size, value_error
from vkqueue.model import GraphNode

INPUT, OUTPUT, TEMPORARY, BUFFER, CONSTANT = "input", "output", "temporary", "buffer", "constant"


class Place:
    """Memory that nodes name.

    Attributes:
        id: index in `GraphPlan.places`, and 1: what a plan takes for a buffer's id.
        role, name: INPUT and so on; the name it was given, or how messages call it.
        buffer, handle: of BUFFER.
        align: what its first byte has to be a multiple of.
        reads, writes: the ends of what nodes read and write, None where they do not.
    """

    __slots__ = ("align", "buffer", "handle", "id", "name", "reads", "role", "size", "writes")

    def __init__(self, id: int, role: str, name: str, size: int, buffer: Any = None, handle: int = 0) -> None:
        self.id = id
        self.role = role
        self.name = name
        self.size = size
        self.buffer = buffer
        self.handle = handle
        self.align = 1
        self.reads: tuple[int, int] | None = None
        self.writes: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.role} {self.name!r}" if self.role in (INPUT, OUTPUT, TEMPORARY) else self.name


@dataclass(frozen=True, slots=True)
class LateScalars:
    """Scalars in member order, with {"scalar": name} for those that come with a launch.

    Attributes:
        block: they go by a uniform buffer, so as whole words.
    """

    packer: ScalarPacker
    values: list[Any]
    block: bool

    @property
    def key(self) -> object:
        """Equal for two that are always the same bytes."""
        return id(self.packer), repr(self.values), self.block

    def resolve(self, scalars: Mapping[str, Any], types: Mapping[str, str]) -> bytes:
        """What a launch with these numbers has.

        Raises:
            InvalidError: one is out of its member's range.
        """
        packed = self.packer.pack(_filled_in(self.values, scalars))
        return padded(packed) if self.block else packed


@dataclass(frozen=True, slots=True)
class LateGrid:
    """Work groups in the same way."""

    plan: Plan
    groups: list[Any]

    @property
    def key(self) -> object:
        """As of LateScalars."""
        return id(self.plan), repr(self.groups)

    def resolve(self, scalars: Mapping[str, Any], types: Mapping[str, str]) -> tuple[int, int, int]:
        """Raises InvalidError for a grid over the device's limit."""
        return self.plan.grid(_filled_in(self.groups, scalars))


@dataclass(frozen=True, slots=True)
class LateWord:
    """The word of a fill, by the name of the scalar that it is filled with."""

    name: str

    @property
    def key(self) -> object:
        """As of LateScalars."""
        return self.name

    def resolve(self, scalars: Mapping[str, Any], types: Mapping[str, str]) -> int:
        """The word."""
        return word_of(types[self.name], scalars[self.name])


Late: TypeAlias = LateScalars | LateGrid | LateWord


@dataclass(slots=True)
class Step:
    """A node, and what of it comes with a launch.

    Attributes:
        kernel: the caller's object for it, of a dispatch.
        late: what stands in place of its constants or data, late_grid: of its grid; None where it has them itself.
    """

    node: GraphNode
    kernel: Any = None
    late: LateScalars | LateWord | None = None
    late_grid: LateGrid | None = None


@dataclass(slots=True)
class GraphPlan:
    """A checked graph.

    Attributes:
        steps: in an order that is right; more than `nodes`, which were sent, where data has to be put in place first.
        scalars: name -> type of those that come with a launch.
    """

    places: list[Place]
    steps: list[Step]
    scalars: dict[str, str]
    nodes: int

    def place(self, name: str) -> Place | None:
        """The input or output of that name."""
        return next((p for p in self.places if p.name == name and p.role in (INPUT, OUTPUT)), None)

    def check_scalars(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidError unless each scalar has a value of its type, and nothing else has."""
        for name, type_ in self.scalars.items():
            if name not in given:
                raise InvalidError(f"scalars: {name} ({type_}) is missing; every scalar of the graph must be given")
            fault = value_error(name, type_, given[name])
            if fault is not None:
                raise InvalidError(f"scalars: {fault}", {"scalar": name, "type": type_})
        if len(given) != len(self.scalars):
            extra = next(name for name in given if name not in self.scalars)
            raise InvalidError(
                f"scalars: the graph has none called {brief(extra)}; it has {', '.join(self.scalars) or 'none'}"
            )


def _filled_in(values: Sequence[Any], scalars: Mapping[str, Any]) -> list[Any]:
    return [scalars[v["scalar"]] if type(v) is dict else v for v in values]


def padded(data: bytes) -> bytes:
    """Data, and zeros behind it up to whole words."""
    return data.ljust(-(-len(data) // 4) * 4, b"\0")


def word_of(type_: str, value: Any) -> int:
    """The 32-bit word that a scalar fills memory with.

    Raises:
        InvalidError: a type that does not make up words evenly.
    """
    size = type_size(type_)
    if size > 4:
        raise InvalidError(f"value: a {type_} has {size} bytes; memory is filled with words of 4")
    return int.from_bytes(pack_value(type_, value) * (4 // size), "little")
