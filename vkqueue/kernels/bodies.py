"""Handlers of what stands in functions: blocks and their edges, memory, composites, calls."""

from __future__ import annotations

from collections.abc import Callable

from vkqueue.kernels.flow import Dominators
from vkqueue.kernels.grammar import ENUMS
from vkqueue.kernels.module import Function, Op, Storage, Type
from vkqueue.kernels.operators import OPERATORS, check_operator
from vkqueue.kernels.reader import FUNCTIONS, Reader

_TERMINATORS = frozenset(
    {Op.KILL, Op.RETURN, Op.UNREACHABLE, 4416, 4448, 4449, 5121, 5294}
)  # TerminateInvocation, IgnoreIntersection, TerminateRay, Abort, EmitMeshTasks


def _type_of(r: Reader, id: int) -> Type:
    return r.module.types[r.module.type_of[id]]


def _same(r: Reader, a: int, b: int) -> bool:
    """Whether two types have one structure."""
    return a == b or r.module.types[a].same == r.module.types[b].same


# Functions and blocks


def _function(r: Reader, at: int, n: int, op: int) -> None:
    module, (result, id, type_) = r.module, (r.words[at + 1], r.words[at + 2], r.words[at + 4])
    if r.function is not r.nowhere:
        raise module.fault(at, "within a function")
    r.section = FUNCTIONS
    found = module.types.get(type_)
    if found is None or found.op != Op.TYPE_FUNCTION or found.element != result:
        raise module.fault(at, f"id {type_} is not a function type with this result")
    r.function = module.functions[id] = Function(id, type_, at)
    r.labels, r.edges, r.targets, r.phis, r.entry_label = {}, [], [], [], 0
    r.parameters_left = list(reversed(found.members))


def _parameter(r: Reader, at: int, n: int, op: int) -> None:
    if r.function is r.nowhere or r.labels or not r.parameters_left:
        raise r.module.fault(at, "a parameter that the function's type does not have")
    if r.parameters_left.pop() != r.words[at + 1]:
        raise r.module.fault(at, "not of the type that the function's type says")
    r.function.parameters.append(r.words[at + 2])


def _label(r: Reader, at: int, n: int, op: int) -> None:
    if r.function is r.nowhere or r.in_block or r.parameters_left:
        raise r.module.fault(at, "a block cannot begin here")
    r.label = r.words[at + 1]
    r.entry_label = r.entry_label or r.label
    r.labels[r.label] = at
    r.in_block = True
    r.function.body.append(at)


def _leave(r: Reader) -> None:
    r.in_block, r.merge_at = False, 0


def _branch(r: Reader, at: int, n: int, op: int) -> None:
    words = r.words
    if op == Op.BRANCH:
        targets = [words[at + 1]]
    elif op == Op.BRANCH_CONDITIONAL:
        if n not in (4, 6):
            raise r.module.fault(at, f"{n} words; expected 4, or 6 with weights")
        _check_scalar(r, at, words[at + 1], Op.TYPE_BOOL)
        targets = [words[at + 2], words[at + 3]]
    else:
        _check_scalar(r, at, words[at + 1], Op.TYPE_INT)
        targets = [words[place] for letter, place, _ in r.operands[1:] if letter == "i"]
    r.edges += [(r.label, target, at) for target in targets]
    _leave(r)


def _check_scalar(r: Reader, at: int, id: int, op: int) -> None:
    r.use(at, id)
    if _type_of(r, id).op != op:
        raise r.module.fault(at, f"id {id} has the wrong type to decide by")


def _merge(r: Reader, at: int, n: int, op: int) -> None:
    r.targets += [(id, at) for id in r.words[at + 1 : at + (3 if op == Op.LOOP_MERGE else 2)]]
    r.merge_at = at


def _return(r: Reader, at: int, n: int, op: int) -> None:
    wanted = r.module.types[r.module.types[r.function.type].element]
    if op == Op.RETURN and wanted.op != Op.TYPE_VOID:
        raise r.module.fault(at, "the function has to return a value")
    if op == Op.RETURN_VALUE and not _same(r, wanted.id, r.module.type_of[r.words[at + 1]]):
        raise r.module.fault(at, f"the value is not of the function's type {wanted.id}")
    _leave(r)


def _terminate(r: Reader, at: int, n: int, op: int) -> None:
    _leave(r)


def _phi(r: Reader, at: int, n: int, op: int) -> None:
    previous = r.function.body[-2] if len(r.function.body) > 1 else at
    if r.words[previous] & 0xFFFF not in (Op.LABEL, Op.PHI, Op.LINE, Op.NO_LINE, Op.EXT_INST):
        raise r.module.fault(at, "a phi that is not at the beginning of its block")
    r.phis.append((at, r.label))


