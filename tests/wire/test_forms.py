"""Requests for inference whose form is known: found whatever is in their bins, and never taken for anything else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.wire.forms import Filled
from vkqueue.wire.framing import Limits
from vkqueue.wire.headers import bins_in
from vkqueue.wire.session import ServerConnection


def connected() -> ServerConnection:
    conn = ServerConnection(Limits())
    conn.receive_data(msgpack.packb([0, 0, "hello", [{"protocol": 1, "client": "x"}]]))
    conn.ready()
    conn.respond(0, {})
    conn.data_to_send()
    return conn


def tensor(*data: bytes) -> dict[str, Any]:
    """`inputs` of a request."""
    return {f"x{number}": {"shape": [1, len(part)], "data": part} for number, part in enumerate(data)}


def infer(msgid: int, *data: bytes, **params: Any) -> bytes:
    packed: bytes = msgpack.packb([0, msgid, "model.infer", [{"name": "m", "inputs": tensor(*data), **params}]])
    return packed


def taken(conn: ServerConnection, data: bytes) -> list[tuple[int, str, Any, bool]]:
    """What comes of these bytes: with the parameters as a map, and whether their form was known."""
    return [
        (msgid, method, params.whole() if type(params) is Filled else params, type(params) is Filled)
        for msgid, method, params in conn.receive_data(data)
    ]


def test_the_second_request_of_a_form_is_not_decoded_and_names_its_inputs():
    conn = connected()
    assert taken(conn, infer(1, b"one", b"first")) == [
        (1, "model.infer", {"name": "m", "inputs": tensor(b"one", b"first")}, False)
    ]
    [(msgid, method, params)] = conn.receive_data(infer(70_000, b"two", b"other"))
    assert (msgid, method, type(params)) == (70_000, "model.infer", Filled)
    assert (params.form.names, params.bins) == (["x0", "x1"], [b"two", b"other"])
    assert params.whole() == {"name": "m", "inputs": tensor(b"two", b"other")}


def test_the_form_is_one_object_to_which_its_owner_may_pin_something():
    conn = connected()
    conn.receive_data(infer(1, b"one"))
    [(_, _, first), (_, _, second)] = conn.receive_data(infer(2, b"two") + infer(3, b"six"))
    first.form.memo = "pinned"
    assert second.form is first.form


@pytest.mark.parametrize("other", [infer(2, b"four"), infer(2, b"one", b"x"), infer(2, b"one", version=2)])
def test_another_form_is_decoded(other: bytes):
    conn = connected()
    conn.receive_data(infer(1, b"one"))
    assert [known for *_, known in taken(conn, other)] == [False]
    assert [known for *_, known in taken(conn, infer(3, b"two"))] == [True]


@pytest.mark.parametrize(
    "params",
    [
        {"name": "m", "inputs": {"x": {"shape": [1]}}},  # no bin at all
        {"name": b"m", "inputs": tensor(b"one")},  # one that is no input's
        {"name": "m", "inputs": {"x": {"shape": b"s", "data": b"one"}}},
        {"name": "m", "inputs": {"x": {"data": [b"one"]}}},
        {"name": "m", "inputs": [b"one"]},
        {"name": "m", "inputs": tensor(b"one"), "priority": msgpack.ExtType(5, b"x")},
    ],
)
def test_what_has_bins_elsewhere_has_no_form(params: dict[str, Any]):
    conn = connected()
    for msgid in range(3):
        assert taken(conn, msgpack.packb([0, msgid, "model.infer", [params]])) == [
            (msgid, "model.infer", params, False)
        ]


def test_a_name_that_comes_twice_counts_where_the_decoder_counts_it():
    """{"x": {}, "y": {"data": …}, "x": {"data": …}}: the bins' order is not that of the inputs."""
    packer = msgpack.Packer(autoreset=True)

    def message(msgid: int, y: bytes, x: bytes) -> bytes:
        inputs = packer.pack("x") + packer.pack({}) + packer.pack("y") + packer.pack({"data": y})
        inputs += packer.pack("x") + packer.pack({"data": x})
        head = b"\x94\x00" + packer.pack(msgid) + packer.pack("model.infer") + b"\x91\x82"
        return head + packer.pack("name") + packer.pack("m") + packer.pack("inputs") + b"\x83" + inputs

    conn = connected()
    conn.receive_data(message(1, b"1", b"2"))
    [(_, _, params, known)] = taken(conn, message(2, b"y", b"x"))
    assert known
    assert params["inputs"] == {"x": {"data": b"x"}, "y": {"data": b"y"}}


def test_a_msgid_that_is_in_use_ends_the_connection():
    conn = connected()
    conn.receive_data(infer(1, b"one"))
    assert taken(conn, infer(2, b"two") + infer(2, b"six") + infer(3, b"ten")) == [
        (2, "model.infer", {"name": "m", "inputs": tensor(b"two")}, True)
    ]
    assert conn.closing


def test_many_forms_are_kept_within_bounds():
    conn = connected()
    for size in range(1, 1500):
        conn.receive_data(infer(size, bytes(size)))
    forms = conn._splitter._repeats._forms  # type: ignore[union-attr]
    assert 0 < len(forms._known) <= 256
    assert len(forms._heads) <= 8


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([b"", b"a", b"data", b"\xa4data\xc4\x04", bytes(300), b"\xff" * 300]), max_size=3),
        st.dictionaries(st.sampled_from(["version", "priority", "timing"]), st.sampled_from([0, 1, None, b"b"])),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(REQUESTS, st.data())
def test_forms_change_nothing_however_the_bytes_come(requests: list[Any], data: st.DataObject):
    stream = b"".join(infer(msgid, *bins, **params) for msgid, (bins, params) in enumerate(requests, 1))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    conn = connected()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += taken(conn, stream[begin:end])
    assert [request[:3] for request in found] == [
        (msgid, "model.infer", {"name": "m", "inputs": tensor(*bins), **params})
        for msgid, (bins, params) in enumerate(requests, 1)
    ]


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=30,
)


@given(VALUES)
def test_bins_are_found_where_they_are(value: Any):
    def bins(item: Any) -> list[bytes]:
        if type(item) is bytes:
            return [item]
        inner = item.values() if type(item) is dict else item if type(item) is list else ()
        return [found for each in inner for found in bins(each)]

    message = msgpack.packb(value)
    places = bins_in(message)
    assert places is not None
    assert [message[begin:end] for _, begin, end in places] == bins(value)
    assert all(message[header] in (0xC4, 0xC5, 0xC6) for header, _, _ in places)
