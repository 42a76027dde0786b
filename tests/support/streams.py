"""Streams of messages for the tests of the wire: how to cut them, and how to make them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vkqueue.wire.framing import Limits, Splitter, structure_fault
from vkqueue.wire.session import ClientConnection, ServerConnection

SMALL = Limits(
    max_message_bytes=2048, max_depth=8, max_items=128, max_str_bytes=256, receive_buffer=96, large_bin=24
)
"""Limits so low that a few hundred bytes go through every way of the splitter."""

properties = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

HELLO = {"protocol": 1, "client": "test"}


def encode(*messages: Any) -> bytes:
    """The stream of these messages, by a packer that is not ours."""
    return b"".join(map(msgpack.packb, messages))


def decode(data: bytes) -> list[Any]:
    """The messages of a stream, by an unpacker that is not ours."""
    unpacker = msgpack.Unpacker(None, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    return list(unpacker)


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The stream in pieces that end at `cuts`."""
    ends = sorted({c for c in cuts if 0 < c < len(data)}) + [len(data)]
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def feed(end: Splitter | ServerConnection | ClientConnection, pieces: Iterable[bytes]) -> list[Any]:
    """What comes of the pieces; each is as many reads as the buffers that are offered make of it."""
    out: list[Any] = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            buffer = end.get_buffer()
            count = min(len(buffer), len(rest))
            assert count > 0, "get_buffer must not be empty"
            buffer[:count] = rest[:count]
            rest = rest[count:]
            out += end.buffer_updated(count)
    return out


def sent(connection: ServerConnection | ClientConnection) -> bytes:
    """All that is to be sent, as one."""
    return b"".join(map(bytes, connection.data_to_send()))


def ready(limits: Limits | None = None) -> ServerConnection:
    """A connection whose `hello` has been accepted."""
    connection = ServerConnection(Limits() if limits is None else limits)
    assert connection.receive_data(encode([0, 0, "hello", [HELLO]])) == [(0, "hello", HELLO)]
    connection.ready()
    connection.respond(0, {})
    sent(connection)
    return connection


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, where bytes-like types count as one."""
    if isinstance(a, bytes | memoryview) and isinstance(b, bytes | memoryview):
        return bytes(a) == bytes(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


def within(message: Any, limits: Limits) -> bool:
    """Whether a message may be sent under these limits (its strings and entries are few by construction)."""
    return len(msgpack.packb(message)) <= limits.max_message_bytes and not structure_fault(message, limits.max_depth)


names = st.text("abmodule.xyz", max_size=8)
bins = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(0, 300))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | bins
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=40))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**40), st.integers(0, 999_999_999))
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5), max_leaves=12
)
requests = st.tuples(
    st.just(0), st.integers(0, 2**32 - 1), names | st.sampled_from(["dispatch", "buffer.write", "hello"]),
    st.lists(st.dictionaries(names | st.sampled_from(["args", "data"]), values, max_size=4), max_size=1),
).map(list)  # fmt: skip
messages = st.lists(
    requests | st.tuples(st.just(2), names, st.lists(values, max_size=2)).map(list), min_size=1, max_size=6
)
changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 3000), max_size=30)
