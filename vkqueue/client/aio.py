"""The asyncio client: a shell around `core` whose waiting is awaiting; see `aio_link` for how."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Generator, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from vkqueue.client import address
from vkqueue.client.aio_array import AsyncDeviceArray, AsyncSharedArray
from vkqueue.client.aio_graph import AsyncGraph
from vkqueue.client.aio_link import AsyncFuture, AsyncLink
from vkqueue.client.aio_models import AsyncModels
from vkqueue.client.array import Array, BaseDeviceArray, Handle, Shape, as_shape, form_of, host_array, numpy_dtype
from vkqueue.client.call import Call
from vkqueue.client.core import Core
from vkqueue.client.info import Device, Hello, Limits
from vkqueue.client.launch import LaunchPlan
from vkqueue.client.module import BaseKernel, BaseModule, Saved, Source, load_params, source_params
from vkqueue.client.recording import active
from vkqueue.client.shared import new_memory
from vkqueue.client.spawn import START_S, ensure_running
from vkqueue.errors import ConnectionLostError, ShuttingDownError, VkqueueError

P = ParamSpec("P")
T = TypeVar("T")

# As for the blocking client.
_CONNECT_TIMEOUT = 30.0


class AsyncKernel(BaseKernel):
    """A kernel, to be called and awaited: `await kernel(x, y, n=100, elements=100)`; see `vkqueue.Kernel`."""

    async def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run it, and wait for its results. Cancelled, the work is taken back if it was not submitted yet.

        Raises:
            InvalidError: an argument is wrong.
            VkqueueError: it failed.
        """
        return await (await self.submit(*args, **keywords))

    async def submit(self, *args: Any, **keywords: Any) -> AsyncFuture[Any]:
        """Start it: `future = await kernel.submit(…)`. Arguments are sent when this returns, and may change.

        Raises:
            InvalidError: an argument is wrong.
        """
        client = self._client
        if client.core.recordings and (recording := active(client.core)) is not None:
            recording.call(self._plan, args, keywords)
            return client._nothing()  # type: ignore[no-any-return]
        packed = self._plan.packed(args, keywords)
        if packed is not None:
            future: AsyncFuture[Any] = client.link.start(client.core.dispatch, packed, args)
            return await client._written(future) if client.link.crowded() else future
        launch = self._plan.prepare(args, keywords)
        future = client.link.start(client.core.launch, launch)
        return await client._written(future) if launch.bound.hosts or client.link.crowded() else future

    async def many(self, *args: Any, count: int | None = None, **keywords: Any) -> Any:
        """Run it many times by one request; see `vkqueue.Kernel.many`. Cancelled, the work is taken back if it was not
        submitted yet.

        Raises:
            InvalidError: an argument is wrong, or they are for different numbers of launches.
            VkqueueError: it failed.
        """
        return await (await self.submit_many(*args, count=count, **keywords))

    async def submit_many(self, *args: Any, count: int | None = None, **keywords: Any) -> AsyncFuture[Any]:
        """Start `many`. Arguments are sent when this returns, and may change.

        Raises:
            InvalidError: an argument is wrong.
        """
        launch = self._many(args, count, keywords)
        future: AsyncFuture[Any] = self._client.link.start(self._client.core.launch, launch)
        return await self._client._written(future)  # type: ignore[no-any-return]


class AsyncModule(BaseModule[AsyncKernel]):
    """A loaded module. `module["name"]` is a kernel, `module.kernel` the only one."""

    async def inspect(self, format: str = "spirv-asm") -> str:
        """The disassembly ("spirv-asm") or the reflection ("json")."""
        params = self._params(format=format)
        return str(await self._client._start(self._client.core.request, "module.inspect", params, lambda r: r["text"]))

    async def save(self, format: str = "tvm", layout: str | None = None) -> Saved:
        """The module in a format of TVM's: "tvm", in `layout` "0.20", "0.21" or "0.24", or "tvm_file"."""
        params = self._params(format=format, layout=layout)
        saved: Saved = await self._client._start(self._client.core.request, "module.save", params, Saved.from_wire)
        return saved

    def unload(self) -> None:
        """Free it now; launches that were started still run."""
        self._client.link.start(self._client.core.release, self._handle)


