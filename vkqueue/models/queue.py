"""Requests that wait for a batch, in groups: those of one group may share a batch, those of two never do.

Requests are ranked: by level of priority, those whose time is over behind the others of their level, and then by their
clients' turns (`fair`). A group is a *candidate* once it may be worth a look: as one with enough samples, or whose
oldest request has waited long enough. Of the candidates that one is looked at first whose head ranks first. Every step
takes O(log n) for n requests (and what is found in a group's few levels).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import Any

from vkqueue.heap import LazyHeap
from vkqueue.models.fair import Turns

# Arbitrary: below it, looking for starts of which all requests have left is not worth the while.
_FEW = 64


class Request:
    """One request; it waits once.

    Args:
        id: whatever names it to the caller; unique among those that wait.
        samples: of the batch dimension, at least 1.
        group: requests with another never share a batch with it.
        priority: the level asked for; 0: the model's default.
        received_ns: when it came.
        deadline_ns: when it has waited too long; 0: what its level has as default.
        payload: the caller's own.
        client: whose it is; clients take turns.

    Attributes:
        delayed: whether its time is over and it waits behind the others ("DELAY").
        gone: whether it waits no more, or not yet.
        home: where it waits, None while it does not.
        order: in which requests came, or were put behind the others.
        place: of its lane: twice the level, and one more once it is delayed.
        start: in the virtual time of its place; within it those of smaller start go first, then those of smaller order.
        without_deadline: whether nothing happens to it any more while it waits: it is gone or delayed.
    """

    __slots__ = (
        "client", "deadline_ns", "delayed", "gone", "group", "home", "id", "order", "payload", "place", "priority",
        "received_ns", "samples", "start", "without_deadline",
    )  # fmt: skip

    def __init__(
        self,
        id: Hashable,
        samples: int,
        group: Hashable,
        priority: int = 0,
        received_ns: int = 0,
        deadline_ns: int = 0,
        payload: Any = None,
        client: Hashable = None,
    ) -> None:
        self.id = id
        self.samples = samples
        self.group = group
        self.priority = priority
        self.received_ns = received_ns
        self.deadline_ns = deadline_ns
        self.payload = payload
        self.client = client
        self.delayed = False
        self.gone = self.without_deadline = True
        self.home: Group | None = None
        self.order = self.place = self.start = 0


class _Lane:
    """Requests of a group that are in one place, by start, and those of a start as they came.

    Starts that were looked at lie in `_front`, in order, and come before all in the heap; so each is taken from the
    heap once, though it be looked at often. Of some all requests may have left: of as many as have any, or a few.

    Attributes:
        starts: start → its requests by order; those in `_front` and in the heap.
        count: requests.
    """

    __slots__ = ("_front", "_heap", "count", "starts")

    def __init__(self) -> None:
        self.count = 0
        self.starts: dict[int, OrderedDict[int, Request]] = {}
        self._front: list[int] = []
        self._heap: list[int] = []

    def __iter__(self) -> Iterator[Request]:
        """Requests in order."""
        front, seen = self._front, 0
        while True:
            if seen == len(front):
                if not self._heap:
                    return
                front.append(heappop(self._heap))
            yield from self.starts[front[seen]].values()
            seen += 1

    def put(self, request: Request) -> None:
        """Add a request."""
        self.count += 1
        start = request.start
        equals = self.starts.get(start)
        if equals is None:
            if len(self.starts) > 2 * self.count + _FEW:
                self.starts = {start: some for start, some in self.starts.items() if some}
                self._front, self._heap = [], sorted(self.starts)
            equals = self.starts[request.start] = OrderedDict()
            front = self._front
            if front and start < front[-1]:
                for known in front:
                    heappush(self._heap, known)
                front.clear()
            heappush(self._heap, start)
        equals[request.order] = request

    def first(self) -> tuple[int, int]:
        """Start and order of the first request; there is one."""
        starts, front, heap = self.starts, self._front, self._heap
        left = 0
        while left < len(front) and not starts[front[left]]:
            del starts[front[left]]
            left += 1
        if left:
            del front[:left]
        while not front and not starts[heap[0]]:
            del starts[heappop(heap)]
        start = front[0] if front else heap[0]
        return start, next(iter(starts[start]))


class _Ticket:
    """A group's place in a heap; stale once the group has another or none."""

    __slots__ = ("group", "stale")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stale = False


