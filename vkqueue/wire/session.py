"""The state of one connection in the daemon, between bytes and requests. No I/O here.

A connection goes through the states of `_NEXT`. The client's end, which has no states but being at fault, is in
`wire.client`.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from vkqueue.errors import InternalError, InvalidError, ProtocolError, TooLargeError, VkqueueError
from vkqueue.wire import codec
from vkqueue.wire.client import ClientConnection
from vkqueue.wire.codec import Piece
from vkqueue.wire.connection import NOTIFICATION, REQUEST, RESPONSE, RESPONSE_HEAD_BYTES, Connection, response_head
from vkqueue.wire.framing import Limits, structure_fault
from vkqueue.wire.messages import PARAMETER_NAMES, U32_MAX, WITH_FILE, check, describe
from vkqueue.wire.repeats import Repeats

__all__ = ["ClientConnection", "Event", "Request", "ServerConnection", "State"]

Request: TypeAlias = tuple[int, str, Any]
"""(msgid, method, params): params are a map, or, of a request for inference whose form is known, `forms.Filled`."""


class State(Enum):
    """Where a server's connection stands."""

    NEW = "new"  # nothing but `hello` is answered
    GREETING = "greeting"  # `hello` is with the daemon; what came behind it waits
    READY = "ready"
    CLOSED = "closed"  # at fault or given up: nothing more is taken


class Event(Enum):
    """What moves it."""

    HELLO = "hello"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    REQUEST = "request"
    ABORTED = "aborted"


_NEXT: dict[tuple[State, Event], State] = {
    (State.NEW, Event.HELLO): State.GREETING,
    (State.GREETING, Event.ACCEPTED): State.READY,
    (State.GREETING, Event.REFUSED): State.NEW,
    (State.READY, Event.REQUEST): State.READY,
    (State.NEW, Event.ABORTED): State.CLOSED,
    (State.GREETING, Event.ABORTED): State.CLOSED,
    (State.READY, Event.ABORTED): State.CLOSED,
    (State.CLOSED, Event.ABORTED): State.CLOSED,
}

# What a client may not do in a state, and how it is told.
_REFUSALS: dict[tuple[State, Event], VkqueueError] = {
    (State.NEW, Event.REQUEST): ProtocolError('the first request of a connection is "hello"; send it first'),
    (State.READY, Event.HELLO): InvalidError('"hello" was accepted before, and comes once; open another connection'),
}


# Arbitrary: nobody may make the daemon remember failures without end.
_MAX_REFUSED = 4096


