"""A service without devices, of the shape that the daemon's shell expects, and clients for tests of the shell.

Run as a program it is `vkqueue` with that service in the place of the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

from vkqueue.config import Config
from vkqueue.daemon.lifecycle import CallSoon, Parts
from vkqueue.daemon.session import Peer, Session
from vkqueue.errors import InternalError, ShuttingDownError, VkqueueError
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection, ServerConnection

BLOCK = bytes(range(256)) * (256 * 1024)
"""64 MiB to answer with."""


class EchoService:
    """Answers at once, but for `dispatch`.

    `buffer.read` answers with `size` bytes, `buffer.write` takes any number, `module.unload` raises, `dispatch` stays
    until `finish`, or takes `deadline_ms`. `buffer.free` breaks the device, with the handle 2 for good.

    Attributes:
        closed: sessions that have ended; `ended` is set by each.
        readable: what `may_read` says.
        refusal: raised by `open_session`.
    """

    def __init__(self, config: Config | None = None) -> None:
        limits = (config or Config()).limits
        self.limits = Limits(max_message_bytes=limits.max_message_bytes)
        self.healthy = True
        self.fatal: VkqueueError | None = None
        self.sessions: dict[int, Session] = {}
        self.closed: list[Session] = []
        self.ended = asyncio.Event()
        self.jobs: list[tuple[Session, int]] = []
        self.bursts: list[int] = []
        self.received = 0
        self.readable = True
        self.refusal: VkqueueError | None = None
        self.draining = False
        self.stopped = False
        self._ids = 0
        self._on_idle: Callable[[], None] = lambda: None
        self._on_health: Callable[[bool], None] = lambda healthy: None

    # What the life cycle calls

    def start(self, on_started: Callable[[], None], on_health: Callable[[bool], None]) -> None:
        self._on_health = on_health
        on_started()

    def drain(self, on_idle: Callable[[], None]) -> None:
        self.draining, self._on_idle = True, on_idle
        self._check_idle()

    def fail_queued(self) -> None:
        for session, msgid in self.jobs:
            session.conn.fail(msgid, ShuttingDownError("stopped before it ran"))
            session.wake()
        self.jobs.clear()

    def stop(self, timeout_s: float) -> None:
        self.stopped = True

    # What connections call

    def open_session(self, peer: Peer, wake: Callable[[], None]) -> Session:
        if self.refusal is not None:
            raise self.refusal
        self._ids += 1
        session = Session(self._ids, ServerConnection(self.limits), peer, wake)
        self.sessions[session.id] = session
        return session

    def close_session(self, session: Session) -> None:
        del self.sessions[session.id]
        self.closed.append(session)
        self.ended.set()
        self.jobs = [job for job in self.jobs if job[0] is not session]
        self._check_idle()

    def may_read(self, session: Session) -> bool:
        return self.readable

    def handle(self, session: Session, requests: list[tuple[int, str, dict[str, Any]]]) -> None:
        for msgid, method, params in requests:
            if method == "hello":
                session.conn.ready()
                session.conn.respond(msgid, {"session": session.id, "limits": {}})
            elif method == "module.unload":
                raise RuntimeError("scripted")
            elif method == "dispatch":
                self._dispatch(session, msgid, params)
            else:
                session.conn.respond(msgid, self._result(method, params))
        self.bursts.append(len(requests))
        session.wake()

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "buffer.read":
            return {"data": memoryview(BLOCK)[: params["size"]]}
        if method == "buffer.write":
            self.received += len(params["data"])
        elif method == "buffer.free":
            self.break_device(for_good=params["buffer"] == 2)
        return {}

    def _dispatch(self, session: Session, msgid: int, params: dict[str, Any]) -> None:
        if self.draining:
            session.conn.fail(msgid, ShuttingDownError("takes no new work"))
            return
        self.jobs.append((session, msgid))
        if "deadline_ms" in params:
            asyncio.get_running_loop().call_later(params["deadline_ms"] / 1e3, self.finish, session, msgid)

    # What tests call

    def finish(self, session: Session, msgid: int) -> None:
        """Answer a dispatch."""
        if (session, msgid) in self.jobs:
            self.jobs.remove((session, msgid))
            session.conn.respond(msgid, {"outputs": []})
            session.wake()
            self._check_idle()

    def break_device(self, for_good: bool = False) -> None:
        self.healthy = False
        if for_good:
            self.fatal = InternalError("the device is gone")
        self._on_health(False)

    def mend_device(self) -> None:
        self.healthy = True
        self._on_health(True)

    def _check_idle(self) -> None:
        if self.draining and not self.jobs:
            self._on_idle()


def build_echo(config: Config, environ: MutableMapping[str, str], call_soon: CallSoon) -> Parts:
    """In the place of `lifecycle.build_parts`."""
    return Parts(EchoService(config))


class LoopClient:
    """A client on the test's own loop, over the same wire code as the real ones."""

    def __init__(self, client: socket.socket) -> None:
        client.setblocking(False)
        self.socket = client
        self.conn = ClientConnection(Limits())
        self.answers: dict[int, Any] = {}

    @classmethod
    async def connect(cls, path: str, hello: bool = True) -> LoopClient:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, path)
        self = cls(client)
        if hello:
            await self.hello()
        return self

    async def hello(self) -> None:
        await self.call("hello", protocol=1, client="test")

    def request(self, method: str, **params: Any) -> int:
        return self.conn.request(method, params)

    async def send(self) -> None:
        for chunk in self.conn.data_to_send():
            await asyncio.get_running_loop().sock_sendall(self.socket, chunk)

    async def receive(self) -> bool:
        """Read once; False at the end of the stream."""
        count = await asyncio.get_running_loop().sock_recv_into(self.socket, self.conn.get_buffer())
        for msgid, error, result in self.conn.buffer_updated(count) if count else ():
            self.answers[msgid] = result if error is None else error
        return count > 0

    async def wait(self, msgid: int) -> Any:
        while msgid not in self.answers:
            if not await self.receive():
                raise self.conn.fault or ConnectionError("closed without a word")
        answer = self.answers.pop(msgid)
        if isinstance(answer, VkqueueError):
            raise answer
        return answer

    async def call(self, method: str, **params: Any) -> Any:
        msgid = self.request(method, **params)
        sending = asyncio.ensure_future(self.send())
        answer = await self.wait(msgid)
        await sending
        return answer

    async def until_closed(self) -> VkqueueError | None:
        """Read to the end of the stream, however it comes; what the daemon said of it."""
        with contextlib.suppress(ConnectionError):
            while await self.receive():
                pass
        return self.conn.fault

    def close(self) -> None:
        self.socket.close()


if __name__ == "__main__":
    from vkqueue.cli import main
    from vkqueue.daemon import lifecycle

    lifecycle.build_parts = build_echo
    main()
