"""Packers: scalar members of a push-constant or uniform block from wire values to bytes.

A packer is made once per kernel and costs one `struct.pack` a launch. The types of a launch's values are looked
up as one tuple in a set of combinations already found good, so that a value of a wrong type is never packed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from vkqueue.errors import InvalidError, brief

_FORMATS = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "bool32": "I",
}  # fmt: skip
_SIZES = {name: struct.calcsize("<" + code) for name, code in _FORMATS.items()}
TYPES = frozenset(_SIZES)
_FLOATS = ("float16", "float32", "float64")
# Arbitrary: a client that sends ever new mixes of types (ints for floats) must not grow the set without end.
_MAX_SIGNATURES = 256


def type_size(name: str) -> int:
    """Bytes of a reflected scalar type ("int8" … "float64", "bool32")."""
    return _SIZES[name]


def _range_of(name: str) -> tuple[int, int]:
    bits = _SIZES[name] * 8
    return (0, 2**bits - 1) if name.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def value_error(name: str, type_: str, value: object) -> str | None:
    """Why `value` cannot become a scalar of `type_`, or None when it can."""
    if type_ == "bool32":
        if type(value) is bool or (type(value) is int and value in (0, 1)):
            return None
        return f"{name}: expected a bool, 0 or 1 (bool32), got {brief(value)}"
    if type_ in _FLOATS:
        if type(value) not in (int, float):
            return f"{name}: expected a number ({type_}), got {brief(value)}"
        try:
            struct.pack("<" + _FORMATS[type_], value)
        except (OverflowError, struct.error):  # of an integer it is the latter
            return f"{name}: {value!r} overflows {type_}"
        return None
    low, high = _range_of(type_)
    if type(value) is not int:
        return f"{name}: expected an integer ({type_}), got {brief(value)}"
    if not low <= value <= high:
        return f"{name}: {value} is outside {type_} ({low} to {high})"
    return None


class ScalarPacker:
    """Packs the members of one block.

    Args:
        members: as reflected: name, type, offset, size, optional count and stride.
        size: bytes of the block, from 0 to the end of the last member.
        padded: bytes that `pack` returns; `size` rounded up as the consumer needs it.
        what: how messages call the values, such as "scalars" or "values of binding 3".

    Attributes:
        members: (name, type, offset of its first value, number of values, bytes from one to the next).
    """

    def __init__(self, members: Sequence[Mapping[str, Any]], size: int, padded: int, what: str) -> None:
        self.size = size
        self.padded = padded
        self.what = what
        self._members = [(m["name"], m["type"], m.get("count", 1), "count" in m) for m in members]
        self.members: list[tuple[str, str, int, int, int]] = [
            (m["name"], m["type"], m["offset"], m.get("count", 1), m.get("stride") or _SIZES[m["type"]])
            for m in members
        ]
        self._fields: list[tuple[str, str, int]] = []  # (name for messages, type, offset), in order given
        for m in members:
            step = m.get("stride") or _SIZES[m["type"]]
            for i in range(m.get("count", 1)):
                label = f"{m['name']}[{i}]" if "count" in m else m["name"]
                self._fields.append((label, m["type"], m["offset"] + i * step))
        self.count = len(self._fields)
        self._bools = [i for i, field in enumerate(self._fields) if field[1] == "bool32"]
        self._struct, self._order = self._layout()
        self._good: set[tuple[type, ...]] = set()

    def _layout(self) -> tuple[struct.Struct, list[int] | None]:
        """One struct over all fields, and the order of the values in it (None: as given)."""
        order = sorted(range(self.count), key=lambda i: self._fields[i][2])
        code, at = "<", 0
        for i in order:
            name, type_, offset = self._fields[i]
            if offset < at:
                raise InvalidError(f"{self.what}: member {name} at offset {offset} overlaps the one before it")
            code += f"{offset - at}x{_FORMATS[type_]}"
            at = offset + _SIZES[type_]
        packed = struct.Struct(f"{code}{max(self.padded - at, 0)}x")
        return packed, None if order == list(range(self.count)) else order

    def pack(self, values: object) -> bytes:
        """Bytes of the block from a list in member order, a map by name, or raw bytes.

        Raises:
            InvalidError: a value is missing, surplus, of the wrong type or out of range.
        """
        if type(values) is list:
            signature = tuple(map(type, values))
            if signature not in self._good:
                self._check(values)
                # An integer is good for a bool32 only as 0 or 1, so such a combination is checked each time.
                plain = all(signature[i] is bool for i in self._bools)
                if plain and len(self._good) < _MAX_SIGNATURES:
                    self._good.add(signature)
            try:
                if self._order is None:
                    return self._struct.pack(*values)
                return self._struct.pack(*[values[i] for i in self._order])
            except (struct.error, OverflowError):
                self._check(values)
                raise
        if isinstance(values, (bytes, bytearray, memoryview)):
            return self._raw(values)
        if isinstance(values, dict):
            return self.pack(self._from_map(values))
        if values is None:
            values = []
            if self.count == 0:
                return self._struct.pack()
            raise InvalidError(f"{self.what}: the kernel takes {self._describe()}, none were given")
        raise InvalidError(
            f"{self.what}: expected a list, a map by name or a bin of {self.size} bytes, got {type(values).__name__}"
        )

    def listed(self, values: dict[str, Any]) -> list[Any]:
        """The values of a map by name in the order of the members, vectors flattened; `pack` checks what they are.

        Raises:
            InvalidError: a member is missing, or one is surplus.
        """
        return self._from_map(values)

    def _raw(self, values: bytes | bytearray | memoryview) -> bytes:
        if len(values) != self.size:
            raise InvalidError(
                f"{self.what}: a bin must hold exactly {self.size} bytes, got {len(values)}",
                {"expected": self.size, "got": len(values)},
            )
        return bytes(values).ljust(self.padded, b"\0")

    def _check(self, values: list[Any]) -> None:
        if len(values) != self.count:
            raise InvalidError(
                f"{self.what}: expected {self.count} values ({self._describe()}), got {len(values)}",
                {"expected": self.count, "got": len(values)},
            )
        for (name, type_, _), value in zip(self._fields, values, strict=True):
            fault = value_error(name, type_, value)
            if fault is not None:
                raise InvalidError(f"{self.what}: {fault}", {"member": name, "type": type_})

    def _describe(self) -> str:
        names = ", ".join(f"{n} {t}" + (f"×{c}" if many else "") for n, t, c, many in self._members[:12])
        return names + (", …" if len(self._members) > 12 else "") if names else "no scalars"

    def check_names(self, values: Mapping[str, Any]) -> None:
        """Raises InvalidError unless each member is given, and nothing else."""
        for name, type_, _, _ in self._members:
            if name not in values:
                raise InvalidError(f"{self.what}: member {name} ({type_}) is missing; every member must be given")
        if len(values) != len(self._members):
            known = {m[0] for m in self._members}
            extra = next((k for k in values if k not in known), "?")
            raise InvalidError(f"{self.what}: no member is called {extra!r}; the members are {self._describe()}")

    def _from_map(self, values: dict[str, Any]) -> list[Any]:
        self.check_names(values)
        flat: list[Any] = []
        for name, type_, count, many in self._members:
            value = values[name]
            if not many:
                flat.append(value)
            elif isinstance(value, list) and len(value) == count:
                flat.extend(value)
            else:
                raise InvalidError(f"{self.what}: {name} takes a list of {count} {type_} values")
        return flat


def pack_value(type_: str, value: Any) -> bytes:
    """One scalar that `value_error` found good, as little-endian bytes."""
    return struct.pack("<" + _FORMATS[type_], value)