class AsyncClient(AsyncModels):
    """A connection to the daemon; see `vkqueue.aio.connect`. For tasks of one event loop.

    Attributes:
        link, core: the parts; not for use from outside.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.core = Core(self._new_call)
        self.link = AsyncLink(sock, self.core)

    def _new_call(self, decode: Callable[[Any], Any] | None, uses: Any) -> AsyncFuture[Any]:
        return AsyncFuture(self, decode, uses)

    def _nothing(self) -> AsyncFuture[Any]:
        """A call that is done: one that was recorded."""
        call = self._new_call(None, ())
        call.answered(None, None)
        return call

    def _start(self, build: Callable[P, Call[T]], *args: P.args, **kwargs: P.kwargs) -> AsyncFuture[T]:
        """Start a call of the core's."""
        return cast("AsyncFuture[T]", self.link.start(build, *args, **kwargs))  # as `_new_call` made it

    async def _written(self, future: AsyncFuture[T]) -> AsyncFuture[T]:
        """Wait until it is sent."""
        try:
            await self.link.written()
        except BaseException:  # cancelled
            self._abandon(future)
            raise
        return future

    def _abandon(self, future: AsyncFuture[Any]) -> None:
        try:
            self.link.start(self.core.cancel, future)
        except VkqueueError:
            pass  # the connection is over, and the work with it

    @property
    def _hello(self) -> Hello:
        assert self.core.hello is not None  # connect() gives a client out only once it has been greeted
        return self.core.hello

    @property
    def server(self) -> str:
        """The daemon's name and version."""
        return self._hello.server

    @property
    def limits(self) -> Limits:
        """What the daemon grants this connection."""
        return self._hello.limits

    @property
    def device(self) -> Device | None:
        """The device that this connection's work runs on; None if the daemon has none."""
        return self._hello.own_device

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.core.lost is not None

    async def devices(self) -> list[Device]:
        """The daemon's devices."""
        return await self._start(self.core.devices)

    async def stats(self) -> dict[str, Any]:
        """Counters of the whole daemon."""
        return await self._start(self.core.stats)

    async def ping(self) -> None:
        """Return once the daemon has answered."""
        await self._start(self.core.control, "ping", {})

    async def flush(self) -> None:
        """Wait until all that was started is done, in every task.

        Raises:
            VkqueueError: the first failure of an array that could not be made, since the last `flush`; other work's
                is told to those who have its future.
        """
        for call in self.link.start(self.core.outstanding):
            await cast("AsyncFuture[Any]", call).wait()
        self.core.check()

    async def load(self, source: Source, *, entry: str | None = None, name: str | None = None) -> AsyncModule:
        """Load a module by its path or its bytes; see `vkqueue.Client.load`."""
        return await self._load(*await anyio.to_thread.run_sync(load_params, source, entry, name))

    async def compile(
        self,
        source: str,
        language: str = "glsl",
        *,
        entry: str | None = None,
        name: str | None = None,
        defines: Mapping[str, Any] | None = None,
        includes: Mapping[str, str] | None = None,
        target_env: str | None = None,
    ) -> AsyncModule:
        """Compile source text by the daemon, and load the module; see `vkqueue.Client.compile`."""
        params = source_params(
            source, language, entry=entry, name=name, defines=defines, includes=includes, target_env=target_env
        )
        return await self._load(params, name or "")

    async def _load(self, params: dict[str, Any], name: str) -> AsyncModule:
        future = await self._written(self._start(self.core.load, params, self._make_module, name))
        module: AsyncModule = await future
        return module

    def _make_module(self, handle: Handle, name: str, plans: dict[str, LaunchPlan]) -> AsyncModule:
        return AsyncModule(self, handle, name, {kernel: AsyncKernel(self, plan) for kernel, plan in plans.items()})

    async def array(
        self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, device: int | None = None
    ) -> AsyncDeviceArray:
        """A device array with these contents. They are sent when it returns; if there is no memory for them, whoever
        uses the array first is told (or `flush`).
        """
        data = host_array(values, dtype)
        handle = self.link.start(self.core.create, data.shape, data.dtype, data, device)
        await self.link.written()
        return AsyncDeviceArray(self, handle, data.shape, data.dtype)

    async def zeros(self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None) -> AsyncDeviceArray:
        """A device array of zeros."""
        dims, kind = as_shape(shape), numpy_dtype(dtype)
        handle = self.link.start(self.core.create, dims, kind, None, device)
        if self.link.crowded():
            await self.link.written()
        return AsyncDeviceArray(self, handle, dims, kind)

    async def empty(self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None) -> AsyncDeviceArray:
        """As `zeros`: the daemon hands out no memory with another's data in it."""
        return await self.zeros(shape, dtype, device=device)

    def graph(self) -> AsyncGraph:
        """`async with gpu.graph() as g:` record calls of kernels; see `vkqueue.Client.graph`."""
        return AsyncGraph(self, capture=False)

    def capture(self) -> AsyncGraph:
        """`async with gpu.capture() as g:` record ordinary calls; see `vkqueue.Client.capture`."""
        return AsyncGraph(self, capture=True)

    async def shared(
        self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None
    ) -> AsyncSharedArray:
        """An array of zeros in memory that this process and the device have in common; see `vkqueue.Client.shared`."""
        return await self._share(as_shape(shape), numpy_dtype(dtype), None, device)

    async def shared_like(
        self, prototype: npt.ArrayLike | BaseDeviceArray, *, device: int | None = None
    ) -> AsyncSharedArray:
        """As `shared`, of the shape and dtype of another array."""
        shape, dtype = form_of(prototype)
        return await self._share(shape, dtype, None, device)

    async def shared_array(
        self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, device: int | None = None
    ) -> AsyncSharedArray:
        """As `shared`, with these contents."""
        data = host_array(values, dtype)
        return await self._share(data.shape, data.dtype, data, device)

    async def _share(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Array | None, device: int | None
    ) -> AsyncSharedArray:
        memory, file = new_memory(shape, dtype, data)
        handle = self.link.start(self.core.share, memory.size, file, device)
        if self.link.crowded():
            await self.link.written()
        return AsyncSharedArray(self, handle, shape, dtype, memory=memory)

    def close(self) -> None:
        """Close the connection. Work that has not been submitted is dropped, and everything made by it is freed."""
        self.link.close("the client was closed")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.core.lost is not None:
            return f"<AsyncClient closed: {self.core.lost.message}>"
        return f"<AsyncClient of {self.server}: {self.device}>"


