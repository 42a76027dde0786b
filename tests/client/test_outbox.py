"""Bytes and descriptors leave in order, each descriptor with the first byte of its own request, however little a socket
takes at once."""

from __future__ import annotations

import array
import os
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.client.outbox import Descriptor, Outbox
from vkqueue.wire.client import WithFile
from vkqueue.wire.codec import unpack
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection


class Narrow:
    """A socket that takes a few bytes of what it is given; the list says how many each time, over and over, 0 for none.

    Attributes:
        data: all bytes that it took. `files`: (descriptor, index of the byte that it came with).
    """

    def __init__(self, takes: list[int]) -> None:
        self._takes = takes
        self._calls = 0
        self.data = bytearray()
        self.files: list[tuple[int, int]] = []

    def send(self, data: memoryview) -> int:
        return self.sendmsg([data])

    def sendmsg(self, pieces: list[memoryview], ancillary: Any = ()) -> int:
        take = self._takes[self._calls % len(self._takes)]
        self._calls += 1
        if not take:
            raise BlockingIOError
        for level, kind, files in ancillary:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            self.files += [(file, len(self.data)) for file in array.array("i", files)]
        sent = b"".join(pieces)[:take]
        self.data += sent
        return len(sent)


def with_file(data: bytes, file: Any) -> WithFile:
    piece = WithFile(data)
    piece.file = file
    return piece


@given(
    pieces=st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.booleans()), max_size=20),
    takes=st.lists(st.integers(0, 15), min_size=1, max_size=5).filter(any),
)
def test_any_socket_gets_the_same(pieces: list[tuple[bytes, bool]], takes: list[int]) -> None:
    outbox, sock = Outbox(), Narrow(takes)
    files: list[Descriptor] = []
    expected = []
    place = 0
    for data, carries in pieces:
        if carries:
            files.append(Descriptor(os.dup(2)))
            expected.append((files[-1].number, place))
        outbox.extend([with_file(data, files[-1]) if carries else data])
        place += len(data)
    assert outbox.queued == place
    while outbox:
        try:
            outbox.write(sock)  # type: ignore[arg-type]
        except BlockingIOError:
            continue
    assert sock.data == b"".join(data for data, _ in pieces)
    assert sock.files == expected
    assert outbox.written == outbox.queued


def test_descriptors_are_closed_when_they_are_sent_or_dropped() -> None:
    near, far = socket.socketpair()
    with near, far:
        outbox = Outbox()
        sent, dropped = os.dup(2), os.dup(2)
        outbox.extend([with_file(b"a", Descriptor(sent))])
        outbox.write(near)
        assert not os.path.exists(f"/proc/self/fd/{sent}")
        outbox.extend([b"x", with_file(b"b", Descriptor(dropped))])
        outbox.clear()
        assert not outbox and not os.path.exists(f"/proc/self/fd/{dropped}")
        data, files, _, _ = socket.recv_fds(far, 10, 10)
        assert (data, len(files)) == (b"a", 1)
        os.close(files[0])


def test_a_broken_socket_is_told() -> None:
    near, far = socket.socketpair()
    far.close()
    with near:
        outbox = Outbox()
        outbox.extend([b"x"])
        with pytest.raises(OSError):
            outbox.write(near)


def test_a_request_with_a_file_stands_alone() -> None:
    connection = ClientConnection(Limits())
    connection.request("ping")
    connection.request("buffer.share", {"size": 1}, "the file")
    connection.request("ping")
    first, second, third = connection.data_to_send()
    assert isinstance(second, WithFile) and second.file == "the file"
    assert [unpack(piece)[2] for piece in (first, second, third)] == ["ping", "buffer.share", "ping"]
    assert connection.bytes_out == 0
