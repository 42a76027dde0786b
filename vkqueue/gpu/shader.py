"""The last look at a module before the driver gets it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

_HEADER_WORDS = 5
_OP_ENTRY_POINT, _OP_CAPABILITY, _OP_FUNCTION = 15, 17, 54
_GL_COMPUTE = 5
_STORAGE_INPUT_OUTPUT_16 = 4436


def without_graphics_capabilities(spirv: bytes, enabled: Mapping[str, bool]) -> bytes:
    """The module without `StorageInputOutput16`, where the device has no such feature and no use is possible.

    Some compilers (naga) declare all 16-bit storage together. Compute entry points have no inputs and outputs but
    built-ins of 32 bits, so there the declaration says nothing, yet the specification forbids it without the feature.
    """
    if enabled.get("storageInputOutput16"):
        return spirv
    at = None
    for first, opcode, count in _preamble(spirv):
        operand = struct.unpack_from("<I", spirv, 4 * (first + 1))[0] if count > 1 else None
        if opcode == _OP_ENTRY_POINT and operand != _GL_COMPUTE:
            return spirv
        if opcode == _OP_CAPABILITY and operand == _STORAGE_INPUT_OUTPUT_16:
            at = 4 * first
    return spirv if at is None else spirv[:at] + spirv[at + 8 :]


def _preamble(spirv: bytes) -> list[tuple[int, int, int]]:
    """(first word, opcode, words) of the instructions before the first function; stops at one that is broken."""
    found = []
    word, end = _HEADER_WORDS, len(spirv) // 4
    while word < end:
        head = struct.unpack_from("<I", spirv, 4 * word)[0]
        opcode, count = head & 0xFFFF, head >> 16
        if opcode == _OP_FUNCTION or not count or word + count > end:
            break
        found.append((word, opcode, count))
        word += count
    return found
