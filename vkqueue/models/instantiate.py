"""A model for one shape: the parameters of `graph.create`, with every expression in numbers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from vkqueue.errors import InvalidError, TooLargeError, brief
from vkqueue.models.definition import Definition
from vkqueue.models.expression import Expression
from vkqueue.models.nodes import WEIGHTS, Node, Operand

# As of the protocol: sizes are below 2**63, grids and words below 2**32. What a device takes is checked by its graph.
_MAX_BYTES = 2**63 - 1


def instantiate(
    definition: Definition, batch: int, sizes: Mapping[str, int], weights: Mapping[str, int]
) -> dict[str, Any]:
    """The graph of a model for so many samples of these sizes.

    Args:
        sizes: a length for each dimension, one of its buckets.
        weights: a buffer's handle for each tensor.

    Returns:
        nodes, inputs, outputs and temporaries as of `graph.create`; in place of [module, kernel] stands the kernel's
        name. Inputs have the model's names and order, LENGTHS ones among them.

    Raises:
        InvalidError: an expression has no value, or a weight is not there; with the node.
        TooLargeError: a tensor's size is over 2**63.
    """
    values = {**sizes, "batch": batch}
    builder = _Builder(values, weights)
    temporaries = {
        name: builder.number(size, f"temporary {name!r}: size", low=0) for name, size in definition.temporaries.items()
    }
    ends = []
    for tensors in (definition.inputs, definition.outputs):
        ends.append({name: _checked(name, tensor.nbytes(batch, sizes)) for name, tensor in tensors.items()})
    nodes = [builder.node(node, f"node[{index}]") for index, node in enumerate(definition.nodes)]
    return {"nodes": nodes, "inputs": ends[0], "outputs": ends[1], "temporaries": temporaries}


def _checked(name: str, size: int) -> int:
    if size > _MAX_BYTES:
        raise TooLargeError(f"{name!r} would have {size} bytes, over 2**63")
    return size


class _Builder:
    def __init__(self, values: Mapping[str, int], weights: Mapping[str, int]) -> None:
        self._values = values
        self._weights = weights
        self._known: dict[Expression, int] = {}

    def number(self, value: Expression | int, where: str, low: int | None = None) -> int:
        """An expression's value."""
        number = value if type(value) is int else self._evaluated(value, where)  # type: ignore[arg-type]
        if low is not None and number < low:
            raise InvalidError(
                f"{where}: {brief(self._text(value))} is {number}{self._for()}; it must be at least {low}"
            )
        return number

    @staticmethod
    def _text(value: Any) -> Any:
        return value.text if isinstance(value, Expression) else value

    def _for(self) -> str:
        return " for " + ", ".join(f"{name} = {value}" for name, value in self._values.items())

    def _evaluated(self, expression: Expression, where: str) -> int:
        known = self._known.get(expression)
        if known is None:
            try:
                known = self._known[expression] = expression(self._values)
            except InvalidError as error:
                raise InvalidError(f"{where}: {error.message}{self._for()}", error.data) from error
        return known

    def _scalar(self, value: Any, where: str) -> Any:
        return self._evaluated(value, where) if isinstance(value, Expression) else value

    def node(self, node: Node, where: str) -> dict[str, Any]:
        """A node as a graph has it."""
        operands = [self._operand(operand, f"{where}: {operand.name}") for operand in node.operands]
        label = {"label": node.label} if node.label else {}
        if node.form == "copy":
            return {"copy": operands, **label}
        if node.form == "fill":
            return {"fill": operands[0], "value": self.number(node.value, f"{where}: value"), **label}
        found: dict[str, Any] = {"kernel": node.kernel, "args": operands, **label}
        if node.scalars is not None:
            found["scalars"] = self._scalars(node.scalars, node.named, f"{where}: scalars")
        for key, numbers in (("grid", node.grid), ("launch", node.launch)):
            if numbers is not None:
                found[key] = [self.number(number, f"{where}: {key}", low=0) for number in numbers]
        if node.specialization is not None:
            found["specialization"] = self._scalars(node.specialization, True, f"{where}: specialization")
        return found

    def _scalars(self, scalars: Any, named: bool, where: str) -> Any:
        if named:
            return {name: self._scalar(value, f"{where}.{name}") for name, value in scalars}
        return [self._scalar(value, where) for value in scalars]

    def _operand(self, operand: Operand, where: str) -> Any:
        name: Any = operand.name
        if operand.name.startswith(WEIGHTS):
            name = self._weight(operand.name.removeprefix(WEIGHTS), where)
        if operand.part is None:
            return name
        offset, size = operand.part
        return [name, self.number(offset, f"{where}: offset", low=0), self.number(size, f"{where}: size", low=0)]

    def _weight(self, name: str, where: str) -> int:
        found = self._weights.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self._weights, n=1)
            there = f"did you mean {near[0]!r}?" if near else f"there are {len(self._weights)} weights"
            raise InvalidError(f"{where}: no weight is called {brief(name)}; {there}")
        return found


__all__ = ["instantiate"]
