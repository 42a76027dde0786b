"""Models of the fake daemon: each output is twice the first input, summed over its last axis if the output lacks it."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkqueue.errors import InvalidError, NotFoundError

TYPES = {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32}

SUMS: dict[str, Any] = {
    "name": "sums", "max_batch_size": 4, "dimensions": {"seq": {"buckets": [4, 8], "min": 1, "max": 8}},
    "input": [
        {"name": "x", "data_type": "TYPE_INT32", "dims": ["seq"], "pad_value": 0, "batch_dimension": 0},
        {"name": "lengths", "kind": "LENGTHS", "of": "seq"},
    ],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1], "batch_dimension": 0}],
    "version": 1,
}  # fmt: skip
PAIR: dict[str, Any] = {
    "name": "pair", "max_batch_size": 0, "dimensions": {"n": {"min": 1, "max": 100}},
    "input": [
        {"name": "a", "data_type": "TYPE_FP32", "dims": ["n", 3]},
        {"name": "b-bits", "data_type": "TYPE_BF16", "dims": ["n"]},
    ],
    "output": [
        {"name": "p", "data_type": "TYPE_FP32", "dims": ["n", 3]},
        {"name": "q", "data_type": "TYPE_FP32", "dims": ["n", 3]},
    ],
    "version": 7,
}  # fmt: skip

STATS: dict[str, Any] = {
    "execution_count": 4,
    "inference_stats": {
        "success": {"count": 9, "ns": 18_000_000}, "fail": {"count": 1, "ns": 1000},
        "queue": {"count": 10, "ns": 5_000_000}, "compute_infer": {"count": 4, "ns": 8_000_000},
    },
    "batch_stats": [{"batch_size": 5, "compute_infer": {"count": 4, "ns": 8_000_000}}],
    "rejected": 3, "cancelled": 2, "expired": 1, "closed": {"idle": 3, "full": 1},
}  # fmt: skip


class ModelSession:
    """The part of a session that knows models; `buffers` and `modules` are the rest's."""

    modules: dict[int, list[str]]
    buffers: dict[int, Any]

    def __init__(self, models: dict[str, dict[str, Any]]) -> None:
        self.models = models
        self.weights: dict[str, dict[str, bytes]] = {}

    def found(self, name: str, version: int | None) -> dict[str, Any]:
        config = self.models.get(name)
        if config is None or version not in (None, config["version"]):
            raise NotFoundError(f"no model {name!r} of version {version}")
        return config

    def model_load(
        self,
        name: str,
        version: int = 1,
        config: Any = None,
        kernels: Any = (),
        weights: Any = None,
        device: Any = None,
    ) -> dict[str, Any]:
        if config is None:
            if name != "stored":
                raise NotFoundError(f"the repository has no model {name!r}")
            config = SUMS
        for kernel in kernels:
            if kernel.get("module", 0) not in {0, *self.modules}:
                raise NotFoundError(f"no such handle: {kernel['module']}")
            if kernel.get("language") == "spirv" and bytes(kernel["code"][:5]) != b"fake:":
                raise InvalidError("no SPIR-V: the first word is no magic number")
        self.weights[name] = {key: self._weight(value) for key, value in (weights or {}).items()}
        self.models[name] = {"max_batch_size": 0, **config, "name": name, "version": version}
        return {"name": name, "version": version}

    def _weight(self, value: Any) -> bytes:
        if isinstance(value, int):
            return bytes(self.buffers[value])
        if isinstance(value, list):
            handle, offset, size = value
            return bytes(self.buffers[handle][offset : offset + size])
        return bytes(value)

    def model_unload(self, name: str, version: int | None = None) -> dict[str, Any]:
        self.found(name, version)
        del self.models[name]
        return {}

    def model_config(self, name: str, version: int | None = None) -> dict[str, Any]:
        return self.found(name, version)

    def model_list(self) -> list[dict[str, Any]]:
        ready = [
            {"name": n, "version": c["version"], "state": "READY", "reason": "", "device": 0}
            for n, c in self.models.items()
        ]
        return [*ready, {"name": "broken", "version": 1, "state": "UNAVAILABLE", "reason": "no config.toml"}]

    def model_statistics(self, name: str | None = None, version: int | None = None) -> list[dict[str, Any]]:
        if name is not None:
            self.found(name, version)
        counted = {"name": name or "sums", **STATS}
        states = {3: "UNAVAILABLE", 2: "READY", 1: "READY"}
        return [
            {**counted, "version": number, "state": state, "inference_count": 10 * number}
            for number, state in states.items()
            if version in (None, number)
        ]

    def model_infer(
        self, name: str, inputs: Any, version: int | None = None, outputs: Any = None, timing: bool = False, **rest: Any
    ) -> dict[str, Any]:
        config = self.found(name, version)
        tensor = config["input"][0]
        given = inputs[tensor["name"]]
        count = int(np.prod(given["shape"]))
        dtype = np.dtype(TYPES[tensor["data_type"]])
        if "data" in given:
            data = given["data"]
        else:
            data = memoryview(self.buffers[given["buffer"]])[given.get("offset", 0) :][: count * dtype.itemsize]
        if len(data) != count * dtype.itemsize:
            raise InvalidError(f"{len(data)} bytes as {given['shape']}")
        x = 2 * np.frombuffer(data, dtype).reshape(given["shape"]).astype(np.float32)
        answer: dict[str, Any] = {}
        for output in config["output"]:
            y = x if output["dims"][-1] != 1 else x.sum(-1, keepdims=True)
            place = None if outputs is None else outputs.get(output["name"]) if isinstance(outputs, dict) else None
            if place is not None:
                offset = place.get("offset", 0)
                self.buffers[place["buffer"]][offset : offset + y.nbytes] = y.tobytes()
                answer[output["name"]] = {"shape": list(y.shape)}
            elif outputs is None or output["name"] in outputs:
                answer[output["name"]] = {"shape": list(y.shape), "data": y.tobytes()}
        times = {"queued_us": 5, "batch": 3, "device_us": None, "total_us": 9}
        return {"outputs": answer, "version": config["version"]} | ({"timing": times} if timing else {})
