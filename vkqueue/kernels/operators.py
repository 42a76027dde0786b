"""Types of the operands of arithmetic, comparisons and conversions, by table."""

from __future__ import annotations

from vkqueue.kernels.module import Op, Type
from vkqueue.kernels.reader import Reader

_B, _I, _F = int(Op.TYPE_BOOL), int(Op.TYPE_INT), int(Op.TYPE_FLOAT)

# op -> (component of the result, of the operands, what else is equal). All have equal numbers of components, and
#   "w" operands have the width of the result (the signs of integers may differ)
#   "o" operands have one width
#   "1" the first operand has the width of the result, the others are what they like (shifts)
#   ""  nothing more
OPERATORS: dict[int, tuple[int, int, str]] = {
    109: (_I, _F, ""), 110: (_I, _F, ""), 111: (_F, _I, ""), 112: (_F, _I, ""),
    113: (_I, _I, ""), 114: (_I, _I, ""), 115: (_F, _F, ""), 116: (_F, _F, "w"),
    204: (_I, _I, "w"), 205: (_I, _I, ""),
}  # fmt: skip
OPERATORS |= dict.fromkeys((127, 129, 131, 133, 136, 140, 141), (_F, _F, "w"))
OPERATORS |= dict.fromkeys((126, 128, 130, 132, 134, 135, 137, 138, 139, 197, 198, 199, 200), (_I, _I, "w"))
OPERATORS |= dict.fromkeys((194, 195, 196), (_I, _I, "1"))
OPERATORS |= dict.fromkeys((156, 157, 158, 159, 160), (_B, _F, ""))
OPERATORS |= dict.fromkeys((161, 162, 163, *range(180, 192)), (_B, _F, "o"))
OPERATORS |= dict.fromkeys((164, 165, 166, 167, 168), (_B, _B, ""))
OPERATORS |= dict.fromkeys(range(170, 180), (_B, _I, "o"))
# Those with a rule of their own.
_DOT, _BITCAST, _ANY, _ALL = 148, 124, 154, 155
_OWN = frozenset((77, 78, 84, _BITCAST, 142, 143, 144, 145, 146, 147, _DOT, _ANY, _ALL, 201, 202, 203))
OPERATORS |= dict.fromkeys(_OWN, (0, 0, ""))


def check_operator(r: Reader, at: int, n: int, op: int) -> None:
    """Raises InvalidError when operands or result have types that the operator does not have."""
    words, types, type_of = r.words, r.module.types, r.module.type_of
    result = types[words[at + 1]]
    base, operand_base, relation = OPERATORS[op]
    if base == 0:
        if not _own(op, result, [types[type_of[id]] for id in words[at + 3 : at + n]], types):
            raise r.module.fault(at, "the types of operands and result do not fit together")
        return
    if result.base != base:
        if result.op > 4000:
            return  # matrices of extensions take the same operators
        raise r.module.fault(at, f"type {result.id} cannot be its result")
    width = result.width if relation == "w" or relation == "1" else 0
    for id in words[at + 3 : at + n]:
        operand = types[type_of[id]]
        if operand.base != operand_base or operand.lanes != result.lanes:
            raise r.module.fault(at, f"operand {id} has a type that the operator does not take")
        if width and operand.width != width:
            raise r.module.fault(at, f"operand {id} has {operand.width} bits, {width} are expected")
        if relation == "o":
            width = operand.width
        elif relation == "1":
            width = 0


def _own(op: int, result: Type, operands: list[Type], types: dict[int, Type]) -> bool:
    a, b = operands[0], operands[1] if len(operands) > 1 else operands[0]
    if result.op > 4000 or a.op > 4000:
        return True
    if op == _BITCAST:
        if Op.TYPE_POINTER in (result.op, a.op):
            return True  # refused or followed later, by what is pointed to
        return bool(result.base and a.base and result.width * result.lanes == a.width * a.lanes)
    if op in (_ANY, _ALL):
        return result.op == _B and a.base == _B and a.lanes > 1
    if op == 77:
        return a.op == Op.TYPE_VECTOR and types[a.element].same == result.same and b.op == _I
    if op == 78:
        index = operands[2]
        return a.same == result.same and a.lanes > 1 and types[a.element].same == b.same and index.op == _I
    if op in (201, 202, 203):
        place, width = operands[-2:]
        insert = op == 201 and b.same != result.same
        return result.base == _I and a.same == result.same and not insert and place.op == width.op == _I
    return _linear(op, result, a, b, types)


_KINDS = {int(Op.TYPE_VECTOR): "v", int(Op.TYPE_MATRIX): "m"}
# Result and operands of each: scalar, vector or matrix (the transpose has one operand, given twice).
_PRODUCTS = {84: "mmm", 142: "vvs", 143: "mms", 144: "vvm", 145: "vmv", 146: "mmm", 147: "mvv", _DOT: "svv"}


def _linear(op: int, result: Type, a: Type, b: Type, types: dict[int, Type]) -> bool:
    """Products of vectors and matrices, and the transpose."""
    kinds = "".join(_KINDS.get(part.op, "s") for part in (result, a, b))
    if kinds != _PRODUCTS[op]:
        return False
    shape = _shape(a, types), _shape(b, types)
    wanted: tuple[int, int] | None = None
    (a_columns, a_rows), (b_columns, b_rows) = shape
    if op == 84:
        wanted = (a_rows, a_columns)
    elif op in (142, 143):
        wanted = (a_columns, a_rows) if b_columns == b_rows == 1 else None
    elif op == 144:  # row vector times matrix: a vector with a component for each column
        wanted = (1, b_columns) if a_columns == 1 and a_rows == b_rows else None
    elif op in (145, 146):
        wanted = (b_columns, a_rows) if a_columns == b_rows else None
    elif op == 147:
        wanted = (b_rows, a_rows) if a_columns == b_columns == 1 else None
    elif op == _DOT:
        wanted = (1, 1) if a.same == b.same and a.lanes > 1 else None
    return wanted is not None and min(wanted) > 0 and _shape(result, types) == wanted


def _shape(type_: Type, types: dict[int, Type]) -> tuple[int, int]:
    """Columns and rows of a float scalar, vector or matrix; zeros for another type."""
    if type_.op == Op.TYPE_MATRIX:
        return type_.count, types[type_.element].count
    return (1, type_.lanes) if type_.base == _F else (0, 0)
