"""Source files as compilers here and in the daemon want them: one text, and texts by name for what it includes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from vkqueue import source_file
from vkqueue.errors import CompileError, UnsupportedError
from vkqueue.source_file import LANGUAGES, SourceFile, read_source

__all__ = ["LANGUAGES", "SourceFile", "compile_here", "language_of", "read_source"]


def language_of(path: str, given: str | None = None) -> str | None:
    """The language of a source file; None for what is none by its name."""
    return given or source_file.language_of(path)


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
