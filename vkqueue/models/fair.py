"""Whose turn it is among clients: start-time fair queueing.

P. Goyal, H. M. Vin, H. Cheng: Start-Time Fair Queuing: A Scheduling Algorithm for Integrated Services Packet Switching
Networks, SIGCOMM 1996. A request starts, in virtual time, where its client's last one ends, or now if that is over; it
ends as many samples later. Requests leave by their starts, equal ones as they came. So a client's own keep their order,
and who comes new waits behind about one request of each other client, however many those have.

Two things differ, for requests here leave in batches, and may leave without being served:

- Virtual time is the start of the first of the batch that left last, and one more once that request came when it was
  that late already: no newcomers, however many, hold it where it is, so every request has its turn.
- What was not served (cancelled, too late) does not count: its client ends that much earlier, but not before the start
  of its last that waits, lest it gather many of one start; with nothing waiting, it ends where it was last served.
"""

from __future__ import annotations

from collections.abc import Hashable

# Arbitrary: below it, looking for clients to forget is not worth the while.
_FEW = 64


class _Client:
    """Of one client: where its last request starts and ends, where the last that was served ends, and how many wait."""

    __slots__ = ("end", "served", "start", "waiting")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.served = 0
        self.waiting = 1


class Turns:
    """Virtual time, in samples, of requests that are served by the same rules.

    A client is forgotten when nothing of it waits and what it was served counts no more: at once where time is past its
    end, else when there are twice as many clients, or nothing of anybody waits.

    Attributes:
        now: virtual time.
        since: `order` of the last request that came before it was that late.
        waiting: requests.
    """

    __slots__ = ("_clients", "_limit", "now", "since", "waiting")

    def __init__(self) -> None:
        self.now = self.since = 0
        self.waiting = 0
        self._clients: dict[Hashable, _Client] = {}
        self._limit = _FEW

    def __len__(self) -> int:
        """Clients remembered."""
        return len(self._clients)

    def enter(self, client: Hashable, samples: int) -> int:
        """A request comes; its start."""
        self.waiting += 1
        start = self.now
        known = self._clients.get(client)
        if known is None:
            if len(self._clients) >= self._limit:
                self._forget()
            self._clients[client] = _Client(start, start + samples)
            return start
        if known.end > start:
            start = known.end
        if known.waiting and known.start > start:
            start = known.start  # not before those that wait, though some between were not served
        known.start, known.end = start, start + samples
        known.waiting += 1
        return start

    def serve(self, start: int, order: int, last: int) -> None:
        """A batch leaves, and `leave` follows for each of its requests.

        Args:
            start: of its first request.
            order: of that one; rises from request to request.
            last: order of the last that came.
        """
        if start > self.now:
            self.now, self.since = start, last
        elif start == self.now and order > self.since:
            self.now, self.since = start + 1, last

    def leave(self, client: Hashable, start: int, samples: int, served: bool) -> None:
        """A request leaves."""
        self.waiting -= 1
        if not self.waiting:
            self._clients.clear()
            return
        known = self._clients[client]
        if served:
            known.served = start + samples
        else:
            known.end -= samples
        known.waiting -= 1
        if not known.waiting:
            known.end = known.served
            if known.end <= self.now:
                del self._clients[client]

    def _forget(self) -> None:
        self._clients = {id: known for id, known in self._clients.items() if known.waiting or known.end > self.now}
        self._limit = max(2 * len(self._clients), _FEW)


__all__ = ["Turns"]
