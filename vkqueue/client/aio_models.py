"""The asyncio client's models: a shell around `model` and `model_source`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

from vkqueue.client.array import BaseDeviceArray, Handle
from vkqueue.client.core import Core
from vkqueue.client.model import BaseModel, ModelInfo, latest, which
from vkqueue.client.model_source import KernelCode, LoadPlan, WeightData, plan

if TYPE_CHECKING:
    from vkqueue.client.aio_link import AsyncFuture, AsyncLink


class AsyncModel(BaseModel):
    """A model of the daemon's, to be called and awaited: `await model.infer(input_ids=ids)`; see `vkqueue.Model`."""

    async def infer(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str] | None = None,
        priority: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the daemon keeps it
        timing: bool = False,
        **named: Any,
    ) -> Any:
        """Run it, and wait for the result. Cancelled, the request is taken back if its batch was not started yet; see
        `vkqueue.Model.infer`.

        Raises:
            InvalidError: an input is missing, unknown or does not fit; an array is not of the model's dtype or shape.
            OverloadedError: the model's queue is full.
            JobExpiredError: it waited longer than it may.
            VkqueueError: it failed.
        """
        options: dict[str, Any] = {"outputs": outputs, "priority": priority, "timeout": timeout, "timing": timing}
        return await (await self.submit(inputs, **options, **named))

    async def submit(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Mapping[str, BaseDeviceArray] | Iterable[str] | None = None,
        priority: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the daemon keeps it
        timing: bool = False,
        **named: Any,
    ) -> AsyncFuture[Any]:
        """Start it: `future = await model.submit(…)`; see `vkqueue.Model.submit`."""
        client = self._client
        ready = self._prepare({**(inputs or {}), **named}, outputs, priority, timeout, timing)
        if ready.read or ready.written:
            await client._settle(ready.read, [array.handle for array in ready.written])
        future: AsyncFuture[Any] = client._start(
            client.core.request, "model.infer", ready.params, ready.decode, ready.uses
        )
        return await client._written(future)  # type: ignore[no-any-return]

    async def statistics(self) -> dict[str, Any]:
        """What it has done, by the names of Triton's model statistics; without a version of the one that `infer` calls:
        the latest that is ready.
        """
        return latest(await self._client.model_statistics(self.name, self.version))


class AsyncModels:
    """The part of a client that knows models."""

    core: Core
    link: AsyncLink
    _start: Callable[..., AsyncFuture[Any]]
    _written: Callable[..., Any]

    async def model(self, name: str, version: int | None = None) -> AsyncModel:
        """A model that the daemon has; see `vkqueue.Client.model`."""
        config = await self._start(self.core.control, "model.config", which(name, version), dict)
        return AsyncModel(self, name, version, config)

    async def models(self) -> list[ModelInfo]:
        """All versions of all models, also those that could not be loaded, with the reason."""
        return [ModelInfo.from_wire(one) for one in await self._start(self.core.control, "model.list", {}, list)]

    async def model_statistics(self, name: str | None = None, version: int | None = None) -> list[dict[str, Any]]:
        """What models have done, one entry for each version, by the names of Triton's model statistics."""
        params = {key: value for key, value in (("name", name), ("version", version)) if value is not None}
        return await self._start(self.core.control, "model.statistics", params, list)  # type: ignore[no-any-return]

    async def load_model(
        self,
        name: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        kernels: Mapping[str, KernelCode] | None = None,
        weights: Mapping[str, WeightData] | None = None,
        version: int | None = None,
        device: int | None = None,
    ) -> AsyncModel:
        """Load a model into the daemon, for all its clients, and wait until it is ready; see
        `vkqueue.Client.load_model`. Cancelled, the daemon may still load it.
        """
        ready = await anyio.to_thread.run_sync(plan, name, config, kernels, weights, version, device, self.core.payload)
        return await self.model(ready.name, await send(self, ready, device))

    async def unload_model(self, name: str, version: int | None = None) -> None:
        """Unload a model, or one version of it, for all clients; see `vkqueue.Client.unload_model`."""
        await self._start(self.core.request, "model.unload", which(name, version))

    async def _settle(self, read: list[Handle], written: Sequence[Handle] = ()) -> None:
        """Wait for what was started and is in the way (see `Requests.settling`); raise why one could not be made."""
        for call in self.link.start(self.core.settling, read, written):
            await cast("AsyncFuture[Any]", call).wait()
        for handle in (*read, *written):
            handle.check("the device array")


async def send(client: AsyncModels, ready: LoadPlan, device: int | None) -> int:
    """Bring to the daemon what `plan` made of a model, and wait until it is ready there. Raises as `load_model`.

    Args:
        device: where to upload weights; None: the connection's.

    Returns:
        The number of the version that was loaded, of several the highest.
    """
    buffers: list[Handle] = []
    try:
        for chunk in ready.chunks:
            buffers.append(client.link.start(client.core.upload, chunk.size, chunk.parts, device))
            await client._settle(buffers[-1:])  # one at a time, so that no more than one waits to be sent
        await client._settle([*ready.modules, *(array.handle for array in ready.arrays.values())])
        future = client._start(client.core.request, "model.load", ready.message(buffers), dict, ready.arrays.values())
        await client._written(future)
        return int((await future)["version"])
    finally:
        if client.core.lost is None:
            for handle in buffers:
                client.link.start(client.core.release, handle)
