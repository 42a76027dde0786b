"""TVM's device modules as data: the bytes form in its three layouts, and the binary file.

A module is two maps, function descriptions and shaders, that are matched by key and keep their own orders. Nothing in
the bytes says which layout they have, so all are tried, and the one that uses every byte is taken. Shaders stay where
they are: a `Shader` names its range of the payload, and writing gives pieces, some of which are such ranges.

Everything read here is untrusted. Each length is held against what is left before anything is made of it, and the
number of functions, arguments and tags is bounded, so that work and memory are linear in the payload's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from vkqueue.errors import InvalidError, UnsupportedError, brief
from vkqueue.kernels.tvm_types import DataType, data_type

LAYOUTS = ("0.24", "0.21", "0.20")
"""The layouts of the bytes form by the TVM version from which on they are in use, newest first."""
FILE_MAGIC = 0x02700027
FORMAT = "vulkan"
MAX_FUNCTIONS = 4096
"""Kernels of one module. Arbitrary: large models have some hundred."""
MAX_ARGUMENTS = 1024
MAX_TAGS = 32
MAX_NAME = 4096  # bytes
USES_UNIFORM = 1
"""Bit of a shader's flag: scalars come in a uniform buffer behind the last storage buffer."""

Piece: TypeAlias = "bytes | tuple[int, int]"
"""A part of what is written: new bytes, or (start, size) of the payload that was read."""

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(slots=True)
class Function:
    """TVM's FunctionInfo.

    Attributes:
        key: its name in the map, and the entry point's in the shader.
        name: inside the description; TVM leaves it empty up to 0.23.
        extra_tags: None where the layout has none.
    """

    key: str
    name: str
    arg_types: list[DataType]
    launch_tags: list[str]
    extra_tags: list[int] | None


@dataclass(slots=True)
class Shader:
    """`size` bytes of SPIR-V from `start` on in the payload."""

    key: str
    flag: int
    start: int
    size: int


@dataclass(slots=True)
class TvmModule:
    """Functions and shaders, each in the order of their own map.

    Attributes:
        layout: of the bytes form it was read from, None for a file.
    """

    functions: list[Function] = field(default_factory=list)
    shaders: list[Shader] = field(default_factory=list)
    layout: str | None = None

    def only(self, keys: Iterable[str]) -> TvmModule:
        """The module with these functions alone."""
        kept = set(keys)
        return TvmModule(
            [f for f in self.functions if f.key in kept], [s for s in self.shaders if s.key in kept], self.layout
        )

    def check(self) -> None:
        """The two maps belong together.

        Raises:
            InvalidError: a name twice, or in one map only.
            UnsupportedError: there is no function.
        """
        names = _distinct("function", [f.key for f in self.functions])
        shaders = _distinct("shader", [s.key for s in self.shaders])
        for one, other, what in ((names, shaders, "a shader"), (shaders, names, "a description of its arguments")):
            if lonely := one - other:
                raise InvalidError(f"TVM module: {brief(min(lonely))} has no {what[2:]}; each kernel needs both")
        if not names:
            raise UnsupportedError("TVM module: there is no kernel in it")


def _distinct(what: str, keys: list[str]) -> set[str]:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise InvalidError(f"TVM module: the {what} {brief(key)} is there twice")
        seen.add(key)
    return seen


