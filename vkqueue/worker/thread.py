"""The threads of one device: one records and submits, and one (a companion, or the same) waits for fences.

    loop ── Batch, Release ──> worker ── submissions ──> companion ── Completion ──> loop
                                 ^────── to be retired ──────┘

The worker thread owns the backend; the companion only waits and collects. A finished submission goes back to
the worker without waking it: it is retired when the worker next runs, which is before the next batch is
recorded; only when a release hangs on it is the worker woken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from vkqueue.errors import DeviceLostError, ShuttingDownError, VkqueueError
from vkqueue.gpu.backend import Backend, Submission
from vkqueue.model import Batch, Completion, PipelineSpec, Release
from vkqueue.worker.bridge import Inbox, Latch
from vkqueue.worker.compile import CompileThread
from vkqueue.worker.events import DeviceLost, Failed, Opened, Stopped
from vkqueue.worker.fences import Deliver, FenceLine, as_vkqueue_error, collected, failed, lost
from vkqueue.worker.waiting import Companion, Item, SameThread, Signal, Waiting

log = logging.getLogger("vkqueue.worker")

# How long a worker that waits itself ("same") may leave a new batch lying: its slices while work is in flight.
_SAME_SLICE_S = 0.0005
# Kept back from the time given to stop, for the slice in progress to end and the device to be closed.
_STOP_RESERVE_S = 0.2


class DeviceThread:
    """A device at work: batches, releases and pipelines go in, events come out through `deliver`.

    Every batch posted gets one Completion with `final` set, or, if it was late, one without before it; a batch
    that is abandoned at the end only the latter. Completions come in the order of submission, except that a
    batch with no fence out (the host did all of it, or every row failed) does not wait for those before it.

    Args:
        name: of the threads, for logs.
        open_backend: opens the device; called on the worker thread.
        deliver: takes each event, on whatever thread it arises; must neither block nor raise (an Outbox's post).
        batch_timeout_s: see `fences`.
        wait_slice_ms: the longest single wait while work is in flight; with none in flight nothing wakes up.
        waiter: who waits for fences: a companion thread, or the worker itself when it has nothing to record.
        glance_us: how long the worker itself waits for a batch that is alone on the device, before it leaves the
            fence to the waiting side: a short job is spared a hop. No longer than the daemon holds back further rows
            while a batch is in flight, so that nobody waits for the glance to end.
        spin_us: of that time, how long the fence is polled; and how long the worker looks for another batch before it
            sleeps. Burns a core meanwhile.
        cache_quiet_s: the pipeline cache is saved once no pipeline was built for so long.
    """

    def __init__(
        self,
        name: str,
        open_backend: Callable[[], Backend],
        deliver: Deliver,
        *,
        batch_timeout_s: float,
        wait_slice_ms: float = 50,
        waiter: Literal["companion", "same"] = "companion",
        glance_us: float = 0,
        spin_us: float = 0,
        cache_quiet_s: float = 1.0,
    ) -> None:
        self._name = name
        self._open_backend = open_backend
        self._deliver = deliver
        self._batch_timeout_s = batch_timeout_s
        self._slice_s = wait_slice_ms / 1000
        self._waiter = waiter
        self._glance_s = glance_us / 1e6
        self._spin_s = spin_us / 1e6
        self._inbox: Inbox[Item] = Inbox()
        self._device_lost: Latch[DeviceLostError] = Latch()
        self._stop_at: Latch[float] = Latch()  # when to stop waiting for the device, once a stop is asked for
        self._compiler = CompileThread(
            f"{name}-compile", deliver, self._device_lost, self._lose, quiet_s=cache_quiet_s
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._backend: Backend | None = None
        # Waited for and collected, to be retired by the worker: filled by the waiting side, emptied by the
        # worker, in order. A deque's append and popleft are atomic by its documentation.
        self._finished: deque[Submission] = deque()
        self._unretired = 0  # submissions made and not retired; the worker's own count

    def start(self) -> None:
        """Open the device; Opened or Failed follows."""
        self._thread.start()

    def post(self, item: Batch | Release) -> bool:
        """Any thread. False when the device is not there, or told to stop, and the item was not taken."""
        if self._stop_at.value is not None:  # what comes late would only delay the end
            return False
        return self._inbox.post(item)

    def compile(self, spec: PipelineSpec) -> bool:
        """Ask for a pipeline, also before Opened; see CompileThread.post."""
        return self._compiler.post(spec)

    def memory(self) -> dict[str, int]:
        """The backend's counters; empty before the device is open."""
        return self._backend.memory() if self._backend is not None else {}

    def request_stop(self, timeout_s: float = 0.9) -> None:
        """Finish what was posted, but be gone within `timeout_s`: a wait still in progress shortly before that
        is abandoned. Never blocks; Stopped follows (unless the driver does not return from a call). Any thread.
        """
        self._stop_at.set(time.monotonic() + max(0.0, timeout_s - _STOP_RESERVE_S))
        self._inbox.post(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end, no longer than that; whether they did. Not on the loop: it blocks."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, timeout_s: float = 0.9) -> bool:
        """`request_stop` and `join`. Not on the loop: it blocks."""
        self.request_stop(timeout_s)
        return self.join(timeout_s)

    def _lose(self, error: DeviceLostError) -> None:
        """The device is lost, says some thread. The first to say so is heard."""
        if self._device_lost.set(error):
            log.error("%s: device lost: %s", self._name, error)
            self._deliver(DeviceLost(error))

    def _run(self) -> None:
        try:
            backend = self._open_backend()
        except Exception as error:
            reason = as_vkqueue_error(error, "opening the device")
            self._deliver(Failed(reason))
            self._compiler.reject(reason)
            for item in self._inbox.close():
                if isinstance(item, Batch):
                    self._deliver(failed(item, reason))
            self._deliver(Stopped(clean=True))
            return
        self._backend = backend
        self._deliver(Opened(backend.info))
        self._compiler.start(backend)
        idle = self._work(backend)
        self._deliver(Stopped(self._close(backend, idle)))

    def _work(self, backend: Backend) -> bool:
        """Do what is posted until told to stop; whether the device is idle then."""
        line, waiting = self._waiting_side(backend)
        while True:
            item = waiting.next_item()
            self._retire_finished(backend)
            if item is Signal.WAITED:
                return line.idle
            if item is None:
                waiting.finish()
            elif isinstance(item, Batch):
                self._submit(backend, waiting, item)
            elif isinstance(item, Release):
                self._release(backend, item)
            # A release made after the last look may hang on what finished meanwhile; what finishes after this
            # look finds the release, and sends a signal.
            self._retire_finished(backend)

    def _waiting_side(self, backend: Backend) -> tuple[FenceLine, Waiting]:
        same = self._waiter == "same"

        def retire(submission: Submission) -> None:
            self._finished.append(submission)
            if not same and backend.has_deferred:
                self._inbox.post(Signal.LOOK)

        line = FenceLine(
            backend,
            self._deliver,
            retire,
            self._device_lost,
            self._lose,
            batch_timeout_s=self._batch_timeout_s,
            slice_s=min(self._slice_s, _SAME_SLICE_S) if same else self._slice_s,
        )
        if same:
            return line, SameThread(self._inbox, line, self._stop_at, self._spin_s)
        return line, Companion(f"{self._name}-wait", self._inbox, line, self._stop_at, self._deliver, self._spin_s)

    def _submit(self, backend: Backend, waiting: Waiting, batch: Batch) -> None:
        gone = self._device_lost.value
        if gone is not None:
            self._deliver(lost(batch, gone))
            return
        started = time.monotonic_ns()
        try:
            submission = backend.submit(batch)
        except DeviceLostError as error:
            self._lose(error)
            self._deliver(lost(batch, error))
            return
        except Exception as error:
            self._deliver(failed(batch, as_vkqueue_error(error, "submitting a batch")))
            return
        completion = submission.completion
        completion.submitted_ns = completion.submitted_ns or started
        self._unretired += 1
        delivered = not submission.pending
        if delivered:
            completion.finished_ns = completion.finished_ns or time.monotonic_ns()
            self._deliver(completion)
            if self._unretired == 1:  # nothing before it in flight: no order to keep
                self._finished.append(submission)
                return
            # It waits for its turn to be retired, maybe for long; its rows' bytes are nobody's any more.
            submission.batch = Batch(batch.serial, [], [], [])
            submission.completion = Completion(submission.batch)
        elif self._glance_s and self._unretired == 1 and self._inbox.empty() and self._glance(backend, submission):
            self._finished.append(submission)
            return
        waiting.add(submission, delivered)

    def _glance(self, backend: Backend, submission: Submission) -> bool:
        """Wait a moment for a batch that is alone; whether it is answered. What goes wrong is for the waiting side."""
        try:
            deadline = time.monotonic() + self._spin_s
            while self._spin_s and time.monotonic() < deadline:
                if backend.wait(submission, 0.0):
                    break
            else:
                if not backend.wait(submission, self._glance_s):
                    return False
            completion = collected(backend, submission)
        except Exception:
            log.debug("a glance at a batch failed", exc_info=True)
            return False
        if self._device_lost.value is not None:
            return False
        self._deliver(completion)
        return True

    def _release(self, backend: Backend, release: Release) -> None:
        if self._device_lost.value is None:
            self._guarded("releasing", partial(backend.release, release))

    def _retire_finished(self, backend: Backend) -> None:
        while self._finished:
            submission = self._finished.popleft()
            self._unretired -= 1
            if self._device_lost.value is None:
                self._guarded("retiring a batch", partial(backend.retire, submission))

    def _guarded(self, doing: str, call: Callable[[], None]) -> None:
        """Work for which nobody waits: a failure is logged."""
        try:
            call()
        except DeviceLostError as error:
            self._lose(error)
        except VkqueueError as error:
            log.error("%s: %s: %s", self._name, doing, error)
        except Exception:
            log.exception("%s: unexpected failure while %s", self._name, doing)

    def _close(self, backend: Backend, idle: bool) -> bool:
        """Free the device, if nothing is going on there that could still use it; whether that was so."""
        self._compiler.request_stop()
        error = ShuttingDownError("the daemon stopped before the job was submitted")
        for item in self._inbox.close():
            if isinstance(item, Batch):
                self._deliver(failed(item, error))
        stop_at = self._stop_at.value or 0.0
        built = self._compiler.join(max(0.0, stop_at - time.monotonic()) + _STOP_RESERVE_S / 2)
        if not (idle and built):
            log.warning("%s: stopped with work in progress; the device is left as it is", self._name)
            return False
        try:
            backend.close()
        except Exception:
            log.exception("%s: closing the device failed", self._name)
            return False
        return True
