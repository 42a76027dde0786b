"""Scalars of a launch: Python and NumPy numbers to what travels in `scalars`.

They travel as the block's bytes, which the daemon only has to copy, so they are checked here. A TVM kernel's
travel as a list: its words are the daemon's business.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkqueue.client.signature import Scalar, Signature, suggestion
from vkqueue.errors import InvalidError, brief

_FORMATS = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "bool32": "I",
}  # fmt: skip


_UNFIT = (KeyError, TypeError, struct.error, OverflowError)


class ScalarPacker:
    """Packs one kernel's scalars; made once per kernel.

    Attributes:
        names: of the members, in order.
        pack_named: the fast way, or None: takes the keywords of a call and returns the block's bytes. It raises
            KeyError, TypeError, struct.error or OverflowError where `from_names` would say what is wrong.
    """

    def __init__(self, signature: Signature) -> None:
        self._members = signature.scalars
        self._kernel = signature.name
        self.names = tuple(s.name for s in signature.scalars)
        self._struct: struct.Struct | None = None
        self._order: list[int] = []
        if signature.launch_tags is None and all(s.where == "push" for s in signature.scalars):
            self._lay_out(signature.push_constant_bytes)
        self.pack_named: Callable[[Mapping[str, Any]], bytes] | None = self._fast_way()

    def _lay_out(self, size: int) -> None:
        """One struct over all values, unless the block is one that a struct cannot describe."""
        fields: list[tuple[int, str]] = []
        for member in self._members:
            code = _FORMATS.get(member.type)
            if code is None:  # a type of a newer daemon: let it check and pack
                return
            step = member.stride or struct.calcsize("<" + code)
            fields += [(member.offset + i * step, code) for i in range(_values(member))]
        self._order = sorted(range(len(fields)), key=lambda i: fields[i][0])
        text, at = "<", 0
        for index in self._order:
            offset, code = fields[index]
            if offset < at:
                return
            text += f"{offset - at}x{code}"
            at = offset + struct.calcsize("<" + code)
        if at <= size:
            self._struct = struct.Struct(f"{text}{size - at}x")

    def _fast_way(self) -> Callable[[Mapping[str, Any]], bytes] | None:
        members = self._members
        simple = all(m.count is None and m.type != "bool32" for m in members)
        if self._struct is None or not simple or not members:
            return None
        pack = self._struct.pack
        names = [self.names[i] for i in self._order]
        if len(names) == 1:
            name = names[0]
            return lambda given: pack(given[name])
        getter = operator.itemgetter(*names)
        return lambda given: pack(*getter(given))

    def from_names(self, given: Mapping[str, Any]) -> bytes | list[Any]:
        """What travels, from {name: value}.

        Raises:
            InvalidError: one is missing, unknown, of the wrong type or out of range.
        """
        if self.pack_named is not None and len(given) == len(self.names):
            try:
                return self.pack_named(given)
            except _UNFIT:
                pass  # below it is found out why
        for name in given:
            if name not in self.names:
                known = f"its scalars are {self._list()}" if self.names else "it takes no scalars"
                raise InvalidError(
                    f"kernel {self._kernel!r} has no scalar {name!r}; {known}.{suggestion(name, self.names)}"
                )
        flat: list[Any] = []
        for member in self._members:
            if member.name not in given:
                raise InvalidError(
                    f"kernel {self._kernel!r} needs the scalar {member}; give {member.name}=… "
                    f"(all of them: {self._list()})",
                    {"missing": member.name},
                )
            flat += _flatten(member, given[member.name])
        return self._pack(flat)

    def from_values(self, values: object) -> bytes | list[Any]:
        """What travels, from `scalars=`: a map by name, raw bytes of the block, or values in member order.

        Vectors and arrays may be nested in the list or flattened into it.

        Raises:
            InvalidError: as `from_names`, or the number of values or bytes is wrong.
        """
        if isinstance(values, Mapping):
            return self.from_names(values)
        if isinstance(values, (bytes, bytearray, memoryview)):
            return bytes(values)
        if isinstance(values, (str, set)) or not isinstance(values, (Sequence, np.ndarray)):
            raise InvalidError(f"scalars: expected a dict by name, a list or bytes, got {brief(values)}")
        if len(values) == len(self._members):
            flat = []
            for member, value in zip(self._members, values, strict=True):
                flat += _flatten(member, value)
            return self._pack(flat)
        total = sum(map(_values, self._members))
        if len(values) != total:
            raise InvalidError(
                f"scalars: kernel {self._kernel!r} takes {total} values ({self._list()}), got {len(values)}",
                {"expected": total, "got": len(values)},
            )
        flat, at = [], 0
        for member in self._members:
            part = values[at : at + _values(member)]
            flat += _flatten(member, part if member.count is not None else part[0])
            at += _values(member)
        return self._pack(flat)

    def _list(self) -> str:
        return ", ".join(map(str, self._members))

    def _pack(self, flat: list[Any]) -> bytes | list[Any]:
        if self._struct is None:
            return flat
        return self._struct.pack(*[flat[i] for i in self._order])


def _values(member: Scalar) -> int:
    return 1 if member.count is None else member.count


def _flatten(member: Scalar, value: object) -> list[Any]:
    """The member's values as checked Python numbers."""
    if member.count is None:
        return [_number(member, value, member.name)]
    try:
        items = np.asarray(value, dtype=object).reshape(-1).tolist()
    except (TypeError, ValueError) as error:
        raise InvalidError(f"scalar {member}: {error}") from error
    if len(items) != member.count or isinstance(value, (str, bytes)):
        raise InvalidError(f"scalar {member}: expected {member.count} values, got {brief(value)}")
    return [_number(member, item, f"{member.name}[{i}]") for i, item in enumerate(items)]


def _number(member: Scalar, value: object, label: str) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if member.type not in _FORMATS:
        return value
    if member.type == "bool32":
        if isinstance(value, int) and value in (0, 1):
            return int(value)
        raise InvalidError(f"scalar {label} is a bool32: expected True, False, 0 or 1, got {brief(value)}")
    if member.type.startswith("float"):
        return _float(member, value, label)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidError(f"scalar {label} is {member.type}: expected an integer, got {brief(value)}") from None
    bits = int(member.type.lstrip("uint"))
    low, high = (0, 2**bits - 1) if member.type[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not low <= number <= high:
        raise InvalidError(f"scalar {label} is {member.type}: {brief(number)} is outside {low} to {high}")
    return number


def _float(member: Scalar, value: object, label: str) -> int | float:
    if not isinstance(value, (int, float)):
        raise InvalidError(f"scalar {label} is {member.type}: expected a number, got {brief(value)}")
    try:
        struct.pack("<" + _FORMATS[member.type], value)
    except (OverflowError, struct.error):  # of an integer it is the latter
        raise InvalidError(f"scalar {label}: {brief(value)} overflows {member.type}") from None
    return value
