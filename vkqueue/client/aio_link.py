"""I/O for a `Core` in an asyncio event loop, and the future that is awaited.

Everything runs in the loop's thread. The loop calls `AsyncLink` when the socket can be read or written; there is no
reader task. Requests that are started in one pass of the loop leave in one write.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

from vkqueue.client import fork
from vkqueue.client.call import Call
from vkqueue.client.core import Core
from vkqueue.client.outbox import Outbox
from vkqueue.errors import JobCancelledError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# As in `link`.
_MORE = 16 * 1024
# Reads in one go before other tasks of the loop get their turn; arbitrary.
_MAX_READS = 16


class AsyncLink:
    """I/O for a `Core` in an event loop.

    Args:
        sock: connected; owned from now on.
        core: what is sent and who gets the answers.
    """

    def __init__(self, sock: socket.socket, core: Core) -> None:
        sock.setblocking(False)
        self.core = core
        self._sock = sock
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._out = Outbox()
        self._writing = False  # the loop tells when the socket can be written
        self._scheduled = False  # a write comes in the loop's next pass
        self._unsent: list[asyncio.Future[None]] = []  # those who wait until what they started is written
        self._loop.add_reader(sock, self._readable)
        fork.watch(self)

    def start(self, build: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `build`, a method of the core's. The requests leave in the loop's next pass, or by `written`."""
        result = build(*args, **kwargs)
        if not self._scheduled and not self._writing:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return result

    async def written(self) -> None:
        """Wait until all that was started is written: memory that it came from may then be reused."""
        if not self._writing:
            self._flush()
        number = self.core.started
        while (self._out or not self.core.has_sent(number)) and self.core.lost is None:
            waiter = self._loop.create_future()
            self._unsent.append(waiter)
            await waiter

    def crowded(self) -> bool:
        """Whether requests are held back, or the socket takes no more."""
        return self._writing or self.core.holding

    def _flush(self) -> None:
        self._scheduled = False
        if self.core.lost is None:
            self._push()

    def _push(self) -> None:
        out = self._out
        out.extend(self.core.session.data_to_send())
        try:
            out.write(self._sock)
        except BlockingIOError:
            pass
        except OSError as error:
            # The daemon reads no more. What it said before, such as why, may still be there to be read.
            out.clear()
            self._pull(f"writing to the daemon failed: {error.strerror}", error)
            return
        if bool(out) != self._writing:
            self._writing = bool(out)
            if out:
                self._loop.add_writer(self._sock, self._push)
            else:
                self._loop.remove_writer(self._sock)
        if not out:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._unsent = self._unsent, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _readable(self) -> None:
        self._pull()
        if self.core.lost is None and self.core.session.bytes_out:
            self._push()  # requests that were held back

    def _pull(self, reason: str = "", cause: OSError | None = None) -> None:
        """Read what there is; with a reason, to the end, and then the connection is over for that reason."""
        core = self.core
        try:
            for _ in range(_MAX_READS):
                count = self._sock.recv_into(core.get_buffer())
                core.buffer_updated(count)
                if core.lost is not None or (count < _MORE and cause is None):
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            reason, cause = reason or f"the daemon closed the connection ({error.strerror})", cause or error
        if cause is not None and core.lost is None:
            core.fail(reason, cause)
        if core.lost is not None:
            self._shut()

    def close(self, reason: str) -> None:
        """Close the connection; calls under way fail."""
        self.core.fail(reason)
        self._shut()

    def _shut(self) -> None:
        self._out.clear()
        self._wake_writers()
        if self._sock.fileno() >= 0 and os.getpid() == self._pid:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        self._sock.close()

    def after_fork(self) -> None:
        """In a forked child: see `vkqueue.client.fork`. The loop's selector is shared with the parent: let it be."""
        self._sock.close()
        self._out.clear()
        self.core.fail(fork.reason(self._pid))


class AsyncFuture(Call[T]):
    """The outcome of work under way: `await` it.

    An await that is cancelled cancels the work: it is taken back if it has not been submitted to the device. Use `wait`
    to wait without that.
    """

    __slots__ = ("_waiters",)

    def __init__(self, client: Any, decode: Callable[[Any], T] | None, uses: Any = ()) -> None:
        super().__init__(client, decode, uses)
        self._waiters: list[asyncio.Future[None]] = []

    def __await__(self) -> Generator[Any, None, T]:
        if not self.finished:
            try:
                yield from self.wait().__await__()
            except BaseException:  # cancelled
                self.client._abandon(self)
                raise
        return self.outcome()

    async def wait(self) -> None:
        """Wait until it is done, whatever the outcome."""
        while not self.finished:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def exception(self) -> BaseException | None:
        """The error it failed with, None if it succeeded."""
        await self.wait()
        return self.error

    async def cancel(self) -> bool:
        """Take the work back, if it has not been submitted to the device; whether that came in time."""
        if self.finished:
            return False
        asked = self.client.link.start(self.client.core.cancel, self)
        taken_back = asked is not None and await asked
        return taken_back or isinstance(self.error, JobCancelledError)
