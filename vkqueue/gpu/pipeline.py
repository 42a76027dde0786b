"""Pipelines, and the layouts and templates that they share.

Two threads meet here: the compile thread calls `build` and `save_cache`, the worker `get` and `destroy`. One lock
guards the tables, held for moments only; the driver compiles outside it. `get` takes no lock: a pipeline is published
by one store into a dict when it is complete, and one look-up sees it or does not.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vkqueue.errors import (
    CompileError,
    InternalError,
    InvalidError,
    UnsupportedError,
)
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.cache import PipelineCache
from vkqueue.gpu.device import Device
from vkqueue.gpu.hot import param
from vkqueue.gpu.layout import PipelineLayout, create_layout, destroy_layout
from vkqueue.gpu.shader import without_graphics_capabilities
from vkqueue.model import Layout, PipelineSpec

log = logging.getLogger("vkqueue.gpu")

_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT


class Pipeline:
    """A compiled kernel: VkPipeline as an int and for `Device.raw`, and its layout."""

    __slots__ = ("handle", "handle_param", "id", "layout")

    def __init__(self, id: int, handle: int, layout: PipelineLayout) -> None:
        self.id = id
        self.handle = handle
        self.handle_param = param(handle)
        self.layout = layout


class PipelineTable:
    """The pipelines of a device.

    Args:
        cache_dir: where the driver's compiled code is kept between runs, None for nowhere.
        on_layout_gone: called on the worker before a layout's objects are destroyed, for rings to go first.

    Attributes:
        get: W. id -> Pipeline, None when it was not built or is destroyed.
    """

    get: Callable[[int], Pipeline | None]

    def __init__(
        self,
        device: Device,
        cache_dir: Path | None = None,
        on_layout_gone: Callable[[PipelineLayout], None] | None = None,
    ) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._pipelines: dict[int, Pipeline] = {}
        self._layouts: dict[int, PipelineLayout] = {}
        self._idle: set[int] = set()  # layouts that no pipeline uses; only the worker destroys them
        self._building: set[int] = set()
        self._dropped: set[int] = set()  # destroyed while being built
        self._on_layout_gone = on_layout_gone
        self._cache = PipelineCache(device, cache_dir)
        self.get = self._pipelines.get

    def build(self, spec: PipelineSpec) -> None:
        """C. Compile one pipeline; afterwards `get` finds it. A second call with the same id does nothing.

        Raises:
            CompileError: the driver refused the module.
            UnsupportedError: the layout is beyond the device's limits.
            OutOfDeviceMemoryError, DeviceLostError
        """
        device = self._device
        with self._lock:
            if spec.id in self._pipelines or spec.id in self._building:
                return
            self._building.add(spec.id)
        layout = None
        handle = 0
        try:
            layout = self._acquire_layout(spec.layout)
            handle = self._compile(spec, layout)
        finally:
            with self._lock:
                self._building.discard(spec.id)
                dropped = spec.id in self._dropped
                self._dropped.discard(spec.id)
                if handle and layout is not None and not dropped:
                    self._pipelines[spec.id] = Pipeline(spec.id, handle, layout)
                elif layout is not None:
                    self._release_layout(layout)
            if dropped:
                device.destroy("VkPipeline", handle)

    def destroy(self, id: int) -> None:
        """W. Destroy a pipeline that no unfinished command buffer uses; an unknown id is ignored."""
        with self._lock:
            pipeline = self._pipelines.pop(id, None)
            if pipeline is not None:
                self._release_layout(pipeline.layout)
            elif id in self._building:
                self._dropped.add(id)
            gone = [self._layouts.pop(layout_id) for layout_id in self._idle]
            self._idle.clear()
        if pipeline is not None:
            self._device.destroy("VkPipeline", pipeline.handle)
        for layout in gone:
            self._destroy_layout(layout)

    def save_cache(self) -> None:
        """C. Write the driver's compiled code to disk if pipelines were built since. Never raises."""
        self._cache.save()

    def close(self) -> None:
        """W, once C has stopped. Save the cache and destroy everything; the device must be idle."""
        self.save_cache()
        for id in list(self._pipelines):
            self.destroy(id)
        self.destroy(0)  # layouts left by builds that failed
        self._cache.close()

    # --- pipelines ---------------------------------------------------------------------------------------------

    def _compile(self, spec: PipelineSpec, layout: PipelineLayout) -> int:
        if len(spec.spirv) < 20 or len(spec.spirv) % 4:
            raise InvalidError(f"a SPIR-V module of {len(spec.spirv)} bytes; expected a multiple of 4, at least 20")
        self._dump(spec.spirv)
        device = self._device
        what = f"entry point {spec.entry!r}" + (f" of {spec.label}" if spec.label else "")
        module = 0
        try:
            with Arena() as arena:
                code = without_graphics_capabilities(spec.spirv, device.enabled)
                info = arena.struct("VkShaderModuleCreateInfo", codeSize=len(code), pCode=code)
                module = device.create("VkShaderModule", info)
            return self._create(spec, layout, module)
        except (CompileError, InternalError, InvalidError, UnsupportedError) as error:
            if not (error.data and "result" in error.data):
                raise
            raise CompileError(
                f"the driver did not compile {what}: {error.message}", {**error.data, "entry": spec.entry}
            ) from error
        finally:
            device.destroy("VkShaderModule", module)

    def _create(self, spec: PipelineSpec, layout: PipelineLayout, module: int) -> int:
        device = self._device
        with Arena() as arena:
            stage = arena.struct(
                "VkPipelineShaderStageCreateInfo",
                stage=_COMPUTE_STAGE,
                module=module,
                pName=spec.entry,
                pSpecializationInfo=_specialization(arena, spec.specialization),
            )
            info = arena.struct("VkComputePipelineCreateInfo", stage=stage, layout=layout.handle)
            out = arena.out("VkPipeline[]", 1)
            device.calls.vkCreateComputePipelines(device.handle, self._cache.handle, 1, info, binding.ffi.NULL, out)
            handle = binding.address(out[0])
        device.live.add("VkPipeline")
        device.set_name(binding.vk.VK_OBJECT_TYPE_PIPELINE, handle, spec.label or spec.entry)
        self._cache.built += 1
        return handle

    def _dump(self, spirv: bytes) -> None:
        directory = self._device.options.dump_shaders
        if directory is None:
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{hashlib.sha256(spirv).hexdigest()[:16]}.spv").write_bytes(spirv)
        except OSError as error:
            log.warning("a shader was not saved to %s: %s", directory, error)

    # --- layouts -----------------------------------------------------------------------------------------------

    def _acquire_layout(self, shape: Layout) -> PipelineLayout:
        """One reference to the layout's objects; makes them at the first. Only the compile thread makes any."""
        with self._lock:
            layout = self._layouts.get(shape.id)
            if layout is not None:
                layout.references += 1
                self._idle.discard(shape.id)
                return layout
        layout = create_layout(self._device, shape)
        layout.references = 1
        with self._lock:
            self._layouts[shape.id] = layout
        return layout

    def _release_layout(self, layout: PipelineLayout) -> None:
        layout.references -= 1
        if not layout.references:
            self._idle.add(layout.layout.id)

    def _destroy_layout(self, layout: PipelineLayout) -> None:
        if self._on_layout_gone is not None:
            self._on_layout_gone(layout)
        destroy_layout(self._device, layout)


def _specialization(arena: Arena, constants: tuple[tuple[int, bytes], ...]) -> Any:
    if not constants:
        return None
    entries, data = [], b""
    for constant, value in constants:
        entries.append(arena.struct("VkSpecializationMapEntry", constantID=constant, offset=len(data), size=len(value)))
        data += value
    return arena.struct(
        "VkSpecializationInfo",
        mapEntryCount=len(entries),
        pMapEntries=entries,
        dataSize=len(data),
        pData=data,
    )
