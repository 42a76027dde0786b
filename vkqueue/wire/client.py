"""A client's end of a connection."""

from __future__ import annotations

from typing import Any

from vkqueue.errors import ProtocolError, TooLargeError, VkqueueError, from_wire
from vkqueue.wire import codec
from vkqueue.wire.codec import Piece
from vkqueue.wire.connection import (
    NOTIFICATION,
    REQUEST,
    REQUEST_HEAD_BYTES,
    RESPONSE,
    Connection,
    request_head,
)
from vkqueue.wire.framing import Limits, structure_fault
from vkqueue.wire.messages import U32_MAX, describe


class WithFile(bytes):
    """The bytes of a request that goes out with a file descriptor: `file`, whatever the caller gave for it."""

    file: Any


class ClientConnection(Connection):
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

    def request(self, method: str, params: dict[str, Any] | None = None, file: Any = None) -> int:
        """Queue a request and return its msgid. Large bytes-like values are sent as they are.

        Args:
            file: a descriptor that goes with it; the request is a `WithFile` of its own in `data_to_send` then.

        Raises:
            InvalidError: a value has no form in MessagePack.
            TooLargeError: over `max_message_bytes`; nothing is queued.
        """
        return self._send(method, codec.pack_pieces(self._packer, params or {}), file)

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
        self._take(self._splitter.buffer_updated(count), answers)
        return answers

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[tuple[int, VkqueueError | None, Any]]:
        """As `buffer_updated`, for bytes that are somewhere else: they are copied."""
        answers: list[tuple[int, VkqueueError | None, Any]] = []
        for messages in self._copy_in(data):
            self._take(messages, answers)
        return answers

    def _send(self, method: str, pieces: list[Piece], file: Any = None) -> int:
        head = self._heads.get(method)
        if head is None:
            head = self._heads[method] = codec.pack_with(self._packer, method) + b"\x91"
        size = REQUEST_HEAD_BYTES + len(head) + sum(map(len, pieces))
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
        if file is None:
            self._queue([request_head(0x94, REQUEST, 0xCE, msgid) + head, *pieces])
        else:
            whole = WithFile(b"".join((request_head(0x94, REQUEST, 0xCE, msgid), head, *pieces)))
            whole.file = file
            self._queue_alone(whole)
        return msgid

    def _take(self, messages: list[Any], answers: list[tuple[int, VkqueueError | None, Any]]) -> None:
        for message in messages:
            if self.fault is not None:
                return
            self._take_one(message, answers)

    def _take_one(self, message: Any, answers: list[tuple[int, VkqueueError | None, Any]]) -> None:
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
