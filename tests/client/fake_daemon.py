"""A daemon without devices: speaks the protocol over a Unix socket and runs its kernels in NumPy.

It has one thread. Tests steer it from outside: `hold` keeps work queued, `pause` keeps it from reading, `drop` and
`send_raw` break connections.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import selectors
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from client.fake_graphs import GraphSession
from client.fake_kernels import KERNELS, read_scalars
from client.fake_models import PAIR, SUMS, ModelSession

from vkqueue.errors import (
    CompileError,
    DependencyError,
    InvalidError,
    JobCancelledError,
    NotFoundError,
    OverloadedError,
    QuotaError,
    UnsupportedError,
    VkqueueError,
)
from vkqueue.wire.forms import Filled
from vkqueue.wire.framing import Limits
from vkqueue.wire.messages import check
from vkqueue.wire.session import ServerConnection

JOBS = frozenset(
    {
        "dispatch", "graph.create", "graph.launch", "model.infer", "model.load",
        "buffer.create", "buffer.write", "buffer.read", "buffer.share", "buffer.copy",
    }
)  # fmt: skip

FREES = frozenset({"buffer.free", "module.unload", "graph.free"})
"""They stay behind the work that was sent before, so that it still finds what it names."""

DEVICE = {
    "index": 0, "uuid": "00" * 16, "name": "NumPy", "type": "cpu", "driver": "fake 1", "api_version": "1.3.230",
    "memory_bytes": 1 << 30, "features": {"shaderInt64": True},
    "limits": {"minStorageBufferOffsetAlignment": 16, "minUniformBufferOffsetAlignment": 64},
}  # fmt: skip


class Session(GraphSession, ModelSession):
    """One connection's state."""

    def __init__(self, sock: socket.socket, daemon: FakeDaemon, number: int) -> None:
        GraphSession.__init__(self)
        ModelSession.__init__(self, daemon.models)
        self.sock = sock
        self.daemon = daemon
        self.number = number
        self.conn = ServerConnection(Limits(max_message_bytes=daemon.max_message_bytes))
        self.out: deque[memoryview] = deque()
        self.modules: dict[int, list[str]] = {}
        self.buffers: dict[int, Any] = {}  # bytearrays, and maps of memory that is shared
        self.last_handle = 0
        self.queue: deque[tuple[int, str, dict[str, Any]]] = deque()
        self.failed: set[int] = set()

    def take(self, requests: list[tuple[int, str, Any]]) -> None:
        for msgid, method, given in requests:
            params: dict[str, Any] = given.whole() if type(given) is Filled else given
            self.daemon.log.append((method, params))
            if method == "hello":
                self.conn.respond(msgid, self.greeting())
                self.conn.ready()
            elif method in JOBS or (self.queue and method in FREES):
                if method in JOBS and len(self.queue) >= self.daemon.max_queued_jobs:
                    self.fail(msgid, OverloadedError("the queue is full"))
                    continue
                self.queue.append((msgid, method, params))
            else:
                self.answer(msgid, method, params)
        if not self.daemon.holding:
            self.run()

    def run(self) -> None:
        while self.queue:
            self.answer(*self.queue.popleft())

    def answer(self, msgid: int, method: str, params: dict[str, Any]) -> None:
        self.file = self.conn.files_of.pop(msgid, None)
        try:
            result = getattr(self, method.replace(".", "_"))(**self.fields(method, params))
        except VkqueueError as error:
            self.fail(msgid, error)
        else:
            self.conn.respond(msgid, result)

    def fields(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        fields = check(method, params)
        return {("as_" if name == "as" else name): value for name, value in fields.items()}

    def fail(self, msgid: int, error: VkqueueError) -> None:
        self.failed.add(msgid)
        self.conn.fail(msgid, error)

    def greeting(self) -> dict[str, Any]:
        daemon = self.daemon
        return {
            "protocol": daemon.protocol, "server": "fake/1", "session": self.number, "device": 0, "devices": [DEVICE],
            "limits": {
                "max_message_bytes": daemon.max_message_bytes, "max_buffers": 100, "max_memory_bytes": 1 << 30,
                "max_queued_jobs": daemon.max_queued_jobs,
            },
        }  # fmt: skip

    def ping(self) -> dict[str, Any]:
        return {}

    def devices(self) -> list[Any]:
        return [DEVICE]

    def stats(self) -> dict[str, Any]:
        return {"clients": len(self.daemon.sessions), "buffers": len(self.buffers)}

    def cancel(self, msgid: int) -> dict[str, Any]:
        for job in self.queue:
            if job[0] == msgid:
                self.queue.remove(job)
                self.fail(msgid, JobCancelledError("cancelled"))
                return {"cancelled": True}
        return {"cancelled": False}

    def number_of(self, as_: int) -> int:
        if as_ <= self.last_handle:
            raise InvalidError(f"handle {as_} is not larger than {self.last_handle}")
        self.last_handle = as_
        return as_

    def module_load(self, as_: int, **params: Any) -> dict[str, Any]:
        handle = self.number_of(as_)
        if "source" in params:
            raise CompileError("error: 'foo' : undeclared identifier", {"language": params["language"]})
        data = bytes(next(iter(params.values())))
        if not data.startswith(b"fake:"):
            raise InvalidError("no SPIR-V: the first word is no magic number")
        names = data[5:].decode().split(",")
        if names == ["refused"]:
            raise UnsupportedError("no device can run a kernel of the module")
        self.modules[handle] = names
        return {"module": handle, "kernels": {name: KERNELS[name][0] for name in names}}

    def module_unload(self, module: int) -> dict[str, Any]:
        self.find(self.modules, module)
        del self.modules[module]
        return {}

    def module_inspect(self, module: int, format: str) -> dict[str, Any]:
        return {"text": f"{format} of {','.join(self.find(self.modules, module))}"}

    def module_save(self, module: int, format: str, layout: str = "") -> dict[str, Any]:
        data = f"{format}{layout}".encode()
        return {"data": data, "meta": "{}"} if format == "tvm_file" else {"data": data}

    def buffer_create(
        self, as_: int, size: int | None = None, data: Any = None, device: int | None = None
    ) -> dict[str, Any]:
        handle = self.number_of(as_)
        content = bytearray(size or 0) if data is None else bytearray(data)
        if sum(map(len, self.buffers.values())) + len(content) > self.daemon.max_memory:
            raise QuotaError("max_memory_bytes", {"quota": "max_memory_bytes"})
        self.buffers[handle] = content
        return {"buffer": handle, "size": len(content)}

    def buffer_share(self, as_: int, size: int, device: int | None = None) -> dict[str, Any]:
        assert self.file is not None, "the request came without its descriptor"
        try:
            handle = self.number_of(as_)
            if size > self.daemon.max_memory:
                raise QuotaError("max_memory_bytes", {"quota": "max_memory_bytes"})
            assert fcntl.fcntl(self.file, fcntl.F_GET_SEALS) & 6 == 6
            self.buffers[handle] = mmap.mmap(self.file, os.fstat(self.file).st_size)
        finally:
            os.close(self.file)
        return {"buffer": handle, "size": size}

    def buffer_copy(
        self, source: int, target: int, source_offset: int, target_offset: int, size: int
    ) -> dict[str, Any]:
        here, there = self.find(self.buffers, source), self.find(self.buffers, target)
        if source == target and abs(source_offset - target_offset) < size:
            raise InvalidError("the ranges overlap")
        there[target_offset : target_offset + size] = here[source_offset : source_offset + size]
        return {}

    def buffer_write(self, buffer: int, data: Any, offset: int = 0) -> dict[str, Any]:
        content = self.find(self.buffers, buffer)
        if offset + len(data) > len(content):
            raise InvalidError("the range lies outside the buffer")
        content[offset : offset + len(data)] = data
        return {}

    def buffer_read(self, buffer: int, offset: int = 0, size: int | None = None) -> dict[str, Any]:
        content = self.find(self.buffers, buffer)
        end = len(content) if size is None else offset + size
        return {"data": bytes(content[offset:end])}

    def buffer_free(self, buffer: int) -> dict[str, Any]:
        self.find(self.buffers, buffer)
        del self.buffers[buffer]
        return {}

    def find(self, table: dict[int, Any], handle: int) -> Any:
        if handle not in table:
            raise NotFoundError(f"no such handle: {handle}")
        return table[handle]

    def dispatch(
        self, module: int, args: list[Any], kernel: str = "", scalars: Any = None, after: Any = (), **rest: Any
    ) -> dict[str, Any]:
        if self.failed.intersection(after):
            raise DependencyError("a request named in after failed")
        names = self.find(self.modules, module)
        wire, run = KERNELS[kernel or names[0]]
        leaves: list[Any] = []
        for binding, entry in zip(wire["bindings"], args, strict=True):
            if binding["count"] != 1:
                assert len(entry["array"]) == binding["count"]
                leaves += [self.entry(binding, e) for e in entry["array"]]
            else:
                leaves.append(self.entry(binding, entry))
        values = read_scalars(wire["scalars"], [] if scalars is None else scalars)
        groups = rest["grid"][0] if "grid" in rest else rest["launch"][0]
        run([np.frombuffer(data, np.uint8) for data, _ in leaves], values, 64 * groups)
        answer: dict[str, Any] = {"outputs": [bytes(data) for data, returned in leaves if returned]}
        if rest.get("timing"):
            answer |= {"timing": {"queued_us": 1, "device_us": None, "total_us": 2}, "device": 0}
        return answer

    def entry(self, binding: dict[str, Any], entry: Any) -> tuple[Any, bool]:
        """(memory, whether it is returned)."""
        if isinstance(entry, int):
            return self.find(self.buffers, entry), False
        if isinstance(entry, list):
            handle, offset, size = entry
            assert offset % 16 == 0
            return memoryview(self.find(self.buffers, handle))[offset : offset + size], False
        [(kind, value)] = entry.items()
        if kind == "values":
            return bytearray(np.array([value["scale"], *value["bounds"]], np.float32).tobytes()), False
        if kind in ("out", "inout") and binding["access"] not in ("write", "read_write"):
            raise InvalidError("the kernel does not write it")
        return bytearray(value), kind != "in"


class FakeDaemon:
    """See the module's text.

    Attributes:
        log: (method, params) of all requests, in order.
        sessions: open connections.
        holding: whether work stays queued.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int = 64 << 20,
        max_queued_jobs: int = 4096,
        max_memory: int = 1 << 30,
        protocol: int = 1,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_queued_jobs = max_queued_jobs
        self.max_memory = max_memory
        self.protocol = protocol
        self.models: dict[str, dict[str, Any]] = {"sums": SUMS, "pair": PAIR}
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.sessions: list[Session] = []
        self.holding = False
        self._paused = False
        self._count = 0
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._inbox: deque[Callable[[], object]] = deque()
        self._near, self._far = socket.socketpair()
        self._selector.register(self._far, selectors.EVENT_READ, None)
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="fake daemon")

    # From the test's thread.

    def start(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread.start()

    def stop(self) -> None:
        self.call(lambda: setattr(self, "_stopped", True), wait=False)
        self._thread.join(10)
        assert not self._thread.is_alive()
        for sock in (self._near, self._far, self._listener):
            if sock is not None:
                sock.close()
        self._selector.close()

    def call(self, action: Callable[[], Any], *, wait: bool = True) -> Any:
        """Run it in the daemon's thread."""
        result: list[Any] = []
        done = threading.Event()

        def run() -> None:
            result.append(action())
            done.set()

        self._inbox.append(run)
        self._near.send(b"!")
        if wait:
            assert done.wait(10)
            return result[0]
        return None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Work stays queued meanwhile."""
        self.call(lambda: setattr(self, "holding", True))
        try:
            yield
        finally:
            self.call(self._let_go)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing is read meanwhile."""
        self.call(lambda: self._set_paused(True))
        try:
            yield
        finally:
            self.call(lambda: self._set_paused(False))

    def drop(self) -> None:
        """Close all connections."""
        self.call(lambda: [self._close(s) for s in list(self.sessions)])

    def send_raw(self, data: bytes) -> None:
        self.call(lambda: [(s.out.append(memoryview(data)), self._flush(s)) for s in list(self.sessions)])

    def queued(self) -> int:
        return int(self.call(lambda: sum(len(s.queue) for s in self.sessions)))

    def buffers(self) -> int:
        return int(self.call(lambda: sum(len(s.buffers) for s in self.sessions)))

    def methods(self) -> list[str]:
        return [method for method, _ in list(self.log)]

    # In the daemon's thread.

    def _let_go(self) -> None:
        self.holding = False
        for session in list(self.sessions):
            session.run()
            self._flush(session)

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        for session in self.sessions:
            self._flush(session)

    def _serve(self) -> None:
        while not self._stopped:
            for key, events in self._selector.select(30):
                if key.fileobj is self._far:
                    self._far.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._move(key.data, events)
            while self._inbox:
                self._inbox.popleft()()
        for session in list(self.sessions):
            self._close(session)

    def _accept(self) -> None:
        assert self._listener is not None
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        self._count += 1
        session = Session(sock, self, self._count)
        self.sessions.append(session)
        self._selector.register(sock, selectors.EVENT_READ, session)

    def _move(self, session: Session, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                count, extra, flags, _ = session.sock.recvmsg_into([session.conn.get_buffer()], 1 << 10)
                assert not flags & socket.MSG_CTRUNC
                for _, _, files in extra:
                    session.conn.files.extend(array("i", files))
                if count == 0:
                    self._close(session)
                    return
                session.take(session.conn.buffer_updated(count))
            self._flush(session)
        except BlockingIOError:
            pass
        except OSError:
            self._close(session)

    def _flush(self, session: Session) -> None:
        if session not in self.sessions:
            return
        session.out.extend(map(memoryview, session.conn.data_to_send()))
        try:
            while session.out:
                count = session.sock.send(session.out[0])
                session.out[0] = session.out[0][count:]
                if not session.out[0]:
                    session.out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._close(session)
            return
        if session.conn.closing and not session.out:
            self._close(session)
            return
        # As the real one: whose answers are not read is not read from.
        reading = not self._paused and not session.out
        events = (selectors.EVENT_WRITE if session.out else 0) | (selectors.EVENT_READ if reading else 0)
        key = self._selector.get_map().get(session.sock.fileno())
        if key is None and events:
            self._selector.register(session.sock, events, session)
        elif events and key is not None:
            self._selector.modify(session.sock, events, session)
        elif key is not None:
            self._selector.unregister(session.sock)

    def _close(self, session: Session) -> None:
        if session not in self.sessions:
            return
        self.sessions.remove(session)
        if session.sock.fileno() in self._selector.get_map():
            self._selector.unregister(session.sock)
        session.sock.close()
        for file in (*session.conn.files, *session.conn.files_of.values()):
            os.close(file)


def socket_path(folder: os.PathLike[str]) -> str:
    return os.path.join(folder, "d.sock")
