"""What a kernel takes, as its reflection tells it: bindings, scalars, specialization constants."""

from __future__ import annotations

import difflib
import inspect
import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OPTIONS = (
    "grid", "elements", "launch", "scalars", "specialization", "priority", "deadline", "after", "timing",
    "device", "label", "inplace",
)  # fmt: skip
"""Keywords that a call understands itself; a scalar or binding of such a name has to be given another way."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a launch takes: a member of the push-constant block, or of a uniform block.

    Attributes:
        type: "int8" to "int64", "uint8" to "uint64", "float16" to "float64", or "bool32".
        offset: in bytes within the block.
        count: how many values, None for a single one; `stride` is their distance in bytes.
        where: "push", or "uniform" for a TVM kernel that takes its scalars in a buffer.
    """

    name: str
    type: str
    offset: int = 0
    count: int | None = None
    stride: int = 0
    where: str = "push"

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Scalar:
        return cls(
            name=wire["name"],
            type=wire["type"],
            offset=wire.get("offset", 0),
            count=wire.get("count"),
            stride=wire.get("stride") or 0,
            where=wire.get("where", "push"),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + (f"[{self.count}]" if self.count is not None else "")


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer that a launch takes.

    Attributes:
        kind: "storage" or "uniform".
        access: "none", "read", "write" or "read_write": what the kernel does with it.
        name: as in the source, empty where the module has no names.
        count: length of the descriptor array; 1 for an ordinary binding.
        size: bytes of the fixed part; `stride`: element size of the run-time array behind it, 0 for none.
        members: of a uniform block, for calls that give it as a dict.
    """

    set: int
    binding: int
    kind: str = "storage"
    access: str = "read_write"
    name: str = ""
    count: int = 1
    stride: int = 0
    size: int = 0
    members: tuple[Scalar, ...] = ()

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Binding:
        return cls(
            set=wire["set"],
            binding=wire["binding"],
            kind=wire["kind"],
            access=wire["access"],
            name=wire.get("name") or "",
            count=wire.get("count", 1),
            stride=wire.get("stride") or 0,
            size=wire.get("size") or 0,
            members=tuple(Scalar.from_wire(m) for m in wire.get("members") or ()),
        )

    @property
    def written(self) -> bool:
        """Whether the kernel writes it."""
        return self.access in ("write", "read_write")

    @property
    def label(self) -> str:
        """How messages call it."""
        where = f"set {self.set}, binding {self.binding}"
        return f"argument {self.name!r} ({where})" if self.name else f"the argument of {where}"

    def __str__(self) -> str:
        text = f"{self.name or f'(set {self.set}, binding {self.binding})'}: {self.access}"
        if self.kind == "uniform":
            text += " uniform"
        if self.count != 1:
            text += f" list of {self.count}"
        if self.stride:
            text += f", elements of {self.stride} B"
        return text + (f", at least {self.size} B" if self.size else "")


@dataclass(frozen=True, slots=True)
class SpecConstant:
    """A constant that may be set when the kernel is compiled, by `specialization={name or id: value}`."""

    id: int
    name: str
    type: str
    default: int | float | bool

    def __str__(self) -> str:
        return f"{self.name or self.id}: {self.type} = {self.default}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A kernel's reflection.

    Attributes:
        local_size: invocations of one work group, with specialization constants at their defaults.
        local_size_varies: whether it depends on specialization constants; None if the daemon did not say.
        local_size_ids: the one that is each dimension (None for a fixed one); None if the daemon did not say.
        launch_tags: of a TVM kernel, the launch parameters that it takes; None for any other.
        unsupported: why this device cannot run it; empty when it can.
    """

    name: str
    local_size: tuple[int, int, int]
    bindings: tuple[Binding, ...]
    scalars: tuple[Scalar, ...]
    push_constant_bytes: int
    specialization: tuple[SpecConstant, ...]
    capabilities: tuple[str, ...]
    launch_tags: tuple[str, ...] | None
    local_size_varies: bool | None
    local_size_ids: tuple[int | None, ...] | None
    unsupported: str

    @classmethod
    def from_wire(cls, name: str, wire: Mapping[str, Any]) -> Signature:
        x, y, z = wire["local_size"]
        tags, ids = wire.get("launch_param_tags"), wire.get("local_size_ids")
        return cls(
            name=name,
            local_size=(x, y, z),
            bindings=tuple(Binding.from_wire(b) for b in wire["bindings"]),
            scalars=tuple(Scalar.from_wire(s) for s in wire["scalars"]),
            push_constant_bytes=wire.get("push_constant_bytes", 0),
            specialization=tuple(
                SpecConstant(c["id"], c.get("name") or "", c["type"], c["default"])
                for c in wire.get("specialization") or ()
            ),
            capabilities=tuple(wire.get("capabilities") or ()),
            launch_tags=None if tags is None else tuple(tags),
            local_size_varies=wire.get("local_size_spec"),
            local_size_ids=None if ids is None else tuple(ids),
            unsupported=wire.get("unsupported") or "",
        )

    def call(self) -> str:
        """How to call it, such as `saxpy(x, y, a=float32, n=uint32, grid=(x, y, z) | elements=…)`."""
        parts = [b.name or f"b{b.set}_{b.binding}" for b in self.bindings]
        for s in self.scalars:
            value = s.type + (f"[{s.count}]" if s.count is not None else "")
            parts.append(f"{s.name}={value}")
        launch = "" if self.launch_tags is None else f" | launch=[{', '.join(self.launch_tags)}]"
        parts.append(f"grid=(x, y, z) | elements=(x, y, z){launch}")
        return f"{self.name}({', '.join(parts)})"

    def describe(self) -> str:
        """The call and what each argument is, a line each."""
        x, y, z = self.local_size
        lines = [self.call(), f"  work group: {x} x {y} x {z}"]
        lines += [f"  {b}" for b in self.bindings]
        lines += [f"  {s} ({s.where})" for s in self.scalars]
        lines += [f"  specialization {c}" for c in self.specialization]
        if self.unsupported:
            lines.append(f"  not on this device: {self.unsupported}")
        return "\n".join(lines)

    def python_signature(self) -> inspect.Signature:
        """For `help()` and interactive tools: the arguments by their names."""
        names: list[str] = []
        for b in self.bindings:
            fits = usable_name(b.name) and b.name not in names
            names.append(b.name if fits else f"b{b.set}_{b.binding}")
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        for s in self.scalars:
            if usable_name(s.name) and s.name not in names:
                names.append(s.name)
                parameters.append(inspect.Parameter(s.name, inspect.Parameter.KEYWORD_ONLY, annotation=s.type))
        only = inspect.Parameter.KEYWORD_ONLY
        parameters += [inspect.Parameter(o, only, default=None) for o in OPTIONS if o not in names]
        return inspect.Signature(parameters)


def usable_name(name: str) -> bool:
    """Whether `name` can be a keyword argument of a call that is written out."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in OPTIONS


def suggestion(name: str, known: Iterable[str]) -> str:
    """" Did you mean 'x'?" or nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""