class Reader:
    """A place in untrusted bytes. Every method raises InvalidError, with the offset, for what is not there."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)

    @property
    def left(self) -> int:
        return self.end - self.at

    def fault(self, text: str, at: int | None = None) -> InvalidError:
        place = self.at if at is None else at
        return InvalidError(f"TVM module: at byte {place}: {text}", {"offset": place})

    def skip(self, size: int, what: str) -> int:
        """Where `size` bytes start, which are passed over."""
        if size > self.left:
            raise self.fault(f"{what} takes {size} bytes, {self.left} are left")
        start = self.at
        self.at += size
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.skip(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.skip(8, what))[0]
        return value

    def count(self, what: str, item: int, most: int) -> int:
        """A number of items of at least `item` bytes each."""
        start = self.at
        value = self.u64(f"the number of {what}")
        if value * item > self.left:
            raise self.fault(f"{value} {what} take at least {value * item} bytes, {self.left} are left", start)
        if value > most:
            raise self.fault(f"{value} {what}; at most {most} are taken", start)
        return value

    def string(self, what: str) -> str:
        start = self.at
        size = self.u64(f"the length of {what}")
        if size > min(self.left, MAX_NAME):
            raise self.fault(f"{what} has a length of {size}, {min(self.left, MAX_NAME)} are possible", start)
        at = self.skip(size, what)
        try:
            return self.data[at : at + size].decode()
        except UnicodeDecodeError:
            raise self.fault(f"{what} is not UTF-8", at) from None


# Reading


def read_bytes(data: bytes) -> TvmModule:
    """A module in its bytes form, in any layout.

    Raises:
        InvalidError: it is in none; the message is that of the layout that explains most of it.
        UnsupportedError: it holds no kernel.
    """
    faults: list[tuple[int, InvalidError]] = []
    for layout in LAYOUTS:
        reader = Reader(data)
        try:
            module = read_layout(reader, layout)
            if reader.left:
                raise reader.fault(f"{reader.left} bytes are left after the last shader")
        except InvalidError as error:
            faults.append((reader.at, error))
        else:
            module.check()
            return module
    raise max(faults, key=lambda fault: fault[0])[1]


def read_layout(reader: Reader, layout: str) -> TvmModule:
    """A module in one layout; the reader stops behind it.

    Raises:
        InvalidError
    """
    start = reader.at
    name = reader.string("the module's format")
    if name != FORMAT:
        raise reader.fault(f"the module's format is {brief(name)}, {FORMAT!r} is expected", start)
    functions = [
        _read_function(reader, extra=layout != "0.20")
        for _ in range(reader.count("functions", 40 if layout != "0.20" else 32, MAX_FUNCTIONS))
    ]
    shaders = [_read_shader(reader, nested=layout == "0.24") for _ in range(reader.count("shaders", 20, MAX_FUNCTIONS))]
    return TvmModule(functions, shaders, layout)


def _read_function(reader: Reader, *, extra: bool) -> Function:
    key = reader.string("a function's key")
    name = reader.string("a function's name")
    count = reader.count("argument types", 4, MAX_ARGUMENTS)
    start = reader.skip(4 * count, "the argument types")
    types = [data_type(reader.data[at : at + 4]) for at in range(start, start + 4 * count, 4)]
    tags = [reader.string("a launch tag") for _ in range(reader.count("launch tags", 8, MAX_TAGS))]
    extras: list[int] | None = None
    if extra:
        count = reader.count("extra tags", 4, MAX_ARGUMENTS)
        extras = list(struct.unpack_from(f"<{count}i", reader.data, reader.skip(4 * count, "the extra tags")))
    return Function(key, name, types, tags, extras)


def _read_shader(reader: Reader, *, nested: bool) -> Shader:
    key = reader.string("a shader's key")
    start = reader.at
    size = reader.u64("a shader's length") if nested else 0
    inner = reader.at
    flag = reader.u32("a shader's flag")
    words = reader.u64("a shader's number of words")
    shader = Shader(key, flag, reader.skip(4 * words, f"the shader {brief(key)} of {words} words"), 4 * words)
    if nested and reader.at - inner != size:
        raise reader.fault(
            f"the shader {brief(key)} has a length of {size}, its words end at {reader.at - inner}", start
        )
    return shader


def read_file_shaders(data: bytes) -> list[Shader]:
    """The shaders of a binary file; what describes their arguments is in the metadata beside it.

    Raises:
        InvalidError
    """
    reader = Reader(data)
    magic = reader.u32("the magic number")
    if magic != FILE_MAGIC:
        raise reader.fault(f"the magic number is {magic:#010x}, {FILE_MAGIC:#010x} is expected", 0)
    shaders = [_read_shader(reader, nested=False) for _ in range(reader.count("shaders", 20, MAX_FUNCTIONS))]
    if reader.left:
        raise reader.fault(f"{reader.left} bytes are left after the last shader")
    return shaders


# Writing


def write_bytes(module: TvmModule, layout: str) -> list[Piece]:
    """The bytes form in a layout; in that in which it was read, what was read.

    Raises:
        UnsupportedError: the layout cannot hold it.
    """
    if layout != module.layout:
        module = _converted(module, layout)
    out: list[Piece] = [_string(FORMAT), _U64.pack(len(module.functions))]
    for f in module.functions:
        types = b"".join(struct.pack("<BBH", *t) for t in f.arg_types)
        out += [_string(f.key), _string(f.name), _U64.pack(len(f.arg_types)), types, _U64.pack(len(f.launch_tags))]
        out += [_string(tag) for tag in f.launch_tags]
        if f.extra_tags is not None:
            out.append(struct.pack(f"<Q{len(f.extra_tags)}i", len(f.extra_tags), *f.extra_tags))
    out.append(_U64.pack(len(module.shaders)))
    out += _shader_pieces(module.shaders, nested=layout == "0.24")
    return out


def write_file(shaders: list[Shader]) -> list[Piece]:
    """The binary file with these shaders."""
    return [struct.pack("<IQ", FILE_MAGIC, len(shaders)), *_shader_pieces(shaders, nested=False)]


def join(pieces: Iterable[Piece], payload: bytes) -> bytes:
    """What was written, as one byte string. `payload` is what the module was read from."""
    view = memoryview(payload)
    return b"".join(piece if isinstance(piece, bytes) else view[piece[0] : sum(piece)] for piece in pieces)


def size_of(pieces: Iterable[Piece]) -> int:
    """How long `join` would be."""
    return sum(len(piece) if isinstance(piece, bytes) else piece[1] for piece in pieces)


def _shader_pieces(shaders: list[Shader], *, nested: bool) -> list[Piece]:
    out: list[Piece] = []
    for s in shaders:
        length = _U64.pack(12 + s.size) if nested else b""
        out += [_string(s.key) + length + struct.pack("<IQ", s.flag, s.size // 4), (s.start, s.size)]
    return out


def _string(text: str) -> bytes:
    raw = text.encode()
    return _U64.pack(len(raw)) + raw


def _converted(module: TvmModule, layout: str) -> TvmModule:
    """As the TVM of another layout would have written it: the name and the extra tags differ."""
    functions = []
    for f in module.functions:
        name = f.name
        if layout == "0.24":
            name = f.name or f.key
        elif f.name == f.key:
            name = ""
        extra: list[int] | None = None
        if layout != "0.20":
            extra = f.extra_tags if f.extra_tags is not None else [0] * len(f.arg_types)
        elif f.extra_tags is not None and any(f.extra_tags):
            raise UnsupportedError(
                f"layout 0.20 has no room for the extra tags of {brief(f.key)}; save in layout 0.21 or 0.24"
            )
        functions.append(Function(f.key, name, f.arg_types, f.launch_tags, extra))
    return TvmModule(functions, module.shaders, layout)
