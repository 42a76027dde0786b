"""Headers of MessagePack values, by first byte; and where the bins of a message are."""

from __future__ import annotations

WHOLE = bytearray(256)
"""Length of a value that its first byte tells all about; 0 for the others."""
HEADER = bytearray(256)
"""Length of the header of those others; 0 for 0xc1, which MessagePack never uses."""

for _first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):  # small integers, nil, booleans
    WHOLE[_first] = 1
for _first in range(0xA0, 0xC0):  # short strings
    WHOLE[_first] = 1 + (_first & 0x1F)
for _first, _size in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):  # floats, integers
    WHOLE[_first] = _size
for _first in range(0x80, 0xA0):  # short maps and lists
    HEADER[_first] = 1
for _first, _size in zip(range(0xC4, 0xCA), (2, 3, 5, 3, 4, 6), strict=True):  # bin, ext
    HEADER[_first] = _size
for _first, _size in zip(range(0xD4, 0xE0), (2, 2, 2, 2, 2, 2, 3, 5, 3, 5, 3, 5), strict=True):
    HEADER[_first] = _size  # fixext, str, list, map

STRINGS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
BINS = frozenset((0xC4, 0xC5, 0xC6))
EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))
FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def bins_in(message: bytes) -> list[tuple[int, int, int]] | None:
    """Of each bin of a valid message, in order: where its header begins, its bytes begin, and they end.

    Returns:
        None for a message with extension values.
    """
    found = []
    at = 0
    while at < len(message):
        first = message[at]
        end = at + (WHOLE[first] or HEADER[first])
        if first in EXTENSIONS or first in FIXED_EXTENSIONS:
            return None
        if not WHOLE[first] and (first in BINS or first in STRINGS):
            begin = end
            end += int.from_bytes(message[at + 1 : begin], "big")
            if first in BINS:
                found.append((at, begin, end))
        at = end
    return found


__all__ = ["BINS", "EXTENSIONS", "FIXED_EXTENSIONS", "HEADER", "STRINGS", "WHOLE", "bins_in"]
