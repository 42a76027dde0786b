"""Files of weights in the safetensors format: read without a copy, and written.

A reader of our own: the format is a length, a JSON map and bytes, and the daemon wants the bytes as they are, not as
NumPy arrays (which have no bfloat16, and which it does without). Files come from others, so nothing in a header is
believed before it is checked.

    8 bytes   length of the header, little endian
    header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}, and spaces
    data      tensors one behind the other, without gaps; offsets count from here
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vkqueue.errors import InvalidError, TooLargeError, brief
from vkqueue.models.source import Weight

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of an element by the format's names of types."""

MAX_HEADER_BYTES = 16 << 20
"""Arbitrary: a hundred thousand tensors. The format's own library takes 100 MB, which Python parses for seconds."""

_MAX_DIMENSIONS = 32  # arbitrary; NumPy's before 2.0
_METADATA = "__metadata__"
_ALIGN = 8  # of the data, in files that we write: the widest element


class _Pairs(list[tuple[str, Any]]):
    """A JSON map with every name that stood there, also one that came twice."""


def map_file(path: str | os.PathLike[str], file: int | None = None) -> memoryview:
    """A file's bytes, mapped and read-only.

    The mapping lives as long as a view of it. The file is to be replaced by renaming another over it: to cut it short
    while it is mapped kills the process that next reads what is gone.

    Args:
        file: the open file, which is closed; else it is opened.

    Raises:
        InvalidError: it is no ordinary file.
        OSError
    """
    if file is None:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would not open before its writer
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidError(f"{os.fspath(path)} is no file")
        if status.st_size == 0:  # cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file, status.st_size, access=mmap.ACCESS_READ))
    finally:
        os.close(file)


def read(path: str | os.PathLike[str], file: int | None = None) -> dict[str, Weight]:
    """The tensors of a file, as views of its mapping (see `map_file`), in the header's order.

    Raises:
        InvalidError: it is not of the format; the message starts with the path.
        TooLargeError: its header is over `MAX_HEADER_BYTES`.
        OSError: it cannot be read.
    """
    data = map_file(path, file)
    try:
        return parse(data)
    except (InvalidError, TooLargeError) as error:
        raise type(error)(f"{os.fspath(path)}: {error.message}", error.data) from None


def parse(data: memoryview) -> dict[str, Weight]:
    """The tensors of a file's bytes, as views of them.

    Raises:
        InvalidError, TooLargeError: as `read`.
    """
    length, entries = _header(data)
    body = data[8 + length :]
    found: dict[str, Weight] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, value in entries:
        if name in found:
            raise InvalidError(f"the tensor {brief(name)} stands twice in the header")
        if name == _METADATA:
            _check_metadata(value)
            continue
        dtype, shape, start, end = _tensor(name, value, len(body))
        ranges.append((start, end, name))
        found[name] = Weight(dtype, shape, body[start:end])
    _check_cover(ranges, len(body))
    return found


def _header(data: memoryview) -> tuple[int, _Pairs]:
    """Length of the header, and what it says."""
    if len(data) < 8:
        raise InvalidError(f"{len(data)} bytes are no safetensors file, which starts with 8 of its header's length")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise InvalidError(f"the header is to have {length} bytes, the file has {len(data) - 8} behind its length")
    if length > MAX_HEADER_BYTES:
        raise TooLargeError(f"the header has {length} bytes; at most {MAX_HEADER_BYTES} are read")
    if bytes(data[8:9]) != b"{":
        raise InvalidError("the header does not start with '{': this is no safetensors file")
    try:
        header = json.loads(bytes(data[8 : 8 + length]).decode(), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, an integer of thousands of digits
        raise InvalidError(f"the header is no JSON: {error}") from None
    assert isinstance(header, _Pairs)  # what starts with a brace and is JSON is a map
    return length, header


def _check_metadata(value: object) -> None:
    if not isinstance(value, _Pairs) or not all(isinstance(text, str) for _, text in value):
        raise InvalidError(f"{_METADATA} has to be a map of text to text")


def _tensor(name: str, value: object, body: int) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, first byte, byte behind the last) of a header's entry."""
    what = f"the tensor {brief(name)}"
    if not isinstance(value, _Pairs) or sorted(key for key, _ in value) != ["data_offsets", "dtype", "shape"]:
        raise InvalidError(f"{what} needs dtype, shape and data_offsets, each once, and nothing else")
    fields = dict(value)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise InvalidError(f"{what}: the dtype {brief(dtype)} is unknown; expected one of {', '.join(ITEM_BYTES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise InvalidError(f"{what}: shape has to be a list of at most {_MAX_DIMENSIONS} sizes, got {brief(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise InvalidError(f"{what}: data_offsets has to be a list of two offsets, got {brief(offsets)}")
    start, end = offsets
    if not start <= end <= body:
        raise InvalidError(f"{what}: bytes {start} to {end} are not within the {body} bytes of data")
    size = math.prod(shape) * ITEM_BYTES[dtype]
    if size != end - start:
        raise InvalidError(f"{what}: {brief(shape)} of {dtype} are {size} bytes, data_offsets span {end - start}")
    return dtype, tuple(shape), start, end


def _are_sizes(value: object) -> bool:
    return type(value) is list and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_cover(ranges: list[tuple[int, int, str]], body: int) -> None:
    """Tensors follow each other without a gap and without sharing bytes, from the first byte of data to the last."""
    at, before = 0, "the start of the data"
    for start, end, name in sorted(ranges):
        if start != at:
            fault = "share bytes" if start < at else "have a gap between them"
            raise InvalidError(f"{before} and the tensor {brief(name)} {fault} (byte {at}, byte {start})")
        at, before = end, f"the tensor {brief(name)}"
    if at != body:
        raise InvalidError(f"{body - at} bytes behind the last tensor belong to none")


def write(
    path: str | os.PathLike[str], weights: Mapping[str, Weight], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file, in the order of `weights`. What was there is replaced as a whole, once all is written.

    Raises:
        InvalidError: the data of a weight is not what its dtype and shape say, or its name is not free.
        OSError
    """
    header: dict[str, Any] = {} if not metadata else {_METADATA: dict(metadata)}
    at = 0
    for name, weight in weights.items():
        size = math.prod(weight.shape) * ITEM_BYTES.get(weight.dtype, 0)
        if name == _METADATA or weight.dtype not in ITEM_BYTES or memoryview(weight.data).nbytes != size:
            raise InvalidError(
                f"the tensor {brief(name)}: {memoryview(weight.data).nbytes} bytes as {weight.shape} {weight.dtype}; "
                f"expected {size}, a dtype among {', '.join(ITEM_BYTES)} and a name other than {_METADATA}"
            )
        header[name] = {"dtype": weight.dtype, "shape": list(weight.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN)
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("xb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for weight in weights.values():
                file.write(weight.data)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
