"""A kernel's plan: how one launch is checked and packed into the parts of a row.

A plan is made once per kernel (and set of specialization values) and device. Everything that does not depend on the
message is worked out here, so that a launch costs a dictionary look-up for its arguments, one `struct.pack` for its
scalars and three comparisons for its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from vkqueue.errors import InvalidError, TooLargeError, brief
from vkqueue.kernels.launch import LaunchTags
from vkqueue.kernels.scalars import ScalarPacker
from vkqueue.model import STORAGE, UNIFORM, Layout, Range


class BoundBuffer(Protocol):
    """What a plan asks of a client's buffer."""

    id: int
    size: int


class LayoutTable:
    """Interns layouts: equal shapes are one object, so that pipelines share descriptor set layouts."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def get(self, sets: tuple[tuple[int, tuple[tuple[int, str, int], ...]], ...], push_bytes: int) -> Layout:
        """The layout of this shape (see `model.Layout`), made when it is first asked for."""
        key = (sets, push_bytes)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(len(self._layouts) + 1, sets, push_bytes)
        return layout


class Binding:
    """One entry of `args`: what may be bound there."""

    __slots__ = ("access", "align", "count", "fixed", "kind", "label", "max_range", "stride", "values", "where")

    def __init__(self, reflected: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
        self.where = (reflected["set"], reflected["binding"])
        name = reflected.get("name") or ""
        self.label = f"binding (set {self.where[0]}, binding {self.where[1]}" + (f", {name!r})" if name else ")")
        self.kind: str = reflected["kind"]
        self.access: str = reflected["access"]
        self.count: int = reflected["count"]
        self.fixed: int = reflected["size"]
        self.stride: int = reflected["stride"]
        uniform = self.kind == UNIFORM
        self.align: int = limits["minUniformBufferOffsetAlignment" if uniform else "minStorageBufferOffsetAlignment"]
        self.max_range: int = limits["maxUniformBufferRange" if uniform else "maxStorageBufferRange"]
        self.values: ScalarPacker | None = None
        if uniform and reflected.get("members"):
            self.values = ScalarPacker(reflected["members"], self.fixed, self.fixed, f"values of {self.label}")

    def check_range(self, size: int, what: str) -> None:
        """Raises InvalidError when `size` bytes cannot be bound here."""
        if size < self.fixed:
            raise InvalidError(
                f"{self.label}: {what} holds {size} bytes, the kernel needs at least {self.fixed}",
                {"size": size, "minimum": self.fixed},
            )
        if size > self.max_range:
            limit = "maxUniformBufferRange" if self.kind == UNIFORM else "maxStorageBufferRange"
            raise InvalidError(
                f"{self.label}: {what} of {size} bytes is over the device's {limit} of {self.max_range}; bind a part",
                {"size": size, limit: self.max_range},
            )


class Bound:
    """The arguments of a launch, checked: the parts of a token and the transient payload."""

    __slots__ = ("buffers", "entries", "outputs_bytes", "payload", "reads", "writes")

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []
        self.reads: list[Range] = []
        self.writes: list[Range] = []
        self.payload: list[tuple[str, Any]] = []
        self.outputs_bytes = 0
        self.buffers: list[Any] = []


class Plan:
    """Checks and packs launches of one kernel on one device.

    Args:
        name: the kernel's name, for messages.
        kernel: its reflection.
        limits: the device's, by Vulkan's names.
        layouts: where the descriptor layout is interned.

    Attributes:
        uniform: the binding, behind all others, where the scalars of a launch go as a uniform buffer; None where they
            are push constants.

    Raises:
        InvalidError: the module's block layout cannot be packed (overlapping members).
    """

    def __init__(self, name: str, kernel: Mapping[str, Any], limits: Mapping[str, Any], layouts: LayoutTable) -> None:
        self.name = name
        self.local_size: list[int] = kernel["local_size"]
        self.bindings = [Binding(b, limits) for b in kernel["bindings"]]
        self.max_groups: list[int] = limits["maxComputeWorkGroupCount"]
        size: int = kernel["push_constant_bytes"]
        padded = -(-size // 4) * 4  # vkCmdPushConstants takes multiples of 4 (VUID-vkCmdPushConstants-size-00369)
        self.scalars = ScalarPacker(kernel["scalars"], size, padded, "scalars")
        sets: dict[int, list[tuple[int, str, int]]] = {}
        for b in self.bindings:
            sets.setdefault(b.where[0], []).append((b.where[1], b.kind, b.count))
        self.uniform: int | None = kernel["tvm"]["uniform"] if "tvm" in kernel else None
        if self.uniform is not None:
            sets.setdefault(0, []).append((self.uniform, UNIFORM, 1))
        shape = tuple((number, tuple(sorted(sets[number]))) for number in sorted(sets))
        self.layout = layouts.get(shape, padded if self.uniform is None else 0)
        self._tags = LaunchTags(kernel["launch_param_tags"]) if "launch_param_tags" in kernel else None

    def launch(self, launch: object) -> tuple[int, int, int]:
        """(x, y, z) of a launch of a TVM kernel, from the values of its launch tags.

        Raises:
            InvalidError: as `grid`; the kernel has no such tags; a value is missing, surplus or wrong.
        """
        if self._tags is None:
            raise InvalidError("launch: this kernel has no launch tags (it is no TVM kernel); give grid")
        return self.grid(self._tags.grid(launch, self.local_size), "launch: blockIdx")

    def grid(self, grid: object, what: str = "grid") -> tuple[int, int, int]:
        """(x, y, z) of a launch in work groups. `what` is what messages call it.

        Raises:
            InvalidError: not one to three integers, negative, or over `maxComputeWorkGroupCount`.
        """
        if type(grid) is list and len(grid) == 1:  # the usual case, made cheap
            x = grid[0]
            if type(x) is int and 0 <= x <= self.max_groups[0]:
                return x, 1, 1
        if type(grid) is not list or not 1 <= len(grid) <= 3:
            raise InvalidError(f"{what}: expected a list of one to three integers (work groups), got {brief(grid)}")
        for axis, (value, limit) in enumerate(zip(grid, self.max_groups, strict=False)):
            if type(value) is not int or value < 0:
                raise InvalidError(f"{what}[{axis}]: expected an integer from 0 to {limit}, got {brief(value)}")
            if value > limit:
                raise InvalidError(
                    f"{what}[{axis}]: {value} work groups are over the device's maxComputeWorkGroupCount[{axis}] of "
                    f"{limit}; use a larger work group or several dispatches",
                    {"value": value, "limit": limit},
                )
        x, y, z = (*grid, 1, 1)[:3]
        return x, y, z

    def bind(self, args: Sequence[Any], find: Callable[[Any, str], BoundBuffer]) -> Bound:
        """Check `args` and work out descriptors, hazards and payload.

        Args:
            args: the message's list.
            find: handle and label to buffer; raises for a handle that is not one.

        Raises:
            InvalidError, NotFoundError, TooLargeError
        """
        if type(args) is not list or len(args) != len(self.bindings):
            got = len(args) if isinstance(args, list) else type(args).__name__
            names = ", ".join(b.label for b in self.bindings[:8]) + (", …" if len(self.bindings) > 8 else "")
            raise InvalidError(
                f"args: kernel {self.name!r} takes {len(self.bindings)} entries"
                + (f" ({names})" if names else "")
                + f", got {got}"
            )
        bound = Bound()
        for binding, entry in zip(self.bindings, args, strict=True):
            for element in elements_of(binding, entry):
                bind_one(binding, element, bound, find)
        return bound

    def provide(self, bound: Bound, scalars: bytes) -> None:
        """Add the uniform buffer that holds a launch's scalars (where `uniform` is not None)."""
        bound.entries.append((0, len(bound.payload), len(scalars)))
        bound.payload.append(("uniform", scalars))


