"""The state of one connection at either end, between bytes and requests. No I/O here.

A server's connection goes through the states of `_NEXT`; a client's has none but being at fault. Both queue what
is to be sent, and hand it out by `data_to_send` as few buffers: small messages joined, large bins as they are.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any

from vkqueue.errors import InternalError, InvalidError, ProtocolError, TooLargeError, VkqueueError, from_wire
from vkqueue.wire import codec
from vkqueue.wire.codec import Piece
from vkqueue.wire.framing import Limits, Splitter, structure_fault
from vkqueue.wire.messages import PARAMETER_NAMES, U32_MAX, check, describe

REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
"""First entry of the three arrays of MessagePack-RPC."""

# [0, msgid, … and [1, msgid, nil, …: the msgid always as uint 32, which is valid and costs no branch.
_request_head = struct.Struct(">BBBI").pack
_REQUEST_HEAD_BYTES = 7
_response_head = struct.Struct(">BBBIB").pack
_RESPONSE_HEAD_BYTES = 8


class _Connection:
    """What both ends share: the splitter, and the queue of what is to be sent.

    Attributes:
        bytes_out: queued, and not yet taken by `data_to_send`.
    """

    def __init__(self, limits: Limits) -> None:
        self.bytes_out = 0
        self._limits = limits
        self._splitter = Splitter(limits)
        self._packer = codec.new_packer()
        self._small: list[Piece] = []  # to be joined
        self._chunks: list[Piece] = []  # before them, ready to go
        self.get_buffer = self._splitter.get_buffer

    def data_to_send(self) -> list[Piece]:
        """Take all that is queued, in order."""
        if self._small:
            self._chunks.append(b"".join(self._small))
            self._small = []
        chunks, self._chunks = self._chunks, []
        self.bytes_out = 0
        return chunks

    def _queue(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if len(piece) >= codec.LARGE:
                if self._small:
                    self._chunks.append(b"".join(self._small))
                    self._small = []
                self._chunks.append(piece)
            else:
                self._small.append(piece)
            self.bytes_out += len(piece)


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


class ServerConnection(_Connection):
    """One client's connection, in the daemon.

    Faults are handled exactly at their place in the stream: what came before is delivered, nothing behind is.

    Attributes:
        pending: msgids that are not answered yet.
        state: where the connection stands.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.pending: set[int] = set()
        self.state = State.NEW
        self._hello: int | None = None  # its msgid while GREETING
        self._behind_hello: list[Any] = []
        self._delivery: list[tuple[int, str, dict[str, Any]]] = []  # what the last `buffer_updated` returned
        self._last_words: VkqueueError | None = None  # goes out behind all answers

    @property
    def closing(self) -> bool:
        """Whether the connection is at fault: send what `data_to_send` gives, then close."""
        return self.state is State.CLOSED

    def buffer_updated(self, count: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Take `count` bytes that were read into `get_buffer()`.

        Returns:
            Requests (msgid, method, params), in order. Whether the method exists and the parameters are right is
            for `messages.check`; their shape, keys and depth are checked, and those of `hello` wholly. Answer a
            `hello` while going through this very list, by `ready` or `fail`: what came behind it in the same burst
            is appended to the list then.
        """
        self._delivery = []
        self._take(self._splitter.buffer_updated(count))
        return self._delivery

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[tuple[int, str, dict[str, Any]]]:
        """As `buffer_updated`, for bytes that are somewhere else: they are copied."""
        self._delivery = []
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self._take(self._splitter.buffer_updated(count))
        return self._delivery

    def ready(self) -> None:
        """The daemon accepted `hello`."""
        self._move(Event.ACCEPTED)
        self._take_behind_hello()

    def respond(self, msgid: int, result: object) -> None:
        """Answer a request. Large bytes-like values in `result` are sent as they are: leave them alone until then.

        An answer over `max_message_bytes` becomes a `too_large` error.

        Raises:
            InvalidError: `result` holds something that MessagePack has no form for; nothing is sent.
            KeyError: no request of this msgid waits for an answer.
        """
        pieces = codec.pack_pieces(self._packer, result)
        size = sum(map(len, pieces)) + _RESPONSE_HEAD_BYTES
        if size > self._limits.max_message_bytes:
            self.fail(msgid, TooLargeError(
                f"the answer has {size} bytes: the limit is {self._limits.max_message_bytes} (max_message_bytes of "
                "hello); ask for it in parts"
            ))  # fmt: skip
            return
        self.pending.remove(msgid)
        self._queue([_response_head(0x94, RESPONSE, 0xCE, msgid, 0xC0), *pieces])

    def respond_packed(self, msgid: int, packed_result: bytes) -> None:
        """Answer a request by a result that is MessagePack already, and small.

        Raises:
            KeyError: no request of this msgid waits for an answer.
        """
        self.pending.remove(msgid)
        self._small.append(_response_head(0x94, RESPONSE, 0xCE, msgid, 0xC0) + packed_result)
        self.bytes_out += _RESPONSE_HEAD_BYTES + len(packed_result)

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

    def _answer_error(self, msgid: int, error: VkqueueError) -> None:
        self._queue([codec.pack_with(self._packer, [RESPONSE, msgid, error.to_wire(), None])])

    def _move(self, event: Event) -> None:
        following = _NEXT.get((self.state, event))
        if following is None:
            raise InternalError(f"a connection that is {self.state.value} cannot be {event.value}")
        self.state = following

    def _take(self, messages: list[Any]) -> None:
        if self.state is not State.READY:
            self._take_early(messages)
            return
        max_depth = self._limits.max_depth
        pending, deliver, known = self.pending, self._delivery.append, PARAMETER_NAMES.issuperset
        for message in messages:
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

    def _take_early(self, messages: list[Any]) -> None:
        """Before the connection is ready."""
        for index, message in enumerate(messages):
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
        refusal = _REFUSALS.get((self.state, event))
        if refusal is not None:
            self._answer_error(msgid, refusal)
            return True
        try:
            named = _named(method, params)
            if event is Event.HELLO:
                named = check(method, named)
        except VkqueueError as error:
            self._answer_error(msgid, error)
            return True
        self._move(event)
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


class ClientConnection(_Connection):
    """A client's end.

    Attributes:
        pending: msgids that are not answered yet.
        fault: why the connection cannot go on: the daemon ended it, or sent what is no answer. None while all is well.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.pending: set[int] = set()
        self.fault: VkqueueError | None = None
        self.max_message_bytes = limits.max_message_bytes
        self._last_msgid = 0
        self._heads: dict[str, bytes] = {}  # what stands between msgid and params, by method

    def request(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Queue a request and return its msgid. Large bytes-like values are sent as they are.

        Raises:
            InvalidError: a value has no form in MessagePack.
            TooLargeError: over `max_message_bytes`; nothing is queued.
        """
        return self._send(method, codec.pack_pieces(self._packer, params or {}))

    def request_packed(self, method: str, packed_params: bytes) -> int:
        """Queue a request whose named parameters are MessagePack (a map) already.

        Raises:
            TooLargeError: over `max_message_bytes`; nothing is queued.
        """
        return self._send(method, [packed_params])

    def buffer_updated(self, count: int) -> list[tuple[int, VkqueueError | None, Any]]:
        """Take `count` bytes that were read into `get_buffer()`.

        Returns:
            Answers (msgid, error, result), in the order they came. Look at `fault` afterwards.
        """
        answers: list[tuple[int, VkqueueError | None, Any]] = []
        for message in self._splitter.buffer_updated(count):
            if self.fault is not None:
                break
            self._take(message, answers)
        return answers

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[tuple[int, VkqueueError | None, Any]]:
        """As `buffer_updated`, for bytes that are somewhere else: they are copied."""
        answers: list[tuple[int, VkqueueError | None, Any]] = []
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            answers += self.buffer_updated(count)
        return answers

    def _send(self, method: str, pieces: list[Piece]) -> int:
        head = self._heads.get(method)
        if head is None:
            head = self._heads[method] = codec.pack_with(self._packer, method) + b"\x91"
        size = _REQUEST_HEAD_BYTES + len(head) + sum(map(len, pieces))
        if size > self.max_message_bytes:
            raise TooLargeError(
                f"the request has {size} bytes: the limit is {self.max_message_bytes} (max_message_bytes of hello); "
                "send it in parts"
            )
        msgid = (self._last_msgid + 1) & U32_MAX
        while msgid in self.pending:
            msgid = (msgid + 1) & U32_MAX
        self._last_msgid = msgid
        self.pending.add(msgid)
        self._queue([_request_head(0x94, REQUEST, 0xCE, msgid) + head, *pieces])
        return msgid

    def _take(self, message: Any, answers: list[tuple[int, VkqueueError | None, Any]]) -> None:
        """One message from the daemon. Notifications other than "error" are for newer clients, and left alone."""
        if isinstance(message, VkqueueError):
            self.fault = ProtocolError(f"the daemon sent what cannot be read: {message.message}")
            return
        fault = structure_fault(message, self._limits.max_depth)
        if fault is not None:
            self.fault = ProtocolError(f"the daemon sent what cannot be read: {fault}")
            return
        kind = message[0] if type(message) is list and message else None
        if type(kind) is int and kind == RESPONSE and len(message) == 4:
            _, msgid, error, result = message
            if type(msgid) is int and msgid in self.pending and (error is None or type(error) is dict):
                self.pending.remove(msgid)
                answers.append((msgid, None if error is None else from_wire(error), result))
                return
        elif type(kind) is int and kind == NOTIFICATION and len(message) == 3:
            if message[1] != "error":
                return
            if type(message[2]) is list and len(message[2]) == 1 and type(message[2][0]) is dict:
                self.fault = from_wire(message[2][0])
                return
        self.fault = ProtocolError(f"the daemon sent what answers no request of this connection: {_outline(message)}")


def _outline(message: Any) -> str:
    if not isinstance(message, list):
        return describe(message)
    return "[" + ", ".join(describe(item) for item in message[:4]) + (", …]" if len(message) > 4 else "]")
