"""Operands of the extended instruction set GLSL.std.450: how many, and of which types."""

from __future__ import annotations

from collections.abc import Sequence

from vkqueue.kernels.module import Op, Type

_I, _F = int(Op.TYPE_INT), int(Op.TYPE_FLOAT)

# Instructions whose operands have the type of the result, by number of operands.
_FLOAT = (
    frozenset((1, 2, 3, 4, 6, *range(8, 23), 23, 24, *range(27, 33), 69)),
    frozenset((25, 26, 37, 40, 48, 68, 71, 79, 80)),
    frozenset((43, 46, 49, 50, 70, 81)),
)
_INTEGER = (frozenset((5, 7, 73, 74, 75)), frozenset((38, 39, 41, 42)), frozenset((44, 45)))

# (base and width of the result's components, how many; the same of the operand): packing and unpacking.
_PACKING = {
    54: (_I, 32, 1, _F, 32, 4), 55: (_I, 32, 1, _F, 32, 4), 56: (_I, 32, 1, _F, 32, 2), 57: (_I, 32, 1, _F, 32, 2),
    58: (_I, 32, 1, _F, 32, 2), 59: (_F, 64, 1, _I, 32, 2), 60: (_F, 32, 2, _I, 32, 1), 61: (_F, 32, 2, _I, 32, 1),
    62: (_F, 32, 2, _I, 32, 1), 63: (_F, 32, 4, _I, 32, 1), 64: (_F, 32, 4, _I, 32, 1), 65: (_I, 32, 2, _F, 64, 1),
}  # fmt: skip


def fits(number: int, result: Type, operands: Sequence[Type], types: dict[int, Type]) -> bool:
    """Whether GLSL.std.450 has an instruction of this number for these types."""
    for count, (floats, integers) in enumerate(zip(_FLOAT, _INTEGER, strict=True), start=1):
        if number in floats:
            return len(operands) == count and result.base == _F and all(o.same == result.same for o in operands)
        if number in integers:
            return len(operands) == count and all(_like(o, result, _I) for o in operands)
    if number in _PACKING and len(operands) == 1:
        found = (result.base, result.width, result.lanes, operands[0].base, operands[0].width, operands[0].lanes)
        return found == _PACKING[number]
    return _own(number, result, operands, types)


def _like(operand: Type, result: Type, base: int) -> bool:
    return operand.base == result.base == base and (operand.width, operand.lanes) == (result.width, result.lanes)


def _own(number: int, result: Type, operands: Sequence[Type], types: dict[int, Type]) -> bool:
    """Those with a rule of their own."""
    if not operands:
        return False
    first, rest = operands[0], operands[1:]
    if number in (33, 34):
        matrix = first.op == Op.TYPE_MATRIX and first.count == types[first.element].count and not rest
        return matrix and result.same == (first.same if number == 34 else types[types[first.element].element].same)
    if first.base != _F:
        return False
    if number in (66, 67):
        component = types[first.element] if first.lanes > 1 else first
        return result.same == component.same and len(operands) == number - 65 and rest[:1] in ([], [first])
    if number in (36, 52):
        return not rest and _pair(number, result, first, types)
    if result.same != first.same:
        return False
    if number == 53:
        return len(rest) == 1 and rest[0].base == _I and rest[0].lanes == first.lanes
    if number in (35, 51):
        return len(rest) == 1 and _other_part(number, first, _pointee(rest[0], types))
    if number == 72:
        return len(rest) == 2 and rest[0].same == first.same and rest[1].op == _F
    return False


def _pointee(pointer: Type, types: dict[int, Type]) -> Type:
    return types[pointer.element] if pointer.op == Op.TYPE_POINTER else pointer


def _pair(number: int, result: Type, first: Type, types: dict[int, Type]) -> bool:
    """The structure that a value's two parts are returned in."""
    if result.op != Op.TYPE_STRUCT or len(result.members) != 2:
        return False
    parts = [types.get(member) for member in result.members]
    return parts[0] is not None and parts[0].same == first.same and _other_part(number, first, parts[1])


def _other_part(number: int, first: Type, other: Type | None) -> bool:
    """Whole part of a number (its type), or its exponent (as many integers)."""
    if other is None:
        return False
    if number in (35, 36):
        return other.same == first.same
    return other.base == _I and other.lanes == first.lanes
