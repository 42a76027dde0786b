"""Handlers of types, constants and variables."""

from __future__ import annotations

from collections.abc import Callable

from vkqueue.kernels.grammar import SHAPES
from vkqueue.kernels.module import Op, Storage, Type, Variable
from vkqueue.kernels.reader import GLOBALS, Reader

MAX_DEPTH = 255
"""Levels of nesting of a type, the universal limit of the SPIR-V specification."""

_WIDTH_CAPABILITIES: dict[tuple[int, int], frozenset[int]] = {
    # Any of these capabilities allows the type (the storage ones for loads and stores only; Kernel has all).
    (Op.TYPE_INT, 8): frozenset((6, 39, 4429, 4448, 4449, 4450)),
    (Op.TYPE_INT, 16): frozenset((6, 22, 4430, 4433, 4434, 4435, 4436)),
    (Op.TYPE_INT, 64): frozenset((11,)),
    (Op.TYPE_FLOAT, 16): frozenset((8, 9, 4430, 4433, 4434, 4435, 4436)),
    (Op.TYPE_FLOAT, 64): frozenset((10,)),
}


def _type(r: Reader, at: int, n: int, op: int) -> None:
    id = r.words[at + 1]
    made = _TYPES.get(op, _opaque)(r, at, n, op, id)
    if made.depth > MAX_DEPTH:
        raise r.module.fault(at, f"types are nested more than {MAX_DEPTH} deep")
    r.module.types[id] = made


def _shared(r: Reader, made: Type, *key: object) -> Type:
    """Give a type its `same`."""
    made.same = r.same.setdefault((made.op, *key), made.id)
    return made


