"""Watches a backend's Vulkan calls: every command goes into a `Timeline`, and so does what the host does to memory.

Which memory a command touches is taken from what Vulkan is given (handles, offsets, descriptors), not from what the
daemon thinks of it; what a kernel does to its bindings from the table that the tests have of their kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from support.timeline import Barrier, Span, Timeline, Use
from vkqueue import large
from vkqueue.errors import DeviceLostError
from vkqueue.gpu import binding
from vkqueue.gpu.device import Device
from vkqueue.gpu.landing import Landed
from vkqueue.gpu.layout import DESCRIPTOR_BYTES, PipelineLayout
from vkqueue.gpu.mapped import Mapping
from vkqueue.gpu.mirrored import MirroredBuffer
from vkqueue.gpu.pipeline import PipelineTable

_IMPORT_HOST_POINTER = 1000178000  # VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT
# Memory that the host does not see lies behind all that it sees.
_UNSEEN = 1 << 60

_timelines: list[Timeline] = []
"""Of all devices that are open: the host's memory is one."""


class _Command:
    """A command buffer being recorded."""

    def __init__(self) -> None:
        self.entries: list[Any] = []  # Use, Barrier, or the handle of a secondary one
        self.pipeline = 0
        self.pushed: dict[int, list[tuple[int, int, int]]] = {}  # set number -> descriptors
        self.bound: dict[int, int] = {}  # set number -> VkDescriptorSet


