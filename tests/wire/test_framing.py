"""Bytes to messages: any cut gives the same, limits hold, promises cost nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import streams
from support.streams import SMALL, cut, encode, feed, properties, same

from vkqueue.errors import ProtocolError, TooLargeError, VkqueueError
from vkqueue.wire.framing import HeaderWalk, Limits, Splitter, Walk, structure_fault

KIB, MIB = 1024, 1024 * 1024


def fault_of(data: bytes, limits: Limits | None = None) -> VkqueueError:
    """The one error that comes of the stream, whole and byte by byte."""
    whole = feed(Splitter(limits or Limits()), [data])
    single = feed(Splitter(limits or Limits()), cut(data, range(len(data))))
    assert len(whole) == len(single) == 1
    assert isinstance(whole[0], VkqueueError)
    assert (type(whole[0]), whole[0].message) == (type(single[0]), single[0].message)
    return whole[0]


@properties
@given(streams.messages, streams.cuts)
def test_any_cut_gives_the_same_messages(messages: list[Any], cuts: list[int]) -> None:
    messages = [m for m in messages if streams.within(m, SMALL)]
    data = encode(*messages)
    assert same(feed(Splitter(SMALL), [data]), messages)
    assert same(feed(Splitter(SMALL), cut(data, cuts)), messages)
    assert same(feed(Splitter(SMALL), cut(data, range(len(data)))), messages)


@properties
@given(st.binary(max_size=300), streams.cuts)
def test_garbage_gives_messages_and_at_most_one_error(data: bytes, cuts: list[int]) -> None:
    for pieces in ([data], cut(data, cuts)):
        splitter = Splitter(SMALL)
        out = feed(splitter, pieces)
        errors = [m for m in out if isinstance(m, VkqueueError)]
        assert errors == out[len(out) - len(errors) :]
        assert errors == ([] if splitter.fault is None else [splitter.fault])


def test_large_bins_are_received_in_place_and_small_ones_are_bytes() -> None:
    large, larger, small = b"x" * (100 * KIB), b"y" * (5 * MIB), b"z" * 100
    args = [{"in": large}, 7, {"inout": larger}, {"in": small}]
    message = [0, 1, "dispatch", [{"module": 1, "args": args, "grid": [1]}]]
    data = encode([0, 0, "ping", []], message, [0, 2, "ping", []])
    for step in (64 * KIB, 1000 * KIB):
        out = feed(Splitter(Limits()), cut(data, range(0, len(data), step)))
        assert same(out, [[0, 0, "ping", []], message, [0, 2, "ping", []]])
        received = out[1][3][0]["args"]
        assert isinstance(received[2]["inout"], memoryview) and not received[2]["inout"].readonly
        assert isinstance(received[3]["in"], bytes)


def test_the_rest_of_a_large_bin_is_offered_at_once() -> None:
    splitter = Splitter(Limits())
    data = encode([0, 1, "buffer.write", [{"buffer": 1, "data": bytes(10 * MIB)}]])
    assert feed(splitter, [data[:1000]]) == []
    assert len(splitter.get_buffer()) == len(data) - 1000


@pytest.mark.parametrize("size", [40, 300])
def test_headers_that_lie_across_the_end_of_the_receive_buffer(size: int) -> None:
    limits = Limits(receive_buffer=64, max_str_bytes=4096, max_items=4096)
    for pad in range(100):
        message = ["p" * pad, "s" * size, list(range(size)), 2**40, msgpack.ExtType(1, bytes(size)), {"k": "v" * size}]
        data = encode(message)
        assert same(feed(Splitter(limits), [data]), [message])
        assert same(feed(Splitter(limits), cut(data, range(0, len(data), 64))), [message])


def test_extension_values_of_the_sender_keep_their_places_between_spliced_bins() -> None:
    ext, stamp = msgpack.ExtType(0, b"\x00"), msgpack.Timestamp(1, 2)
    message = [ext, bytes(70 * KIB), stamp, [msgpack.ExtType(5, b"abcde"), {"k": bytes(80 * KIB)}], ext]
    data = encode(message)
    assert same(feed(Splitter(Limits()), cut(data, range(0, len(data), 50 * KIB))), [message])


def test_of_equal_keys_the_last_counts_also_when_spliced() -> None:
    large = bytes(70 * KIB)
    pair = b"\xa1k" + msgpack.packb(large)
    for data, last in ((b"\x82" + pair + b"\xa1k\x05", 5), (b"\x82\xa1k\x05" + pair, large)):
        assert same(feed(Splitter(Limits()), cut(data, [10])), [{"k": last}])


@pytest.mark.parametrize(
    "header", [b"\xc6\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05",
               b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdf\x80\x00\x00\x00"]
)  # fmt: skip
def test_a_header_that_promises_gigabytes_costs_nothing(header: bytes) -> None:
    splitter = Splitter(Limits())
    tracemalloc.start()
    try:
        out = feed(splitter, [b"\x94\x00\x01\xa5hello\x91\x81\xa1k" + header])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [type(m) for m in out] == [TooLargeError]
    limit = 16 * MIB if header[0] == 0xDB else 64 * MIB  # strings have one of their own
    assert f"the limit is {limit}" in out[0].message
    assert peak < 300 * KIB


def test_lists_that_promise_lists_cost_little() -> None:
    splitter = Splitter(Limits())
    tracemalloc.start()
    try:
        out = feed(splitter, [b"\xdc\xff\xff" * 1000])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [type(m) for m in out] == [ProtocolError]
    assert peak < MIB


def test_a_promise_within_the_limit_is_not_touched_before_bytes_come() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    splitters = [Splitter(Limits()) for _ in range(8)]
    before = resident()
    for splitter in splitters:
        assert feed(splitter, [b"\x91\xc6\x03\xff\x00\x00"]) == []
        assert len(splitter.get_buffer()) == 0x03FF0000
    assert resident() - before < 64 * MIB  # of 512 MiB promised


@pytest.mark.parametrize("message", [[bytes(2044)], [bytes(10), bytes(1800), "s" * 228], [["s" * 200] * 10, "s" * 20]])
def test_a_message_of_exactly_the_limit_passes_and_one_byte_more_does_not(message: list[Any]) -> None:
    data = encode(message)
    limits = Limits(max_message_bytes=len(data), receive_buffer=1024, max_str_bytes=1024)
    for pieces in ([data], cut(data, range(0, len(data), 7))):
        assert same(feed(Splitter(limits), pieces), [message])
    for longer in ([0, *message], [*message, 0]):
        assert isinstance(fault_of(encode(longer), limits), TooLargeError)


def test_many_small_entries_over_the_size_limit() -> None:
    limits = Limits(max_message_bytes=1000, max_items=4096, receive_buffer=128)
    assert isinstance(fault_of(encode([[0] * 498, [0] * 498]), limits), TooLargeError)
    assert feed(Splitter(limits), [encode([[0] * 490, [0] * 490])]) == [[[0] * 490, [0] * 490]]


def test_entries_are_counted_over_the_whole_message() -> None:
    def nested(count: int) -> list[Any]:
        return [[0] * 40, {f"{i:02}": 0 for i in range(20)}, [0] * count]

    spare = SMALL.max_items - len(nested(0)) - 80
    assert feed(Splitter(SMALL), [encode(nested(spare))]) == [nested(spare)]
    error = fault_of(encode(nested(spare + 1)), SMALL)
    assert isinstance(error, ProtocolError) and "128" in error.message


def test_strings_have_a_limit_of_their_own() -> None:
    assert feed(Splitter(SMALL), [encode(["s" * 256])]) == [["s" * 256]]
    error = fault_of(encode(["s" * 257]), SMALL)
    assert isinstance(error, TooLargeError) and "256" in error.message


def nest(levels: int, of: Callable[[Any], Any], core: Any) -> Any:
    for _ in range(levels):
        core = of(core)
    return core


@pytest.mark.parametrize("of", [lambda x: [x], lambda x: {"k": x}, lambda x: [1, {"a": x}][1:]])
def test_depth(of: Callable[[Any], Any]) -> None:
    step = 2 if isinstance(of(0), list) and isinstance(of(0)[0], dict) else 1
    allowed, over = nest(32 // step, of, 0), nest(32 // step, of, [])
    assert structure_fault(allowed, 32) is None
    assert "32 levels" in str(structure_fault(over, 32))
    for message, fine in ((allowed, True), (over, False)):
        out = feed(Splitter(Limits()), cut(encode(message), range(len(encode(message)))))
        assert [isinstance(m, ProtocolError) for m in out] == [not fine]


def test_depth_that_the_decoder_itself_refuses() -> None:
    assert "32 levels" in fault_of(b"\x91" * 5000).message


@pytest.mark.parametrize(
    "key", [b"\x01", b"\xc4\x01a", b"\xc0", b"\xc3", b"\x90", b"\x80", b"\xd4\x05\x00", b"\xcb" + bytes(8)]
)
def test_keys_are_strings(key: bytes) -> None:
    data = b"\x93\x00\x01\x82\xa1k\x00" + key + b"\x00"
    single = feed(Splitter(Limits()), cut(data, range(len(data))))
    assert [type(m) for m in single] == [ProtocolError] and "key" in single[0].message
    (whole,) = feed(Splitter(Limits()), [data])
    # A message that came whole is the caller's to check, but for keys that no Python map can hold.
    assert "key" in (whole.message if isinstance(whole, ProtocolError) else str(structure_fault(whole, 32)))


def test_what_is_no_messagepack() -> None:
    assert "0xc1" in fault_of(b"\x92\x01\xc1").message
    assert "UTF-8" in fault_of(b"\x91\xa2\xff\xfe").message
    assert "timestamp" in fault_of(b"\x91\xc7\x03\xff123").message


def test_good_messages_before_a_fault_are_delivered_and_none_behind() -> None:
    data = encode(1, 2) + b"\xc1" + encode(3)
    for pieces in ([data], cut(data, range(9))):
        splitter = Splitter(Limits())
        out = feed(splitter, pieces)
        assert out[:2] == [1, 2] and out[2:] == [splitter.fault]
        assert feed(splitter, [encode(4)]) == []


def test_lists_longer_than_the_fast_way_takes() -> None:
    messages = [[0, 1, "a", []], [list(range(5000))], [0, 2, "b", []], [[1] * 1025], [0, 3, "c", []]]
    assert feed(Splitter(Limits()), [encode(*messages)]) == messages


class Counted(bytearray):
    """Counts how many single bytes are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(index)


def test_a_message_that_comes_byte_by_byte_costs_linear_time() -> None:
    data = Counted(encode([0, 1, "dispatch", [{"args": [list(range(200)), {"k": "v" * 300}], "x": 1 << 40}]]))
    walk, Counted.looks = HeaderWalk(Limits()), 0
    founds = [walk.advance(data, end) for end in range(len(data) + 1)]
    assert founds == [Walk.MORE] * len(data) + [Walk.WHOLE]
    # Each byte of a header is looked at twice at most: alone, and with the rest of its header.
    assert Counted.looks <= 2 * len(data)


def test_memory_of_a_long_message_grows_with_what_came() -> None:
    splitter = Splitter(Limits())
    text = "s" * (8 * MIB)
    data = encode([text, text])
    tracemalloc.start()
    try:
        assert feed(splitter, [data[: 9 * MIB]]) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 12 * MIB
    assert feed(splitter, [data[9 * MIB :]]) == [[text, text]]


@pytest.mark.parametrize(
    "bad",
    [{"max_message_bytes": 63}, {"max_items": 63}, {"max_str_bytes": 63}, {"receive_buffer": 63}, {"max_depth": 3}],
)
def test_limits_have_limits(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 64"):
        Limits(**bad)
