"""The asyncio client's graphs: a shell around `graph`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkqueue.client.array import BaseDeviceArray
from vkqueue.client.graph import BaseGraph

if TYPE_CHECKING:
    from vkqueue.client.aio_link import AsyncFuture


class AsyncGraph(BaseGraph):
    """A graph; see `vkqueue.Graph`. `async with gpu.graph() as g:` records calls that are awaited as ever (they return
    None at once), and `await g(x=x)` runs it.
    """

    async def __aenter__(self) -> AsyncGraph:
        self._recording.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self._recording.end()
        if kind is None:
            client, recording = self._client, self._recording
            await client._start(client.core.create_graph, recording.params(), self._made, recording.fixed)

    async def __call__(self, replace: Mapping[BaseDeviceArray, Any] | None = None, /, **values: Any) -> Any:
        """Run it, and wait for its results. Cancelled, the work is taken back if it was not submitted yet.

        Raises:
            InvalidError: a value is wrong.
            VkqueueError: it failed.
        """
        return await (await self.submit(replace, **values))

    async def submit(
        self, replace: Mapping[BaseDeviceArray, Any] | None = None, /, **values: Any
    ) -> AsyncFuture[Any]:
        """Start it: `future = await g.submit(…)`. Values are sent when this returns, and may change."""
        client, table = self._client, self._ready()
        packed = None if replace else table.packed(values)
        if packed is not None:
            uses = table.captured or [*values.values()]
            future: AsyncFuture[Any] = client.link.start(client.core.dispatch, packed, uses, "graph.launch")
            return await client._written(future) if client.link.crowded() else future
        launch = table.prepare(replace or {}, values)
        future = client.link.start(client.core.launch, launch)
        return await client._written(future) if launch.bound.hosts or client.link.crowded() else future

    def free(self) -> None:
        """Free it now; launches that were started still run."""
        self._client.link.start(self._client.core.release, self._ready().handle)
