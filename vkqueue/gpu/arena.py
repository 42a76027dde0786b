"""Structs, arrays and strings that live until the Vulkan call that reads them has returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkqueue.errors import InternalError
from vkqueue.gpu import binding

_structure_types: dict[str, int] = {}


def structure_type(struct: str) -> int | None:
    """The VkStructureType of a struct's name, None for a struct without sType.

    Compared without underscores: `Vulkan11Features` is spelled `VULKAN_1_1_FEATURES` there.
    """
    if not _structure_types:
        binding.load()
        prefix = "VK_STRUCTURE_TYPE_"
        for name in dir(binding.vk):
            if name.startswith(prefix):
                _structure_types[name[len(prefix) :].replace("_", "")] = getattr(binding.vk, name)
    return _structure_types.get(struct.removeprefix("Vk").upper())


class Arena:
    """Owner of the structs, arrays and strings of one call; keep it in a variable until the call has returned.

    Use it as a context manager, which makes that visible::

        with Arena() as arena:
            info = arena.struct("VkFenceCreateInfo")
            device.calls.vkCreateFence(device.handle, info, NULL, out)
    """

    __slots__ = ("_alive",)

    def __init__(self) -> None:
        self._alive: list[Any] = []

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exc: object) -> None:
        self._alive.clear()

    def struct(self, type_name: str, **fields: Any) -> Any:
        """A zeroed struct with sType set; returns the pointer to it.

        A field takes what cffi takes, and also: an int for a handle or pointer, a str for a `char *`, bytes-like
        or a sequence for a pointer to data, a struct of this arena for a nested struct.
        """
        pointer = self.out(type_name)
        members = dict(binding.ffi.typeof(type_name).fields)
        if "sType" in members:
            kind = structure_type(type_name)
            if kind is None:
                raise InternalError(f"{type_name} has no known VkStructureType")
            pointer.sType = kind
        for name, value in fields.items():
            setattr(pointer, name, self._value(members[name].type, value))
        return pointer

    def chain(self, head: Any, *links: Any) -> Any:
        """Append structs to the end of `head`'s empty pNext chain in order; returns `head`."""
        last = head
        for link in links:
            last.pNext = link
            last = link
        return head

    def array(self, type_name: str, values: Sequence[Any]) -> Any:
        """An array of handles, numbers, strings, or structs (given by pointer, copied)."""
        item = binding.ffi.typeof(type_name)
        array = self.out(f"{type_name}[]", [self._value(item, value) for value in values])
        return array

    def out(self, type_name: str, init: Any = None) -> Any:
        """Memory for a result: a pointer to a zeroed `type_name`, or an array for ``"T[]"`` with a count."""
        spelled = type_name if type_name.endswith("]") else f"{type_name} *"
        pointer = binding.ffi.new(spelled, init)
        self._alive.append(pointer)
        return pointer

    def data(self, data: Any) -> Any:
        """A `void *` to the bytes of a bytes-like object, which is kept alive, not copied."""
        buffer = binding.ffi.from_buffer(data)
        self._alive.append(buffer)
        return binding.ffi.cast("void *", buffer)

    def _value(self, ctype: Any, value: Any) -> Any:
        if ctype.kind == "pointer":
            return self._pointer(ctype, value)
        ffi = binding.ffi
        if ctype.kind == "struct" and isinstance(value, ffi.CData) and ffi.typeof(value).kind == "pointer":
            return value[0]
        return value

    def _pointer(self, ctype: Any, value: Any) -> Any:
        if value is None:
            return binding.ffi.NULL
        if isinstance(value, int):
            return binding.ffi.cast(ctype, value)
        if isinstance(value, str):
            return self.out("char[]", value.encode())
        if isinstance(value, (list, tuple)):
            return self.array(ctype.item.cname, value) if value else binding.ffi.NULL
        if not isinstance(value, binding.ffi.CData):
            return binding.ffi.cast(ctype, self.data(value))
        return value
