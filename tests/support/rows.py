"""Rows and tokens by hand, for tests of what is below the daemon."""

from __future__ import annotations

from typing import Any

from vkqueue.model import (
    COPY,
    CREATE,
    DISPATCH,
    FILL,
    READ,
    STORAGE,
    WRITE,
    Batch,
    Layout,
    Options,
    Range,
    Row,
    Token,
)

_ids = iter(range(1, 10**9))


def layout(bindings: int = 1, push_constant_bytes: int = 0, sets: tuple[int, ...] = (0,)) -> Layout:
    """`bindings` storage buffers in each of `sets`."""
    shape = tuple((number, tuple((b, STORAGE, 1) for b in range(bindings))) for number in sets)
    return Layout(next(_ids), shape, push_constant_bytes)


def token(
    reads: tuple[Range, ...] = (),
    writes: tuple[Range, ...] = (),
    layout: Layout | None = None,
    entries: tuple[tuple[int, int, int], ...] = (),
    cached: bool = True,
) -> Token:
    return Token(next(_ids), layout, entries, reads, writes, cached)


def create(msgid: int, buffer: int, size: int, data: bytes | None = None) -> Row:
    writes = ((buffer, 0, size),) if size else ()
    return (1, msgid, CREATE, token(writes=writes), buffer, b"", None, (size, data), 0, None)


def write(msgid: int, buffer: int, data: bytes, offset: int = 0) -> Row:
    where = token(writes=((buffer, offset, offset + len(data)),))
    return (1, msgid, WRITE, where, 0, b"", None, data, 0, None)


def read(msgid: int, buffer: int, size: int, offset: int = 0) -> Row:
    return (1, msgid, READ, token(reads=((buffer, offset, offset + size),)), 0, b"", None, None, 0, None)


def fill(msgid: int, buffer: int, size: int, word: int, offset: int = 0) -> Row:
    return (1, msgid, FILL, token(writes=((buffer, offset, offset + size),)), 0, b"", None, word, 0, None)


def copy(msgid: int, source: Range, target: Range) -> Row:
    return (1, msgid, COPY, token(reads=(source,), writes=(target,)), 0, b"", None, None, 0, None)


def dispatch(
    msgid: int,
    pipeline: int,
    token: Token,
    constants: bytes = b"",
    payload: tuple[Any, ...] | None = None,
    options: Options | None = None,
) -> Row:
    return (1, msgid, DISPATCH, token, pipeline, constants, (1, 1, 1), payload, 0, options)


def batch(serial: int, *rows: Row, flags: list[int] | None = None, slots: list[int] | None = None) -> Batch:
    """Without `flags` none are set."""
    return Batch(serial, list(rows), flags or [0] * len(rows), slots or [-1] * len(rows), "idle")