class ServerConnection(Connection):
    """One client's connection, in the daemon.

    Faults are handled exactly at their place in the stream: what came before is delivered, nothing behind is.

    Attributes:
        pending: msgids that are not answered yet.
        refused: msgids of requests that were answered here; see `take_refused`.
        state: where the connection stands.
        files: descriptors that came beside the bytes; put them here before `buffer_updated` of those bytes. Each
            request of `messages.WITH_FILE` takes the oldest, also one that is answered here (its is closed).
        files_of: descriptors of delivered requests, by msgid; they are the daemon's.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, Repeats(partial(_needs_no_check, limits.max_depth)))
        self.pending: set[int] = set()
        self.refused: deque[int] = deque(maxlen=_MAX_REFUSED)
        self.files: deque[int] = deque()
        self.files_of: dict[int, int] = {}
        self.state = State.NEW
        self._hello: int | None = None  # its msgid while GREETING
        self._behind_hello: list[Any] = []
        self._delivery: list[Request] = []  # what the last `buffer_updated` returned
        self._last_words: VkqueueError | None = None  # goes out behind all answers

    @property
    def closing(self) -> bool:
        """Whether the connection is at fault: send what `data_to_send` gives, then close."""
        return self.state is State.CLOSED

    def buffer_updated(self, count: int) -> list[Request]:
        """Take `count` bytes that were read into `get_buffer()`.

        Returns:
            Requests, in order. Whether the method exists and the parameters are right is
            for `messages.check`; their shape, keys and depth are checked, and those of `hello` wholly. Answer a
            `hello` while going through this very list, by `ready` or `fail`: what came behind it in the same burst
            is appended to the list then.
        """
        self._delivery = []
        self._take(self._splitter.buffer_updated(count))
        return self._delivery

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Request]:
        """As `buffer_updated`, for bytes that are somewhere else: they are copied."""
        self._delivery = []
        for messages in self._copy_in(data):
            self._take(messages)
        return self._delivery

    def ready(self) -> None:
        """The daemon accepted `hello`."""
        self._move(Event.ACCEPTED)
        self._take_behind_hello()

    def take_refused(self) -> list[int]:
        """Msgids of the newest requests that failed before they were delivered, since the last call."""
        refused = list(self.refused)
        self.refused.clear()
        return refused

    def respond(self, msgid: int, result: object) -> bool:
        """Answer a request. Large bytes-like values in `result` are sent as they are: leave them alone until then.

        Returns:
            False when the answer is over `max_message_bytes`: it becomes a `too_large` error.

        Raises:
            InvalidError: `result` holds something that MessagePack has no form for; nothing is sent.
            KeyError: no request of this msgid waits for an answer.
        """
        pieces = codec.pack_pieces(self._packer, result)
        size = sum(map(len, pieces)) + RESPONSE_HEAD_BYTES
        if size > self._limits.max_message_bytes:
            self.fail(msgid, TooLargeError(
                f"the answer has {size} bytes: the limit is {self._limits.max_message_bytes} (max_message_bytes of "
                "hello); ask for it in parts"
            ))  # fmt: skip
            return False
        self.pending.remove(msgid)
        self._queue([response_head(0x94, RESPONSE, 0xCE, msgid, 0xC0), *pieces])
        return True

    def respond_packed(self, msgid: int, packed_result: bytes) -> None:
        """Answer a request by a result that is MessagePack already, and small.

        Raises:
            KeyError: no request of this msgid waits for an answer.
        """
        self.pending.remove(msgid)
        self._small.append(response_head(0x94, RESPONSE, 0xCE, msgid, 0xC0) + packed_result)
        self.bytes_out += RESPONSE_HEAD_BYTES + len(packed_result)

    def respond_around(self, msgid: int, parts: Sequence[bytes], bins: Sequence[Piece]) -> None:
        """Answer a request by a result that was packed by `codec.pack_around`, and the bins in its gaps. They must not
        change until they have been sent; it fits a message.

        Raises:
            KeyError: no request of this msgid waits for an answer.
        """
        self.pending.remove(msgid)
        pieces: list[Piece] = [response_head(0x94, RESPONSE, 0xCE, msgid, 0xC0) + parts[0]]
        for place, data in enumerate(bins, 1):
            pieces.append(data)
            pieces.append(parts[place])
        if sum(map(len, bins)) >= codec.LARGE:
            self._queue(pieces)
            return
        answer = b"".join(pieces)
        self._small.append(answer)
        self.bytes_out += len(answer)

    def respond_alike(self, msgids: list[int], packed_result: bytes) -> None:
        """Answer several requests by one result that is MessagePack already, and small.

        Raises:
            KeyError: no request waits for an answer with one of the msgids; none is answered then.
        """
        if not self.pending.issuperset(msgids):
            raise KeyError(next(msgid for msgid in msgids if msgid not in self.pending))
        self.pending.difference_update(msgids)
        # All answers in one go: copies of one, with the bytes of the msgids laid over every so many bytes.
        size = RESPONSE_HEAD_BYTES + len(packed_result)
        answers = bytearray((response_head(0x94, RESPONSE, 0xCE, 0, 0xC0) + packed_result) * len(msgids))
        ids = array("I", msgids)
        if sys.byteorder == "little":
            ids.byteswap()
        raw = ids.tobytes()
        for place in range(4):
            answers[3 + place :: size] = raw[place::4]
        self._small.append(memoryview(answers))
        self.bytes_out += len(answers)

    def fail(self, msgid: int, error: VkqueueError) -> None:
        """Answer a request by an error.

        Raises:
            KeyError: no request of this msgid waits for an answer.
        """
        self.pending.remove(msgid)
        self._answer_error(msgid, error)
        if msgid == self._hello and self.state is State.GREETING:
            self._move(Event.REFUSED)
            self._take_behind_hello()

    def abort(self, error: VkqueueError) -> None:
        """Give the connection up: `[2, "error", [error]]` goes out behind all answers, and nothing more is taken."""
        if self.state is not State.CLOSED:
            self._last_words = error
        self._move(Event.ABORTED)

    def data_to_send(self) -> list[Piece]:
        """Take all that is queued, in order. Of a connection that is `closing` nothing comes behind it."""
        if self.state is not State.CLOSED:
            return super().data_to_send()
        if self._last_words is None:  # they have been taken
            self._small, self._chunks, self.bytes_out = [], [], 0
            return []
        self._queue([codec.pack_with(self._packer, [NOTIFICATION, "error", [self._last_words.to_wire()]])])
        self._last_words = None
        return super().data_to_send()

    def _refuse(self, msgid: int, error: VkqueueError, file: int | None) -> None:
        if file is not None:
            os.close(file)
        self.refused.append(msgid)
        self._answer_error(msgid, error)

    def _answer_error(self, msgid: int, error: VkqueueError) -> None:
        self._queue([codec.pack_with(self._packer, [RESPONSE, msgid, error.to_wire(), None])])

    def _move(self, event: Event) -> None:
        following = _NEXT.get((self.state, event))
        if following is None:
            raise InternalError(f"a connection that is {self.state.value} cannot be {event.value}")
        self.state = following

    def _take(self, messages: list[Any]) -> None:
        if self.state is not State.READY or self.files:
            self._take_each(messages)
            return
        max_depth = self._limits.max_depth
        pending, deliver, known = self.pending, self._delivery.append, PARAMETER_NAMES.issuperset
        for message in messages:
            if type(message) is tuple:
                msgid, params = message
                if msgid not in pending:
                    pending.add(msgid)
                    deliver((msgid, params.method, params))
                    continue
                message = [REQUEST, msgid, params.method, [params.whole()]]
            try:
                kind, msgid, method, (params,) = message
            except (TypeError, ValueError):
                kind = params = None
            # That params is a map implies that what holds it is a list, and so what holds that.
            if (
                type(params) is dict
                and type(kind) is int
                and kind == REQUEST
                and type(msgid) is int
                and 0 <= msgid <= U32_MAX
                and msgid not in pending
                and type(method) is str
                and method != "hello"
                and known(params)
                and (_is_flat(params) or not structure_fault(params, max_depth, 3))
            ):
                pending.add(msgid)
                deliver((msgid, method, params))
            elif not self._take_one(message):
                return

    def _take_each(self, messages: list[Any]) -> None:
        """Before the connection is ready, or while descriptors wait for their request."""
        for index, message in enumerate(messages):
            if type(message) is tuple:  # a request that came again: `repeats` has it without its frame
                message = [REQUEST, message[0], message[1].method, [message[1].whole()]]
            if self.state is State.GREETING:
                self._behind_hello += messages[index:]
                return
            if not self._take_one(message):
                return

    def _take_behind_hello(self) -> None:
        messages, self._behind_hello = self._behind_hello, []
        self._take(messages)

    def _take_one(self, message: Any) -> bool:
        """Take any message; False when the connection is closed by it, or was."""
        fault = self._fault(message)
        if fault is not None:
            self.abort(fault)
            return False
        if message[0] == NOTIFICATION or self.state is State.CLOSED:
            return self.state is not State.CLOSED
        _, msgid, method, params = message
        event = Event.HELLO if method == "hello" else Event.REQUEST
        file = self.files.popleft() if self.files and method in WITH_FILE else None
        refusal = _REFUSALS.get((self.state, event))
        if refusal is not None:
            self._refuse(msgid, refusal, file)
            return True
        try:
            named = _named(method, params)
            if event is Event.HELLO:
                named = check(method, named)
        except VkqueueError as error:
            self._refuse(msgid, error, file)
            return True
        self._move(event)
        if file is not None:
            self.files_of[msgid] = file
        if event is Event.HELLO:
            self._hello = msgid
        self.pending.add(msgid)
        self._delivery.append((msgid, method, named))
        return True

    def _fault(self, message: Any) -> VkqueueError | None:
        """Why a message ends the connection, None when it is a request that can be answered, or a notification."""
        if isinstance(message, VkqueueError):
            return message
        text = structure_fault(message, self._limits.max_depth) or _shape_fault(message)
        if text is None and message[0] == REQUEST and message[1] in self.pending:
            text = f"the msgid {message[1]} is still in use: a request with it has not been answered"
        return None if text is None else ProtocolError(text)


def _needs_no_check(max_depth: int, message: Any) -> bool:
    """Whether a request is right by itself: all but its msgid, and whether the connection is ready."""
    if _shape_fault(message) or structure_fault(message, max_depth):
        return False
    params = message[3]
    return type(params) is list and len(params) == 1 and type(params[0]) is dict


def _is_flat(params: dict[str, Any]) -> bool:
    """Whether the values are at most lists and string-keyed maps of numbers, as in most dispatches; may err to no."""
    try:
        for value in params.values():
            if type(value) is list:
                sum(value)  # fails for all that is no number: the cheapest proof that nothing is nested in it
            elif type(value) is dict:
                "".join(value)
                sum(value.values())
    except TypeError:
        return False
    return True


def _named(method: str, params: object) -> dict[str, Any]:
    """The named parameters out of a request's `params`.

    Raises:
        InvalidError: it is neither an empty list nor one map in a list.
    """
    if isinstance(params, list) and len(params) <= 1:
        if not params:
            return {}
        if isinstance(params[0], dict):
            return params[0]
    came = describe(params)
    if isinstance(params, list) and len(params) == 1:
        came += f" with {describe(params[0])}"
    raise InvalidError(f"params of {method[:60]} must be a list with one map of named parameters, not {came}")


def _shape_fault(message: Any) -> str | None:
    """What is wrong with a message from a client, None for a request that can be answered and a notification."""
    kind = message[0] if type(message) is list and message else None
    if type(kind) is not int:
        return f"a message is a list that begins with 0 or 2, not {describe(message)}"
    if kind == NOTIFICATION and len(message) == 3:
        return None if type(message[1]) is str else f"the method of a notification is not {describe(message[1])}"
    if kind != REQUEST or len(message) != 4:
        return (
            f"a request is [0, msgid, method, params] and a notification [2, method, params]; what came is a list of "
            f"{len(message)} that begins with {kind}"
        )
    _, msgid, method, _ = message
    if type(msgid) is not int or not 0 <= msgid <= U32_MAX:
        return f"a msgid is an integer from 0 to {U32_MAX}, not {describe(msgid)}"
    return None if type(method) is str else f"the method of a request is a string, not {describe(method)}"