class Connecting:
    """What `connect` returns: `async with` it, or `await` it for a client that you close."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        device: int | None,
        timeout: float | None,
        client_name: str | None,
        spawn: bool,
    ) -> None:
        self._paths = address.candidates(path)
        self._device = device
        self._timeout = timeout if timeout is not None else START_S if spawn else _CONNECT_TIMEOUT
        self._name = client_name or address.process_name()
        self._spawn = spawn
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *exc_info: object) -> None:
        if self._client is not None:
            self._client.close()

    async def _connect(self) -> AsyncClient:
        try:
            return await self._greeted(self._paths)
        except (ConnectionLostError, ShuttingDownError):
            if not self._spawn:
                raise
        # Cancelled, it is left to itself: it ends by its time-out, and what it starts is of use to the next one.
        started = await anyio.to_thread.run_sync(ensure_running, self._paths[0], self._timeout, abandon_on_cancel=True)
        return await self._greeted([started])

    async def _greeted(self, paths: list[str]) -> AsyncClient:
        with anyio.fail_after(self._timeout):
            client = AsyncClient(await self._open(paths))
            try:
                await client._start(client.core.greet, self._device, self._name)
            except BaseException:
                client.close()
                raise
        return client

    async def _open(self, paths: list[str]) -> socket.socket:
        tried: list[tuple[str, str]] = []
        for path in paths:
            reason = address.distrusted(path)
            if reason is None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.setblocking(False)
                try:
                    await asyncio.get_running_loop().sock_connect(sock, path)
                    return sock
                except OSError as error:
                    sock.close()
                    reason = error.strerror or str(error)
                except BaseException:
                    sock.close()
                    raise
            tried.append((path, reason))
        raise address.unreachable(tried)


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    device: int | None = None,
    timeout: float | None = None,
    client_name: str | None = None,
    spawn: bool = False,
) -> Connecting:
    """Connect to the daemon: `async with connect() as gpu`, or `gpu = await connect()`.

    Args:
        path: its socket; else $VKQUEUE_SOCKET, else the user's own daemon, else the system's.
        device: index of the device to work on; else the daemon chooses the least loaded.
        timeout: seconds that connecting may take (30 if None). For anything else use `anyio.fail_after` or
            `asyncio.timeout`: work that is cancelled is taken back.
        client_name: who connects, for the daemon's log; else the process's name.
        spawn: start a daemon of the user's own if none answers; see `vkqueue.connect`.

    Raises (when awaited or entered):
        ConnectionLostError: no daemon answers.
        UnsupportedError: it speaks another protocol.
        TimeoutError
    """
    return Connecting(path, device, timeout, client_name, spawn)
