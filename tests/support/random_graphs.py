"""Graphs by chance, what launches of them bind, and what they do one node after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from support.effects import KERNELS, LOCAL, UNIFORM, Kernel, launch, may_be_bound, overlap, signed
from support.reference import Bytes, Memory

if TYPE_CHECKING:
    from support.programs import Program

_NAMES = ("scale", "scale", "add", "increment", "shift", "mix", "add_uniform", "sets")
_ENDS = ("a", "b", "y", "z")
_TEMPORARIES = ("t", "u")
_OUTPUTS = frozenset("yz")

Ref = tuple[Any, int, int]
"""(name, or handle, or the bytes themselves; first, size)."""


@dataclass(slots=True)
class _Node:
    """A step. A scalar, the grid and a fill's value may be the name of a number that comes with the launch."""

    kernel: Kernel | None
    refs: list[Ref]
    scalars: list[Any] = field(default_factory=list)
    groups: Any = 1
    value: Any = None

    def definition(self, modules: dict[str, int], whole: dict[str, int]) -> dict[str, Any]:
        """As it is sent."""
        entries = [_entry(ref, whole) for ref in self.refs]
        if self.kernel is None:
            return {"copy": entries} if self.value is None else {"fill": entries[0], "value": _number(self.value)}
        if self.kernel.array:
            entries[-self.kernel.array :] = [{"array": entries[-self.kernel.array :]}]
        node: dict[str, Any] = {"kernel": modules[self.kernel.name], "args": entries, "grid": [_number(self.groups)]}
        if self.scalars:
            node["scalars"] = [_number(value if self.kernel.counts else _signed(value)) for value in self.scalars]
        return node

    def run(self, views: list[Bytes], numbers: dict[str, int]) -> None:
        """Its effect."""

        def known(value: Any) -> int:
            return numbers[value] if type(value) is str else value

        if self.kernel is not None:
            launch(self.kernel, views, [known(v) % (1 << 32) for v in self.scalars], known(self.groups))
        elif self.value is None:
            views[1][:] = views[0]
        else:
            views[0].view(np.uint32)[:] = np.uint32(known(self.value) % (1 << 32))


