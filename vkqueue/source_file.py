"""Source files: one text, and texts by name for what it includes. The daemon opens no file, so they are read here."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vkqueue.errors import InvalidError

LANGUAGES = {".comp": "glsl", ".glsl": "glsl", ".hlsl": "hlsl", ".slang": "slang"}
"""By the end of a file's name."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
_IMPORT = re.compile(r'^[ \t]*(?:__exported[ \t]+)?(?:import|__include)[ \t]+("[^"\n]+"|[\w.]+)', re.MULTILINE)


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
    includes: dict[str, str] = field(default_factory=dict)


def language_of(path: str | os.PathLike[str]) -> str | None:
    """The language of a source file by its name, None for any other file."""
    return LANGUAGES.get(Path(path).suffix.lower())


def read_source(
    path: str | os.PathLike[str],
    language: str,
    folders: Sequence[str] = (),
    check: Callable[[Path], None] = lambda path: None,
) -> SourceFile:
    """Read a source file, and what it includes: from its own folder and those in it, else from `folders`.

    What is not found is left for the compiler to complain of.

    Args:
        check: raises if a file that was found must not be read.

    Raises:
        InvalidError: a file is no UTF-8.
        OSError: it cannot be read.
    """
    top = Path(path)
    check(top)
    source = SourceFile(os.fspath(path), _read(top), language)
    # What is still to be looked through: a text, the name of its folder, and where that folder really is.
    waiting = [(source.text, "", top.parent)]
    while waiting:
        text, inside, real = waiting.pop()
        for wanted in _wanted(text, language):
            for name, file in _places(wanted, inside, real, [str(top.parent), *folders]):
                if name in source.includes:
                    break
                if file.is_file():
                    check(file)
                    source.includes[name] = _read(file)
                    waiting.append((source.includes[name], posixpath.dirname(name), file.parent))
                    break
    return source


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
            else:  # a module; its file may have hyphens where its name has underscores
                path = name.replace(".", "/")
                yield from (f"{path}.slang", f"{path.replace('_', '-')}.slang")


def _places(wanted: str, inside: str, real: Path, folders: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """(name for the compiler, file) of all that an include may mean, in the order of search."""
    for name, file in (
        (posixpath.normpath(posixpath.join(inside, wanted)), real / wanted),
        *((posixpath.normpath(wanted), Path(folder) / wanted) for folder in folders),
    ):
        if not name.startswith(("/", "..")):
            yield name, file
