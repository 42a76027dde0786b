"""A graph as it is sent, checked: nodes through the plans of their kernels, over places instead of buffers.

A *place* is whatever memory a node may name: an input or output that gets its buffer with each launch, a temporary, a
buffer named by its handle, or constant data of a node's own. The steps that come out are whole but for what
`jobs.graph` decides (order, barriers, where temporaries lie) and for numbers that come with a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vkqueue.errors import InvalidError, NotFoundError, VkqueueError, brief
from vkqueue.kernels.graph_plan import (
    BUFFER,
    CONSTANT,
    INPUT,
    OUTPUT,
    TEMPORARY,
    GraphPlan,
    LateGrid,
    LateScalars,
    LateWord,
    Place,
    Step,
    padded,
)
from vkqueue.kernels.plan import Binding, Bound, BoundBuffer, Plan
from vkqueue.kernels.scalars import TYPES
from vkqueue.model import COPY, DISPATCH, FILL, WRITE, GraphNode, Range

# vkCmdUpdateBuffer's largest piece; what is larger belongs into a buffer.
_MAX_CONSTANT_BYTES = 65_536
_WORD_MAX = 2**32 - 1
_FORMS = ("kernel", "copy", "fill")
_KEYS = {
    "kernel": {"kernel", "args", "scalars", "grid", "launch", "specialization", "label"},
    "copy": {"copy", "label"},
    "fill": {"fill", "value", "label"},
}
_MAX_LABEL = 256
# A number of each type that is right for every member which takes such numbers.
_SAMPLES: dict[str, Any] = {"float16": 1.0, "float32": 1.0, "float64": 1.0, "bool32": True}

FindKernel = Callable[[Mapping[str, Any]], tuple[Plan, Any]]
"""A node's plan, and the caller's object for the kernel."""
FindBuffer = Callable[[Any, str], BoundBuffer]


def check_graph(params: Mapping[str, Any], find_kernel: FindKernel, find_buffer: FindBuffer) -> GraphPlan:
    """Check the parameters of `graph.create`.

    Raises:
        VkqueueError: what is wrong, with the node or name; what the two functions raise.
    """
    return _Checker(params, find_kernel, find_buffer).plan()


class _Checker:
    """One graph while it is checked."""

    def __init__(self, params: Mapping[str, Any], find_kernel: FindKernel, find_buffer: FindBuffer) -> None:
        self._find_kernel = find_kernel
        self._find_buffer = find_buffer
        self._nodes: list[Any] = params["nodes"]
        self._places: list[Place] = []
        self._symbols: dict[str, Place] = {}
        self._handles: dict[int, Place] = {}
        self._steps: list[Step] = []
        self._constant_bytes = 0
        self._scalars: dict[str, str] = dict(params.get("scalars") or {})
        for name, type_ in self._scalars.items():
            if type_ not in TYPES:
                raise InvalidError(f"scalars: {name}: no type {brief(type_)}; there are {', '.join(sorted(TYPES))}")
        for key, role in (("inputs", INPUT), ("outputs", OUTPUT), ("temporaries", TEMPORARY)):
            for name, size in (params.get(key) or {}).items():
                if not name or name in self._symbols:
                    raise InvalidError(f"{key}: {brief(name)}: a name is not empty, and names one thing only")
                self._symbols[name] = self._new_place(role, name, size)

    def plan(self) -> GraphPlan:
        """The checked graph."""
        if not self._nodes:
            raise InvalidError("nodes: a graph has one node at least")
        for index, node in enumerate(self._nodes):
            try:
                self._add(node)
            except VkqueueError as error:
                raise type(error)(f"nodes[{index}]: {error.message}", error.data) from error
        for place in self._places:
            if place.role == OUTPUT and place.writes is None:
                raise InvalidError(f"outputs: no node writes {place.name!r}")
        return GraphPlan(self._places, self._steps, self._scalars, len(self._nodes))

    def _new_place(self, role: str, name: str, size: int, buffer: Any = None, handle: int = 0) -> Place:
        place = Place(len(self._places) + 1, role, name, size, buffer, handle)
        self._places.append(place)
        return place

    # Nodes

    def _add(self, node: Mapping[str, Any]) -> None:
        node = {key: value for key, value in node.items() if value is not None}
        forms = [form for form in _FORMS if form in node]
        if len(forms) != 1:
            raise InvalidError(f"a node has one of {', '.join(_FORMS)}; this one has {', '.join(forms) or 'none'}")
        for key in node:
            if key not in _KEYS[forms[0]]:
                raise InvalidError(f"a {forms[0]} node takes no {brief(key)}; it takes {', '.join(_KEYS[forms[0]])}")
        label = node.get("label") or ""
        if type(label) is not str:
            raise InvalidError(f"label: expected a string, got {brief(label)}")
        if forms[0] == "kernel":
            self._add_kernel(node, label[:_MAX_LABEL])
        elif forms[0] == "copy":
            self._add_copy(node["copy"], label[:_MAX_LABEL])
        else:
            self._add_fill(node, label[:_MAX_LABEL])

    def _add_kernel(self, node: Mapping[str, Any], label: str) -> None:
        plan, kernel = self._find_kernel(node)
        args = node.get("args")
        bound = plan.bind([self._translated(a) for a in args] if type(args) is list else args, self._found)  # type: ignore[arg-type]
        for (id, _, _), binding in zip(bound.entries, _descriptors(plan), strict=True):
            if id:
                place = self._places[id - 1]
                place.align = max(place.align, binding.align)
        scalars = self._scalar_values(plan, node.get("scalars"))
        constants = plan.scalars.pack(scalars if type(scalars) is not list else self._samples(scalars))
        if plan.uniform is not None:
            plan.provide(bound, constants)
        block = plan.uniform is not None
        late = LateScalars(plan.scalars, scalars, block) if type(scalars) is list and _refers(scalars) else None
        entries = self._put_constants(bound, late if block else None)
        grid, groups = self._grid(plan, node)
        self._append(
            Step(
                GraphNode(
                    DISPATCH, entries, tuple(map(_lowered, bound.reads)), tuple(map(_lowered, bound.writes)),
                    layout=plan.layout, constants=b"" if block else constants, grid=grid,
                    label=label or plan.name,
                ),
                kernel,
                late=None if block else late,
                late_grid=groups,
            )
        )  # fmt: skip

    def _add_copy(self, value: Any, label: str) -> None:
        if type(value) is not list or len(value) != 2:
            raise InvalidError(f"copy: expected [source, target], got {brief(value)}")
        source, target = self._range(value[0], "copy: source"), self._range(value[1], "copy: target")
        if source[2] != target[2]:
            raise InvalidError(f"copy: {source[2]} bytes do not fit {target[2]}; give ranges of one size")
        size = source[2]
        if source[0] == target[0] and source[1] < target[1] + size and target[1] < source[1] + size and size:
            raise InvalidError("copy: the two ranges overlap")
        reads, writes = (_extent(source),) if size else (), (_extent(target),) if size else ()
        self._append(Step(GraphNode(COPY, (source, target), reads, writes, label=label or "copy")))

    def _add_fill(self, node: Mapping[str, Any], label: str) -> None:
        value = node.get("value")
        target = self._range(node["fill"], "fill")
        if target[1] % 4 or target[2] % 4:
            raise InvalidError(f"fill: {target[2]} bytes from {target[1]} on; both must be multiples of 4")
        place = self._places[target[0]]
        place.align = max(place.align, 4)
        name = LateWord(self._reference(value)) if type(value) is dict else None
        if name is not None:
            word = name.resolve(dict.fromkeys((name.name,), self._samples([value])[0]), self._scalars)
        elif value is None or (type(value) is int and 0 <= value <= _WORD_MAX):
            word = value or 0
        else:
            raise InvalidError(f"value: expected a 32-bit word (0 to {_WORD_MAX}) or a scalar, got {brief(value)}")
        writes = (_extent(target),) if target[2] else ()
        self._append(Step(GraphNode(FILL, (target,), (), writes, data=word, label=label or "fill"), late=name))

    def _append(self, step: Step) -> None:
        node = step.node
        written = {place for place, _, _ in node.writes}
        for index, first, end in node.reads:
            place = self._places[index]
            if place.role == TEMPORARY and place.writes is None:
                if index not in written:
                    raise InvalidError(f"{place.label} is read before any node writes it; fill or write it first")
                self._zero(index, place)
            place.reads = _joined(place.reads, first, end)
        for index, first, end in node.writes:
            place = self._places[index]
            place.writes = _joined(place.writes, first, end)
        self._steps.append(step)

    def _zero(self, index: int, place: Place) -> None:
        """A temporary that is first met by a node that reads and writes it begins as zeros."""
        size = -(-place.size // 4) * 4  # it has room for that
        place.writes = (0, size)
        writes = ((index, 0, size),)
        self._steps.append(Step(GraphNode(FILL, writes, (), writes, label=f"zero {place.name}")))

    # Arguments

    def _translated(self, entry: Any) -> Any:
        """An entry of `args` with negative numbers for names, which is what `_found` takes."""
        if type(entry) is str:
            return -self._symbol(entry).id
        if type(entry) is list and entry and type(entry[0]) is str:
            place = self._symbol(entry[0])
            self._check_range(place, entry)
            return [-place.id, *entry[1:]]
        if type(entry) is dict and type(entry.get("array")) is list:
            return {**entry, "array": [self._translated(e) for e in entry["array"]]}
        self._check_handle(entry[0] if type(entry) is list and entry else entry)
        return entry

    @staticmethod
    def _check_handle(handle: Any) -> None:
        if type(handle) is int and handle < 0:
            raise NotFoundError(f"no buffer {handle} on this connection", {"handle": handle})

    def _symbol(self, name: str) -> Place:
        place = self._symbols.get(name)
        if place is None:
            known = ", ".join(list(self._symbols)[:16]) or "none"
            raise InvalidError(f"no input, output or temporary is called {brief(name)}; there are {known}")
        return place

    @staticmethod
    def _check_range(place: Place, entry: Sequence[Any]) -> None:
        if len(entry) != 3 or any(type(v) is not int for v in entry[1:]):
            raise InvalidError(f"a range is [name or buffer, offset, size], got {brief(entry)}")
        _, offset, size = entry
        if offset < 0 or size < 0 or offset + size > place.size:
            raise InvalidError(
                f"range {offset} + {size} lies outside {place.label} of {place.size} bytes",
                {"offset": offset, "size": size, "buffer_size": place.size},
            )

    def _found(self, handle: Any, label: str) -> Place:
        if type(handle) is int and handle < 0:
            return self._places[-handle - 1]
        buffer = self._find_buffer(handle, label)
        place = self._handles.get(handle)
        if place is None:
            place = self._handles[handle] = self._new_place(BUFFER, f"buffer {handle}", buffer.size, buffer, handle)
        return place

    def _range(self, entry: Any, what: str) -> Range:
        """(place, offset, size) of a copy's or fill's operand."""
        entry = self._translated(entry)
        if type(entry) is int:
            place = self._found(entry, what)
            return place.id - 1, 0, place.size
        if type(entry) is not list or not entry:
            raise InvalidError(f"{what}: expected a name, a buffer or [one of these, offset, size], got {brief(entry)}")
        place = self._found(entry[0], what)
        self._check_range(place, entry)
        return place.id - 1, entry[1], entry[2]

    def _put_constants(self, bound: Bound, late: LateScalars | None) -> tuple[tuple[int, int, int], ...]:
        """The descriptors, with a place for each entry that brings data; a step puts the data there.

        Args:
            late: the last of them, if it is a uniform buffer of scalars that come with each launch.
        """
        places: list[int] = []
        for number, (kind, value) in enumerate(bound.payload):
            if kind not in ("in", "uniform"):
                raise InvalidError(f"args: no {{{kind!r}: …}} in a graph: name an output, a temporary or a buffer")
            self._constant_bytes += len(value)
            if self._constant_bytes > _MAX_CONSTANT_BYTES:
                raise InvalidError(
                    f"args: the graph's own data is more than {_MAX_CONSTANT_BYTES} bytes; create buffers for it",
                    {"limit": _MAX_CONSTANT_BYTES},
                )
            place = self._new_place(CONSTANT, "constant data", len(value))
            data = padded(bytes(value))
            written = ((place.id - 1, 0, len(data)),)
            step = Step(GraphNode(WRITE, written, (), written if data else (), data=data, label="constants"))
            if number == len(bound.payload) - 1:
                step.late = late
            if data:
                self._append(step)
            places.append(place.id - 1)
            if value:
                bound.reads.append((place.id, 0, len(value)))
        return tuple(
            (id - 1, offset, size) if id else (places[offset], 0, size) for id, offset, size in bound.entries
        )

    # Numbers that come with a launch

    def _scalar_values(self, plan: Plan, given: Any) -> Any:
        """Scalars as they came, or flattened in member order where some come with a launch."""
        if type(given) is dict and any(_refers(value) for value in given.values()):
            return plan.scalars.listed(given)
        return given

    def _samples(self, values: list[Any]) -> list[Any]:
        """The same with a number in each scalar's place, to check the rest by."""
        if not _refers(values):
            return values
        return [_SAMPLES.get(self._scalars[self._reference(v)], 1) if type(v) is dict else v for v in values]

    def _reference(self, value: Mapping[str, Any]) -> str:
        name = value.get("scalar")
        if len(value) != 1 or type(name) is not str:
            raise InvalidError(f"expected a number or {{'scalar': name}}, got {brief(value)}")
        if name not in self._scalars:
            raise InvalidError(f"the graph has no scalar {brief(name)}; it has {', '.join(self._scalars) or 'none'}")
        return name

    def _grid(self, plan: Plan, node: Mapping[str, Any]) -> tuple[tuple[int, int, int], LateGrid | None]:
        if ("grid" in node) == ("launch" in node):
            raise InvalidError("give one of grid and launch")
        if "launch" in node:
            return plan.launch(node["launch"]), None
        grid = node["grid"]
        if type(grid) is list and _refers(grid):
            return plan.grid(self._samples(grid)), LateGrid(plan, grid)
        return plan.grid(grid), None


def _descriptors(plan: Plan) -> list[Binding]:
    """The binding of each descriptor of `Bound.entries`, before a uniform buffer of scalars joins them."""
    return [binding for binding in plan.bindings for _ in range(binding.count)]


def _refers(values: Any) -> bool:
    """Whether a value, or one of a list, is {"scalar": name}."""
    return type(values) is dict or (type(values) is list and any(type(v) is dict for v in values))


def _lowered(range: Range) -> Range:
    return range[0] - 1, range[1], range[2]


def _extent(range: Range) -> Range:
    """(place, first byte, end byte) of (place, offset, size)."""
    return range[0], range[1], range[1] + range[2]


def _joined(known: tuple[int, int] | None, first: int, end: int) -> tuple[int, int]:
    return (first, end) if known is None else (min(known[0], first), max(known[1], end))
