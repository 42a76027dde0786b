"""`vkqueue compile`: source text to a SPIR-V file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vkqueue.cli.options import json_option, socket_option
from vkqueue.cli.output import dump, say
from vkqueue.cli.sources import LANGUAGES, SourceFile, compile_here, language_of, read_source
from vkqueue.errors import ConnectionLostError, UnsupportedError


@click.command(short_help="Compile source text to SPIR-V.")
@click.argument("file", type=click.Path(dir_okay=False, exists=True))
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="To be written; else FILE with .spv at its end.")
@click.option("--language", type=click.Choice(sorted(set(LANGUAGES.values()))), help="Else by the end of FILE's name.")
@click.option("--entry", metavar="NAME", help="The function that is the kernel; else main, in Slang every marked one.")
@click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro, as 1 if there is no value.")
@click.option("-I", "folders", multiple=True, type=click.Path(file_okay=False), help="Look for includes here too.")
@click.option("--target-env", default="vulkan1.1", show_default=True, help="vulkan1.0 to 1.4, or spv1.0 to spv1.6.")
@socket_option
@json_option
def command(
    file: str,
    output: str | None,
    language: str | None,
    entry: str | None,
    defines: tuple[str, ...],
    folders: tuple[str, ...],
    target_env: str,
    socket: str | None,
    as_json: bool,
) -> None:
    """Compile FILE (GLSL, HLSL or Slang) by a compiler of this machine; without one, by the daemon's.

    What it includes is looked for beside it, and in the folders of -I.

    Exit status: 0, or 1 with the compiler's messages.
    """
    known = language_of(file, language)
    if known is None:
        raise click.UsageError(f"{file}: its name does not tell its language; give --language")
    source = read_source(file, known, folders)
    macros = {name: value if equals else "1" for name, equals, value in (text.partition("=") for text in defines)}
    try:
        spirv, analysis = compile_here(source, entry=entry, defines=macros, target=target_env)
    except UnsupportedError as error:
        if not error.data or "language" not in error.data:
            raise
        spirv, analysis = compile_there(source, socket, error, entry=entry, defines=macros, target_env=target_env)
    target = Path(output) if output is not None else Path(file).with_suffix(".spv")
    target.write_bytes(spirv)
    kernels = list(analysis["kernels"])
    if as_json:
        dump({"ok": True, "file": file, "output": str(target), "bytes": len(spirv), "kernels": kernels})
    else:
        say(f"{target}: {len(spirv):,} bytes; kernels: {', '.join(kernels)}")


def compile_there(
    source: SourceFile, socket: str | None, missing: UnsupportedError, **how: Any
) -> tuple[bytes, Mapping[str, Any]]:
    """(SPIR-V, its analysis), by the daemon's compiler. The daemon gives out modules in TVM's form only, so that is
    where the SPIR-V is taken from.

    Raises:
        CompileError: with the compiler's text.
        UnsupportedError: `missing` where no daemon answers; it has no compiler either, or a kernel does not fit that
            form.
    """
    from vkqueue.client.sync import connect
    from vkqueue.kernels.reflect import analyse
    from vkqueue.kernels.tvm import read

    try:
        gpu = connect(socket, client_name="vkqueue compile")
    except ConnectionLostError:
        raise missing from None
    with gpu:
        saved = gpu.compile(source.text, source.language, includes=source.includes, **how).save("tvm_file")
    shader = read(saved.data, "tvm_file", saved.meta).shaders[0]
    spirv = saved.data[shader.start : shader.start + shader.size]
    return spirv, analyse(spirv)
