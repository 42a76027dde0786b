"""When requests of a model leave together, and which: Triton Inference Server's dynamic batcher, as a pure function of
state and time.

With `instances` batches in flight nothing leaves; what comes meanwhile piles up. With fewer the batch that could leave
is looked at, which is what fits of the first group (`queue`; clients take turns, `fair`). It leaves

- "predicted" or "full": when no further request fits, for its time on the device or for its size (with
  `preserve_ordering` also "full": when the next is of another group);
- "preferred": when it has, or passes, a preferred size; what is above the largest such size stays;
- "idle" or "delay": when its oldest request has waited `max_queue_delay_microseconds`. Without such a delay that is at
  once: "idle" while nothing is in flight, else "delay";
- "backlog", in place of all of these but "predicted": when requests in it were left waiting by busy instances. Then
  all that fits leaves, whatever sizes are preferred.

So no request waits longer than that delay for want of others, and none is sent in a smaller batch than it would have
been under less load: the delay counts from its receipt, while instances are busy too.

A request of more samples than a batch may have leaves alone. With `max_batch_size` 1 (or 0) each request does: that is
how a model without dynamic batching is served.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from vkqueue.errors import OverloadedError
from vkqueue.models.policy import BatchingPolicy
from vkqueue.models.predict import Predictor
from vkqueue.models.queue import Group, Request, RequestQueue

REASONS = ("idle", "preferred", "full", "delay", "backlog", "predicted")
"""Why a batch was closed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that leave together.

    Attributes:
        samples: of all of them.
        group: that of each.
        reason: one of `REASONS`.
        serial: rises from batch to batch, from 1.
    """

    requests: list[Request]
    samples: int
    group: Hashable
    reason: str
    serial: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again at `until_ns`, unless something happens before."""

    until_ns: int


@dataclass(slots=True)
class _Cut:
    """What of a group could leave.

    Attributes:
        requests: those that fit.
        preferred: how many of them make up the largest preferred size that is met, or fit below the largest that there
            is when that is passed; 0 when neither.
        closed: "full" or "predicted" when no further request could join, else "".
    """

    requests: list[Request]
    preferred: int
    closed: str


