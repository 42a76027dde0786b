"""Nodes of a model: those of a graph, with expressions where a graph has numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vkqueue.errors import InvalidError, brief
from vkqueue.models.expression import Expression
from vkqueue.models.reading import Numbers, Table, shown

Number: TypeAlias = Expression | int
Scalar: TypeAlias = Expression | int | float

WEIGHTS = "weights."
"""What names of weights begin with, where nodes name memory."""
_FORMS = ("kernel", "copy", "fill")
_KEYS = {
    "kernel": ("kernel", "args", "scalars", "grid", "launch", "specialization", "label"),
    "copy": ("copy", "label"),
    "fill": ("fill", "value", "label"),
}


@dataclass(frozen=True, slots=True)
class Operand:
    """Memory by its name: all of it, or a part, (offset, size) in bytes."""

    name: str
    part: tuple[Number, Number] | None = None

    def to_map(self) -> Any:
        """As the configuration has it."""
        return self.name if self.part is None else [self.name, *map(shown, self.part)]


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        form: "kernel", "copy" or "fill".
        operands: the arguments; of a copy source and target; of a fill the target.
        kernel, scalars, grid, launch, specialization: of a kernel; what was left out is None.
        named: whether `scalars` are (name, value), else values in the kernel's order.
        value: of a fill, a 32-bit word.
    """

    form: str
    operands: tuple[Operand, ...]
    kernel: str = ""
    scalars: tuple[tuple[str, Scalar], ...] | tuple[Scalar, ...] | None = None
    named: bool = True
    grid: tuple[Number, ...] | None = None
    launch: tuple[Number, ...] | None = None
    specialization: tuple[tuple[str, Scalar], ...] | None = None
    value: Number = 0
    label: str = ""

    def to_map(self) -> dict[str, Any]:
        """As the configuration has it."""
        label = {"label": self.label} if self.label else {}
        operands = [operand.to_map() for operand in self.operands]
        if self.form == "copy":
            return {"copy": operands, **label}
        if self.form == "fill":
            return {"fill": operands[0], "value": shown(self.value), **label}
        found: dict[str, Any] = {"kernel": self.kernel, "args": operands}
        if self.scalars is not None:
            found["scalars"] = _shown_scalars(self.scalars, self.named)
        for key, numbers in (("grid", self.grid), ("launch", self.launch)):
            if numbers is not None:
                found[key] = [shown(number) for number in numbers]
        if self.specialization is not None:
            found["specialization"] = _shown_scalars(self.specialization, True)
        return found | label


def _shown_scalars(scalars: Any, named: bool) -> Any:
    return {name: shown(value) for name, value in scalars} if named else [shown(value) for value in scalars]


class NodeReader:
    """Reads nodes.

    Args:
        kernels, memory: names that there are.
    """

    def __init__(self, numbers: Numbers, kernels: Mapping[str, Any], memory: Mapping[str, Any]) -> None:
        self._numbers = numbers
        self._kernels = kernels
        self._memory = memory

    def read(self, value: Any, path: str) -> Node:
        """A node of the configuration.

        Raises:
            InvalidError
        """
        forms = [form for form in _FORMS if isinstance(value, Mapping) and value.get(form) is not None]
        if len(forms) != 1:
            raise InvalidError(f"config: {path}: expected a map with one of {', '.join(_FORMS)}, got {brief(value)}")
        table = Table(value, path, _KEYS[forms[0]])
        label = table.text("label", "")
        if forms[0] == "copy":
            pair = table.list("copy")
            if len(pair) != 2:
                raise table.error("copy", f"expected [source, target], got {brief(pair)}")
            return Node("copy", self._operands(table, "copy"), label=label)
        if forms[0] == "fill":
            target = self._operand(table.get("fill"), table, "fill")
            word = self._numbers.read(table.get("value", 0), table.where("value"))
            return Node("fill", (target,), value=word, label=label)
        return self._kernel(table, label)

    def _kernel(self, table: Table, label: str) -> Node:
        kernel = table.text("kernel", choices=self._kernels)
        if ("grid" in table) == ("launch" in table):
            raise table.error("", "give one of grid and launch")
        grid = launch = None
        if "grid" in table:
            grid = self._list(table, "grid")
            if not 1 <= len(grid) <= 3:
                raise table.error("grid", f"expected one to three numbers, got {len(grid)}")
        else:
            launch = self._list(table, "launch")
        scalars: Any = None
        named = True
        if "scalars" in table:
            given = table.get("scalars")
            named = isinstance(given, Mapping)
            scalars = self._scalars(table, "scalars") if named else self._scalar_list(table)
        specialization = self._scalars(table, "specialization") if "specialization" in table else None
        return Node(
            "kernel", self._operands(table, "args"), kernel, scalars, named, grid, launch, specialization, label=label
        )

    def _operands(self, table: Table, key: str) -> tuple[Operand, ...]:
        return tuple(self._operand(item, table, f"{key}[{i}]") for i, item in enumerate(table.list(key)))

    def _operand(self, value: Any, table: Table, key: str) -> Operand:
        name, part = value, None
        if type(value) in (list, tuple):
            if len(value) != 3:
                raise table.error(key, f"expected a name or [name, offset, size], got {brief(value)}")
            name = value[0]
            part = (
                self._numbers.read(value[1], f"{table.where(key)}[1]"),
                self._numbers.read(value[2], f"{table.where(key)}[2]"),
            )
        if type(name) is not str:
            raise table.error(key, f"expected a name or [name, offset, size], got {brief(value)}")
        if name not in self._memory and not name.startswith(WEIGHTS):
            known = ", ".join(list(self._memory)[:16])
            raise table.error(key, f"no input, output or temporary is called {brief(name)}; there are {known}")
        return Operand(name, part)

    def _list(self, table: Table, key: str) -> tuple[Number, ...]:
        return tuple(self._numbers.read(v, f"{table.where(key)}[{i}]") for i, v in enumerate(table.list(key)))

    def _scalar_list(self, table: Table) -> tuple[Scalar, ...]:
        return tuple(
            self._scalar(value, f"{table.where('scalars')}[{index}]")
            for index, value in enumerate(table.list("scalars"))
        )

    def _scalars(self, table: Table, key: str) -> tuple[tuple[str, Scalar], ...]:
        where = table.where(key)
        return tuple((name, self._scalar(value, f"{where}.{name}")) for name, value in table.map(key).items())

    def _scalar(self, value: Any, path: str) -> Scalar:
        if type(value) in (float, bool):
            return value  # type: ignore[no-any-return]
        return self._numbers.read(value, path)


__all__ = ["WEIGHTS", "Node", "NodeReader", "Number", "Operand", "Scalar"]
