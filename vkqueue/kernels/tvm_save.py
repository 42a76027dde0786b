"""Modules in TVM's forms from what the daemon knows of a loaded module, whatever form it came in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkqueue.errors import UnsupportedError, brief
from vkqueue.kernels.tvm_format import MAX_ARGUMENTS, Function, Piece, Shader, TvmModule, write_bytes, write_file
from vkqueue.kernels.tvm_meta import write_meta
from vkqueue.kernels.tvm_types import HANDLE, DataType
from vkqueue.model import STORAGE

WORD = 8
"""Bytes of one scalar of TVM's."""
SCALARS = ("int32", "int64", "uint32", "float32", "float64")
"""Types that fit a word of TVM's; its own loader refuses the others."""

_GRID_TAGS = ["blockIdx.x", "blockIdx.y", "blockIdx.z"]


def packed(module: TvmModule) -> dict[str, Any]:
    """A module as plain values, as it travels between processes."""
    return {
        "layout": module.layout,
        "functions": [[f.key, f.name, f.arg_types, f.launch_tags, f.extra_tags] for f in module.functions],
        "shaders": [[s.key, s.flag, s.start, s.size] for s in module.shaders],
    }


def unpacked(doc: Mapping[str, Any]) -> TvmModule:
    """The module that `packed` gave."""
    functions = [
        Function(key, name, [DataType(*t) for t in types], tags, extra)
        for key, name, types, tags, extra in doc["functions"]
    ]
    return TvmModule(functions, [Shader(*shader) for shader in doc["shaders"]], doc["layout"])


def from_spirv(kernels: Mapping[str, Mapping[str, Any]], size: int) -> TvmModule:
    """A module made of kernels of one SPIR-V module of `size` bytes: each has all of it as its shader.

    Raises:
        UnsupportedError: a kernel takes what TVM cannot pass.
    """
    functions = []
    for name, kernel in kernels.items():
        reason = _misfit(kernel)
        if reason is not None:
            raise UnsupportedError(f"kernel {brief(name)} does not fit TVM's form: {reason}")
        buffers = 1 + max((b["binding"] for b in kernel["bindings"]), default=-1)
        types = [HANDLE] * buffers + [DataType.from_text(s["type"]) for s in kernel["scalars"]]
        functions.append(Function(name, "", types, _GRID_TAGS, None))
    return TvmModule(functions, [Shader(name, 0, 0, size) for name in kernels])


def _misfit(kernel: Mapping[str, Any]) -> str | None:
    """What TVM cannot pass to a kernel, None when it can all."""
    for b in kernel["bindings"]:
        what = f"set {b['set']}, binding {b['binding']}"
        if b["set"] or b["kind"] != STORAGE or b["count"] != 1:
            return f"{what} is no single storage buffer of set 0"
        if b["binding"] >= MAX_ARGUMENTS:
            return f"{what} is over the {MAX_ARGUMENTS} arguments that a function may have"
    for i, s in enumerate(kernel["scalars"]):
        if "count" in s or s["type"] not in SCALARS:
            return f"the scalar {s['name']!r} is of type {s['type']}" + (f"[{s['count']}]" if "count" in s else "")
        if s["offset"] != WORD * i:
            return f"the scalar {s['name']!r} is at byte {s['offset']}, in TVM's words of {WORD} bytes at {WORD * i}"
    return None


def save_bytes(module: TvmModule, layout: str | None) -> list[Piece]:
    """The bytes form; without a layout in that of loading, else in the newest."""
    return write_bytes(module, layout or module.layout or "0.24")


def save_file(module: TvmModule) -> tuple[list[Piece], str]:
    """The binary file, and its metadata."""
    return write_file(module.shaders), write_meta(module)