def elements_of(binding: Binding, entry: Any) -> Sequence[Any]:
    """The entries of a binding's descriptors.

    Raises:
        InvalidError: not one for each.
    """
    if type(entry) is dict and "array" in entry:
        elements = entry["array"]
        if len(entry) != 1 or type(elements) is not list or len(elements) != binding.count:
            raise InvalidError(f"{binding.label}: expected {{'array': [{binding.count} entries]}}")
        return elements
    if binding.count != 1:
        raise InvalidError(
            f"{binding.label} is an array of {binding.count} descriptors: give {{'array': [{binding.count} entries]}}"
        )
    return (entry,)


def bind_one(binding: Binding, entry: Any, bound: Bound, find: Callable[[Any, str], BoundBuffer]) -> None:
    """One descriptor of a launch.

    Raises:
        InvalidError, NotFoundError: the entry is wrong; the message names the binding.
    """
    kind = type(entry)
    if kind is int:
        buffer = find(entry, binding.label)
        _bind_range(binding, buffer, 0, buffer.size, bound)
    elif kind is list:
        if len(entry) != 3 or any(type(v) is not int for v in entry):
            raise InvalidError(
                f"{binding.label}: a range is [buffer, offset, size], three integers; got {brief(entry)}"
            )
        buffer = find(entry[0], binding.label)
        _, offset, size = entry
        if offset < 0 or size < 0 or offset + size > buffer.size:
            raise InvalidError(
                f"{binding.label}: range {offset} + {size} lies outside buffer {entry[0]} of {buffer.size} bytes",
                {"offset": offset, "size": size, "buffer_size": buffer.size},
            )
        if offset % binding.align:
            limit = "minUniformBufferOffsetAlignment" if binding.kind == UNIFORM else "minStorageBufferOffsetAlignment"
            raise InvalidError(
                f"{binding.label}: offset {offset} is no multiple of the device's {limit} of {binding.align}",
                {"offset": offset, limit: binding.align},
            )
        _bind_range(binding, buffer, offset, size, bound)
    elif kind is dict and len(entry) == 1:
        _bind_transient(binding, entry, bound)
    else:
        raise InvalidError(
            f"{binding.label}: expected a buffer handle, [buffer, offset, size], {{'in': bin}}, {{'inout': bin}}, "
            f"{{'out': size}}" + (", {'values': map}" if binding.values else "") + f"; got {brief(entry)}"
        )


