"""Values to MessagePack and back."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from support import streams
from support.streams import properties, same

from vkqueue.errors import InvalidError, ProtocolError
from vkqueue.wire import codec


@properties
@given(streams.values)
def test_round_trip(value: Any) -> None:
    assert same(codec.unpack(codec.pack(value)), value)


@properties
@given(streams.values)
def test_pieces_are_the_same_message_and_large_bins_are_not_copied(value: Any) -> None:
    pieces = codec.pack_pieces(codec.new_packer(), value, large=50)
    assert same(msgpack.unpackb(b"".join(pieces), strict_map_key=False), value)
    assert sum(isinstance(piece, memoryview) for piece in pieces) == large_bins(value)


def large_bins(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(large_bins, value.values()))
    if isinstance(value, list):
        return sum(map(large_bins, value))
    return isinstance(value, bytes) and len(value) >= 50


def test_a_buffer_of_other_items_counts_its_bytes() -> None:
    numbers = memoryview(bytearray(8 * codec.LARGE)).cast("d")
    pieces = codec.pack_pieces(codec.new_packer(), {"data": numbers})
    assert [len(piece) for piece in pieces[-2:]] == [5, 8 * codec.LARGE]
    assert isinstance(pieces[-1], memoryview) and pieces[-1].obj is numbers.obj


@pytest.mark.parametrize(
    "value",
    [object(), 2**64, {"k": {1, 2}}, memoryview(bytearray(10))[::2], memoryview(bytearray(codec.LARGE * 2))[::2]],
)
def test_what_has_no_form(value: Any) -> None:
    with pytest.raises(InvalidError):
        codec.pack(value)
    with pytest.raises(InvalidError):
        codec.pack_pieces(codec.new_packer(), [value])


def test_a_kept_packer_goes_on_after_an_error() -> None:
    packer = codec.new_packer()
    with pytest.raises(InvalidError):
        codec.pack_with(packer, [1, 2, object()])
    assert codec.pack_with(packer, [1]) == b"\x91\x01"


@pytest.mark.parametrize("data", [b"", b"\x92\x01", b"\x01\x02", b"\xc1", b"\xa1\xff", b"\x81\x90\x01"])
def test_what_is_not_one_message(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.unpack(data)


@pytest.mark.parametrize("sizes", [(), (0,), (3, 70_000), (5, 0, 5)])
def test_parts_packed_around_gaps_make_the_value_with_bins_in_them(sizes: tuple[int, ...]) -> None:
    bins = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    def value(fill: Any) -> dict[str, Any]:
        return {"a": [1, "x"], "deep": {str(n): {"n": n, "bin": fill(n)} for n in range(len(sizes))}, "z": None}

    parts = codec.pack_around(value(lambda n: codec.Gap(sizes[n])))
    assert len(parts) == len(sizes) + 1
    whole = b"".join(piece for pair in zip(parts, [*bins, b""], strict=True) for piece in pair)
    assert codec.unpack(whole) == value(lambda n: bins[n])
