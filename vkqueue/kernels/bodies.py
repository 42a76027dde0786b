"""Handlers of what functions consist of: blocks and the edges between them, phis, calls."""

from __future__ import annotations

from collections.abc import Callable

from vkqueue.kernels.flow import Dominators
from vkqueue.kernels.module import Function, Op
from vkqueue.kernels.operators import OPERATORS, check_operator
from vkqueue.kernels.reader import FUNCTIONS, Reader

_TERMINATORS = frozenset(
    {Op.KILL, Op.RETURN, Op.UNREACHABLE, 4416, 4448, 4449, 5121, 5294}
)  # TerminateInvocation, IgnoreIntersection, TerminateRay, Abort, EmitMeshTasks


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
    if r.type_of(id).op != op:
        raise r.module.fault(at, f"id {id} has the wrong type to decide by")


def _merge(r: Reader, at: int, n: int, op: int) -> None:
    r.targets += [(id, at) for id in r.words[at + 1 : at + (3 if op == Op.LOOP_MERGE else 2)]]
    r.merge_at = at


def _return(r: Reader, at: int, n: int, op: int) -> None:
    wanted = r.module.types[r.module.types[r.function.type].element]
    if op == Op.RETURN and wanted.op != Op.TYPE_VOID:
        raise r.module.fault(at, "the function has to return a value")
    if op == Op.RETURN_VALUE and not r.same_type(wanted.id, r.module.type_of[r.words[at + 1]]):
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
        if not r.same_type(module.type_of[id], words[at + 1]):
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
        if not r.same_type(type_.element, words[at + 1]) or len(given) != len(type_.members):
            raise module.fault(at, f"the call does not fit the type of function {words[at + 3]}")
        for id, wanted in zip(given, type_.members, strict=True):
            if not r.same_type(module.type_of[id], wanted):
                raise module.fault(at, f"argument {id} is not of the parameter's type {wanted}")


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
}
HANDLERS |= dict.fromkeys(_TERMINATORS - {Op.RETURN}, _terminate)
HANDLERS |= dict.fromkeys(OPERATORS, check_operator)
