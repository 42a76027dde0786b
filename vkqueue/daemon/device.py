"""One device as the loop sees it: its queue of rows, its batches in flight, its kernels, its worker thread.

    row → scheduler → (batcher says when) → stream → Batch → thread … Completion → answers

Decisions are the pure parts' (`jobs`); this file carries them out.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.alarms import Timer
from vkqueue.daemon.answers import Answers
from vkqueue.errors import (
    DeviceLostError,
    JobTimeoutError,
    ShuttingDownError,
    UnsupportedError,
    VkqueueError,
)
from vkqueue.jobs.batcher import Batcher, Close, Wait
from vkqueue.jobs.cost import Costs
from vkqueue.jobs.pace import Pace
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.jobs.stream import Stream
from vkqueue.kernels.plan import Plan
from vkqueue.kernels.requirements import unsupported
from vkqueue.model import (
    FREE,
    MANY,
    ROW_OP,
    ROW_OPTIONS,
    ROW_PAYLOAD,
    ROW_SESSION,
    ROW_STAMP,
    ROW_TARGET,
    Batch,
    Completion,
    DeviceInfo,
    PipelineBuilt,
    PipelineSpec,
    Release,
    Row,
)  # fmt: skip

if TYPE_CHECKING:
    from vkqueue.daemon.modules import Code, DeviceKernel, SpecKey
    from vkqueue.daemon.service import Service
    from vkqueue.daemon.session import Buffer, Session
    from vkqueue.worker.thread import DeviceThread

log = logging.getLogger("vkqueue.daemon")

# Arbitrary: fewer are not worth looking through.
_FEW_KERNELS = 256


class Device:
    """Loop-side state of a device. `generation` counts up each time the device is lost."""

    def __init__(
        self, service: Service, index: int, start: Callable[[Callable[[list[Any]], None]], DeviceThread]
    ) -> None:
        self.service = service
        self.index = index
        self.generation = 0
        self.info: DeviceInfo | None = None
        self.kernels: dict[tuple[str, str, SpecKey], DeviceKernel] = {}
        self.sessions = 0
        counted = ("jobs_completed", "jobs_failed", "launches", "batches", "submits", "pipelines_built")
        self.counters = dict.fromkeys(counted, 0)
        self.failure: VkqueueError | None = None
        self.rebuilds = 0
        self.memory_bytes = 0
        self._start = start
        self._attempt = 0
        self._thread: DeviceThread | None = None
        self._building: dict[int, DeviceKernel] = {}
        self._in_flight: dict[int, Batch] = {}
        self._answered: set[int] = set()  # batches in flight whose rows got `timeout`
        self._trim_at = _FEW_KERNELS
        self._freeing: deque[tuple[int, int, int]] = deque()  # last batch that may use it, session, size
        self._frees_queued = 0
        self._serial = 0
        self._timer = Timer(service.alarms, self.pump)
        self._deadline_timer = Timer(service.alarms, self._expire)
        self._stuck_timer = Timer(service.alarms, self._still_stuck)
        batching, limits = service.config.batching, service.config.limits
        self.costs = Costs(batching.max_batch_gpu_ms, batching.max_batch_jobs)
        self.scheduler = Scheduler(limits.max_queued_jobs, self.costs)
        self.batcher = Batcher(batching.max_batch_jobs, batching.max_batch_delay_us, batching.batches_in_flight)
        self.pace = Pace()
        self.finished_ns = 0  # of the newest batch that is over
        self.stream: Stream | None = None
        self._answers = Answers(service, self)

    # Life

    def open(self) -> None:
        """Start the worker thread; `Service.device_event` follows, with Opened or Failed."""
        if self._thread is not None:
            self._thread.request_stop()  # the device was lost: its objects end with it
        self._attempt += 1
        self._thread = self._start(partial(self._on_events, self._attempt))
        for kernel in self._building.values():  # asked of a thread that could not open the device
            self._compile(kernel)

    @property
    def working(self) -> bool:
        """Whether it is open, and neither lost nor being opened anew."""
        return self.info is not None and self.failure is None

    @property
    def busy(self) -> bool:
        """Whether rows are queued or in flight."""
        return bool(self._in_flight or self.scheduler.queued)

    def request_stop(self, timeout_s: float) -> None:
        """End the thread, within that time."""
        if self._thread is not None:
            self._thread.request_stop(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Blocking, off the loop: wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _on_events(self, attempt: int, events: list[Any]) -> None:
        """One burst from the device's threads: those of the newest attempt to open it, or late ones of an earlier."""
        for event in events:
            if type(event) is Completion:
                self._complete(event)
            elif type(event) is PipelineBuilt:
                if attempt == self._attempt:
                    self._built(event)
            else:
                self.service.device_event(self, event)
        self.service.settle()
        # Written here and now: another turn of the loop first would cost a lone job a tenth of its time.
        touched, self._answers.touched = self._answers.touched, {}
        for session in touched.values():
            session.flush()

    def opened(self, info: DeviceInfo) -> None:
        """The worker thread has the device."""
        self.info = replace(info, index=self.index)  # the daemon's own count, of the selected ones
        self.failure = None
        self.stream = Stream(info.max_push_descriptors, info.direct_write_max, info.direct_read_max)

    def lost(self, error: VkqueueError) -> None:
        """Fail what waits, forget what lived on the device; the service opens it anew."""
        self.generation += 1
        self.failure = error
        self.service.models.losing(self)
        kernels, self.kernels = self.kernels, {}
        self._building.clear()
        for kernel in kernels.values():
            kernel.ready, kernel.error = False, DeviceLostError("the device was lost; send the request again")
        for session in self.service.sessions.values():
            session.forget_kernels(self)
        self.service.graphs.lost(self, error)
        for row in self.scheduler.drain():
            self._fail_row(row, DeviceLostError("the device was lost before this job was submitted"))
        for serial in list(self._in_flight):
            batch = self._in_flight.pop(serial)
            if serial not in self._answered:  # else its rows got `timeout`
                self._answers.batch(Completion(batch, errors=dict.fromkeys(range(len(batch.rows)), error), lost=True))
        self._answered.clear()
        self._return_memory()
        self.memory_bytes = 0
        self.batcher.reset()

    # Kernels and pipelines

    def kernel(self, code: Code, name: str, reflected: dict[str, Any], spec: SpecKey) -> DeviceKernel:
        """The kernel on this device, made on first use.

        Raises:
            UnsupportedError: the device cannot run it.
        """
        from vkqueue.daemon.modules import DeviceKernel

        key = (code.digest, name, spec)
        kernel = self.kernels.get(key)
        if kernel is None:
            self._trim_kernels()
            reason = self.unsupported(reflected)
            if reason is not None:
                raise UnsupportedError(f"kernel {name!r}: {reason}")
            assert self.info is not None
            plan = Plan(name, reflected, self.info.limits, self.service.layouts)
            kernel = self.kernels[key] = DeviceKernel(key, code, name, plan, spec)
        return kernel

    def _trim_kernels(self) -> None:
        """Forget kernels that nobody calls and that have no pipeline."""
        if len(self.kernels) >= self._trim_at:
            self.kernels = {key: kernel for key, kernel in self.kernels.items() if kernel.users or kernel.pipeline}
            self._trim_at = 2 * len(self.kernels) + _FEW_KERNELS

    def unsupported(self, reflected: dict[str, Any], *, specializable: bool = False) -> str | None:
        """Why this device cannot run a kernel, None when it can.

        Args:
            specializable: specialization values may still come, so that what they decide is not judged yet.
        """
        if self.info is None:
            return "the device does not work at present"
        return unsupported(
            reflected,
            self.info.limits,
            self.info.features,
            api_version=self.info.api_version,
            strict=self.service.config.isolation.mode == "strict",
            specializable=specializable,
        )

    def build(self, kernel: DeviceKernel) -> None:
        """Ask the compile thread for the kernel's pipeline, unless it is at it."""
        if kernel.pipeline:
            return
        self._trim_pipelines()
        kernel.pipeline = self.service.new_id()
        self._building[kernel.pipeline] = kernel
        self._compile(kernel)

    def _compile(self, kernel: DeviceKernel) -> None:
        assert self._thread is not None
        label = f"{kernel.entry} {kernel.code.digest[:12]}"
        self._thread.compile(
            PipelineSpec(
                kernel.pipeline, kernel.plan.layout, kernel.code.shader(kernel.entry), kernel.entry, kernel.spec, label
            )
        )

    def _built(self, event: PipelineBuilt) -> None:
        kernel = self._building.pop(event.id, None)
        if kernel is None:  # the device was lost meanwhile
            return
        self.counters["pipelines_built"] += event.error is None
        if event.error is None:
            kernel.ready = True
            self.scheduler.pipeline_ready(event.id)
        else:
            # A compiler says the same thing again for the same words; anything else may pass, so is tried again.
            kernel.error = event.error if event.error.code in ("compile", "unsupported") else None
            kernel.pipeline = 0
            for row in self.scheduler.pipeline_failed(event.id):
                self._fail_row(row, event.error)
        self.service.graphs.built(kernel, event.error)
        self.service.models.built(kernel, event.error)

    def _trim_pipelines(self) -> None:
        """Release the longest unused pipelines past `max_pipelines`; those that a connection counts go last, and those
        that graphs keep stay."""
        limit = self.service.config.limits.max_device_pipelines
        ready = [k for k in self.kernels.values() if k.ready]
        loose = [k for k in ready if not k.pinned]
        if len(ready) < limit or not loose:
            return
        victim = min(loose, key=lambda k: (k.users > 0, k.last_used))
        self.evict(victim)

    def evict(self, kernel: DeviceKernel) -> None:
        """Free the kernel's pipeline once the batches posted so far are done; its next use builds it anew.

        Not while a row that may name it is queued: `last_used` is the stamp of the kernel's newest row, so nothing
        that was queued before the oldest row of the queue can need it.
        """
        if not kernel.ready or kernel.pinned:
            return
        if self.scheduler.queued and kernel.last_used >= self.scheduler.oldest_queued_ns:
            return
        self.post_release(Release(pipelines=(kernel.pipeline,)))
        kernel.pipeline, kernel.ready = 0, False

    # Rows

    def submit(self, row: Row, wait_for: int | None, outstanding: Sequence[int] = ()) -> None:
        """Queue a row (admitted already); the caller pumps after its burst."""
        self.scheduler.submit(row, row[ROW_STAMP], wait_for, outstanding)
        if row[ROW_OPTIONS] is not None and row[ROW_OPTIONS].deadline_ns:
            self._arm_deadline()

    def pump(self) -> None:
        """Close and post batches as the batcher says."""
        if not self.working:
            return
        scheduler = self.scheduler
        while scheduler.ready:
            now = time.monotonic_ns()
            queued = scheduler.ready + scheduler.launches
            decision = self.batcher.decide(queued, scheduler.oldest_ns, len(self._in_flight), now)
            if type(decision) is Close:
                launches = scheduler.launches
                rows = scheduler.take(decision.count, now)
                self._post(rows, decision.reason, now, many=scheduler.launches != launches)
            else:
                if type(decision) is Wait:
                    self._timer.set(decision.until_ns)
                elif self._answered:
                    self._watch_stuck()
                return

    # A device on which nothing ends

    @property
    def _stuck(self) -> bool:
        """Whether as many batches as may be in flight are past their limits, so that no other can be submitted."""
        return len(self._answered) == len(self._in_flight) >= self.service.config.batching.batches_in_flight

    def _watch_stuck(self) -> None:
        if self._stuck and self.scheduler.queued:
            limit_ns = int(self.service.config.batching.batch_timeout_s * 1e9)
            self._stuck_timer.set(time.monotonic_ns() + limit_ns)

    def _still_stuck(self) -> None:
        """What is queued gets the answer that it can get: nobody knows whether its turn will ever come."""
        if not self._stuck:
            return
        limit = self.service.config.batching.batch_timeout_s
        error = JobTimeoutError(
            f"not started: {len(self._in_flight)} batches are past their time limit and still on the device, which has "
            f"finished nothing for {limit:g} s more; see the daemon's log, and try again when it works",
            {"limit_s": limit},
        )
        for row in self.scheduler.drain():
            if row[ROW_OP] == FREE:
                self._frees_queued -= 1
                self.queue_free(row)
            else:
                self._fail_row(row, error)
        self.service.settle()

    def _post(self, rows: list[Row], reason: str, now: int, *, many: bool) -> None:
        frees: list[Row] = []
        if self._frees_queued:
            frees = [row for row in rows if row[ROW_OP] == FREE]
            rows = [row for row in rows if row[ROW_OP] != FREE]
        if rows:
            self._serial += 1
            assert self.stream is not None and self._thread is not None
            self.batcher.count(reason, len(rows))
            batch = self.stream.make_batch(rows, self._serial, reason, now)
            batch.timed = self.costs.wants_times() or many  # how many launches leave at once hangs on what they take
            self._in_flight[self._serial] = batch
            self._thread.post(batch)
        if frees:
            self._frees_queued -= len(frees)
            self._free([(row[ROW_TARGET], row[ROW_SESSION], row[ROW_PAYLOAD]) for row in frees])

    def queue_free(self, row: Row) -> None:
        """A FREE row: takes its turn behind what uses the buffer. The caller pumps after its burst."""
        self._frees_queued += 1
        self.scheduler.submit(row, row[ROW_STAMP], None)

    def _free(self, buffers: list[tuple[int, int, int]]) -> None:
        """Release buffers (id, session, size) after every batch posted so far, and give the memory back then."""
        if not buffers:
            return
        ids = tuple(id for id, _, _ in buffers)
        if self.stream is not None:
            self.stream.forget(ids)
        self.post_release(Release(buffers=ids))
        self._freeing.extend((self._serial, session, size) for _, session, size in buffers)
        self._return_memory()

    def let_go(self, buffer: Buffer) -> None:
        """One holder of a buffer less; its memory goes with the last if the buffer was freed meanwhile."""
        buffer.holders -= 1
        if buffer.holders or buffer.released is None:
            return
        if buffer.generation == self.generation:
            self._free([(buffer.id, buffer.released, buffer.size)])
        elif (session := self.service.sessions.get(buffer.released)) is not None:  # it went with the device
            session.buffers -= 1
            session.memory_bytes -= buffer.size

    def never_created(self, session: Session, buffer: Buffer) -> None:
        """The creation of a buffer failed; of what it held nothing is left to wait for."""
        self.post_release(Release(buffers=(buffer.id,)))
        self._returned(session, buffer.size)

    def _returned(self, session: Session | None, size: int) -> None:
        self.memory_bytes -= size
        if session is not None:
            session.buffers -= 1
            session.memory_bytes -= size

    def post_release(self, release: Release) -> None:
        """Free these on the device once the batches posted so far are done; nothing when it was never opened."""
        if self._thread is not None:
            self._thread.post(release)

    def _return_memory(self) -> None:
        first = next(iter(self._in_flight), self._serial + 1)
        while self._freeing and self._freeing[0][0] < first:
            _, session, size = self._freeing.popleft()
            self._returned(self.service.sessions.get(session), size)

    # Deadlines and cancellation

    def _arm_deadline(self) -> None:
        self._deadline_timer.set(self.scheduler.next_deadline_ns())

    def _expire(self) -> None:
        for row in self.scheduler.expire(time.monotonic_ns()):
            self._fail_row(row, self.service.expired_error())
        self._arm_deadline()
        self.service.settle()

    def cancel(self, session: Session, msgid: int, error: VkqueueError) -> bool:
        """Take a row out of the queue and answer it; False when it is not there."""
        row = self.scheduler.cancel(session.id, msgid)
        if row is not None:
            self._fail_row(row, error)
        return row is not None

    def fail_queued(self) -> None:
        """Answer `shutting_down` for every row that was not submitted."""
        for row in self.scheduler.drain():
            self._fail_row(row, ShuttingDownError("the daemon stopped before this job was submitted"))

    def drop_session(self, session: Session) -> None:
        """The connection is gone: forget its queued rows and free its buffers; running rows finish unseen."""
        freed = [row for row in self.scheduler.remove_session(session.id) if row[ROW_OP] == FREE]
        self._frees_queued -= len(freed)
        owned = []
        for buffer in session.buffers_on(self):
            if buffer.holders:
                buffer.released = session.id
            elif buffer.generation == self.generation:
                owned.append((buffer.id, session.id, buffer.size))
        self._free(owned + [(row[ROW_TARGET], session.id, row[ROW_PAYLOAD]) for row in freed])

    # Answers

    def _fail_row(self, row: Row, error: VkqueueError) -> None:
        session = self.service.sessions.get(row[ROW_SESSION])
        if row[ROW_OP] == FREE:  # the device is lost or the daemon stops: the memory is gone either way
            self._frees_queued -= 1
            self._returned(session, row[ROW_PAYLOAD])
            return
        if row[ROW_OP] == MANY:
            row[ROW_PAYLOAD].job.over = True  # parts of it may be on the device
        self.counters["jobs_failed"] += 1
        if session is not None:
            self.service.job_failed(session, row, error)

    def _complete(self, completion: Completion) -> None:
        batch = completion.batch
        serial = batch.serial
        if serial not in self._in_flight:  # answered when the device was lost
            return
        if completion.final:
            del self._in_flight[serial]
            assert self.stream is not None
            if len(completion.errors) < len(batch.rows):
                self.rebuilds = 0  # it works
            if completion.lost or len(completion.errors) == len(batch.rows):
                self.stream.reset()
            self.stream.completed(serial)
            self.counters["batches"] += 1
            self.counters["submits"] += completion.submits
        if serial not in self._answered:
            self._answers.batch(completion)
        if completion.final:
            self.costs.finished(completion, completion.finished_ns - max(completion.submitted_ns, self.finished_ns))
            self.finished_ns = completion.finished_ns
            self._answered.discard(serial)
            self._return_memory()
        else:
            self._answered.add(serial)
            self._watch_stuck()

    def stats(self) -> dict[str, Any]:
        """This device's part of the `stats` answer."""
        memory = self._thread.memory() if self._thread is not None and self.working else {}
        return {
            "index": self.index,
            "working": self.working,
            "generation": self.generation,
            "clients": self.sessions,
            "buffers": memory.get("buffers", 0),
            "memory_bytes": memory.get("bytes_used", 0),
            "memory": memory,
            "jobs_queued": self.scheduler.queued,
            "batches_in_flight": len(self._in_flight),
            **self.counters,
            "closed": dict(self.batcher.reasons),
            "batch_sizes": {str(size): n for size, n in self.batcher.sizes.items()},  # keys on the wire are strings
            "gpu_time": self.costs.stats(),
        }
