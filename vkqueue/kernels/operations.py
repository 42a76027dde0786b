"""Handlers of what functions do with memory and with composite values."""

from __future__ import annotations

from collections.abc import Callable

from vkqueue.kernels.grammar import ENUMS
from vkqueue.kernels.module import Op, Storage, Type
from vkqueue.kernels.reader import Reader

# Memory


_READ_ONLY = frozenset((Storage.UNIFORM_CONSTANT, Storage.INPUT, Storage.PUSH_CONSTANT))


def _pointee(r: Reader, at: int, id: int, *, written: bool = False) -> Type:
    pointer = r.type_of(id)
    if pointer.op != Op.TYPE_POINTER:
        raise r.module.fault(at, f"id {id} is not a pointer")
    if written and pointer.storage in _READ_ONLY:
        raise r.module.fault(at, f"id {id} points to memory that can only be read")
    return r.module.types[pointer.element]


def _load(r: Reader, at: int, n: int, op: int) -> None:
    if not r.same_type(_pointee(r, at, r.words[at + 3]).id, r.words[at + 1]):
        raise r.module.fault(at, f"pointer {r.words[at + 3]} does not point to the result type")


def _store(r: Reader, at: int, n: int, op: int) -> None:
    if not r.same_type(_pointee(r, at, r.words[at + 1], written=True).id, r.module.type_of[r.words[at + 2]]):
        raise r.module.fault(at, f"pointer {r.words[at + 1]} does not point to the type of the object")


def _copy_memory(r: Reader, at: int, n: int, op: int) -> None:
    target, source = _pointee(r, at, r.words[at + 1], written=True), _pointee(r, at, r.words[at + 2])
    if op == Op.COPY_MEMORY and target.same != source.same:
        raise r.module.fault(at, "target and source point to different types")


def _access_chain(r: Reader, at: int, n: int, op: int) -> None:
    module, words = r.module, r.words
    result, base = module.types[words[at + 1]], r.type_of(words[at + 3])
    if base.op != Op.TYPE_POINTER or result.op != Op.TYPE_POINTER or base.storage != result.storage:
        raise module.fault(at, "base and result are not pointers of one storage class")
    first = 5 if op in (Op.PTR_ACCESS_CHAIN, Op.IN_BOUNDS_PTR_ACCESS_CHAIN) else 4
    if n < first:
        raise module.fault(at, "the element is missing")
    reached = base.element
    for id in words[at + 4 : at + n]:
        if r.type_of(id).op != Op.TYPE_INT:
            raise module.fault(at, f"index {id} is not an integer")
    for id in words[at + first : at + n]:
        reached = _step(r, at, module.types[reached], r.constant_values.get(id), id)
    if not r.same_type(reached, result.element):
        raise module.fault(at, f"the chain leads to type {reached}, the result points to type {result.element}")


def _step(r: Reader, at: int, into: Type, index: int | None, what: object) -> int:
    """The type that an index leads to."""
    if into.op == Op.TYPE_STRUCT:
        if index is None or index >= len(into.members):
            raise r.module.fault(at, f"index {what} is not a member of structure {into.id}")
        return into.members[index]
    if into.op not in (Op.TYPE_VECTOR, Op.TYPE_MATRIX, Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY) and not (
        into.op > 4000 and into.element
    ):
        raise r.module.fault(at, f"type {into.id} has no parts to index")
    return into.element


def _array_length(r: Reader, at: int, n: int, op: int) -> None:
    block, member = _pointee(r, at, r.words[at + 3]), r.words[at + 4]
    if block.op != Op.TYPE_STRUCT or member != len(block.members) - 1:
        raise r.module.fault(at, "not the last member of a structure")
    if r.module.types[block.members[member]].op != Op.TYPE_RUNTIME_ARRAY:
        raise r.module.fault(at, "the member is not a run-time array")


def _atomic(r: Reader, at: int, n: int, op: int) -> None:
    typed = op not in (Op.ATOMIC_STORE, Op.ATOMIC_FLAG_CLEAR)
    found = _pointee(r, at, r.words[at + (3 if typed else 1)], written=op != Op.ATOMIC_LOAD)
    if op in (Op.ATOMIC_FLAG_CLEAR, 318):
        wanted = found.id
    else:
        wanted = r.words[at + 1] if typed else r.module.type_of[r.words[at + 4]]
    if not r.same_type(found.id, wanted):
        raise r.module.fault(at, "the pointer does not point to the type of the value")


# Composites


def _extract(r: Reader, at: int, n: int, op: int) -> None:
    reached = r.module.type_of[r.words[at + 3]]
    for index in r.words[at + 4 : at + n]:
        reached = _literal_step(r, at, r.module.types[reached], index)
    if not r.same_type(reached, r.words[at + 1]):
        raise r.module.fault(at, f"the indices lead to type {reached}")


def _insert(r: Reader, at: int, n: int, op: int) -> None:
    reached = r.module.type_of[r.words[at + 4]]
    if not r.same_type(reached, r.words[at + 1]):
        raise r.module.fault(at, "result and composite differ in type")
    for index in r.words[at + 5 : at + n]:
        reached = _literal_step(r, at, r.module.types[reached], index)
    if not r.same_type(reached, r.module.type_of[r.words[at + 3]]):
        raise r.module.fault(at, f"the indices lead to type {reached}, the object has another")