class Watch:
    """The calls of one device.

    Args:
        accesses: SHA-256 of a module to ("r", "w" or "rw") of each of its descriptors, in order.
        say: is told of faults.
    """

    def __init__(self, device: Device, accesses: dict[str, tuple[str, ...]], say: Callable[[str], None]) -> None:
        self.timeline = Timeline(say)
        self._accesses = accesses
        self._device = device
        self._serials = itertools.count(1)
        self._fences: dict[int, int] = {}
        self._memory: dict[int, Span] = {}
        self._buffers: dict[int, int] = {}  # VkBuffer -> address of its first byte
        self._commands: dict[int, _Command] = {}
        self._sets: dict[int, list[tuple[int, int, int]]] = {}
        self._layouts: dict[int, PipelineLayout] = {}
        self._templates: dict[int, tuple[PipelineLayout, int]] = {}
        self._pipelines: dict[int, tuple[PipelineLayout, tuple[str, ...], str]] = {}
        self._unseen = _UNSEEN
        _timelines.append(self.timeline)
        device.raw = _Raw(device.raw, self)  # type: ignore[assignment]
        self._wrap(device.hot, "cmd_fill_buffer", self._fill)
        self._wrap(device.hot, "cmd_update_buffer", self._fill)
        self._wrap(device.hot, "begin_command_buffer", self._begin)
        self._wrap(device.hot, "bind_buffer_memory", self._bound)
        for call, seen in (
            ("vkAllocateMemory", self._allocated), ("vkMapMemory", self._mapped), ("vkBindBufferMemory", self._bound),
            ("vkQueueSubmit", self._submit),
        ):  # fmt: skip
            self._wrap_after(call, seen)
        self._wrap(device.calls, "vkFreeMemory", self._free_memory)
        self._wrap(device.calls, "vkDestroyDevice", lambda *_: self.end())
        self._wrap_wait()

    def end(self) -> None:
        """The device is gone."""
        self.timeline.lost()
        if self.timeline in _timelines:
            _timelines.remove(self.timeline)

    def learn(self, spirv: bytes, handle: int, layout: PipelineLayout, label: str) -> None:
        """A pipeline was built."""
        accesses = self._accesses.get(hashlib.sha256(spirv).hexdigest())
        if accesses is None:
            self.timeline.fault(label, f"{label}: the watch does not know this kernel")
            accesses = ("rw",) * sum(count for _, bindings in layout.layout.sets for _, _, count in bindings)
        self._layouts[layout.handle] = layout
        if layout.push_set is not None:
            self._templates[layout.push_template] = layout, layout.push_set
        for ring in layout.rings:
            self._templates[ring.template] = layout, ring.number
        self._pipelines[handle] = layout, accesses, label

    # Hooks

    @staticmethod
    def _wrap(table: Any, name: str, seen: Callable[..., None]) -> None:
        real = getattr(table, name)

        def watched(*args: Any) -> Any:
            seen(*args)
            return real(*args)

        setattr(table, name, watched)

    def _wrap_after(self, name: str, seen: Callable[..., None]) -> None:
        real = getattr(self._device.calls, name)

        def watched(*args: Any) -> Any:
            result = real(*args)
            seen(*args)
            return result

        setattr(self._device.calls, name, watched)

    def _wrap_wait(self) -> None:
        real = self._device.calls.vkWaitForFences

        def watched(device: Any, count: int, fences: Any, every: int, timeout: int) -> Any:
            serial = self._fences.get(binding.address(fences[0]))
            try:
                result = real(device, count, fences, every, timeout)
            except DeviceLostError:
                self.timeline.lost()
                raise
            if result == 0 and serial is not None:
                self.timeline.finished(serial)
            return result

        self._device.calls.vkWaitForFences = watched  # type: ignore[method-assign]

    # Memory

    def _allocated(self, _: Any, info: Any, __: Any, out: Any) -> None:
        size, chain, address = info.allocationSize, info.pNext, 0
        while chain != binding.ffi.NULL:
            head = binding.ffi.cast("VkBaseInStructure *", chain)
            if head.sType == _IMPORT_HOST_POINTER:
                address = binding.address(binding.ffi.cast("VkImportMemoryHostPointerInfoEXT *", chain).pHostPointer)
            chain = head.pNext
        if not address:
            address, self._unseen = self._unseen, self._unseen + size
        self._memory[binding.address(out[0])] = address, size

    def _mapped(self, _: Any, memory: int, __: int, ___: int, ____: int, out: Any) -> None:
        self._memory[memory] = binding.address(out[0]), self._memory[memory][1]

    def _free_memory(self, _: Any, memory: int, __: Any) -> None:
        first, size = self._memory.pop(memory)
        self.timeline.host(first, first + size, "memory is freed", writes=True)

    def _bound(self, _: Any, buffer: int, memory: int, offset: int) -> None:
        self._buffers[buffer] = self._memory[memory][0] + offset

    def _span(self, buffer: Any, offset: int, size: int) -> Span:
        first = self._buffers[_number(buffer)] + offset
        return first, first + size

    # Recording

    def _begin(self, command: int, _: int) -> None:
        self._commands[_number(command)] = _Command()

    def _add(self, command: Any, entry: Any) -> None:
        self._commands[_number(command)].entries.append(entry)

    def _fill(self, command: Any, target: Any, offset: int, size: int, _: Any) -> None:
        self._add(command, Use("a fill", True, (), (self._span(target, offset, size),)))

    def cmd_copy_buffer(self, command: Any, source: Any, target: Any, count: int, region: bytes) -> None:
        start, place, size = struct.unpack("<3Q", region)
        self._add(command, Use("a copy", True, (self._span(source, start, size),), (self._span(target, place, size),)))

    def cmd_pipeline_barrier(
        self, command: Any, before: int, after: int, flags: int, count: int, data: bytes, *_: Any
    ) -> None:
        *_, available, visible = struct.unpack("<IIQII", data)
        self._add(command, Barrier(before, after, available, visible))

    def cmd_execute_commands(self, command: Any, count: int, handles: bytes) -> None:
        for handle in struct.unpack(f"<{count}Q", handles):
            self._add(command, handle)

    def cmd_bind_pipeline(self, command: Any, _: int, pipeline: Any) -> None:
        self._commands[_number(command)].pipeline = _number(pipeline)

    def cmd_push_descriptor_set_with_template(
        self, command: Any, template: Any, layout: Any, number: int, data: Any
    ) -> None:
        shape, _ = self._templates[_number(template)]
        self._commands[_number(command)].pushed[number] = _descriptors(shape, number, data)

    def update_descriptor_set_with_template(self, _: Any, handle: Any, template: Any, data: Any) -> None:
        shape, number = self._templates[_number(template)]
        self.timeline.write_set(_number(handle))
        self._sets[_number(handle)] = _descriptors(shape, number, data)

    def cmd_bind_descriptor_sets(
        self, command: Any, _: int, __: Any, first: int, count: int, handles: bytes, *___: Any
    ) -> None:
        bound = self._commands[_number(command)].bound
        bound.update(enumerate(struct.unpack(f"<{count}Q", handles), first))

    def cmd_dispatch(self, command: Any, x: int, y: int, z: int) -> None:
        if not (x and y and z):
            return
        state = self._commands[_number(command)]
        layout, accesses, label = self._pipelines[state.pipeline]
        entries: list[tuple[int, int, int]] = []
        sets = []
        for number, _ in layout.layout.sets:
            if number == layout.push_set:
                entries += state.pushed[number]
            else:
                handle = state.bound[number]
                entries += self._sets[handle]
                sets.append((handle, self.timeline.version(handle)))
        spans = [
            (access, self._span(buffer, offset, size))
            for access, (buffer, offset, size) in zip(accesses, entries, strict=True)
            if buffer and size >= 4  # a kernel sees words; what stands for an empty range is none
        ]
        reads = tuple(span for access, span in spans if "r" in access)
        writes = tuple(span for access, span in spans if "w" in access)
        state.entries.append(Use(label, False, reads, writes, tuple(sets)))

    # The queue

    def _submit(self, _: Any, __: int, info: Any, fence: int) -> None:
        serial = next(self._serials)
        self._fences[fence] = serial
        handles = [binding.address(info.pCommandBuffers[i]) for i in range(info.commandBufferCount)]
        self.timeline.submit(serial, list(self._flat(handles)))

    def _flat(self, handles: list[int]) -> Iterator[Use | Barrier]:
        for handle in handles:
            for entry in self._commands[handle].entries:
                if type(entry) is int:
                    for inner in self._flat([entry]):
                        yield replace(inner, label=f"graph's {inner.label}") if type(inner) is Use else inner
                else:
                    yield entry


