"""Files of weights: what is read is what was written, and nothing in a header is believed unchecked."""

from __future__ import annotations

import gc
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.errors import InvalidError, TooLargeError
from vkqueue.models import safetensors
from vkqueue.models.safetensors import ITEM_BYTES, map_file, parse, read, write
from vkqueue.models.source import Weight

QUICK = settings(max_examples=500, deadline=None, derandomize=True)


def file_of(header: object, data: bytes = b"", length: int | None = None) -> memoryview:
    """A file's bytes; the header as JSON unless it is text or bytes already."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return memoryview(struct.pack("<Q", len(text) if length is None else length) + text + data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_file_that_was_written_is_read_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights = {
        "b": Weight("F32", (2, 3), struct.pack("<6f", *range(6))),
        "scalar": Weight("I64", (), struct.pack("<q", -7)),
        "none": Weight("BF16", (0, 5), b""),
        "ü.weight": Weight("U8", (3,), memoryview(b"xyz")),
    }
    write(path, weights, {"format": "pt"})
    found = read(path)
    assert [*found] == [*weights]
    for name, weight in weights.items():
        assert (found[name].dtype, found[name].shape) == (weight.dtype, weight.shape)
        assert bytes(found[name].data) == bytes(weight.data)
    assert found["b"].data.readonly
    assert found["b"].data.obj is found["ü.weight"].data.obj  # one mapping
    start = int.from_bytes(path.read_bytes()[:8], "little")
    assert start % 8 == 0  # so that data starts at a multiple of 8
    assert os.listdir(tmp_path) == [path.name]


def test_a_view_keeps_the_mapping_and_a_file_that_replaces_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write(path, {"a": Weight("U8", (4,), b"old.")})
    data = read(path)["a"].data
    write(path, {"a": Weight("U8", (4,), b"new.")})
    gc.collect()
    assert bytes(data) == b"old."
    assert bytes(read(path)["a"].data) == b"new."


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write(path, {"a": Weight("U8", (4,), b"data")})
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        read(path)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write(path, {"a": Weight("U8", (4,), b"data")})
    for name, weight in (
        ("a", Weight("F32", (2,), b"1234")),
        ("a", Weight("F31", (1,), b"1234")),
        ("__metadata__", Weight("U8", (1,), b"1")),
    ):
        with pytest.raises(InvalidError, match="expected"):
            write(path, {name: weight})
    assert bytes(read(path)["a"].data) == b"data"
    assert os.listdir(tmp_path) == [path.name]


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidError, match="empty: 0 bytes are no safetensors file"):
        read(tmp_path / "empty")
    with pytest.raises(InvalidError, match="is no file"):
        map_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidError, match="is no file"):  # and it does not wait for a writer
        read(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (memoryview(b"1234567"), "7 bytes are no safetensors file"),
        (file_of({}, length=2**64 - 1), "the file has 2 behind its length"),
        (file_of({}, length=3), "the header is to have 3 bytes, the file has 2"),
        (file_of(b""), "does not start with '{'"),
        (file_of("[]"), "does not start with '{'"),
        (file_of(' {"a": 1}'), "does not start with '{'"),
        (file_of('{"a": '), "no JSON"),
        (file_of("{} x"), "no JSON"),
        (file_of(b'{"\xff": 1}'), "no JSON"),
        (file_of('{"a": ' + "9" * 5000 + "}"), "no JSON"),
        (file_of('{"a": ' + "[" * 100_000), "no JSON"),
        (file_of('{"a": 1}'), "needs dtype, shape and data_offsets"),
        (file_of({"a": {"dtype": "F32", "shape": [2]}}), "needs dtype, shape and data_offsets"),
        (file_of({"a": entry() | {"more": 1}}, bytes(8)), "nothing else"),
        (
            file_of('{"a": {"dtype": "U8", "dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}', b"1"),
            "each once",
        ),
        (file_of('{"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 2 + '"b": 1}'), "no JSON"),
        (
            file_of('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],'
                    '"data_offsets":[0,0]}}'),
            "'a' stands twice",
        ),
        (file_of({"a": entry("F31")}, bytes(8)), "'F31' is unknown"),
        (file_of({"a": entry(["F32"])}, bytes(8)), "is unknown"),
        (file_of({"a": entry(shape=[-2])}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(shape=[2.0])}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(shape=[True, 2])}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(shape=[2**63])}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(shape=[1] * 33)}, bytes(8)), "at most 32 sizes"),
        (file_of({"a": entry(shape="12")}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(shape={})}, bytes(8)), "shape has to be a list"),
        (file_of({"a": entry(offsets=[0])}, bytes(8)), "list of two offsets"),
        (file_of({"a": entry(offsets=[0, None])}, bytes(8)), "list of two offsets"),
        (file_of({"a": entry(offsets=[-8, 0])}, bytes(8)), "list of two offsets"),
        (file_of({"a": entry(offsets=[8, 0])}, bytes(8)), "not within the 8 bytes"),
        (file_of({"a": entry(offsets=[0, 8])}, bytes(7)), "not within the 7 bytes"),
        (file_of({"a": entry(shape=[3])}, bytes(8)), r"\[3\] of F32 are 12 bytes, data_offsets span 8"),
        (file_of({"a": entry(shape=[2**62, 2**62, 2])}, bytes(8)), "data_offsets span 8"),
        (file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "'a' and the tensor 'b' share bytes"),
        (file_of({"a": entry(), "b": entry()}, bytes(8)), "share bytes"),
        (file_of({"a": entry(), "b": entry(offsets=[9, 17])}, bytes(17)), "have a gap"),
        (file_of({"a": entry(offsets=[1, 9])}, bytes(9)), "the start of the data and the tensor 'a' have a gap"),
        (file_of({"a": entry()}, bytes(9)), "1 bytes behind the last tensor"),
        (file_of({"__metadata__": {"a": 1}}), "map of text to text"),
        (file_of({"__metadata__": "text"}), "map of text to text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: memoryview, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse(data)


def test_a_header_is_bounded() -> None:
    over = safetensors.MAX_HEADER_BYTES + 1
    with pytest.raises(TooLargeError, match=f"has {over} bytes"):
        parse(file_of("{}" + " " * (over - 2)))
    assert parse(file_of("{}" + " " * (over - 3))) == {}


SEED = bytes(
    file_of(
        {
            "__metadata__": {"k": "v"},
            "a": entry("F32", [2], [0, 8]),
            "b": entry("U8", [3], [8, 11]),
            "c": entry("F16", [1, 1], [11, 13]),
        },
        bytes(range(13)),
    )
)
WORDS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"-1", b"0", b"1e9", b"null", b"true", b"NaN", b'"a"', b'"F32"',
         b"18446744073709551616", b"\xff", b"\0", b"data_offsets", b"shape", b" "]  # fmt: skip


def check(data: bytes) -> None:
    """Tensors that lie side by side within the file, or an error that says why not."""
    try:
        found = parse(memoryview(data))
    except (InvalidError, TooLargeError) as error:
        assert error.message
        return
    body = len(data) - 8 - int.from_bytes(data[:8], "little")
    assert sum(len(weight.data) for weight in found.values()) == body
    for weight in found.values():
        assert len(weight.data) == math.prod(weight.shape) * ITEM_BYTES[weight.dtype]


@QUICK
@given(st.lists(st.tuples(st.integers(0, len(SEED) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SEED)
    for place, value in changes:
        data[place] = value
    check(bytes(data))


@QUICK
@given(st.integers(8, len(SEED) - 14), st.integers(0, 12), st.sampled_from(WORDS))
def test_changed_words_under_a_right_length(place: int, cut: int, word: bytes) -> None:
    end = len(SEED) - 13
    header = SEED[8:place] + word + SEED[min(place + cut, end) : end]
    check(bytes(file_of(header, SEED[end:])))


@QUICK
@given(st.integers(0, len(SEED)), st.binary(max_size=9))
def test_cut_and_lengthened(length: int, more: bytes) -> None:
    check(SEED[:length] + more)


@QUICK
@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(
            st.sampled_from([*ITEM_BYTES]),
            st.lists(st.integers(0, 3), max_size=3),
            st.lists(st.integers(0, 24), min_size=2, max_size=2),
        ),
        max_size=4,
    ),
    st.integers(0, 24),
)
def test_any_layout(tensors: dict[str, tuple[str, list[int], list[int]]], body: int) -> None:
    check(bytes(file_of({name: entry(*value) for name, value in tensors.items()}, bytes(body))))
