"""Handlers of what comes first in a module: capabilities, entry points, names, decorations; and of debug text."""

from __future__ import annotations

from collections.abc import Callable

from vkqueue.kernels.extended import fits
from vkqueue.kernels.grammar import with_implied
from vkqueue.kernels.module import KERNEL, Decoration, EntryPoint, Op
from vkqueue.kernels.reader import ANNOTATIONS, Reader

LOCAL_SIZE = 17
LOCAL_SIZE_ID = 38

# Decorations whose value decides what is bound where; two values for one thing would mean what the driver likes.
_SINGLE = frozenset(
    {
        Decoration.SPEC_ID, Decoration.ARRAY_STRIDE, Decoration.MATRIX_STRIDE, Decoration.BUILT_IN,
        Decoration.BINDING, Decoration.DESCRIPTOR_SET, Decoration.OFFSET,
    }
)  # fmt: skip


def _capability(r: Reader, at: int, n: int, op: int) -> None:
    capability = r.words[at + 1]
    if capability not in r.declared:
        r.declared.add(capability)
        r.capability_set |= with_implied(capability)
        r.module.capabilities.append(capability)


def _extension(r: Reader, at: int, n: int, op: int) -> None:
    r.module.extensions.append(r.name(at + 1, n - 1))


def _import(r: Reader, at: int, n: int, op: int) -> None:
    r.module.sets[r.words[at + 1]] = r.name(at + 2, n - 2)


def _memory_model(r: Reader, at: int, n: int, op: int) -> None:
    if r.has_memory_model:
        raise r.module.fault(at, "a module has one memory model")
    r.has_memory_model = True
    r.module.addressing, r.module.memory_model = r.words[at + 1], r.words[at + 2]


def _entry_point(r: Reader, at: int, n: int, op: int) -> None:
    _, place, count = r.operands[2]
    raw = r.module.data[place * 4 : (place + count) * 4]
    try:
        name = raw[: raw.find(0)].decode("utf-8")
    except UnicodeDecodeError:
        raise r.module.fault(at, "the entry point's name is not UTF-8") from None
    r.module.entry_points.append(EntryPoint(r.words[at + 1], r.words[at + 2], name, at))


def _execution_mode(r: Reader, at: int, n: int, op: int) -> None:
    values = tuple(r.words[place] for _, place, _ in r.operands[2:])
    r.modes.append((r.words[at + 1], r.words[at + 2], values, at))


def _name(r: Reader, at: int, n: int, op: int) -> None:
    text = r.name(at + 2, n - 2)
    if text:
        r.module.names[r.words[at + 1]] = text


def _member_name(r: Reader, at: int, n: int, op: int) -> None:
    text = r.name(at + 3, n - 3)
    if text:
        r.module.member_names.setdefault(r.words[at + 1], {})[r.words[at + 2]] = text


def _decorate(r: Reader, at: int, n: int, op: int) -> None:
    found = r.module.decorations.setdefault(r.words[at + 1], {})
    _set_decoration(r, at, found, r.operands[1:])


def _member_decorate(r: Reader, at: int, n: int, op: int) -> None:
    members = r.module.member_decorations.setdefault(r.words[at + 1], {})
    _set_decoration(r, at, members.setdefault(r.words[at + 2], {}), r.operands[2:])


def _set_decoration(r: Reader, at: int, found: dict[int, int], operands: list[tuple[str, int, int]]) -> None:
    which = r.words[operands[0][1]]
    value = r.words[operands[1][1]] if len(operands) > 1 else 1
    if which in _SINGLE and found.get(which, value) != value:
        raise r.module.fault(at, f"decoration {which} is given as {found[which]} and as {value}")
    found[which] = value


def _group_decorate(r: Reader, at: int, n: int, op: int) -> None:
    group = _group(r, at)
    for id in r.words[at + 2 : at + n]:
        r.module.groups.setdefault(id, []).append(group)


def _group_member_decorate(r: Reader, at: int, n: int, op: int) -> None:
    group = _group(r, at)
    for place in range(at + 2, at + n - 1, 2):
        key = (r.words[place], r.words[place + 1])
        r.module.member_groups.setdefault(key, []).append(group)


