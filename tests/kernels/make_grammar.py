"""Write vkqueue/kernels/grammar_table.py from a SPIR-V grammar (spirv.core.grammar.json of SPIRV-Headers).

    python tests/kernels/make_grammar.py spirv.core.grammar.json > vkqueue/kernels/grammar_table.py

Run it again when a newer grammar knows a capability or an instruction that compilers have begun to use. What only
OpenCL devices of one vendor have is left out; the daemon could not run it, and the parser names it by number.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

LEFT_OUT = ("INTEL", "ALTERA", "AMDX", "INTELMask")
LITERALS = {
    "IdResultType": "t", "IdResult": "r", "IdRef": "i", "IdScope": "i", "IdMemorySemantics": "i",
    "LiteralInteger": "n", "LiteralFloat": "n", "LiteralExtInstInteger": "n",
    "LiteralSpecConstantOpInteger": "o", "LiteralContextDependentNumber": "c", "LiteralString": "s",
    "PairLiteralIntegerIdRef": "w", "PairIdRefLiteralInteger": "m", "PairIdRefIdRef": "p",
}  # fmt: skip
# One letter for each enumeration whose names are worth printing; the others are printed as numbers.
KINDS = {
    "A": "AddressingModel", "B": "BuiltIn", "C": "Capability", "D": "Decoration", "E": "ExecutionModel",
    "F": "FunctionControl", "G": "GroupOperation", "H": "FPRoundingMode", "I": "ImageOperands",
    "K": "LinkageType", "L": "LoopControl", "M": "MemoryAccess", "O": "MemoryModel", "P": "FPFastMathMode",
    "Q": "AccessQualifier", "R": "SelectionControl", "S": "StorageClass", "T": "SourceLanguage", "U": "Dim",
    "V": "ImageFormat", "W": "FunctionParameterAttribute", "X": "ExecutionMode",
    "Y": "CooperativeMatrixOperands", "Z": "TensorAddressingOperands", "a": "TensorOperands",
    "b": "PackedVectorFormat", "d": "FPEncoding",
}  # fmt: skip

HEADER = '''"""SPIR-V {major}.{minor} (revision {revision}): instructions and enumerations. Generated: do not edit.

Made by tests/kernels/make_grammar.py from spirv.core.grammar.json of SPIRV-Headers:
Copyright 2014-2024 The Khronos Group Inc., under the MIT License. Modifications to this file may mean it no longer
accurately reflects Khronos standards. The unmodified, normative versions of Khronos specifications and header
information are located at https://www.khronos.org/registry/

An entry is NUMBER:NAME or NUMBER:NAME:OPERANDS. An operand is one letter, perhaps followed by `?` (optional) or `*`
(any number): t result type, r result, i id, n literal, s string, c number as wide as the result type, o opcode and
its operands, w literal and label, m id and literal, p two ids, and the letters of KINDS.
"""
'''


def operands(entries: list[dict[str, Any]]) -> str:
    letters = {kind: letter for letter, kind in KINDS.items()} | LITERALS
    return "".join(letters.get(e["kind"], "n") + e.get("quantifier", "") for e in entries)


def number(value: int | str) -> int:
    return value if isinstance(value, int) else int(value, 16)


def table(entries: list[tuple[int, str, str]]) -> str:
    words = [f"{n}:{name}:{rest}" if rest else f"{n}:{name}" for n, name, rest in sorted(entries)]
    return "\n".join(textwrap.wrap(" ".join(words), 108, break_long_words=False, break_on_hyphens=False))


def pairs(entries: list[tuple[int, str]]) -> str:
    return "\n".join(textwrap.wrap(" ".join(f"{n}:{rest}" for n, rest in sorted(entries)), 108))


def main(path: str) -> None:
    grammar = json.loads(Path(path).read_text(encoding="utf-8"))
    out = HEADER.format(major=grammar["major_version"], minor=grammar["minor_version"], revision=grammar["revision"])
    kinds = {kind["kind"]: kind for kind in grammar["operand_kinds"]}
    out += "\nKINDS = {\n"
    out += "".join(f'    "{letter}": "{kind}",\n' for letter, kind in KINDS.items()) + "}\n\n"
    masks = [letter for letter, kind in KINDS.items() if kinds[kind]["category"] == "BitEnum"]
    out += "# Enumerations whose value is a set of bits; the operands of the bits follow in rising order.\n"
    out += f'MASKS = "{"".join(masks)}"\n\n'
    instructions = [
        (i["opcode"], i["opname"][2:], operands(i.get("operands", [])))
        for i in grammar["instructions"]
        if not i["opname"].endswith(LEFT_OUT)
    ]
    out += f'INSTRUCTIONS = """\n{table(instructions)}\n"""\n\n'
    numbers: dict[str, int] = {}
    for e in kinds["Capability"]["enumerants"]:
        numbers |= dict.fromkeys((e["enumerant"], *e.get("aliases", ())), number(e["value"]))
    needed = [
        (i["opcode"], ".".join(str(numbers[c]) for c in i["capabilities"]))
        for i in grammar["instructions"]
        if "capabilities" in i and not i["opname"].endswith(LEFT_OUT)
    ]
    implied = [
        (number(e["value"]), ".".join(str(numbers[c]) for c in e["capabilities"]))
        for e in kinds["Capability"]["enumerants"]
        if "capabilities" in e
    ]
    out += "# Instruction to the capabilities of which it needs any one.\n"
    out += f'NEEDED = """\n{pairs(needed)}\n"""\n\n# Capability to those that it brings along.\n'
    out += f'IMPLIED = """\n{pairs(implied)}\n"""\n\nENUMERANTS = {{\n'
    for letter, kind in KINDS.items():
        keep = [
            (number(e["value"]), e["enumerant"], operands(e.get("parameters", [])))
            for e in kinds[kind]["enumerants"]
            if kind == "Capability" or not e["enumerant"].endswith(LEFT_OUT)
        ]
        out += f'    "{letter}": """\n{table(keep)}\n""",\n'
    sys.stdout.write(out + "}\n")


if __name__ == "__main__":
    main(sys.argv[1])
