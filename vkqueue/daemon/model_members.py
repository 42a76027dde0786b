"""An ensemble's members, put together with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from vkqueue.errors import InvalidError, TooLargeError
from vkqueue.models.definition import Definition, Step
from vkqueue.models.ensemble import flatten
from vkqueue.models.source import ModelSource

# Of ensembles in ensembles. Arbitrary.
MAX_DEPTH = 16

Member = tuple[Definition, ModelSource]


async def with_members(
    definition: Definition, source: ModelSource, find: Callable[[Step], Awaitable[ModelSource]], max_nodes: int
) -> Member:
    """An ensemble as one model, with the kernels and weights of all its steps; any other model as it is.

    Args:
        find: what a step's model is made from; asked once for each model, however many steps it is.
        max_nodes: of the whole.

    Raises:
        VkqueueError: a step is not there, or does not fit.
    """
    return await _Gathering(find, max_nodes).flat(definition, source, ())


class _Gathering:
    """The members of one ensemble. One that several steps name is read and put together once: with ensembles in
    ensembles there are far more steps than models."""

    def __init__(self, find: Callable[[Step], Awaitable[ModelSource]], max_nodes: int) -> None:
        self._find = find
        self._max_nodes = max_nodes
        self._known: dict[tuple[str, int], Member] = {}

    async def flat(self, definition: Definition, source: ModelSource, within: tuple[str, ...]) -> Member:
        """As `with_members`; `within`: ensembles of which this one is a step."""
        if not definition.steps:
            return definition, source
        within = (*within, definition.name)
        if len(within) > MAX_DEPTH:
            raise InvalidError(f"ensemble {within[0]!r}: ensembles are steps of each other over {MAX_DEPTH} deep")
        members = [await self._member(step, within) for step in definition.steps]
        nodes = sum(len(member.nodes) for member, _ in members)
        if nodes > self._max_nodes:
            raise TooLargeError(
                f"ensemble {definition.name!r}: the {nodes} nodes of its steps are over max_graph_nodes "
                f"({self._max_nodes})",
                {"nodes": nodes, "max_graph_nodes": self._max_nodes},
            )
        flat = await asyncio.to_thread(flatten, definition, [member for member, _ in members])
        kernels = {
            name: replace(members[index][1].kernels[own], name=name)
            for name, (index, own) in flat.kernels.items()
            if own in members[index][1].kernels
        }
        weights = {
            prefix + name: weight
            for prefix, (_, member) in zip(flat.prefixes, members, strict=True)
            for name, weight in member.weights.items()
        }
        return flat.definition, replace(source, kernels=kernels, weights=weights)

    async def _member(self, step: Step, within: tuple[str, ...]) -> Member:
        if step.model_name in within:
            raise InvalidError(f"ensemble {within[-1]!r}: its step {step.model_name!r} has it as a step itself")
        key = step.model_name, step.model_version
        if key not in self._known:
            source = await self._find(step)
            found = await asyncio.to_thread(Definition.from_map, source.config, source.name)
            self._known[key] = await self.flat(found, source, within)
        return self._known[key]


__all__ = ["MAX_DEPTH", "with_members"]
