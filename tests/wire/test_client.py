"""The client's end, and both ends together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import streams
from support.streams import HELLO, SMALL, cut, decode, encode, feed, properties, same, sent

from vkqueue.errors import BY_CODE, InvalidError, ProtocolError, TooLargeError, VkqueueError
from vkqueue.wire import codec
from vkqueue.wire.framing import Limits
from vkqueue.wire.session import ClientConnection, ServerConnection


def asked(count: int = 3, limits: Limits | None = None) -> ClientConnection:
    """A client with `count` requests sent, msgids from 1 on."""
    client = ClientConnection(limits or Limits())
    assert [client.request("ping") for _ in range(count)] == list(range(1, count + 1))
    sent(client)
    return client


def test_requests() -> None:
    client = ClientConnection(Limits())
    assert client.request("hello", HELLO) == 1
    assert client.request("ping") == 2
    assert client.request_packed("dispatch", codec.pack({"module": 1})) == 3
    assert client.pending == {1, 2, 3}
    (chunk,) = client.data_to_send()
    expected = [[0, 1, "hello", [HELLO]], [0, 2, "ping", [{}]], [0, 3, "dispatch", [{"module": 1}]]]
    assert decode(bytes(chunk)) == expected


def test_answers_in_any_order_and_cut_anyhow() -> None:
    error = {"code": "invalid", "message": "no", "data": {"x": 1}}
    data = encode([1, 3, None, {"a": 1}], [1, 1, error, None], [1, 2, None, None])
    for pieces in ([data], cut(data, range(len(data)))):
        client = asked()
        (three, one, two) = feed(client, pieces)
        assert three == (3, None, {"a": 1}) and two == (2, None, None)
        assert (one[0], type(one[1]), one[1].message, one[1].data, one[2]) == (1, InvalidError, "no", {"x": 1}, None)
        assert not client.pending and client.fault is None


@pytest.mark.parametrize("code", [*BY_CODE, "of_a_newer_daemon"])
def test_every_error_code_comes_back_as_its_class(code: str) -> None:
    client = asked(1)
    ((_, error, _),) = client.receive_data(encode([1, 1, {"code": code, "message": "m"}, None]))
    assert isinstance(error, VkqueueError)
    assert error.code == code and type(error) is BY_CODE.get(code, VkqueueError)


def test_the_daemons_last_words_are_the_fault() -> None:
    client = asked()
    data = encode([1, 1, None, {}], [2, "error", [{"code": "too_large", "message": "m"}]], [1, 2, None, {}])
    assert client.receive_data(data) == [(1, None, {})]
    assert isinstance(client.fault, TooLargeError) and client.pending == {2, 3}


def test_other_notifications_are_for_newer_clients() -> None:
    client = asked()
    assert client.receive_data(encode([2, "news", []], [2, "", 5], [1, 1, None, 0])) == [(1, None, 0)]
    assert client.fault is None


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\xc1", encode(5), encode([]), encode([1, 99, None, {}]), encode([1, 2, "bad", None]), encode([1, 2, None]),
        encode([True, 2, None, {}]), encode([1, 2.0, None, {}]), encode([0, 1, "ping", []]), encode([2, "error", []]),
        encode([2, "error", 5]), encode([1, 2, None, {1: 2}]), encode([1, 1, None, {}]),
        b"\x94\x01\x02\xc0\xc6\xff\xff\xff\xff",
        b"\x91" * 40,
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 10**6])
def test_rubbish_is_a_fault_and_nothing_behind_it_counts(rubbish: bytes, step: int) -> None:
    client = asked()
    stream = encode([1, 1, None, {}]) + rubbish + encode([1, 3, None, {}])
    assert feed(client, cut(stream, range(0, len(stream), step))) == [(1, None, {})]
    assert isinstance(client.fault, ProtocolError) and "the daemon sent" in client.fault.message
    assert client.receive_data(encode([1, 3, None, {}])) == []


def test_a_request_over_the_limit_is_refused_here_and_the_next_one_goes() -> None:
    client = ClientConnection(Limits())
    client.max_message_bytes = 200_000
    with pytest.raises(TooLargeError, match="200000"):
        client.request("buffer.write", {"buffer": 1, "data": bytes(200_000)})
    with pytest.raises(InvalidError):
        client.request("buffer.write", {"buffer": object()})
    assert not client.pending and client.data_to_send() == [] and client.bytes_out == 0
    assert client.request("ping") == 1


def test_msgids_wrap_and_pass_over_those_in_use() -> None:
    client = asked(2)
    client._last_msgid = 2**32 - 2
    assert [client.request("ping") for _ in range(3)] == [2**32 - 1, 0, 3]


def test_large_bins_are_sent_as_they_are() -> None:
    client = ClientConnection(Limits())
    data = bytearray(2 * codec.LARGE)
    client.request("buffer.write", {"buffer": 1, "data": data, "offset": 0})
    chunks = client.data_to_send()
    assert [len(c) > 1000 for c in chunks] == [False, True, False]
    assert isinstance(chunks[1], memoryview) and chunks[1].obj is data


# Both ends


@properties
@given(st.lists(streams.requests, max_size=5), st.lists(streams.values, min_size=5, max_size=5), streams.cuts)
def test_both_ends_understand_each_other(requests: list[Any], results: list[Any], cuts: list[int]) -> None:
    limits = Limits(receive_buffer=128, large_bin=32)
    client, server = ClientConnection(limits), ServerConnection(limits)
    client.request("hello", HELLO)
    server.receive_data(sent(client))
    server.ready()
    server.respond(1, {})
    feed(client, cut(sent(server), cuts))
    params = [r[3][0] if r[3] else {} for r in requests]
    msgids = [client.request("m" + r[2], p) for r, p in zip(requests, params, strict=True)]
    received = feed(server, cut(sent(client), cuts))
    expected = [[m, "m" + r[2], p] for m, r, p in zip(msgids, requests, params, strict=True)]
    assert same([list(r) for r in received], expected)
    answers = [(msgid, result) for (msgid, _, _), result in zip(received, results, strict=False)][::-1]
    for msgid, result in answers:
        server.respond(msgid, result)
    came = feed(client, cut(sent(server), cuts))
    assert same([[m, e, r] for m, e, r in came], [[m, None, r] for m, r in answers])
    assert not client.pending and not server.pending and client.fault is None and not server.closing


@pytest.mark.parametrize("step", [50_000, 1 << 20])
def test_large_data_both_ways(step: int) -> None:
    client, server = ClientConnection(Limits()), ServerConnection(Limits())
    data = bytes(range(256)) * (6 << 12)  # 6 MiB
    client.request("hello", HELLO)
    server.receive_data(sent(client))
    server.ready()
    client.request("buffer.write", {"buffer": 1, "data": data, "offset": 3})
    stream = sent(client)
    ((msgid, _, params),) = feed(server, cut(stream, range(0, len(stream), step)))
    assert params["data"] == data and params["offset"] == 3
    server.respond(msgid, {"data": params["data"]})
    stream = sent(server)
    ((_, error, result),) = feed(client, cut(stream, range(0, len(stream), step)))
    assert error is None and result["data"] == data


@properties
@given(st.binary(max_size=200), streams.cuts)
def test_garbage_from_the_daemon_never_raises(data: bytes, cuts: list[int]) -> None:
    for pieces in ([data], cut(data, cuts)):
        client = asked(3, SMALL)
        feed(client, pieces)
        assert client.fault is None or isinstance(client.fault, VkqueueError)
