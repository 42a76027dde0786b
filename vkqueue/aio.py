"""The client for asyncio: as `vkqueue`, with everything that waits to be awaited.

    import vkqueue.aio

    async with vkqueue.aio.connect() as gpu:
        saxpy = (await gpu.load("saxpy.spv")).kernel
        y = await saxpy(x, y, a=2.0, n=len(x), elements=len(x))
"""

from vkqueue.client.aio import AsyncClient, AsyncKernel, AsyncModule, connect
from vkqueue.client.aio_array import AsyncDeviceArray, AsyncSharedArray
from vkqueue.client.aio_graph import AsyncGraph
from vkqueue.client.aio_link import AsyncFuture
from vkqueue.client.aio_models import AsyncModel

__all__ = [
    "connect", "AsyncClient", "AsyncModule", "AsyncKernel", "AsyncGraph", "AsyncModel",
    "AsyncDeviceArray", "AsyncSharedArray", "AsyncFuture",
]  # fmt: skip
