"""Writes the smallest shared object that has one symbol with contents."""

from __future__ import annotations

import struct


def shared_object(
    symbol: str,
    content: bytes,
    *,
    size: int | None = None,
    section: int = 1,
    address: int = 0x1000,
    dynamic: bool = True,
) -> bytes:
    """Sections: 1 data, 2 symbols, 3 names. `size` is what the symbol says of itself."""
    names = b"\0other\0" + symbol.encode() + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0, 0, 1, 0x1000, 4)
    symbols += struct.pack("<IBBHQQ", 7, 0x11, 0, section, address, len(content) if size is None else size)
    parts, places, at = [content, symbols, names], [], 64
    for part in parts:
        places.append((at, len(part)))
        at += len(part)
    headers = bytes(64)
    for (place, length), (kind, link, where) in zip(
        places, ((1, 0, 0x1000), (11 if dynamic else 2, 3, 0), (3, 0, 0)), strict=True
    ):
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 0, where, place, length, link, 0, 1, 24 if link else 0)
    start = struct.pack("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 4, 0)
    return start + b"".join(parts) + headers
