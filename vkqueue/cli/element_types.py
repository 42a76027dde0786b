"""What a kernel's buffers are made of, as NumPy calls it: reflection tells sizes only."""

from __future__ import annotations

from vkqueue.kernels.module import Decoration, Module, Op, Storage, Type
from vkqueue.kernels.spirv import parse

_WIDTHS: dict[int, tuple[int, ...]] = {Op.TYPE_INT: (8, 16, 32, 64), Op.TYPE_FLOAT: (16, 32, 64)}
_PLAIN_FLOAT_WORDS = 3  # a fourth word is an encoding of its own, such as bfloat16, that NumPy does not have


def element_types(spirv: bytes) -> dict[tuple[int, int], str]:
    """(set, binding) → dtype, for those buffers whose numbers are all of one type that NumPy has.

    Raises:
        InvalidError, UnsupportedError: as `spirv.parse`.
    """
    module = parse(spirv)
    found: dict[tuple[int, int], str] = {}
    for variable in module.variables.values():
        binding = module.decoration(variable.id, Decoration.BINDING)
        if binding is None or variable.storage not in (Storage.UNIFORM, Storage.STORAGE_BUFFER):
            continue
        dtypes = _dtypes(module, variable.type)
        if len(dtypes) == 1 and None not in dtypes:
            place = (module.decoration(variable.id, Decoration.DESCRIPTOR_SET) or 0, binding)
            found.setdefault(place, str(*dtypes))
    return found


def _dtypes(module: Module, root: int) -> set[str | None]:
    """The types of all numbers in a type; None for one that NumPy does not have."""
    seen: set[int] = set()
    found: set[str | None] = set()
    waiting = [root]
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        type_ = module.types.get(id)  # none of a pointer that is declared later
        if type_ is not None and (type_.members or type_.element):
            waiting += type_.members or (type_.element,)
        else:
            found.add(None if type_ is None else _dtype(module, type_))
    return found


def _dtype(module: Module, type_: Type) -> str | None:
    if type_.width not in _WIDTHS.get(type_.op, ()):
        return None
    if type_.op == Op.TYPE_INT:
        return f"{'' if type_.signed else 'u'}int{type_.width}"
    words = module.words[module.places[type_.id]] >> 16
    return f"float{type_.width}" if words == _PLAIN_FLOAT_WORDS else None