class Group:
    """Requests that may share a batch, at least one.

    Attributes:
        samples: of all of them.
        count: how many.
        oldest_ns: receipt of the one that waited longest.
        head: of the first that leaves, a number that is smaller the earlier its turn is: place, start, order.
        key: by which it is known in the queue; with `preserve_ordering` one for all requests, whatever their group.
        candidate: whether it is to be looked at.
        ticket: its place in the heap of candidates or in that of the others.
    """

    __slots__ = ("_ages", "_lanes", "_places", "candidate", "count", "head", "key", "oldest_ns", "samples", "ticket")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.samples = 0
        self.count = 0
        self.oldest_ns = 0
        self.head = 0
        self.candidate = False
        self.ticket: _Ticket | None = None
        self._lanes: dict[int, _Lane] = {}
        self._places: list[int] = []  # of the lanes, rising; each has a request
        self._ages: LazyHeap[Request] = LazyHeap(attrgetter("gone"))

    def __iter__(self) -> Iterator[Request]:
        """Requests in the order in which they leave."""
        return chain.from_iterable([self._lanes[place] for place in self._places])

    def put(self, request: Request) -> None:
        """Add a request to its lane."""
        lane = self._lanes.get(request.place)
        if lane is None:
            lane = self._lanes[request.place] = _Lane()
            insort(self._places, request.place)
        lane.put(request)
        self.count += 1
        self.samples += request.samples

    def take(self, request: Request) -> None:
        """Remove a request."""
        lane = self._lanes[request.place]
        lane.count -= 1
        del lane.starts[request.start][request.order]
        if not lane.count:
            del self._lanes[request.place]
            self._places.remove(request.place)
        self.count -= 1
        self.samples -= request.samples

    def comes_first(self, request: Request) -> bool:
        """Whether a request that was put last is served before all others."""
        return self.count == 1 or request.place << 64 | request.start < self.head >> 64

    def age(self, request: Request) -> None:
        """Count a new request's time too."""
        self._ages.push(request.received_ns, request.order, request)

    def find_oldest(self) -> int:
        """What `oldest_ns` has to be."""
        first = self._ages.first()
        assert first is not None
        return first[0]

    def find_head(self) -> int:
        """What `head` has to be."""
        place = self._places[0]
        start, order = self._lanes[place].first()
        return (place << 64 | start) << 64 | order


