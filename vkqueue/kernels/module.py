"""What a parsed SPIR-V module consists of. The parser (`spirv`) fills these; the analyses read them.

Ids are the module's own numbers. Places are word numbers within the module, as errors report them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from vkqueue.errors import InvalidError
from vkqueue.kernels.grammar import opcode_name


class Op(IntEnum):
    """Instructions that the code names."""

    NOP = 0
    UNDEF = 1
    NAME = 5
    MEMBER_NAME = 6
    STRING = 7
    LINE = 8
    EXTENSION = 10
    EXT_INST_IMPORT = 11
    EXT_INST = 12
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_VOID = 19
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_MATRIX = 24
    TYPE_IMAGE = 25
    TYPE_SAMPLER = 26
    TYPE_SAMPLED_IMAGE = 27
    TYPE_ARRAY = 28
    TYPE_RUNTIME_ARRAY = 29
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    TYPE_FUNCTION = 33
    TYPE_FORWARD_POINTER = 39
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    CONSTANT_NULL = 46
    SPEC_CONSTANT_TRUE = 48
    SPEC_CONSTANT_FALSE = 49
    SPEC_CONSTANT = 50
    SPEC_CONSTANT_COMPOSITE = 51
    SPEC_CONSTANT_OP = 52
    FUNCTION = 54
    FUNCTION_PARAMETER = 55
    FUNCTION_END = 56
    FUNCTION_CALL = 57
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    COPY_MEMORY = 63
    COPY_MEMORY_SIZED = 64
    ACCESS_CHAIN = 65
    IN_BOUNDS_ACCESS_CHAIN = 66
    PTR_ACCESS_CHAIN = 67
    ARRAY_LENGTH = 68
    IN_BOUNDS_PTR_ACCESS_CHAIN = 70
    DECORATE = 71
    MEMBER_DECORATE = 72
    DECORATION_GROUP = 73
    GROUP_DECORATE = 74
    GROUP_MEMBER_DECORATE = 75
    VECTOR_SHUFFLE = 79
    COMPOSITE_CONSTRUCT = 80
    COMPOSITE_EXTRACT = 81
    COMPOSITE_INSERT = 82
    COPY_OBJECT = 83
    SELECT = 169
    ATOMIC_LOAD = 227
    ATOMIC_STORE = 228
    ATOMIC_FLAG_CLEAR = 319
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    SWITCH = 251
    KILL = 252
    RETURN = 253
    RETURN_VALUE = 254
    UNREACHABLE = 255
    NO_LINE = 317
    EXECUTION_MODE_ID = 331
    DECORATE_ID = 332
    COPY_LOGICAL = 400
    PTR_EQUAL = 401
    PTR_NOT_EQUAL = 402
    PTR_DIFF = 403
    EXT_INST_FORWARD = 4433
    DECORATE_STRING = 5632
    MEMBER_DECORATE_STRING = 5633


class Storage(IntEnum):
    """Storage classes that the code names."""

    UNIFORM_CONSTANT = 0
    INPUT = 1
    UNIFORM = 2
    WORKGROUP = 4
    PRIVATE = 6
    FUNCTION = 7
    PUSH_CONSTANT = 9
    STORAGE_BUFFER = 12


class Decoration(IntEnum):
    """Decorations that the code names."""

    SPEC_ID = 1
    BLOCK = 2
    BUFFER_BLOCK = 3
    ROW_MAJOR = 4
    ARRAY_STRIDE = 6
    MATRIX_STRIDE = 7
    BUILT_IN = 11
    NON_WRITABLE = 24
    NON_READABLE = 25
    BINDING = 33
    DESCRIPTOR_SET = 34
    OFFSET = 35


GL_COMPUTE = 5
"""Execution model of compute entry points in Vulkan."""
KERNEL = 6
"""That of OpenCL, and the capability that goes with it."""

Decorations: TypeAlias = dict[int, int]
"""Decoration to its first operand, 1 for one without operands."""


@dataclass(slots=True)
class Type:
    """A type.

    Attributes:
        op: the OpType instruction.
        width, signed: of integers and floats, and of a vector's components.
        base, lanes: of numbers, booleans and their vectors: the OpType of a component, and how many there are.
        element: id of the component, column, element, pointee, or return type; of an image its sampled type.
        count: components, columns, or of an array the id of its length.
        members: ids of a structure's members, or of a function's parameters.
        storage: a pointer's storage class.
        depth: levels of nesting.
        holds_pointer: whether a value of it is, or contains, a pointer.
        open_ended: of a structure: whether a run-time array is its last member.
        same: id of the first type of this structure. Types are compared by it: compilers write the same type
            twice, and copy between structures that differ in decorations only.
    """

    op: int
    id: int
    width: int = 0
    signed: bool = False
    base: int = 0
    lanes: int = 0
    element: int = 0
    count: int = 0
    members: tuple[int, ...] = ()
    storage: int = 0
    depth: int = 0
    holds_pointer: bool = False
    open_ended: bool = False
    same: int = 0


@dataclass(slots=True)
class Variable:
    """A variable outside functions; `type` is the pointer's pointee."""

    id: int
    pointer: int
    type: int
    storage: int
    initializer: int
    at: int


