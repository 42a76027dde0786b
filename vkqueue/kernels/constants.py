"""Values of constants, with specialization values put in.

Only what decides a shape is worked out: integers and booleans, and vectors of them. A constant of another kind, or
an operation that is undefined (a division by zero), has no value here; whoever needs it says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from vkqueue.errors import InvalidError
from vkqueue.kernels.module import Decoration, Module, Op, Type
from vkqueue.kernels.scalars import value_error

Value: TypeAlias = int | tuple[int | None, ...] | None
"""Raw bits of a scalar, of each component of a vector, or unknown."""

_FLOAT_CODES = {16: "<e", 32: "<f", 64: "<d"}


def type_name(type_: Type) -> str | None:
    """The wire's name of a scalar type; None for one that the wire does not have."""
    if type_.op == Op.TYPE_BOOL:
        return "bool32"
    if type_.op == Op.TYPE_INT:
        return f"{'' if type_.signed else 'u'}int{type_.width}"
    if type_.op == Op.TYPE_FLOAT and type_.width in _FLOAT_CODES:
        return f"float{type_.width}"
    return None


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) & 1 else bits


class Constants:
    """Constants of a module under a specialization.

    Attributes:
        specialization: the specialization constants as reflected: {id, name, type, default}, by id.
        varying: ids of constants that a specialization can change.

    Raises:
        InvalidError: a specialization value for an id that the module does not have, or that its type cannot hold.
    """

    def __init__(self, module: Module, specialization: Mapping[int, Any] | None = None) -> None:
        self._module = module
        self._values: dict[int, Value] = {}
        self.varying: set[int] = set()
        self.specialization: list[dict[str, Any]] = []
        given = self._spec_constants(dict(specialization or {}))
        for id in module.constants:
            self._values[id] = given[id] if id in given else self._evaluate(id)

    def integer(self, id: int) -> int | None:
        """The value of an integer constant, signed as its type; None for anything else, and when unknown."""
        value = self._values.get(id)
        if not isinstance(value, int):
            return None
        type_ = self._type(id)
        if type_.op != Op.TYPE_INT:
            return None
        return _signed(value, type_.width) if type_.signed else value

    def integers(self, id: int) -> list[int | None]:
        """The components of a constant vector."""
        value = self._values.get(id)
        return list(value) if isinstance(value, tuple) else []

    def parts(self, id: int) -> list[int]:
        """Ids that a composite is written with; empty when it is written otherwise."""
        at = self._module.places[id]
        if self._module.op(id) in (Op.CONSTANT_COMPOSITE, Op.SPEC_CONSTANT_COMPOSITE):
            return list(self._module.words[at + 3 : at + (self._module.words[at] >> 16)])
        return []

    def plain(self, ids: Iterable[int]) -> list[int | None] | None:
        """For each constant, the specialization id that it is the value of, None where it is fixed; None altogether if
        one of them is worked out from others."""
        plain: list[int | None] = []
        for id in ids:
            spec_id = None
            if id in self.varying:
                if self._module.op(id) != Op.SPEC_CONSTANT:
                    return None
                spec_id = self._module.decoration(id, Decoration.SPEC_ID)
            plain.append(spec_id)
        return plain

    def _type(self, id: int) -> Type:
        return self._module.types[self._module.type_of[id]]

    # Specialization constants

    def _spec_constants(self, given: dict[int, Any]) -> dict[int, int]:
        """Record them, and return the bits that `given` has for their ids."""
        module = self._module
        bits: dict[int, int] = {}
        found: dict[int, dict[str, Any]] = {}
        for id in module.constants:
            if module.op(id) not in (Op.SPEC_CONSTANT, Op.SPEC_CONSTANT_TRUE, Op.SPEC_CONSTANT_FALSE):
                continue
            spec_id = module.decoration(id, Decoration.SPEC_ID)
            type_ = self._type(id)
            name = type_name(type_)
            if spec_id is None or name is None:
                continue
            self.varying.add(id)
            entry = found.get(spec_id)
            if entry is None:
                entry = {"id": spec_id, "name": "", "type": name, "default": self._default(id, type_)}
                found[spec_id] = entry
            elif self._width(entry["type"]) != self._width(name):
                raise module.fault(
                    module.places[id],
                    f"specialization id {spec_id} is a {name} here and a {entry['type']} elsewhere; sizes must agree",
                )
            entry["name"] = entry["name"] or module.names.get(id, "")
            if spec_id in given:
                bits[id] = self._bits(given[spec_id], entry, type_)
        self.specialization = [found[spec_id] for spec_id in sorted(found)]
        unknown = [spec_id for spec_id in given if spec_id not in found]
        if unknown:
            known = ", ".join(map(str, sorted(found)[:20])) or "none"
            raise InvalidError(
                f"specialization: the module has no constant with id {unknown[0]} (it has: {known})",
                {"id": unknown[0]},
            )
        return bits

    @staticmethod
    def _width(name: str) -> int:
        return int("".join(char for char in name if char.isdigit()))

    def _default(self, id: int, type_: Type) -> int | float | bool:
        at, words = self._module.places[id], self._module.words
        if type_.op == Op.TYPE_BOOL:
            return self._module.op(id) == Op.SPEC_CONSTANT_TRUE
        bits = self._literal(at, words[at] >> 16, type_)
        if type_.op == Op.TYPE_FLOAT:
            value: float = struct.unpack(_FLOAT_CODES[type_.width], bits.to_bytes(type_.width // 8, "little"))[0]
            return value
        return _signed(bits, type_.width) if type_.signed else bits

    def _literal(self, at: int, n: int, type_: Type) -> int:
        bits = self._module.words[at + 3]
        if n > 4:
            bits |= self._module.words[at + 4] << 32
        return bits & ((1 << type_.width) - 1)

    def _bits(self, value: object, entry: dict[str, Any], type_: Type) -> int:
        label = f"specialization {entry['id']}" + (f" ({entry['name']})" if entry["name"] else "")
        fault = value_error(label, entry["type"], value)
        if fault is not None:
            raise InvalidError(fault, {"id": entry["id"], "type": entry["type"]})
        if type_.op == Op.TYPE_FLOAT:
            return int.from_bytes(struct.pack(_FLOAT_CODES[type_.width], value), "little")
        if not isinstance(value, int):  # a float that shares its id with an integer: never a size
            return 0
        return value & ((1 << type_.width) - 1) if type_.width else int(bool(value))

    # Evaluation

    def _evaluate(self, id: int) -> Value:
        module = self._module
        at, op, type_ = module.places[id], module.op(id), self._type(id)
        n = module.words[at] >> 16
        if op in (Op.CONSTANT, Op.SPEC_CONSTANT):
            return self._literal(at, n, type_)
        if op in (Op.CONSTANT_TRUE, Op.SPEC_CONSTANT_TRUE):
            return 1
        if op in (Op.CONSTANT_FALSE, Op.SPEC_CONSTANT_FALSE):
            return 0
        if op == Op.CONSTANT_NULL:
            return 0 if type_.lanes == 1 else (0,) * type_.lanes or None
        parts = module.words[at + 3 : at + n]
        if op in (Op.CONSTANT_COMPOSITE, Op.SPEC_CONSTANT_COMPOSITE):
            if not self.varying.isdisjoint(parts):
                self.varying.add(id)
            if type_.op == Op.TYPE_VECTOR:
                return tuple(self._scalar(part) for part in parts)
        elif op == Op.SPEC_CONSTANT_OP:
            if not self.varying.isdisjoint(parts[1:]):
                self.varying.add(id)
            return self._operate(parts[0], parts[1:], type_)
        return None

    def _scalar(self, id: int) -> int | None:
        value = self._values.get(id)
        return value if isinstance(value, int) else None

    def _operate(self, op: int, operands: Any, type_: Type) -> Value:
        if op == 81:
            return self._extract(operands)
        if op == 79:
            return self._shuffle(operands)
        if op == 82:
            return self._insert(operands)
        function = _OPERATIONS.get(op)
        if function is None or not 1 <= len(operands) <= 3:
            return None
        width = self._type(operands[0]).width
        mask = (1 << (type_.width or 1)) - 1
        columns: list[tuple[int | None, ...]] = []
        for id in operands:
            value = self._values.get(id)
            # A scalar condition selects between whole vectors.
            columns.append(value if isinstance(value, tuple) else (value,) * type_.lanes)
        lanes = [_lane(function, width, mask, column) for column in zip(*columns, strict=False)]
        return lanes[0] if type_.lanes == 1 and lanes else tuple(lanes) or None

    def _extract(self, operands: Any) -> Value:
        id = operands[0]
        for depth, index in enumerate(operands[1:]):
            value = self._values.get(id)
            if isinstance(value, tuple):
                return value[index] if index < len(value) and depth == len(operands) - 2 else None
            parts = self.parts(id)
            if index >= len(parts):
                return None
            id = parts[index]
        return self._values.get(id)

    def _shuffle(self, operands: Any) -> Value:
        a, b = self._values.get(operands[0]), self._values.get(operands[1])
        if not (isinstance(a, tuple) and isinstance(b, tuple)) or len(operands) > 18:
            return None
        both = a + b
        return tuple(both[index] if index < len(both) else None for index in operands[2:])

    def _insert(self, operands: Any) -> Value:
        value = self._values.get(operands[1])
        if not isinstance(value, tuple) or len(operands) != 3 or operands[2] >= len(value):
            return None
        index = operands[2]
        return (*value[:index], self._scalar(operands[0]), *value[index + 1 :])


def _lane(function: Callable[..., Any], width: int, mask: int, arguments: tuple[int | None, ...]) -> int | None:
    if None in arguments:
        return None
    try:
        result = function(width, *arguments)
    except (ZeroDivisionError, TypeError):  # undefined; or operands of the wrong number
        return None
    return None if result is None else int(result) & mask


def _divide(width: int, a: int, b: int) -> int:
    """Signed division towards zero."""
    x, y = _signed(a, width), _signed(b, width)
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _compare(test: Callable[[int, int], bool], signed: bool) -> Callable[[int, int, int], bool]:
    if signed:
        return lambda width, a, b: test(_signed(a, width), _signed(b, width))
    return lambda width, a, b: test(a, b)


# op -> function of the operands' width and raw bits; results are cut to the width of the result type.
_OPERATIONS: dict[int, Callable[..., Any]] = {
    113: lambda width, a: a,
    114: lambda width, a: _signed(a, width),
    126: lambda width, a: -a,
    128: lambda width, a, b: a + b,
    130: lambda width, a, b: a - b,
    132: lambda width, a, b: a * b,
    134: lambda width, a, b: a // b,
    135: _divide,
    137: lambda width, a, b: a % b,
    138: lambda width, a, b: _signed(a, width) - _divide(width, a, b) * _signed(b, width),
    139: lambda width, a, b: _signed(a, width) % _signed(b, width),
    164: lambda width, a, b: a == b,
    165: lambda width, a, b: a != b,
    166: lambda width, a, b: a | b,
    167: lambda width, a, b: a & b,
    168: lambda width, a: a ^ 1,
    169: lambda width, condition, a, b: a if condition else b,
    170: lambda width, a, b: a == b,
    171: lambda width, a, b: a != b,
    172: _compare(lambda a, b: a > b, signed=False),
    173: _compare(lambda a, b: a > b, signed=True),
    174: _compare(lambda a, b: a >= b, signed=False),
    175: _compare(lambda a, b: a >= b, signed=True),
    176: _compare(lambda a, b: a < b, signed=False),
    177: _compare(lambda a, b: a < b, signed=True),
    178: _compare(lambda a, b: a <= b, signed=False),
    179: _compare(lambda a, b: a <= b, signed=True),
    194: lambda width, a, b: a >> b if b < width else None,
    195: lambda width, a, b: _signed(a, width) >> b if b < width else None,
    196: lambda width, a, b: a << b if b < width else None,
    197: lambda width, a, b: a | b,
    198: lambda width, a, b: a ^ b,
    199: lambda width, a, b: a & b,
    200: lambda width, a: ~a,
}
