"""Graphs as a user has them; the part that needs no I/O. See `recording` for how they come about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from vkqueue.client.arguments import Bound, HostEntry, Output, plain
from vkqueue.client.array import Array, BaseDeviceArray, Handle, Shape, host_bytes
from vkqueue.client.launch import Launch, set_options, spill
from vkqueue.client.recording import LAUNCH_OPTIONS, Recording, ScalarSymbol, Symbol
from vkqueue.client.signature import suggestion
from vkqueue.errors import InvalidError
from vkqueue.wire.codec import pack

# As in `launch`.
_MAX_CACHED = 256


class GraphLaunch(Launch):
    """A launch of a graph. Its results are by name."""

    __slots__ = ()

    method = "graph.launch"

    def outputs(self, result: Mapping[str, Any]) -> Iterator[Any]:
        """See `Launch.outputs`."""
        by_name = result["outputs"]
        return iter([by_name[host.index] for host in self.bound.hosts if host.index in by_name])


class LaunchTable:
    """Prepares launches of one graph.

    Args:
        recording: ended.
        handle: of the graph.
        max_bytes: as of `LaunchPlan`.

    Attributes:
        captured: the arrays of a captured graph.
    """

    def __init__(self, recording: Recording, handle: Handle, max_bytes: int) -> None:
        self.handle = handle
        self._recording = recording
        self._max_bytes = max_bytes
        self._ends = {**recording.inputs, **recording.outputs}
        self._packed: dict[Any, bytes] = {}
        self.captured = list(recording.arrays.values())

    def packed(self, values: Mapping[str, Any]) -> bytes | None:
        """The packed parameters of a launch on device arrays that was made before, None for any other."""
        if not self.handle.usable or not all(array.handle.usable for array in self.captured):
            return None
        try:
            key = [*values]
            for array in values.values():
                if not array.handle.usable:
                    return None
                key.append(array.serial)
            return self._packed[tuple(key)]
        except (AttributeError, KeyError, TypeError):
            return None

    def prepare(self, replace: Mapping[BaseDeviceArray, Any], given: Mapping[str, Any]) -> GraphLaunch:
        """A launch.

        Raises:
            InvalidError: a value is missing, unknown or does not fit.
        """
        self.handle.check("the graph")
        options = {name: given[name] for name in LAUNCH_OPTIONS if name in given}
        values = {name: value for name, value in given.items() if name not in options}
        buffers: dict[str, Any] = {}
        params: dict[str, Any] = {"graph": self.handle.id, "buffers": buffers}
        launch = GraphLaunch(params, Bound(), timing=bool(options.get("timing")))
        scalars = {name: plain(values.pop(name)) for name in self._recording.scalars if name in values}
        for name in self._recording.scalars:
            if name not in scalars:
                raise InvalidError(f"the graph's scalar {name!r} is missing; give {name}=…")
        if scalars:
            params["scalars"] = scalars
        self._bind(launch, buffers, values)
        self._replace(launch, buffers, replace)
        set_options(launch, options)
        launch.spilled = spill(launch.bound.hosts, self._max_bytes)
        if not (options or scalars or launch.bound.hosts or replace):
            self._remember(values, params)
        return launch

    def _bind(self, launch: Launch, buffers: dict[str, Any], values: Mapping[str, Any]) -> None:
        for name in values:
            if name not in self._ends:
                known = [*self._ends, *self._recording.scalars, *LAUNCH_OPTIONS]
                hint = suggestion(name, known)
                raise InvalidError(f"the graph takes no {name!r}; it takes {', '.join(known)}.{hint}")
        for name, symbol in self._ends.items():
            value = values.get(name)
            is_output = name in self._recording.outputs
            if value is None and is_output:
                output = Output(symbol.shape, symbol.dtype)
                buffers[name] = {"out": symbol.nbytes}
                launch.bound.hosts.append(HostEntry(buffers, name, "out", None, symbol.nbytes, output))
            elif value is None:
                raise InvalidError(f"the graph's input {name!r} is missing: {symbol.shape} {symbol.dtype}")
            elif isinstance(value, BaseDeviceArray):
                self._bind_device(launch, buffers, name, value, symbol.nbytes, symbol.dtype)
            elif is_output:
                raise InvalidError(f"the graph's output {name!r}: give a device array, or leave it out to get it back")
            else:
                self._bind_host(launch, buffers, name, symbol.host_data(value))

    def _bind_device(
        self, launch: Launch, buffers: dict[str, Any], name: str, array: BaseDeviceArray, nbytes: int, dtype: Any
    ) -> None:
        if array.handle.owner is not self._recording.core:
            raise InvalidError(f"{name}: the device array is of another connection")
        array.handle.check(f"{name}: the device array")
        if array.nbytes != nbytes or (dtype is not None and array.dtype != dtype):
            kind = f"{nbytes} bytes" + (f" of {dtype}" if dtype is not None else "")
            raise InvalidError(f"{name}: the graph takes {kind}, got {array.nbytes} bytes of {array.dtype}")
        launch.bound.arrays.append(array)
        buffers[name] = array.wire()

    def _bind_host(self, launch: Launch, buffers: dict[str, Any], name: str, data: Array) -> None:
        kind = "inout" if name in self._recording.written else "in"
        output = Output(data.shape, data.dtype) if kind == "inout" else None
        content = host_bytes(data)
        buffers[name] = {kind: content}
        launch.bound.hosts.append(HostEntry(buffers, name, kind, content, data.nbytes, output))

    def _replace(self, launch: Launch, buffers: dict[str, Any], replace: Mapping[BaseDeviceArray, Any]) -> None:
        """Captured arrays, or others in their places."""
        others = {array.handle.id: (array, value) for array, value in replace.items()}
        for handle, name in self._recording.captured.items():
            array = self._recording.arrays[name]
            old, value = others.pop(handle, (array, array))
            if isinstance(value, BaseDeviceArray):
                if value is array:
                    array.handle.check("a captured device array")
                    launch.bound.arrays.append(array)
                    buffers[name] = handle
                else:
                    self._bind_device(launch, buffers, name, value, array.handle.size, None)
            else:
                self._bind_host(launch, buffers, name, old.host_data(value))
        for array, _ in others.values():
            raise InvalidError(f"replace: {array!r} was not used in the graph")

    def _remember(self, values: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        if len(self._packed) >= _MAX_CACHED:
            self._packed.clear()
        self._packed[(*values, *(array.serial for array in values.values()))] = pack(params)


class BaseGraph:
    """A graph: recorded inside its `with` block, then to be called.

    Inside `with gpu.graph() as g:` this gives the symbols that kernels are called with; `copy` and `fill` are noted
    as calls are. The graph is made when the block ends.
    """

    def __init__(self, client: Any, capture: bool) -> None:
        self._client = client
        self._recording = Recording(client.core, capture)
        self._table: LaunchTable | None = None
        self._info: Mapping[str, Any] = {}

    def input(self, name: str, shape: Shape, dtype: npt.DTypeLike) -> Symbol:
        """An array that each launch gives, as `name=…`. Kernels may write it too."""
        return self._recording.symbol(self._recording.inputs, name, shape, dtype)

    def output(self, name: str, shape: Shape, dtype: npt.DTypeLike) -> Symbol:
        """An array that kernels write: a launch returns it, or gives a device array for it as `name=…`."""
        return self._recording.symbol(self._recording.outputs, name, shape, dtype)

    def temporary(self, shape: Shape, dtype: npt.DTypeLike, name: str | None = None) -> Symbol:
        """An array that lives during a launch. What is not needed at once shares memory.

        A kernel that both reads and writes it finds zeros, if none has written it before.
        """
        recording = self._recording
        return recording.symbol(recording.temporaries, name or recording.unused_name("t"), shape, dtype)

    def scalar(self, name: str, dtype: npt.DTypeLike) -> ScalarSymbol:
        """A number that each launch gives, as `name=…`: for scalars of kernels, for work groups in `grid=`."""
        return self._recording.scalar(name, dtype)

    def copy(self, source: BaseDeviceArray, target: BaseDeviceArray) -> None:
        """Copy all of an array into one of the same size in bytes."""
        self._recording.copy(source, target)

    def fill(self, target: BaseDeviceArray, value: Any) -> None:
        """Fill an array with one value: a number, or a scalar of the graph."""
        self._recording.fill(target, value)

    @property
    def nodes(self) -> int:
        """How many calls, copies and fills it has."""
        return int(self._info.get("nodes", len(self._recording.nodes)))

    @property
    def barriers(self) -> int:
        """How many barriers stand between them in a launch."""
        return int(self._ready_info("barriers"))

    @property
    def memory_bytes(self) -> int:
        """Memory for the temporaries of one launch."""
        return int(self._ready_info("memory_bytes"))

    def _ready_info(self, key: str) -> Any:
        self._ready()
        return self._info[key]

    def _made(self, handle: Handle, max_bytes: int, result: Mapping[str, Any]) -> None:
        """The daemon has it."""
        self._info = result
        self._table = LaunchTable(self._recording, handle, max_bytes)
        self._recording.nodes.clear()
        self._recording.modules.clear()

    def _ready(self) -> LaunchTable:
        if self._table is None:
            raise InvalidError("the graph is not made yet: it is when its `with` block has ended without an error")
        return self._table

    def __repr__(self) -> str:
        recording = self._recording
        ends = [*map(repr, (*recording.inputs.values(), *recording.outputs.values()))]
        table = self._table
        state = "being recorded" if table is None else "freed" if table.handle.dead else f"{self.nodes} nodes"
        return f"<{type(self).__name__} {state}: {', '.join(ends) or f'{len(recording.arrays)} captured arrays'}>"
