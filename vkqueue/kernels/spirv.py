"""SPIR-V parser: words to a checked `Module`.

One pass over the words. It finds every fault that would make an analysis, or a driver, read what is not there: sizes,
ids that are not defined or defined twice, values where types belong, blocks without an end, operands whose types do
not fit. It is not spirv-val: rules that only newer or only older validators have, and that drivers do not need, are
not applied, since modules of well-known compilers break them.

Work and memory are linear in the module's size; nothing recurses on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels import bodies, declarations, operations, preamble
from vkqueue.kernels.grammar import SHAPES, OperandFault, enumerant
from vkqueue.kernels.module import KERNEL, Decoration, Module, Op
from vkqueue.kernels.reader import BODY, MODULE, Reader

MAGIC = 0x07230203
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_WORKGROUP_SIZE = 25  # BuiltIn; the one that stands on a constant
MAX_BYTES = 8 << 20
"""Longest module taken. Arbitrary: the largest compute modules seen have a few hundred KiB; this takes seconds."""
MAX_BOUND = 0x3FFFFF
"""Largest id bound, the universal limit of the SPIR-V specification."""
NEWEST = (1, 6)
_LINKAGE = 5  # Capability

Handler = Callable[[Reader, int, int, int], None]
HANDLERS: dict[int, Handler] = {**preamble.HANDLERS, **declarations.HANDLERS, **bodies.HANDLERS, **operations.HANDLERS}

# Ids that may be used before they are defined, or that are no values; the handlers check them.
_LOOSE = frozenset(
    {
        Op.NAME, Op.MEMBER_NAME, Op.ENTRY_POINT, Op.EXECUTION_MODE, Op.DECORATE, Op.MEMBER_DECORATE,
        Op.GROUP_DECORATE, Op.GROUP_MEMBER_DECORATE, Op.DECORATE_ID, Op.DECORATE_STRING,
        Op.MEMBER_DECORATE_STRING, Op.EXECUTION_MODE_ID, Op.TYPE_FORWARD_POINTER, Op.TYPE_STRUCT, Op.TYPE_POINTER,
        Op.PHI, Op.LOOP_MERGE, Op.SELECTION_MERGE, Op.BRANCH, Op.BRANCH_CONDITIONAL, Op.SWITCH, Op.FUNCTION_CALL,
        Op.EXT_INST, Op.EXT_INST_FORWARD, Op.LINE, Op.FUNCTION,
    }
)  # fmt: skip
# Of these each id must be a value that is already there: the core instructions but for types.
_STRICT = frozenset(
    op for op in SHAPES if 41 <= op <= 403 and op not in _LOOSE and op not in range(71, 76) and op not in (322, 327)
)  # fmt: skip


def parse(spirv: bytes) -> Module:
    """Parse and check a module.

    Raises:
        InvalidError: broken; says where and what.
        UnsupportedError: longer than MAX_BYTES, or with instructions of a capability that is not known here.
    """
    module = _header(bytes(spirv))
    reader = Reader(module)
    try:
        _instructions(reader)
        _finish(reader)
    except InvalidError as error:
        _blame_capability(module, error)
        raise
    return module


def _header(data: bytes) -> Module:
    if len(data) >= 4 and data[:4] not in (_MAGIC_BYTES, _MAGIC_BYTES[::-1]):
        raise InvalidError(
            f"SPIR-V: this is no SPIR-V file: it begins with {bytes(data[:4]).hex()}, not the magic number {MAGIC:08x} "
            "in little-endian order",
            {"size": len(data)},
        )
    if len(data) < 20 or len(data) % 4:
        raise InvalidError(
            f"SPIR-V: {len(data)} bytes; a module has a header of 20 bytes, and whole words of 4 after it",
            {"size": len(data)},
        )
    if len(data) > MAX_BYTES:
        raise UnsupportedError(f"SPIR-V: {len(data)} bytes; at most {MAX_BYTES} are taken", {"size": len(data)})
    magic, version, generator, bound, schema = struct.unpack_from("<5I", data)
    if magic == 0x03022307:
        raise InvalidError("SPIR-V: big-endian (the magic number is byte-swapped); write it in little-endian order")
    major, minor = version >> 16 & 0xFF, version >> 8 & 0xFF
    if version & 0xFF0000FF or not (1, 0) <= (major, minor) <= NEWEST:
        raise InvalidError(f"SPIR-V: version word {version:#010x}; versions 1.0 to 1.6 are known")
    if not 0 < bound <= MAX_BOUND:
        raise InvalidError(f"SPIR-V: id bound {bound}; it must be from 1 to {MAX_BOUND}", {"bound": bound})
    if bound > 65536 + 16 * len(data):
        # Drivers allocate by the bound. Real modules define an id every few words.
        raise InvalidError(f"SPIR-V: id bound {bound} for {len(data) // 4} words; compact the ids", {"bound": bound})
    if schema:
        raise InvalidError(f"SPIR-V: instruction schema {schema}; only 0 exists")
    return Module(struct.unpack(f"<{len(data) // 4}I", data), data, (major, minor), generator, bound)


def _instructions(r: Reader) -> None:  # noqa: C901  (the loop over every instruction: calls would double its cost)
    module, words, end = r.module, r.words, len(r.words)
    places, types, type_of, bound = module.places, module.types, module.type_of, module.bound
    strict, loose, shapes, handlers, fault = _STRICT, _LOOSE, SHAPES, HANDLERS, module.fault
    walk, capabilities = r.walk, r.capability_set
    at = 5
    while at < end:
        word = words[at]
        op, n = word & 0xFFFF, word >> 16
        if n == 0 or at + n > end:
            raise fault(at, f"word count {n}, with {end - at} words left in the module")
        shape = shapes.get(op)
        if shape is None:
            raise fault(at, f"opcode {op} is not known")
        _, _, low, high, typed, result, ids, rest, needs = shape
        if not low <= n <= high:
            raise fault(at, f"{n} words; expected {low if n < low else high} at {'least' if n < low else 'most'}")
        if needs and needs.isdisjoint(capabilities):
            names = " or ".join(sorted(enumerant("Capability", number) for number in needs))
            raise fault(at, f"it needs a capability that the module does not declare: {names}")

        if rest == "?" and (n > low or not ids):
            try:
                r.operands = walk.operands(at, n, shape, r.switch_words(at) if op == 251 else 1)
            except OperandFault as error:
                raise fault(at, str(error)) from None
            used = [words[place] for letter, place, _ in r.operands if letter == "i"]
        else:
            used = [words[at + k] for k in ids]
            if rest == "i":
                used += words[at + low : at + n]
        if op in strict:
            homes, label = r.homes, r.label
            for id in used:
                if id not in type_of:
                    raise fault(at, r.no_value(id))
                if homes and homes.get(id, label) != label:
                    r.crossings.setdefault((homes[id], label), (id, at))
        elif op in loose:
            for id in used:
                if not 0 < id < bound:
                    raise fault(at, f"id {id} is outside the bound {bound}")
        else:
            for id in used:
                if id not in places:
                    raise fault(at, f"id {id} is not defined before its use")
        if typed and words[at + 1] not in types:
            raise fault(at, f"result type {words[at + 1]} is not a type defined before")
        rank = r.ranks.get(op, BODY)
        if rank >= BODY:
            if r.in_block:
                r.function.body.append(at)
            elif rank == BODY:
                raise fault(at, "outside a block of a function")
        elif rank < MODULE:
            r.enter_section(at, rank)
        if r.merge_at and not 249 <= op <= 251:
            raise fault(r.merge_at, "a merge instruction must stand right before a branch or switch")
        handler = handlers.get(op)
        if result:
            id = words[at + 1 + typed]
            if not 0 < id < bound:
                raise fault(at, f"result id {id} is outside the bound {bound}")
            if id in places:
                raise fault(at, f"result id {id} is defined before, at word {places[id]}")
            if handler is not None:
                handler(r, at, n, op)
            places[id] = at
            if typed and op != 54:
                type_of[id] = words[at + 1]
                if r.in_block:
                    r.homes[id] = r.label
        elif handler is not None:
            handler(r, at, n, op)
        at += n


def _finish(r: Reader) -> None:
    module = r.module
    if r.function is not r.nowhere:
        raise module.fault(r.function.at, "the function has no OpFunctionEnd; the module is cut off")
    if not r.has_memory_model:
        raise InvalidError("SPIR-V: no OpMemoryModel; every module has one, after its capabilities")
    if not module.entry_points and _LINKAGE not in r.declared:
        raise InvalidError("SPIR-V: no OpEntryPoint; only a module that is still to be linked has none")
    for id, place in r.forward_types.items():
        if id not in module.types:
            raise module.fault(place, f"type {id} is never defined")
    for function, place in r.called.items():
        if function not in module.functions:
            raise module.fault(place, f"id {function} is not a function")
    bodies.check_calls(r)
    preamble.check_entry_points(r)
    _check_built_ins(module)


def _check_built_ins(module: Module) -> None:
    """BuiltIn stands on variables, WorkgroupSize on a constant; elsewhere drivers take it for a variable and crash."""
    constants = frozenset(module.constants)
    applied = {id: module.decoration(id, Decoration.BUILT_IN) for id in (*module.decorations, *module.groups)}
    for id, built_in in applied.items():
        if built_in is None or id not in module.places or module.op(id) == Op.DECORATION_GROUP:
            continue
        if id not in (constants if built_in == _WORKGROUP_SIZE else module.variables):
            wanted = "a constant" if built_in == _WORKGROUP_SIZE else "a variable"
            raise module.fault(module.places[id], f"id {id} is decorated BuiltIn, which needs {wanted}")


def _blame_capability(module: Module, error: InvalidError) -> None:
    """What is written for another API, or newer than the grammar, may look broken and is not."""
    for number in module.capabilities:
        name = enumerant("Capability", number)
        if number == KERNEL:
            raise UnsupportedError(
                f"the module is written for OpenCL (capability Kernel), not for Vulkan ({error.message})",
                {"capability": "Kernel"},
            ) from error
        if name.isdigit():
            raise UnsupportedError(
                f"the module declares capability {name}, which vkqueue does not know ({error.message})",
                {"capability": name},
            ) from error
