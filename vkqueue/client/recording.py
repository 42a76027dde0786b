"""Calls of kernels that are noted instead of run, for graphs.

Inside `with gpu.graph() as g:` calls of kernels are noted instead of run. Their arguments are *symbols*: `g.input`,
`g.output` and `g.temporary` give arrays that have no memory yet, `g.scalar` a number without a value. In
`with gpu.capture() as g:` calls keep their ordinary device arrays, each of which becomes an input of the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkqueue.client.arguments import plain
from vkqueue.client.array import BaseDeviceArray, Handle, Shape, as_shape, numpy_dtype
from vkqueue.client.core import Core
from vkqueue.client.launch import LaunchPlan
from vkqueue.client.signature import OPTIONS, Binding
from vkqueue.errors import InvalidError, VkqueueError, brief

LAUNCH_OPTIONS = ("priority", "deadline", "after", "timing", "label")
_NODE_OPTIONS = frozenset({"grid", "elements", "launch", "scalars", "specialization", "label"})
_TYPES = {
    "bool": "bool32", **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float16": "float16", "float32": "float32", "float64": "float64",
}  # fmt: skip

class SymbolHandle:
    """What a symbol has in place of a buffer; see `array.Handle`."""

    __slots__ = ("dead", "fault", "id", "owner", "recording", "size", "usable")

    def __init__(self, recording: Recording, name: str, size: int) -> None:
        self.recording = recording
        self.owner: object = recording.core
        self.id = name
        self.size = size
        self.dead = False
        self.fault: VkqueueError | None = None
        self.usable = False  # no launch that was packed before may be sent with it

    def check(self, what: str) -> None:
        """Raise unless its graph is being recorded here."""
        if active(self.recording.core) is not self.recording:
            raise InvalidError(
                f"{what}: {self.id!r} belongs to a graph: use it inside its `with` block; to run the graph, call it "
                "with arrays for its inputs"
            )


class Symbol(BaseDeviceArray):
    """Memory that a graph names: an input, an output or a temporary. Slices and views are parts of it."""

    __slots__ = ()

    def __getitem__(self, key: object) -> Symbol:
        shape, offset = self.geometry(key)
        return Symbol(self.handle, shape, self.dtype, offset)

    def view(self, dtype: npt.DTypeLike | None = None, shape: Shape = -1) -> Symbol:
        """The same memory as another dtype or shape."""
        dims, kind = self.reshaped(shape, dtype)
        return Symbol(self.handle, dims, kind, self.offset)

    def reshape(self, *shape: int) -> Symbol:
        """The same memory in another shape; one size may be -1."""
        return self.view(None, shape)

    def __repr__(self) -> str:
        return f"<{self.handle.id!r} of a graph: {self.shape} {self.dtype}>"


@dataclass(frozen=True, slots=True)
class ScalarSymbol:
    """A number that comes with each launch of a graph."""

    name: str
    type: str

    @property
    def sample(self) -> int | float | bool:
        """A number of its kind, to check by."""
        return True if self.type == "bool32" else 1.0 if self.type.startswith("float") else 1

    def wire(self) -> dict[str, str]:
        return {"scalar": self.name}


_recording: ContextVar[Recording | None] = ContextVar("vkqueue_recording", default=None)
_lock = threading.Lock()  # of the counts in `Core.recordings`


def active(core: Core) -> Recording | None:
    """The graph of this connection that this thread or task is recording."""
    recording = _recording.get()
    return recording if recording is not None and recording.core is core else None


class Recording:
    """Notes nodes.

    Args:
        core: of the connection.
        capture: whether device arrays become inputs; else they are the same in every launch.
    """

    def __init__(self, core: Core, capture: bool) -> None:
        self.core = core
        self.capture = capture
        self.inputs: dict[str, Symbol] = {}
        self.outputs: dict[str, Symbol] = {}
        self.temporaries: dict[str, Symbol] = {}
        self.scalars: dict[str, ScalarSymbol] = {}
        self.nodes: list[dict[str, Any]] = []
        self.written: set[str] = set()
        self.captured: dict[int, str] = {}  # handle -> name of the input
        self.arrays: dict[str, BaseDeviceArray] = {}  # of captured inputs
        self.fixed: list[BaseDeviceArray] = []
        self.modules: list[Handle] = []
        self._token: Token[Recording | None] | None = None

    def begin(self) -> None:
        """Calls of this thread or task are noted from here on."""
        if active(self.core) is not None:
            raise InvalidError("another graph of this connection is being recorded here; end its `with` block first")
        if self.nodes or self._token is not None:
            raise InvalidError("this graph was recorded; make another with graph() or capture()")
        self._token = _recording.set(self)
        with _lock:
            self.core.recordings += 1

    def end(self) -> None:
        """They are run again."""
        assert self._token is not None
        _recording.reset(self._token)
        with _lock:
            self.core.recordings -= 1

    # Names

    def symbol(self, table: dict[str, Symbol], name: str, shape: Shape, dtype: npt.DTypeLike) -> Symbol:
        """A new name for memory."""
        self._check_name(name)
        dims, kind = as_shape(shape), numpy_dtype(dtype)
        made = Symbol(SymbolHandle(self, name, 0), dims, kind)  # type: ignore[arg-type]  # as far as it is used
        made.handle.size = made.nbytes
        table[name] = made
        return made

    def scalar(self, name: str, dtype: npt.DTypeLike) -> ScalarSymbol:
        """A new name for a number."""
        self._check_name(name)
        kind = numpy_dtype(dtype).name
        if kind not in _TYPES:
            raise InvalidError(f"scalar {name!r}: no kernel takes a {kind}; there are {', '.join(_TYPES)}")
        self.scalars[name] = ScalarSymbol(name, _TYPES[kind])
        return self.scalars[name]

    def unused_name(self, stem: str) -> str:
        """A name that is not taken."""
        number = 0
        while self._taken(f"{stem}{number}"):
            number += 1
        return f"{stem}{number}"

    def _taken(self, name: str) -> bool:
        return any(name in table for table in (self.inputs, self.outputs, self.temporaries, self.scalars))

    def _check_name(self, name: str) -> None:
        if active(self.core) is not self:
            raise InvalidError("a graph gets its inputs, outputs, temporaries and scalars inside its `with` block")
        if self.capture:
            raise InvalidError("a captured graph gets its inputs from the calls inside; use graph() to name them")
        if not isinstance(name, str) or not name.isidentifier() or name in OPTIONS:
            raise InvalidError(f"a name in a graph is an identifier, and none of {', '.join(OPTIONS)}; got {name!r}")
        if self._taken(name):
            raise InvalidError(f"the graph has a {name!r} already")

    # Nodes

    def call(self, plan: LaunchPlan, args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Note a call of a kernel.

        Raises:
            InvalidError: it cannot be called so, or not in a graph.
        """
        for name in keywords:
            if name in OPTIONS and name not in _NODE_OPTIONS:
                raise InvalidError(f"{name}: not of a call in a graph; give it when the graph is launched")
        given = {name: _sampled(value) for name, value in keywords.items()}
        if _symbolic(keywords.get("elements")):
            raise InvalidError("elements: a scalar of the graph counts work groups only; give grid=…")
        launch = plan.prepare(args, given)
        node: dict[str, Any] = {"kernel": [plan.module.id, plan.signature.name]}
        entries = zip(launch.params["args"], plan.signature.bindings, strict=True)
        node["args"] = [self._entry(entry, binding) for entry, binding in entries]
        for host in launch.bound.hosts:
            if host.kind != "in":
                raise InvalidError(
                    "in a graph a kernel's results stay on the device: give an output, a temporary or a device array "
                    "where it writes"
                )
        numbers = ("scalars", "grid", "launch", "specialization", "label")
        node |= {key: launch.params[key] for key in numbers if key in launch.params}
        _refer(node, plan.scalars.names, keywords)
        self.modules.append(plan.module)
        self._keep(launch.bound.arrays)
        self.nodes.append(node)

    def copy(self, source: BaseDeviceArray, target: BaseDeviceArray) -> None:
        """Note a copy."""
        self._operand(source, "source")
        self._operand(target, "target")
        if source.nbytes != target.nbytes:
            raise InvalidError(f"copy: {source.nbytes} bytes do not fit {target.nbytes}")
        self.nodes.append({"copy": [self._entry(source.wire(), None), self._entry(target.wire(), _WRITTEN)]})

    def fill(self, target: BaseDeviceArray, value: Any) -> None:
        """Note a fill with one value of the target's dtype."""
        self._operand(target, "target")
        if isinstance(value, ScalarSymbol):
            kind = target.dtype.name
            if _TYPES.get(kind) != value.type:
                raise InvalidError(f"fill: the scalar is a {value.type}, the target holds {kind}")
            word: Any = value.wire()
        else:
            word = _word(value, target.dtype)
        self.nodes.append({"fill": self._entry(target.wire(), _WRITTEN), "value": word})

    def _operand(self, array: BaseDeviceArray, what: str) -> None:
        if active(self.core) is not self:
            raise InvalidError("copy and fill are noted inside the graph's `with` block")
        if not isinstance(array, BaseDeviceArray) or array.handle.owner is not self.core:
            raise InvalidError(f"{what}: expected a symbol or device array of this connection, got {brief(array)}")
        array.handle.check(what)
        self._keep([array])

    def _keep(self, arrays: Sequence[BaseDeviceArray]) -> None:
        for array in arrays:
            if isinstance(array, Symbol):
                continue
            if self.capture:
                self.arrays.setdefault(self._captured(array.handle.id), array)
            else:
                self.fixed.append(array)

    def _captured(self, handle: int) -> str:
        return self.captured.setdefault(handle, f"a{len(self.captured)}")

    def _entry(self, entry: Any, binding: Binding | None) -> Any:
        """An entry of `args` with names for what the graph names."""
        if isinstance(entry, dict):
            if "array" in entry:
                return {"array": [self._entry(element, binding) for element in entry["array"]]}
            return entry
        name = entry[0] if isinstance(entry, list) else entry
        if isinstance(name, int) and self.capture:
            name = self._captured(name)
        if binding is not None and binding.written:
            self.written.add(name)
        return [name, *entry[1:]] if isinstance(entry, list) else name

    def params(self) -> dict[str, Any]:
        """Of `graph.create`.

        Raises:
            InvalidError: nothing was noted; an output is never written.
        """
        if not self.nodes:
            raise InvalidError("the graph is empty: call kernels inside its `with` block")
        for name in self.outputs:
            if name not in self.written:
                raise InvalidError(f"no call in the graph writes its output {name!r}")
        params: dict[str, Any] = {"nodes": self.nodes}
        inputs = {name: symbol.nbytes for name, symbol in self.inputs.items()}
        inputs |= {name: array.handle.size for name, array in self.arrays.items()}
        for key, table in (
            ("inputs", inputs),
            ("outputs", {name: symbol.nbytes for name, symbol in self.outputs.items()}),
            ("temporaries", {name: symbol.nbytes for name, symbol in self.temporaries.items()}),
            ("scalars", {name: scalar.type for name, scalar in self.scalars.items()}),
        ):
            if table:
                params[key] = table
        return params