@dataclass(slots=True)
class Function:
    """A function.

    Attributes:
        body: places of its instructions from the first label on.
        calls: how often it calls which functions.
        inlined: instructions it has once all calls are expanded, as most drivers do.
    """

    id: int
    type: int
    at: int
    parameters: list[int] = field(default_factory=list)
    body: list[int] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    inlined: int = 0


@dataclass(slots=True)
class EntryPoint:
    """An entry point as declared; its interface list says nothing reliable, and is not kept."""

    model: int
    function: int
    name: str
    at: int
    local_size: tuple[int, ...] | None = None
    local_size_ids: tuple[int, ...] | None = None


@dataclass(slots=True)
class Module:
    """A module that has passed the parser's checks."""

    words: Sequence[int]
    data: bytes
    version: tuple[int, int]
    generator: int
    bound: int
    capabilities: list[int] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)
    sets: dict[int, str] = field(default_factory=dict)
    """Imported instruction sets by id."""
    addressing: int = 0
    memory_model: int = 0
    entry_points: list[EntryPoint] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    member_names: dict[int, dict[int, str]] = field(default_factory=dict)
    decorations: dict[int, Decorations] = field(default_factory=dict)
    member_decorations: dict[int, dict[int, Decorations]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)
    """Decoration groups applied to an id."""
    member_groups: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    types: dict[int, Type] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """Where each id is defined."""
    type_of: dict[int, int] = field(default_factory=dict)
    """Type of each value (constants, variables, results; not functions)."""
    constants: list[int] = field(default_factory=list)
    """Ids of all constants, in order."""
    variables: dict[int, Variable] = field(default_factory=dict)
    functions: dict[int, Function] = field(default_factory=dict)

    def op(self, id: int) -> int:
        """Opcode of the instruction that defines an id."""
        return self.words[self.places[id]] & 0xFFFF

    def decoration(self, id: int, which: int) -> int | None:
        """First operand of a decoration of an id (1 when it has none), None without it."""
        found = self.decorations.get(id, {}).get(which)
        if found is None and id in self.groups:
            for group in self.groups[id]:
                found = self.decorations.get(group, {}).get(which)
                if found is not None:
                    return found
        return found

    def member_decoration(self, struct: int, member: int, which: int) -> int | None:
        """The same of a member of a structure."""
        found = self.member_decorations.get(struct, {}).get(member, {}).get(which)
        if found is None and (struct, member) in self.member_groups:
            for group in self.member_groups[struct, member]:
                found = self.decorations.get(group, {}).get(which)
                if found is not None:
                    return found
        return found

    def fault(self, at: int, text: str) -> InvalidError:
        """The error for what is wrong with the instruction at a place."""
        name = opcode_name(self.words[at] & 0xFFFF)
        return InvalidError(f"SPIR-V, word {at}, {name}: {text}", {"word": at, "opcode": name})
