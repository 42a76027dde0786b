"""Blocking I/O for a `Core`: one socket, any number of threads, and no thread of its own.

Whoever waits does the I/O for everybody. The first thread to wait becomes the *driver*: it polls the socket, reads,
writes what the socket did not take before, and wakes the threads whose wait is over. Other waiters sleep on a lock of
their own. A driver whose wait is over makes one of them the next driver. So nobody reads while nobody waits.

Guarantees:
- A request is written before the call that makes it returns, so memory that it came from may be reused, and the
  daemon gets to work whatever the program does next. While the socket takes no more, that thread waits as above:
  reading goes on, so two full sockets cannot block each other.
- Messages of several threads never mix: session and socket are only touched under `_lock`.
- An exception out of nowhere (KeyboardInterrupt) while session or socket are touched may have lost bytes that were
  read or written. `_torn` is set before and cleared after; who finds it set closes the connection. While
  waiting it is not set, so an interrupted wait leaves the connection usable.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, ParamSpec, TypeVar

from vkqueue.client import fork
from vkqueue.client.call import Call
from vkqueue.client.core import Core
from vkqueue.client.outbox import Outbox
from vkqueue.errors import VkqueueError
from vkqueue.wire.codec import LARGE

P = ParamSpec("P")
R = TypeVar("R")

# What recv gives at once when more is likely to follow: sockets hand out pieces of up to 32 KiB or so.
_MORE = 16 * 1024
# Reads in one go before others get the lock. Arbitrary.
_MAX_READS = 16
# The kernel's buffer towards the daemon, cut to net.core.wmem_max: fewer, larger wake-ups of its reader.
SEND_BUFFER_BYTES = 1024 * 1024
# At most what is copied when it is queued: what is sent from the caller's memory is larger, and is never put off.
_GATHERED = LARGE


def _nothing() -> None:
    """Start nothing: for what else `Link.start` does."""


class _Waiter:
    """A thread that is not the driver, asleep until `lock` is released."""

    __slots__ = ("done", "lock")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.lock = threading.Lock()
        self.lock.acquire()


class Link:
    """A connection of the blocking client.

    Args:
        sock: connected; owned from now on.
        core: what is sent and who gets the answers.
        timeout: seconds that writing a request may take.
    """

    def __init__(self, sock: socket.socket, core: Core, timeout: float | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.core = core
        self.timeout = timeout
        self._sock = sock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._driver: int | None = None
        self._waiters: list[_Waiter] = []
        self._torn = False
        self._gathering: int | None = None  # the thread whose requests are written together
        self._out = Outbox()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close_wake = weakref.finalize(self, os.close, self._wake)
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)
        fork.watch(self)

    # Starting.

    def start(self, build: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `build`, a method of the core's, and write the requests that it started.

        Raises:
            ConnectionLostError: the connection is over.
            VkqueueError: `build` raised it; nothing was started.
            TimeoutError: it could not be written within `timeout`.
        """
        with self._lock:
            result, done = self._run(build, *args, **kwargs)
        if done is not None:
            try:
                if not self.until(done, self.timeout):
                    raise TimeoutError(f"the daemon took no more requests for {self.timeout} s")
            except BaseException:
                if isinstance(result, Call):
                    self.abandon(result)
                raise
        return result

    def abandon(self, call: Call[Any]) -> None:
        """Cancel a call that nobody waits for any more, as far as that goes without waiting."""
        try:
            with self._lock:
                self._run(self.core.cancel, call)
        except VkqueueError:
            pass  # the connection is over, and the work with it

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Inside, what this thread starts is written at the end, when it waits, or past `_GATHERED` bytes."""
        me = threading.get_ident()
        outer = self._gathering == me
        try:
            self._gathering = me
            yield
        finally:
            if not outer:
                self._gathering = None
                if self.core.lost is None:
                    self.start(_nothing)

    def _run(
        self, build: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, Callable[[], bool] | None]:
        """What `build` returns, and when all that it started is written, None if it is."""
        if self._torn:
            self._mend()
        self._torn = True
        try:
            result = build(*args, **kwargs)
        except Exception:
            self._torn = False  # an ordinary error leaves the session in step
            raise
        if self._gathering == threading.get_ident() and self.core.session.bytes_out < _GATHERED:
            self._torn = False
            return result, None
        written = self._push()
        self._torn = False
        core = self.core
        if core.settled:
            core.settled = False
            self._prod()
        if core.lost is not None or (written and not core.holding):
            return result, None
        self._prod()
        if not core.holding:
            mark, out = self._out.queued, self._out
            return result, lambda: out.written >= mark or core.lost is not None
        # Some are held back for answers to come. Whoever drives writes them at once when they are sent.
        started = core.started
        return result, lambda: (core.has_sent(started) and not self._out) or core.lost is not None

    # Waiting.

    def wait(self, call: Call[Any], timeout: float | None) -> bool:
        """Wait until the call is done; False if `timeout` seconds pass first."""
        return call.finished or self.until(lambda: call.finished, timeout)

    def until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `done()`, which is asked under the lock; False if `timeout` seconds pass first.

        With a timeout of 0 what the socket holds is taken in.
        """
        deadline = None if timeout is None else monotonic() + timeout
        me = threading.get_ident()
        if self._gathering == me:
            self._write_gathered()
        waiter: _Waiter | None = None
        late = False
        try:
            while True:
                with self._lock:
                    if self._torn:
                        self._mend()
                    if done():
                        return True
                    waiter = self._take_part(done, me, waiter)
                if late:
                    return False
                left = None if deadline is None else max(deadline - monotonic(), 0)
                late = left == 0
                if self._driver == me:
                    self._drive(left)
                elif waiter is not None:
                    waiter.lock.acquire(timeout=-1 if left is None else left)
        finally:
            if self._driver == me or waiter is not None:
                with self._lock:
                    self._leave(me, waiter)

    def _write_gathered(self) -> None:
        with self._lock:
            if self._torn:
                self._mend()
            if self.core.lost is None:
                self._torn = True
                self._push()
                self._torn = False
                self._prod()

    def _take_part(self, done: Callable[[], bool], me: int, waiter: _Waiter | None) -> _Waiter | None:
        """Become the driver if there is none, else one of the waiters."""
        if self.core.lost is not None:
            raise self.core.lost_error()
        # A driver of my own number is what an interrupt left of an earlier wait.
        if self._driver is None or self._driver == me:
            self._driver = me
            self._poller.modify(self._sock, select.POLLIN | select.POLLOUT if self._out else select.POLLIN)
        elif waiter is None or waiter not in self._waiters:
            waiter = _Waiter(done)
            self._waiters.append(waiter)
        return waiter

    def _drive(self, timeout: float | None) -> None:
        """As driver: wait for the socket, then move what can be moved."""
        ready = self._poller.poll(None if timeout is None else math.ceil(timeout * 1000))
        if not ready:
            return
        with self._lock:
            if self._torn:
                self._mend()
            if len(ready) > 1 or ready[0][0] == self._wake:
                self._drain_wake()
            if self.core.lost is None:
                self._torn = True
                self._pull()
                if self.core.lost is None:
                    self._push()
                self._torn = False
            self._wake_done()

    def _leave(self, me: int, waiter: _Waiter | None) -> None:
        if waiter is not None and waiter in self._waiters:
            self._waiters.remove(waiter)
        if self._driver == me:
            self._driver = None
        if self._driver is None:
            if self.core.lost is not None:
                self._close_socket()
            elif self._waiters:
                self._waiters.pop(0).lock.release()  # it finds no driver, and becomes it

    def _wake_done(self) -> None:
        if not self._waiters:
            return
        lost = self.core.lost is not None
        for waiter in [w for w in self._waiters if lost or w.done()]:
            self._waiters.remove(waiter)
            waiter.lock.release()

    def _prod(self) -> None:
        """Something changed that sleeping threads have to see: more to write, calls that ended here."""
        self._wake_done()
        if self._driver is not None and self._driver != threading.get_ident():
            os.eventfd_write(self._wake, 1)

    def _drain_wake(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    # The socket; the lock is held.

    def _push(self) -> bool:
        """Write what the session has, as far as the socket takes it; whether nothing is left."""
        self._out.extend(self.core.session.data_to_send())
        try:
            self._out.write(self._sock)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(f"writing to the daemon failed: {error.strerror}", error)
        return True

    def _pull(self) -> None:
        """Read what there is, up to a bound, and take it in."""
        core = self.core
        try:
            for _ in range(_MAX_READS):
                count = self._sock.recv_into(core.get_buffer())
                core.buffer_updated(count)
                if count < _MORE or core.lost is not None:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            core.fail(f"the daemon closed the connection ({error.strerror})", error)

    def _end(self, reason: str, cause: BaseException) -> None:
        """The daemon reads no more. What it said before, such as why, may still be there to be read."""
        self._out.clear()
        while self.core.lost is None:
            try:
                self.core.buffer_updated(self._sock.recv_into(self.core.get_buffer()))
            except OSError:
                self.core.fail(reason, cause)

    def _mend(self) -> None:
        """An interrupt came while messages were moved: what was lost is unknown, so the connection ends."""
        self._torn = False
        self._shut("the connection was closed: an interrupt came while a message was being moved")

    # The end.

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        with self._lock:
            self._torn = False
            self._shut("the client was closed")

    def _shut(self, reason: str) -> None:
        self.core.fail(reason)
        self._out.clear()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already, or the daemon was faster
        self._prod()
        if self._driver is None or self._driver == threading.get_ident():
            self._close_socket()

    def _close_socket(self) -> None:
        """Once nobody polls it: a descriptor's number may be another file's at once."""
        self._sock.close()
        self._close_wake()

    def after_fork(self) -> None:
        """In a forked child: see `vkqueue.client.fork`."""
        self._lock = threading.Lock()
        self._driver = None
        self._waiters = []
        self._torn = False
        self._out.clear()
        self.core.fail(fork.reason(self._pid))
        self._close_socket()
