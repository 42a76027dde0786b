"""Source files as compilers here and in the daemon want them: one text, and texts by name for what it includes."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkqueue.errors import CompileError, InvalidError, UnsupportedError

LANGUAGES = {".comp": "glsl", ".glsl": "glsl", ".hlsl": "hlsl", ".slang": "slang"}
"""By the end of a file's name."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
_IMPORT = re.compile(
    r'^[ \t]*(?:__exported[ \t]+)?(?:import|__include|implementing)[ \t]+("[^"\n]+"|[\w.]+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source with all that it includes.

    Attributes:
        path: for messages.
        includes: text by the name that the source includes it by.
    """

    path: str
    text: str
    language: str
    includes: Mapping[str, str] = field(default_factory=dict)


def language_of(path: str, given: str | None = None) -> str | None:
    """The language of a source file; None for what is none by its name."""
    return given or LANGUAGES.get(Path(path).suffix.lower())


def read_source(path: str, language: str, folders: Sequence[str] = ()) -> SourceFile:
    """Read a source file, and what it includes: from its own folder, else from `folders`.

    What is not found is left for the compiler to complain of.

    Raises:
        InvalidError: a file is no UTF-8.
        OSError: it cannot be read.
    """
    text = _read(Path(path))
    found: dict[str, str] = {}
    # What is still to be looked through: a text, the name of its folder, and where that folder really is.
    waiting = [(text, "", Path(path).parent)]
    while waiting:
        content, inside, real = waiting.pop()
        for wanted in _wanted(content, language):
            for name, file in _places(wanted, inside, real, folders):
                if name in found:
                    break
                if file.is_file():
                    found[name] = _read(file)
                    waiting.append((found[name], posixpath.dirname(name), file.parent))
                    break
    return SourceFile(path, text, language, found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidError(f"{path}: source text has to be UTF-8: {error}") from None


def _wanted(text: str, language: str) -> Iterator[str]:
    """Names of files that a text asks for."""
    yield from _INCLUDE.findall(text)
    if language == "slang":
        for name in _IMPORT.findall(text):
            if name.startswith('"'):
                yield name.strip('"')
            else:  # a module; the file may have hyphens where its name has underscores
                path = name.replace(".", "/")
                yield from (f"{path}.slang", f"{path.replace('_', '-')}.slang")


def _places(wanted: str, inside: str, real: Path, folders: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """(name for the compiler, file) of all that an include may mean, in the order of search."""
    name = posixpath.normpath(posixpath.join(inside, wanted))
    if not name.startswith(("/", "..")):
        yield name, real / wanted
    for folder in folders:
        yield posixpath.normpath(wanted), Path(folder) / wanted


def compile_here(
    source: SourceFile, *, entry: str | None = None, defines: Mapping[str, Any] | None = None, target: str = "vulkan1.1"
) -> tuple[bytes, Mapping[str, Any]]:
    """(SPIR-V, its analysis), by a compiler of this machine.

    Raises:
        CompileError: with the compiler's text, in which the file has its own name.
        UnsupportedError: no compiler for the language is installed.
        InvalidError: a define, an include or the target is no good.
    """
    from vkqueue.kernels.source import EXTENSIONS, compile_source

    try:
        made = compile_source(
            source.text.encode(), source.language, entry, defines or {}, source.includes, target_env=target
        )
    except CompileError as error:
        stand_in = f"source.{EXTENSIONS[source.language]}"
        raise CompileError(f"{source.path}\n{error.message.replace(stand_in, source.path)}", error.data) from None
    except UnsupportedError as error:
        if error.data and "language" in error.data:
            here = error.message.replace("where the daemon runs", "here")
            raise UnsupportedError(here, error.data) from None
        raise
    return base64.b64decode(made["spirv"]), made["analysis"]
