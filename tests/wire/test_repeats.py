"""Requests that come again byte for byte: recognized, and never taken for anything else."""

from __future__ import annotations

import gc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.wire import repeats
from vkqueue.wire.framing import Limits
from vkqueue.wire.repeats import GraphLaunch, Launch
from vkqueue.wire.session import ServerConnection


def connected() -> ServerConnection:
    conn = ServerConnection(Limits())
    conn.receive_data(msgpack.packb([0, 0, "hello", [{"protocol": 1, "client": "x"}]]))
    conn.ready()
    conn.respond(0, {})
    conn.data_to_send()
    return conn


def known(conn: ServerConnection) -> dict[bytes, Any]:
    """What it keeps."""
    return conn._splitter._repeats._known  # type: ignore[union-attr]


def dispatch(msgid: int, **params: Any) -> bytes:
    packed: bytes = msgpack.packb([0, msgid, "dispatch", [params]])
    return packed


def test_the_parameters_of_a_repeated_dispatch_are_one_object():
    conn = connected()
    params = {"module": 1, "args": [2, 3], "scalars": [64, 0.5], "grid": [1]}
    [(_, _, first)] = conn.receive_data(dispatch(1, **params))
    [(msgid, method, second)] = conn.receive_data(dispatch(70_000, **params))
    [(_, _, third)] = conn.receive_data(dispatch(3, **params))
    assert (msgid, method) == (70_000, "dispatch")
    assert first == second == params
    assert type(second) is Launch and third is second


def test_launches_of_graphs_are_kept_too_and_told_apart():
    conn = connected()
    launch, other = ({"graph": 5, "buffers": {"x": n}} for n in (6, 7))
    messages = [("graph.launch", launch), ("dispatch", launch), ("graph.launch", other)]
    found = []
    for round in range(2):
        for number, (method, params) in enumerate(messages):
            msgid = 100 * round + number
            [(got, named, taken)] = conn.receive_data(msgpack.packb([0, msgid, method, [params]]))
            assert (got, named, taken) == (msgid, method, params)
            found.append(taken)
    assert [type(params) for params in found[3:]] == [GraphLaunch, Launch, GraphLaunch]
    assert found[3] is not found[5]


def test_launches_that_name_many_buffers_are_kept_and_dispatches_of_that_size_are_not():
    conn = connected()
    many = {"graph": 5, "buffers": {f"y{i}": i for i in range(200)}}
    for method, params, kept in (("graph.launch", many, True), ("dispatch", {"args": list(range(700))}, False)):
        taken = []
        for msgid in range(3):
            [(_, _, found)] = conn.receive_data(msgpack.packb([0, msgid, method, [params]]))
            assert found == params
            taken.append(found)
            conn.respond(msgid, {})
        assert (taken[1] is taken[2]) == kept


def test_a_repeat_with_a_msgid_in_use_ends_the_connection():
    conn = connected()
    message = dispatch(5, module=1, args=[], grid=[1])
    assert len(conn.receive_data(message)) == 1
    assert conn.receive_data(message) == []
    assert conn.closing
    assert msgpack.unpackb(conn.data_to_send()[0])[2][0]["code"] == "protocol"


def test_what_is_wrong_is_never_learned():
    conn = connected()
    nested: Any = [1]
    for _ in range(40):  # deeper than the limit
        nested = [nested]
    bad = dispatch(9, module=1, args=nested, grid=[1])
    assert conn.receive_data(bad) == []
    assert conn.closing

    conn = connected()
    wrong = msgpack.packb([0, 7, "dispatch", [1, 2]])  # params is no map in a list: answered, and so again
    for _ in range(3):
        assert conn.receive_data(wrong) == []
        assert msgpack.unpackb(conn.data_to_send()[0])[2]["code"] == "invalid"


def test_many_answers_alike_are_those_of_one_by_one():
    conn, other = connected(), connected()
    ids = [1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1]
    for each in (conn, other):
        for msgid in ids:
            each.receive_data(dispatch(msgid, module=1, args=[], grid=[1]))
    conn.respond_alike(ids, b"\x80")
    for msgid in ids:
        other.respond_packed(msgid, b"\x80")
    assert b"".join(conn.data_to_send()) == b"".join(other.data_to_send())
    assert not conn.pending


def burst(requests: range, msgids: int) -> bytes:
    """Requests that differ, each with a msgid of its own."""
    return b"".join([dispatch(msgids + i, module=1, args=[i % 7], grid=[i]) for i in requests])


def test_learning_gives_up_where_nothing_comes_again_and_tries_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repeats, "_BUDGET", 512)
    conn = connected()
    assert len(conn.receive_data(burst(range(3000), 1))) == 3000
    assert len(known(conn)) < 1500
    for i in range(3000, 3010):  # one more try a burst
        conn.receive_data(dispatch(i + 1, module=1, args=[7], grid=[i]))
    assert conn.receive_data(dispatch(4000, module=1, args=[7], grid=[3001]))[0][2]["grid"] == [3001]


def test_ten_thousand_requests_that_go_round_are_all_kept():
    conn = connected()
    rounds: list[list[Any]] = [[], [], []]
    for number, params in enumerate(rounds):
        for first in range(0, 10_000, 100):
            requests = conn.receive_data(burst(range(first, first + 100), 1 + 20_000 * number))
            params += [each for _, _, each in requests]
    assert rounds[0] == rounds[1]
    assert all(again is before for again, before in zip(rounds[2], rounds[1], strict=True))


def test_what_all_connections_keep_is_bounded_and_goes_with_them(monkeypatch: pytest.MonkeyPatch):
    gc.collect()
    before = repeats._Everywhere.bytes
    monkeypatch.setattr(repeats, "_MAX_KEPT_EVERYWHERE", before + 150_000)
    conns = [connected() for _ in range(3)]
    for conn in conns:
        conn.receive_data(burst(range(100), 1))
    assert before < repeats._Everywhere.bytes <= before + 152_000
    assert len(known(conns[0])) == 100 > len(known(conns[2]))
    conns.clear()
    del conn
    gc.collect()
    assert repeats._Everywhere.bytes == before


small = st.integers(0, 300)
params = st.fixed_dictionaries(
    {"module": small, "args": st.lists(small, max_size=3), "grid": st.lists(small, min_size=1, max_size=3)},
    optional={
        "scalars": st.lists(st.one_of(small, st.floats(allow_nan=False)), max_size=3),
        "label": st.text(max_size=4),
    },
)


@settings(max_examples=200, deadline=None)
@given(
    kinds=st.lists(params, min_size=1, max_size=4),
    order=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
    step=st.sampled_from([1, 100, 30_000, 2**24]),
)
def test_any_mix_cut_anywhere_gives_what_was_sent(
    kinds: list[dict[str, Any]], order: list[tuple[int, bool]], cuts: list[int], step: int
) -> None:
    sent = []
    for i, (which, other) in enumerate(order):
        msgid = 1 + i * step % 2**32
        if other:
            sent.append((msgid, "buffer.read", {"buffer": which}))
        else:
            sent.append((msgid, "dispatch", kinds[which % len(kinds)]))
    stream = b"".join(msgpack.packb([0, msgid, method, [p]]) for msgid, method, p in sent)
    conn = connected()
    came: list[Any] = []
    places = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    for begin, end in zip(places, places[1:], strict=False):
        came += conn.receive_data(stream[begin:end])
    assert came == sent