def _group(r: Reader, at: int) -> int:
    group = r.words[at + 1]
    if group not in r.module.places or r.module.op(group) != Op.DECORATION_GROUP:
        raise r.module.fault(at, f"id {group} is not a decoration group defined before")
    return group


def _line(r: Reader, at: int, n: int, op: int) -> None:
    if op == Op.LINE and r.words[at + 1] not in r.module.places:
        raise r.module.fault(at, f"string {r.words[at + 1]} is not defined")


def _ext_inst(r: Reader, at: int, n: int, op: int) -> None:
    name = r.module.sets.get(r.words[at + 3])
    if name is None:
        raise r.module.fault(at, f"id {r.words[at + 3]} is not an instruction set")
    if name.startswith("NonSemantic.") or "DebugInfo" in name:
        if not r.in_block and r.section < ANNOTATIONS:
            raise r.module.fault(at, "out of order; the sections of a module have a fixed sequence")
        return
    if not r.in_block:
        raise r.module.fault(at, "outside a block of a function")
    for id in r.words[at + 5 : at + n]:
        r.use(at, id)
    if name == "GLSL.std.450":
        types, type_of, number = r.module.types, r.module.type_of, r.words[at + 4]
        operands = [types[type_of[id]] for id in r.words[at + 5 : at + n]]
        if not fits(number, types[r.words[at + 1]], operands, types):
            raise r.module.fault(at, f"instruction {number} of {name} does not exist for these {n - 5} operands")


def check_entry_points(r: Reader) -> None:
    """Entry points are functions of no parameters, named once for each stage; modes belong to them."""
    module = r.module
    by_function: dict[int, list[EntryPoint]] = {}
    seen: set[tuple[int, str]] = set()
    for entry in module.entry_points:
        function = module.functions.get(entry.function)
        if function is None:
            raise module.fault(entry.at, f"id {entry.function} is not a function")
        type_ = module.types[function.type]
        if entry.model != KERNEL and type_.members:
            raise module.fault(entry.at, "an entry point takes no parameters")
        if module.types[type_.element].op != Op.TYPE_VOID:
            raise module.fault(entry.at, "an entry point returns nothing")
        if (entry.model, entry.name) in seen:
            raise module.fault(entry.at, f"a second entry point of this stage is named {entry.name[:80]!r}")
        seen.add((entry.model, entry.name))
        by_function.setdefault(entry.function, []).append(entry)
    for id, mode, values, at in r.modes:
        if id not in by_function:
            raise module.fault(at, f"id {id} is not an entry point")
        if mode in (LOCAL_SIZE, LOCAL_SIZE_ID):
            _set_local_size(r, by_function[id], mode, values, at)


def _set_local_size(r: Reader, entries: list[EntryPoint], mode: int, values: tuple[int, ...], at: int) -> None:
    by_id = r.words[at] & 0xFFFF == Op.EXECUTION_MODE_ID
    if by_id != (mode == LOCAL_SIZE_ID):
        raise r.module.fault(at, "LocalSize is an OpExecutionMode, LocalSizeId an OpExecutionModeId")
    for entry in entries:
        if entry.local_size is not None or entry.local_size_ids is not None:
            raise r.module.fault(at, "a second work-group size for one entry point")
        if by_id:
            entry.local_size_ids = values
        else:
            entry.local_size = values


HANDLERS: dict[int, Callable[[Reader, int, int, int], None]] = {
    Op.CAPABILITY: _capability,
    Op.EXTENSION: _extension,
    Op.EXT_INST_IMPORT: _import,
    Op.MEMORY_MODEL: _memory_model,
    Op.ENTRY_POINT: _entry_point,
    Op.EXECUTION_MODE: _execution_mode,
    Op.EXECUTION_MODE_ID: _execution_mode,
    Op.NAME: _name,
    Op.MEMBER_NAME: _member_name,
    Op.DECORATE: _decorate,
    Op.DECORATE_ID: _decorate,
    Op.MEMBER_DECORATE: _member_decorate,
    Op.GROUP_DECORATE: _group_decorate,
    Op.GROUP_MEMBER_DECORATE: _group_member_decorate,
    Op.LINE: _line,
    Op.EXT_INST: _ext_inst,
    Op.EXT_INST_FORWARD: _ext_inst,
}