class DynamicBatcher:
    """Decides which requests leave when; counts why, and how many.

    Times are nanoseconds of one clock that never goes back. Ask `decide` after whatever changed (requests came, one was
    cancelled, a batch came back) until it says something other than a batch.

    Args:
        policy: the model's settings.
        max_batch_size: samples in a batch at most.
        instances: batches in flight at most.
        predictor: what is known of times on the device; needed for `max_batch_gpu_ms`.
        max_batch_gpu_ms: what a batch is thought to take at most, unless it is of one request; 0: no bound.

    Attributes:
        reasons: batches closed, by reason.
        sizes: batches closed, by samples.
        in_flight: batches that have left and are not done.
    """

    def __init__(
        self,
        policy: BatchingPolicy,
        max_batch_size: int,
        instances: int,
        predictor: Predictor | None = None,
        max_batch_gpu_ms: float = 0,
    ) -> None:
        self.policy = policy
        self.max_batch_size = max(max_batch_size, 1)
        self.instances = instances
        self.predictor = predictor
        self.reasons = dict.fromkeys(REASONS, 0)
        self.sizes: dict[int, int] = {}
        self.in_flight: set[int] = set()
        self._delay_ns = policy.max_queue_delay_microseconds * 1000
        self._limit_us = max_batch_gpu_ms * 1000 if predictor is not None else 0
        sizes = [size for size in policy.preferred_batch_size if size <= self.max_batch_size]
        self._preferred = frozenset(sizes or [self.max_batch_size])
        self._largest = max(self._preferred)
        any_size = policy.preserve_ordering or self._limit_us
        self._queue = RequestQueue(1 if any_size else min(self._preferred), self._delay_ns)
        self._expired: list[Request] = []  # not collected yet
        self._full_ns = -1  # when requests last were left waiting by busy instances
        self._serial = 0
        self._next = 1  # the batch whose requests are to be answered first, when order is kept
        self._done: set[int] = set()  # batches that are done, and wait for earlier ones

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether nothing can leave before a batch is done."""
        return len(self.in_flight) >= self.instances

    # In and out

    def find(self, id: Hashable) -> Request | None:
        """The request of that name, if it waits."""
        return self._queue.find(id)

    def enqueue(self, request: Request, now: int) -> None:
        """A request of its level waits for its client's turn.

        Raises:
            OverloadedError: `max_queue_size` requests wait there.
            ValueError: one of the same id waits.
        """
        if self._queue.find(request.id) is not None:
            raise ValueError(f"a request {request.id!r} waits already")
        self._sweep(now)
        level = self.policy.level(request.priority)
        rules = self.policy.queue_policy(level)
        most = rules.max_queue_size
        if most and self._queue.sizes.get(level, 0) >= most:
            raise OverloadedError(
                f"{most} requests wait for this model already, which is its max_queue_size; try again once answers "
                "have come",
                {"max_queue_size": most},
            )
        if not request.deadline_ns and rules.default_timeout_microseconds:
            request.deadline_ns = request.received_ns + rules.default_timeout_microseconds * 1000
        # Requests that must not overtake each other are one group here, and as if of one client; `_cut` ends where the
        # real group changes.
        if self.policy.preserve_ordering:
            request.client = None
        self._queue.add(request, level, None if self.policy.preserve_ordering else request.group)
        if self.full:
            self._full_ns = now

    def cancel(self, id: Hashable) -> Request | None:
        """Take a request out; None when it does not wait."""
        request = self._queue.find(id)
        if request is not None:
            self._queue.remove([request])
        return request

    def drain(self) -> list[Request]:
        """Take out every request, in the order in which they came or were delayed."""
        return self._queue.drain()

    def expire(self, now: int) -> list[Request]:
        """Requests that have waited too long, taken out; or put behind the others, where their level says so."""
        self._sweep(now)
        expired, self._expired = self._expired, []
        return expired

    def next_expiry_ns(self) -> int | None:
        """When `expire` has something to do."""
        return self._expired[0].deadline_ns if self._expired else self._queue.next_deadline_ns()

    def _sweep(self, now: int) -> None:
        if not self._queue.timed:
            return  # without looking: it is asked for thrice for each request
        while (request := self._queue.past_deadline(now)) is not None:
            if self.policy.queue_policy(request.place >> 1).timeout_action == "DELAY":
                self._queue.delay(request)
            else:
                self._queue.remove([request])
                self._expired.append(request)

    # Batches

    def decide(self, now: int) -> Batch | Wait | None:
        """What leaves now.

        Returns:
            Batch, which has left; Wait; or None: nothing until a batch is done or a request comes.
        """
        self._sweep(now)
        if not self._queue or self.full:
            return None
        while (group := self._queue.first_candidate(now)) is not None:
            cut = self._cut(group)
            due = group.oldest_ns + self._delay_ns <= now
            backlog = group.oldest_ns <= self._full_ns
            part = cut.preferred < len(cut.requests) or not cut.closed
            if cut.preferred and part and not backlog and not (due and self._delay_ns):
                return self._close(cut.requests[: cut.preferred], "preferred", now)
            if cut.closed or cut.preferred or due:
                return self._close(cut.requests, self._reason(cut, backlog), now)
            self._queue.dismiss(group)
        until = self._queue.next_due_ns()
        assert until is not None
        return Wait(until)

    def _reason(self, cut: _Cut, backlog: bool) -> str:
        if backlog and cut.closed != "predicted":
            return "backlog"
        if cut.closed:
            return cut.closed
        return "delay" if self._delay_ns or self.in_flight else "idle"

    def _cut(self, group: Group) -> _Cut:
        """What fits of a group, in its order."""
        requests: list[Request] = []
        samples, most, over = 0, self.max_batch_size, 0
        for request in group:
            if not requests and self._limit_us:
                assert self.predictor is not None
                most = self.predictor.most(request.group, self._limit_us, most)
            elif requests and request.group != requests[0].group:
                return _Cut(requests, self._preferred_count(requests, 0), "full")
            if requests and samples + request.samples > most:
                over = samples + request.samples
                break
            requests.append(request)
            samples += request.samples
            if samples >= most:
                break
        closed = ""
        if over or samples >= most:
            closed = "predicted" if most < (over or self.max_batch_size) <= self.max_batch_size else "full"
        return _Cut(requests, self._preferred_count(requests, over), closed)

    def _preferred_count(self, requests: list[Request], over: int) -> int:
        """`_Cut.preferred`; `over` is the size that the next request would make too large, if there is one."""
        best = samples = 0
        for count, request in enumerate(requests, 1):
            samples += request.samples
            if samples > self._largest:
                return best or max(count - 1, 1)
            if samples in self._preferred:
                best = count
        return best or (len(requests) if over > self._largest else 0)

    def _close(self, requests: list[Request], reason: str, now: int) -> Batch:
        self._queue.serve(requests)
        self._serial += 1
        samples = sum(request.samples for request in requests)
        self.in_flight.add(self._serial)
        if self._queue and self.full:
            self._full_ns = now
        self.reasons[reason] += 1
        self.sizes[samples] = self.sizes.get(samples, 0) + 1
        return Batch(requests, samples, requests[0].group, reason, self._serial)

    def done(self, serial: int, now: int) -> list[int]:
        """A batch is done, whatever became of it.

        Returns:
            Batches whose requests are to be answered now, in order: this one, or with `preserve_ordering` all from the
            first that is not answered up to one that is not done.
        """
        if self._queue and self.full:
            self._full_ns = now
        self.in_flight.remove(serial)
        if not self.policy.preserve_ordering:
            return [serial]
        self._done.add(serial)
        ready = []
        while self._next in self._done:
            self._done.remove(self._next)
            ready.append(self._next)
            self._next += 1
        return ready

    def statistics(self) -> dict[str, Any]:
        """Requests that wait, and counts of closed batches, by reason and by samples."""
        return {
            "queued": len(self._queue),
            "closed": dict(self.reasons),
            "batch_sizes": dict(sorted(self.sizes.items())),
        }