class _Raw:
    """The functions of `Device.raw`, each of which is told to the watch if it has a method of the name."""

    def __init__(self, raw: Any, watch: Watch) -> None:
        for name in raw.__slots__:
            setattr(self, name, getattr(raw, name))
            if hasattr(watch, name):
                Watch._wrap(self, name, getattr(watch, name))


def _number(value: Any) -> int:
    """A handle or address, as an int or prepared with `hot.param`."""
    return value if type(value) is int else int(repr(value).partition("(")[2][:-2], 16)


def _descriptors(layout: PipelineLayout, number: int, data: Any) -> list[tuple[int, int, int]]:
    """Those of one set, (VkBuffer, offset, size), out of the packed ones of a launch."""
    counts = [(n, sum(count for _, _, count in bindings)) for n, bindings in layout.layout.sets]
    total = sum(count for _, count in counts)
    if not isinstance(data, bytes):
        data = ctypes.string_at(_number(data), DESCRIPTOR_BYTES * total)
    every = list(struct.iter_unpack("<3Q", data))
    first = sum(count for n, count in counts if n < number)
    return every[first : first + dict(counts)[number]]  # type: ignore[return-value]


_mirroring = threading.local()
"""`what`: the thread is at a method of MirroredBuffer of this name."""


def _host(first: int, size: int, what: str, *, writes: bool) -> None:
    mirroring = getattr(_mirroring, "what", "")
    if mirroring == "take" or (mirroring and not writes):
        # What later batches write of it is the client's to see when those are over, and anything before.
        return
    for timeline in list(_timelines):
        # What is brought is the client's, and stays as it is while requests that read it are under way.
        timeline.host(first, first + size, what, writes=writes, anew=not mirroring)


def _of_mirror(name: str) -> Any:
    real = getattr(MirroredBuffer, name)

    def watched(*args: Any) -> Any:
        _mirroring.what = name
        try:
            return real(*args)
        finally:
            _mirroring.what = ""

    return mock.patch.object(MirroredBuffer, name, watched)


def _of_mapping(name: str) -> Any:
    """A method of Mapping that says what the host does."""
    real = getattr(Mapping, name)

    def watched(self: Mapping, offset: int, *args: Any) -> Any:
        size = len(args[0]) if name == "write" else args[-1]
        _host(self.address + offset, size, f"the host's {name}", writes=name in ("write", "zero"))
        return real(self, offset, *args)

    return mock.patch.object(Mapping, name, watched)


def _take(capacity: int, *, real: Any = large._take) -> Any:
    pages = real(capacity)
    if pages is not None:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(pages))
        _host(address, len(pages), "pages are handed out", writes=True)
    return pages


def _read_landed(self: Landed, *, real: Any = Landed.read) -> Any:
    _host(binding.address(binding.ffi.from_buffer(self.data)), self.size, "a result is read", writes=False)
    return real(self)


@contextmanager
def watched_host() -> Iterator[None]:
    """Inside, whatever the host does to memory is told to the watches."""
    with (
        _of_mapping("write"), _of_mapping("zero"), _of_mapping("read"), _of_mapping("copy"),
        _of_mirror("bring"), _of_mirror("take"),
        mock.patch.object(large, "_take", _take), mock.patch.object(Landed, "read", _read_landed),
    ):  # fmt: skip
        yield


@contextmanager
def watching(accesses: dict[str, tuple[str, ...]], say: Callable[[str], None]) -> Iterator[Callable[[Device], Watch]]:
    """Inside, what is returned watches a device; call it before a backend is made of it."""
    watches: dict[int, Watch] = {}
    build = PipelineTable.build

    def built(table: PipelineTable, spec: Any) -> None:
        build(table, spec)
        watch, pipeline = watches.get(id(table._device)), table.get(spec.id)
        if watch is not None and pipeline is not None:
            watch.learn(spec.spirv, pipeline.handle, pipeline.layout, spec.label or spec.entry)

    def watch(device: Device) -> Watch:
        watches[id(device)] = Watch(device, accesses, say)
        return watches[id(device)]

    with watched_host(), mock.patch.object(PipelineTable, "build", built):
        yield watch


__all__ = ["Watch", "watching"]
