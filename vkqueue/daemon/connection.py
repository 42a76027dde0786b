"""Moves the bytes of one client: socket → session.conn → service, and session.conn → socket. No parsing here.

The loop, its signals, cancel scopes and task groups are anyio's; the byte mover stands on the loop's readiness
call-backs and the bare socket, because that measures best (CPython 3.11, 2 busy cores, one interleaved run, the same
minimal message splitter in each):

| | echo of 60 bytes, p50 | 4 / 64 MiB to the daemon | 4 / 64 MiB to the client |
|---|---|---|---|
| blocking sockets, the bare limit | 42 µs | 5.0 / 1.2 GB/s | 9.1 / 5.5 GB/s |
| asyncio BufferedProtocol and transport | 51 µs | 3.9 / 1.4 GB/s | 3.4 / 1.2 GB/s |
| this | 52 µs | 5.9 / 1.4 GB/s | 7.9 / 5.6 GB/s |

asyncio's transport copies what a partial `send` leaves over; here `sendmsg` takes the buffers as they are. What held
64 MiB to the daemon down in all three was the kernel's handing out of fresh small pages; `wire.framing` asks for huge
ones. All together, on the idle machine (bare sockets in brackets): a `ping` takes 33 µs (13), 64 MiB come at 3.8 GB/s
(4.6) and go at 4.1 (4.3), 256 pipelined pings run at 260 thousand a second.

No timer runs unless output is stuck, so a connection at rest wakes nobody.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from array import array
from collections.abc import Callable
from typing import Protocol

import anyio

from vkqueue.daemon.session import Peer, Session
from vkqueue.errors import InternalError, ProtocolError, VkqueueError
from vkqueue.wire.codec import pack
from vkqueue.wire.connection import NOTIFICATION
from vkqueue.wire.session import Request

log = logging.getLogger("vkqueue.daemon")

# One turn of the loop moves about so many bytes for one client before others get theirs: 0.2 ms at memory speed.
TURN_BYTES = 1024 * 1024
# A read that brought so much is likely to be part of a large payload, so the next is tried without asking the
# selector (a third more throughput); after a small one that would cost a failing system call for each message.
LARGE_READ_BYTES = 64 * 1024
# Buffers for one sendmsg: large ones are few, small ones come joined.
SEND_BUFFERS = 16
# The kernel's buffer towards the client, cut to net.core.wmem_max: fewer, larger wake-ups of its reader.
SEND_BUFFER_BYTES = 1024 * 1024


# Descriptors of one client that no request has taken yet (arbitrary).
MOST_FILES = 16
_EXTRA_BYTES = socket.CMSG_SPACE(MOST_FILES * 4)


class ClientService(Protocol):
    """What a connection wants of the service (daemon.service.Service, or a stub in tests)."""

    def open_session(self, peer: Peer, wake: Callable[[], None]) -> Session:
        """A session for a new client. `wake` says that there is output; on the loop only, cheap to repeat.

        Raises:
            VkqueueError: the client is refused with it.
        """

    def handle(self, session: Session, requests: list[Request]) -> None:
        """Take requests in order; must neither block nor raise."""

    def may_read(self, session: Session) -> bool:
        """False while the session is over a bound; `session.resume` is called when it may be read again."""

    def close_session(self, session: Session) -> None:
        """The client is gone."""


def _nothing() -> None:
    pass


def error_notice(error: VkqueueError) -> bytes:
    """The notification that tells a client why its connection ends."""
    return pack([NOTIFICATION, "error", [error.to_wire()]])


class HangUps:
    """Notices that a client has gone while its connection is not read from.

    A reader would see the end of the stream only behind the unread bytes, and a client's queued jobs have to go as
    soon as it does. An epoll of our own, watched by the loop, reports hang-ups and nothing else.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._ready)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the other end has closed."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, 0)

    def forget(self, fd: int) -> None:
        """Watch no longer; nothing if it was not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching everything."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _ready(self) -> None:
        for fd, _ in self._epoll.poll(0):
            callback = self._callbacks[fd]
            self.forget(fd)
            callback()


class Connection:
    """One client's socket. Lives on the loop thread; every method is for that thread.

    Reading stops while the service or the unread answers are over their bound, and starts again below it; a
    client that takes nothing of its output for `write_timeout_s` is disconnected.

    Args:
        client: connected, non-blocking; closed by the connection.
        max_output_bytes: answers that may wait for the client before it is read from no more.
        hang_ups: shared by all connections.
        on_closed: called once, last.

    Raises:
        VkqueueError: the service takes no such client. The socket is then still the caller's.
    """

    def __init__(
        self,
        client: socket.socket,
        peer: Peer,
        service: ClientService,
        *,
        max_output_bytes: int,
        write_timeout_s: float,
        hang_ups: HangUps,
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.peer = peer
        self._flush_due = False
        self._loop = asyncio.get_running_loop()
        self._session = service.open_session(peer, self.wake)
        self._session.resume = self._update_reading
        self._session.flush = self._flush
        self._conn = self._session.conn
        self._service = service
        self._socket = client
        self._fd = client.fileno()
        self._max_output_bytes = max_output_bytes
        self._write_timeout_s = write_timeout_s
        self._hang_ups = hang_ups
        self._on_closed = on_closed
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._reading = True
        self._writing = False
        self._closing = False
        self._closed = False
        self._took_at = 0.0
        self._write_timer: asyncio.TimerHandle | None = None
        self._drained: anyio.Event | None = None
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._loop.add_reader(self._fd, self._readable)

    @property
    def session_id(self) -> int:
        """The session's number, for logs."""
        return self._session.id

    def wake(self) -> None:
        """There is output. However often it is called, the next turn of the loop writes once."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def finish(self) -> None:
        """Close once the client has taken the output so far. Nothing is read any more."""
        self._closing = True
        self.wake()

    async def flushed(self) -> None:
        """Wait until the client has taken all output, or is gone."""
        while not self._closed and (self._out or self._conn.bytes_out):
            self._drained = self._drained or anyio.Event()
            await self._drained.wait()

    def close(self, why: str) -> None:
        """Close at once; what was not written is lost. Any further call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._flush_due = True  # so that a late wake() schedules nothing
        log.debug("session %d (pid %d) ends: %s", self._session.id, self.peer.pid, why)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._hang_ups.forget(self._fd)
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._out.clear()
        self._socket.close()
        self._session.close_files()
        self._tell_drained()
        self._service.close_session(self._session)
        # The session knows the connection no more: no ring of references keeps what was received until the garbage
        # collector comes, which counts objects and not their megabytes.
        self._session.wake = self._session.flush = _nothing
        self._session.resume = None
        self._on_closed(self)

    # Towards the service

    def _readable(self) -> None:
        conn, session, service = self._conn, self._session, self._service
        # What the requests answer at once is written below, not in another turn.
        flush_here = not self._flush_due
        self._flush_due = True
        left = TURN_BYTES
        try:
            while True:
                buffer = conn.get_buffer()
                try:
                    count, extra, flags, _ = self._socket.recvmsg_into(
                        [buffer[:left]], _EXTRA_BYTES, socket.MSG_CMSG_CLOEXEC
                    )
                except BlockingIOError:
                    break
                except OSError as exc:
                    self.close(f"reading failed: {exc}")
                    return
                if not count:
                    self.close("closed by the client")
                    return
                if extra or flags & socket.MSG_CTRUNC:
                    self._take_files(extra, flags)
                requests = conn.buffer_updated(count)
                if requests:
                    service.handle(session, requests)
                left -= count
                if count < LARGE_READ_BYTES or left <= 0 or conn.closing or not service.may_read(session):
                    break
        except Exception:
            # A fault of the daemon's own must cost this client its connection, not everybody theirs.
            log.exception("session %d: a request met a fault of the daemon", session.id)
            conn.abort(InternalError("the daemon failed on a request of this connection; see its log"))
        if flush_here and (conn.bytes_out or conn.closing or self._out or self._closing):
            self._flush()
            return
        self._flush_due = self._closed or not flush_here
        self._update_reading()

    def _take_files(self, extra: list[tuple[int, int, bytes]], flags: int) -> None:
        """Keep descriptors for the requests that they came with. If one is missing the connection ends: whose the
        others are is unknown then."""
        came = array("i")
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came.frombytes(data[: len(data) // came.itemsize * came.itemsize])
        self._conn.files.extend(came)
        if len(self._conn.files) > MOST_FILES or flags & socket.MSG_CTRUNC:
            self._session.close_files()
            self._conn.abort(
                ProtocolError(
                    f"descriptors were lost: more than {MOST_FILES} came ahead of their requests, or the daemon has "
                    "too many files open; send each with its own request"
                )
            )

    def _update_reading(self) -> None:
        """Read or not, by the bounds. Resuming waits for half the output's bound, so as not to flutter."""
        if self._closed:
            return
        bound = self._max_output_bytes if self._reading else self._max_output_bytes // 2
        may = (
            self._out_bytes + self._conn.bytes_out <= bound
            and not (self._closing or self._conn.closing)
            and self._service.may_read(self._session)
        )
        if may == self._reading:
            return
        self._reading = may
        if may:
            self._hang_ups.forget(self._fd)
            self._loop.add_reader(self._fd, self._readable)
        else:
            self._loop.remove_reader(self._fd)
            self._hang_ups.watch(self._fd, lambda: self.close("closed by the client"))

    # Towards the client

    def _take_output(self) -> None:
        if self._conn.bytes_out or self._conn.closing:
            chunks = self._conn.data_to_send()
            self._out += chunks
            self._out_bytes += sum(map(len, chunks))

    def _flush(self) -> None:
        """Write what the socket takes; the rest when it takes more. The only place that writes."""
        if self._closed:
            return
        left = TURN_BYTES
        stuck = False
        try:
            while not stuck:
                if not self._out:
                    self._take_output()
                if not self._out:
                    break
                left -= self._send_some()
                stuck = left <= 0
        except BlockingIOError:
            stuck = True
        except OSError as exc:
            self.close(f"writing failed: {exc}")
            return
        if stuck != self._writing:
            self._wait_for_room(stuck)
        self._flush_due = stuck
        if not stuck and (self._closing or self._conn.closing):
            self.close("ended by the daemon")
            return
        if not stuck:
            self._tell_drained()
        self._update_reading()

    def _send_some(self) -> int:
        out = self._out
        first = out[0]
        if len(first) > TURN_BYTES:
            sent = self._socket.send(memoryview(first)[:TURN_BYTES])
        elif len(out) == 1:
            sent = self._socket.send(first)
        else:
            sent = self._socket.sendmsg(out[:SEND_BUFFERS])
        self._out_bytes -= sent
        if self._writing:
            self._took_at = self._loop.time()
        rest = sent
        whole = 0
        for chunk in out:
            if rest < len(chunk):
                break
            rest -= len(chunk)
            whole += 1
        del out[:whole]
        if rest:
            out[0] = memoryview(out[0])[rest:]
        return sent

    def _wait_for_room(self, wait: bool) -> None:
        self._writing = wait
        if wait:
            self._loop.add_writer(self._fd, self._flush)
            self._took_at = self._loop.time()
            self._write_timer = self._loop.call_later(self._write_timeout_s, self._check_progress)
        else:
            self._loop.remove_writer(self._fd)
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

    def _check_progress(self) -> None:
        """Called while output is stuck, `write_timeout_s` after the client last took some of it, or sooner."""
        left = self._took_at + self._write_timeout_s - self._loop.time()
        if left > 0:
            self._write_timer = self._loop.call_later(left, self._check_progress)
            return
        log.warning(
            "session %d (pid %d) is disconnected: it took none of %d bytes of answers for %g s",
            self._session.id, self.peer.pid, self._out_bytes + self._conn.bytes_out, self._write_timeout_s,
        )  # fmt: skip
        self.close("it does not read its answers")

    def _tell_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
