"""A module's file as `inspect` and `run` want it: its bytes, and what our own analysis says of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vkqueue.cli.element_types import element_types
from vkqueue.cli.sources import compile_here, language_of, read_source
from vkqueue.client.module import module_params, read_module
from vkqueue.errors import VkqueueError
from vkqueue.kernels import spirv as parser
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.tvm import analyse_tvm


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A module.

    Attributes:
        form: "spirv", or one of TVM's, named as the parameters of `module.load`.
        origin: what a client loads it by: its path, or what was compiled from it.
        analysis: {kernels: {name: reflection}} and more, see `reflect.analyse` and `tvm.analyse_tvm`.
    """

    name: str
    form: str
    data: bytes
    analysis: Mapping[str, Any]
    origin: str | bytes

    def shader(self, kernel: str) -> bytes:
        """The SPIR-V that a kernel is in."""
        tvm = self.analysis["kernels"][kernel].get("tvm")
        if tvm is None:
            return self.data
        start, length = tvm["shader"]
        return self.data[start : start + length]

    def shaders(self) -> dict[str, bytes]:
        """Every SPIR-V module in it, by the kernel's name where each kernel has its own."""
        if self.form == "spirv":
            return {"": self.data}
        return {name: self.shader(name) for name in self.analysis["kernels"]}

    def element_types(self, kernel: str) -> dict[tuple[int, int], str]:
        """(set, binding) → dtype of the numbers in a kernel's buffers, as far as there is one."""
        try:
            return element_types(self.shader(kernel))
        except VkqueueError:  # one of TVM's that no device can run
            return {}


def read(path: str) -> ModuleFile:
    """Read and analyse a module's file; a source file is compiled first.

    Raises:
        InvalidError, UnsupportedError: it is broken, or has no kernel for Vulkan.
        CompileError
        OSError: a file cannot be read.
    """
    language = language_of(path)
    if language is not None:
        spirv, analysed = compile_here(read_source(path, language))
        return ModuleFile(Path(path).stem, "spirv", spirv, analysed, spirv)
    data, meta, name = read_module(path)
    params = module_params(data, meta, None, None)
    (form,) = (key for key in params if key != "tvm_meta")
    analysis = analyse(data) if form == "spirv" else analyse_tvm(data, form, meta)
    return ModuleFile(name, form, data, analysis, path)


def header(spirv: bytes) -> dict[str, Any]:
    """Version and generator of a SPIR-V module."""
    module = parser.parse(spirv)
    return {"spirv_version": ".".join(map(str, module.version)), "generator": generator_name(module.generator)}


_GENERATORS = {
    0: "unknown", 6: "LLVM/SPIR-V translator", 7: "SPIR-V assembler", 8: "glslang", 13: "shaderc (glslang)",
    14: "DXC", 15: "rspirv", 17: "SPIR-V linker", 18: "vkd3d", 21: "clspv", 22: "MLIR", 23: "Tint", 27: "rust-gpu",
    28: "naga", 36: "Taichi", 40: "Slang", 41: "Zig", 43: "LLVM",
}  # fmt: skip
"""Khronos' numbers of tools: the upper half of the header's third word."""
_NAGA = 28  # it writes its number into the lower half


def generator_name(word: int) -> str:
    """The tool that wrote a module, and its version where it tells one."""
    tool, version = (word >> 16, word & 0xFFFF) if word != _NAGA else (_NAGA, 0)
    return f"{_GENERATORS.get(tool, f'tool {tool}')}" + (f" {version}" if version else "")


def kernel_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: the kernels of the files on the line.

    The line is that of the shell: click parses no arguments when the last option has no value yet.
    """
    names: list[str] = []
    for word in os.environ.get("COMP_WORDS", "").split():
        try:
            names += read(word).analysis["kernels"]
        except (OSError, VkqueueError):
            pass  # none of those
    return [name for name in names if name.startswith(incomplete)]
