"""What an exported TVM library embeds: all its modules in one byte string, those for Vulkan among them.

Two layouts. From 0.26 on each module's bytes have a length before them. Before (the symbol `__tvm_ffi_library_bin`, and
`__tvm_dev_mblob` up to 0.20) they have none, so what follows a module of another kind is found by looking for
the next thing that is known.
"""

from __future__ import annotations

import re

from vkqueue.errors import InvalidError, UnsupportedError, brief
from vkqueue.kernels.tvm_format import FORMAT, LAYOUTS, Reader, TvmModule, read_layout

MAX_MODULES = 4096
"""Modules of one library. Arbitrary: one for each host function in older versions."""

_HOST = "_lib"  # the library itself; nothing follows its name
_TREE = "_import_tree"
_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")


def _named(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


_KNOWN = re.compile(b"|".join(map(re.escape, (_named(FORMAT) + _named(FORMAT), _named(_HOST), _named(_TREE)))))


def read_library(data: bytes) -> TvmModule:
    """All Vulkan kernels of a library as one module.

    Raises:
        InvalidError: broken, or a kernel of one name in two of its modules.
        UnsupportedError: there is no module for Vulkan in it.
    """
    faults: list[tuple[int, InvalidError]] = []
    for read in (_read_newer, _read_older):
        reader = Reader(data)
        try:
            size = reader.u64("the library's size")
            if size != reader.left:
                raise reader.fault(f"the library's size is {size}, {reader.left} bytes follow it", 0)
            modules, kinds = read(reader)
            if reader.left:
                raise reader.fault(f"{reader.left} bytes are left after the last module")
        except InvalidError as error:
            faults.append((reader.at, error))
        else:
            return _merged(modules, kinds)
    raise max(faults, key=lambda fault: fault[0])[1]


def _merged(modules: list[TvmModule], kinds: list[str]) -> TvmModule:
    if not modules:
        have = ", ".join(dict.fromkeys(kinds[:16])) or "nothing"
        raise UnsupportedError(f"TVM library: no module for Vulkan is in it; it holds {have}")
    merged = TvmModule(
        [f for m in modules for f in m.functions], [s for m in modules for s in m.shaders], modules[0].layout
    )
    merged.check()
    return merged


def _read_newer(reader: Reader) -> tuple[list[TvmModule], list[str]]:
    """Import tree, then each module's kind and, but for the library itself, its bytes as a string."""
    modules: list[TvmModule] = []
    kinds: list[str] = []
    rows = _skip_numbers(reader, "rows of the import tree", MAX_MODULES + 1)
    _skip_numbers(reader, "edges of the import tree", MAX_MODULES * 16)
    for _ in range(rows - 1):
        kinds.append(_kind(reader))
        if kinds[-1] == _HOST:
            continue
        size = reader.u64("a module's length")
        start = reader.skip(size, f"the module {kinds[-1]!r}")
        if kinds[-1] == FORMAT:
            modules.append(_read_module(reader, start, start + size))
    return modules, kinds


def _read_older(reader: Reader) -> tuple[list[TvmModule], list[str]]:
    """A number of entries, each a kind and its bytes; the import tree is the last of them."""
    modules: list[TvmModule] = []
    kinds: list[str] = []
    count = reader.count("modules", 8, MAX_MODULES)
    guessed = False
    while reader.left:
        if len(kinds) == count:
            raise reader.fault(f"more than the {count} modules that the library says it has")
        kinds.append(_kind(reader))
        if kinds[-1] == FORMAT:
            modules.append(_read_module(reader, reader.at, None))
        elif kinds[-1] == _TREE:
            _skip_numbers(reader, "rows of the import tree", MAX_MODULES + 1)
            _skip_numbers(reader, "edges of the import tree", MAX_MODULES * 16)
        elif kinds[-1] != _HOST:
            guessed |= _skip_unknown(reader)
    if len(kinds) < count and not guessed:
        raise reader.fault(f"{len(kinds)} of {count} modules are there")
    return modules, kinds


def _kind(reader: Reader) -> str:
    start = reader.at
    kind = reader.string("a module's kind")
    if not _KIND.fullmatch(kind):
        raise reader.fault(f"{brief(kind)} is no kind of module", start)
    return kind


def _skip_numbers(reader: Reader, what: str, most: int) -> int:
    count = reader.count(what, 8, most)
    reader.skip(8 * count, what)
    return count


def _read_module(reader: Reader, start: int, end: int | None) -> TvmModule:
    """A module in its bytes form at `start`: up to `end`, or up to where another module, or nothing, follows."""
    faults: list[tuple[int, InvalidError]] = []
    for layout in LAYOUTS:
        part = Reader(reader.data, start)
        part.end = reader.end if end is None else end
        try:
            module = read_layout(part, layout)
            if end is not None and part.left:
                raise part.fault(f"{part.left} bytes are left after the last shader")
            if end is None and part.left and not _starts_entry(part):
                raise part.fault("after the last shader another module is expected, or the end")
        except InvalidError as error:
            faults.append((part.at, error))
        else:
            reader.at = part.at
            return module
    raise max(faults, key=lambda fault: fault[0])[1]


def _starts_entry(reader: Reader) -> bool:
    probe = Reader(reader.data, reader.at)
    try:
        _kind(probe)
    except InvalidError:
        return False
    return True


def _skip_unknown(reader: Reader) -> bool:
    """Pass over a module of which nothing is known; whether what was skipped may be several.

    Most write themselves as one string. Else it is up to the next name that is known.
    """
    if _KNOWN.match(reader.data, reader.at):
        return False
    probe = Reader(reader.data, reader.at)
    try:
        probe.skip(probe.u64("its length"), "it")
        if not probe.left or _starts_entry(probe):
            reader.at = probe.at
            return False
    except InvalidError:
        pass
    found = _KNOWN.search(reader.data, reader.at)
    reader.at = reader.end if found is None else found.start()
    return True