def _opaque(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    """Void, bool, and what the analyses do not look into: images, samplers, types of extensions."""
    element = r.words[at + 2] if n > 2 and r.words[at + 2] in r.module.types else 0
    boolean = op == Op.TYPE_BOOL
    made = Type(op, id, element=element, base=op if boolean else 0, lanes=int(boolean))
    return _shared(r, made, *r.words[at + 2 : at + n])


def _number(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    width = r.words[at + 2]
    signed = op == Op.TYPE_INT and r.words[at + 3] == 1
    if width not in ((8, 16, 32, 64) if op == Op.TYPE_INT or n == 4 else (16, 32, 64)):
        raise r.module.fault(at, f"no {'integer' if op == Op.TYPE_INT else 'float'} has {width} bits")
    if op == Op.TYPE_INT and r.words[at + 3] > 1:
        raise r.module.fault(at, f"signedness {r.words[at + 3]}; it is 0 or 1")
    needed = _WIDTH_CAPABILITIES.get((op, width), frozenset())
    if needed and n + (op == Op.TYPE_FLOAT) == 4 and needed.isdisjoint(r.capability_set):
        raise r.module.fault(at, f"{width} bits need a capability that the module does not declare")
    r.set_number_words(id, width)
    made = Type(op, id, width=width, signed=signed, base=op, lanes=1)
    return _shared(r, made, *r.words[at + 2 : at + n])


def _vector(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    element, count = r.words[at + 2], r.words[at + 3]
    wanted = (Op.TYPE_VECTOR,) if op == Op.TYPE_MATRIX else (Op.TYPE_BOOL, Op.TYPE_INT, Op.TYPE_FLOAT)
    part = r.module.types.get(element)
    if part is None or part.op not in wanted:
        raise r.module.fault(at, f"type {element} cannot be the component of it")
    if not (2 <= count <= 4 or (op == Op.TYPE_VECTOR and count in (8, 16))):
        raise r.module.fault(at, f"{count} components")
    made = Type(op, id, element=element, count=count, depth=part.depth + 1)
    if op == Op.TYPE_VECTOR:
        made.width, made.base, made.lanes = part.width, part.op, count
    return _shared(r, made, part.same, count)


def _array(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    element = r.words[at + 2]
    part = _element(r, at, element)
    made = Type(op, id, element=element, depth=part.depth + 1, holds_pointer=part.holds_pointer)
    if op == Op.TYPE_RUNTIME_ARRAY:
        return _shared(r, made, part.same)
    if part.op == Op.TYPE_RUNTIME_ARRAY:
        raise r.module.fault(at, "an array of run-time arrays")
    made.count = length = r.words[at + 3]
    type_ = r.module.types.get(r.module.type_of.get(length, 0))
    if type_ is None or type_.op != Op.TYPE_INT or length not in r.constant_set:
        raise r.module.fault(at, f"the length, id {length}, is not an integer constant")
    known = r.constant_values.get(length)
    if known == 0:
        raise r.module.fault(at, "an array of no elements")
    return _shared(r, made, part.same, known is not None, length if known is None else known)


def _element(r: Reader, at: int, element: int) -> Type:
    """The type of a component or member, which may be a pointer that is declared later."""
    part = r.module.types.get(element)
    if part is None and element in r.forward_types:
        return Type(Op.TYPE_POINTER, element, holds_pointer=True, same=element)
    if part is None or part.op in (Op.TYPE_VOID, Op.TYPE_FUNCTION):
        raise r.module.fault(at, f"id {element} is not a type that may stand here")
    return part


def _struct(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    members = tuple(r.words[at + 2 : at + n])
    parts = [_element(r, at, member) for member in members]
    if any(part.op == Op.TYPE_RUNTIME_ARRAY for part in parts[:-1]):
        raise r.module.fault(at, "a run-time array that is not the last member")
    if any(part.op == Op.TYPE_STRUCT and part.open_ended for part in parts):
        raise r.module.fault(at, "a structure that ends with a run-time array, within another")
    depth = 1 + max((part.depth for part in parts), default=0)
    holds = any(part.holds_pointer for part in parts)
    made = Type(op, id, members=members, depth=depth, holds_pointer=holds)
    made.open_ended = bool(parts) and parts[-1].op == Op.TYPE_RUNTIME_ARRAY
    return _shared(r, made, *[part.same for part in parts])


def _pointer(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    storage, element = r.words[at + 2], r.words[at + 3]
    part = r.module.types.get(element)
    if part is None or part.op == Op.TYPE_VOID:
        raise r.module.fault(at, f"id {element} is not a type that can be pointed to")
    made = Type(op, id, element=element, storage=storage, holds_pointer=True)
    return _shared(r, made, storage, part.same)


def _function_type(r: Reader, at: int, n: int, op: int, id: int) -> Type:
    element, members = r.words[at + 2], tuple(r.words[at + 3 : at + n])
    for part in (element, *members):
        found = r.module.types.get(part)
        if found is None or found.op == Op.TYPE_FUNCTION or (found.op == Op.TYPE_VOID and part in members):
            raise r.module.fault(at, f"id {part} is not a type that may stand here")
    same = [r.module.types[part].same for part in (element, *members)]
    return _shared(r, Type(op, id, element=element, members=members), *same)


def _forward_pointer(r: Reader, at: int, n: int, op: int) -> None:
    if r.words[at + 1] not in r.module.types:
        r.forward_types[r.words[at + 1]] = at


_TYPES: dict[int, Callable[[Reader, int, int, int, int], Type]] = {
    Op.TYPE_INT: _number,
    Op.TYPE_FLOAT: _number,
    Op.TYPE_VECTOR: _vector,
    Op.TYPE_MATRIX: _vector,
    Op.TYPE_ARRAY: _array,
    Op.TYPE_RUNTIME_ARRAY: _array,
    Op.TYPE_STRUCT: _struct,
    Op.TYPE_POINTER: _pointer,
    Op.TYPE_FUNCTION: _function_type,
}


# Constants and variables


def _constant(r: Reader, at: int, n: int, op: int) -> None:
    type_, id = r.module.types[r.words[at + 1]], r.words[at + 2]
    if op in (Op.CONSTANT, Op.SPEC_CONSTANT):
        wanted: tuple[int, ...] = (Op.TYPE_INT, Op.TYPE_FLOAT)
        if op == Op.CONSTANT and type_.op == Op.TYPE_INT and type_.width <= 32:
            r.constant_values[id] = r.words[at + 3]
    elif op in (Op.CONSTANT_TRUE, Op.CONSTANT_FALSE, Op.SPEC_CONSTANT_TRUE, Op.SPEC_CONSTANT_FALSE):
        wanted = (Op.TYPE_BOOL,)
    else:
        wanted = ()
    if (wanted and type_.op not in wanted) or type_.op in (Op.TYPE_VOID, Op.TYPE_FUNCTION):
        raise r.module.fault(at, f"a constant of type {type_.id} cannot be written so")
    _add_constant(r, id)


def _add_constant(r: Reader, id: int) -> None:
    r.constant_set.add(id)
    r.module.constants.append(id)


def _composite(r: Reader, at: int, n: int, op: int) -> None:
    type_ = r.module.types[r.words[at + 1]]
    parts = r.words[at + 3 : at + n]
    for id in parts:
        if id not in r.constant_set:
            raise r.module.fault(at, f"id {id} is not a constant")
    if type_.op in (Op.TYPE_VECTOR, Op.TYPE_MATRIX):
        wanted: list[int] | None = [type_.element] * type_.count
    elif type_.op == Op.TYPE_ARRAY:
        length = r.constant_values.get(type_.count)
        wanted = [type_.element] * len(parts) if length in (None, len(parts)) else None
    elif type_.op == Op.TYPE_STRUCT:
        wanted = list(type_.members)
    else:
        wanted = None if type_.op < 100 else [type_.element or 0] * len(parts)
    if wanted is None or len(wanted) != len(parts):
        raise r.module.fault(at, f"{len(parts)} parts do not make a value of type {type_.id}")
    for id, part in zip(parts, wanted, strict=True):
        if part and r.module.types[r.module.type_of[id]].same != r.module.types[part].same:
            raise r.module.fault(at, f"part {id} is not of type {part}")
    _add_constant(r, r.words[at + 2])


def _operation(r: Reader, at: int, n: int, op: int) -> None:
    for letter, place, _ in r.operands[3:]:
        if letter == "i" and r.words[place] not in r.constant_set:
            raise r.module.fault(at, f"id {r.words[place]} is not a constant")
    _add_constant(r, r.words[at + 2])


def _variable(r: Reader, at: int, n: int, op: int) -> None:
    pointer = r.module.types[r.words[at + 1]]
    storage = r.words[at + 3]
    if pointer.op != Op.TYPE_POINTER or pointer.storage != storage:
        raise r.module.fault(at, f"the type of a variable is a pointer of its storage class, {storage}")
    initializer = r.words[at + 4] if n > 4 else 0
    if initializer:
        _initializer(r, at, initializer, pointer.element)
    if r.in_block:
        if storage != Storage.FUNCTION or r.label != r.entry_label:
            raise r.module.fault(at, "only Function variables may stand here, and in the first block")
        return
    if storage == Storage.FUNCTION:
        raise r.module.fault(at, "a Function variable stands outside of functions")
    r.enter_section(at, GLOBALS)
    id = r.words[at + 2]
    r.module.variables[id] = Variable(id, pointer.id, pointer.element, storage, initializer, at)


def _initializer(r: Reader, at: int, id: int, wanted: int) -> None:
    if id not in r.constant_set and id not in r.module.variables:
        raise r.module.fault(at, f"the initializer, id {id}, is neither a constant nor a variable of the module")
    if r.module.types[r.module.type_of[id]].same != r.module.types[wanted].same:
        raise r.module.fault(at, f"the initializer, id {id}, is not of type {wanted}")


def _undef(r: Reader, at: int, n: int, op: int) -> None:
    if not r.in_block:
        r.enter_section(at, GLOBALS)
        r.constant_set.add(r.words[at + 2])


HANDLERS: dict[int, Callable[[Reader, int, int, int], None]] = {
    Op.CONSTANT_COMPOSITE: _composite,
    Op.SPEC_CONSTANT_COMPOSITE: _composite,
    Op.SPEC_CONSTANT_OP: _operation,
    Op.VARIABLE: _variable,
    Op.UNDEF: _undef,
    Op.TYPE_FORWARD_POINTER: _forward_pointer,
}
HANDLERS |= dict.fromkeys((41, 42, 43, 45, 46, 48, 49, 50), _constant)
HANDLERS |= {
    op: _type
    for op, shape in SHAPES.items()
    if shape.name.startswith("Type") and op != Op.TYPE_FORWARD_POINTER and shape.result
}
