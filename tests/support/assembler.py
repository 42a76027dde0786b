"""A small SPIR-V assembler, for tests that need a module no compiler writes.

Takes the usual text form: ``%result = OpName operands``, ids by name or number, numbers, names of enumerants (masks
joined by `|`), strings in quotes, comments after `;`. Constants must have a type that stands above them.
"""

from __future__ import annotations

import re
import struct
from itertools import count

from vkqueue.kernels.grammar import ENUMS, SHAPES, tokens
from vkqueue.kernels.grammar_table import MASKS

_OPCODES = {f"Op{shape.name}": op for op, shape in SHAPES.items()}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s";]+')


def assemble(text: str, version: tuple[int, int] = (1, 3), bound: int | None = None) -> bytes:
    """The module that a text describes."""
    assembler = _Assembler()
    for line in text.splitlines():
        tokens = _TOKEN.findall(line.split(";")[0] if '"' not in line else line)
        if tokens:
            assembler.line(tokens)
    header = [0x07230203, version[0] << 16 | version[1] << 8, 0, bound or assembler.bound, 0]
    return struct.pack(f"<{5 + len(assembler.words)}I", *header, *assembler.words)


class _Assembler:
    def __init__(self) -> None:
        self.words: list[int] = []
        self._ids: dict[str, int] = {}
        self._fresh = count(1)
        self._number_types: dict[int, tuple[str, int]] = {}

    @property
    def bound(self) -> int:
        return max(self._ids.values(), default=0) + 1

    def _id(self, token: str) -> int:
        name = token.removeprefix("%")
        if name not in self._ids:
            self._ids[name] = int(name) if name.isdigit() else 10000 + next(self._fresh)
        return self._ids[name]

    def line(self, tokens: list[str]) -> None:
        result = None
        if len(tokens) > 1 and tokens[1] == "=":
            result, tokens = tokens[0], tokens[2:]
        opcode = _OPCODES[tokens[0]]
        self._rest = tokens[1:]
        self._out: list[int] = []
        self._sequence(SHAPES[opcode].operands, result)
        assert not self._rest, f"left over: {self._rest} of {tokens}"
        if opcode in (21, 22):
            kind = "f" if opcode == 22 else "i"
            self._number_types[self._out[0]] = (kind, self._out[1])
        self.words += [(len(self._out) + 1) << 16 | opcode, *self._out]

    def _sequence(self, operands: str, result: str | None) -> None:
        for letter, quantifier in tokens(operands):
            if quantifier == "":
                self._one(letter, result)
            while quantifier and self._rest:
                self._one(letter, result)
                if quantifier == "?":
                    break

    def _one(self, letter: str, result: str | None) -> None:
        if letter == "r":
            assert result is not None
            self._out.append(self._id(result))
        elif letter in "ti":
            self._out.append(self._id(self._rest.pop(0)))
        elif letter == "n":
            self._out.append(int(self._rest.pop(0), 0))
        elif letter == "s":
            raw = self._rest.pop(0)[1:-1].encode() + b"\0"
            raw += b"\0" * (-len(raw) % 4)
            self._out += struct.unpack(f"<{len(raw) // 4}I", raw)
        elif letter == "c":
            self._number(self._rest.pop(0))
        elif letter == "p":
            self._out += [self._id(self._rest.pop(0)), self._id(self._rest.pop(0))]
        elif letter == "w":
            self._out += [int(self._rest.pop(0), 0), self._id(self._rest.pop(0))]
        elif letter == "m":
            self._out += [self._id(self._rest.pop(0)), int(self._rest.pop(0), 0)]
        elif letter == "o":
            opcode = _OPCODES[f"Op{self._rest.pop(0)}"]
            self._out.append(opcode)
            self._sequence(SHAPES[opcode].operands[2:], None)
        else:
            self._enumerated(letter)

    def _number(self, token: str) -> None:
        kind, width = self._number_types[self._out[0]]
        if kind == "f":
            code = {16: "<e", 32: "<f", 64: "<d"}[width]
            raw = struct.pack(code, float(token)).ljust(4, b"\0")
        else:
            value = int(token, 0)
            bits = max(width, 32)
            raw = (value & (2**bits - 1)).to_bytes(bits // 8, "little")
        self._out += struct.unpack(f"<{len(raw) // 4}I", raw)

    def _enumerated(self, letter: str) -> None:
        token = self._rest.pop(0)
        names = {entry.name: (number, entry.operands) for number, entry in ENUMS[letter].items()}
        if letter not in MASKS:
            number, operands = (int(token), "") if token.isdigit() else names[token]
            self._out.append(number)
            self._sequence(operands, None)
            return
        found = [] if token == "None" else sorted(names[part] for part in token.split("|"))
        self._out.append(sum(number for number, _ in found))
        for _, operands in found:
            self._sequence(operands, None)


COMPUTE = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main "main"
OpExecutionMode %main LocalSize 1 1 1
"""
TYPES = """
%void = OpTypeVoid
%fn = OpTypeFunction %void
%bool = OpTypeBool
%int = OpTypeInt 32 1
%uint = OpTypeInt 32 0
%float = OpTypeFloat 32
%0u = OpConstant %uint 0
%1u = OpConstant %uint 1
%2u = OpConstant %uint 2
%true = OpConstantTrue %bool
"""


def buffers(*names: str) -> tuple[str, str]:
    """(decorations, declarations) of storage buffers with these names, of one array of uint, at bindings 0, 1, ..."""
    decorations = [
        "OpDecorate %words ArrayStride 4", "OpDecorate %block Block", "OpMemberDecorate %block 0 Offset 0",
    ]  # fmt: skip
    declarations = [
        "%words = OpTypeRuntimeArray %uint",
        "%block = OpTypeStruct %words",
        "%pblock = OpTypePointer StorageBuffer %block",
        "%puint = OpTypePointer StorageBuffer %uint",
    ]
    for binding, name in enumerate(names):
        decorations += [f"OpDecorate %{name} DescriptorSet 0", f"OpDecorate %{name} Binding {binding}"]
        declarations.append(f"%{name} = OpVariable %pblock StorageBuffer")
    return "\n".join(decorations), "\n".join(declarations)