def _bind_range(binding: Binding, buffer: BoundBuffer, offset: int, size: int, bound: Bound) -> None:
    binding.check_range(size, "the range")
    bound.entries.append((buffer.id, offset, size))
    bound.buffers.append(buffer)
    if size:
        # A binding that is only measured (access "none") counts as read: the buffer must outlive the launch.
        if binding.access != "write":
            bound.reads.append((buffer.id, offset, offset + size))
        if binding.access in ("write", "read_write"):
            bound.writes.append((buffer.id, offset, offset + size))


def _bind_transient(binding: Binding, entry: dict[str, Any], bound: Bound) -> None:
    [(kind, value)] = entry.items()
    if kind == "values" and binding.kind == UNIFORM:
        if binding.values is None or type(value) is not dict:
            raise InvalidError(f"{binding.label}: 'values' takes a map of the block's members, got {brief(value)}")
        kind, value = "uniform", binding.values.pack(value)
        size = len(value)
    elif kind in ("in", "inout") and isinstance(value, (bytes, bytearray, memoryview)):
        size = len(value)
    elif kind == "out" and type(value) is int and value >= 0:
        size = value
    else:
        raise InvalidError(
            f"{binding.label}: expected {{'in': bin}}, {{'inout': bin}}, {{'out': size}}"
            + (" or {'values': map}" if binding.kind == UNIFORM else "")
            + f", got {kind!r} with {type(value).__name__}"
        )
    if kind in ("inout", "out"):
        if binding.access in ("none", "read"):
            raise InvalidError(f"{binding.label}: {kind!r} on a binding that the kernel does not write; use 'in'")
        bound.outputs_bytes += size
    binding.check_range(size, f"'{kind}'")
    if binding.kind == UNIFORM and kind == "in":
        kind = "uniform"
    bound.entries.append((0, len(bound.payload), size))
    bound.payload.append((kind, value))


def check_reply(outputs_bytes: int, count: int, max_message_bytes: int) -> None:
    """Raises TooLargeError when a reply with these outputs would not fit one message."""
    # 128 covers the reply's frame, maps and keys, those of `timing` too; 5 the header of each bin.
    if outputs_bytes + 5 * count + 128 > max_message_bytes:
        raise TooLargeError(
            f"the outputs hold {outputs_bytes} bytes, a reply at most {max_message_bytes}; use buffers and read parts",
            {"bytes": outputs_bytes, "max_message_bytes": max_message_bytes},
        )


__all__ = ["STORAGE", "Binding", "Bound", "LayoutTable", "Plan", "bind_one", "check_reply", "elements_of"]
