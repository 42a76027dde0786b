"""Requests that wait for a batch, in groups: those of one group may share a batch, those of two never do.

A group is a *candidate* once it may be worth a look: as one with enough samples, or whose oldest request has waited
long enough. Of the candidates that one is looked at first whose head has the highest priority and, of those, has waited
longest. Every step takes O(log n) for n requests (and what is found in a group's few levels).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Any

from vkqueue.heap import LazyHeap


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

    Attributes:
        delayed: whether its time is over and it waits behind the others ("DELAY").
        home: where it waits, None while it does not.
    """

    __slots__ = (
        "deadline_ns", "delayed", "group", "home", "id", "order", "payload", "place", "priority", "received_ns",
        "samples",
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
    ) -> None:
        self.id = id
        self.samples = samples
        self.group = group
        self.priority = priority
        self.received_ns = received_ns
        self.deadline_ns = deadline_ns
        self.payload = payload
        self.delayed = False
        self.home: Group | None = None
        self.order = 0  # in which requests came, or were put behind the others
        self.place = 0  # of its lane: twice the level, and one more once it is delayed

    @property
    def gone(self) -> bool:
        """Whether it left the queue."""
        return self.home is None

    @property
    def without_deadline(self) -> bool:
        """Whether nothing happens to it any more while it waits."""
        return self.home is None or self.delayed


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
        head: of the first that leaves, a number that is smaller the earlier its turn is.
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
        self._lanes: dict[int, OrderedDict[int, Request]] = {}
        self._places: list[int] = []  # of the lanes, rising; each has a request
        self._ages: LazyHeap[Request] = LazyHeap(attrgetter("gone"))

    def __iter__(self) -> Iterator[Request]:
        """Requests in the order in which they leave."""
        for place in self._places:
            yield from self._lanes[place].values()

    def put(self, request: Request) -> None:
        """Add a request to the end of its lane."""
        lane = self._lanes.get(request.place)
        if lane is None:
            lane = self._lanes[request.place] = OrderedDict()
            insort(self._places, request.place)
        lane[request.order] = request
        self.count += 1
        self.samples += request.samples

    def take(self, request: Request) -> None:
        """Remove a request."""
        lane = self._lanes[request.place]
        del lane[request.order]
        if not lane:
            del self._lanes[request.place]
            self._places.remove(request.place)
        self.count -= 1
        self.samples -= request.samples

    def comes_first(self, request: Request) -> bool:
        """Whether a request that was put last is served before all others."""
        return self.count == 1 or request.place < self.head >> 64

    def age(self, request: Request) -> None:
        """Count a new request's time too."""
        self._ages.push(request.received_ns, request.order, request)

    def find_oldest(self) -> int:
        """What `oldest_ns` has to be."""
        first = self._ages.first()
        assert first is not None
        return first[0]

    def find_head(self) -> int:
        """A number that is smaller the earlier the first request is served: place, then arrival."""
        place = self._places[0]
        return place << 64 | next(iter(self._lanes[place]))


class RequestQueue:
    """All requests of a model that wait.

    Args:
        enough: samples from which on a group is a candidate.
        delay_ns: waiting time from which on it is.

    Attributes:
        sizes: level → requests that wait there, delayed ones too.
    """

    def __init__(self, enough: int, delay_ns: int) -> None:
        self._enough = enough
        self._delay_ns = delay_ns
        self._groups: dict[Hashable, Group] = {}
        self._requests: dict[Hashable, Request] = {}
        self._candidates: LazyHeap[_Ticket] = LazyHeap(attrgetter("stale"))
        self._others: LazyHeap[_Ticket] = LazyHeap(attrgetter("stale"))
        self._deadlines: LazyHeap[Request] = LazyHeap(attrgetter("without_deadline"))
        self._order = 0
        self.sizes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, level: int, key: Hashable) -> None:
        """Append a request to its level.

        Args:
            key: of its group here.
        """
        self._order += 1
        request.order, request.place = self._order, 2 * level
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key)
        request.home = group
        group.put(request)
        group.age(request)
        self._requests[request.id] = request
        self.sizes[level] = self.sizes.get(level, 0) + 1
        if request.deadline_ns:
            self._deadlines.push(request.deadline_ns, request.order, request)
        candidate = group.candidate or group.samples >= self._enough
        # Behind others, and no longer there than the oldest, it changes neither.
        if candidate != group.candidate or group.comes_first(request) or request.received_ns < group.oldest_ns:
            self._changed(group, candidate)

    def remove(self, requests: list[Request]) -> None:
        """Requests that wait leave."""
        groups: dict[Hashable, Group] = {}
        for request in requests:
            group, request.home = request.home, None
            assert group is not None
            del self._requests[request.id]
            group.take(request)
            groups[group.key] = group
            level = request.place >> 1
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
        self._order += 1
        request.order = self._order
        request.delayed = True
        request.place |= 1
        group.put(request)
        self._changed(group, True)

    def drain(self) -> list[Request]:
        """Every request leaves, in the order in which they came; delayed ones as if they came then."""
        requests = sorted(self._requests.values(), key=attrgetter("order"))
        self.remove(requests)
        return requests

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
