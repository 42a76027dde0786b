"""The submissions in flight, waited for in the order in which they were submitted.

The time limit of a batch runs from when it is its turn: from its submission, or from the end of the batch
before it (finished or given up), whichever is later. So a batch never pays for one that was ahead of it, and
behind one that never ends each batch is still answered.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from vkqueue.errors import DeviceLostError, InternalError, JobTimeoutError, ShuttingDownError, VkqueueError
from vkqueue.gpu.backend import Backend, Submission
from vkqueue.model import DIRECT, Batch, Completion
from vkqueue.worker.bridge import Latch
from vkqueue.worker.events import Event

log = logging.getLogger("vkqueue.worker")

Deliver: TypeAlias = Callable[[Event], object]

# A wait that fails, other than by a lost device, leaves the fence unknown: it is tried again, with a pause,
# this many times in a row before the device is given up. Both figures are arbitrary.
_WAIT_ATTEMPTS = 5
_WAIT_PAUSE_S = 0.05


def as_vkqueue_error(error: Exception, doing: str) -> VkqueueError:
    """`error` itself if it is one of ours; a foreign one is a fault of the daemon: logged, and internal."""
    if isinstance(error, VkqueueError):
        return error
    log.error("unexpected failure while %s", doing, exc_info=error)
    return InternalError(f"the daemon failed while {doing}: {type(error).__name__}: {error}; see its log")


def failed(batch: Batch, error: VkqueueError) -> Completion:
    """The answer to a batch of which nothing ran."""
    return Completion(batch, errors=dict.fromkeys(range(len(batch.rows)), error), finished_ns=time.monotonic_ns())


def lost(batch: Batch, error: DeviceLostError, known: Completion | None = None) -> Completion:
    """The answer to a batch of a lost device: no row of it counts as done, whatever was known before."""
    errors: dict[int, VkqueueError] = dict.fromkeys(range(len(batch.rows)), error)
    submits = submitted_ns = 0
    if known is not None:
        errors.update(known.errors)
        submits, submitted_ns = known.submits, known.submitted_ns
    now = time.monotonic_ns()
    return Completion(batch, errors, submits=submits, submitted_ns=submitted_ns, finished_ns=now, lost=True)


def early_answer(known: Completion, error: VkqueueError) -> Completion:
    """The answer to a batch whose fence is still out: `error` for every row not known to be finished.

    Known are those that the host did while recording, and those that failed.
    """
    batch = known.batch
    errors = dict(known.errors)
    for index, flags in enumerate(batch.flags):
        if index not in errors and index not in known.results and not flags & DIRECT:
            errors[index] = error
    return Completion(
        batch,
        errors,
        dict(known.results),
        submits=known.submits,
        submitted_ns=known.submitted_ns,
        finished_ns=time.monotonic_ns(),
        final=False,
    )


def abandoned() -> ShuttingDownError:
    """What the rows of a batch get that is still on the device when the daemon stops."""
    return ShuttingDownError("the daemon stopped while the job was on the device; its outcome is unknown")


def collected(backend: Backend, submission: Submission) -> Completion:
    """The answer to a batch whose fence has signalled.

    Raises:
        DeviceLostError: the device was lost after all.
    """
    try:
        completion = backend.collect(submission)
    except DeviceLostError:
        raise
    except Exception as error:
        wire = as_vkqueue_error(error, "collecting results")
        completion = submission.completion
        completion.results.clear()
        completion.errors = {**failed(completion.batch, wire).errors, **completion.errors}
    completion.finished_ns = completion.finished_ns or time.monotonic_ns()
    return completion


class _Flight:
    __slots__ = ("answered", "delivered", "submission")

    def __init__(self, submission: Submission, delivered: bool) -> None:
        self.submission = submission
        self.delivered = delivered  # the final completion is out; only its turn to retire is waited for
        self.answered = delivered  # every row has an answer, be it the first one of a batch that is late


class FenceLine:
    """Waits for fences, in order, and delivers completions. For one thread: the one that waits.

    Args:
        deliver: takes the completions; never raises.
        retire: takes each submission after its completion was delivered, in order.
        device_lost: set once the device is lost, by whoever notices.
        lose: tells that it is.
        batch_timeout_s: the time limit of a batch.
        slice_s: the longest single wait.
    """

    def __init__(
        self,
        backend: Backend,
        deliver: Deliver,
        retire: Callable[[Submission], None],
        device_lost: Latch[DeviceLostError],
        lose: Callable[[DeviceLostError], None],
        *,
        batch_timeout_s: float,
        slice_s: float,
    ) -> None:
        self._backend = backend
        self._deliver = deliver
        self._retire = retire
        self._device_lost = device_lost
        self._lose = lose
        self._limit_ns = int(batch_timeout_s * 1e9)
        self._limit_s = batch_timeout_s
        self._slice_s = slice_s
        self._flights: deque[_Flight] = deque()
        self._turn_ns = 0  # when the batch before the first unanswered one ended or was given up
        self._wait_failures = 0
        self._idle = True

    @property
    def idle(self) -> bool:
        """Whether no fence is out. A lost device counts as idle, one that was given up does not."""
        return self._idle and not self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, submission: Submission, delivered: bool) -> None:
        """Put a submission at the end; `delivered` when no fence is out and its completion is delivered."""
        self._flights.append(_Flight(submission, delivered))

    def step(self) -> None:
        """Wait for the first submission, no longer than a slice; deliver what there is to say.

        Not to be called on an empty line.
        """
        try:
            self._step()
        except Exception as error:  # ours; without this the device's jobs would never be answered
            log.exception("the wait for the device failed")
            self._give_up(f"the daemon failed while waiting: {type(error).__name__}: {error}")

    def _step(self) -> None:
        gone = self._device_lost.value
        if gone is not None:
            self._spoil(gone)
            return
        first = self._flights[0]
        if first.delivered:
            self._pass(first)
            return
        try:
            finished = self._backend.wait(first.submission, self._patience_s())
        except DeviceLostError as error:
            self._lose(error)
        except Exception as error:
            self._wait_failed(first, as_vkqueue_error(error, "waiting for the device"))
        else:
            self._wait_failures = 0
            if finished:
                self._finish(first)
            else:
                self._give_up_overdue()

    def abandon(self) -> None:
        """Answer what is unanswered and forget all: the daemon stops. Nothing is retired."""
        error = abandoned()
        for flight in self._flights:
            if not flight.answered:
                self._answer_early(flight, error)
        self._idle = self.idle
        self._flights.clear()

    def _turn(self) -> _Flight | None:
        for flight in self._flights:
            if not flight.answered:
                return flight
        return None

    def _due_ns(self, flight: _Flight) -> int:
        return max(flight.submission.completion.submitted_ns, self._turn_ns) + self._limit_ns

    def _patience_s(self) -> float:
        """A slice, or less when a time limit ends earlier."""
        flight = self._turn()
        if flight is None:
            return self._slice_s
        return min(self._slice_s, max(0.0, (self._due_ns(flight) - time.monotonic_ns()) / 1e9))

    def _finish(self, flight: _Flight) -> None:
        try:
            completion = collected(self._backend, flight.submission)
        except DeviceLostError as error:
            self._lose(error)
            return
        if self._device_lost.value is not None:  # noticed elsewhere meanwhile: this is no success any more
            return
        self._deliver(completion)
        self._pass(flight)

    def _pass(self, flight: _Flight) -> None:
        self._flights.popleft()
        if not flight.delivered:
            self._turn_ns = time.monotonic_ns()
        self._retire(flight.submission)

    def _spoil(self, error: DeviceLostError) -> None:
        while self._flights:
            flight = self._flights.popleft()
            if not flight.delivered:
                known = flight.submission.completion
                self._deliver(lost(known.batch, error, known))

    def _give_up(self, reason: str) -> None:
        """Treat the device as lost without knowing it, so as to answer its jobs and open it anew."""
        self._idle = False
        self._lose(DeviceLostError(reason))

    def _wait_failed(self, first: _Flight, error: VkqueueError) -> None:
        if not first.answered:
            self._answer_early(first, error)
        self._wait_failures += 1
        if self._wait_failures == _WAIT_ATTEMPTS:
            self._give_up(f"waiting for the device keeps failing; it is given up: {error.message}")
            return
        time.sleep(_WAIT_PAUSE_S)

    def _give_up_overdue(self) -> None:
        flight = self._turn()
        now = time.monotonic_ns()
        if flight is None or now < self._due_ns(flight):
            return
        log.warning("batch %d is past its limit of %g s", flight.submission.batch.serial, self._limit_s)
        error = JobTimeoutError(
            f"not known to be finished within {self._limit_s:g} s, the time limit of a batch; "
            "may have been caused by another job in the batch or ahead of it",
            {"limit_s": self._limit_s},
        )
        self._answer_early(flight, error)
        self._turn_ns = now

    def _answer_early(self, flight: _Flight, error: VkqueueError) -> None:
        flight.answered = True
        self._deliver(early_answer(flight.submission.completion, error))