def _function_end(r: Reader, at: int, n: int, op: int) -> None:
    module = r.module
    if r.function is r.nowhere or r.in_block:
        raise module.fault(at, "outside a function, or within a block")
    if r.parameters_left or not r.labels:
        raise module.fault(r.function.at, "a function without a body, or without all its parameters")
    sources: dict[int, set[int]] = {}
    for source, target, place in r.edges:
        if target not in r.labels or target == r.entry_label:
            raise module.fault(place, f"id {target} is not a block of this function that can be branched to")
        sources.setdefault(target, set()).add(source)
    for target, place in r.targets:
        if target not in r.labels:
            raise module.fault(place, f"id {target} is not a block of this function")
    for place, label in r.phis:
        _check_phi(r, place, sources.get(label, set()))
    if r.crossings:
        _check_order(r)
    r.function = r.nowhere
    r.homes, r.crossings = {}, {}


def _check_phi(r: Reader, at: int, sources: set[int]) -> None:
    words, module = r.words, r.module
    end = at + (words[at] >> 16)
    for id in words[at + 3 : end : 2]:
        if id not in module.type_of:
            raise module.fault(at, f"id {id} is not a value")
        if not _same(r, module.type_of[id], words[at + 1]):
            raise module.fault(at, f"id {id} is not of the phi's type")
    parents = words[at + 4 : end : 2]
    for id, parent in zip(words[at + 3 : end : 2], parents, strict=True):
        if r.homes.get(id, parent) != parent:
            r.crossings.setdefault((r.homes[id], parent), (id, at))
    if len(parents) != len(sources) or set(parents) != sources:
        raise module.fault(at, "its parents are not the blocks that branch to its block")


def _check_order(r: Reader) -> None:
    """A value that is used in another block is made on every way that leads there."""
    found = Dominators(r.entry_label, [(source, target) for source, target, _ in r.edges])
    if not found.complete:
        raise r.module.fault(r.function.at, "the function's control flow is too irregular")
    for (home, user), (id, at) in r.crossings.items():
        if found.reaches(user) and not found.dominates(home, user):
            raise r.module.fault(at, f"id {id} is made in block {home}, which not every way to its use leads through")


# Calls


def _call(r: Reader, at: int, n: int, op: int) -> None:
    for id in r.words[at + 4 : at + n]:
        r.use(at, id)
    r.called.setdefault(r.words[at + 3], at)
    r.call_sites.append(at)
    r.function.calls[r.words[at + 3]] = r.function.calls.get(r.words[at + 3], 0) + 1


def check_calls(r: Reader) -> None:
    """Calls fit their functions, and none calls itself by any way."""
    _check_arguments(r)
    module = r.module
    callers = dict.fromkeys(module.functions, 0)
    for function in module.functions.values():
        for callee in function.calls:
            callers[callee] += 1
    ready = [id for id, count in callers.items() if count == 0]
    order: list[Function] = []
    while ready:
        order.append(module.functions[ready.pop()])
        for callee in order[-1].calls:
            callers[callee] -= 1
            if callers[callee] == 0:
                ready.append(callee)
    if len(order) < len(module.functions):
        looped = next(id for id, count in callers.items() if count)
        raise module.fault(module.functions[looped].at, "the function calls itself, directly or through others")
    for function in reversed(order):
        inlined = [module.functions[callee].inlined * times for callee, times in function.calls.items()]
        function.inlined = min(len(function.body) + sum(inlined), 1 << 62)


def _check_arguments(r: Reader) -> None:
    module, words = r.module, r.words
    for at in r.call_sites:
        type_ = module.types[module.functions[words[at + 3]].type]
        given = words[at + 4 : at + (words[at] >> 16)]
        if not _same(r, type_.element, words[at + 1]) or len(given) != len(type_.members):
            raise module.fault(at, f"the call does not fit the type of function {words[at + 3]}")
        for id, wanted in zip(given, type_.members, strict=True):
            if not _same(r, module.type_of[id], wanted):
                raise module.fault(at, f"argument {id} is not of the parameter's type {wanted}")


# Memory


_READ_ONLY = frozenset((Storage.UNIFORM_CONSTANT, Storage.INPUT, Storage.PUSH_CONSTANT))


def _pointee(r: Reader, at: int, id: int, *, written: bool = False) -> Type:
    pointer = _type_of(r, id)
    if pointer.op != Op.TYPE_POINTER:
        raise r.module.fault(at, f"id {id} is not a pointer")
    if written and pointer.storage in _READ_ONLY:
        raise r.module.fault(at, f"id {id} points to memory that can only be read")
    return r.module.types[pointer.element]


def _load(r: Reader, at: int, n: int, op: int) -> None:
    if not _same(r, _pointee(r, at, r.words[at + 3]).id, r.words[at + 1]):
        raise r.module.fault(at, f"pointer {r.words[at + 3]} does not point to the result type")


def _store(r: Reader, at: int, n: int, op: int) -> None:
    if not _same(r, _pointee(r, at, r.words[at + 1], written=True).id, r.module.type_of[r.words[at + 2]]):
        raise r.module.fault(at, f"pointer {r.words[at + 1]} does not point to the type of the object")


