"""Which variables an entry point uses, and what it does to their memory: reads, writes, neither, both.

Decorations rarely say it, so it is found by following pointers. Every id that is, or holds, a pointer is a node;
an edge leads from what is derived (an element's address, a copy, a choice of two, a parameter, a loaded pointer) to
what it is derived from. Loads, stores and atomics mark the node of their address, and marks run along the edges
to the variables. A node has two marks, so each edge is walked at most twice: linear, and nothing is cloned per call.

Within a function a variable of the module has a node of its own, so that the entry points that never reach the function
do not get its marks. What cannot be followed (an unknown instruction, a pointer stored where nothing can be
said about the place) marks both: a dependency too many costs a barrier, one too few costs a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vkqueue.errors import UnsupportedError
from vkqueue.kernels.constants import Constants
from vkqueue.kernels.grammar import SHAPES, Walk
from vkqueue.kernels.module import Decoration, Module, Op, Storage, Type

READ, WRITE = 1, 2
BOTH = READ | WRITE
NAMES = {0: "none", READ: "read", WRITE: "write", BOTH: "read_write"}

MAX_STEPS = 4_000_000
"""Functions and variables looked at for all entry points together; a module of many of each would take minutes."""

_DESCRIPTORS = frozenset((Storage.UNIFORM, Storage.STORAGE_BUFFER, Storage.UNIFORM_CONSTANT))

# Where the pointers are (word of the instruction), and what happens to the memory behind them.
_EFFECTS: dict[int, tuple[tuple[int, int], ...]] = {
    Op.ARRAY_LENGTH: ((3, 0),),
    Op.PTR_EQUAL: ((3, 0), (4, 0)),
    Op.PTR_NOT_EQUAL: ((3, 0), (4, 0)),
    Op.PTR_DIFF: ((3, 0), (4, 0)),
    Op.ATOMIC_LOAD: ((3, READ),),
    Op.ATOMIC_STORE: ((1, WRITE),),
    318: ((3, BOTH),),
    Op.ATOMIC_FLAG_CLEAR: ((1, WRITE),),
    4457: ((3, READ),),  # CooperativeMatrixLoadKHR
    4458: ((1, WRITE),),  # CooperativeMatrixStoreKHR
    5302: ((3, READ),),  # CooperativeVectorLoadNV
    5303: ((1, WRITE),),  # CooperativeVectorStoreNV
    5359: ((3, READ),),  # CooperativeMatrixLoadNV
    5360: ((1, WRITE),),  # CooperativeMatrixStoreNV
    6035: ((3, BOTH),),  # AtomicFAddEXT
    5614: ((3, BOTH),),  # AtomicFMinEXT
    5615: ((3, BOTH),),  # AtomicFMaxEXT
}
_EFFECTS |= dict.fromkeys(range(229, 243), ((3, BOTH),))

# Results that are as good as their operands: copies, choices, composites, casts.
_DERIVING = frozenset(
    (Op.COPY_OBJECT, Op.COPY_LOGICAL, Op.SELECT, Op.COMPOSITE_CONSTRUCT, Op.COMPOSITE_EXTRACT, Op.COMPOSITE_INSERT)
)
_CHAINS = frozenset((65, 66, 67, 70))
_CONTROL = frozenset(
    {
        Op.LABEL, Op.LINE, Op.NO_LINE, Op.NOP, Op.BRANCH, Op.BRANCH_CONDITIONAL, Op.SWITCH, Op.LOOP_MERGE,
        Op.SELECTION_MERGE, Op.RETURN, Op.UNDEF,
    }
)  # fmt: skip
_LOAD, _STORE = int(Op.LOAD), int(Op.STORE)
_GLSL_POINTERS = {35: WRITE, 51: WRITE}  # Modf, Frexp: a value, and where the other part of the result goes

_UNKNOWN = 0
"""Node of what was stored through pointers that lead to no one place."""
_ALL = -1
"""Node of every pointer stored anywhere."""


@dataclass(slots=True)
class Use:
    """What an entry point does.

    Attributes:
        variables: each variable of the module that it statically uses, and its marks.
        locals: types of the local variables of its functions, and how many there are of each.
        dynamic: an array of descriptors is indexed by something that is not constant, or out of its bounds.
    """

    variables: dict[int, int] = field(default_factory=dict)
    locals: dict[int, int] = field(default_factory=dict)
    dynamic: bool = False


class Access:
    """The marks of a whole module; `of` gives those of one entry point."""

    def __init__(self, module: Module, constants: Constants) -> None:
        self._module = module
        self._constants = constants
        self._words = module.words
        self._tracked = {id for id, type_ in module.types.items() if self._leads_to_buffer(type_)}
        self._constant_ids = set(module.constants)
        self._walk = Walk(module.words, module.data, {})
        self._bases: dict[int, list[int]] = {}
        self._marks: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        self._nodes = -2
        self._own: dict[int, dict[int, int]] = {}
        self._contents: dict[int, int] = {}
        self._returns: dict[int, int] = {}
        self._dynamic: set[int] = set()
        self._locals: dict[int, dict[int, int]] = {}
        self._steps = 0
        for function in module.functions.values():
            self._function(function.id, function.body)
        self._spread()

    def of(self, function: int) -> Use:
        """What the entry point that begins at a function does.

        Raises:
            UnsupportedError: the module has too many entry points, functions and variables.
        """
        use = Use()
        waiting, seen = [function], {function}
        while waiting:
            id = waiting.pop()
            own = self._own[id]
            self._steps += 1 + len(own) + len(self._module.functions[id].calls)
            if self._steps > MAX_STEPS:
                raise UnsupportedError("the module has too many entry points, functions and variables to be analysed")
            for variable, node in own.items():
                use.variables[variable] = use.variables.get(variable, 0) | self._marks.get(node, 0)
            for type_, count in self._locals.get(id, {}).items():
                use.locals[type_] = use.locals.get(type_, 0) + count
            use.dynamic = use.dynamic or id in self._dynamic
            for callee in self._module.functions[id].calls:
                if callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)
        self._add_initializers(use)
        return use

    def _add_initializers(self, use: Use) -> None:
        """A variable may begin as a pointer to another; what is done through it is done in any function."""
        waiting = list(use.variables)
        while waiting:
            start = self._module.variables[waiting.pop()].initializer
            if start in self._module.variables and start not in use.variables:
                use.variables[start] = BOTH
                waiting.append(start)
            elif start in use.variables:
                use.variables[start] = BOTH

    # Nodes and edges

    def _leads_to_buffer(self, type_: Type) -> bool:
        """Whether a value of a type can lead to descriptors; pointers to plain local memory cannot."""
        if type_.op != Op.TYPE_POINTER:
            return type_.holds_pointer
        pointee = self._module.types.get(type_.element)
        return type_.storage in _DESCRIPTORS or type_.storage > 4096 or pointee is None or pointee.holds_pointer

    def _node(self, function: int, id: int) -> int | None:
        """The node of an operand, None when it leads nowhere."""
        if id in self._module.variables:
            own = self._own[function]
            if id not in own:
                own[id] = self._new()
                self._roots[own[id]] = id
            return own[id]
        return id if self._module.type_of.get(id) in self._tracked else None

    def _new(self) -> int:
        self._nodes -= 1
        return self._nodes

    def _edge(self, derived: int, base: int | None) -> None:
        if base is not None:
            self._bases.setdefault(derived, []).append(base)

    def _mark(self, node: int | None, marks: int) -> None:
        if node is not None and marks:
            self._marks[node] = self._marks.get(node, 0) | marks

    def _content(self, pointer: int, *, stored: bool) -> int:
        """The node of the pointers kept behind a pointer."""
        root = self._roots.get(pointer)
        if root is None:
            return _UNKNOWN if stored else _ALL
        if root not in self._contents:
            self._contents[root] = self._new()
            self._edge(self._contents[root], _UNKNOWN)
        return self._contents[root]

    def _spread(self) -> None:
        waiting = list(self._marks)
        marks, bases = self._marks, self._bases
        while waiting:
            node = waiting.pop()
            for base in bases.get(node, ()):
                old = marks.get(base, 0)
                new = old | marks[node]
                if new != old:
                    marks[base] = new
                    waiting.append(base)

    # Instructions

    def _function(self, function: int, body: Sequence[int]) -> None:
        words, own = self._words, self._own
        own[function] = {}
        for at in body:
            op = words[at] & 0xFFFF
            if op == _LOAD:
                self._load(function, at)
            elif op == _STORE:
                self._store(function, at)
            elif op in _CHAINS:
                self._chain(function, at, op)
            elif op in _CONTROL:
                continue
            else:
                handler = _HANDLERS.get(op)
                if handler is not None:
                    handler(self, function, at)
                elif op in _EFFECTS:
                    for place, marks in _EFFECTS[op]:
                        self._mark(self._node(function, words[at + place]), marks)
                elif op in _DERIVING:
                    self._derive(function, at, self._operands(at))
                else:
                    self._other(function, at)

    def _operands(self, at: int) -> list[int]:
        """Ids of an instruction's operands."""
        words = self._words
        n, shape = words[at] >> 16, SHAPES[words[at] & 0xFFFF]
        if shape.rest == "?":
            return [words[place] for letter, place, _ in self._walk.operands(at, n, shape) if letter == "i"]
        ids = [words[at + place] for place in shape.ids]
        return ids + list(words[at + shape.low : at + n]) if shape.rest == "i" else ids

    def _derive(self, function: int, at: int, operands: Sequence[int]) -> None:
        """The result leads wherever an operand does; without a pointer in it this is an ordinary value."""
        nodes = [self._node(function, id) for id in operands]  # a variable is used even if it leads nowhere
        if self._words[at + 1] not in self._tracked:
            return
        result = self._words[at + 2]
        for node in nodes:
            self._edge(result, node)
        if len(operands) == 1:
            self._take_root(function, result, operands[0])

    def _take_root(self, function: int, result: int, base: int) -> None:
        root = base if base in self._module.variables else self._roots.get(base)
        if root is not None:
            self._roots[result] = root

    def _chain(self, function: int, at: int, op: int) -> None:
        words = self._words
        base, result = words[at + 3], words[at + 2]
        node = self._node(function, base)
        if node is None:
            return
        self._edge(result, node)
        self._take_root(function, result, base)
        pointer = self._module.types[self._module.type_of[base]]
        if pointer.storage in _DESCRIPTORS:
            self._check_index(function, at, pointer, 4, element=op in (67, 70))

    def _check_index(self, function: int, at: int, pointer: Type, first: int, *, element: bool) -> None:
        """Notes an index into an array of descriptors that is not constant."""
        module = self._module
        reached = module.types[pointer.element]
        block = self._block_of(reached)
        if block is None:
            return
        indices = self._words[at + first : at + (self._words[at] >> 16)]
        if element:
            self._dynamic.add(function)
            indices = indices[1:]
        for id in indices:
            if reached.id == block:
                return
            value = self._constants.integer(id) if id in self._constant_ids else None
            limit = self._constants.integer(reached.count) if reached.op == Op.TYPE_ARRAY else None
            if value is None or value < 0 or limit is None or value >= limit:
                self._dynamic.add(function)
            reached = module.types[reached.element]

    def _block_of(self, type_: Type) -> int | None:
        """The block that a descriptor, or an array of them, has; None within a block."""
        module = self._module
        while type_.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
            type_ = module.types[type_.element]
        if type_.op >= Op.TYPE_IMAGE and type_.op <= Op.TYPE_SAMPLED_IMAGE:
            return type_.id
        if type_.op != Op.TYPE_STRUCT:
            return None
        marked = (module.decoration(type_.id, which) for which in (Decoration.BLOCK, Decoration.BUFFER_BLOCK))
        return type_.id if any(value is not None for value in marked) else None

    def _load(self, function: int, at: int) -> None:
        words = self._words
        node = self._node(function, words[at + 3])
        if node is None:
            return
        self._mark(node, READ)
        if words[at + 1] in self._tracked:
            self._edge(words[at + 2], self._content(node, stored=False))

    def _store(self, function: int, at: int) -> None:
        self._put(function, self._words[at + 1], self._words[at + 2])

    def _put(self, function: int, pointer: int, value: int) -> None:
        node = self._node(function, pointer)
        self._mark(node, WRITE)
        kept = self._node(function, value)
        if node is not None and kept is not None:
            self._edge(self._content(node, stored=True), kept)
            self._edge(_ALL, kept)

    def _variable(self, function: int, at: int) -> None:
        """A local variable: a root when pointers are kept in it."""
        words = self._words
        count = self._locals.setdefault(function, {})
        count[words[at + 1]] = count.get(words[at + 1], 0) + 1
        if words[at + 1] in self._tracked:
            self._roots[words[at + 2]] = words[at + 2]
            if words[at] >> 16 > 4:
                self._put(function, words[at + 2], words[at + 4])

    def _copy_memory(self, function: int, at: int) -> None:
        words = self._words
        target, source = self._node(function, words[at + 1]), self._node(function, words[at + 2])
        self._mark(target, WRITE)
        self._mark(source, READ)
        if target is not None and source is not None:
            self._edge(self._content(target, stored=True), self._content(source, stored=False))

    def _phi(self, function: int, at: int) -> None:
        end = at + (self._words[at] >> 16)
        self._derive(function, at, self._words[at + 3 : end : 2])

    def _call(self, function: int, at: int) -> None:
        words = self._words
        callee = self._module.functions[words[at + 3]]
        for parameter, id in zip(callee.parameters, words[at + 4 : at + (words[at] >> 16)], strict=True):
            self._edge(parameter, self._node(function, id))
        if words[at + 1] in self._tracked:
            self._edge(words[at + 2], self._returned(callee.id))

    def _returned(self, function: int) -> int:
        if function not in self._returns:
            self._returns[function] = self._new()
        return self._returns[function]

    def _return(self, function: int, at: int) -> None:
        self._edge(self._returned(function), self._node(function, self._words[at + 1]))

    def _ext_inst(self, function: int, at: int) -> None:
        words = self._words
        name = self._module.sets[words[at + 3]]
        if name.startswith("NonSemantic.") or "DebugInfo" in name:
            return
        marks = _GLSL_POINTERS.get(words[at + 4], BOTH) if name == "GLSL.std.450" else BOTH
        for id in words[at + 5 : at + (words[at] >> 16)]:
            self._mark(self._node(function, id), marks)

    def _other(self, function: int, at: int) -> None:
        """An instruction of which nothing is known but its operands."""
        shape = SHAPES[self._words[at] & 0xFFFF]
        derived = self._words[at + 2] if shape.typed and self._words[at + 1] in self._tracked else None
        for id in self._operands(at):
            node = self._node(function, id)
            self._mark(node, BOTH)
            if derived is not None:
                self._edge(derived, node)
        if derived is not None:
            self._edge(derived, _ALL)


_HANDLERS: dict[int, Callable[[Access, int, int], None]] = {
    Op.VARIABLE: Access._variable,
    Op.COPY_MEMORY: Access._copy_memory,
    Op.COPY_MEMORY_SIZED: Access._copy_memory,
    Op.PHI: Access._phi,
    Op.FUNCTION_CALL: Access._call,
    Op.RETURN_VALUE: Access._return,
    Op.EXT_INST: Access._ext_inst,
    Op.EXT_INST_FORWARD: Access._ext_inst,
}


def narrowed(module: Module, variable: int, block: int, marks: int) -> int:
    """Marks less what decorations rule out, on the variable or on every member of its block."""
    count = len(module.types[block].members)
    for which, mark in ((Decoration.NON_WRITABLE, WRITE), (Decoration.NON_READABLE, READ)):
        everywhere = all(module.member_decoration(block, index, which) is not None for index in range(count))
        if module.decoration(variable, which) is not None or (count and everywhere):
            marks &= ~mark
    return marks
