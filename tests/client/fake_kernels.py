"""Kernels of the fake daemon: reflections as the real one sends them, and what they do in NumPy.

A fake module is the bytes b"fake:name,name". A kernel's function gets one byte array for each descriptor (changed
in place), the scalars by name, and how many invocations there are in x.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[list[Any], dict[str, Any], int], None]

FORMATS = {"uint32": "I", "int32": "i", "float32": "f", "float16": "e", "bool32": "I", "uint8": "B", "int64": "q"}


def storage(binding: int, access: str, name: str = "", *, set: int = 0, **more: Any) -> dict[str, Any]:
    entry = {"set": set, "binding": binding, "kind": "storage", "access": access, "name": name}
    return {**entry, "count": 1, "stride": 4, "size": 0, **more}


def scalar(name: str, type: str, offset: int, **more: Any) -> dict[str, Any]:
    size = struct.calcsize(FORMATS[type])
    return {"name": name, "type": type, "offset": offset, "size": size, "where": "push", **more}


def reflection(bindings: list[Any], scalars: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    scalars = scalars or []
    end = max(
        (s["offset"] + (s.get("count", 1) - 1) * s.get("stride", s["size"]) + s["size"] for s in scalars), default=0
    )
    return {
        "local_size": [64, 1, 1], "bindings": bindings, "scalars": scalars, "push_constant_bytes": end,
        "specialization": [], "capabilities": ["Shader"], **more,
    }  # fmt: skip


def floats(data: Any) -> Any:
    return data.view(np.float32)


def axpy(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    x, y = map(floats, buffers)
    n = min(scalars["n"], count)
    y[:n] += np.float32(scalars["a"]) * x[:n]


def copy(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    source, target = buffers
    size = min(len(source), len(target), 4 * count)
    target[:size] = source[:size]


def fill(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    floats(buffers[0])[:count] = scalars["value"]


def swap(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    left, right = map(floats, buffers)
    left[:], right[:] = right.copy(), left.copy()


def affine(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    scale, low, high = buffers[0].view(np.float32)[:3]
    y = floats(buffers[1])
    y[:] = np.clip(y * scale, low, high)


def pick(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    floats(buffers[0])[:] = floats(buffers[1 + scalars["which"]])


def mixed(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    out = floats(buffers[0])
    out[:] = [scalars["on"], *scalars["v"], scalars["h"], scalars["big"], scalars["small"]]


def nothing(buffers: list[Any], scalars: dict[str, Any], count: int) -> None:
    pass


AFFINE_MEMBERS = [
    {"name": "scale", "type": "float32", "offset": 0, "size": 4},
    {"name": "bounds", "type": "float32", "offset": 4, "size": 8, "count": 2},
]

KERNELS: dict[str, tuple[dict[str, Any], Run]] = {
    "axpy": (
        reflection(
            [storage(0, "read", "x"), storage(1, "read_write", "y")],
            [scalar("n", "uint32", 0), scalar("a", "float32", 4)],
        ),
        axpy,
    ),
    "copy": (reflection([storage(0, "read", "src"), storage(1, "write", "dst")]), copy),
    "fill": (reflection([storage(0, "write")], [scalar("value", "float32", 0)]), fill),
    "swap": (reflection([storage(0, "read_write", "left"), storage(1, "read_write", "right")]), swap),
    "affine": (
        reflection([
            {"set": 0, "binding": 0, "kind": "uniform", "access": "read", "name": "params", "count": 1, "stride": 0,
             "size": 12, "members": AFFINE_MEMBERS},
            storage(0, "read_write", "y", set=1),
        ]),
        affine,
    ),
    "pick": (
        reflection(
            [storage(0, "write", "dst"), storage(1, "read", "xs", count=4)], [scalar("which", "uint32", 0)]
        ),
        pick,
    ),
    "mixed": (
        reflection(
            [storage(0, "write", "dst")],
            [
                # In no order, with gaps: as a module may declare them.
                scalar("big", "int64", 24),
                scalar("on", "bool32", 0),
                scalar("v", "int32", 4, count=3, stride=4),
                scalar("h", "float16", 16),
                scalar("small", "uint8", 18),
            ],
        ),
        mixed,
    ),
    "nothing": (reflection([]), nothing),
    "sized": (
        reflection(
            [storage(0, "write", "dst", size=16)],
            specialization=[{"id": 3, "name": "block", "type": "uint32", "default": 64}],
            local_size_ids=[3, None, None],
        ),
        nothing,
    ),
    "tvm": (
        reflection(
            [storage(0, "write", "dst")],
            [scalar("n", "int32", 0), scalar("value", "float32", 8)],
            launch_param_tags=["blockIdx.x", "threadIdx.x"],
        ),
        fill,
    ),
    "refused": (reflection([storage(0, "read")], unsupported="the device has no shaderFloat64"), nothing),
}  # fmt: skip


def read_scalars(members: list[dict[str, Any]], given: Any) -> dict[str, Any]:
    """Scalars by name, from any of the forms that `dispatch` takes."""
    if isinstance(given, dict):
        return given
    values: dict[str, Any] = {}
    if isinstance(given, list):
        rest = list(given)
        for member in members:
            count = member.get("count")
            values[member["name"]] = rest.pop(0) if count is None else [rest.pop(0) for _ in range(count)]
        assert not rest
        return values
    for member in members:
        step = member.get("stride", member["size"])
        items = [
            struct.unpack_from("<" + FORMATS[member["type"]], given, member["offset"] + i * step)[0]
            for i in range(member.get("count", 1))
        ]
        values[member["name"]] = items if "count" in member else items[0]
    return values
