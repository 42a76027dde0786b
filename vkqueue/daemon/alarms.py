"""Timers that are on time to some ten microseconds. asyncio's are late by up to a millisecond, since it waits in whole
ones: a delay of 200 µs would take 1,100.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
import weakref
from collections.abc import Callable
from operator import attrgetter

from vkqueue.heap import LazyHeap

_CLOCK_MONOTONIC = 1
_NONBLOCK, _CLOEXEC = 0o4000, 0o2000000  # TFD_NONBLOCK, TFD_CLOEXEC
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SPEC = struct.Struct("@llll")  # struct itimerspec: interval, value; each seconds and nanoseconds


class Alarm:
    """A callback at a time, made by `Alarms.at`.

    Attributes:
        over: whether it has gone off or was cancelled.
    """

    __slots__ = ("callback", "over")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.over = False

    def cancel(self) -> None:
        """It does not call back any more, also if it has gone off and the loop has not come to it yet."""
        self.over = True
        self.callback = _nothing

    def ring(self) -> None:
        """Call back; for `Alarms`."""
        self.callback()


def _nothing() -> None:
    pass


class Alarms:
    """The alarms of one event loop, by one timerfd(2); without one, by the loop's own timers."""

    def __init__(self) -> None:
        self._heap: LazyHeap[Alarm] = LazyHeap(attrgetter("over"))
        self._order = 0
        self._fd: int | None = None
        self._armed_ns = 0  # 0: not
        self._loop: asyncio.AbstractEventLoop

    def at(self, due_ns: int, callback: Callable[[], None]) -> Alarm:
        """Call back on the running loop at a time of `time.monotonic_ns`, never before it; soon if it has passed."""
        alarm = Alarm(callback)
        self._order += 1
        self._heap.push(due_ns, self._order, alarm)
        if not self._armed_ns or due_ns < self._armed_ns:
            self._arm(due_ns)
        return alarm

    def _arm(self, due_ns: int) -> None:
        if self._fd is None:
            self._open()
        self._armed_ns = due_ns = max(due_ns, 1)  # a time of 0 would disarm it
        if self._fd == -1:
            self._loop.call_later(max(due_ns - time.monotonic_ns(), 0) / 1e9, self._fired)
        else:
            _libc.timerfd_settime(self._fd, _ABSOLUTE, _SPEC.pack(0, 0, *divmod(due_ns, 1_000_000_000)), None)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = _timerfd()
        if self._fd != -1:
            self._loop.add_reader(self._fd, self._fired)  # so the loop keeps this object, and with it the descriptor
            weakref.finalize(self, os.close, self._fd)

    def _fired(self) -> None:
        if self._fd is not None and self._fd != -1:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                pass  # it was armed anew after it had gone off
        self._armed_ns = 0
        now = time.monotonic_ns()
        while (first := self._heap.first()) is not None and first[0] <= now:
            first[1].over = True
            self._loop.call_soon(first[1].ring)
        if first is not None:
            self._arm(first[0])


class Timer:
    """An alarm that is set again and again: it rings at the earliest time that was asked for since it last rang.

    Args:
        callback: is to look what is due, and to set it anew.
    """

    __slots__ = ("_alarm", "_alarms", "_callback", "_due_ns")

    def __init__(self, alarms: Alarms, callback: Callable[[], None]) -> None:
        self._alarms = alarms
        self._callback = callback
        self._alarm: Alarm | None = None
        self._due_ns = 0

    def set(self, due_ns: int | None) -> None:
        """Ring at this time of `time.monotonic_ns`, if it does not ring before; None: not at all."""
        if self._alarm is not None:
            if due_ns is not None and self._due_ns <= due_ns:
                return  # it rings early enough
            self._alarm.cancel()
            self._alarm = None
        if due_ns is not None:
            self._due_ns = due_ns
            self._alarm = self._alarms.at(due_ns, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._callback()


_libc = ctypes.CDLL(None)


def _timerfd() -> int:
    """A new one; -1 without any to be had."""
    try:
        fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
    except AttributeError:  # not a C library of Linux
        return -1
    return fd
