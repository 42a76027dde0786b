"""Values to MessagePack and back; the only place that knows the msgpack package.

Bins of at least `LARGE` bytes are never copied into a packed message: `pack_pieces` leaves them as buffers of
their own between the packed parts, and `unpack_spliced` puts buffers that were received on their own back
where they belong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack

from vkqueue.errors import InvalidError, ProtocolError, TooLargeError

LARGE = 64 * 1024
"""Bins from this size on travel as buffers of their own: at about this size a memcpy (10 µs) costs more than
the system call that it saves."""

MAX_BIN = 2**32 - 1

Piece: TypeAlias = bytes | memoryview

_BUFFERS = frozenset((bytes, bytearray, memoryview))
_CONTAINERS = frozenset((dict, list, tuple))
_BIN32 = struct.Struct(">BI").pack

# A list's header makes the C decoder allocate eight bytes for each promised entry at once, at every one of its
# 1,024 levels: without a bound a few hundred bytes would cost terabytes. Longer lists take the slower way of
# `unpack`, whose bound is the number of bytes that are really there.
_STREAM_ARRAY_LEN = 1024

PLACEHOLDER = b"\xd4\x00\x00"
"""Stands for a spliced bin in the bytes given to `unpack_spliced`: an extension value of one byte. What it
holds does not matter, the place in the order of extension values does, so that no client can forge it."""

TIMESTAMP = 0xFF
"""The extension type (-1) that msgpack decodes itself: it does not count in that order."""


def pack(value: object) -> bytes:
    """MessagePack of a value.

    Raises:
        InvalidError: it holds something that MessagePack has no form for.
    """
    return pack_with(new_packer(), value)


def unpack(data: bytes | bytearray | memoryview) -> Any:
    """The one value that `data` holds; map keys are as they come.

    Raises:
        ProtocolError: not one whole MessagePack value, or text that is not UTF-8.
    """
    return unpack_spliced(data, ())


def unpack_spliced(data: bytes | bytearray | memoryview, extensions: Sequence[memoryview | None]) -> Any:
    """As `unpack`, with buffers put in the places of extension values.

    Args:
        data: the message, each buffer replaced by `PLACEHOLDER`.
        extensions: for each extension value of the message, in order and timestamps left out, the buffer that
            it stands for, or None for one that is the sender's own.
    """
    order = iter(extensions)

    def hook(code: int, payload: bytes) -> object:
        buffer = next(order, None)
        return msgpack.ExtType(code, payload) if buffer is None else buffer

    try:
        return msgpack.unpackb(data, strict_map_key=False, ext_hook=hook)
    except UnicodeDecodeError:
        raise ProtocolError("a string in the message is not UTF-8; send bytes as a bin") from None
    except Exception as error:  # whatever a decoder raises, the message is at fault, and nobody else may suffer
        raise ProtocolError(f"not valid MessagePack: {error or type(error).__name__}") from None


def stream_unpacker(buffer_bytes: int) -> Any:
    """A decoder for a burst of at most `buffer_bytes`; after any exception, or an incomplete value, get a new one."""
    return msgpack.Unpacker(
        None,
        read_size=min(buffer_bytes, 16 * 1024),
        max_buffer_size=4 * buffer_bytes,
        strict_map_key=False,
        max_array_len=_STREAM_ARRAY_LEN,
    )


def new_packer() -> Any:
    """A packer to keep: using one again costs half as much as a new one. Not for several threads at once."""
    return msgpack.Packer(autoreset=True)


def pack_with(packer: Any, value: object) -> bytes:
    """`pack` with a kept packer.

    Raises:
        InvalidError: the value holds something that MessagePack has no form for.
    """
    try:
        packed: bytes = packer.pack(value)
    except (TypeError, ValueError, OverflowError, BufferError) as error:
        raise InvalidError(
            f"this value cannot be sent: {error}; a message holds nil, booleans, integers of 64 bits, floats, "
            "strings, bytes-like objects, lists, and maps with string keys"
        ) from error
    return packed


def pack_pieces(packer: Any, value: object, large: int = LARGE) -> list[Piece]:
    """A value as packed parts and, untouched between them, its bytes-like objects of at least `large` bytes.

    The buffers must not change until they have been sent.

    Raises:
        InvalidError: the value holds something that MessagePack has no form for.
        TooLargeError: a buffer is longer than any bin can be.
    """
    if not _holds_large(value, large):
        return [pack_with(packer, value)]
    pieces: list[Piece] = []
    _emit(packer, value, large, pieces.append)
    return pieces


@dataclass(frozen=True, slots=True)
class Gap:
    """Stands for a bin of so many bytes in a value given to `pack_around`."""

    size: int


def pack_around(value: object) -> list[bytes]:
    """The packed parts of a value around the bins that are to fill its gaps; with their headers.

    Returns:
        One more than there are gaps: what comes before the first, between them, and behind the last.

    Raises:
        InvalidError: the value holds something that MessagePack has no form for.
    """
    parts = [b""]
    _emit_around(new_packer(), value, parts)
    return parts


def _emit_around(packer: Any, value: Any, parts: list[bytes]) -> None:
    if type(value) is dict:
        parts[-1] += packer.pack_map_header(len(value))
        for key, item in value.items():
            parts[-1] += pack_with(packer, key)
            _emit_around(packer, item, parts)
    elif type(value) is Gap:
        parts[-1] += _BIN32(0xC6, value.size)
        parts.append(b"")
    else:
        parts[-1] += pack_with(packer, value)


def _holds_large(value: Any, large: int) -> bool:
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in _BUFFERS and memoryview(value).nbytes >= large
    for item in value:
        kind = type(item)
        if kind is int or kind is float or kind is str:
            continue
        if (kind in _CONTAINERS or kind in _BUFFERS) and _holds_large(item, large):
            return True
    return False


def _emit(packer: Any, value: Any, large: int, append: Callable[[Piece], None]) -> None:
    if not _holds_large(value, large):
        append(pack_with(packer, value))
    elif type(value) is dict:
        append(packer.pack_map_header(len(value)))
        for key, item in value.items():
            append(pack_with(packer, key))
            _emit(packer, item, large, append)
    elif type(value) is list or type(value) is tuple:
        append(packer.pack_array_header(len(value)))
        for item in value:
            _emit(packer, item, large, append)
    else:
        buffer = _flat(value)
        append(_BIN32(0xC6, len(buffer)))
        append(buffer)


def _flat(value: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(value)
    if view.nbytes > MAX_BIN:
        raise TooLargeError(f"{view.nbytes} bytes do not fit one bin (at most {MAX_BIN}); send them in parts")
    if not view.c_contiguous:
        raise InvalidError("a buffer to be sent must be contiguous; copy it first")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
