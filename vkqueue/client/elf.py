"""Finds what TVM embeds in an exported library: the bytes of one symbol of a shared object (64-bit, little-endian)."""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

from vkqueue.errors import InvalidError

ELF_MAGIC = b"\x7fELF"
SYMBOLS = ("__tvm_ffi__library_bin", "__tvm_ffi_library_bin", "__tvm_dev_mblob")
"""What TVM calls the embedded bytes: from 0.22 or so on, in 0.21, before. They begin with their length."""

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOBITS, _DYNSYM = 2, 8, 11


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


def library_bytes(path: str | os.PathLike[str]) -> bytes:
    """The modules that an exported library of TVM's embeds.

    Raises:
        InvalidError: the file is no such library, or broken.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER.size:
            raise _broken(path, f"{size} bytes are too few for a shared object")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _embedded(path, data)
            except struct.error as error:
                raise _broken(path, str(error)) from None


def _embedded(path: str | os.PathLike[str], data: mmap.mmap) -> bytes:
    sections = _sections(path, data)
    for table in sections:
        if table.type not in (_SYMTAB, _DYNSYM) or table.link >= len(sections):
            continue
        names = sections[table.link]
        for name in SYMBOLS:
            found = _find(data, table, names, name)
            if found is not None:
                return _contents(path, data, sections, name, found)
    raise _broken(path, f"a shared object without modules of TVM's: it has none of the symbols {', '.join(SYMBOLS)}")


def _sections(path: str | os.PathLike[str], data: mmap.mmap) -> list[_Section]:
    magic, bits, order, *_, at, _, _, _, _, entry_size, count, _ = _HEADER.unpack_from(data)
    if magic != ELF_MAGIC or (bits, order) != (2, 1):
        raise _broken(path, "it is no shared object of 64 bits in little-endian order")
    if entry_size != _SECTION.size or at + count * entry_size > len(data):
        raise _broken(path, f"its {count} section headers at byte {at} lie outside of it")
    found = [_Section._make(s) for s in _SECTION.iter_unpack(data[at : at + count * entry_size])]
    for section in found:
        if section.type not in (0, _NOBITS) and section.offset + section.size > len(data):
            raise _broken(path, f"a section of {section.size} bytes at byte {section.offset} lies outside of it")
    return found


def _find(data: mmap.mmap, table: _Section, names: _Section, name: str) -> tuple[int, int, int] | None:
    """(section, address, size) of a symbol that is defined here."""
    wanted = name.encode() + b"\0"
    places, at, end = set(), names.offset, names.offset + names.size
    while (at := data.find(wanted, at, end)) >= 0:  # linkers let a name be the end of a longer one
        places.add(at - names.offset)
        at += 1
    if not places:
        return None
    whole = table.size - table.size % _SYMBOL.size
    for start, _, _, section, address, size in _SYMBOL.iter_unpack(data[table.offset : table.offset + whole]):
        if start in places and section:
            return section, address, size
    return None


def _contents(
    path: str | os.PathLike[str], data: mmap.mmap, sections: list[_Section], name: str, found: tuple[int, int, int]
) -> bytes:
    where, address, size = found
    if where >= len(sections) or sections[where].type == _NOBITS:
        raise _broken(path, f"the symbol {name} is in no section with contents")
    section = sections[where]
    start = section.offset + address - section.address
    left = section.offset + section.size - start
    if start < section.offset or left < 8:
        raise _broken(path, f"the symbol {name} lies outside of its section")
    length = 8 + int.from_bytes(data[start : start + 8], "little")
    if length > left or (size and length > size):
        raise _broken(path, f"the modules at {name} take {length} bytes, {min(left, size or left)} are there")
    return data[start : start + length]


def _broken(path: str | os.PathLike[str], what: str) -> InvalidError:
    return InvalidError(f"{os.fspath(path)}: {what}")
