"""Which layout rules a block keeps, and so which device features its layout needs.

Vulkan's base rules are those of std140 for uniform blocks and of std430 for the others, with vectors aligned as
their components as long as they do not straddle 16 bytes (core since 1.1). `uniformBufferStandardLayout` gives uniform
blocks the rules of std430; `scalarBlockLayout` aligns everything as its scalars.
"""

from __future__ import annotations

from vkqueue.errors import InvalidError
from vkqueue.kernels.layout import Layouts, Measures
from vkqueue.kernels.module import Module, Op, Type

STANDARD = "uniformBufferStandardLayout"
SCALAR = "scalarBlockLayout"


def layout_feature(module: Module, layouts: Layouts, block: int, *, uniform: bool) -> str | None:
    """The feature that the layout of a block needs, None for one that every device takes.

    Raises:
        InvalidError: a member is not aligned even as its scalars, which no device promises to read.
    """
    structs = _structures(module, block)
    for id in structs:
        fault = _misfit(module, layouts, module.types[id], "scalar")
        if fault is not None:
            raise InvalidError(f"SPIR-V, structure {id}: {fault}", {"type": id})
    if uniform:
        if all(_misfit(module, layouts, module.types[id], "extended") is None for id in structs):
            return None
        standard: str | None = STANDARD
    else:
        standard = None
    if all(_misfit(module, layouts, module.types[id], "base") is None for id in structs):
        return standard
    return SCALAR


def _structures(module: Module, block: int) -> list[int]:
    """A block and the structures within it, each once."""
    found, waiting = [], [block]
    seen = {block}
    while waiting:
        id = waiting.pop()
        type_ = module.types.get(id)
        if type_ is None:
            continue
        parts: tuple[int, ...] = ()
        if type_.op == Op.TYPE_STRUCT:
            found.append(id)
            parts = type_.members
        elif type_.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
            parts = (type_.element,)
        for part in parts:
            if part not in seen:
                seen.add(part)
                waiting.append(part)
    return found


def _misfit(module: Module, layouts: Layouts, struct: Type, rule: str) -> str | None:
    """Why a structure does not keep a rule ("scalar", "base" or "extended"), or None."""
    free_from = 0
    for index, id in enumerate(struct.members):
        offset = layouts.offset(struct.id, index)
        if offset is None:
            return f"member {index} has no Offset" if rule == "scalar" else None
        type_ = module.types.get(id)
        measures = layouts.member(struct.id, index)
        align: int = getattr(measures, rule)
        if type_ is not None and type_.op == Op.TYPE_VECTOR and rule != "scalar":
            if _straddles(offset, measures):
                return f"member {index}, a vector at offset {offset}, straddles 16 bytes"
            align = measures.scalar
        if offset % align:
            return f"member {index} at offset {offset} is not aligned to {align}"
        if rule != "scalar" and offset < free_from:
            return f"member {index} at offset {offset} lies in the padding of the one before it"
        stride = _uneven_stride(module, layouts, struct.id, index, rule)
        if stride is not None:
            return f"member {index} has a stride of {stride}"
        free_from = _free_from(type_, offset, measures, align)
    return None


def _straddles(offset: int, measures: Measures) -> bool:
    if measures.size > 16:
        return offset % 16 != 0
    return offset // 16 != (offset + measures.size - 1) // 16


def _free_from(type_: Type | None, offset: int, measures: Measures, align: int) -> int:
    """Where the next member may lie: not in the padding of a structure, array or matrix."""
    if type_ is None or type_.op not in (Op.TYPE_STRUCT, Op.TYPE_ARRAY, Op.TYPE_MATRIX):
        return 0
    end = offset + measures.end
    return -(-end // align) * align


def _uneven_stride(module: Module, layouts: Layouts, struct: int, index: int, rule: str) -> int | None:
    """The stride of an array or matrix in a member that its alignment does not divide."""
    type_ = module.types.get(module.types[struct].members[index])
    align = getattr(layouts.member(struct, index), rule)
    while type_ is not None and type_.op in (Op.TYPE_ARRAY, Op.TYPE_RUNTIME_ARRAY):
        stride = layouts.stride(type_)
        if stride % align:
            return stride
        type_ = module.types.get(type_.element)
    if type_ is not None and type_.op == Op.TYPE_MATRIX:
        stride, _ = layouts.matrix(struct, index)
        if stride % align:
            return stride
    return None
