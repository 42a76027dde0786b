"""A loaded version of a model at work: requests in, batches out, answers back. Driven by the loop, with one timer.

    infer → DynamicBatcher (models/batcher.py says when) → Batches (rows) → … → answers

Each accepted request is answered once, and counted once: as success, failure, cancelled or expired.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.alarms import Timer
from vkqueue.daemon.model_batch import Batches, Running
from vkqueue.daemon.model_graphs import Lane, ModelGraphs
from vkqueue.daemon.model_infer import Infer, InferReader
from vkqueue.daemon.model_statistics import ModelStatistics
from vkqueue.daemon.session import Session
from vkqueue.errors import InternalError, JobExpiredError, VkqueueError
from vkqueue.models.batcher import Batch, DynamicBatcher, Wait
from vkqueue.models.policy import BatchingPolicy
from vkqueue.models.predict import Predictor
from vkqueue.models.queue import Request

if TYPE_CHECKING:
    from vkqueue.daemon.service import Service

log = logging.getLogger("vkqueue.daemon")

# What says nothing about a single request, so that running each by itself would not help.
_OF_ALL = frozenset({"device_lost", "timeout", "shutting_down", "cancelled", "expired"})


class _Flight:
    """A batch that has left the batcher, while any of its requests runs.

    Attributes:
        runs: one, and if that failed one for each request.
        waiting: how many of these are not over.
    """

    __slots__ = ("batch", "lane", "runs", "waiting")

    def __init__(self, batch: Batch, lane: Lane) -> None:
        self.batch = batch
        self.lane = lane
        self.runs: list[Running] = []
        self.waiting = 1


class Serving:
    """One version of a model, ready.

    Args:
        version: the model's, which answers name.
        statistics: goes on counting in what takes this one's place.

    Attributes:
        id: no other that is served, or was, has it: also not the same version loaded anew.
        input_names: those that requests bring, in the model's order.
        running: batches that are in flight, by their serial numbers.
    """

    def __init__(self, service: Service, version: int, graphs: ModelGraphs, statistics: ModelStatistics) -> None:
        self._service = service
        self.id = service.new_id()
        self.version = version
        self.graphs = graphs
        self.definition = definition = graphs.definition
        self.statistics = statistics
        self._reader = InferReader(definition, graphs.device, service.config.limits.max_message_bytes)
        self.input_names = self._reader.shapes.names
        self._batches = Batches(service, graphs, self._reader)
        self.predictor = Predictor()
        policy, most = definition.batching or BatchingPolicy(), definition.max_batch_size
        if definition.batching is None:
            most = 1
        self.batcher = DynamicBatcher(policy, most, definition.instances, self.predictor, definition.max_batch_gpu_ms)
        self._policy = policy
        self.running: dict[int, _Flight] = {}
        self._finished: dict[int, _Flight] = {}  # those that wait for earlier ones (preserve_ordering)
        # Their answers go out when the next batch is on its way to the device, which shall not wait for them.
        self._unanswered: list[Running] = []
        graphs.session.answer = self._answer_all
        self._lanes = graphs.lanes[::-1]  # the last is taken: that which was used last
        self._timer = Timer(service.alarms, self._fired)
        self._ended: VkqueueError | None = None
        self._on_idle: Callable[[], None] | None = None

    # Requests

    def infer(self, session: Session, msgid: int, p: Mapping[str, Any], now: int) -> None:
        """Take a request in; `Service.settle` then looks which batches leave.

        Raises:
            VkqueueError: it is refused.
        """
        try:
            self._service.admit_job(session)
            infer = self._reader.read(session, msgid, p, now)
            try:
                self._batches.check_copies(infer)
                self._accept(infer, p.get("priority", 0), p.get("timeout_us", 0))
            except VkqueueError:
                self._let_go(infer)
                raise
        except VkqueueError:
            self.statistics.rejected += 1
            raise

    def infer_again(self, infer: Infer, priority: int, timeout_us: int) -> None:
        """As `infer`, for a request without buffers of which all is known to be right.

        Raises:
            VkqueueError: too many wait, of the connection, of all, or of its level.
        """
        try:
            self._service.admit_job(infer.session)
            self._accept(infer, priority, timeout_us)
        except VkqueueError:
            self.statistics.rejected += 1
            raise

    def _accept(self, infer: Infer, priority: int, timeout_us: int) -> None:
        session, msgid, shape, now = infer.session, infer.msgid, infer.shape, infer.received
        # Without a time-out of its own `enqueue` gives it that of its level.
        deadline = self._policy.deadline_ns(priority, now, timeout_us) if timeout_us else 0
        request = Request((session.id, msgid), shape.samples, shape.group, priority, now, deadline, infer, session.id)
        self.batcher.enqueue(request, now)
        self.statistics.accepted += 1
        session.open_jobs += 1
        session.infers[msgid] = self
        self._service.hold_bytes(session, infer.held_bytes)
        if request.deadline_ns or not self.batcher.full:
            self._service.models.due[self] = None

    def cancel(self, session: Session, msgid: int, error: VkqueueError | None) -> bool:
        """Take a waiting request out, and answer it by the error if there is one; whether it waited."""
        request = self.batcher.cancel((session.id, msgid))
        if request is None:
            return False
        self._end(request.payload, "cancelled", error)
        self._service.models.due[self] = None
        return True

    def pump(self) -> None:
        """Let those batches leave that may, and set the timer for what comes next."""
        if not len(self.batcher) and self.batcher.next_expiry_ns() is None:
            self._timer.set(None)
            self._look_whether_idle()
            return
        now = time.monotonic_ns()
        for request in self.batcher.expire(now):
            error = JobExpiredError(
                f"the request waited {(now - request.received_ns) // 1000} µs for the model {self.definition.name!r}, "
                "longer than its time-out",
            )
            self._end(request.payload, "expired", error)
        until: int | None = None
        while self._ended is None:
            decision = self.batcher.decide(now)
            if type(decision) is Batch:
                self._leave(decision, now)
                continue
            if type(decision) is Wait:
                until = decision.until_ns
            break
        expiry = self.batcher.next_expiry_ns()
        self._timer.set(min((due for due in (until, expiry) if due is not None), default=None))
        self._look_whether_idle()

    def _fired(self) -> None:
        self._service.models.due[self] = None
        self._service.settle()
        self.graphs.session.flush()

    # Batches

    def _leave(self, batch: Batch, now: int) -> None:
        flight = self.running[batch.serial] = _Flight(batch, self._lanes.pop())
        self.statistics.left(batch.reason, batch.samples)
        requests: list[Infer] = []
        for request in batch.requests:
            infer = request.payload
            infer.queued_ns = now - infer.received
            infer.session.infers.pop(infer.msgid, None)
            requests.append(infer)
        self._run(flight, requests, batch.samples, now, retry=len(requests) > 1)

    def _run(self, flight: _Flight, requests: list[Infer], samples: int, now: int, retry: bool) -> None:
        """Run requests of a batch that has left, as soon as their shape is there."""
        try:
            shape = self.graphs.ready(samples, requests[0].shape.group)
            if shape is None:
                task = asyncio.ensure_future(self._prepared(flight, requests, samples, now, retry))
                self._service.models.keep(task)
                return
            self._batches.submit(Running(requests, samples, shape, flight.lane, now, self._over, retry, flight))
        except Exception as exc:
            self._failed(flight, requests, samples, exc, now, retry)

    async def _prepared(self, flight: _Flight, requests: list[Infer], samples: int, now: int, retry: bool) -> None:
        try:
            shape = await self.graphs.prepare(samples, requests[0].shape.group)
            if self._ended is not None:
                raise self._ended
            self._batches.submit(Running(requests, samples, shape, flight.lane, now, self._over, retry, flight))
        except Exception as exc:
            self._failed(flight, requests, samples, exc, now, retry)
        self._service.settle()
        self.graphs.session.flush()

    def _failed(
        self, flight: _Flight, requests: list[Infer], samples: int, exc: Exception, now: int, retry: bool
    ) -> None:  # fmt: skip
        """Nothing of these requests was submitted."""
        running = Running(requests, samples, None, flight.lane, now, self._over, retry, flight)
        if isinstance(exc, VkqueueError):
            running.error = exc
        else:
            log.error("model %s: a batch", self.definition.name, exc_info=exc)
            running.error = InternalError("a fault of the daemon's own in a batch; its log has the details")
        self._over(running)
        self.graphs.session.flush()

    def _over(self, running: Running) -> None:
        """All rows of a run are answered."""
        flight: _Flight = running.of
        error = running.error
        if error is not None and running.retry and error.code not in _OF_ALL and self._ended is None:
            flight.waiting += len(running.requests) - 1
            now = time.monotonic_ns()
            log.info("model %s: a batch of %d failed, each runs by itself: %s", self.definition.name,
                     len(running.requests), error.message)  # fmt: skip
            for request in running.requests:
                self._run(flight, [request], request.shape.samples, now, retry=False)
            return
        flight.runs.append(running)
        flight.waiting -= 1
        if flight.waiting:
            return
        serial = flight.batch.serial
        del self.running[serial]
        self._finished[serial] = flight
        self._lanes.append(flight.lane)
        for done in self.batcher.done(serial, time.monotonic_ns()):
            finished = self._finished.pop(done)
            runs, finished.runs = finished.runs, []  # they name it too: no circle is left for the collector
            self._unanswered += runs
        self._service.models.due[self] = None

    # Answers

    def _answer_all(self) -> None:
        """Answer the runs that are over."""
        runs, self._unanswered = self._unanswered, []
        if not runs:
            return
        for run in runs:
            self._answer(run)
        self._look_whether_idle()
        self._service.settle()  # for those who waited for what was held for these requests

    def _answer(self, running: Running) -> None:
        now = time.monotonic_ns()
        error = running.error
        if error is not None and error.code == "not_found" and self.graphs.lane_error is not None:
            error = self.graphs.lane_error  # the buffer that was not found is the lane's
        if error is not None:
            for request in running.requests:
                self._end(request, "fail", error)
            return
        input_ns, device_ns, device_us = running.times
        parts = (input_ns, device_ns, max(now - running.closed_ns - input_ns - device_ns, 0))
        self.statistics.executed(running.samples, parts)
        if device_us is not None:
            self.predictor.learn(running.requests[0].shape.group, running.samples, device_us)
        count = samples = total_ns = queued_ns = 0
        for index, (request, data) in enumerate(zip(running.requests, self._batches.data_of(running), strict=True)):
            failed = running.errors.get(index)
            if failed is not None:
                self._end(request, "fail", failed)
                continue
            count += 1
            samples += request.shape.samples
            total_ns += max(now - request.received, 0)
            queued_ns += request.queued_ns
            self._finish(request, data, running, now)
        self.statistics.succeeded(count, samples, total_ns, queued_ns, parts)

    def _finish(self, infer: Infer, data: list[Any], running: Running, now: int) -> None:
        """A request has its outputs: let go of what it held, answer it."""
        session = infer.session
        if not infer.plain:
            self._let_go(infer)
        if session.closed:
            return
        session.open_jobs -= 1
        self._service.hold_bytes(session, -infer.held_bytes)
        around = infer.sizes.around
        if infer.plain and around and not infer.timing:
            session.conn.respond_around(infer.msgid, around, data)
            ok = True
        else:
            ok = session.conn.respond(
                infer.msgid, infer.result(data, self.version, running.samples, running.times[2], now)
            )
            if ok and infer.plain and not around:
                infer.sizes.around = infer.sizes.pack(self.version)
        if session.tracks_requests or not ok:
            self._service.request_done(session, infer.msgid, ok)
        self.graphs.session.answered[session.id] = session

    def _end(self, infer: Infer, how: str, error: VkqueueError | None) -> None:
        """A request is over without a result: count it, let go of what it held, answer it if there is an error."""
        self.statistics.requests[how].add(time.monotonic_ns() - infer.received)
        self._let_go(infer)
        session = infer.session
        session.infers.pop(infer.msgid, None)
        if session.closed:
            return
        session.open_jobs -= 1
        self._service.hold_bytes(session, -infer.held_bytes)
        if error is not None:
            self._service.fail(session, infer.msgid, error)
        self.graphs.session.answered[session.id] = session

    @staticmethod
    def _let_go(infer: Infer) -> None:
        for held in infer.held:
            held.buffer.device.let_go(held.buffer)

    # The end

    def fail_waiting(self, error: VkqueueError) -> None:
        """Answer what has not left by an error."""
        for request in self.batcher.drain():
            self._end(request.payload, "fail", error)

    def end(self, error: VkqueueError) -> None:
        """The device is lost: nothing is submitted any more; what waits fails."""
        self._ended = error
        self.fail_waiting(error)
        self._timer.set(None)

    @property
    def retiring(self) -> bool:
        """Whether it goes once all are answered."""
        return self._on_idle is not None

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Take no more requests (the caller sees to that); `on_idle` is called once all are answered."""
        self._on_idle = on_idle
        self._service.models.due[self] = None

    def _look_whether_idle(self) -> None:
        if self._on_idle is not None and not (self.running or self._unanswered or len(self.batcher)):
            on_idle, self._on_idle = self._on_idle, None
            self._timer.set(None)
            on_idle()

    # Warm-up

    async def warm_up(self, batch: int, group: tuple[int, ...]) -> None:
        """Run a shape once in each lane, with zeros.

        Raises:
            VkqueueError: it does not run.
        """
        shape = await self.graphs.prepare(batch, group)
        for lane in self.graphs.lanes:
            over: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
            zeros = [self._reader.zeros(batch, group)]
            running = Running(zeros, batch, shape, lane, time.monotonic_ns(), over.set_result)
            self._batches.submit(running)
            self._service.settle()
            await over
            if running.error is not None:
                raise self.graphs.lane_error or running.error


__all__ = ["Serving"]
