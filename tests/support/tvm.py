"""Builds TVM's formats byte by byte, apart from the daemon's own writers."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

CODES = {"int": 0, "uint": 1, "float": 2, "handle": 3, "bfloat": 4}


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def dtype(text: str) -> bytes:
    """ "handle", "int32", "float32x4", or "CODE:BITS:LANES"."""
    if ":" in text:
        return struct.pack("<BBH", *map(int, text.split(":")))
    if text == "handle":
        return b"\x03\x40\x01\x00"
    base, _, lanes = text.partition("x")
    name = base.rstrip("0123456789")
    return struct.pack("<BBH", CODES[name], int(base[len(name) :]), int(lanes or 1))


@dataclass
class Kernel:
    """One kernel as a module holds it; `extra` None: zeros, one for each argument."""

    key: str = "k"
    args: list[str] = field(default_factory=lambda: ["handle"])
    tags: list[str] = field(default_factory=lambda: ["blockIdx.x"])
    spirv: bytes = b""
    flag: int = 0
    name: str = ""
    extra: list[int] | None = None


def module(kernels: list[Kernel], layout: str = "0.24", shaders: list[Kernel] | None = None) -> bytes:
    """The bytes form; `shaders` in another order, or others."""
    out = [string("vulkan"), u64(len(kernels))]
    for k in kernels:
        out += [string(k.key), string(k.name), u64(len(k.args)), *map(dtype, k.args), u64(len(k.tags))]
        out += map(string, k.tags)
        if layout != "0.20":
            extra = k.extra if k.extra is not None else [0] * len(k.args)
            out.append(struct.pack(f"<Q{len(extra)}i", len(extra), *extra))
    shaders = kernels if shaders is None else shaders
    out.append(u64(len(shaders)))
    for k in shaders:
        shader = struct.pack("<IQ", k.flag, len(k.spirv) // 4) + k.spirv
        out += [string(k.key), string(shader) if layout == "0.24" else shader]
    return b"".join(out)


def library(entries: list[tuple[str, bytes]], newer: bool = True) -> bytes:
    """The blob of an exported library; the first entry is usually ("_lib", b"")."""
    tree = u64(len(entries) + 1) + u64(0) * (len(entries) + 1) + u64(0)
    if newer:
        parts = [string(kind) + (string(data) if kind != "_lib" else b"") for kind, data in entries]
        body = tree + b"".join(parts)
    else:
        parts = [string(kind) + data for kind, data in entries]
        body = u64(len(entries) + 1) + b"".join(parts) + string("_import_tree") + tree
    return u64(len(body)) + body


@contextmanager
def at_most(peak: int) -> Iterator[None]:
    """Fail when what runs inside takes more memory at a time."""
    tracemalloc.start()
    try:
        yield
        _, found = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found < peak
