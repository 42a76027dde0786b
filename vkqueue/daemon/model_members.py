"""An ensemble's members, put together with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from vkqueue.errors import InvalidError
from vkqueue.models.definition import Definition, Step
from vkqueue.models.ensemble import flatten
from vkqueue.models.source import ModelSource


async def with_members(
    definition: Definition,
    source: ModelSource,
    find: Callable[[Step], Awaitable[ModelSource]],
    within: tuple[str, ...] = (),
) -> tuple[Definition, ModelSource]:
    """An ensemble as one model, with the kernels and weights of all its steps; any other model as it is.

    Args:
        find: what a step's model is made from.
        within: ensembles of which this one is a step.

    Raises:
        VkqueueError: a step is not there, or does not fit.
    """
    if not definition.steps:
        return definition, source
    within = (*within, definition.name)
    members = []
    for step in definition.steps:
        if step.model_name in within:
            raise InvalidError(f"ensemble {definition.name!r}: its step {step.model_name!r} has it as a step itself")
        member = await find(step)
        found = await asyncio.to_thread(Definition.from_map, member.config, member.name)
        members.append(await with_members(found, member, find, within))
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


__all__ = ["with_members"]
