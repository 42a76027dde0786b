"""The blocking client's arrays: in the device's memory, and in memory that is shared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import Array, BaseDeviceArray, Handle, Shape
from vkqueue.client.shared import Memory, as_array, part

if TYPE_CHECKING:
    from vkqueue.client.future import Future
    from vkqueue.client.sync import Client


class DeviceArray(BaseDeviceArray):
    """An array in the device's memory. Pass it to kernels; its contents stay there.

    Made by `Client.array`, `zeros` and `empty`. `a[10:20]` and `a[3]` are views along the first axis, that keep the
    memory alive. Unused memory is freed by itself, with the next request.
    """

    __slots__ = ("_client",)

    def __init__(
        self, client: Client, handle: Handle, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0
    ) -> None:
        super().__init__(handle, shape, dtype, offset)
        self._client = client

    def numpy(self) -> Array:
        """Its contents as a new NumPy array."""
        return self._client._finish(self.submit_get())

    get = numpy

    def set(self, value: npt.ArrayLike) -> None:
        """Overwrite its contents by values of the same shape.

        Raises:
            InvalidError: another shape, or a dtype that does not convert.
        """
        self._client._finish(self.submit_set(value))

    def copy_from(self, source: DeviceArray) -> None:
        """Overwrite its contents by those of another array of its shape and dtype, on the device.

        Raises:
            InvalidError: another shape or dtype, overlapping parts of one array, or another connection's array.
        """
        self._client._finish(self.submit_copy_from(source))

    def copy_to(self, target: DeviceArray) -> None:
        """Copy its contents to another array: `target.copy_from(self)`."""
        target.copy_from(self)

    def submit_get(self) -> Future[Array]:
        """Start `get`."""
        return self._client._start(self._client.core.read, self)

    def submit_set(self, value: npt.ArrayLike) -> Future[None]:
        """Start `set`. The values are sent when it returns, and may change."""
        return self._client._start(self._client.core.write, self, self.host_data(value))

    def submit_copy_from(self, source: DeviceArray) -> Future[None]:
        """Start `copy_from`. Work that is started later on either array comes after it."""
        return self._client._start(self._client.core.copy, source, self)

    def submit_copy_to(self, target: DeviceArray) -> Future[None]:
        """Start `copy_to`."""
        return target.submit_copy_from(self)

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

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the contents of a device array can only be copied")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._client.core.lost is None:
            self.free()


class SharedArray(DeviceArray):
    """An array in memory that this process and the device have in common: nothing is sent of it.

    Made by `Client.shared`, `shared_like` and `shared_array`. It is used as any other `DeviceArray`. Kernels on a
    device with memory of its own reach it over the bus: what goes over data more than once is better done on a copy
    (`copy_to`, `copy_from`).

    What `numpy()` returns *is* the memory. Look at it, or write to it, before work with the array is started, and again
    once that work's result has come, or `wait()` or `numpy()` has returned. In between the device may read or write it
    at any moment. Several processes' work is none of its business: only what this client has started is waited for.

    The memory stays for as long as any such view of it does, also after `free`, and when the connection is over.
    """

    __slots__ = ("_memory",)

    def __init__(
        self,
        client: Client,
        handle: Handle,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        *,
        memory: Memory,
    ) -> None:
        super().__init__(client, handle, shape, dtype, offset)
        self._memory = memory

    def wait(self) -> None:
        """Wait for all work that was started with this memory. What became of it is told to those who have its future.

        Raises:
            TimeoutError: it takes longer than the client's `timeout`; it goes on.
        """
        link = self._client.link
        for call in link.start(self._client.core.using, self.handle):
            if not link.wait(call, link.timeout):
                raise TimeoutError(f"work with the array is not done after {link.timeout} s")

    def numpy(self) -> Array:
        """The memory itself, writable, once all work is done that was started with it; see the class.

        Raises:
            InvalidError: it was freed.
            VkqueueError: it could not be made.
            TimeoutError: as `wait`.
        """
        self.handle.check("the shared array")
        self.wait()
        return part(self._memory, self)

    def get(self) -> Array:
        """A copy of its contents, as `numpy`."""
        return self.numpy().copy()

    def set(self, value: npt.ArrayLike) -> None:
        """Overwrite its contents by values of the same shape, once all work is done that was started with it.

        Raises:
            InvalidError: another shape, or a dtype that does not convert.
        """
        data = self.host_data(value)
        self.numpy()[...] = data

    def _part(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> Self:
        return type(self)(self._client, self.handle, shape, dtype, offset, memory=self._memory)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return as_array(self.numpy(), dtype, copy)