def _literal_step(r: Reader, at: int, into: Type, index: int) -> int:
    if into.op in (Op.TYPE_VECTOR, Op.TYPE_MATRIX):
        limit: int | None = into.count
    elif into.op == Op.TYPE_ARRAY:
        limit = r.constant_values.get(into.count)
    else:
        limit = None
    if limit is not None and index >= limit:
        raise r.module.fault(at, f"index {index} is past the {limit} parts of type {into.id}")
    return _step(r, at, into, index, index)


def _construct(r: Reader, at: int, n: int, op: int) -> None:
    module, type_ = r.module, r.module.types[r.words[at + 1]]
    parts = [module.type_of[id] for id in r.words[at + 3 : at + n]]
    if type_.op == Op.TYPE_VECTOR:
        count = 0
        for part in parts:
            found = module.types[part]
            vector = found.op == Op.TYPE_VECTOR
            count += found.count if vector else 1
            if not r.same_type(found.element if vector else part, type_.element):
                raise module.fault(at, "a part is not of the vector's component type")
        good = count == type_.count
    elif type_.op == Op.TYPE_STRUCT:
        good = len(parts) == len(type_.members) and all(map(lambda a, b: r.same_type(a, b), parts, type_.members))
    elif type_.op in (Op.TYPE_MATRIX, Op.TYPE_ARRAY):
        length = type_.count if type_.op == Op.TYPE_MATRIX else r.constant_values.get(type_.count, len(parts))
        good = len(parts) == length and all(r.same_type(part, type_.element) for part in parts)
    else:
        good = type_.op > 4000
    if not good:
        raise module.fault(at, f"{len(parts)} parts of these types do not make a value of type {type_.id}")


def _shuffle(r: Reader, at: int, n: int, op: int) -> None:
    result = r.module.types[r.words[at + 1]]
    a, b = r.type_of(r.words[at + 3]), r.type_of(r.words[at + 4])
    if not a.op == b.op == result.op == Op.TYPE_VECTOR or result.count != n - 5:
        raise r.module.fault(at, "operands and result must be vectors, with a component for each literal")
    if not (r.same_type(a.element, result.element) and r.same_type(b.element, result.element)):
        raise r.module.fault(at, "the vectors have different component types")
    for index in r.words[at + 5 : at + n]:
        if index >= a.count + b.count and index != 0xFFFFFFFF:
            raise r.module.fault(at, f"component {index} of {a.count + b.count}")


def _group(r: Reader, at: int, n: int, op: int) -> None:
    """Reductions and scans over a subgroup: drivers trust that the operation is one that exists."""
    operation = r.words[at + 4]
    if operation not in ENUMS["G"]:
        raise r.module.fault(at, f"group operation {operation} does not exist")
    clustered = operation in (3, 6, 7, 8)  # by clusters of a constant size, or by partitions
    if clustered != (n == 7) or (operation == 3 and r.words[at + 6] not in r.constant_set):
        raise r.module.fault(at, "a cluster size or partition where none belongs, or none where one does")


def _copy(r: Reader, at: int, n: int, op: int) -> None:
    if not r.same_type(r.words[at + 1], r.module.type_of[r.words[at + 3]]):
        raise r.module.fault(at, "operand and result differ in type")


def _select(r: Reader, at: int, n: int, op: int) -> None:
    condition = r.type_of(r.words[at + 3])
    if condition.op == Op.TYPE_VECTOR:
        condition = r.module.types[condition.element]
    if condition.op != Op.TYPE_BOOL:
        raise r.module.fault(at, "the condition is not a boolean")
    for id in r.words[at + 4 : at + 6]:
        if not r.same_type(r.words[at + 1], r.module.type_of[id]):
            raise r.module.fault(at, f"object {id} is not of the result type")


HANDLERS: dict[int, Callable[[Reader, int, int, int], None]] = {
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.COPY_MEMORY: _copy_memory,
    Op.COPY_MEMORY_SIZED: _copy_memory,
    Op.ACCESS_CHAIN: _access_chain,
    Op.IN_BOUNDS_ACCESS_CHAIN: _access_chain,
    Op.PTR_ACCESS_CHAIN: _access_chain,
    Op.IN_BOUNDS_PTR_ACCESS_CHAIN: _access_chain,
    Op.ARRAY_LENGTH: _array_length,
    Op.COMPOSITE_EXTRACT: _extract,
    Op.COMPOSITE_INSERT: _insert,
    Op.COMPOSITE_CONSTRUCT: _construct,
    Op.VECTOR_SHUFFLE: _shuffle,
    Op.COPY_OBJECT: _copy,
    Op.COPY_LOGICAL: _copy,
    Op.SELECT: _select,
}
HANDLERS |= dict.fromkeys((*range(227, 243), 318, 319), _atomic)
HANDLERS |= dict.fromkeys((342, *range(349, 365)), _group)
