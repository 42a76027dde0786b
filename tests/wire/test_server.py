"""The daemon's end of a connection: order, faults and answers, as docs/protocol.md has them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import streams
from support.streams import HELLO, SMALL, cut, decode, encode, feed, properties, ready, same, sent

from vkqueue.errors import BY_CODE, DeniedError, InternalError, InvalidError, VkqueueError
from vkqueue.wire import codec
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ServerConnection, State

DISPATCH = {"module": 1, "args": [2, 3], "scalars": [64, 0.5], "grid": [1]}


def errors(connection: ServerConnection) -> list[tuple[int, str]]:
    """(msgid, code) of the errors that are sent; msgid -1 for the last words."""
    answers = decode(sent(connection))
    return [(m[1], m[2]["code"]) if m[0] == 1 else (-1, m[2][0]["code"]) for m in answers]


def outcome(data: list[bytes], limits: Limits = SMALL) -> tuple[list[Any], list[tuple[int, str]], bool]:
    connection = ready(limits)
    events = [(m, method, codec.pack(params)) for m, method, params in feed(connection, data)]
    return events, errors(connection), connection.closing


# Streams, cut anyhow


@properties
@given(streams.messages, streams.cuts)
def test_any_cut_gives_the_same_requests_and_answers(messages: list[Any], cuts: list[int]) -> None:
    data = encode(*messages)
    assert outcome([data]) == outcome(cut(data, cuts)) == outcome(cut(data, range(len(data))))


@properties
@given(streams.messages, streams.changes, streams.cuts)
def test_broken_streams_give_the_same_requests_and_one_fault(
    messages: list[Any], changes: list[tuple[int, int]], cuts: list[int]
) -> None:
    data = bytearray(encode(*messages))
    for at, value in changes:
        data[at % len(data)] = value
    whole = outcome([bytes(data)])
    assert whole == outcome(cut(bytes(data), cuts)) == outcome(cut(bytes(data), range(len(data))))
    assert [msgid for msgid, _ in whole[1]].count(-1) == whole[2]


@properties
@given(st.binary(max_size=200), streams.cuts)
def test_garbage_never_raises(data: bytes, cuts: list[int]) -> None:
    assert outcome([data]) == outcome(cut(data, cuts))


def test_depth_of_what_takes_the_fast_way() -> None:
    for levels, fine in ((4, True), (5, True), (6, False)):  # beside the message's list, params, its map
        value: Any = 0
        for _ in range(levels):
            value = [value]
        connection = ready(Limits(max_depth=8))
        assert bool(connection.receive_data(encode([0, 1, "dispatch", [{"args": value}]]))) == fine
        assert connection.closing != fine


@properties
@given(streams.requests.filter(lambda r: r[2] != "hello" and r[3]), st.integers(0, 8))
def test_the_fast_and_the_exact_way_agree(request: list[Any], depth: int) -> None:
    for _ in range(depth):
        request[3][0] = {"args": [request[3][0]]}
    connection = ready(SMALL)
    delivered = connection.receive_data(encode(request))
    assert bool(delivered) != connection.closing
    if delivered:
        assert same(list(delivered[0]), [request[1], request[2], request[3][0]])
    assert connection.closing == (not streams.within(request, SMALL))


# Hello


def test_everything_before_hello_is_a_protocol_error_and_the_connection_goes_on() -> None:
    connection = ServerConnection(Limits())
    assert connection.receive_data(encode([0, 1, "ping", []], [0, 2, "nonsense", 5], [0, 3, "stats", [{}]])) == []
    assert errors(connection) == [(1, "protocol"), (2, "protocol"), (3, "protocol")]
    assert connection.state is State.NEW and not connection.pending


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ([{"protocol": 2, "client": "c"}], "unsupported"),
        ([{"protocol": "1", "client": "c"}], "invalid"),
        ([{"protocol": 1}], "invalid"),
        ([{"protocol": 1, "client": "c", "compression": True}], "invalid"),
        ([], "invalid"),
        (5, "invalid"),
    ],
)
def test_a_wrong_hello_is_answered_and_a_right_one_may_follow(params: Any, code: str) -> None:
    connection = ServerConnection(Limits())
    stream = encode([0, 1, "hello", params], [0, 2, "ping", []], [0, 3, "hello", [HELLO]])
    assert connection.receive_data(stream) == [(3, "hello", HELLO)]
    assert errors(connection) == [(1, code), (2, "protocol")]


def test_what_came_behind_hello_waits_for_it() -> None:
    connection = ServerConnection(Limits())
    requests = connection.receive_data(encode([0, 1, "hello", [HELLO]], [0, 2, "ping", []], [0, 1, "stats", []]))
    seen = []
    for msgid, method, _ in requests:
        seen.append((msgid, method))
        if method == "hello":
            connection.ready()
        connection.respond(msgid, {})
    # The third has the msgid of `hello`, which was still in use when it was taken.
    assert seen == [(1, "hello"), (2, "ping")]
    assert connection.closing
    assert [m[:2] for m in decode(sent(connection))] == [[1, 1], [1, 2], [2, "error"]]


@pytest.mark.parametrize("step", [1, 1000])
def test_behind_a_refused_hello_all_is_before_hello_again(step: int) -> None:
    connection = ServerConnection(Limits())
    stream = encode([0, 1, "hello", [HELLO]], [0, 2, "ping", []], [0, 3, "hello", [HELLO]], [0, 4, "ping", []])
    handled = []
    for piece in cut(stream, range(0, len(stream), step)):
        for msgid, method, _ in connection.receive_data(piece):
            handled.append(msgid)
            if msgid == 1:
                connection.fail(1, DeniedError("not you"))
            elif method == "hello":
                connection.ready()
                connection.respond(msgid, {})
    assert handled == [1, 3, 4]
    assert errors_of(connection) == [(1, "denied"), (2, "protocol"), (3, None)]


def errors_of(connection: ServerConnection) -> list[tuple[int, str | None]]:
    return [(m[1], m[2] and m[2]["code"]) for m in decode(sent(connection))]


def test_a_fault_behind_hello_keeps_its_place() -> None:
    connection = ServerConnection(Limits())
    requests = connection.receive_data(encode([0, 1, "hello", [HELLO]], [0, 2, "ping", []]) + b"\xc1")
    assert requests == [(1, "hello", HELLO)] and not connection.closing
    connection.ready()
    assert requests == [(1, "hello", HELLO), (2, "ping", {})] and connection.closing


def test_a_second_hello_is_invalid() -> None:
    connection = ready()
    assert connection.receive_data(encode([0, 5, "hello", [HELLO]], [0, 6, "hello", 7])) == []
    assert errors(connection) == [(5, "invalid"), (6, "invalid")] and not connection.closing


def test_a_step_that_the_table_does_not_have_names_state_and_event() -> None:
    with pytest.raises(InternalError, match="new cannot be accepted"):
        ServerConnection(Limits()).ready()
    with pytest.raises(InternalError, match="ready cannot be accepted"):
        ready().ready()


# Messages that are answered, or ignored


@pytest.mark.parametrize("params", [None, 5, "x", {}, {"a": 1}, [1], [None], [[]], [{}, {}], [{}, 1], b"x"])
def test_params_that_are_not_one_map_in_a_list_are_invalid(params: Any) -> None:
    connection = ready()
    data = encode([0, 7, "ping", params], [0, 7, "ping", [{}]])
    assert connection.receive_data(data) == [(7, "ping", {})]
    assert errors(connection) == [(7, "invalid")] and not connection.closing


def test_params_may_be_empty_or_a_map_and_the_method_anything() -> None:
    connection = ready()
    data = encode([0, 1, "ping", []], [0, 2, "no.such", [{"x": {"y": [None, {"z": b""}]}}]], [0, 2**32 - 1, "", [{}]])
    expected = [(1, "ping", {}), (2, "no.such", {"x": {"y": [None, {"z": b""}]}}), (2**32 - 1, "", {})]
    assert connection.receive_data(data) == expected
    assert connection.pending == {1, 2, 2**32 - 1}


def test_notifications_are_ignored() -> None:
    for connection in (ServerConnection(Limits()), ready()):
        data = encode([2, "hello", [HELLO]], [2, "dispatch", [DISPATCH]], [2, "", 5], [2, "error", [{"code": "x"}]])
        assert connection.receive_data(data) == []
        assert connection.data_to_send() == [] and not connection.closing


def test_extension_values_are_passed_on_as_values_of_a_wrong_type() -> None:
    connection = ready()
    ext = msgpack.ExtType(3, b"abc")
    data = encode([0, 1, "buffer.free", [{"buffer": ext}]], [0, 2, "buffer.free", [{"buffer": msgpack.Timestamp(1)}]])
    assert [m for m, _, _ in connection.receive_data(data)] == [1, 2]


# Messages that end the connection

FATAL = [
    (b"\xc1", "protocol"), (encode(5), "protocol"), (encode(None), "protocol"), (encode("ping"), "protocol"),
    (encode({}), "protocol"), (encode({0: 1, 1: 2, "m": 3, "p": 4}), "protocol"), (encode([]), "protocol"),
    (encode(b"\x00\x01\x02\x03"), "protocol"), (encode("abcd"), "protocol"),
    (encode(msgpack.ExtType(1, b"")), "protocol"),
    (encode([0]), "protocol"), (encode([0, 1, "ping"]), "protocol"), (encode([0, 1, "ping", [], 1]), "protocol"),
    (encode([3, 1, "ping", []]), "protocol"), (encode([-1, 1, "ping", []]), "protocol"),
    (encode([False, 1, "ping", []]), "protocol"), (encode([0.0, 1, "ping", []]), "protocol"),
    (encode([None, 1, "ping", []]), "protocol"), (encode(["0", 1, "ping", []]), "protocol"),
    (encode([0, -1, "ping", []]), "protocol"), (encode([0, 2**32, "ping", []]), "protocol"),
    (encode([0, True, "ping", []]), "protocol"), (encode([0, 1.0, "ping", []]), "protocol"),
    (encode([0, "1", "ping", []]), "protocol"), (encode([0, None, "ping", []]), "protocol"),
    (encode([0, 1, b"ping", []]), "protocol"), (encode([0, 1, 5, []]), "protocol"),
    (encode([0, 1, None, []]), "protocol"),
    (encode([0, 1, ["ping"], []]), "protocol"), (encode([2, 5, []]), "protocol"), (encode([2, "x"]), "protocol"),
    (encode([2, "x", [], 1]), "protocol"), (encode([1, 1, None, {}]), "protocol"),
    (encode([1, 99, None, {}]), "protocol"),
    (encode([0, 1, "x", [{1: 2}]]), "protocol"), (encode([0, 1, "x", [{"a": {b"k": 1}}]]), "protocol"),
    (encode([0, 1, "x", [{"args": [{"in": {None: 1}}]}]]), "protocol"), (encode([0, 1, "x", {1: 2}]), "protocol"),
    (b"\x94\x00\x01\xa1x\x91\x81\x90\x01", "protocol"), (encode([2, "x", [{1: 1}]]), "protocol"),
    (encode([0, 1, "x", [{"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}]]), "protocol"),
    (b"\x94\x00\x01\xa1x\x91\x81\xa1k\xa2\xff\xff", "protocol"), (b"\x94\x00\x01\xa1x\xdd\x00\x02\x00\x01", "protocol"),
    (b"\x94\x00\x01\xa1x\xdd\xff\xff\xff\xff", "too_large"),
    (b"\x94\x00\x01\xa1x\x91\x81\xa1k\xc6\x04\x00\x00\x00", "too_large"),
    (b"\x94\x00\x01\xa1x\x91\x81\xa1k\xdb\x01\x00\x00\x01", "too_large"),
]  # fmt: skip

# The same with parameters that take the fast way.
FATAL += [
    (encode(message), "protocol")
    for message in (
        [False, 1, "ping", [{}]], [0.0, 1, "ping", [{}]], [True, 1, "ping", [{}]], [3, 1, "ping", [{}]],
        [None, 1, "ping", [{}]], [0, -1, "ping", [{}]], [0, 2**32, "ping", [{}]], [0, True, "ping", [{}]],
        [0, 1.0, "ping", [{}]], [0, None, "ping", [{}]], [0, 1, b"ping", [{}]], [0, 1, None, [{}]],
        [0, 1, "ping", [{}], 1], [0, 1, [{}]], [0, 1, "x", [{b"args": 1}]], [0, 1, "x", [{"args": {1: 1}}]],
        [0, 1, "x", [{"scalars": {b"n": 1}}]],
    )
]  # fmt: skip


@pytest.mark.parametrize(("data", "code"), FATAL)
@pytest.mark.parametrize("step", [1, 10**6])
@pytest.mark.parametrize("state", ["new", "ready"])
def test_faults_end_the_connection_at_their_place(data: bytes, code: str, step: int, state: str) -> None:
    connection = ready() if state == "ready" else ServerConnection(Limits())
    stream = encode([0, 1000, "ping", []]) + data + encode([0, 1001, "ping", []])
    pieces = cut(stream, range(0, len(stream), step))
    assert feed(connection, pieces) == ([(1000, "ping", {})] if state == "ready" else [])
    assert connection.closing
    if state == "ready":
        connection.respond(1000, {})
    answers = decode(sent(connection))
    assert answers[0][:2] == [1, 1000] and len(answers) == 2
    kind, method, [error] = answers[1]
    assert (kind, method) == (2, "error") and error["code"] == code and error["message"]
    assert feed(connection, [encode([0, 5, "ping", []])]) == [] and connection.data_to_send() == []


def test_a_msgid_in_use_ends_the_connection() -> None:
    connection = ready()
    twice = encode([0, 1, "ping", []], [0, 1, "ping", []])
    assert connection.receive_data(twice) == [(1, "ping", {})]
    assert errors(connection) == [(-1, "protocol")] and connection.closing


def test_an_answered_msgid_may_be_used_again() -> None:
    connection = ready()
    for _ in range(3):
        assert connection.receive_data(encode([0, 1, "ping", []])) == [(1, "ping", {})]
        connection.respond(1, {})
    assert not connection.closing


def test_answers_behind_the_last_words_are_dropped() -> None:
    connection = ready()
    connection.receive_data(encode([0, 1, "ping", []], [0, 2, "ping", []]) + b"\xc1")
    connection.respond(1, {})
    assert len(decode(sent(connection))) == 2
    connection.respond(2, {})
    assert connection.data_to_send() == [] and connection.bytes_out == 0


def test_abort_says_why() -> None:
    connection = ready()
    connection.abort(DeniedError("too many connections"))
    connection.abort(InternalError("a later reason does not matter"))
    assert decode(sent(connection)) == [[2, "error", [{"code": "denied", "message": "too many connections"}]]]
    assert connection.closing and connection.receive_data(encode([0, 1, "ping", []])) == []


# Answers


@pytest.mark.parametrize("cls", BY_CODE.values())
def test_every_error_code_travels(cls: type[VkqueueError]) -> None:
    connection = ready()
    connection.receive_data(encode([0, 1, "ping", []], [0, 2, "ping", []]))
    connection.fail(1, cls("what was wrong", {"limit": 5}))
    connection.fail(2, cls("no data"))
    assert decode(sent(connection)) == [
        [1, 1, {"code": cls.code, "message": "what was wrong", "data": {"limit": 5}}, None],
        [1, 2, {"code": cls.code, "message": "no data"}, None],
    ]
    assert not connection.pending


def test_small_answers_leave_as_one_buffer_in_order() -> None:
    connection = ready()
    connection.receive_data(encode(*[[0, i, "ping", []] for i in range(300)]))
    for i in range(0, 300, 3):
        connection.respond(i, {"i": i})
        connection.respond_packed(i + 1, b"\x80")
        connection.fail(i + 2, InvalidError("no"))
    assert connection.bytes_out > 0 and not connection.pending
    expected = connection.bytes_out
    (chunk,) = connection.data_to_send()
    assert len(chunk) == expected and connection.bytes_out == 0
    assert [m[1] for m in decode(bytes(chunk))] == list(range(300))
    assert decode(bytes(chunk))[:2] == [[1, 0, None, {"i": 0}], [1, 1, None, {}]]


def test_large_bins_are_sent_as_they_are() -> None:
    connection = ready()
    connection.receive_data(encode(*[[0, i, "buffer.read", []] for i in range(4)]))
    large, other = bytearray(b"x" * codec.LARGE), memoryview(bytearray(8 * codec.LARGE)).cast("d")
    connection.respond_packed(0, b"\x80")
    connection.respond(1, {"data": large})
    connection.respond(2, {"outputs": [b"s", other, b"t"]})
    connection.respond_packed(3, b"\x80")
    size = connection.bytes_out
    chunks = connection.data_to_send()
    assert [c.obj for c in chunks if isinstance(c, memoryview)] == [large, other.obj]
    assert len(chunks) == 5 and sum(map(len, chunks)) == size
    assert decode(b"".join(map(bytes, chunks))) == [
        [1, 0, None, {}], [1, 1, None, {"data": large}], [1, 2, None, {"outputs": [b"s", other.tobytes(), b"t"]}],
        [1, 3, None, {}],
    ]  # fmt: skip


def test_an_answer_over_the_limit_becomes_an_error() -> None:
    connection = ready(SMALL)
    connection.receive_data(encode([0, 1, "buffer.read", []], [0, 2, "buffer.read", []]))
    room = SMALL.max_message_bytes - len(encode([1, 2**31, None, {"data": bytes(1000)}])) + 1000
    connection.respond(1, {"data": bytes(room)})
    connection.respond(2, {"data": bytes(room + 1)})
    assert [(m[1], m[2] and m[2]["code"]) for m in decode(sent(connection))] == [(1, None), (2, "too_large")]


def test_answering_what_nobody_asked_is_a_fault_of_the_caller() -> None:
    connection = ready()
    for answer in (
        lambda: connection.respond(5, {}), lambda: connection.respond_packed(5, b"\x80"),
        lambda: connection.fail(5, InvalidError("no")),
    ):  # fmt: skip
        with pytest.raises(KeyError):
            answer()
    assert connection.data_to_send() == []


def test_a_result_that_cannot_be_sent_leaves_the_request_open() -> None:
    connection = ready()
    connection.receive_data(encode([0, 1, "ping", []]))
    with pytest.raises(InvalidError):
        connection.respond(1, {"bad": object()})
    assert connection.pending == {1}
    connection.respond(1, {})
    assert decode(sent(connection)) == [[1, 1, None, {}]]
