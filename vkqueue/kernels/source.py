"""Source text to SPIR-V, by the compilers that are installed. Runs in a helper process.

GLSL goes to glslc or glslangValidator, HLSL to these or dxc, Slang to the library of the `slangpy` package. A client's
includes are texts by name. They lie in a folder of their own while the compiler runs, or, for Slang, in no folder at
all; what names a file elsewhere is refused before any compiler sees it.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vkqueue.errors import CompileError, InvalidError, UnsupportedError, brief
from vkqueue.kernels import slang
from vkqueue.kernels.confine import python_folders, run, workspace
from vkqueue.kernels.reflect import analyse

EXTENSIONS = {"glsl": "comp", "hlsl": "hlsl", "slang": "slang"}
MAX_INCLUDES = 1024

# Vulkan version → the newest SPIR-V that it takes; a SPIR-V version → the oldest Vulkan version that takes it.
_SPIRV = {"1.0": "1.0", "1.1": "1.3", "1.2": "1.5", "1.3": "1.6", "1.4": "1.6"}
_VULKAN = {"1.0": "1.0", "1.1": "1.1", "1.2": "1.1", "1.3": "1.1", "1.4": "1.2", "1.5": "1.2", "1.6": "1.3"}
_TARGET = re.compile(r"(vulkan|spirv|spv)(1\.[0-9])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

# Anywhere but behind `//`, and also where a comment stands between the words: rather one too many than one too few.
_GAP = r"(?:\s|/\*.*?\*/)*"
_DIRECTIVE = re.compile(
    rf"(?:\#|%:|\?\?=){_GAP}(?:include|import|__include_macros)\w*{_GAP}"
    r"(?:\"(?P<quoted>[^\"\\\n]*)\"|<(?P<angled>[^>\\\n]*)>)?",
    re.DOTALL,
)
_VERSION = re.compile(r"^\s*#\s*version\b", re.MULTILINE)
_SPLICE = re.compile(r"\\\r?\n")
_HOW_TO_INSTALL = {
    "glsl": "glslc (packages: glslc, or shaderc) or glslangValidator (packages: glslang-tools, or glslang)",
    "hlsl": "glslc (packages: glslc, or shaderc), glslangValidator (packages: glslang-tools, or glslang) or dxc "
    "(DirectXShaderCompiler)",
    "slang": "the Python package slangpy (pip install 'vkqueue[slang]')",
}


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be compiled.

    Attributes:
        defines: as text.
        entry: None for the language's default: "main", in Slang every function marked as a compute shader.
        target_env: "vulkan1.0" to "vulkan1.4", or "spv1.0" to "spv1.6".
    """

    text: str
    language: str
    entry: str | None = None
    defines: Mapping[str, str] = field(default_factory=dict)
    includes: Mapping[str, str] = field(default_factory=dict)
    target_env: str = "vulkan1.1"

    @property
    def file_name(self) -> str:
        """What compilers call it in their messages."""
        return f"source.{EXTENSIONS[self.language]}"

    @property
    def versions(self) -> tuple[str, str, bool]:
        """Vulkan and SPIR-V version of the target, and whether it was given as the latter."""
        match = _TARGET.fullmatch(self.target_env)
        assert match is not None  # checked
        return (match[2], _SPIRV[match[2]], False) if match[1] == "vulkan" else (_VULKAN[match[2]], match[2], True)


def compile_source(
    text: bytes,
    language: str,
    entry: str | None = None,
    defines: Mapping[str, Any] | None = None,
    includes: Mapping[str, str] | None = None,
    target_env: str = "vulkan1.1",
) -> dict[str, Any]:
    """Compile and analyse: {spirv: in base64, analysis: of `reflect.analyse`}.

    Raises:
        CompileError: with the compiler's text.
        UnsupportedError: no compiler for the language is installed; or as `analyse`.
        InvalidError: a define, an include or the target is no good.
    """
    values = {name: define_text(name, value) for name, value in (defines or {}).items()}
    source = Source(text.decode(), language, entry, values, dict(includes or {}), target_env)
    check(source)
    with workspace() as folder:
        spirv = _compile(source, folder)
    return {"spirv": base64.b64encode(spirv).decode(), "analysis": analyse(spirv)}


# What a client may ask for


