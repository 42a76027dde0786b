"""An ensemble as one model: the graphs of its steps one behind the other, joined by tensors that stay on the device.

Names of a member's kernels, temporaries and weights get the member's name in front. Where two tensors are joined their
types and lengths have to be the same, so dimensions become one: with the buckets that all of its members have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vkqueue.errors import InvalidError, brief
from vkqueue.models.definition import Definition, Kernel, Step
from vkqueue.models.dimensions import Joined
from vkqueue.models.expression import Expression
from vkqueue.models.nodes import WEIGHTS, Node, Number, Operand
from vkqueue.models.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Flattened:
    """An ensemble without its steps.

    Attributes:
        kernels: name → (step, the member's name for it).
        prefixes: of each step, what the names of its weights begin with.
    """

    definition: Definition
    kernels: dict[str, tuple[int, str]]
    prefixes: tuple[str, ...]


def flatten(ensemble: Definition, members: Sequence[Definition]) -> Flattened:
    """One model that does what the steps do.

    Args:
        members: the definition of each step's model; none is an ensemble.

    Raises:
        InvalidError: steps do not fit together; with the step, the tensor, and what each side says.
    """
    return _Flattening(ensemble, members).flattened()


class _Flattening:
    def __init__(self, ensemble: Definition, members: Sequence[Definition]) -> None:
        self._ensemble = ensemble
        self._members = members
        self._steps = ensemble.steps
        names = [step.model_name for step in self._steps]
        self._prefixes = tuple(
            f"{name}." if names.count(name) == 1 else f"{name}.{index}." for index, name in enumerate(names)
        )
        self._dimensions = Joined(ensemble, members, self._prefixes)
        self._made: dict[str, tuple[str, Tensor, int]] = {}  # tensor → who makes it, its form, whose dimensions
        self._used: dict[str, list[tuple[int, Tensor]]] = {}

    def flattened(self) -> Flattened:
        ensemble = self._ensemble
        most = self._batch_size()
        self._join()
        order = self._order()
        renames = self._dimensions.resolve()
        memory = [self._memory(index) for index in range(len(self._steps))]
        kernels: dict[str, tuple[int, str]] = {}
        nodes: list[Node] = []
        for index in order:
            prefix, member = self._prefixes[index], self._members[index]
            kernels |= {prefix + name: (index, name) for name in member.kernels}
            nodes += [self._node(node, index, memory[index], renames[index]) for node in member.nodes]
        batching = ensemble.batching
        if batching is not None:
            sizes = tuple(size for size in batching.preferred_batch_size if size <= most)
            batching = replace(batching, preferred_batch_size=sizes)
        definition = replace(
            ensemble,
            max_batch_size=most,
            batching=batching,
            dimensions=self._dimensions.dimensions,
            inputs=self._inputs(renames),
            outputs={name: self._renamed(tensor, renames[-1]) for name, tensor in ensemble.outputs.items()},
            kernels={name: Kernel(name) for name in kernels},
            temporaries=self._temporaries(memory, renames),
            nodes=tuple(nodes),
            steps=(),
        )
        return Flattened(definition, kernels, self._prefixes)

    def _error(self, index: int, text: str) -> InvalidError:
        return InvalidError(f"ensemble {self._ensemble.name!r}: step {index} ({self._steps[index].model_name}): {text}")

    def _wrong(self, text: str) -> InvalidError:
        return InvalidError(f"ensemble {self._ensemble.name!r}: {text}")

    def _batch_size(self) -> int:
        sizes = {step.model_name: m.max_batch_size for step, m in zip(self._steps, self._members, strict=True)}
        own = self._ensemble.max_batch_size
        if any((size == 0) != (own == 0) for size in sizes.values()):
            listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise self._wrong(
                f"max_batch_size is {own}, of its steps {listed}; either all have a batch dimension or none has"
            )
        return min(own, *sizes.values())

    # Tensors

    def _join(self) -> None:
        """Who makes each tensor and who uses it; the dimensions of these become one."""
        self._note_makers()
        for index, step in enumerate(self._steps):
            for own, name in step.input_map.items():
                if name not in self._made:
                    there = ", ".join(self._made)
                    raise self._error(index, f"input_map: {own}: nothing makes {brief(name)}; there are {there}")
                tensor = self._members[index].inputs[own]
                self._used.setdefault(name, []).append((index, tensor))
                self._fit(name, tensor, index)
        for name, tensor in self._ensemble.outputs.items():
            if name not in self._made or self._made[name][2] < 0:
                raise self._wrong(f"output {brief(name)}: no step makes it")
            self._fit(name, tensor, -1)
        for name in self._ensemble.inputs:
            if name not in self._used:
                raise self._wrong(f"input {brief(name)}: no step uses it")

    def _note_makers(self) -> None:
        for name, tensor in self._ensemble.inputs.items():
            if tensor.of:
                raise self._wrong(f"input {brief(name)}: LENGTHS is for inputs of the steps, which get their own")
            self._made[name] = ("the ensemble's input", tensor, -1)
        for index, (step, member) in enumerate(zip(self._steps, self._members, strict=True)):
            self._check_maps(index, step, member)
            for own, name in step.output_map.items():
                if name in self._made:
                    raise self._error(index, f"output_map: {brief(name)} is made by {self._made[name][0]} already")
                self._made[name] = (f"step {index} ({step.model_name})", member.outputs[own], index)

    def _check_maps(self, index: int, step: Step, member: Definition) -> None:
        asked = [name for name, tensor in member.inputs.items() if not tensor.of]
        for key, given, there in (
            ("input_map", step.input_map, asked),
            ("output_map", step.output_map, member.outputs),
        ):
            for name in given:
                if name not in there:
                    raise self._error(index, f"{key}: the model has no {brief(name)}; it has {', '.join(there)}")
        for name in asked:
            if name not in step.input_map:
                raise self._error(index, f"input_map: the model's input {brief(name)} is missing")

    def _fit(self, name: str, tensor: Tensor, scope: int) -> None:
        """The tensor of that name goes into `tensor`, whose dimensions are those of step `scope` (-1: the ensemble)."""
        who, made, maker = self._made[name]
        user = "the ensemble" if scope < 0 else f"step {scope} ({self._steps[scope].model_name})"
        where = f"ensemble {self._ensemble.name!r}: {brief(name)}"
        if made.data_type != tensor.data_type:
            raise InvalidError(f"{where}: {who} makes {made.data_type}, {user} takes {tensor.data_type}")
        if len(made.dims) != len(tensor.dims) or made.batch_dimension != tensor.batch_dimension:
            raise InvalidError(
                f"{where}: {who} makes dims {list(made.dims)} (batch_dimension {made.batch_dimension}), {user} takes "
                f"{list(tensor.dims)} (batch_dimension {tensor.batch_dimension})"
            )
        for one, other in zip(made.dims, tensor.dims, strict=True):
            self._dimensions.unite(
                (maker, one), (scope, other), f"{where}: {who} makes {one!r}, {user} takes {other!r}"
            )

    def _order(self) -> list[int]:
        """Steps so that each comes behind those whose outputs it takes."""
        waits = {
            index: {self._made[name][2] for name in step.input_map.values()} - {-1}
            for index, step in enumerate(self._steps)
        }
        order: list[int] = []
        while waits:
            done = set(order)
            ready = [index for index, on in waits.items() if on <= done]
            if not ready:
                names = ", ".join(f"{index} ({self._steps[index].model_name})" for index in waits)
                raise self._wrong(f"steps {names} wait for each other")
            order += ready
            for index in ready:
                del waits[index]
        return order

    # What comes out

    def _memory(self, index: int) -> dict[str, str]:
        """A member's names for memory → those of the whole."""
        step, member, prefix = self._steps[index], self._members[index], self._prefixes[index]
        names = [*member.inputs, *member.outputs, *member.temporaries]
        return {name: prefix + name for name in names} | step.input_map | step.output_map

    def _inputs(self, renames: Mapping[int, Mapping[str, str]]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in self._ensemble.inputs.items():
            pads = {user.pad_value for _, user in self._used[name]}
            if len(pads) > 1 and any(type(d) is str for d in tensor.dims):
                listed = " and by ".join(map(str, sorted(pads)))
                raise self._wrong(f"input {brief(name)}: its steps want padding by {listed}")
            pad = tensor.pad_value or next(iter(pads))
            found[name] = replace(self._renamed(tensor, renames[-1]), pad_value=pad)
        for index, member in enumerate(self._members):
            for name, tensor in member.inputs.items():
                if not tensor.of:
                    continue
                of = renames[index][tensor.of]
                if of.isdecimal():
                    raise self._error(
                        index, f"input {brief(name)} (LENGTHS): its dimension {tensor.of} is always {of} here"
                    )
                self._add(
                    found, self._prefixes[index] + name, replace(tensor, name=self._prefixes[index] + name, of=of)
                )
        return found

    def _renamed(self, tensor: Tensor, names: Mapping[str, str]) -> Tensor:
        return replace(tensor, dims=tuple(_dim(d, names) for d in tensor.dims))

    def _temporaries(
        self, memory: Sequence[Mapping[str, str]], renames: Mapping[int, Mapping[str, str]]
    ) -> dict[str, Number]:
        found: dict[str, Number] = {}
        for index, member in enumerate(self._members):
            for name, size in member.temporaries.items():
                self._add(found, memory[index][name], _number(size, renames[index]))
            for name, tensor in member.outputs.items():
                if memory[index][name] not in self._ensemble.outputs:
                    dims = [str(_dim(d, renames[index])) for d in tensor.dims]
                    size = Expression(" * ".join(["batch", *dims, str(tensor.item_bytes)]))
                    self._add(found, memory[index][name], size)
        return found

    def _add(self, found: dict[str, Any], name: str, value: Any) -> None:
        if name in found or name in self._ensemble.inputs or name in self._ensemble.outputs:
            raise self._wrong(f"{brief(name)} would name two things; rename one")
        found[name] = value

    def _node(self, node: Node, index: int, memory: Mapping[str, str], names: Mapping[str, str]) -> Node:
        prefix = self._prefixes[index]

        def operand(given: Operand) -> Operand:
            if given.name.startswith(WEIGHTS):
                name = WEIGHTS + prefix + given.name.removeprefix(WEIGHTS)
            else:
                name = memory[given.name]
            part = given.part
            return Operand(name, None if part is None else (_number(part[0], names), _number(part[1], names)))

        def numbers(given: Any) -> Any:
            return None if given is None else tuple(_number(value, names) for value in given)

        def pairs(given: Any) -> Any:
            return None if given is None else tuple((key, _number(value, names)) for key, value in given)

        return replace(
            node,
            kernel=prefix + node.kernel if node.kernel else "",
            operands=tuple(map(operand, node.operands)),
            scalars=pairs(node.scalars) if node.named else numbers(node.scalars),
            grid=numbers(node.grid),
            launch=numbers(node.launch),
            specialization=pairs(node.specialization),
            value=_number(node.value, names),
            label=prefix + node.label if node.label else "",
        )


def _number(value: Any, names: Mapping[str, str]) -> Any:
    return value.renamed(names) if isinstance(value, Expression) else value


def _dim(dim: int | str, names: Mapping[str, str]) -> int | str:
    if type(dim) is int:
        return dim
    found = names[str(dim)]
    return int(found) if re.fullmatch(r"[0-9]+", found) else found


__all__ = ["Flattened", "flatten"]
