"""A plain listing of a module, in the notation of SPIR-V assembly with numbers for ids."""

from __future__ import annotations

import json
import struct

from vkqueue.kernels.grammar import SHAPES, Operand, Walk, mask_names, opcode_name
from vkqueue.kernels.module import Module, Op
from vkqueue.kernels.spirv import parse

MAX_TEXT = 8 << 20
"""Characters after which the listing stops; it has to fit into one message."""
_FLOATS = {16: "<e", 32: "<f", 64: "<d"}


def disassemble(spirv: bytes) -> str:
    """The module's instructions, one a line, with a head of comments.

    Raises:
        InvalidError, UnsupportedError: as `spirv.parse`.
    """
    module = parse(spirv)
    words = module.words
    lines = [
        "; SPIR-V",
        f"; Version: {module.version[0]}.{module.version[1]}",
        f"; Generator: {module.generator:#010x}",
        f"; Bound: {module.bound}",
    ]
    widths = {id: 2 if type_.width > 32 else 1 for id, type_ in module.types.items() if type_.width}
    walk = Walk(words, module.data, widths)
    at, length = 5, 0
    while at < len(words):
        op, n = words[at] & 0xFFFF, words[at] >> 16
        shape = SHAPES[op]
        selector = widths.get(module.type_of.get(words[at + 1], 0), 1) if op == Op.SWITCH else 1
        line = _line(module, op, walk.operands(at, n, shape, selector))
        lines.append(line)
        length += len(line) + 1
        at += n
        if length > MAX_TEXT:
            lines.append(f"; cut off after {at} of {len(words)} words")
            break
    return "\n".join(lines) + "\n"


def _line(module: Module, op: int, operands: list[Operand]) -> str:
    result, parts = "", [opcode_name(op)]
    for letter, place, count in operands:
        if letter == "r":
            result = f"%{module.words[place]} = "
        else:
            parts.append(_operand(module, op, letter, place, count))
    return f"{result:>10}{' '.join(parts)}"


def _operand(module: Module, op: int, letter: str, place: int, count: int) -> str:
    word = module.words[place]
    if letter in "ti":
        return f"%{word}"
    if letter == "s":
        raw = module.data[place * 4 : (place + count) * 4]
        return json.dumps(raw[: raw.find(0)].decode("utf-8", "replace"), ensure_ascii=False)
    if letter == "o":
        return opcode_name(word)[2:]
    if letter == "c":
        return _number(module, op, place, count)
    if letter == "n":
        return str(word)
    return mask_names(letter, word)


def _number(module: Module, op: int, place: int, count: int) -> str:
    """A literal of the type of the constant, or of the selector of a switch (as unsigned)."""
    bits = module.words[place] | (module.words[place + 1] << 32 if count > 1 else 0)
    type_ = None if op == Op.SWITCH else module.types[module.words[place - 2]]
    if type_ is None:
        return str(bits)
    bits &= (1 << type_.width) - 1
    if type_.op == Op.TYPE_FLOAT and type_.width in _FLOATS:
        value: float = struct.unpack(_FLOATS[type_.width], bits.to_bytes(type_.width // 8, "little"))[0]
        return f"{value:.9g}" if type_.width < 64 else repr(value)
    if type_.signed and bits >> (type_.width - 1):
        bits -= 1 << type_.width
    return str(bits)
