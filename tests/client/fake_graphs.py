"""Graphs of the fake daemon: their nodes one after the other, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from client.fake_kernels import KERNELS, read_scalars

from vkqueue.errors import InvalidError, NotFoundError


def constant(entry: dict[str, Any]) -> bytearray:
    if "values" in entry:
        value = entry["values"]
        return bytearray(np.array([value["scale"], *value["bounds"]], np.float32).tobytes())
    return bytearray(entry["in"])


class GraphSession:
    """The part of a session that knows graphs; `modules`, `buffers` and `number_of` are the rest's."""

    modules: dict[int, list[str]]
    buffers: dict[int, bytearray]

    def __init__(self) -> None:
        self.graphs: dict[int, dict[str, Any]] = {}

    def number_of(self, as_: int) -> int:
        raise NotImplementedError

    def graph_create(self, as_: int, nodes: list[dict[str, Any]], **params: Any) -> dict[str, Any]:
        handle = self.number_of(as_)
        for node in nodes:
            if "kernel" in node and node["kernel"][0] not in self.modules:
                raise NotFoundError(f"no such handle: {node['kernel'][0]}")
        self.graphs[handle] = {"nodes": nodes, **params}
        memory = sum(params.get("temporaries", {}).values())
        return {"graph": handle, "nodes": len(nodes), "barriers": len(nodes) - 1, "memory_bytes": memory}

    def graph_free(self, graph: int) -> dict[str, Any]:
        if graph not in self.graphs:
            raise NotFoundError(f"no such handle: {graph}")
        del self.graphs[graph]
        return {}

    def graph_launch(self, graph: int, buffers: Any, scalars: Any = None, **rest: Any) -> dict[str, Any]:
        if graph not in self.graphs:
            raise NotFoundError(f"no such handle: {graph}")
        made = self.graphs[graph]
        inputs, outputs = made.get("inputs", {}), made.get("outputs", {})
        memory: dict[str, Any] = {name: bytearray(size) for name, size in made.get("temporaries", {}).items()}
        leaving = []
        for name, size in {**inputs, **outputs}.items():
            entry = buffers[name]
            if isinstance(entry, dict):
                [(kind, value)] = entry.items()
                memory[name] = bytearray(value)
                if kind != "in":
                    leaving.append(name)
            else:
                handle, offset, count = entry if isinstance(entry, list) else (entry, 0, size)
                if handle not in self.buffers:
                    raise NotFoundError(f"no such handle: {handle}")
                memory[name] = memoryview(self.buffers[handle])[offset : offset + count]
            if len(memory[name]) != size:
                raise InvalidError(f"{name}: {len(memory[name])} bytes for {size}")
        given = scalars or {}
        if given.keys() != made.get("scalars", {}).keys():
            raise InvalidError("scalars are missing")
        for node in made["nodes"]:
            self._run_node(node, memory, given)
        answer: dict[str, Any] = {"outputs": {name: bytes(memory[name]) for name in leaving}}
        if rest.get("timing"):
            answer |= {"timing": {"queued_us": 1, "device_us": None, "total_us": 2}, "device": 0}
        return answer

    def _run_node(self, node: dict[str, Any], memory: dict[str, Any], given: dict[str, Any]) -> None:
        def at(entry: Any) -> Any:
            name, offset, size = entry if isinstance(entry, list) else (entry, 0, None)
            whole = memoryview(self.buffers[name] if isinstance(name, int) else memory[name])
            return whole[offset:] if size is None else whole[offset : offset + size]

        def filled_in(value: Any) -> Any:
            if isinstance(value, dict) and set(value) == {"scalar"}:
                return given[value["scalar"]]
            if isinstance(value, dict):
                return {name: filled_in(v) for name, v in value.items()}
            return [filled_in(v) for v in value] if isinstance(value, list) else value

        if "copy" in node:
            source, target = map(at, node["copy"])
            target[:] = bytes(source)
        elif "fill" in node:
            target, word = at(node["fill"]), filled_in(node.get("value", 0))
            data = np.float32(word).tobytes() if isinstance(word, float) else int(word).to_bytes(4, "little")
            target[:] = data * (len(target) // 4)
        else:
            wire, run = KERNELS[node["kernel"][1]]
            leaves = []
            for entry in node["args"]:
                elements = entry["array"] if isinstance(entry, dict) and "array" in entry else [entry]
                leaves += [constant(e) if isinstance(e, dict) else at(e) for e in elements]
            values = read_scalars(wire["scalars"], filled_in(node.get("scalars", [])))
            groups = filled_in(node["grid"])[0] if "grid" in node else node["launch"][0]
            run([np.frombuffer(data, np.uint8) for data in leaves], values, 64 * groups)
