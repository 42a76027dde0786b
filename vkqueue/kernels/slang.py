"""Compiles Slang by the library of the `slangpy` package. A script, run as a process of its own.

    python slang.py REQUEST OUTPUT

REQUEST is JSON: {library, arguments (of slangc), source, entry (or null), files: {name: text}}. All files that Slang
asks for, by `#include`, `import` or otherwise, come from `files`: it opens none itself. Messages go to standard error.
"""

from __future__ import annotations

import ctypes
import json
import posixpath
import struct
import sys
from collections.abc import Mapping
from typing import Any

_POINTER = ctypes.c_void_p
_OK, _NO_INTERFACE, _NOT_FOUND = 0, -(0x80000000 - 0x4002), -(0x80000000 - 0x02000005)
_SLANG, _COMPUTE = 1, 6  # SlangSourceLanguage, SlangStage


def _guid(a: int, b: int, c: int, rest: str) -> bytes:
    return struct.pack("<IHH", a, b, c) + bytes.fromhex(rest)


# slang.h: ISlangUnknown, ISlangCastable, ISlangFileSystem.
_INTERFACES = {
    _guid(0, 0, 0, "c000000000000046"),
    _guid(0x87EDE0E1, 0x4852, 0x44B0, "8bf2cb31874de239"),
    _guid(0x003A09FC, 0x3A4D, 0x4BA0, "ad601fd863a915ab"),
}
_QUERY = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, ctypes.POINTER(_POINTER))
_COUNT = ctypes.CFUNCTYPE(ctypes.c_uint32, _POINTER)
_CAST = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER)
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, ctypes.c_char_p, ctypes.POINTER(_POINTER))


class _Methods(ctypes.Structure):
    _fields_ = (("query", _QUERY), ("add", _COUNT), ("release", _COUNT), ("cast", _CAST), ("load", _LOAD))


class _FileSystem(ctypes.Structure):
    """A COM object whose files are a map; it lives as long as this Python object."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)

    def __init__(self, library: Any, files: Mapping[str, str]) -> None:
        def query(this: int, guid: int, out: Any) -> int:
            known = ctypes.string_at(guid, 16) in _INTERFACES
            out[0] = this if known else None
            return _OK if known else _NO_INTERFACE

        def cast(this: int, guid: int) -> int | None:
            return this if ctypes.string_at(guid, 16) in _INTERFACES else None

        def load(this: int, path: bytes, out: Any) -> int:
            text = files.get(posixpath.normpath(path.decode("utf-8", "replace")))
            out[0] = None if text is None else library.slang_createBlob(*_blob(text))
            return _NOT_FOUND if text is None else _OK

        self._kept = _Methods(_QUERY(query), _COUNT(lambda this: 2), _COUNT(lambda this: 2), _CAST(cast), _LOAD(load))
        super().__init__(ctypes.pointer(self._kept))


def _blob(text: str) -> tuple[bytes, int]:
    raw = text.encode() or b"\n"  # an empty blob is none
    return raw, len(raw)


def _open(path: str) -> Any:
    library = ctypes.CDLL(path)
    for name, result, *arguments in (
        ("spCreateSession", _POINTER, ctypes.c_char_p),
        ("spCreateCompileRequest", _POINTER, _POINTER),
        ("spSetFileSystem", None, _POINTER, _POINTER),
        ("spProcessCommandLineArguments", ctypes.c_int32, _POINTER, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int),
        ("spAddTranslationUnit", ctypes.c_int, _POINTER, ctypes.c_int, ctypes.c_char_p),
        ("spAddTranslationUnitSourceString", None, _POINTER, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
        ("spAddEntryPoint", ctypes.c_int, _POINTER, ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
        ("spCompile", ctypes.c_int32, _POINTER),
        ("spGetDiagnosticOutput", ctypes.c_char_p, _POINTER),
        ("spGetTargetCodeBlob", ctypes.c_int32, _POINTER, ctypes.c_int, ctypes.POINTER(_POINTER)),
        ("slang_createBlob", _POINTER, ctypes.c_char_p, ctypes.c_size_t),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _contents(blob: Any) -> bytes:
    """An ISlangBlob's bytes: its methods behind those of ISlangUnknown are the pointer and the size."""
    methods = ctypes.cast(blob.value, ctypes.POINTER(ctypes.POINTER(_POINTER))).contents
    data = ctypes.CFUNCTYPE(_POINTER, _POINTER)(methods[3])(blob)
    size = ctypes.CFUNCTYPE(ctypes.c_size_t, _POINTER)(methods[4])(blob)
    return ctypes.string_at(data, size)


def compile_slang(order: Mapping[str, Any]) -> tuple[bytes, str]:
    """(SPIR-V, empty when it does not compile; messages)."""
    library, arguments = _open(order["library"]), order["arguments"]
    request = library.spCreateCompileRequest(library.spCreateSession(b""))
    system = _FileSystem(library, order["files"])
    library.spSetFileSystem(request, ctypes.addressof(system))
    packed = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
    code = _POINTER()
    failed = library.spProcessCommandLineArguments(request, packed, len(arguments)) < 0
    if not failed:
        unit = library.spAddTranslationUnit(request, _SLANG, b"source")
        library.spAddTranslationUnitSourceString(request, unit, b"source.slang", order["source"].encode())
        if order["entry"] is not None:
            library.spAddEntryPoint(request, unit, order["entry"].encode(), _COMPUTE)
        failed = library.spCompile(request) < 0
    failed = failed or library.spGetTargetCodeBlob(request, 0, ctypes.byref(code)) < 0
    messages = (library.spGetDiagnosticOutput(request) or b"").decode("utf-8", "replace")
    return b"" if failed or not code else _contents(code), messages


def main() -> int:
    """Entry point; the exit status."""
    with open(sys.argv[1], encoding="utf-8") as file:
        spirv, messages = compile_slang(json.load(file))
    sys.stderr.write(messages)
    if not spirv:
        return 1
    with open(sys.argv[2], "wb") as output:
        output.write(spirv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
