"""Requests of a client and the answers to them, without I/O; see `core` for the whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from vkqueue.client.call import Call, Creation, Read, Target, Uses, owner
from vkqueue.errors import ConnectionLostError, DependencyError, JobCancelledError, VkqueueError
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection

if TYPE_CHECKING:
    from vkqueue.client.array import Handle

# The daemon's answers are as long as we ask for, and it may be set up for larger messages than the default.
_LIMITS = Limits(max_message_bytes=2**32, max_items=2**24, max_str_bytes=2**30)


_LAUNCHES = ("dispatch", "graph.launch")


class _Held(NamedTuple):
    """A request that has not been sent."""

    number: int  # what `started` was with it
    method: str
    params: dict[str, Any] | bytes
    target: Target
    after: tuple[Call[Any], ...]
    file: Any


class Requests:
    """The requests of one connection, and their order.

    Args:
        new_call: makes a call of the shell's kind from (decode, uses).

    Attributes:
        lost: why the connection is over; None while it is not.
        started: how many requests were started in their turn.
        settled: set when a call was ended here, not by an answer; for the shell, who clears it.
    """

    def __init__(self, new_call: Callable[[Callable[[Any], Any] | None, Iterable[Uses]], Call[Any]]) -> None:
        self.session = ClientConnection(_LIMITS)
        self.lost: ConnectionLostError | None = None
        self.started = 0
        self.settled = False
        self.calls: dict[int, Target] = {}
        self._new_call = new_call
        self._held: deque[_Held] = deque()
        self._graveyard: deque[tuple[str, str, int]] = deque()
        self._unreported: list[VkqueueError] = []
        self._max_calls = 1

    # Bytes.

    def get_buffer(self) -> memoryview:
        """Where the next bytes from the daemon go."""
        return self.session.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Take in `count` bytes, the end of the stream if 0, and finish the calls that they answer."""
        if count == 0:
            self.fail("the daemon closed the connection")
            return
        calls = self.calls
        for msgid, error, result in self.session.buffer_updated(count):
            calls[msgid].answered(error, result)
            del calls[msgid]  # not before: an interrupt in between would leave a call that nobody ends
        if self._held:
            self._send_held()
        if self.session.fault is not None:
            self.fail(f"the connection is over: {self.session.fault.message}", self.session.fault)

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """The connection is over: every call under way fails with ConnectionLostError."""
        if self.lost is not None:
            return
        self.lost = ConnectionLostError(reason)
        self.lost.__cause__ = cause
        calls = self._under_way()
        self.calls.clear()
        self._held.clear()
        self.settled = True
        for call in calls:
            if not call.finished:
                call.answered(self.lost_error(), None)

    def lost_error(self) -> ConnectionLostError:
        """Why the connection is over. One for each who gets it: a shared error would collect their tracebacks."""
        assert self.lost is not None
        error = ConnectionLostError(self.lost.message)
        error.__cause__ = self.lost.__cause__
        return error

    # Requests.

    def request(
        self,
        method: str,
        params: dict[str, Any],
        decode: Callable[[Any], Any] | None = None,
        uses: Iterable[Uses] = (),
    ) -> Call[Any]:
        """Start a request in its turn."""
        self._begin()
        call = self._new_call(decode, uses)
        self._start(method, params, call)
        return call

    def control(self, method: str, params: dict[str, Any], decode: Callable[[Any], Any] | None = None) -> Call[Any]:
        """Start a request that overtakes those held back, and that no limit holds back."""
        self._check()
        call = self._new_call(decode, ())
        self._send(method, params, call, ())
        return call

    def dispatch(self, packed: bytes, uses: Iterable[Uses], method: str = "dispatch") -> Call[Any]:
        """Start a launch (of a graph, if `method` says so) whose parameters are packed already; its value is None."""
        if self.lost is not None or self._graveyard:
            self._begin()
        call = self._new_call(None, uses)
        if self._held or len(self.calls) >= self._max_calls:
            self._start(method, packed, call)
        else:
            self.started += 1
            call.msgid = msgid = self.session.request_packed(method, packed)
            self.calls[msgid] = call
        return call

    def cancel(self, call: Call[Any]) -> Call[bool] | None:
        """Ask for the end of a call; None if nothing has to be asked.

        Requests of it that were not sent fail with JobCancelledError here. Buffers that it was to free are still
        freed.
        """
        if call.finished or self.lost is not None:
            return None
        dropped = [held.target for held in self._held if owner(held.target) is call]
        if dropped:
            self._held = deque(held for held in self._held if owner(held.target) is not call)
            self.settled = True
        asked: Call[bool] | None = None
        for msgid in self._msgids(call):
            asked = self.control("cancel", {"msgid": msgid}, lambda result: bool(result["cancelled"]))
        for target in dropped:
            target.answered(JobCancelledError("cancelled before it was sent"), None)
        return asked

    @property
    def holding(self) -> bool:
        """Whether requests are held back."""
        return bool(self._held)

    def has_sent(self, number: int) -> bool:
        """Whether the first `number` of the requests started have been passed to the session, or dropped."""
        return not self._held or self._held[0].number > number

    def outstanding(self) -> list[Call[Any]]:
        """The calls under way, oldest first; buffers that wait to be freed go out."""
        self._begin()
        return self._under_way()

    def using(self, handle: Handle) -> list[Call[Any]]:
        """The calls under way that use a buffer, oldest first."""
        self._check()
        return [call for call in self._under_way() if any(used.handle is handle for used in call.uses)]

    def settling(self, read: Iterable[Handle], written: Iterable[Handle] = ()) -> list[Call[Any]]:
        """The calls under way that make, fill or may write one of these handles, or use one that is to be written,
        oldest first.
        """
        self._check()
        theirs, ours = {*read, *written}, {*written}
        found: dict[Call[Any], None] = {}
        for target in (*self.calls.values(), *(held.target for held in self._held)):
            call = owner(target)
            made = isinstance(target, Creation) and target.handle in theirs
            if made or any(used.handle in (ours if type(used) is Read else theirs) for used in call.uses):
                found[call] = None
        return [*found]

    def _under_way(self) -> list[Call[Any]]:
        targets = (*self.calls.values(), *(held.target for held in self._held))
        return list(dict.fromkeys(map(owner, targets)))

    def check(self) -> None:
        """Raise what went wrong since the last time that nobody may have been told of.

        Raises:
            ConnectionLostError: the connection is over.
            VkqueueError: a buffer could not be made.
        """
        self._check()
        if self._unreported:
            raise self._unreported.pop()

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost_error()

    def _begin(self) -> None:
        """Before each start: check the connection, and free what was collected since the last one."""
        self._check()
        while self._graveyard:
            method, key, id = self._graveyard.popleft()
            self._start(method, {key: id}, self._new_call(None, ()))

    def _start(
        self,
        method: str,
        params: dict[str, Any] | bytes,
        target: Target,
        after: tuple[Call[Any], ...] = (),
        file: Any = None,
    ) -> None:
        self.started += 1
        if self._held or len(self.calls) >= self._max_calls:
            self._held.append(_Held(self.started, method, params, target, after, file))
        else:
            self._send(method, params, target, after, file)

    def _send_held(self) -> None:
        held = self._held
        while held and len(self.calls) < self._max_calls:
            _, method, params, target, after, file = held[0]
            self._send(method, params, target, after, file)
            held.popleft()  # not before, as in buffer_updated

    def _send(
        self,
        method: str,
        params: dict[str, Any] | bytes,
        target: Target,
        after: tuple[Call[Any], ...],
        file: Any = None,
    ) -> None:
        if after and isinstance(params, dict) and not self._set_after(params, after, target):
            return
        try:
            if isinstance(params, bytes):
                msgid = self.session.request_packed(method, params)
            else:
                msgid = self.session.request(method, params, file)
        except VkqueueError as error:  # a value that cannot travel, or too much of it: nothing was queued
            self.settled = True
            target.answered(error, None)
            return
        self.calls[msgid] = target
        call = owner(target)
        if method in _LAUNCHES or call.msgid is None:
            call.msgid = msgid

    def _set_after(self, params: dict[str, Any], after: tuple[Call[Any], ...], target: Target) -> bool:
        """Name the requests to wait for; False if one has failed already (the target is answered then)."""
        for call in after:
            if call.error is not None:
                self.settled = True
                target.answered(DependencyError(f"a call named in `after` failed: {call.error}"), None)
                return False
        params["after"] = [msgid for call in after for msgid in self._msgids(call)]
        return True

    def _msgids(self, call: Call[Any]) -> list[int]:
        """Its requests under way."""
        if call.msgid is not None and self.calls.get(call.msgid) is call:
            return [call.msgid]
        return [msgid for msgid, target in self.calls.items() if owner(target) is call]
