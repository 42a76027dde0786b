"""Bytes on their way to the daemon, and the file descriptors that go with some of them."""

from __future__ import annotations

import os
import socket
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import islice

from vkqueue.wire.client import WithFile
from vkqueue.wire.codec import Piece

# sendmsg takes IOV_MAX pieces (1,024 on Linux); few messages have that many.
_MAX_PIECES = 64


class Descriptor:
    """A file descriptor that is closed once nothing holds it: requests that carry one may be dropped in many ways."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: object = os.close) -> None:
        close(self.number)  # type: ignore[operator]  # os.close, also when modules are being taken down


class Outbox:
    """What one connection has still to write.

    Attributes:
        queued, written: bytes, in all.
    """

    def __init__(self) -> None:
        self.queued = 0
        self.written = 0
        self._pieces: deque[memoryview] = deque()
        self._files: deque[tuple[int, Descriptor]] = deque()  # with the byte that it goes out with

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def extend(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if type(piece) is WithFile:
                self._files.append((self.queued, piece.file))
            view = memoryview(piece)
            self.queued += len(view)
            self._pieces.append(view)

    def clear(self) -> None:
        """Forget all of it."""
        self._pieces.clear()
        self._files.clear()

    def write(self, sock: socket.socket) -> None:
        """Write until nothing is left.

        Raises:
            BlockingIOError: the socket takes no more.
            OSError: it is broken.
        """
        pieces = self._pieces
        while pieces:
            if self._files:
                count = self._send_with_files(sock)
            elif len(pieces) == 1:
                count = sock.send(pieces[0])
            else:
                count = sock.sendmsg(list(islice(pieces, _MAX_PIECES)))
            self.written += count
            while pieces and count >= len(pieces[0]):
                count -= len(pieces.popleft())
            if count:
                pieces[0] = pieces[0][count:]

    def _send_with_files(self, sock: socket.socket) -> int:
        """A descriptor goes out with the first bytes of its own piece, which are the first of a message of their own:
        so it is there when they are read, and no other comes between."""
        place, file = self._files[0]
        if place == self.written:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.number]))
            count = sock.sendmsg([self._pieces[0]], [rights])
            self._files.popleft()
            return count
        before, size = [], 0
        for piece in islice(self._pieces, _MAX_PIECES):
            if self.written + size == place:
                break
            before.append(piece)
            size += len(piece)
        return sock.sendmsg(before)