def _copy_memory(r: Reader, at: int, n: int, op: int) -> None:
    target, source = _pointee(r, at, r.words[at + 1], written=True), _pointee(r, at, r.words[at + 2])
    if op == Op.COPY_MEMORY and target.same != source.same:
        raise r.module.fault(at, "target and source point to different types")


def _access_chain(r: Reader, at: int, n: int, op: int) -> None:
    module, words = r.module, r.words
    result, base = module.types[words[at + 1]], _type_of(r, words[at + 3])
    if base.op != Op.TYPE_POINTER or result.op != Op.TYPE_POINTER or base.storage != result.storage:
        raise module.fault(at, "base and result are not pointers of one storage class")
    first = 5 if op in (Op.PTR_ACCESS_CHAIN, Op.IN_BOUNDS_PTR_ACCESS_CHAIN) else 4
    if n < first:
        raise module.fault(at, "the element is missing")
    reached = base.element
    for id in words[at + 4 : at + n]:
        if _type_of(r, id).op != Op.TYPE_INT:
            raise module.fault(at, f"index {id} is not an integer")
    for id in words[at + first : at + n]:
        reached = _step(r, at, module.types[reached], r.constant_values.get(id), id)
    if not _same(r, reached, result.element):
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
    if not _same(r, found.id, wanted):
        raise r.module.fault(at, "the pointer does not point to the type of the value")


# Composites


def _extract(r: Reader, at: int, n: int, op: int) -> None:
    reached = r.module.type_of[r.words[at + 3]]
    for index in r.words[at + 4 : at + n]:
        reached = _literal_step(r, at, r.module.types[reached], index)
    if not _same(r, reached, r.words[at + 1]):
        raise r.module.fault(at, f"the indices lead to type {reached}")


def _insert(r: Reader, at: int, n: int, op: int) -> None:
    reached = r.module.type_of[r.words[at + 4]]
    if not _same(r, reached, r.words[at + 1]):
        raise r.module.fault(at, "result and composite differ in type")
    for index in r.words[at + 5 : at + n]:
        reached = _literal_step(r, at, r.module.types[reached], index)
    if not _same(r, reached, r.module.type_of[r.words[at + 3]]):
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
            if not _same(r, found.element if vector else part, type_.element):
                raise module.fault(at, "a part is not of the vector's component type")
        good = count == type_.count
    elif type_.op == Op.TYPE_STRUCT:
        good = len(parts) == len(type_.members) and all(map(lambda a, b: _same(r, a, b), parts, type_.members))
    elif type_.op in (Op.TYPE_MATRIX, Op.TYPE_ARRAY):
        length = type_.count if type_.op == Op.TYPE_MATRIX else r.constant_values.get(type_.count, len(parts))
        good = len(parts) == length and all(_same(r, part, type_.element) for part in parts)
    else:
        good = type_.op > 4000
    if not good:
        raise module.fault(at, f"{len(parts)} parts of these types do not make a value of type {type_.id}")


def _shuffle(r: Reader, at: int, n: int, op: int) -> None:
    result = r.module.types[r.words[at + 1]]
    a, b = _type_of(r, r.words[at + 3]), _type_of(r, r.words[at + 4])
    if not a.op == b.op == result.op == Op.TYPE_VECTOR or result.count != n - 5:
        raise r.module.fault(at, "operands and result must be vectors, with a component for each literal")
    if not (_same(r, a.element, result.element) and _same(r, b.element, result.element)):
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
    if not _same(r, r.words[at + 1], r.module.type_of[r.words[at + 3]]):
        raise r.module.fault(at, "operand and result differ in type")


def _select(r: Reader, at: int, n: int, op: int) -> None:
    condition = _type_of(r, r.words[at + 3])
    if condition.op == Op.TYPE_VECTOR:
        condition = r.module.types[condition.element]
    if condition.op != Op.TYPE_BOOL:
        raise r.module.fault(at, "the condition is not a boolean")
    for id in r.words[at + 4 : at + 6]:
        if not _same(r, r.words[at + 1], r.module.type_of[id]):
            raise r.module.fault(at, f"object {id} is not of the result type")



HANDLERS: dict[int, Callable[[Reader, int, int, int], None]] = {
    Op.FUNCTION: _function,
    Op.FUNCTION_PARAMETER: _parameter,
    Op.FUNCTION_END: _function_end,
    Op.FUNCTION_CALL: _call,
    Op.LABEL: _label,
    Op.BRANCH: _branch,
    Op.BRANCH_CONDITIONAL: _branch,
    Op.SWITCH: _branch,
    Op.LOOP_MERGE: _merge,
    Op.SELECTION_MERGE: _merge,
    Op.RETURN: _return,
    Op.RETURN_VALUE: _return,
    Op.PHI: _phi,
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
HANDLERS |= dict.fromkeys(_TERMINATORS - {Op.RETURN}, _terminate)
HANDLERS |= dict.fromkeys(OPERATORS, check_operator)
