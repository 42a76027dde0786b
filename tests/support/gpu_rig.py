"""Runs hand-made rows on a Vulkan backend, flagged by the real stream, for tests in tests/gpu."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vkqueue.errors import VkqueueError
from vkqueue.gpu.device import Device, MemoryType
from vkqueue.gpu.vulkan import VulkanBackend, VulkanSubmission
from vkqueue.jobs.stream import Stream
from vkqueue.model import (
    COPY,
    CREATE,
    DISPATCH,
    FILL,
    READ,
    STORAGE,
    UNIFORM,
    WRITE,
    Batch,
    Completion,
    Layout,
    Options,
    PipelineSpec,
    Range,
    Release,
    Row,
    Shared,
    Token,
)

KERNELS = Path(__file__).resolve().parent.parent / "gpu" / "kernels"

# name -> (((set, binding, kind, count, access), ...), push-constant bytes)
SHAPES: dict[str, tuple[tuple[tuple[int, int, str, int, str], ...], int]] = {
    "axpy": (((0, 0, STORAGE, 1, "r"), (0, 1, STORAGE, 1, "rw")), 8),
    "add_uniform": (((0, 0, STORAGE, 1, "rw"), (0, 1, UNIFORM, 1, "r")), 0),
    "add": (((0, 0, STORAGE, 1, "r"), (0, 1, STORAGE, 1, "r"), (0, 2, STORAGE, 1, "w")), 0),
    "scale": (((0, 0, STORAGE, 1, "r"), (0, 1, STORAGE, 1, "w")), 4),
    "shift": (((0, 0, STORAGE, 1, "rw"),), 4),
    "increment": (((0, 0, STORAGE, 1, "rw"),), 0),
    "length": (((0, 0, STORAGE, 1, "r"), (0, 1, STORAGE, 1, "w")), 0),
    "sets": (((0, 1, STORAGE, 1, "r"), (2, 0, UNIFORM, 1, "r"), (3, 5, STORAGE, 2, "w")), 0),
    "reach": (((0, 0, STORAGE, 1, "rw"), (0, 1, UNIFORM, 1, "r"), (0, 2, STORAGE, 1, "rw")), 12),
    "heavy": (((0, 0, STORAGE, 1, "rw"),), 0),
}

Entry = Any
"""A buffer id, (id, offset, size), or a transient: ("in" | "inout" | "uniform", bytes), ("out", size)."""

LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8
# What a device with one memory type (lavapipe) claims to have instead: flags and heap of each type, in one heap or two.
# The type that is really allocated from is its only one.
MEMORY = {
    "resizable BAR": ((LOCAL | VISIBLE | COHERENT, 0), (VISIBLE | COHERENT | CACHED, 1)),
    "discrete": ((LOCAL, 0), (VISIBLE | COHERENT | CACHED, 1)),
    "not coherent": ((LOCAL | VISIBLE | CACHED, 0),),
}
KINDS = ("unified", *MEMORY)


def disguise(device: Device, kind: str) -> None:
    """Let a device with one memory type pass for another kind; any other device stays what it is."""
    if kind in MEMORY and len(device.memory_types) == 1:
        device.memory_types = tuple(MemoryType(0, flags, heap) for flags, heap in MEMORY[kind])
        device.heaps = device.heaps * 2

WAIT_S = 30.0


class Rig:
    """A backend with the tables that the daemon would keep.

    Args:
        naive: put a barrier and INIT on every row instead of asking the stream, and let the host do nothing.
    """

    def __init__(self, backend: VulkanBackend, *, naive: bool = False) -> None:
        self.backend = backend
        info = backend.info
        self.stream = Stream(
            info.max_push_descriptors, 0 if naive else info.direct_write_max, 0 if naive else info.direct_read_max
        )
        self.sizes: dict[int, int] = {}
        self.session = 1
        self._ids = iter(range(1, 1 << 40))
        self._layouts: dict[str, Layout] = {}
        self._pipelines: dict[str, int] = {}
        self._tokens: dict[Any, Token] = {}

    # --- kernels -------------------------------------------------------------------------------------------------

    def layout(self, kernel: str) -> Layout:
        layout = self._layouts.get(kernel)
        if layout is None:
            bindings, push = SHAPES[kernel]
            sets: dict[int, list[tuple[int, str, int]]] = {}
            for number, binding, kind, count, _ in bindings:
                sets.setdefault(number, []).append((binding, kind, count))
            shape = tuple((number, tuple(entries)) for number, entries in sorted(sets.items()))
            for other in self._layouts.values():
                if (other.sets, other.push_constant_bytes) == (shape, push):
                    layout = other
            layout = layout or Layout(next(self._ids), shape, push)
            self._layouts[kernel] = layout
        return layout

    def pipeline(self, kernel: str) -> int:
        """The id of a kernel's pipeline, built at the first call."""
        id = self._pipelines.get(kernel)
        if id is None:
            id = self._pipelines[kernel] = next(self._ids)
            spirv = (KERNELS / f"{kernel}.spv").read_bytes()
            self.backend.compile(PipelineSpec(id, self.layout(kernel), spirv, "main", label=kernel))
        return id

    # --- rows ----------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        kernel: str,
        args: Sequence[Entry],
        constants: bytes = b"",
        grid: tuple[int, int, int] = (1, 1, 1),
        options: Options | None = None,
    ) -> Row:
        entries: list[tuple[int, int, int]] = []
        payload: list[Any] = []
        reads: list[Range] = []
        writes: list[Range] = []
        accesses = [access for *_, count, access in SHAPES[kernel][0] for _ in range(count)]
        for arg, access in zip(args, accesses, strict=True):
            if isinstance(arg, int):
                arg = (arg, 0, self.sizes[arg])
            if isinstance(arg[0], str):
                kind, value = arg
                entries.append((0, len(payload), value if kind == "out" else len(value)))
                payload.append(arg)
                continue
            id, offset, size = arg
            entries.append((id, offset, size))
            if size and "r" in access:
                reads.append((id, offset, offset + size))
            if size and "w" in access:
                writes.append((id, offset, offset + size))
        token = self._token(self.layout(kernel), entries, reads, writes, cached=not payload)
        return self._row(DISPATCH, token, self.pipeline(kernel), constants, grid, tuple(payload) or None, options)

    def create(self, content: int | bytes) -> tuple[int, Row]:
        """A buffer of a size (zeroed) or with these bytes: its id and the row that creates it."""
        id = next(self._ids)
        data = None if isinstance(content, int) else content
        size = content if isinstance(content, int) else len(content)
        self.sizes[id] = size
        token = self._token(None, (), (), ((id, 0, size),) if size else ())
        return id, self._row(CREATE, token, id, payload=(size, data))

    def share(self, shared: Shared, size: int) -> tuple[int, Row]:
        """A buffer of memory that somebody shares."""
        id = next(self._ids)
        self.sizes[id] = size
        return id, self._row(CREATE, self._token(None, (), (), ()), id, payload=(size, shared))

    def write(self, id: int, data: Any, offset: int = 0) -> Row:
        return self._row(WRITE, self._token(None, (), (), ((id, offset, offset + len(data)),)), payload=data)

    def read(self, id: int, offset: int = 0, size: int | None = None) -> Row:
        end = self.sizes[id] if size is None else offset + size
        return self._row(READ, self._token(None, (), ((id, offset, end),) if end > offset else (), ()))

    def fill(self, id: int, word: int, offset: int, size: int) -> Row:
        return self._row(FILL, self._token(None, (), (), ((id, offset, offset + size),)), payload=word)

    def copy(self, source: int, start: int, target: int, place: int, size: int) -> Row:
        ranges = ((source, start, start + size),), ((target, place, place + size),)
        return self._row(COPY, self._token(None, (), *ranges))

    def _row(
        self,
        op: int,
        token: Token,
        target: int = 0,
        constants: bytes = b"",
        grid: tuple[int, int, int] = (0, 0, 0),
        payload: Any = None,
        options: Options | None = None,
    ) -> Row:
        return (self.session, next(self._ids), op, token, target, constants, grid, payload, 0, options)

    def _token(self, layout: Layout | None, entries: Any, reads: Any, writes: Any, *, cached: bool = True) -> Token:
        key = (layout.id if layout else 0, tuple(entries), tuple(reads), tuple(writes))
        token = self._tokens.get(key) if cached else None
        if token is None:
            token = Token(next(self._ids), layout, *key[1:], cached=cached)
            if cached:
                self._tokens[key] = token
        return token

    # --- batches -------------------------------------------------------------------------------------------------

    def batch(self, rows: Sequence[Row]) -> Batch:
        return self.stream.make_batch(list(rows), next(self._ids), "idle", 0)

    def submit(self, *rows: Row) -> VulkanSubmission:
        return self.backend.submit(self.batch(rows))

    def finish(self, submission: VulkanSubmission) -> Completion:
        """Wait, collect, retire."""
        assert self.backend.wait(submission, WAIT_S), "the device did not finish"
        completion = self.backend.collect(submission)
        self.stream.completed(submission.batch.serial)
        self.backend.retire(submission)
        return completion

    def run(self, *rows: Row) -> Completion:
        """Submit and finish, whatever fails."""
        return self.finish(self.submit(*rows))

    def results(self, *rows: Row) -> list[list[Any]]:
        """Run rows that all succeed; the results of those that have any, in order."""
        completion = self.run(*rows)
        for error in completion.errors.values():
            raise error
        return [completion.results[index] for index in sorted(completion.results)]

    def buffer(self, content: int | bytes) -> int:
        """Create a buffer at once."""
        id, row = self.create(content)
        self.results(row)
        return id

    def bytes_of(self, id: int) -> bytes:
        """Read a whole buffer at once."""
        return bytes(self.results(self.read(id))[0][0])

    def ints_of(self, id: int) -> list[int]:
        data = self.bytes_of(id)
        return list(struct.unpack(f"<{len(data) // 4}i", data))

    def release(self, *ids: int, pipelines: tuple[int, ...] = ()) -> None:
        self.backend.release(Release(ids, pipelines))
        self.stream.forget(ids)


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def error_of(completion: Completion, index: int) -> VkqueueError:
    """The error of one row, which must be the only one."""
    assert list(completion.errors) == [index], completion.errors
    return completion.errors[index]
