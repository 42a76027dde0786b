"""Graphs on a Vulkan backend, from messages to rows as the daemon makes them, for tests in tests/gpu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.gpu_rig import KERNELS, Rig
from vkqueue.jobs.graph import Bindings, Template
from vkqueue.kernels.graph import check_graph
from vkqueue.kernels.graph_plan import GraphPlan
from vkqueue.kernels.plan import LayoutTable, Plan
from vkqueue.kernels.reflect import analyse
from vkqueue.model import GRAPH, GraphInstance, Layout, Options, PipelineSpec, Row, Token


class _Buffer:
    def __init__(self, id: int, size: int) -> None:
        self.id, self.size = id, size


class _Layouts(LayoutTable):
    """Layouts with ids of the rig's, which makes some itself."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._known: dict[Any, Layout] = {}

    def get(self, sets: Any, push_bytes: int) -> Layout:
        if (sets, push_bytes) not in self._known:
            self._known[sets, push_bytes] = Layout(next(self._rig._ids), sets, push_bytes)
        return self._known[sets, push_bytes]


class GraphRig:
    """Makes graphs of the kernels in tests/gpu/kernels; handles of buffers are their ids."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._limits = rig.backend.info.limits
        self._layouts = _Layouts(rig)
        self._plans: dict[str, Plan] = {}
        self.pipelines: dict[str, int] = {}

    def _kernel(self, node: Mapping[str, Any]) -> tuple[Plan, str]:
        name = node["kernel"]
        if name not in self._plans:
            spirv = (KERNELS / f"{name}.spv").read_bytes()
            plan = self._plans[name] = Plan(name, analyse(spirv)["kernels"]["main"], self._limits, self._layouts)
            self.pipelines[name] = next(self.rig._ids)
            self.rig.backend.compile(PipelineSpec(self.pipelines[name], plan.layout, spirv, "main", label=name))
        return self._plans[name], name

    def _buffer(self, handle: Any, label: str) -> _Buffer:
        return _Buffer(handle, self.rig.sizes[handle])

    def check(self, *nodes: dict[str, Any], **params: Any) -> GraphPlan:
        return check_graph({"nodes": list(nodes), **params}, self._kernel, self._buffer)

    def graph(self, *nodes: dict[str, Any], every: bool = False, **params: Any) -> Graph:
        plan = self.check(*nodes, **params)
        names = ("minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment")
        align = max(64, *(self._limits[name] for name in names))
        return Graph(self.rig, Template(plan, self.pipelines, align, every=every))


class Graph:
    """A graph with one arena for temporaries and one for inline data, unless a launch asks for others."""

    def __init__(self, rig: Rig, template: Template) -> None:
        self.rig = rig
        self.template = template
        self.arena, self.inline_arena = next(rig._ids), next(rig._ids)

    def bind(
        self, arenas: tuple[int, int] | None = None, scalars: Mapping[str, Any] | None = None, **ends: Any
    ) -> tuple[GraphInstance, Token, tuple[Any, ...] | None]:
        """Each of `ends` is a buffer's id, (id, first byte), or ("in" | "inout" | "out", bytes or size)."""
        plan = self.template.plan
        buffers, inline, payload = {}, [], []
        for place in plan.places:
            number = place.id - 1
            if place.buffer is not None:
                buffers[number] = (place.buffer.id, 0)
            if place.name not in ends:
                continue
            end = ends[place.name]
            if isinstance(end, int):
                buffers[number] = (end, 0)
            elif isinstance(end[0], str):
                inline.append((number, end[0]))
                payload.append(end)
            else:
                buffers[number] = end
        arena, inline_arena = arenas or (self.arena, self.inline_arena)
        plan.check_scalars(scalars or {})
        bindings = Bindings(buffers, inline, arena, inline_arena)
        instance, token = self.template.bind(bindings, scalars or {}, next(self.rig._ids), next(self.rig._ids))
        return instance, token, tuple(payload) or None

    def row(self, *bound: Any, options: Options | None = None, **ends: Any) -> Row:
        """A launch: of what `bind` returned, or bound anew."""
        instance, token, payload = bound or self.bind(**ends)
        return (self.rig.session, next(self.rig._ids), GRAPH, token, instance, b"", None, payload, 0, options)


def node(kernel: str, *args: Any, grid: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"kernel": kernel, "args": list(args), "grid": grid or [4], **more}
