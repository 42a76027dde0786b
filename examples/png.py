"""PNG files as NumPy arrays, with the standard library alone: 8 bits a channel, not interlaced."""

from __future__ import annotations

import struct
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type: grey, RGB, grey with alpha, RGB with alpha


def read_png(path: str | PathLike[str]) -> Pixels:
    """The picture as (height, width, channels).

    Raises:
        ValueError: no PNG, or of a kind that is not read here.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_SIGNATURE):
        raise ValueError(f"{path} is no PNG file")
    packed, at = b"", len(_SIGNATURE)
    header: tuple[int, ...] = ()
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            header = struct.unpack_from(">IIBBBBB", data, at + 8)
        elif kind == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height, bits, color, _, _, interlaced = header
    if bits != 8 or color not in _CHANNELS or interlaced:
        raise ValueError(f"{path}: only PNGs of 8 bits a channel, without palette and interlacing, are read here")
    return _unfiltered(zlib.decompress(packed), width, height, _CHANNELS[color])


def _unfiltered(raw: bytes, width: int, height: int, channels: int) -> Pixels:
    """Undo what each line was filtered by, which the line's first byte says."""
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    image = np.zeros((height + 1, width + 1, channels), np.int32)  # a line above and a column to the left of zeros
    for y in range(height):
        kind = int(lines[y, 0])
        line = lines[y, 1:].reshape(width, channels).astype(np.int32)
        above = image[y]
        target = image[y + 1]
        if kind == 0:
            target[1:] = line
        elif kind == 1:  # Sub
            target[1:] = np.cumsum(line, 0) & 255
        elif kind == 2:  # Up
            target[1:] = (line + above[1:]) & 255
        else:  # Average and Paeth look at the pixel to the left, so they go one by one
            for x in range(width):
                target[x + 1] = (line[x] + _guess(kind, target[x], above[x + 1], above[x])) & 255
    return image[1:, 1:].astype(np.uint8)


def _guess(kind: int, left: Any, above: Any, corner: Any) -> Any:
    if kind == 3:
        return (left + above) // 2
    estimate = left + above - corner
    from_left, from_above, from_corner = abs(estimate - left), abs(estimate - above), abs(estimate - corner)
    nearest = np.where(from_above <= from_corner, above, corner)
    return np.where((from_left <= from_above) & (from_left <= from_corner), left, nearest)


def write_png(path: str | PathLike[str], image: Any) -> None:
    """Write uint8 pixels, (height, width) or (height, width, channels)."""
    pixels: Pixels = np.asarray(image, np.uint8)
    height, width = pixels.shape[:2]
    pixels = pixels.reshape(height, width, -1)
    color = {channels: color for color, channels in _CHANNELS.items()}[pixels.shape[2]]
    flat = pixels.reshape(height, -1)
    # Each line is kept as its difference to the line above ("Up"), which packs better than plain pixels.
    lines = np.full((height, 1 + flat.shape[1]), 2, np.uint8)
    lines[:, 1:] = flat
    lines[1:, 1:] -= flat[:-1]
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    with open(path, "wb") as file:
        file.write(_SIGNATURE)
        for kind, data in chunks:
            checksum = zlib.crc32(kind + data)
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))