def define_text(name: str, value: object) -> str:
    """A define's value as compilers take it.

    Raises:
        InvalidError: the name is no identifier, or the value has control characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidError(f"defines: {brief(name)} is no identifier")
    text = str(int(value)) if isinstance(value, bool) else value if isinstance(value, str) else repr(value)
    if _CONTROL.search(text):
        raise InvalidError(f"defines: the value of {name} has a line break or another control character")
    return text


def check(source: Source) -> None:
    """Raise what is wrong before any compiler runs.

    Raises:
        InvalidError, CompileError (an include that names a file which is not the client's)
    """
    if _TARGET.fullmatch(source.target_env) is None or source.target_env[-3:] not in (
        _SPIRV if source.target_env.startswith("vulkan") else _VULKAN
    ):
        raise InvalidError(
            f"target_env: {brief(source.target_env)} is unknown; expected vulkan1.0 to vulkan1.4, or spv1.0 to spv1.6"
        )
    if source.entry is not None and not _NAME.fullmatch(source.entry):
        raise InvalidError(f"entry: {brief(source.entry)} is no identifier")
    if len(source.includes) > MAX_INCLUDES:
        raise InvalidError(f"includes: {len(source.includes)} texts; at most {MAX_INCLUDES} are taken")
    folders: set[str] = set()
    for name in source.includes:
        _check_name(name)
        parts = name.split("/")
        folders |= {"/".join(parts[:n]) for n in range(1, len(parts))}
    if both := folders & set(source.includes):
        raise InvalidError(f"includes: {brief(min(both))} is a text and a folder of others")
    for name, text in ((source.file_name, source.text), *source.includes.items()):
        if "\0" in text:
            raise InvalidError(f"{'source' if name == source.file_name else 'includes'}: {name} has a zero byte in it")
        if source.language != "slang":  # it opens no files
            _check_directives(name, text)


def _check_name(name: str) -> None:
    bad = name.startswith("/") or "\\" in name or _CONTROL.search(name) is not None
    parts = name.split("/")
    if bad or any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise InvalidError(
            f"includes: {brief(name)} is no name for a text; expected a relative one without '..', with '/' between "
            "its parts, such as 'lib/noise.glsl'"
        )
    if len(parts) > 16:
        raise InvalidError(f"includes: {brief(name)} has more than 16 parts")


def _check_directives(name: str, text: str) -> None:
    """Raises CompileError for an include of a file that cannot be among a client's texts."""
    text = _SPLICE.sub("", text)
    for match in _DIRECTIVE.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if before.lstrip().startswith("//") and "*/" not in before:
            continue
        path = match["quoted"] if match["quoted"] is not None else match["angled"]
        if path is None:
            fault = "its name has to be a plain string"
        elif path.startswith(("/", "~")) or ".." in path.split("/"):
            fault = f"{brief(path)} is outside of `includes`; give a relative name without '..'"
        else:
            continue
        line = text.count("\n", 0, match.start()) + 1
        raise CompileError(f"{name}:{line}: error: '#include': {fault}")


# Compilers


def _glslc(tool: str, source: Source, output: str) -> list[str]:
    vulkan, spirv, by_spirv = source.versions
    target = [f"--target-env=vulkan{vulkan}"] + ([f"--target-spv=spv{spirv}"] if by_spirv else [])
    command = [tool, "-x", source.language, "-fshader-stage=compute", *target, "-fauto-bind-uniforms", "-I../include"]
    if source.language == "hlsl":
        command.append(f"-fentry-point={source.entry or 'main'}")
    return [*command, *_defines(source), "-o", output, source.file_name]


def _glslang(tool: str, source: Source, output: str) -> list[str]:
    vulkan, spirv, by_spirv = source.versions
    target = f"spirv{spirv}" if by_spirv else f"vulkan{vulkan}"
    command = [tool, "-V", "-S", "comp", "--target-env", target, "--auto-map-bindings", "-I../include"]
    if source.language == "hlsl":
        command += ["-D", "-e", source.entry or "main"]
    return [*command, *_defines(source), "-o", output, source.file_name]


def _dxc(tool: str, source: Source, output: str) -> list[str]:
    vulkan, spirv, _ = source.versions
    target = "vulkan1.1spirv1.4" if (spirv, vulkan) == ("1.4", "1.2") else f"vulkan{min(vulkan, '1.3')}"
    command = [tool, "-spirv", "-T", "cs_6_6", "-E", source.entry or "main", f"-fspv-target-env={target}", "-I"]
    return [*command, "../include", *_defines(source), "-Fo", output, source.file_name]


def _defines(source: Source) -> list[str]:
    return [f"-D{name}={value}" for name, value in source.defines.items()]


def slang_arguments(source: Source) -> list[str]:
    """What slangc would be told."""
    _, spirv, _ = source.versions
    command = ["-target", "spirv", "-profile", f"spirv_{spirv.replace('.', '_')}", "-fvk-use-entrypoint-name"]
    return command + _defines(source)


def _any(source: Source) -> bool:
    return True


def _before_1_4(source: Source) -> bool:
    """glslc writes HLSL's buffers as BufferBlock, which SPIR-V 1.4 no longer has."""
    return source.versions[1] < "1.4"


def _glslc_1_3(tool: str, source: Source, output: str) -> list[str]:
    return _glslc(tool, replace(source, target_env="vulkan1.1"), output)


Command = Callable[[str, Source, str], list[str]]
_GLSLANG: tuple[tuple[str, Command, Callable[[Source], bool]], ...] = (
    ("glslangValidator", _glslang, _any),
    ("glslang", _glslang, _any),
)
TOOLS = {
    "glsl": (("glslc", _glslc, _any), *_GLSLANG),
    "hlsl": (("glslc", _glslc, _before_1_4), *_GLSLANG, ("dxc", _dxc, _any), ("glslc", _glslc_1_3, _any)),
}
"""Compilers by language: the first that is installed, and can do what is asked, is taken."""


def _compile(source: Source, folder: Path) -> bytes:
    inside = folder / "source"
    inside.mkdir()
    output = folder / "output.spv"
    command, readable = _command(source, folder, str(output))
    if source.language == "glsl" and not _VERSION.search(source.text):
        # Without it compilers take it for a version that Vulkan does not have, and say so at great length.
        raise CompileError(
            f"{source.file_name}:1: error: '#version' is missing; write '#version 450' in the first line"
        )
    if source.language != "slang":
        _write(inside / source.file_name, source.text)
        for name, text in source.includes.items():
            _write(folder / "include" / name, text)
    how, messages = run(command, inside, folder, readable)
    messages = clean(messages, folder)
    if how.startswith("signal"):
        raise CompileError(f"the compiler {Path(command[0]).name} was ended by {how}\n{messages}".strip())
    if how or not output.exists():
        raise CompileError(messages or f"the compiler {Path(command[0]).name} says nothing and ends with {how}")
    return output.read_bytes()


def _command(source: Source, folder: Path, output: str) -> tuple[list[str], list[str]]:
    """(The command, what else it has to read).

    Raises:
        UnsupportedError: no compiler is installed.
    """
    for name, command, can in TOOLS.get(source.language, ()):
        tool = shutil.which(name) if can(source) else None
        if tool is not None:
            return command(tool, source, output), []
    library = slang_library() if source.language == "slang" else None
    if library is None:
        raise UnsupportedError(
            f"language: no compiler for {source.language} is installed where the daemon runs; install "
            f"{_HOW_TO_INSTALL[source.language]}",
            {"language": source.language},
        )
    request = folder / "request.json"
    files = {posixpath.normpath(name): text for name, text in source.includes.items()}
    doc = {"library": library, "arguments": slang_arguments(source), "source": source.text, "entry": source.entry,
           "files": files}  # fmt: skip
    request.write_text(json.dumps(doc), encoding="utf-8")
    script = slang.__file__
    readable = [*python_folders(), str(Path(library).parent), str(Path(script).parent)]
    return [sys.executable, "-I", script, str(request), output], readable


def slang_library() -> str | None:
    """The library of an installed slangpy package, found without running it."""
    found = find_spec("slangpy")
    if found is None or found.origin is None:
        return None
    libraries = sorted(Path(found.origin).parent.glob("libslang-compiler.so*")) or sorted(
        Path(found.origin).parent.glob("libslang.so*")
    )
    return str(libraries[0]) if libraries else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def clean(messages: str, folder: Path) -> str:
    """A compiler's text without the folder that it ran in."""
    for prefix in (f"{folder}/include/", f"{folder}/source/", f"{folder}/", "../include/"):
        messages = messages.replace(prefix, "")
    return messages.strip()
