"""Where things lie in memory: sizes, alignments, members spread into scalars, and the layout rules a block keeps.

Explicit layout follows the module's Offset, ArrayStride and MatrixStride. Where a decoration is missing (some
compilers leave out the stride of an array that they only copy) the natural layout of the standard storage-buffer
rules is taken. Types are worked through in their order of definition, parts before wholes, so nothing recurses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkqueue.kernels.constants import Constants, type_name
from vkqueue.kernels.module import Decoration, Module, Op, Type

MAX_MEMBERS = 4096
"""Members that a block is spread into. Arbitrary; 64 KiB of vec4, the usual largest uniform range, are as many."""
MAX_VALUES = 65536
"""Scalar values in them: as many bytes as that range has."""
MAX_NAMES = 1 << 19
"""Characters in their names."""
_HUGE = 1 << 62  # sizes stop here: a few nested arrays reach numbers that no message could carry


@dataclass(slots=True)
class Measures:
    """Sizes and alignments of a type.

    Attributes:
        size: by its decorations; a run-time array counts as 0.
        natural: by the standard storage-buffer rules without decorations, booleans as 32 bits.
        scalar, base, extended: alignments: of its largest scalar, of std430, of std140.
        end: bytes up to the end of the last element, without padding after it.
    """

    size: int
    natural: int
    scalar: int
    base: int
    extended: int
    end: int


@dataclass(slots=True)
class _Part:
    """A part of a block still to be spread.

    Attributes:
        matrix: how a matrix in it is laid out: (stride or 0, whether rows are what is strided).
        step: of a vector that is a column of a matrix with strided rows: bytes between its components.
    """

    name: str
    type: int
    offset: int
    matrix: tuple[int, bool]
    step: int = 0


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


class Layouts:
    """Measures of every type of a module under a specialization.

    Raises:
        InvalidError: an array's length is not a positive number.
    """

    def __init__(self, module: Module, constants: Constants) -> None:
        self._module = module
        self._constants = constants
        self._measures: dict[int, Measures] = {}
        self._varying: set[int] = set()
        for id, type_ in module.types.items():
            self._measures[id] = self._measure(type_)
            if type_.op in (Op.TYPE_ARRAY, Op.TYPE_STRUCT):
                parts = type_.members or (type_.element,)
                if type_.count in constants.varying or not self._varying.isdisjoint(parts):
                    self._varying.add(id)

    def of(self, id: int) -> Measures:
        """Measures of a type; those of a pointer that is declared later are a pointer's."""
        return self._measures.get(id) or _scalar(8)

    def shared(self, id: int) -> int:
        """Bytes that a Workgroup variable of a type takes, by the rules that bound maxComputeSharedMemorySize."""
        measures = self.of(id)
        return _up(measures.natural, 4)

    def varies(self, id: int) -> bool:
        """Whether a specialization can change the size of a type."""
        return id in self._varying

    def spread_values(self) -> int:
        """Scalars in all values of the module that are arrays or structures."""
        scalars: dict[int, int] = {}
        for id, type_ in self._module.types.items():
            if type_.op == Op.TYPE_STRUCT:
                count = sum(scalars.get(member, 1) for member in type_.members)
            elif type_.op == Op.TYPE_ARRAY:
                count = scalars.get(type_.element, 1) * self.length(type_)
            else:
                continue
            scalars[id] = min(count, _HUGE)
        if not scalars or max(scalars.values()) < 64:
            return 0  # as good as always; no need to look at each value
        return sum(scalars.get(type_, 0) for type_ in self._module.type_of.values())

    def length(self, type_: Type) -> int:
        """Elements of an array type.

        Raises:
            InvalidError: zero, negative, or not known.
        """
        length = self._constants.integer(type_.count)
        if length is None or length < 1:
            at = self._module.places[type_.count]
            raise self._module.fault(at, f"an array of {'an unknown number of' if length is None else length} elements")
        return length

    def stride(self, type_: Type) -> int:
        """Bytes from one element of an array type to the next."""
        found = self._module.decoration(type_.id, Decoration.ARRAY_STRIDE)
        part = self.of(type_.element)
        return found if found is not None else _up(part.size or part.natural, part.base)

    def _measure(self, type_: Type) -> Measures:
        if type_.op in (Op.TYPE_BOOL, Op.TYPE_INT, Op.TYPE_FLOAT):
            return _scalar(type_.width // 8 or 4)
        if type_.op in (Op.TYPE_VECTOR, Op.TYPE_MATRIX):
            return self._vector(type_)
        if type_.op == Op.TYPE_ARRAY:
            return self._array(type_, self.length(type_))
        if type_.op == Op.TYPE_RUNTIME_ARRAY:
            return self._array(type_, 0)
        if type_.op == Op.TYPE_STRUCT:
            return self._struct(type_)
        if type_.op == Op.TYPE_POINTER:
            return _scalar(8)
        return Measures(0, 0, 1, 1, 1, 0)

    def _vector(self, type_: Type) -> Measures:
        part = self.of(type_.element)
        if type_.op == Op.TYPE_MATRIX:
            size = part.base * type_.count
            return Measures(size, size, part.scalar, part.base, _up(part.base, 16), size)
        size = part.size * type_.count
        align = part.size * (2 if type_.count == 2 else _up(type_.count, 4))
        return Measures(size, size, part.scalar, align, align, size)

    def _array(self, type_: Type, length: int) -> Measures:
        part = self.of(type_.element)
        stride = self.stride(type_)
        end = stride * (length - 1) + part.end if length else 0
        return Measures(
            min(stride * length, _HUGE),
            min(_up(part.natural, part.base) * length, _HUGE),
            part.scalar,
            part.base,
            _up(part.extended, 16),
            min(end, _HUGE),
        )

    def _struct(self, type_: Type) -> Measures:
        size = natural = end = 0
        scalar = base = extended = 1
        for index in range(len(type_.members)):
            part = self.member(type_.id, index)
            natural = _up(natural, part.base)
            offset = self.offset(type_.id, index)
            offset = natural if offset is None else offset
            size = max(size, offset + part.size)
            end = max(end, offset + (part.end or part.size))
            natural += part.natural
            scalar, base = max(scalar, part.scalar), max(base, part.base)
            extended = max(extended, part.extended)
        natural = min(_up(natural, base), _HUGE)
        return Measures(min(size, _HUGE), natural, scalar, base, _up(extended, 16), min(end, _HUGE))

    def member(self, struct: int, index: int) -> Measures:
        """Measures of a member; its decorations say how the matrices in it lie."""
        id = self._module.types[struct].members[index]
        plain = self.of(id)
        inner, copies = self._module.types.get(id), 0
        while inner is not None and inner.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
            inner, copies = self._module.types.get(inner.element), copies + 1
        if inner is None or inner.op != Op.TYPE_MATRIX:
            return plain
        stride, row_major = self.matrix(struct, index)
        column = self._module.types[inner.element]
        lines, lanes = (column.count, inner.count) if row_major else (inner.count, column.count)
        align = self.of(column.element).size * (2 if lanes == 2 else 4)
        size = plain.size if copies else (stride or align) * lines
        end = plain.end if copies else size
        return Measures(size, plain.natural, plain.scalar, align, _up(align, 16), end)

    def matrix(self, struct: int, index: int) -> tuple[int, bool]:
        """(stride or 0, whether rows are what is strided) of the matrices in a member."""
        stride = self._module.member_decoration(struct, index, Decoration.MATRIX_STRIDE)
        return stride or 0, self._module.member_decoration(struct, index, Decoration.ROW_MAJOR) is not None

    def offset(self, struct: int, index: int) -> int | None:
        """The Offset of a member."""
        return self._module.member_decoration(struct, index, Decoration.OFFSET)

    def trailing_array(self, struct: int) -> tuple[int, int] | None:
        """(offset, stride) of the run-time array that a block ends with."""
        type_ = self._module.types[struct]
        for index in reversed(range(len(type_.members))):
            part = self._module.types.get(type_.members[index])
            if part is not None and part.op == Op.TYPE_RUNTIME_ARRAY:
                offset = self.offset(struct, index)
                before = self.of(struct).size if offset is None else offset
                return before, self.stride(part)
        return None

    # Members

    def members(self, struct: int) -> list[dict[str, Any]] | None:
        """A block's members spread into scalars, vectors and arrays of scalars, in order of declaration.

        Returns:
            {name, type, offset, size, count?, stride?} each; None when they are more than the bounds above, or
            of a type that the wire does not have.
        """
        found: list[dict[str, Any]] = []
        parts = self._struct_parts(struct, "", 0)
        values = characters = steps = 0
        while parts:
            part = parts.pop()
            steps += 1
            type_ = self._module.types.get(part.type)
            below = None if type_ is None else self._spread(type_, part)
            if below is None:
                entry = self._entry(type_, part)
                if entry is None:
                    return None
                values += entry.get("count", 1)
                characters += len(entry["name"])
                found.append(entry)
            else:
                parts += below
            if len(found) + len(parts) > MAX_MEMBERS or steps > 8 * MAX_MEMBERS:
                return None
            if values > MAX_VALUES or characters > MAX_NAMES:
                return None
        return _unique(found)

    def _struct_parts(self, struct: int, prefix: str, base: int) -> list[_Part]:
        """Members of a structure, the last one first."""
        names = self._module.member_names.get(struct, {})
        parts = []
        for index, member in enumerate(self._module.types[struct].members[: MAX_MEMBERS + 1]):
            name = prefix + (names.get(index) or f"m{index}")
            offset = base + (self.offset(struct, index) or 0)
            parts.append(_Part(name, member, offset, self.matrix(struct, index)))
        parts.reverse()
        return parts

    def _spread(self, type_: Type, part: _Part) -> list[_Part] | None:
        """The parts of a part, the last one first; None when it is one entry."""
        if type_.op == Op.TYPE_STRUCT:
            return self._struct_parts(type_.id, part.name + ".", part.offset)
        if type_.op == Op.TYPE_RUNTIME_ARRAY:
            return []
        within = 0
        if type_.op == Op.TYPE_ARRAY and not self._is_scalar(type_.element):
            count, step = self.length(type_), self.stride(type_)
        elif type_.op == Op.TYPE_MATRIX:
            stride, row_major = part.matrix
            count, step = type_.count, stride or self.of(type_.element).base
            if row_major:
                column = self._module.types[type_.element]
                within, step = step, self.of(column.element).size
        else:
            return None
        return [
            _Part(f"{part.name}[{i}]", type_.element, part.offset + i * step, part.matrix, within)
            for i in reversed(range(min(count, MAX_MEMBERS + 1)))
        ]

    def _is_scalar(self, id: int) -> bool:
        type_ = self._module.types.get(id)
        return type_ is None or type_.op in (Op.TYPE_BOOL, Op.TYPE_INT, Op.TYPE_FLOAT, Op.TYPE_POINTER)

    def _entry(self, type_: Type | None, part: _Part) -> dict[str, Any] | None:
        if type_ is None or type_.op == Op.TYPE_POINTER:
            # A device address: such modules are refused, their reflection is still shown.
            return {"name": part.name, "type": "uint64", "offset": part.offset, "size": 8}
        count, scalar = 0, type_
        if type_.op in (Op.TYPE_ARRAY, Op.TYPE_VECTOR):
            scalar = self._module.types.get(type_.element, type_)
            count = type_.count if type_.op == Op.TYPE_VECTOR else self.length(type_)
        name = "uint64" if scalar.op == Op.TYPE_POINTER else type_name(scalar)
        if name is None:
            return None
        element = self.of(scalar.id).size
        stride = element
        if type_.op == Op.TYPE_ARRAY:
            stride = self.stride(type_)
        elif part.step:
            stride = part.step
        entry: dict[str, Any] = {"name": part.name, "type": name, "offset": part.offset, "size": element}
        if count:
            entry |= {"size": stride * (count - 1) + element, "count": count}
            if stride != element:
                entry["stride"] = stride
        return entry


def _scalar(size: int) -> Measures:
    return Measures(size, size, size, size, size, size)


def _unique(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tell members of one name apart: a map of values by name could not give both."""
    seen: set[str] = set()
    for index, member in enumerate(members):
        if member["name"] in seen:
            member["name"] += f"#{index}"
        seen.add(member["name"])
    return members
