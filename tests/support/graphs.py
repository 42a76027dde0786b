"""Graphs by hand, over reflections of kernels that exist only here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkqueue.errors import NotFoundError
from vkqueue.gpu.fake_info import fake_info
from vkqueue.kernels.graph import check_graph
from vkqueue.kernels.graph_plan import GraphPlan
from vkqueue.kernels.plan import LayoutTable, Plan

LIMITS = fake_info().limits
ALIGN: int = LIMITS["minStorageBufferOffsetAlignment"]


def storage(binding: int, access: str, *, size: int = 0, count: int = 1) -> dict[str, Any]:
    return {
        "set": 0, "binding": binding, "kind": "storage", "access": access, "name": f"b{binding}", "count": count,
        "stride": 4, "size": size,
    }  # fmt: skip


def scalar(name: str, type: str, offset: int) -> dict[str, Any]:
    return {"name": name, "type": type, "offset": offset, "size": 4, "where": "push"}


def reflection(*accesses: str, scalars: tuple[tuple[str, str], ...] = (), **more: Any) -> dict[str, Any]:
    members = [scalar(name, type, 4 * i) for i, (name, type) in enumerate(scalars)]
    return {
        "local_size": [64, 1, 1],
        "bindings": [storage(i, access) for i, access in enumerate(accesses)],
        "scalars": members,
        "push_constant_bytes": 4 * len(members),
        "specialization": [],
        **more,
    }


UNIFORM = {
    "set": 0, "binding": 1, "kind": "uniform", "access": "read", "name": "u", "count": 1, "stride": 0, "size": 8,
    "members": [scalar("a", "float32", 0), scalar("b", "uint32", 4)],
}  # fmt: skip

KERNELS: dict[str, dict[str, Any]] = {
    "map": reflection("read", "write"),
    "add": reflection("read", "read", "write"),
    "inplace": reflection("read_write"),
    "scaled": reflection("read", "write", scalars=(("n", "uint32"), ("k", "float32"))),
    "narrow": {
        **reflection("read_write"), "push_constant_bytes": 1,
        "scalars": [{"name": "u8", "type": "uint8", "offset": 0, "size": 1, "where": "push"}],
    },
    "uniform": {**reflection("read_write"), "bindings": [storage(0, "read_write"), UNIFORM]},
    "many": {**reflection(), "bindings": [storage(0, "read", count=2), storage(1, "write")]},
    "tvm": {
        **reflection("write", scalars=(("n", "uint32"), ("k", "float32"))),
        "tvm": {"uniform": 1}, "launch_param_tags": ["blockIdx.x", "threadIdx.x"],
    },
}  # fmt: skip


@dataclass
class FixedBuffer:
    id: int
    size: int


class Graphs:
    """Checks graphs of KERNELS, with `buffers` by handle."""

    def __init__(self, **buffers: int) -> None:
        self.buffers = {int(name[1:]): FixedBuffer(1000 + int(name[1:]), size) for name, size in buffers.items()}
        self._layouts = LayoutTable()
        self._plans: dict[str, Plan] = {}

    def kernel(self, node: Any) -> tuple[Plan, str]:
        name = node["kernel"]
        if name not in self._plans:
            self._plans[name] = Plan(name, KERNELS[name], LIMITS, self._layouts)
        return self._plans[name], name

    def buffer(self, handle: Any, label: str) -> FixedBuffer:
        if handle not in self.buffers:
            raise NotFoundError(f"{label}: no buffer {handle} on this connection")
        return self.buffers[handle]

    def check(self, *nodes: dict[str, Any], **params: Any) -> GraphPlan:
        return check_graph({"nodes": list(nodes), **params}, self.kernel, self.buffer)


PIPELINES = {name: 500 + i for i, name in enumerate(KERNELS)}


def call(kernel: str, *args: Any, **more: Any) -> dict[str, Any]:
    """A node."""
    return {"kernel": kernel, "args": list(args), "grid": [1], **more}
