"""The asyncio client's arrays: in the device's memory, and in memory that is shared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import Array, BaseDeviceArray, Handle, Shape
from vkqueue.client.shared import Memory, part

if TYPE_CHECKING:
    from vkqueue.client.aio import AsyncClient
    from vkqueue.client.aio_link import AsyncFuture


class AsyncDeviceArray(BaseDeviceArray):
    """An array in the device's memory, as `vkqueue.DeviceArray`."""

    __slots__ = ("_client",)

    def __init__(
        self, client: AsyncClient, handle: Handle, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0
    ) -> None:
        super().__init__(handle, shape, dtype, offset)
        self._client = client

    async def numpy(self) -> Array:
        """Its contents as a new NumPy array."""
        return await self._client._start(self._client.core.read, self)

    get = numpy

    async def set(self, value: npt.ArrayLike) -> None:
        """Overwrite its contents by values of the same shape.

        Raises:
            InvalidError: another shape, or a dtype that does not convert.
        """
        await (await self.submit_set(value))

    async def copy_from(self, source: AsyncDeviceArray) -> None:
        """Overwrite its contents by those of another array of its shape and dtype, on the device.

        Raises:
            InvalidError: another shape or dtype, overlapping parts of one array, or another connection's array.
        """
        await (await self.submit_copy_from(source))

    async def copy_to(self, target: AsyncDeviceArray) -> None:
        """Copy its contents to another array: `target.copy_from(self)`."""
        await target.copy_from(self)

    async def submit_get(self) -> AsyncFuture[Array]:
        """Start `get`."""
        return await self._client._written(self._client._start(self._client.core.read, self))

    async def submit_set(self, value: npt.ArrayLike) -> AsyncFuture[None]:
        """Start `set`. The values are sent when it returns, and may change."""
        return await self._client._written(self._client._start(self._client.core.write, self, self.host_data(value)))

    async def submit_copy_from(self, source: AsyncDeviceArray) -> AsyncFuture[None]:
        """Start `copy_from`. Work that is started later on either array comes after it."""
        return await self._client._written(self._client._start(self._client.core.copy, source, self))

    async def submit_copy_to(self, target: AsyncDeviceArray) -> AsyncFuture[None]:
        """Start `copy_to`."""
        return await target.submit_copy_from(self)

    def free(self) -> None:
        """Free the memory now. Work that was started still has it; views of it are gone too."""
        self._client.link.start(self._client.core.release, self.handle)

    def __getitem__(self, key: object) -> Self:
        shape, offset = self.geometry(key)
        return self._part(shape, self.dtype, offset)

    def view(self, dtype: npt.DTypeLike | None = None, shape: Shape = -1) -> Self:
        """The same memory as another dtype or shape."""
        dims, kind = self.reshaped(shape, dtype)
        return self._part(dims, kind, self.offset)

    def reshape(self, *shape: int) -> Self:
        """The same memory in another shape; one size may be -1."""
        return self.view(None, shape)

    def _part(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Self:
        return type(self)(self._client, self.handle, shape, dtype, offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._client.core.lost is None:
            self.free()


class AsyncSharedArray(AsyncDeviceArray):
    """An array in memory that this process and the device have in common: see `vkqueue.SharedArray`, also for when it
    is safe to look.
    """

    __slots__ = ("_memory",)

    def __init__(
        self,
        client: AsyncClient,
        handle: Handle,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        *,
        memory: Memory,
    ) -> None:
        super().__init__(client, handle, shape, dtype, offset)
        self._memory = memory

    async def wait(self) -> None:
        """Wait for all work that was started with this memory. What became of it is told to those who have its
        future.
        """
        for call in self._client.link.start(self._client.core.using, self.handle):
            await cast("AsyncFuture[Any]", call).wait()

    async def numpy(self) -> Array:
        """The memory itself, writable, once all work is done that was started with it.

        Raises:
            InvalidError: it was freed.
            VkqueueError: it could not be made.
        """
        self.handle.check("the shared array")
        await self.wait()
        return part(self._memory, self)

    async def get(self) -> Array:
        """A copy of its contents, as `numpy`."""
        return (await self.numpy()).copy()

    async def set(self, value: npt.ArrayLike) -> None:
        """Overwrite its contents by values of the same shape, once all work is done that was started with it.

        Raises:
            InvalidError: another shape, or a dtype that does not convert.
        """
        data = self.host_data(value)
        (await self.numpy())[...] = data

    def _part(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Self:
        return type(self)(self._client, self.handle, shape, dtype, offset, memory=self._memory)
