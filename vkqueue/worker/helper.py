"""The pool of helper processes, as the loop sees it.

    loop: submit ──> slot's inbox ──> slot's thread ──pipe──> process
    loop: on_done <── outbox <──────────┘

Each process has a thread that starts it, talks to it, and ends it when it is late or dead. Which slot is idle and
what waits is known on the loop alone, so there is nothing to lock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vkqueue.errors import InternalError, ShuttingDownError, VkqueueError
from vkqueue.worker.bridge import Inbox, Outbox
from vkqueue.worker.helper_main import Settings
from vkqueue.worker.helper_process import Died, HelperProcess, Stopped, TimedOut, failure_of

log = logging.getLogger("vkqueue.worker")


@dataclass(slots=True, eq=False)
class _Request:
    kind: str
    payload: bytes
    args: dict[str, Any]
    on_done: Callable[[Any], None]
    result: Any = None


class HelperPool:
    """Runs requests in helper processes; one that crashes, hangs or eats memory fails alone.

    Processes start when there is work, are kept, and are replaced after a failure. All methods but `join` are for
    the loop and do not block.

    Args:
        call_soon: see Outbox.
        size: how many processes at most; with two, one slow request does not hold up the others.
        timeout_s: for one request, in time and, rounded up, in CPU time. Past it the process is killed.
        memory_bytes: of address space, for each process.
        max_answer_bytes: a longer answer becomes a `too_large` error.
        preimport: kinds whose modules each process imports before its first request.
        extra_kinds: see helper_main.Settings.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        size: int = 2,
        timeout_s: float = 10.0,
        memory_bytes: int = 1 << 30,
        max_answer_bytes: int = 8 << 20,
        preimport: tuple[str, ...] = ("analyse",),
        extra_kinds: Mapping[str, tuple[str, str, bool]] | None = None,
    ) -> None:
        self._settings = Settings(
            memory_bytes=memory_bytes,
            cpu_s=int(timeout_s) + 1,
            max_answer_bytes=max_answer_bytes,
            parent=os.getpid(),
            preimport=preimport,
            extra_kinds=dict(extra_kinds or {}),
        )
        self._size = size
        self._timeout_s = timeout_s
        self._outbox: Outbox[tuple[_Slot, _Request]] = Outbox(call_soon, self._finished)
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []  # the last one used is used next: its process is warm
        self._waiting: deque[_Request] = deque()
        self._stopping = False

    @property
    def pending(self) -> int:
        """Requests not answered yet."""
        return len(self._waiting) + len(self._slots) - len(self._idle)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are known to be started; for reports."""
        return [slot.pid for slot in self._slots if slot.pid]

    def prestart(self) -> None:
        """Start one process now, so that the first request does not pay for it."""
        if not self._slots and not self._stopping:
            slot = self._add_slot()
            slot.inbox.post("start")
            self._idle.append(slot)

    def submit(self, kind: str, payload: bytes, args: dict[str, Any], on_done: Callable[[Any], None]) -> None:
        """Ask for work. `on_done` gets the result (JSON's types) or a VkqueueError: later, on the loop, once.

        Only when the pool stops it is called at once, with ShuttingDownError.
        """
        request = _Request(kind, payload, args, on_done)
        if self._stopping:
            on_done(_stopped())
        elif self._idle:
            self._idle.pop().inbox.post(request)
        elif len(self._slots) < self._size:
            self._add_slot().inbox.post(request)
        else:
            self._waiting.append(request)

    def request_stop(self) -> None:
        """Answer what waits, and kill what runs; its answers (`shutting_down`) follow. May be repeated."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._stop_fd, 1)
        for slot in self._slots:
            slot.inbox.post(None)
        while self._waiting:
            self._waiting.popleft().on_done(_stopped())

    def join(self, timeout_s: float) -> bool:
        """After `request_stop`: wait for threads and processes to end; whether they did. Not on the loop."""
        deadline = time.monotonic() + timeout_s
        return all(slot.join(deadline - time.monotonic()) for slot in self._slots)

    def close(self) -> None:
        """After `join`, on the loop: deliver the last answers."""
        self._outbox.close()
        if self._stop_fd >= 0 and all(slot.join(0) for slot in self._slots):
            os.close(self._stop_fd)
            self._stop_fd = -1

    def _add_slot(self) -> _Slot:
        name = f"helper-{len(self._slots)}"
        slot = _Slot(name, self._settings, self._timeout_s, self._stop_fd, self._outbox)
        self._slots.append(slot)
        return slot

    def _finished(self, burst: list[tuple[_Slot, _Request]]) -> None:
        """On the loop. Slots first, so that work goes on whatever the callbacks do."""
        for slot, _ in burst:
            if self._waiting:
                slot.inbox.post(self._waiting.popleft())
            else:
                self._idle.append(slot)
        for _, request in burst:
            try:
                request.on_done(request.result)
            except Exception:
                log.exception("the callback of a %s request failed", request.kind)


class _Slot:
    """A process and its thread. Everything but the inbox belongs to the thread; `pid` is for reports."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        timeout_s: float,
        stop_fd: int,
        outbox: Outbox[tuple[_Slot, _Request]],
    ) -> None:
        self.inbox: Inbox[_Request | str | None] = Inbox()
        self.pid = 0
        self._name = name
        self._settings = settings
        self._kinds = settings.kinds()
        self._timeout_s = timeout_s
        self._stop_fd = stop_fd
        self._outbox = outbox
        self._process: HelperProcess | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            item = self.inbox.get()
            if item is None:
                break
            if isinstance(item, _Request):
                item.result, healthy = self._serve(item)
                self._outbox.post((self, item))
                if healthy:
                    continue
            try:  # a process for the next request, now that nobody waits for it
                self._start()
            except OSError as error:
                log.error("%s: cannot start a helper process: %s", self._name, error)
        self._end()

    def _start(self) -> HelperProcess:
        if self._process is None:
            self._process = HelperProcess(self._settings, self._stop_fd)
            self.pid = self._process.pid
            log.debug("%s: started process %d", self._name, self.pid)
        return self._process

    def _end(self) -> str:
        process, self._process, self.pid = self._process, None, 0
        return process.kill() if process is not None else "not started"

    def _serve(self, request: _Request) -> tuple[Any, bool]:
        """(result or error, whether to go on as it is); False: a new process should be made ready."""
        failure = self._kinds[request.kind].failure if request.kind in self._kinds else InternalError
        try:
            if self._process is not None and not self._process.usable:
                log.warning("%s: the helper process died while idle: %s", self._name, self._end())
            process = self._start()
            process.wait_ready()
        except Stopped:
            return _stopped(), True
        except (OSError, Died, TimedOut) as error:
            how = self._end()
            log.error("%s: the helper process does not start: %s (%s)", self._name, error or "no answer", how)
            return failure(f"the helper process does not start ({how}); the daemon's log says more"), True
        try:
            answer = process.exchange(request.kind, request.payload, request.args, self._timeout_s)
            result = failure_of(answer) or answer.get("result")
        except Stopped:
            return _stopped(), True
        except TimedOut:
            self._end()
            return self._lost(request, failure, f"took longer than {self._timeout_s:g} s, and was ended"), False
        except Died as error:
            how = f"was not survived by its process: {error}, with {self._end()}"
            return self._lost(request, failure, how), False
        except Exception as error:  # arguments that are no JSON, an error that is no map
            log.exception("%s: a %s request could not be exchanged", self._name, request.kind)
            self._end()
            return InternalError(f"{request.kind}: {type(error).__name__}: {error}"), False
        if answer.get("exit"):
            self._end()
        return result, self._process is not None

    def _lost(self, request: _Request, failure: type[VkqueueError], how: str) -> VkqueueError:
        log.warning("%s: %s of %d bytes %s", self._name, request.kind, len(request.payload), how)
        return failure(f"{request.kind} {how}; other requests are not affected")


def _stopped() -> ShuttingDownError:
    return ShuttingDownError("the daemon stops and does not finish this")
