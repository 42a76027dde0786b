"""Requests about graphs: create, launch, free.

A graph is checked once, and its pipelines are built before its creation is answered. A launch finds the instance that
binds the same (or makes it), and is one row. Launches that repeat byte for byte are not looked at again, as dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.dispatch import Deferred
from vkqueue.daemon.graph import Graph, Lane
from vkqueue.daemon.graph_bindings import bound_by, on_device
from vkqueue.daemon.session import Buffer, Session, row_bytes
from vkqueue.errors import (
    DeviceLostError,
    InvalidError,
    NotFoundError,
    QuotaError,
    TooLargeError,
    VkqueueError,
    brief,
)  # fmt: skip
from vkqueue.jobs.graph import Bindings, Template, Where
from vkqueue.kernels.graph import check_graph
from vkqueue.kernels.graph_plan import GraphPlan
from vkqueue.kernels.plan import Plan
from vkqueue.kernels.scalars import pack_value
from vkqueue.model import GRAPH, GraphInstance, Release, Row, Token
from vkqueue.wire.messages import check
from vkqueue.wire.repeats import GraphLaunch

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.modules import DeviceKernel
    from vkqueue.daemon.service import Service

# Launches of one graph that may overlap; each takes memory for the temporaries. As many as batches in flight, and one
# that is recorded.
_MAX_LANES = 4
# Arenas begin at multiples of what descriptors ask for, and of this: a cache line, so that neighbours do not share one.
_MIN_ALIGN = 64


def align_of(device: Device) -> int:
    """What the places of graphs on the device begin at multiples of."""
    assert device.info is not None
    names = (
        "minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment",
        "robustStorageBufferAccessSizeAlignment", "robustUniformBufferAccessSizeAlignment",
    )  # fmt: skip
    return max(_MIN_ALIGN, *(device.info.limits.get(name) or 1 for name in names))


class GraphRequests:
    """The handlers of `graph.…`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._limits = service.config.limits
        self._every = service.config.device.graph_barriers == "all"
        self._building: dict[DeviceKernel, list[tuple[Session, Graph]]] = {}

    # Creation

    def create(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`graph.create`. Raises Deferred while a module of it is being analysed."""
        device = self._service.device(p["device"]) if "device" in p else self._service.default_device(session)
        self._service.check_working(device)
        self._check_counts(session, len(p["nodes"]))

        def find_kernel(node: Mapping[str, Any]) -> tuple[Plan, DeviceKernel]:
            kernel = self._kernel(session, device, node)
            return kernel.plan, kernel

        def find_buffer(handle: Any, label: str) -> Buffer:
            return on_device(session.buffer(handle, label), device, label)

        plan = check_graph(p, find_kernel, find_buffer)
        kernels = tuple(dict.fromkeys(step.kernel for step in plan.steps if step.kernel is not None))
        self._check_pipelines(session, kernels)
        graph = self._made(session, msgid, device, plan, kernels)
        session.objects[session.handles.pop(msgid)] = graph
        session.graphs += 1
        for kernel in graph.building:
            self._building.setdefault(kernel, []).append((session, graph))
        if not graph.building:
            self._answer(session, graph)

    def _check_counts(self, session: Session, nodes: int) -> None:
        limits = self._limits
        if nodes > limits.max_graph_nodes:
            raise TooLargeError(
                f"nodes: {nodes} are over max_graph_nodes ({limits.max_graph_nodes}); make several graphs",
                {"nodes": nodes, "max_graph_nodes": limits.max_graph_nodes},
            )
        if session.graphs >= limits.max_graphs:
            raise QuotaError(
                f"max_graphs: this connection holds {session.graphs} graphs, its limit; free some",
                {"quota": "max_graphs", "limit": limits.max_graphs},
            )

    def _made(
        self, session: Session, msgid: int, device: Device, plan: GraphPlan, kernels: tuple[DeviceKernel, ...]
    ) -> Graph:
        """The graph with its memory, and its pipelines under way."""
        for kernel in kernels:
            if kernel.error is not None:
                raise kernel.error
        for kernel in kernels:  # before building any: that may release others
            kernel.users += 1
            kernel.pinned += 1
        for kernel in kernels:
            device.build(kernel)
        template = Template(plan, {k: k.pipeline for k in kernels}, align_of(device), every=self._every)
        graph = Graph(session.handles[msgid], msgid, device, template, kernels)
        try:
            graph.lanes.append(Lane(self._reserve(session, device, template.arena_bytes, "temporaries")))
        except VkqueueError:
            self.let_go(graph)
            raise
        return graph

    def _kernel(self, session: Session, device: Device, node: Mapping[str, Any]) -> DeviceKernel:
        named = node["kernel"]
        if type(named) is int:
            named = [named, None]
        if type(named) is not list or len(named) != 2 or not (named[1] is None or type(named[1]) is str):
            raise InvalidError(f"kernel: expected [module, name] or a module with one kernel, got {brief(named)}")
        spec = node.get("specialization")
        if spec is not None and type(spec) is not dict:
            raise InvalidError(f"specialization: expected a map of constant to value, got {brief(spec)}")
        return self._service.dispatcher.kernel(session, device, named[0], named[1], spec)

    def _check_pipelines(self, session: Session, kernels: tuple[DeviceKernel, ...]) -> None:
        """A graph keeps its pipelines, so they count for the connection's share."""
        kept = {k for graph in session.objects.values() if type(graph) is Graph for k in graph.kernels}
        most = self._limits.max_pipelines
        if len(kept.union(kernels)) > most:
            raise QuotaError(
                f"max_pipelines: this connection's graphs would keep {len(kept.union(kernels))} kernels, its limit is "
                f"{most}; free graphs",
                {"quota": "max_pipelines", "limit": most},
            )

    def _reserve(self, session: Session, device: Device, size: int, what: str) -> Buffer | None:
        """Memory for a lane, counted as a buffer of the connection's; the backend makes it with the first launch.

        Raises:
            QuotaError, TooLargeError, OutOfDeviceMemoryError
        """
        if not size:
            return None
        try:
            self._service.requests.admit_buffer(session, device, size)
        except VkqueueError as error:
            raise type(error)(f"{what}: {error.message}", error.data) from error
        session.buffers += 1
        session.memory_bytes += size
        device.memory_bytes += size
        return Buffer(self._service.new_id(), 0, size, device)

    def _answer(self, session: Session, graph: Graph) -> None:
        template = graph.template
        self._service.answer(
            session,
            graph.msgid,
            {
                "graph": graph.handle,
                "nodes": template.plan.nodes,
                "barriers": template.barrier_count,
                "memory_bytes": template.arena_bytes,
            },
        )

    def built(self, kernel: DeviceKernel, error: VkqueueError | None) -> None:
        """A pipeline is there, or cannot be built."""
        for session, graph in self._building.pop(kernel, ()):
            if session.closed or session.objects.get(graph.handle) is not graph:
                continue
            graph.building.discard(kernel)
            if error is not None:
                self._forget(session, graph)
                self._free_buffers(session, graph, 0)
                self._service.fail(session, graph.msgid, error)
            elif not graph.building:
                self._answer(session, graph)
            self._service.analysed(session)

    def lost(self, device: Device, error: VkqueueError) -> None:
        """The device was lost: graphs that were being made fail; of the others nothing is left to launch."""
        for kernel in list(self._building):
            if any(graph.device is device for _, graph in self._building[kernel]):
                self.built(kernel, error)
        for session in self._service.sessions.values():
            session.epoch += 1

    # Launches

    def again(self, session: Session, requests: list[tuple[int, str, dict[str, Any]]], first: int, now: int) -> int:
        """As `Dispatcher.again`, for a run of launches of graphs."""
        epoch, id = session.epoch, session.id
        room = 0 if self._service.full else self._limits.max_queued_jobs - session.open_jobs
        rows: list[Row] = []
        device: Device | None = None
        index = first
        while index < len(requests) and room:
            msgid, _, params = requests[index]
            if type(params) is not GraphLaunch or (memo := params.memo) is None or memo[0] != epoch:
                break
            _, on, token, instance = memo
            if on is not device:
                if device is not None:
                    break
                device = on
            rows.append((id, msgid, GRAPH, token, instance, b"", None, None, now, None))
            room -= 1
            index += 1
        if rows:
            assert device is not None
            device.scheduler.submit_plain(id, rows, now)
            session.open_jobs += len(rows)
        return index

    def launch(self, session: Session, msgid: int, params: dict[str, Any], now: int) -> None:
        """`graph.launch`, with every parameter. Raises Deferred while the graph's pipelines are being built."""
        p = check("graph.launch", params)
        service = self._service
        graph = self._graph(session, p["graph"])
        if graph.building:
            raise Deferred
        if graph.generation != graph.device.generation:
            raise DeviceLostError(
                f"graph: {graph.handle} was lost with its device; free it, load its modules and create it anew",
                {"handle": graph.handle},
            )
        service.admit_job(session)
        plan = graph.template.plan
        scalars = p.get("scalars") or {}
        plan.check_scalars(scalars)
        buffers, inline, payload = bound_by(session, graph, p.get("buffers") or {}, self._limits.max_message_bytes)
        packed = b"".join([pack_value(type_, scalars[name]) for name, type_ in plan.scalars.items()])
        instance, token = self._instance(session, graph, buffers, inline, scalars, packed)
        options = service.dispatcher.options(session, graph.device, msgid, p, now)
        row = (session.id, msgid, GRAPH, token, instance, b"", None, payload or None, now, options)
        if type(params) is GraphLaunch and not payload and options is None:
            params.memo = (session.epoch, graph.device, token, instance)
        graph.device.submit(row, None, options.after if options is not None else ())
        session.open_jobs += 1
        service.hold_bytes(session, row_bytes(row))

    def _graph(self, session: Session, handle: int) -> Graph:
        found = session.objects.get(handle)
        if type(found) is not Graph:
            raise NotFoundError(f"graph: no graph {handle} on this connection", {"handle": handle})
        return found

    def _instance(
        self,
        session: Session,
        graph: Graph,
        buffers: dict[int, Where],
        inline: list[tuple[int, str]],
        scalars: Mapping[str, Any],
        packed: bytes,
    ) -> tuple[GraphInstance, Token]:
        # What is inline lies in a lane, so launches that differ in nothing else take turns among them.
        lane = self._lane(session, graph) if inline else None
        key = (tuple(buffers.items()), tuple(inline), packed, lane)
        found = graph.instance(key)
        if found is not None:
            return found
        if lane is None:
            lane = self._lane(session, graph)
        elif lane.inline is None:
            lane.inline = self._reserve(session, graph.device, graph.template.inline_bytes, "inputs and outputs")
        bindings = Bindings(buffers, inline, lane.arena.id if lane.arena else 0, lane.inline.id if lane.inline else 0)
        new_id = self._service.new_id
        instance, token = graph.template.bind(bindings, scalars, new_id(), new_id())
        gone = graph.keep(key, instance, token)
        if gone:
            graph.device.post_release(Release(instances=tuple(gone)))
        return instance, token

    def _lane(self, session: Session, graph: Graph) -> Lane:
        """One that no other launch is in, as far as there may be so many."""
        if not session.open_jobs:
            return graph.lanes[0]
        graph.turn += 1
        index = graph.turn % _MAX_LANES
        if index >= len(graph.lanes):
            try:
                arena = self._reserve(session, graph.device, graph.template.arena_bytes, "temporaries")
            except VkqueueError:
                return graph.lanes[index % len(graph.lanes)]
            graph.lanes.append(Lane(arena))
            index = len(graph.lanes) - 1
        return graph.lanes[index]

    # The end

    def free(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`graph.free`: its memory goes behind the last launch that was sent."""
        graph = self._graph(session, p["graph"])
        if graph.building:
            raise Deferred
        self._forget(session, graph)
        self._free_buffers(session, graph, now)
        self._service.answer(session, msgid, {})

    def _forget(self, session: Session, graph: Graph) -> None:
        del session.objects[graph.handle]
        session.graphs -= 1
        session.epoch += 1
        self.let_go(graph)

    @staticmethod
    def let_go(graph: Graph) -> None:
        """The graph keeps its kernels and recordings no longer."""
        for kernel in graph.kernels:
            kernel.users -= 1
            kernel.pinned -= 1
        graph.device.post_release(Release(instances=tuple(instance.id for instance, _ in graph.instances.values())))

    def _free_buffers(self, session: Session, graph: Graph, now: int) -> None:
        for kernel in graph.kernels:
            kernel.last_used = max(kernel.last_used, now)  # launches that are queued still name the pipelines
        for buffer in graph.buffers:
            self._service.free_memory(session, buffer, now)


__all__ = ["GraphRequests", "align_of"]
