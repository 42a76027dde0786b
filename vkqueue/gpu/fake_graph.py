"""A graph's launch on the fake device: its nodes one after the other, over real bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vkqueue.gpu.contract import ContractError
from vkqueue.model import COPY, DISPATCH, FILL, ROW_PAYLOAD, ROW_TARGET, GraphInstance, GraphNode, Row

Memory: TypeAlias = Callable[[tuple[int, int, int]], memoryview]
"""The bytes of (buffer id, first byte, end byte)."""
Run: TypeAlias = Callable[[int, list[memoryview], bytes, tuple[int, int, int]], None]
"""Run a pipeline with its descriptors' memory, constants and grid."""


def run_graph(row: Row, memory: Memory, run: Run) -> list[bytes]:
    """Bring what came with the launch, run the nodes; what leaves with it."""
    instance: GraphInstance = row[ROW_TARGET]
    payload = row[ROW_PAYLOAD] or ()
    if len(payload) != len(instance.transients):
        raise ContractError(f"{len(payload)} entries come with the launch, the instance has {len(instance.transients)}")

    def at(place: int, offset: int, size: int) -> memoryview:
        buffer, base = instance.places[place]
        return memory((buffer, base + offset, base + offset + size))

    leaving = []
    for (kind, value), (place, size) in zip(payload, instance.transients, strict=True):
        at(place, 0, size)[:] = bytes(size) if kind == "out" else bytes(value)
        if kind != "in":
            leaving.append((place, size))
    for node in instance.nodes:
        _run_node(instance, node, at, run)
    return [bytes(at(place, 0, size)) for place, size in leaving]


def _run_node(instance: GraphInstance, node: GraphNode, at: Callable[[int, int, int], memoryview], run: Run) -> None:
    where = [at(*entry) for entry in node.entries]
    if node.op == DISPATCH:
        run(node.pipeline, where, instance.constants(node), instance.grid(node))
    elif node.op == COPY:
        where[1][:] = bytes(where[0])
    elif node.op == FILL:
        where[0][:] = instance.data(node).to_bytes(4, "little") * (len(where[0]) // 4)
    else:
        where[0][:] = instance.data(node)
