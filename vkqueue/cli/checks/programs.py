"""Compilers and tools of other projects; none is needed to run SPIR-V."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from vkqueue.cli.checks import Finding, Machine, ok, warning
from vkqueue.cli.checks.child import run


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is used if it is installed."""

    purpose: str
    install: str


PROGRAMS = {
    "glslc": Program("GLSL and HLSL sources", "install glslc (Debian, Ubuntu, Fedora)"),
    "glslangValidator": Program("GLSL sources", "install glslang-tools (Debian, Ubuntu) or glslang (Fedora)"),
    "dxc": Program(
        "HLSL sources", "install it from https://github.com/microsoft/DirectXShaderCompiler/releases, or with the SDK"
    ),
    "spirv-dis": Program("the listing of inspect --asm", "install spirv-tools (Debian, Ubuntu, Fedora)"),
    "spirv-val": Program("advice on modules", "install spirv-tools (Debian, Ubuntu, Fedora)"),
}


def check(machine: Machine) -> Iterator[Finding]:
    """Each program, with its version."""
    for name, program in PROGRAMS.items():
        path = shutil.which(name, path=machine.environ.get("PATH", ""))
        if path is None:
            yield warning(name, f"is not installed; it is for {program.purpose}", program.install)
        else:
            yield ok(name, f"{path}, {_version(path, machine)}")
    try:
        yield ok("slangpy", metadata.version("slangpy"))
    except metadata.PackageNotFoundError:
        yield warning("slangpy", "is not installed; it is for Slang sources", "pip install 'vkqueue[slang]'")


def _version(path: str, machine: Machine) -> str:
    done = run([path, "--version"], machine.environ)
    if isinstance(done, str):
        return done
    return next((line for line in (done.stdout + done.stderr).splitlines() if line), "of unknown version")
