"""The way between the event loop and the threads. Every lock of the daemon is in this file.

What is guaranteed, and why:

* **A post is delivered or refused, never lost.** `closed` changes under the same lock under which an item is
  added, so each post is wholly before or wholly after the closing. Before: the item is handed over, at the
  latest by `close()` itself. After: the poster is told (`False`).
* **Order.** Items of one poster arrive in the order posted. Items of several posters interleave in the order in
  which they took the lock; nothing else is promised between them.
* **One wake-up for a burst** (Outbox). `_woken` is set by the post that wakes the loop and cleared when `drain`
  takes the list, both under the lock: while it is set a drain is still to come, and it will see every item
  added meanwhile.
* **A drain is bounded.** It takes the items present on entry, in one list; what is posted while it runs is for
  the next, so that a busy thread cannot keep the loop from its sockets.
* **Posting never waits for anybody's work.** The locks guard a few operations on a list. No call-back and no
  system call is made under them.

None of this leans on the interpreter's own lock.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("vkqueue.worker")

T = TypeVar("T")


class Outbox(Generic[T]):
    """From any thread to the loop: many posters, one handler that runs on the loop.

    Args:
        call_soon: schedules a call on the loop from any thread and wakes it, without waiting: an asyncio
            loop's `call_soon_threadsafe`.
        handle: takes each burst as one list, on the loop. What it raises goes to the loop's own handler of
            exceptions; the rest of that burst is then its loss.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        handle: Callable[[list[T]], None],
    ) -> None:
        self._call_soon = call_soon
        self._handle = handle
        self._lock = threading.Lock()
        self._items: list[T] = []
        self._woken = False
        self._closed = False

    def post(self, item: T) -> bool:
        """Hand `item` to the loop. Any thread; False when the outbox is closed and the item was not taken."""
        with self._lock:
            if self._closed:
                return False
            self._items.append(item)
            if self._woken:
                return True
            self._woken = True
        # Outside the lock: it writes to the loop's own socket, and the loop, once awake, wants the lock.
        try:
            self._call_soon(self.drain)
        except RuntimeError:  # asyncio's word for a closed loop: somebody forgot close()
            with self._lock:
                self._closed = True
                lost = len(self._items)
            log.warning("the loop ended before its outbox was closed; %d items are lost", lost)
            return False
        return True

    def drain(self) -> None:
        """Handle what has been posted so far. On the loop only."""
        with self._lock:
            items = self._items
            self._items = []
            self._woken = False
        if items:
            self._handle(items)

    def close(self) -> None:
        """Take no more, and handle what was taken. On the loop only, while it still runs; may be repeated.

        Later posts are refused, so nothing reaches for a loop that has ended.
        """
        with self._lock:
            self._closed = True
        self.drain()


class Inbox(Generic[T]):
    """From any thread to one owner thread, which alone calls `get`, `get_nowait` and `close`."""

    def __init__(self) -> None:
        # An eventfd rather than a queue's lock: its write gives the interpreter up, so that the thread that it wakes
        # runs at once instead of when the poster next waits. Measured for a lone job on 2 cores, posting until
        # submitting: 47 µs with queue.SimpleQueue, 30 µs so. Closed with this object, since a poster may be writing.
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._event)
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._waiting = False  # the owner sleeps, or is about to: the next post has to wake it
        self._closed = False

    def post(self, item: T) -> bool:
        """Hand `item` to the owner. Any thread; False when the inbox is closed and the item was not taken."""
        with self._lock:
            if self._closed:
                return False
            self._items.append(item)
            wake, self._waiting = self._waiting, False
        if wake:
            os.eventfd_write(self._event, 1)
        return True

    def get(self, timeout_s: float | None = None, spin_s: float = 0.0) -> T:
        """Wait for the next item; with `timeout_s` no longer than that.

        Args:
            spin_s: how long to look again and again before sleeping: a poster then wakes nobody, which spares a
                hand-over the time that an idle core takes to wake up, and burns this one meanwhile.

        Raises:
            queue.Empty: the time passed.
        """
        if spin_s:
            until = time.monotonic() + spin_s
            while not self._items and time.monotonic() < until:
                time.sleep(0)  # gives the interpreter up
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._items:
                    self._waiting = False
                    return self._items.popleft()
                self._waiting = True
            if deadline is not None and not self._readable(deadline - time.monotonic()):
                return self.get_nowait()
            # May find a write that was meant for an item already taken; then it goes round once more.
            os.eventfd_read(self._event)

    def _readable(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        return bool(poll.poll(max(timeout_s, 0) * 1000))

    def get_nowait(self) -> T:
        """The next item, if there is one.

        Raises:
            queue.Empty: there is none.
        """
        with self._lock:
            self._waiting = False
            if not self._items:
                raise queue.Empty
            return self._items.popleft()

    def empty(self) -> bool:
        """Whether nothing waits, at this moment."""
        return not self._items

    def close(self) -> list[T]:
        """Take no more; returns what was taken and not yet fetched, for the owner to answer."""
        with self._lock:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            return left


class KeySet:
    """Keys that are underway, shared by threads: how duplicates of a request in progress are found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[int] = set()

    def add(self, key: int) -> bool:
        """Whether `key` is new; it is underway from now on."""
        with self._lock:
            if key in self._keys:
                return False
            self._keys.add(key)
            return True

    def discard(self, key: int) -> None:
        """`key` is done with."""
        with self._lock:
            self._keys.discard(key)


class Latch(Generic[T]):
    """A value that is set once and then stays. Of several threads that try, exactly one succeeds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: T | None = None

    @property
    def value(self) -> T | None:
        """What was set, None before. Any thread."""
        with self._lock:
            return self._value

    def set(self, value: T) -> bool:
        """Set `value` if nothing was; whether this call did it."""
        with self._lock:
            if self._value is not None:
                return False
            self._value = value
            return True
