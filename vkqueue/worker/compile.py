"""The thread that builds a device's pipelines, so that a compile of seconds holds up only who waits for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from vkqueue.errors import CompileError, DeviceLostError, ShuttingDownError, VkqueueError
from vkqueue.gpu.backend import Backend
from vkqueue.model import PipelineBuilt, PipelineSpec
from vkqueue.worker.bridge import Inbox, KeySet, Latch
from vkqueue.worker.fences import Deliver

log = logging.getLogger("vkqueue.worker")


class CompileThread:
    """Builds pipelines one after the other and answers each with a PipelineBuilt.

    The cache is saved once no build has come for `quiet_s`, during an endless burst every `burst_s`, and at the
    end. With nothing built since the last save the thread sleeps without a time limit.

    Args:
        deliver: takes the answers; never raises.
        device_lost: set once the device is lost; builds are then refused with the error.
        lose: tells that it is.
    """

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        device_lost: Latch[DeviceLostError],
        lose: Callable[[DeviceLostError], None],
        *,
        quiet_s: float = 1.0,
        burst_s: float = 10.0,
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._device_lost = device_lost
        self._lose = lose
        self._quiet_s = quiet_s
        self._burst_s = burst_s
        self._inbox: Inbox[PipelineSpec | None] = Inbox()
        self._underway = KeySet()
        self._stop: Latch[bool] = Latch()
        self._thread: threading.Thread | None = None

    def post(self, spec: PipelineSpec) -> bool:
        """Ask for a pipeline. Any thread, also before `start`; False when stopped, and no answer will come.

        Of equal ids that are underway at one time one is built, and one answer is given.
        """
        if not self._underway.add(spec.id):
            return True
        return self._inbox.post(spec)

    def start(self, backend: Backend) -> None:
        """Begin, now that there is a device."""
        self._thread = threading.Thread(target=self._run, args=(backend,), name=self._name, daemon=True)
        self._thread.start()

    def reject(self, error: VkqueueError) -> None:
        """Instead of `start`: answer what was posted with `error`, and refuse the rest."""
        for spec in self._inbox.close():
            self._answer(spec, error)

    def request_stop(self) -> None:
        """End after the build in progress, if any. What is queued is answered `shutting_down`. Any thread."""
        self._stop.set(True)
        self._inbox.post(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end, no longer than that; whether it was reached."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, backend: Backend) -> None:
        unsaved_since: float | None = None
        while not self._stop.value:
            try:
                spec = self._inbox.get(self._patience_s(unsaved_since))
            except queue.Empty:
                backend.save_cache()
                unsaved_since = None
                continue
            if spec is None or self._stop.value:
                self._answer(spec, _stopped())
            elif self._build(backend, spec) and unsaved_since is None:
                unsaved_since = time.monotonic()
        if unsaved_since is not None and self._device_lost.value is None:
            backend.save_cache()
        self.reject(_stopped())

    def _patience_s(self, unsaved_since: float | None) -> float | None:
        if unsaved_since is None:
            return None
        return max(0.0, min(self._quiet_s, unsaved_since + self._burst_s - time.monotonic()))

    def _build(self, backend: Backend, spec: PipelineSpec) -> bool:
        started = time.monotonic()
        error: VkqueueError | None = self._device_lost.value
        if error is None:
            error = self._compile(backend, spec)
        self._answer(spec, error, time.monotonic() - started)
        return error is None

    def _compile(self, backend: Backend, spec: PipelineSpec) -> VkqueueError | None:
        log.debug("building pipeline %d (%s)", spec.id, spec.label or spec.entry)
        try:
            backend.compile(spec)
        except DeviceLostError as error:
            self._lose(error)
            return error
        except VkqueueError as error:
            return error
        except Exception as error:
            log.exception("unexpected failure while building pipeline %d", spec.id)
            return CompileError(f"the daemon failed while building {spec.entry!r}: {type(error).__name__}: {error}")
        return None

    def _answer(self, spec: PipelineSpec | None, error: VkqueueError | None, seconds: float = 0.0) -> None:
        if spec is not None:
            self._underway.discard(spec.id)
            self._deliver(PipelineBuilt(spec.id, error, seconds))


def _stopped() -> ShuttingDownError:
    return ShuttingDownError("the daemon stops and builds no more pipelines")
