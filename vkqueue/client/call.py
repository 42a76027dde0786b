"""A call: requests whose answers make up one value. The clients' futures are calls that can be waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from vkqueue.errors import NotFoundError, VkqueueError

if TYPE_CHECKING:
    from vkqueue.client.array import Handle

T = TypeVar("T")


class Uses(Protocol):
    """Something that holds a handle: a device array."""

    @property
    def handle(self) -> Handle: ...


class Read:
    """A handle whose memory a request only reads, where that is known (see `Requests.settling`)."""

    __slots__ = ("handle",)

    def __init__(self, handle: Handle) -> None:
        self.handle = handle


class Call(Generic[T]):
    """The outcome of requests under way.

    A call is done once: from then on its value or error stays. They are written before `finished` is, so that a
    thread that sees it True may read them without a lock.

    Attributes:
        msgid: of its request, or of the dispatch among several; None until it is sent.
        finished: whether it is done.
        client: whose call it is; what waits and cancels.
        uses: device arrays that its requests name. They stay alive until it is done.
    """

    __slots__ = ("_decode", "_error", "_value", "client", "finished", "msgid", "remaining", "uses")

    def __init__(self, client: Any, decode: Callable[[Any], T] | None, uses: Iterable[Uses] = ()) -> None:
        self.client = client
        self.uses = uses
        self.msgid: int | None = None
        self.remaining = 1
        self.finished = False
        self._decode = decode
        self._value: T | None = None
        self._error: BaseException | None = None

    def answered(self, error: BaseException | None, result: Any) -> None:
        """The answer to its only request, or (None or first error, None) once all of several have come."""
        if error is None:
            if self._decode is not None:
                try:
                    self._value = self._decode(result)
                # Whatever it is (no memory, a read-only target) belongs to whoever asked for the value, not to
                # the thread that happens to read the socket.
                except Exception as fault:
                    self._error = fault
        else:
            self._error = self._root(error)
        self.finished = True
        self._decode = None
        self.uses = ()
        self.wake()

    def _root(self, error: BaseException) -> BaseException:
        """An array whose creation failed is "not found" by those who use it: tell them why it failed."""
        if isinstance(error, NotFoundError):
            for used in self.uses:
                if used.handle.fault is not None:
                    return used.handle.fault
        return error

    def wake(self) -> None:
        """The call is done: let those who wait for it know. Runs in the thread that reads."""

    def done(self) -> bool:
        """Whether the answer is there: a value or an error."""
        return self.finished

    def outcome(self) -> T:
        """The value of a call that is done.

        Raises:
            VkqueueError: it failed.
        """
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set when done without error; T may be None

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None while it is under way and after success."""
        return self._error

    def __repr__(self) -> str:
        state = "under way" if not self.finished else "done" if self._error is None else f"failed: {self._error}"
        return f"<{type(self).__name__} {state}>"


class Part:
    """One request of a call that makes several.

    Args:
        errors: shared by the call's parts.
        sink: takes the result.
    """

    __slots__ = ("call", "errors", "place", "sink")

    def __init__(
        self,
        call: Call[Any],
        place: int,
        errors: dict[int, BaseException],
        sink: Callable[[Any], None] | None = None,
    ) -> None:
        self.call = call
        self.place = place
        self.errors = errors
        self.sink = sink

    def answered(self, error: BaseException | None, result: Any) -> None:
        """Take the answer; with the last one the call is done. Of several errors the earliest request's counts."""
        if error is None and self.sink is not None and not self.errors:
            try:
                self.sink(result)
            except Exception as fault:  # as in Call.answered
                error = fault
        if error is not None:
            self.errors[self.place] = error
        call = self.call
        call.remaining -= 1
        if call.remaining == 0:
            call.answered(self.errors[min(self.errors)] if self.errors else None, None)


class Creation:
    """A request that makes or first fills a buffer: its failure is kept for those who use the buffer.

    Args:
        target: whose request it is, of `call`.
        unreported: where the first failure is noted that nobody may have been told of.
    """

    __slots__ = ("call", "handle", "target", "unreported")

    def __init__(
        self, target: Call[Any] | Part, call: Call[Any], handle: Handle, unreported: list[VkqueueError]
    ) -> None:
        self.target = target
        self.call = call
        self.handle = handle
        self.unreported = unreported

    def answered(self, error: BaseException | None, result: Any) -> None:
        if isinstance(error, VkqueueError):
            self.handle.failed(error)
            if not self.unreported:
                self.unreported.append(error)
        self.target.answered(error, result)


Target: TypeAlias = Call[Any] | Part | Creation


def owner(target: Target) -> Call[Any]:
    """The call that an answer is for."""
    return target if isinstance(target, Call) else target.call
