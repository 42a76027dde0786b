"""Loading what a model's version policy selects from the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkqueue.errors import InvalidError, VkqueueError

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.models import Models


async def load_selected(models: Models, name: str, number: int | None, device: Device | None) -> list[int]:
    """Load a version from the repository, or all that the model's policy selects; others of it are unloaded then.

    Each is loaded by itself, as when the daemon starts: one that fails keeps none of the others from being loaded.

    Returns:
        The versions that were loaded, rising.

    Raises:
        VkqueueError: some could not be loaded: which, and why the first could not. The rest is loaded then, and those
            that would be unloaded stay as they were.
    """
    if number is not None or models.repository is None:
        return [(await models.load_stored(name, number or 1, device)).number]
    found = await asyncio.to_thread(models.repository.look, name)
    if found.reason:
        await asyncio.to_thread(models.repository.read, name)  # says the same, as an error
        raise InvalidError(found.reason)
    loaded: list[int] = []
    failed: dict[int, VkqueueError] = {}
    for version in found.versions:
        try:
            loaded.append((await models.load_stored(name, version, device)).number)
        except VkqueueError as error:
            failed[version] = error
    if failed:
        raise _not_all(name, loaded, failed)
    for other in [version.number for version in models.table.of(name) if version.number not in loaded]:
        await models.unload(name, other)
    return loaded


def _not_all(name: str, loaded: list[int], failed: Mapping[int, VkqueueError]) -> VkqueueError:
    """An error of the first one's class that names all of them."""
    first, error = next(iter(failed.items()))
    if len(failed) == 1:
        text = f"version {first} could not be loaded: {error.message}"
    else:
        text = (
            f"versions {_listed(failed)} could not be loaded; {first}: {error.message} (`model.list` has all reasons)"
        )
    rest = f"; loaded: {_listed(loaded)}" if loaded else ""
    data = {**(error.data or {}), "failed": list(failed), "loaded": loaded}
    return type(error)(f"model {name!r}: {text}{rest}", data)


def _listed(numbers: Mapping[int, object] | list[int]) -> str:
    return ", ".join(map(str, numbers))


__all__ = ["load_selected"]
