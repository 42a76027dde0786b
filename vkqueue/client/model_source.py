"""What `load_model` is given, as what has to be sent for it: modules to load, weights to upload, and `model.load`.

name                      → the daemon's own repository has it
path of a folder          → read here, by `vkqueue.models.repository`
name, config, kernels, …  → as given
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkqueue.client.array import Array, BaseDeviceArray, Handle, host_array, host_bytes
from vkqueue.client.module import BaseModule, Source, load_params, module_params, source_params
from vkqueue.errors import InvalidError, brief
from vkqueue.models.repository import read_model
from vkqueue.models.source import KernelSource

KernelCode: TypeAlias = BaseModule[Any] | Source
WeightData: TypeAlias = npt.ArrayLike | bytes | bytearray | memoryview | BaseDeviceArray

# Of weights in a common buffer; no device asks for more of an offset.
_ALIGN = 256
# Of a buffer that weights share: arbitrary, and below what any device takes as one allocation.
_CHUNK_BYTES = 256 << 20


@dataclass(slots=True)
class Chunk:
    """A buffer to be made: tensors one behind the other.

    Attributes:
        names, parts: which, and where the bytes of each go.
    """

    size: int = 0
    names: list[str] = field(default_factory=list)
    parts: list[tuple[int, memoryview]] = field(default_factory=list)

    def add(self, name: str, data: memoryview) -> None:
        offset = -(-self.size // _ALIGN) * _ALIGN
        self.names.append(name)
        self.parts.append((offset, data))
        self.size = offset + len(data)


@dataclass(slots=True)
class LoadPlan:
    """All that a model needs, before anything of it is sent.

    Attributes:
        params: of `model.load`, without kernels and weights.
        modules: kernel → module that is loaded already.
        sources: kernel → parameters of the `module.load` to be sent.
        arrays: tensor → device array that has it.
        chunks: buffers to be uploaded; with few weights none: they go along in `inline`.
    """

    params: dict[str, Any]
    modules: dict[str, Handle] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, BaseDeviceArray] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    inline: dict[str, memoryview] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.params["name"])

    def message(self, modules: Mapping[str, Handle], buffers: Sequence[Handle]) -> dict[str, Any]:
        """The parameters of `model.load`.

        Args:
            modules: of `sources`.
            buffers: of `chunks`.
        """
        weights: dict[str, Any] = dict(self.inline)
        for chunk, buffer in zip(self.chunks, buffers, strict=True):
            for name, (offset, data) in zip(chunk.names, chunk.parts, strict=True):
                weights[name] = [buffer.id, offset, len(data)]
        for name, array in self.arrays.items():
            weights[name] = array.wire()
        params = dict(self.params)
        if "config" in params:
            loaded = {**self.modules, **modules}
            params["kernels"] = [{"name": name, "module": module.id} for name, module in loaded.items()]
            params["weights"] = weights
        return params


def plan(
    name: str | os.PathLike[str],
    config: Mapping[str, Any] | None,
    kernels: Mapping[str, KernelCode] | None,
    weights: Mapping[str, WeightData] | None,
    version: int | None,
    device: int | None,
    payload: int,
) -> LoadPlan:
    """What `load_model` has to do. Reads files.

    Args:
        payload: how many bytes of weights may go along with `model.load`.

    Raises:
        InvalidError: the arguments do not go together; a kernel or weight is none.
        NotFoundError: a folder, or a file in it, is not there.
        OSError: a kernel's file cannot be read.
    """
    options = {} if device is None else {"device": device}
    if config is None:
        if kernels is not None or weights is not None:
            raise InvalidError("kernels and weights go with a config; a folder or the daemon's repository has its own")
        if not _is_path(name):
            return LoadPlan({"name": name} | ({} if version is None else {"version": version}) | options)
        return _from_folder(Path(name), version, options, payload)
    if not isinstance(name, str):
        raise InvalidError(f"expected the model's name as a string with a config, got {brief(name)}")
    params = {"name": name, "config": dict(config)} | ({} if version is None else {"version": version}) | options
    found = LoadPlan(params)
    for key, code in (kernels or {}).items():
        if isinstance(code, BaseModule):
            code._handle.check(f"the module of kernel {key!r}")
            found.modules[key] = code._handle
        else:
            found.sources[key] = load_params(code, None, key)[0]
    data: dict[str, memoryview] = {}
    for key, value in (weights or {}).items():
        if isinstance(value, BaseDeviceArray):
            value.handle.check(f"the weight {key!r}")
            found.arrays[key] = value
        else:
            data[key] = _weight_bytes(key, value)
    _place(found, data, payload)
    return found


def _is_path(name: str | os.PathLike[str]) -> bool:
    """A plain name is one of the daemon's; what has a slash in it cannot be."""
    return not isinstance(name, str) or "/" in name or name in (".", "..")


def _from_folder(path: Path, version: int | None, options: Mapping[str, Any], payload: int) -> LoadPlan:
    source = read_model(path, version)
    found = LoadPlan({"name": source.name, "version": source.version, "config": source.config, **options})
    found.sources = {name: _kernel_params(kernel) for name, kernel in source.kernels.items()}
    _place(found, {name: weight.data for name, weight in source.weights.items()}, payload)
    return found


def _kernel_params(kernel: KernelSource) -> dict[str, Any]:
    if kernel.language == "spirv":
        return module_params(kernel.code, None, kernel.entry, kernel.name)
    return source_params(
        kernel.code.decode(), kernel.language, entry=kernel.entry, name=kernel.name, includes=kernel.includes
    )


def _weight_bytes(name: str, value: Any) -> memoryview:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).cast("B")
    array: Array = host_array(value)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidError(f"the weight {name!r}: expected numbers, got an array of {array.dtype}")
    return memoryview(host_bytes(np.ascontiguousarray(array)))


def _place(found: LoadPlan, data: Mapping[str, memoryview], payload: int) -> None:
    """Small weights into the message, all others into buffers."""
    if sum(map(len, data.values())) <= payload:
        found.inline = dict(data)
        return
    for name, bytes_ in data.items():
        if not found.chunks or found.chunks[-1].size + len(bytes_) > _CHUNK_BYTES:
            found.chunks.append(Chunk())
        found.chunks[-1].add(name, bytes_)