_WRITTEN = Binding(0, 0, access="write")


def _symbolic(value: Any) -> bool:
    """Whether a scalar of the graph is, or is in, a value."""
    if isinstance(value, Mapping):
        return any(_symbolic(v) for v in value.values())
    return isinstance(value, ScalarSymbol) or (isinstance(value, (list, tuple)) and any(map(_symbolic, value)))


def _refer(node: dict[str, Any], names: Sequence[str], keywords: Mapping[str, Any]) -> None:
    """Put scalars of the graph where a node has samples of them."""
    if any(_symbolic(keywords.get(name)) for name in names):
        node["scalars"] = {name: _wire(keywords[name]) for name in names}
    elif _symbolic(keywords.get("scalars")):
        node["scalars"] = _wire(keywords["scalars"])
    if _symbolic(keywords.get("grid")):
        grid = keywords["grid"]
        node["grid"] = [_wire(g) for g in (grid if isinstance(grid, Sequence) else (grid,))]


def _sampled(value: Any) -> Any:
    if isinstance(value, ScalarSymbol):
        return value.sample
    if isinstance(value, Mapping) and _symbolic(value):
        return {key: _sampled(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)) and _symbolic(value):
        return [_sampled(v) for v in value]
    return value


def _wire(value: Any) -> Any:
    if isinstance(value, ScalarSymbol):
        return value.wire()
    if isinstance(value, Mapping):
        return {str(key): _wire(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wire(v) for v in value]
    return plain(value)


def _word(value: Any, dtype: np.dtype[Any]) -> int:
    """The 32-bit word that fills memory with a value.

    Raises:
        InvalidError: it is none of this dtype, or does not repeat every four bytes.
    """
    try:
        item = np.array(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(f"fill: {error}") from error
    data = item.tobytes()
    fits = dtype.kind not in "iu" or (item.ndim == 0 and item.item() == value)
    if item.ndim or not fits or 4 % min(len(data), 4) or data != data[:4] * max(len(data) // 4, 1):
        raise InvalidError(f"fill: memory is filled with 4 bytes again and again; {value!r} as {dtype} is not such")
    return int.from_bytes((data * 4)[:4], "little")