class RandomGraph:
    """A graph.

    Attributes:
        sizes: of its inputs, outputs and temporaries, by name, as far as nodes use them.
        fixed: handles that nodes name.
    """

    def __init__(self, program: Program) -> None:
        rng = program.rng
        self.program = program
        self.align = program.align
        large = rng.random() < program.mixture.large
        words = (1 << 18) + rng.randrange(3) if large else rng.choice([16, 64, 65, 200, 1000, 3000])
        odd = rng.choice([0, 0, 0, 1, 3])
        self._whole = {name: 4 * words + odd for name in _ENDS} | {name: 4 * words for name in _TEMPORARIES}
        self._full: set[str] = set()  # temporaries with defined contents
        self.numbers: dict[str, str] = {}
        self.fixed: set[int] = set()
        self.nodes: list[_Node] = []
        kinds = _NAMES if rng.random() < 0.4 else (*_NAMES, "copy", "copy", "fill")
        wanted = rng.randrange(1, 8)
        for _ in range(200):
            if len(self.nodes) == wanted:
                break
            node = self._node(rng.choice(kinds))
            if node is not None and self._may(node, {}):
                self._note(node)
                self.nodes.append(node)
        if not self.nodes:
            self.nodes.append(_Node(None, [("y", 0, 4 * words)], value=7))
        used = {ref[0] for node in self.nodes for ref in node.refs if type(ref[0]) is str}
        for name in sorted(used & _OUTPUTS):
            if name not in self._written():
                self.nodes.append(_Node(KERNELS["increment"], [(name, 0, min(4 * words, 4 * LOCAL))], groups=1))
        self.sizes = {name: size for name, size in self._whole.items() if name in used | {"y"} & self._written()}

    def _written(self) -> set[str]:
        found = set()
        for node in self.nodes:
            if node.kernel is None:
                found.add(node.refs[-1][0])
            else:
                found |= {r[0] for r, a in zip(node.refs, node.kernel.bindings, strict=True) if "w" in a}
        return {name for name in found if type(name) is str}

    # Making nodes

    def _node(self, kind: str) -> _Node | None:
        rng = self.program.rng
        size = self._whole["t"]
        first = 0
        if rng.random() < 0.4:
            first = self.align * rng.randrange(max(size // self.align // 2, 1))
            size = 4 * rng.randint(1, max((size - first) // 4, 1))
        if kind == "fill":
            ref = self._ref("w", first, size)
            return ref and _Node(None, [ref], value=self._late("start", "int32", rng.randrange(1 << 31)))
        if kind == "copy":
            refs = [self._ref("r", first, size), self._ref("w", first, size)]
            if rng.random() < 0.5 and size > 8 and not any(ref and ref[0] in _TEMPORARIES for ref in refs):
                refs = [ref and (ref[0], ref[1] + rng.randrange(4), size - 5) for ref in refs]
            return None if None in refs else _Node(None, refs)  # type: ignore[arg-type]
        kernel = KERNELS[kind]
        refs = [self._ref(a, first, UNIFORM if a == "u" else size, kernel=True) for a in kernel.bindings]
        if None in refs:
            return None
        if "u" in kernel.bindings and any(self._begins(ref, a) for ref, a in zip(refs, kernel.bindings, strict=True)):
            return None  # it may leave some of it as it was, which is anything
        scalars: list[Any] = [rng.randrange(1 << 31) for _ in range(kernel.scalars)]
        if kernel.counts:
            scalars = [size // 4, self._late("m", "uint32", scalars[1])]
        elif scalars:
            scalars = [self._late("k", "int32", scalars[0])]
        groups = size // 4 // LOCAL if "u" in kernel.bindings else -(-size // 4 // LOCAL)
        return _Node(kernel, refs, scalars, groups)  # type: ignore[arg-type]

    def _late(self, name: str, type_: str, value: int) -> Any:
        """A number, or the name of one that comes with the launch."""
        return (name, type_) if self.program.rng.random() < 0.3 else value

    def _ref(self, access: str, first: int, size: int, *, kernel: bool = False) -> Ref | None:
        rng = self.program.rng
        act = rng.random()
        if act < 0.12 and (place := self.program.place(size)) is not None and place[0] not in self.program.shared:
            return place
        if act < 0.2 and kernel and access in ("r", "u") and size <= 4096:
            return self.program.bytes_of(size), 0, size
        names = [*_ENDS, *(t for t in _TEMPORARIES if t in self._full)]
        if access != "r":
            names += [t for t in _TEMPORARIES if first == 0 and size == self._whole[t]]
        if access == "u":
            names = [n for n in names if n in _ENDS or n in self._full]
        name = rng.choice(names)
        return name, min(first, self._whole[name] // self.align * self.align), size

    def _begins(self, ref: Ref | None, access: str) -> bool:
        """Whether a temporary is written without having been read or written before."""
        return ref is not None and access == "w" and ref[0] in _TEMPORARIES and ref[0] not in self._full

    def _note(self, node: _Node) -> None:
        """What is known once it has run."""
        for index, ref in enumerate(node.refs):
            access = node.kernel.bindings[index] if node.kernel is not None else "w"
            if ref[0] in _TEMPORARIES and "w" in access:
                self._full.add(ref[0])
            if type(ref[0]) is int:
                self.fixed.add(ref[0])
        for place, value in enumerate(node.scalars):
            if type(value) is tuple:
                self.numbers[value[0]] = value[1]
                node.scalars[place] = value[0]
        if type(node.value) is tuple:
            self.numbers[node.value[0]] = node.value[1]
            node.value = node.value[0]

    def _may(self, node: _Node, bound: dict[str, Any]) -> bool:
        """Whether a node's effect, with what is bound, hangs on no order but that of the nodes."""
        if any(type(name) is str and first + size > self._whole[name] for name, first, size in node.refs):
            return False
        places = [_place(ref, bound) for ref in node.refs]
        if node.kernel is not None:
            return may_be_bound(node.kernel, places)
        return len(places) == 1 or not overlap(places[0], places[1])

    # The wire

    def definition(self) -> dict[str, Any]:
        """The parameters of graph.create."""
        params: dict[str, Any] = {
            "nodes": [node.definition(self.program.modules, self._whole) for node in self.nodes],
            "inputs": {name: size for name, size in self.sizes.items() if name in "ab"},
            "outputs": {name: size for name, size in self.sizes.items() if name in _OUTPUTS},
            "temporaries": {name: size for name, size in self.sizes.items() if name in _TEMPORARIES},
        }
        if self.numbers:
            params["scalars"] = dict(self.numbers)
        return params

    def bind(self, program: Program) -> Any:
        """(parameters of a launch, its effect, buffers that it needs); None if nothing was found to bind."""
        for _ in range(5):
            found = self._bound(program)
            if found is not None and all(self._may(node, found[1]) for node in self.nodes):
                return self._launch(program, *found)
        return None

    def _bound(self, program: Program) -> tuple[dict[str, Any], dict[str, Any]] | None:
        rng, written = program.rng, self._written()
        entries: dict[str, Any] = {}
        bound: dict[str, Any] = {}
        for name, size in self.sizes.items():
            if name in _TEMPORARIES:
                continue
            place = program.place(size) if rng.random() < 0.75 else None
            if place is not None:
                handle, first, _ = bound[name] = place
                entries[name] = handle if first == 0 and rng.random() < 0.5 else [handle, first, size]
                continue
            program.bytes += size
            if name in _OUTPUTS:
                bound[name] = "out", np.zeros(size, np.uint8)
                if rng.random() < 0.5:
                    entries[name] = {"out": size}
                continue
            data = program.bytes_of(size)
            kind = "inout" if name in written and rng.random() < 0.6 else "in"
            entries[name], bound[name] = {kind: data}, (kind, np.frombuffer(data, np.uint8))
        return entries, bound

    def _launch(self, program: Program, entries: dict[str, Any], bound: dict[str, Any]) -> Any:
        rng = program.rng
        numbers = {
            name: rng.randrange(1 << 31) if type_ == "uint32" else signed(rng.randrange(1 << 32))
            for name, type_ in self.numbers.items()
        }
        params: dict[str, Any] = {"buffers": entries}
        if numbers:
            params["scalars"] = numbers
        needs = tuple({place[0] for place in bound.values() if len(place) == 3} | self.fixed)

        def effect(memory: Memory) -> Any:
            where: dict[Any, Bytes] = {n: np.zeros(s, np.uint8) for n, s in self.sizes.items() if n in _TEMPORARIES}
            for name, place in bound.items():
                where[name] = place[1].copy() if len(place) == 2 else memory[place[0]][place[1] : place[1] + place[2]]
            for node in self.nodes:
                node.run([_view(ref, where, memory) for ref in node.refs], numbers)
            return {"outputs": {n: where[n] for n, place in bound.items() if len(place) == 2 and place[0] != "in"}}

        return params, effect, needs


def _signed(value: Any) -> Any:
    return value if type(value) is str else signed(value)


def _number(value: Any) -> Any:
    return {"scalar": value} if type(value) is str else value


def _entry(ref: Ref, whole: dict[str, int]) -> Any:
    name, first, size = ref
    if isinstance(name, bytes):
        return {"in": name}
    return name if type(name) is str and first == 0 and size == whole[name] else [name, first, size]


def _place(ref: Ref, bound: dict[str, Any]) -> Any:
    """A place, as `may_be_bound` wants it: of what is not bound, in a buffer of the name."""
    name, first, size = ref
    if isinstance(name, bytes):
        return ("in", name)
    place = bound.get(name, (name, 0, 0)) if type(name) is str else ref
    if type(name) is int:
        return ref
    return (name, first, size) if len(place) == 2 else (place[0], place[1] + first, size)


def _view(ref: Ref, where: dict[Any, Bytes], memory: Memory) -> Bytes:
    name, first, size = ref
    if isinstance(name, bytes):
        return np.frombuffer(name, np.uint8).copy()
    return where[name][first : first + size] if type(name) is str else memory[name][first : first + size]


__all__ = ["RandomGraph"]