class RequestQueue:
    """All requests of a model that wait.

    Args:
        enough: samples from which on a group is a candidate.
        delay_ns: waiting time from which on it is.

    Attributes:
        sizes: level → requests that wait there, delayed ones too.
        timed: whether one with a deadline ever came.
    """

    def __init__(self, enough: int, delay_ns: int) -> None:
        self._enough = enough
        self._delay_ns = delay_ns
        self._groups: dict[Hashable, Group] = {}
        self._requests: dict[Hashable, Request] = {}
        self._candidates: LazyHeap[_Ticket] = LazyHeap(attrgetter("stale"))
        self._others: LazyHeap[_Ticket] = LazyHeap(attrgetter("stale"))
        self._deadlines: LazyHeap[Request] = LazyHeap(attrgetter("without_deadline"))
        self._turns: dict[int, Turns] = {}  # place → of those that wait there, in whatever group
        self._order = 0
        self.sizes: dict[int, int] = {}
        self.timed = False

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, level: int, key: Hashable) -> None:
        """A request of a level waits for its client's turn.

        Args:
            key: of its group here.
        """
        request.gone = request.without_deadline = False
        self._rank(request, 2 * level)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key)
        request.home = group
        group.put(request)
        group.age(request)
        self._requests[request.id] = request
        self.sizes[level] = self.sizes.get(level, 0) + 1
        if request.deadline_ns:
            self.timed = True
            self._deadlines.push(request.deadline_ns, request.order, request)
        candidate = group.candidate or group.samples >= self._enough
        # Behind others, and no longer there than the oldest, it changes neither.
        if candidate != group.candidate or group.comes_first(request) or request.received_ns < group.oldest_ns:
            self._changed(group, candidate)

    def serve(self, requests: list[Request]) -> None:
        """Requests that wait leave as a batch; they are in order."""
        self._leave(requests, True)

    def remove(self, requests: list[Request]) -> None:
        """Requests that wait leave, and are not served."""
        self._leave(requests, False)

    def _leave(self, requests: list[Request], served: bool) -> None:
        groups: dict[Hashable, Group] = {}
        place = -1
        for request in requests:
            group, request.home = request.home, None
            assert group is not None
            request.gone = request.without_deadline = True
            del self._requests[request.id]
            group.take(request)
            if request.place != place:
                place = request.place
                turns = self._turns[place]
                if served:
                    turns.serve(request.start, request.order, self._order)
            turns.leave(request.client, request.start, request.samples, served)
            groups[group.key] = group
            level = place >> 1
            self.sizes[level] -= 1
            if not self.sizes[level]:
                del self.sizes[level]
        for group in groups.values():
            self._changed(group, group.candidate or group.samples >= self._enough)

    def find(self, id: Hashable) -> Request | None:
        """The request of that name, if it waits."""
        return self._requests.get(id)

    def delay(self, request: Request) -> None:
        """A request goes behind those of its level that are in time."""
        group = request.home
        assert group is not None
        group.take(request)
        self._turns[request.place].leave(request.client, request.start, request.samples, False)
        request.delayed = request.without_deadline = True
        self._rank(request, request.place | 1)
        group.put(request)
        self._changed(group, True)

    def drain(self) -> list[Request]:
        """Every request leaves, in the order in which they came; delayed ones as if they came then."""
        requests = sorted(self._requests.values(), key=attrgetter("order"))
        self.remove(requests)
        return requests

    # Turns

    def _rank(self, request: Request, place: int) -> None:
        turns = self._turns.get(place)
        if turns is None:
            turns = self._turns[place] = Turns()
        self._order += 1
        request.order, request.place = self._order, place
        request.start = turns.enter(request.client, request.samples)

    # Deadlines

    def next_deadline_ns(self) -> int | None:
        """The first."""
        first = self._deadlines.first()
        return first[0] if first is not None else None

    def past_deadline(self, now: int) -> Request | None:
        """A request in time no longer that is not delayed yet."""
        first = self._deadlines.first()
        return first[1] if first is not None and first[0] <= now else None

    # Groups

    def first_candidate(self, now: int) -> Group | None:
        """The group to look at first."""
        while (first := self._others.first()) is not None and first[0] + self._delay_ns <= now:
            self._queue_up(first[1].group, True)
        found = self._candidates.first()
        return found[1].group if found is not None else None

    def dismiss(self, group: Group) -> None:
        """A candidate that is none until a request comes to it, or its oldest has waited long enough."""
        self._queue_up(group, False)

    def next_due_ns(self) -> int | None:
        """When the oldest of those groups that are no candidates has waited long enough."""
        first = self._others.first()
        return first[0] + self._delay_ns if first is not None else None

    def _changed(self, group: Group, candidate: bool) -> None:
        if not group.count:
            del self._groups[group.key]
            assert group.ticket is not None
            group.ticket.stale = True
            return
        head, oldest = group.find_head(), group.find_oldest()
        same = candidate == group.candidate and (head == group.head if candidate else oldest == group.oldest_ns)
        group.head, group.oldest_ns = head, oldest
        if group.ticket is None or not same:
            self._queue_up(group, candidate)

    def _queue_up(self, group: Group, candidate: bool) -> None:
        """Into the heap of the candidates or of the others."""
        if group.ticket is not None:
            group.ticket.stale = True
        group.ticket = _Ticket(group)
        group.candidate = candidate
        self._order += 1
        if candidate:
            self._candidates.push(group.head, self._order, group.ticket)
        else:
            self._others.push(group.oldest_ns, self._order, group.ticket)
