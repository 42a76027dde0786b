"""The listing of a module."""

from __future__ import annotations

import pytest
from support.assembler import assemble
from support.cases import CORPUS, TVM_CORPUS, by_name

from vkqueue.errors import InvalidError
from vkqueue.kernels import disasm
from vkqueue.kernels.disasm import disassemble


@pytest.mark.parametrize("case", [c for c in (*CORPUS, *TVM_CORPUS) if c.producer != "corrupt"], ids=str)
def test_a_listing_assembles_to_the_module_again(case):
    """All of it: names of enumerants, masks with operands, literals of every width (but for 64-bit switches)."""
    lines = disassemble(case.spirv)
    head = case.spirv[:20]
    again = assemble(lines, bound=int.from_bytes(head[12:16], "little"))
    assert again[20:] == case.spirv[20:]


def test_lines():
    listing = disassemble(by_name("clspv_two_kernels").spirv)
    assert "; Version: 1.0\n" in listing
    assert '    %83 = OpExtInstImport "NonSemantic.ClspvReflection.5"\n' in listing
    assert "OpLoad %16 %33 Aligned 4\n" in listing
    assert 'OpEntryPoint GLCompute %29 "fill" %4 %11\n' in listing


def test_a_broken_module_is_invalid():
    with pytest.raises(InvalidError):
        disassemble(by_name("corrupt_truncated").spirv)


def test_the_listing_is_bounded(monkeypatch):
    monkeypatch.setattr(disasm, "MAX_TEXT", 500)
    listing = disassemble(by_name("glsl_matmul_tiled").spirv)
    assert len(listing) < 700
    assert listing.splitlines()[-1].startswith("; cut off after ")
