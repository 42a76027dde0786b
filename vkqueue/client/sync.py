"""The blocking client: a shell that waits; see `link` for how, and `core` for what is sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from vkqueue.client import address
from vkqueue.client.array import Array, BaseDeviceArray, Handle, Shape, as_shape, form_of, host_array, numpy_dtype
from vkqueue.client.call import Call
from vkqueue.client.core import Core
from vkqueue.client.future import Future
from vkqueue.client.info import Device, Hello, Limits
from vkqueue.client.launch import LaunchPlan
from vkqueue.client.link import Link
from vkqueue.client.module import BaseKernel, BaseModule, Saved, Source, load_params, source_params
from vkqueue.client.recording import active
from vkqueue.client.shared import new_memory
from vkqueue.client.spawn import START_S, ensure_running
from vkqueue.client.sync_array import DeviceArray, SharedArray
from vkqueue.client.sync_graph import Graph
from vkqueue.client.sync_models import Models
from vkqueue.errors import ConnectionLostError, ShuttingDownError

P = ParamSpec("P")
T = TypeVar("T")

# Arbitrary; a daemon greets within a millisecond, or after it has started its devices.
_CONNECT_TIMEOUT = 30.0


class Kernel(BaseKernel):
    """A kernel, to be called: `kernel(x, y, n=100, elements=100)`.

    Arguments are given by place in the order of `bindings`, or by name where the module has names; scalars by
    keyword, or together as `scalars=[…]`. The launch is `grid=` in work groups, or `elements=` in invocations
    (rounded up to whole groups); both take an integer or a tuple of up to three.

    An argument can be

    - a `DeviceArray`: used where it is; what the kernel writes stays on the device;
    - a NumPy array (or bytes): sent along. If the kernel writes the binding, the result is returned as a new array,
      and the one given is left as it is (`inplace=True`: the result is stored in it instead). The contents are
      sent only if the kernel reads them: of a binding that it only writes, what it leaves out is 0;
    - `vkqueue.out(shape, dtype)`, or a size in bytes: a result, zero at first;
    - for a uniform block, a dict of its members;
    - for an array of descriptors, a list of these.

    A call returns the results in the order of the arguments: None, one array, or a tuple.

    Further keywords: `specialization={name or id: value}`, `priority` (-100 to 100, among this connection's work),
    `deadline` in seconds until it must have been submitted, `after=[future, …]` that must have succeeded,
    `timing=True` (the call returns (value, Timing)), `device`, `label`, and `launch` for TVM's launch parameters.
    """

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run it, and wait for its results.

        Raises:
            InvalidError: an argument is wrong.
            TimeoutError: not done within the client's `timeout`; it is cancelled.
            VkqueueError: it failed.
        """
        return self._client._finish(self.submit(*args, **keywords))

    def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
        """Start it. Arguments are sent when this returns, and may change.

        Raises:
            InvalidError: an argument is wrong.
        """
        client = self._client
        if client.core.recordings and (recording := active(client.core)) is not None:
            recording.call(self._plan, args, keywords)
            return client._nothing()  # type: ignore[no-any-return]
        packed = self._plan.packed(args, keywords)
        if packed is not None:
            return client.link.start(client.core.dispatch, packed, args)  # type: ignore[no-any-return]
        return client.link.start(client.core.launch, self._plan.prepare(args, keywords))  # type: ignore[no-any-return]

    def many(self, *args: Any, count: int | None = None, **keywords: Any) -> Any:
        """Run it many times by one request, and wait until all launches are done.

        They take effect one after the other; those that share no memory, or only read what they share, run together. It
        is for small kernels: a launch costs the daemon about a microsecond.

        What all launches share is given as in a call. What differs from launch to launch: device arrays by
        `vkqueue.each(…)` or as a list of them, scalars as NumPy arrays with an element for each launch, and extents
        (`grid=`, `elements=`) as a NumPy array of integers, (launches,) or (launches, 1 to 3). So

            rows = gpu.zeros((1000, 64), "float32")
            scale.many(x, vkqueue.each(rows), k=numpy.arange(1000), elements=64)

        Nothing is returned (but times, with `timing=True`): let the kernel write device arrays. If a launch is wrong
        the error says which, and none has run. `count` says how many where nothing differs.

        Raises:
            InvalidError: an argument is wrong, or they are for different numbers of launches.
            TimeoutError: not done within the client's `timeout`; it is cancelled.
            VkqueueError: it failed.
        """
        return self._client._finish(self.submit_many(*args, count=count, **keywords))

    def submit_many(self, *args: Any, count: int | None = None, **keywords: Any) -> Future[Any]:
        """Start `many`. Arguments are sent when this returns, and may change.

        Raises:
            InvalidError: an argument is wrong.
        """
        launch = self._many(args, count, keywords)
        return self._client.link.start(self._client.core.launch, launch)  # type: ignore[no-any-return]


class Module(BaseModule[Kernel]):
    """A loaded module. `module["name"]` is a kernel, `module.kernel` the only one."""

    def inspect(self, format: str = "spirv-asm") -> str:
        """The disassembly ("spirv-asm") or the reflection ("json")."""
        params = self._params(format=format)
        return str(self._client._call(self._client.core.request, "module.inspect", params, lambda r: r["text"]))

    def save(self, format: str = "tvm", layout: str | None = None) -> Saved:
        """The module in a format of TVM's: "tvm", in `layout` "0.20", "0.21" or "0.24", or "tvm_file"."""
        params = self._params(format=format, layout=layout)
        saved: Saved = self._client._call(self._client.core.request, "module.save", params, Saved.from_wire)
        return saved

    def unload(self) -> None:
        """Free it now; launches that were started still run."""
        self._client.link.start(self._client.core.release, self._handle)


class Client(Models):
    """A connection to the daemon; see `vkqueue.connect`.

    Several threads may use it. It belongs to the process that made it: a forked child has to connect itself. After
    an interrupt (Ctrl-C) it works on, or, if that came while a message was being moved, it is closed.

    Attributes:
        link, core: the parts; not for use from outside.
    """

    def __init__(self, sock: socket.socket, timeout: float | None = None) -> None:
        self.core = Core(self._new_call)
        self.link = Link(sock, self.core, timeout)

    def _new_call(self, decode: Callable[[Any], Any] | None, uses: Any) -> Future[Any]:
        return Future(self, decode, uses)

    def _nothing(self) -> Future[Any]:
        """A call that is done: one that was recorded."""
        call = self._new_call(None, ())
        call.answered(None, None)
        return call

    def _start(self, build: Callable[P, Call[T]], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call of the core's."""
        return cast("Future[T]", self.link.start(build, *args, **kwargs))  # as `_new_call` made it

    def _call(self, build: Callable[P, Call[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Start, and wait within the client's timeout."""
        return self._finish(self._start(build, *args, **kwargs))

    def _finish(self, future: Future[T]) -> T:
        try:
            return future.result(self.link.timeout)
        except BaseException:
            if not future.finished:  # out of time, or interrupted: nobody waits for it any more
                self.link.abandon(future)
            raise

    @property
    def timeout(self) -> float | None:
        """Seconds that any blocking call may take; None: as long as it takes."""
        return self.link.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self.link.timeout = seconds

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

    def devices(self) -> list[Device]:
        """The daemon's devices."""
        return self._call(self.core.devices)

    def stats(self) -> dict[str, Any]:
        """Counters of the whole daemon."""
        return self._call(self.core.stats)

    def ping(self) -> None:
        """Return once the daemon has answered."""
        self._call(self.core.control, "ping", {})

    def flush(self) -> None:
        """Wait until all that was started is done, in every thread.

        Raises:
            VkqueueError: the first failure of an array that could not be made, since the last `flush`; other work's
                is told to those who have its future.
        """
        for call in self.link.start(self.core.outstanding):
            self.link.wait(call, None)
        self.core.check()

    def batch(self) -> AbstractContextManager[None]:
        """`with gpu.batch():` what this thread starts inside leaves together, which saves a system call for each.

        It leaves at the end, when the thread waits for something, or once 64 KiB have come together.
        """
        return self.link.gather()

    def load(self, source: Source, *, entry: str | None = None, name: str | None = None) -> Module:
        """Load a module by its path or its bytes: SPIR-V, one of TVM's formats, or a library that TVM exported.

        A path may also be that of a source file (.comp, .glsl, .hlsl, .slang), which the daemon compiles with what it
        includes from its folder.

        Args:
            entry: the only entry point to load.
            name: for messages and labels; else the file's.

        Raises:
            InvalidError, UnsupportedError: the module is broken; it has no kernel that a device can run.
            CompileError: a source does not compile.
            OSError: a file cannot be read.
        """
        params, title = load_params(source, entry, name)
        module: Module = self._call(self.core.load, params, self._make_module, title)
        return module

    def compile(
        self,
        source: str,
        language: str = "glsl",
        *,
        entry: str | None = None,
        name: str | None = None,
        defines: Mapping[str, Any] | None = None,
        includes: Mapping[str, str] | None = None,
        target_env: str | None = None,
    ) -> Module:
        """Compile source text ("glsl", "hlsl", "slang") by the daemon, and load the module.

        Args:
            includes: texts by the name that the source includes them by; the daemon opens no files.

        Raises:
            CompileError: with the compiler's text.
            UnsupportedError: the daemon has no compiler for the language.
        """
        params = source_params(
            source, language, entry=entry, name=name, defines=defines, includes=includes, target_env=target_env
        )
        module: Module = self._call(self.core.load, params, self._make_module, name or "")
        return module

    def _make_module(self, handle: Handle, name: str, plans: dict[str, LaunchPlan]) -> Module:
        return Module(self, handle, name, {kernel: Kernel(self, plan) for kernel, plan in plans.items()})

    def array(
        self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, device: int | None = None
    ) -> DeviceArray:
        """A device array with these contents. They are sent when it returns; if there is no memory for them, whoever
        uses the array first is told (or `flush`).
        """
        data = host_array(values, dtype)
        return self._create(data.shape, data.dtype, data, device)

    def zeros(self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None) -> DeviceArray:
        """A device array of zeros."""
        return self._create(as_shape(shape), numpy_dtype(dtype), None, device)

    def empty(self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None) -> DeviceArray:
        """As `zeros`: the daemon hands out no memory with another's data in it."""
        return self.zeros(shape, dtype, device=device)

    def shared(self, shape: Shape, dtype: npt.DTypeLike, *, device: int | None = None) -> SharedArray:
        """An array of zeros in memory that this process and the device have in common. If it cannot be had, whoever
        uses the array first is told (or `flush`).

        Raises:
            OSError: this process has too many files open.
        """
        return self._share(as_shape(shape), numpy_dtype(dtype), None, device)

    def shared_like(self, prototype: npt.ArrayLike | BaseDeviceArray, *, device: int | None = None) -> SharedArray:
        """As `shared`, of the shape and dtype of another array."""
        shape, dtype = form_of(prototype)
        return self._share(shape, dtype, None, device)

    def shared_array(
        self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, *, device: int | None = None
    ) -> SharedArray:
        """As `shared`, with these contents."""
        data = host_array(values, dtype)
        return self._share(data.shape, data.dtype, data, device)

    def _share(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Array | None, device: int | None
    ) -> SharedArray:
        memory, file = new_memory(shape, dtype, data)
        handle = self.link.start(self.core.share, memory.size, file, device)
        return SharedArray(self, handle, shape, dtype, memory=memory)

    def _create(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], data: Array | None, device: int | None
    ) -> DeviceArray:
        handle = self.link.start(self.core.create, shape, dtype, data, device)
        return DeviceArray(self, handle, shape, dtype)

    def graph(self) -> Graph:
        """`with gpu.graph() as g:` record calls of kernels on `g.input(…)`, `g.output(…)` and `g.temporary(…)`, instead
        of running them; see `Graph`. Device arrays among the arguments are the same in every launch.
        """
        return Graph(self, capture=False)

    def capture(self) -> Graph:
        """`with gpu.capture() as g:` record ordinary calls of kernels on device arrays, to run them again together.

        What is done inside otherwise, such as reading an array, happens at once and is not part of the graph.
        """
        return Graph(self, capture=True)

    def close(self) -> None:
        """Close the connection. Work that has not been submitted is dropped, and everything made by it is freed."""
        self.link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.core.lost is not None:
            return f"<Client closed: {self.core.lost.message}>"
        return f"<Client of {self.server}: {self.device}>"


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    device: int | None = None,
    timeout: float | None = None,
    client_name: str | None = None,
    spawn: bool = False,
) -> Client:
    """Connect to the daemon.

    Args:
        path: its socket; else $VKQUEUE_SOCKET, else the user's own daemon, else the system's.
        device: index of the device to work on; else the daemon chooses the least loaded.
        timeout: seconds that any blocking call may take, connecting included; None: as long as it takes (30 s to
            connect). What does not end in time raises TimeoutError and is cancelled.
        client_name: who connects, for the daemon's log; else the process's name.
        spawn: start a daemon of the user's own if none answers (one, however many ask at once). It leaves by itself
            a minute after its last client; its log is beside its socket, or in $XDG_STATE_HOME/vkqueue.

    Raises:
        ConnectionLostError: no daemon answers.
        UnsupportedError: it speaks another protocol.
        TimeoutError
    """
    paths = address.candidates(path)
    limit = timeout if timeout is not None else START_S if spawn else _CONNECT_TIMEOUT
    name = client_name or address.process_name()
    try:
        return _greeted(Client(_open(paths, limit), timeout), device, name, limit)
    except (ConnectionLostError, ShuttingDownError):
        if not spawn:
            raise
    started = ensure_running(paths[0], limit)
    return _greeted(Client(_open([started], limit), timeout), device, name, limit)


def _greeted(client: Client, device: int | None, name: str, limit: float) -> Client:
    try:
        client._start(client.core.greet, device, name).result(limit)
    except BaseException:
        client.close()
        raise
    return client


def _open(paths: list[str], timeout: float) -> socket.socket:
    tried: list[tuple[str, str]] = []
    for path in paths:
        reason = address.distrusted(path)
        if reason is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout)
                sock.connect(path)
                return sock
            except OSError as error:
                sock.close()
                reason = error.strerror or str(error)
            except BaseException:
                sock.close()
                raise
        tried.append((path, reason))
    raise address.unreachable(tried)
