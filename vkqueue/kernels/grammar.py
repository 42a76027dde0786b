"""Names and operand shapes of SPIR-V instructions, read from the generated table.

A `Shape` says in a few integers what the parser has to check of an instruction, so that the common ones (ids and
literals in fixed places) never meet the slower walk over operands that strings, masks and decorations need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from vkqueue.kernels.grammar_table import ENUMERANTS, IMPLIED, INSTRUCTIONS, KINDS, MASKS, NEEDED

MAX_WORDS = 0xFFFF
"""Words that an instruction can have."""

_PLAIN = "trin"  # one word each


class Shape(NamedTuple):
    """How an instruction's words are used.

    Attributes:
        low, high: words it may have, the first one included.
        typed, result: whether it has a result type and a result id (they come first, in this order).
        ids: places of the ids after those, as word numbers within the instruction.
        rest: what the words from `low` on are: "" nothing, "i" ids, "n" literals, "?" look at `operands`.
        needs: capabilities of which the module has to have one; empty when it needs none.
    """

    name: str
    operands: str
    low: int
    high: int
    typed: bool
    result: bool
    ids: tuple[int, ...]
    rest: str
    needs: frozenset[int]


Operand: TypeAlias = tuple[str, int, int]
"""(letter of the grammar, first word, words); the words count within the module."""


def tokens(operands: str) -> list[tuple[str, str]]:
    """A string of operands as pairs: ("i", "*") and the like."""
    found: list[tuple[str, str]] = []
    for char in operands:
        if char in "?*":
            found[-1] = (found[-1][0], char)
        else:
            found.append((char, ""))
    return found


def _shape(name: str, operands: str, needs: frozenset[int]) -> Shape:
    ids: list[int] = []
    low, rest, slow = 1, "", False
    for letter, quantifier in tokens(operands):
        if quantifier:
            # "i?i?" and the like are as good as "i*" with an upper bound; other mixtures are walked.
            rest = letter if letter in "in" and rest in ("", letter) else "?"
            continue
        if letter == "i":
            ids.append(low)
        slow = slow or letter in "scowmp" or rest != "" or (letter not in _PLAIN and _has_operands(letter))
        low += letter not in "wmp"
    if slow:
        rest = "?"
    high = MAX_WORDS if "*" in operands or rest == "?" else low + operands.count("?")
    typed, result = operands.startswith("t"), "r" in operands[:2]
    return Shape(name, operands, low, high, typed, result, () if slow else tuple(ids), rest, needs)


class Enumerant(NamedTuple):
    """A named value of an enumeration, and the operands that follow it."""

    name: str
    operands: str


def _entries(text: str) -> dict[int, Enumerant]:
    entries = {}
    for entry in text.split():
        number, _, rest = entry.partition(":")
        name, _, operands = rest.partition(":")
        entries[int(number)] = Enumerant(name, operands)
    return entries


ENUMS: dict[str, dict[int, Enumerant]] = {letter: _entries(text) for letter, text in ENUMERANTS.items()}


@cache
def _has_operands(letter: str) -> bool:
    return any(e.operands for e in ENUMS[letter].values())


def _capabilities(text: str) -> dict[int, frozenset[int]]:
    pairs = (entry.split(":") for entry in text.split())
    return {int(number): frozenset(map(int, capabilities.split("."))) for number, capabilities in pairs}


_IMPLIED = _capabilities(IMPLIED)
_NEEDED = _capabilities(NEEDED)
for _lenient in (67, 70):
    # Compilers step through buffers with OpPtrAccessChain and do not declare variable pointers; drivers do not mind.
    _NEEDED.pop(_lenient)

SHAPES: dict[int, Shape] = {
    opcode: _shape(entry.name, entry.operands, _NEEDED.get(opcode, frozenset()))
    for opcode, entry in _entries(INSTRUCTIONS).items()
}


def with_implied(capability: int) -> set[int]:
    """A capability and all that it brings along."""
    found, waiting = {capability}, [capability]
    while waiting:
        new = _IMPLIED.get(waiting.pop(), frozenset()) - found
        found |= new
        waiting += new
    return found
_LETTERS = {kind: letter for letter, kind in KINDS.items()}


def opcode_name(opcode: int) -> str:
    """"OpLoad", or "Op6789" for one that the table does not have."""
    shape = SHAPES.get(opcode)
    return f"Op{shape.name if shape else opcode}"


def enumerant(kind: str, value: int) -> str:
    """Name of a value of "Capability", "StorageClass", ...; its number in digits when the table has none."""
    entry = ENUMS[_LETTERS[kind]].get(value)
    return entry.name if entry else str(value)


def mask_names(letter: str, value: int) -> str:
    """Names of the bits of a mask operand, joined by `|`."""
    if letter not in MASKS or value == 0:
        entry = ENUMS[letter].get(value)
        return entry.name if entry else ("None" if letter in MASKS else str(value))
    bits = [1 << bit for bit in range(32) if value >> bit & 1]
    return "|".join(ENUMS[letter][bit].name if bit in ENUMS[letter] else hex(bit) for bit in bits)


class OperandFault(Exception):
    """Operands do not follow the grammar; the text says how."""


class Walk:
    """Splits one instruction's words into operands by the grammar.

    Args:
        words: the module's words.
        data: the same as bytes, little-endian, in which strings are searched.
        number_words: words of a number of the type with this id (for OpConstant and OpSwitch).
    """

    def __init__(self, words: Sequence[int], data: bytes, number_words: dict[int, int]) -> None:
        self._words = words
        self._data = data
        self._number_words = number_words
        self._at = self._end = 0
        self._out: list[Operand] = []
        self._selector = 1

    def operands(self, at: int, count: int, shape: Shape, switch_words: int = 1) -> list[Operand]:
        """Operands of the instruction of `count` words at `at`.

        Args:
            switch_words: words of each literal of an OpSwitch.

        Raises:
            OperandFault: a string without end, words missing or left over.
        """
        self._at, self._end, self._out, self._selector = at + 1, at + count, [], switch_words
        self._sequence(shape.operands, at)
        if self._at != self._end:
            raise OperandFault(f"{self._end - self._at} words too many")
        return self._out

    def _sequence(self, operands: str, start: int) -> None:
        for letter, quantifier in tokens(operands):
            if quantifier == "":
                self._one(letter, start)
            elif quantifier == "?":
                if self._at < self._end:
                    self._one(letter, start)
            else:
                while self._at < self._end:
                    self._one(letter, start)

    def _take(self, letter: str, count: int) -> None:
        if self._at + count > self._end:
            raise OperandFault("words are missing")
        self._out.append((letter, self._at, count))
        self._at += count

    def _one(self, letter: str, start: int) -> None:
        if letter in _PLAIN:
            self._take(letter, 1)
        elif letter == "s":
            nul = self._data.find(0, self._at * 4, self._end * 4)
            if nul < 0:
                raise OperandFault("a string does not end within the instruction")
            self._take("s", nul // 4 - self._at + 1)
        elif letter == "c":
            self._take("c", self._number_words.get(self._words[start + 1], 1))
        elif letter == "p":
            self._take("i", 1)
            self._take("i", 1)
        elif letter == "m":
            self._take("i", 1)
            self._take("n", 1)
        elif letter == "w":
            self._take("c", self._selector)
            self._take("i", 1)
        elif letter == "o":
            self._operation(start)
        else:
            self._enumerated(letter, start)

    def _operation(self, start: int) -> None:
        """OpSpecConstantOp: an opcode, then its operands without result type and result."""
        self._take("o", 1)
        shape = SHAPES.get(self._words[self._at - 1])
        if shape is None or not (shape.typed and shape.result) or "o" in shape.operands:
            raise OperandFault(f"{opcode_name(self._words[self._at - 1])} is no operation on constants")
        self._sequence(shape.operands[2:], start)

    def _enumerated(self, letter: str, start: int) -> None:
        self._take(letter, 1)
        value = self._words[self._at - 1]
        known = ENUMS[letter]
        if letter not in MASKS:
            entry = known.get(value)
            if entry is None:
                self._unknown(letter)
            elif entry.operands:
                self._sequence(entry.operands, start)
            return
        for bit in range(32):
            if value >> bit & 1:
                entry = known.get(1 << bit)
                if entry is None:
                    return self._unknown(letter)
                if entry.operands:
                    self._sequence(entry.operands, start)

    def _unknown(self, letter: str) -> None:
        """A value that is newer than the table: what follows it, if anything can, is not told apart."""
        while self._at < self._end and _has_operands(letter):
            self._take("n", 1)
