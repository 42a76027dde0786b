"""Modules and kernels as a user sees them; the part that needs no I/O."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from vkqueue.client.arguments import plain
from vkqueue.client.array import Handle
from vkqueue.client.elf import ELF_MAGIC, library_bytes
from vkqueue.client.launch import LaunchPlan
from vkqueue.client.many import ManyLaunch, ManyPlan
from vkqueue.client.recording import active
from vkqueue.client.signature import Binding, Scalar, Signature, SpecConstant, suggestion
from vkqueue.errors import InvalidError, NotFoundError, brief
from vkqueue.source_file import language_of, read_source

Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview

_TVM_FILE_MAGIC = b"\x27\x00\x70\x02"
_TVM_BYTES_START = (6).to_bytes(8, "little") + b"vulkan"


def module_params(data: bytes, meta: str | None, entry: str | None, name: str | None) -> dict[str, Any]:
    """Parameters of `module.load` for a module's bytes, by what they start with.

    Args:
        meta: the metadata that belongs to a file of TVM's.
    """
    if data.startswith(_TVM_FILE_MAGIC):
        if meta is None:
            raise InvalidError(
                "a file of TVM's needs its metadata: load it by its path, with the .tvm_meta.json file beside it"
            )
        params: dict[str, Any] = {"tvm_file": data, "tvm_meta": meta}
    elif data.startswith(_TVM_BYTES_START):
        params = {"tvm": data}
    elif len(data) >= 8 and int.from_bytes(data[:8], "little") == len(data) - 8:
        params = {"tvm_library": data}
    else:  # also what is none at all: the daemon says what is wrong with it
        params = {"spirv": data}
    return params | _named(entry, name)


def source_params(
    source: str,
    language: str,
    *,
    entry: str | None = None,
    name: str | None = None,
    defines: Mapping[str, Any] | None = None,
    includes: Mapping[str, str] | None = None,
    target_env: str | None = None,
) -> dict[str, Any]:
    """Parameters of `module.load` for source text."""
    params: dict[str, Any] = {"source": source, "language": language}
    if defines:
        params["defines"] = {str(k): plain(v) for k, v in defines.items()}
    if includes:
        params["includes"] = dict(includes)
    if target_env is not None:
        params["target_env"] = target_env
    return params | _named(entry, name)


def _named(entry: str | None, name: str | None) -> dict[str, str]:
    return {key: value for key, value in (("entry", entry), ("name", name)) if value is not None}


def read_module(source: Source) -> tuple[bytes, str | None, str]:
    """(bytes, metadata of a file of TVM's, name) of a module given by its path or its bytes. Reads files.

    Of a shared object that TVM exported the bytes are what it embeds.

    Raises:
        InvalidError: neither; a shared object without modules of TVM's.
        OSError: the file cannot be read.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), None, ""
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidError(f"a module is given by its path or its bytes, got {brief(source)}")
    path = Path(source)
    with path.open("rb") as file:
        data = file.read(len(ELF_MAGIC))
        if data == ELF_MAGIC:
            return library_bytes(path), None, path.stem
        data += file.read()
    meta = None
    if data.startswith(_TVM_FILE_MAGIC):
        meta = path.with_suffix(".tvm_meta.json").read_text(encoding="utf-8")
    return data, meta, path.stem


def load_params(source: Source, entry: str | None, name: str | None) -> tuple[dict[str, Any], str]:
    """Parameters of `module.load`, and the module's name; of a path by what it ends with or what is there. Reads files.

    Raises:
        InvalidError, OSError: as `read_module`; a source file is no UTF-8.
    """
    language = language_of(source) if isinstance(source, (str, os.PathLike)) else None
    if language is not None:
        file, stem = read_source(source, language), Path(source).stem  # type: ignore[arg-type]  # a path, see above
        title = name if name is not None else stem
        return source_params(file.text, language, entry=entry, name=title or None, includes=file.includes), title
    data, meta, stem = read_module(source)
    title = name if name is not None else stem
    return module_params(data, meta, entry, title or None), title


@dataclass(frozen=True, slots=True)
class Saved:
    """A module in one of TVM's formats: its bytes, and the metadata that goes with format "tvm_file"."""

    data: bytes = field(repr=False)
    meta: str | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Saved:
        return cls(bytes(wire["data"]), wire.get("meta"))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, and beside it the metadata if there is any."""
        target = Path(path)
        target.write_bytes(self.data)
        if self.meta is not None:
            target.with_suffix(".tvm_meta.json").write_text(self.meta, encoding="utf-8")


class BaseKernel:
    """A kernel of a module: what it takes, and how to call it."""

    def __init__(self, client: Any, plan: LaunchPlan) -> None:
        self._client = client
        self._plan = plan

    def _many(self, args: Sequence[Any], count: int | None, keywords: Mapping[str, Any]) -> ManyLaunch:
        """What `many` sends."""
        if self._client.core.recordings and active(self._client.core) is not None:
            raise InvalidError("a graph is recorded from single launches; call the kernel for each")
        most = self._client.limits.max_many_launches
        return ManyPlan(self._plan, most, count).prepare(args, keywords)

    @property
    def reflection(self) -> Signature:
        """All that is known of it."""
        return self._plan.signature

    @property
    def name(self) -> str:
        return self._plan.signature.name

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The buffers it takes, in the order of the arguments."""
        return self._plan.signature.bindings

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The numbers it takes, by keyword."""
        return self._plan.signature.scalars

    @property
    def specialization(self) -> tuple[SpecConstant, ...]:
        return self._plan.signature.specialization

    @property
    def local_size(self) -> tuple[int, int, int]:
        """Invocations of one work group."""
        return self._plan.signature.local_size

    @property
    def unsupported(self) -> str:
        """Why the connection's device cannot run it; empty when it can."""
        return self._plan.signature.unsupported

    @property
    def __signature__(self) -> inspect.Signature:
        return self._plan.signature.python_signature()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan.signature.describe()}>"


K = TypeVar("K", bound=BaseKernel)


class BaseModule(Generic[K]):
    """A loaded module: a collection of kernels.

    Attributes:
        name: as given when loading, else the file's; may be empty.
        kernels: by name.
    """

    def __init__(self, client: Any, handle: Handle, name: str, kernels: dict[str, K]) -> None:
        self._client = client
        self._handle = handle
        self.name = name
        self.kernels: Mapping[str, K] = MappingProxyType(kernels)

    @property
    def kernel(self) -> K:
        """The only kernel.

        Raises:
            InvalidError: there are several.
        """
        if len(self.kernels) != 1:
            raise InvalidError(f"the module has {len(self.kernels)} kernels, choose one: {', '.join(self.kernels)}")
        return next(iter(self.kernels.values()))

    def __getitem__(self, name: str) -> K:
        try:
            return self.kernels[name]
        except KeyError:
            raise NotFoundError(
                f"the module has no kernel {name!r}; it has {', '.join(self.kernels)}.{suggestion(name, self.kernels)}"
            ) from None

    def _params(self, **further: str | None) -> dict[str, Any]:
        """Parameters of a request about the module, those that are None left out."""
        self._handle.check(f"the module {self.name!r}")
        return {"module": self._handle.id} | {key: value for key, value in further.items() if value is not None}

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __contains__(self, name: object) -> bool:
        return name in self.kernels

    def __repr__(self) -> str:
        state = " unloaded" if self._handle.dead else ""
        return f"<{type(self).__name__} {self.name!r}{state}: {', '.join(self.kernels)}>"
