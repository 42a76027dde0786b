"""What `load_model` is given, as what has to be sent for it: weights to upload, and `model.load`.

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
from vkqueue.client.model import which
from vkqueue.client.module import BaseModule, Source, load_params
from vkqueue.errors import InvalidError, brief
from vkqueue.models.repository import read_model

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
        size: bytes of the buffer.
        names, parts: which tensors, and for each the offset in the buffer, in bytes, and what goes there.
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
        kernels: entries of `kernels`.
        modules: loaded ones that are among them.
        arrays: tensor → device array that has it.
        chunks: buffers to be uploaded; with few weights none: they go along in `inline`.
    """

    params: dict[str, Any]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    modules: list[Handle] = field(default_factory=list)
    arrays: dict[str, BaseDeviceArray] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    inline: dict[str, memoryview] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.params["name"])

    def message(self, buffers: Sequence[Handle]) -> dict[str, Any]:
        """The parameters of `model.load`.

        Args:
            buffers: of `chunks`.
        """
        if "config" not in self.params:
            return self.params
        weights: dict[str, Any] = dict(self.inline)
        for chunk, buffer in zip(self.chunks, buffers, strict=True):
            for name, (offset, data) in zip(chunk.names, chunk.parts, strict=True):
                weights[name] = [buffer.id, offset, len(data)]
        for name, array in self.arrays.items():
            weights[name] = array.wire()
        return {**self.params, "kernels": self.kernels, "weights": weights}


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
        payload: how many bytes of data a message may carry.

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
            return LoadPlan(which(str(name), version) | options)
        return _from_folder(Path(name), version, options, payload)
    if not isinstance(name, str):
        raise InvalidError(f"expected the model's name as a string with a config, got {brief(name)}")
    params = which(name, version) | {"config": dict(config)} | options
    found = LoadPlan(params)
    for key, code in (kernels or {}).items():
        if isinstance(code, BaseModule):
            code._handle.check(f"the module of kernel {key!r}")
            found.modules.append(code._handle)
            found.kernels.append({"name": key, "module": code._handle.id})
        else:
            found.kernels.append(_kernel(key, load_params(code, None, None)[0]))
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
    for kernel in source.kernels.values():
        code = kernel.code if kernel.language == "spirv" else kernel.code.decode()
        options = {"entry": kernel.entry, "includes": dict(kernel.includes) or None}
        found.kernels.append({"name": kernel.name, "code": code, "language": kernel.language, **_given(options)})
    _place(found, {name: weight.data for name, weight in source.weights.items()}, payload)
    return found


def _kernel(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `kernels`, from the parameters of a `module.load`."""
    if "spirv" in params:
        return {"name": name, "code": params["spirv"], "language": "spirv"}
    if "source" not in params:
        raise InvalidError(f"the kernel {name!r}: a model takes SPIR-V or source text; this is a module of TVM's")
    options = {"entry": params.get("entry"), "includes": params.get("includes")}
    return {"name": name, "code": params["source"], "language": params["language"], **_given(options)}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _weight_bytes(name: str, value: Any) -> memoryview:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).cast("B")
    array: Array = host_array(value)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidError(f"the weight {name!r}: expected numbers, got an array of {array.dtype}")
    return memoryview(host_bytes(np.ascontiguousarray(array)))


def _place(found: LoadPlan, data: Mapping[str, memoryview], payload: int) -> None:
    """Small weights into the message, beside the kernels; else all into buffers."""
    code = sum(
        len(entry.get("code", "")) + sum(map(len, entry.get("includes", {}).values())) for entry in found.kernels
    )
    if sum(map(len, data.values())) + 4 * code <= payload:  # a character is up to 4 bytes
        found.inline = dict(data)
        return
    for name, bytes_ in data.items():
        if not found.chunks or found.chunks[-1].size + len(bytes_) > _CHUNK_BYTES:
            found.chunks.append(Chunk())
        found.chunks[-1].add(name, bytes_)
