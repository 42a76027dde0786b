"""What both ends of a connection share: bytes in, and a queue of what goes out as few buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from vkqueue.wire import codec
from vkqueue.wire.codec import Piece
from vkqueue.wire.framing import Limits, Splitter
from vkqueue.wire.repeats import Repeats

REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
"""First entry of the three arrays of MessagePack-RPC."""

# [0, msgid, … and [1, msgid, nil, …: the msgid always as uint 32, which is valid and costs no branch.
request_head = struct.Struct(">BBBI").pack
REQUEST_HEAD_BYTES = 7
response_head = struct.Struct(">BBBIB").pack
RESPONSE_HEAD_BYTES = 8


class Connection:
    """One end: the splitter, and what is to be sent: small messages are joined, large bins go as they are.

    Attributes:
        bytes_out: queued, and not yet taken by `data_to_send`.
    """

    def __init__(self, limits: Limits, repeats: Repeats | None = None) -> None:
        self.bytes_out = 0
        self._limits = limits
        self._splitter = Splitter(limits, repeats)
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

    def _copy_in(self, data: bytes | bytearray | memoryview) -> Iterator[list[Any]]:
        """Take bytes that are somewhere else; the messages of each read that they make."""
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            yield self._splitter.buffer_updated(count)

    def _queue(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if len(piece) >= codec.LARGE:
                self._queue_alone(piece)
            else:
                self._small.append(piece)
                self.bytes_out += len(piece)

    def _queue_alone(self, piece: Piece) -> None:
        """Queue what is not joined with others."""
        if self._small:
            self._chunks.append(b"".join(self._small))
            self._small = []
        self._chunks.append(piece)
        self.bytes_out += len(piece)
