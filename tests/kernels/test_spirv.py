"""The parser: what is broken is told with its place, and what only some validators mind is taken."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from support.assembler import COMPUTE, TYPES, assemble, buffers
from support.cases import CORPUS, TVM_CORPUS, by_name

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.spirv import MAX_BOUND, MAX_BYTES, parse

BODY = "%p = OpAccessChain %puint %a %0u %1u\n%x = OpLoad %uint %p\nOpReturn"
LABEL = "%main = OpFunction %void None %fn\n%start = OpLabel"


def module(body: str = BODY, *, head: str = COMPUTE, types: str = TYPES, extra: str = "", after: str = "") -> bytes:
    decorations, declarations = buffers("a")
    return assemble(f"{head}\n{decorations}\n{types}\n{declarations}\n{extra}\n{LABEL}\n{body}\nOpFunctionEnd\n{after}")


def words_of(spirv: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(spirv) // 4}I", spirv))


def bytes_of(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def test_the_plain_module_is_fine():
    parsed = parse(module())
    assert parsed.version == (1, 3)
    assert [entry.name for entry in parsed.entry_points] == ["main"]
    assert len(parsed.functions) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"\x03\x02\x23\x07", "4 bytes"),
        (module()[:-1], "whole words"),
        (b"\x07\x23\x02\x03" + module()[4:], "big-endian"),
        (b"\x7fELF" + module()[4:], "not the magic number"),
        (module()[:4] + struct.pack("<I", 0x00020000) + module()[8:], "version word 0x00020000"),
        (module()[:4] + struct.pack("<I", 0x01010300) + module()[8:], "version word"),
        (module()[:12] + struct.pack("<I", 0) + module()[16:], "id bound 0"),
        (module()[:12] + struct.pack("<I", MAX_BOUND + 1) + module()[16:], "id bound 4194304"),
        (module()[:12] + struct.pack("<I", MAX_BOUND) + module()[16:], "compact the ids"),
        (module()[:12] + struct.pack("<I", 10) + module()[16:], "outside the bound 10"),
        (module()[:16] + struct.pack("<I", 1) + module()[20:], "schema 1"),
        (module()[:20], "no OpMemoryModel"),
        (module()[:-4], "no OpFunctionEnd"),
        (module() + bytes(4), "word count 0"),
        (module() + struct.pack("<I", 9 << 16), "word count 9"),
        (module() + struct.pack("<I", 1 << 16 | 40000), "opcode 40000 is not known"),
    ],
)
def test_containers(data, words):
    with pytest.raises(InvalidError, match=words):
        parse(data)


def test_size():
    with pytest.raises(UnsupportedError, match="at most"):
        parse(module() + bytes(MAX_BYTES))


def test_every_cut_of_a_module_is_invalid():
    """At a word or between instructions: no prefix is a module."""
    spirv = by_name("glsl_desc_array").spirv
    for end in range(0, len(spirv) - 3, 4):
        with pytest.raises(InvalidError):
            parse(spirv[:end])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("%x = OpIAdd %uint %1u %nothing\nOpReturn", "is not defined before its use"),
        ("%x = OpIAdd %uint %1u %uint\nOpReturn", "is not a value"),
        ("%x = OpIAdd %uint %1u %start\nOpReturn", "is not a value"),
        ("%x = OpIAdd %1u %1u %1u\nOpReturn", "result type"),
        ("%1u = OpIAdd %uint %1u %1u\nOpReturn", "defined before"),
        ("%x = OpIAdd %uint %1u %x\nOpReturn", "is not defined before its use"),
        ("%x = OpFAdd %float %1u %1u\nOpReturn", "does not take"),
        ("%x = OpFAdd %uint %1u %1u\nOpReturn", "cannot be its result"),
        ("%x = OpIAdd %uint %1u %true\nOpReturn", "does not take"),
        ("%x = OpULessThan %uint %1u %1u\nOpReturn", "cannot be its result"),
        ("%x = OpBitcast %bool %1u\nOpReturn", "do not fit together"),
        ("%x = OpLoad %float %a\nOpReturn", "does not point to the result type"),
        ("%x = OpLoad %uint %1u\nOpReturn", "is not a pointer"),
        ("OpStore %a %1u\nOpReturn", "does not point to the type of the object"),
        ("%p = OpAccessChain %puint %a %1u %0u\nOpReturn", "is not a member of structure"),
        ("%p = OpAccessChain %puint %a %0u\nOpReturn", "the chain leads to type"),
        ("%p = OpAccessChain %puint %a %0u %1u %1u\nOpReturn", "has no parts to index"),
        ("%p = OpAccessChain %puint %a %0u %true\nOpReturn", "is not an integer"),
        ("%p = OpAccessChain %uint %a %0u %1u\nOpReturn", "one storage class"),
        ("%n = OpArrayLength %uint %a 1\nOpReturn", "last member"),
        ("OpBranch %main", "is not a block"),
        ("OpBranch %start", "is not a block"),
        ("OpBranchConditional %1u %next %next\n%next = OpLabel\nOpReturn", "wrong type to decide by"),
        ("OpSelectionMerge %next None\nOpReturn\n%next = OpLabel\nOpReturn", "right before a branch"),
        ("OpSelectionMerge %gone None\nOpSwitch %1u %next\n%next = OpLabel\nOpReturn", "not a block"),
        ("OpReturnValue %1u", "not of the function's type"),
        ("", "within a block"),
        ("OpReturn\nOpReturn", "outside a block"),
        ("%next = OpLabel\nOpReturn", "cannot begin here"),
        ("OpBranch %next\n%next = OpLabel\n%x = OpPhi %uint %1u %next\nOpReturn", "parents"),
        ("OpBranch %next\n%next = OpLabel\n%x = OpPhi %uint %true %start\nOpReturn", "not of the phi's type"),
        ("OpBranch %next\n%next = OpLabel\nOpNop\n%x = OpPhi %uint %1u %start\nOpReturn", "beginning"),
        ("%f = OpFunctionCall %void %main\nOpReturn", "calls itself"),
        ("%f = OpFunctionCall %void %void\nOpReturn", "is not a function"),
        ("%f = OpFunctionCall %uint %main\nOpReturn", "does not fit"),
        ("%x = OpCompositeExtract %uint %1u 0\nOpReturn", "has no parts"),
        ("%t = OpTypeVoid\nOpReturn", "out of order"),
        ("%e = OpExtInst %float %1u 1 %1u\nOpReturn", "not an instruction set"),
        ("%x = OpGroupNonUniformIAdd %uint %1u Reduce %1u\nOpReturn", "GroupNonUniformArithmetic"),
    ],
)
def test_bodies(body, words):
    with pytest.raises(InvalidError, match=rf"SPIR-V, word \d+, Op\w+: .*{words}"):
        parse(module(body))


CHOICE = """OpSelectionMerge %join None
OpBranchConditional %true %then %else
%then = OpLabel
%made = OpIAdd %uint %1u %1u
OpBranch %join
%else = OpLabel
{other}
OpBranch %join
%join = OpLabel
{after}
OpReturn"""


@pytest.mark.parametrize(
    ("other", "after", "fine"),
    [
        ("%x = OpIAdd %uint %made %1u", "OpNop", False),
        ("OpNop", "%x = OpIAdd %uint %made %1u", False),
        ("OpNop", "%x = OpPhi %uint %made %then %1u %else", True),
        ("OpNop", "%x = OpPhi %uint %1u %then %made %else", False),
        ("OpNop", "%x = OpPhi %uint %made %then %made %else", False),
        ("OpNop", "OpReturn\n%dead = OpLabel\n%x = OpIAdd %uint %made %1u", True),  # never reached
    ],
)
def test_a_value_is_made_on_every_way_to_its_use(other, after, fine):
    spirv = module(CHOICE.format(other=other, after=after))
    if fine:
        parse(spirv)
    else:
        with pytest.raises(InvalidError, match="not every way to its use"):
            parse(spirv)


def test_a_value_of_a_loop_is_there_after_it():
    body = """OpBranch %head
%head = OpLabel
%i = OpPhi %uint %1u %start %next %more
OpLoopMerge %done %more None
OpBranchConditional %true %more %done
%more = OpLabel
%next = OpIAdd %uint %i %1u
OpBranch %head
%done = OpLabel
%x = OpIAdd %uint %i {0}
OpReturn"""
    parse(module(body.format("%1u")))
    with pytest.raises(InvalidError, match="not every way"):
        parse(module(body.format("%next")))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("%t = OpTypeInt 31 0", "no integer has 31 bits"),
        ("%t = OpTypeInt 64 0", "64 bits need a capability"),
        ("%t = OpTypeFloat 16", "16 bits need a capability"),
        ("%t = OpTypeVector %uint 1", "1 components"),
        ("%t = OpTypeVector %block 2", "cannot be the component"),
        ("%t = OpTypeMatrix %uint 2", "cannot be the component"),
        ("%t = OpTypeArray %uint %0u", "no elements"),
        ("%t = OpTypeArray %uint %true", "not an integer constant"),
        ("%t = OpTypeArray %void %1u", "may stand here"),
        ("%t = OpTypeArray %words %1u", "run-time arrays"),
        ("%t = OpTypeStruct %words %uint", "not the last member"),
        ("%t = OpTypeStruct %block", "within another"),
        ("%t = OpTypeStruct %t", "may stand here"),
        ("%t = OpTypePointer StorageBuffer %void", "pointed to"),
        ("%t = OpTypeFunction %void %void", "may stand here"),
        ("%c = OpConstant %bool 1", "cannot be written so"),
        ("%c = OpConstantTrue %uint", "cannot be written so"),
        ("%t = OpTypeVector %uint 2\n%c = OpConstantComposite %t %1u", "1 parts"),
        ("%t = OpTypeVector %uint 2\n%c = OpConstantComposite %t %1u %true", "is not of type"),
        ("%t = OpTypeStruct %uint\n%c = OpConstantComposite %t %a", "is not a constant"),
        ("%c = OpSpecConstantOp %uint IAdd %1u %a", "is not a constant"),
        ("%v = OpVariable %puint Uniform", "storage class"),
        ("%l = OpTypePointer Function %uint\n%v = OpVariable %l Function", "outside of functions"),
        ("%l = OpTypePointer Private %uint\n%v = OpVariable %l Private %true", "is not of type"),
        ("OpCapability Int64", "out of order"),
        ("OpDecorate %a NonWritable", "out of order"),
    ],
)
def test_globals(extra, words):
    text = extra.replace("%bool 1", "%bool 1") if "OpConstant %bool" not in extra else None
    spirv = module(extra=text) if text is not None else _bool_constant()
    with pytest.raises(InvalidError, match=rf"SPIR-V, word \d+, Op\w+: .*{words}"):
        parse(spirv)


def _bool_constant() -> bytes:
    """The assembler would not write it."""
    words = words_of(module(extra="%c = OpConstantNull %bool"))
    for at, (a, b) in enumerate(pairwise(words)):
        if a == 3 << 16 | 46 and b:
            words[at : at + 3] = [4 << 16 | 43, b, words[at + 2], 1]
            return bytes_of(words)
    raise AssertionError


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (COMPUTE.replace("OpMem", "OpMemoryModel Logical Simple\nOpMem"), "one memory model"),
        ("OpCapability Shader\nOpMemoryModel Logical GLSL450", "no OpEntryPoint"),
        (COMPUTE + "OpMemoryModel Logical GLSL450", "out of order"),
        (COMPUTE.replace("OpMemoryModel Logical GLSL450\n", ""), "no OpMemoryModel"),
        (COMPUTE.replace("OpEntryPoint GLCompute %main", "OpEntryPoint GLCompute %void"), "not a function"),
        (COMPUTE + "OpExecutionMode %void LocalSize 1 1 1", "not an entry point"),
        (COMPUTE + "OpExecutionMode %main LocalSize 2 1 1", "second work-group size"),
        (COMPUTE.replace("OpExec", 'OpEntryPoint GLCompute %main "main"\nOpExec'), "second entry point"),
        (COMPUTE + "OpDecorate %a Binding 3", "given as 3 and as 0"),
        (COMPUTE + "OpGroupDecorate %a %a", "not a decoration group"),
    ],
)
def test_preambles(head, words):
    with pytest.raises(InvalidError, match=words):
        parse(module(head=head))


def test_words_of_an_instruction():
    words = words_of(module())
    at = words.index(3 << 16 | 19 - 19 + 33)  # OpTypeFunction %void
    words[at] = 2 << 16 | 33
    with pytest.raises(InvalidError):
        parse(bytes_of(words))


def test_strings_end_within_their_instruction():
    words = words_of(module(head=COMPUTE + 'OpName %a "abc"'))
    at = words.index(3 << 16 | 5)
    words[at + 2] = 0x61616161
    with pytest.raises(InvalidError, match="OpName: a string does not end"):
        parse(bytes_of(words))


def test_faults_carry_their_place():
    spirv = module("%x = OpIAdd %uint %1u %nothing\nOpReturn")
    with pytest.raises(InvalidError) as error:
        parse(spirv)
    assert error.value.data is not None
    at = error.value.data["word"]
    assert words_of(spirv)[at] == 5 << 16 | 128
    assert error.value.data["opcode"] == "OpIAdd"


@pytest.mark.parametrize("case", [c for c in (*CORPUS, *TVM_CORPUS) if c.producer != "corrupt"], ids=str)
def test_every_well_formed_module_is_taken(case):
    parse(case.spirv)


@pytest.mark.parametrize(
    "head",
    [
        COMPUTE + "OpSource 77 1",  # a language newer than the table
        COMPUTE + 'OpName %never "defined"',
        COMPUTE + "OpDecorate %a 9999",
        COMPUTE + "OpDecorate %start NoSignedWrap",
        COMPUTE + "OpExecutionMode %main 9999",
        COMPUTE.replace("OpCapability Shader", "OpCapability Shader\nOpCapability GroupNonUniform"),  # in SPIR-V 1.3
    ],
)
def test_what_only_validators_mind_is_taken(head):
    assert analyse(module(head=head))["kernels"]["main"]["local_size"] == [1, 1, 1]


def test_types_written_twice_are_one():
    extra = "%uint2 = OpTypeInt 32 0\n%puint2 = OpTypePointer StorageBuffer %uint2"
    parse(module("%p = OpAccessChain %puint2 %a %0u %1u\n%x = OpLoad %uint2 %p\nOpReturn", extra=extra))


def test_an_unknown_capability_is_named_even_if_its_instructions_are_not_known():
    head = COMPUTE.replace("OpCapability Shader", "OpCapability Shader\nOpCapability 31337")
    spirv = module(head=head)
    with pytest.raises(UnsupportedError, match="capability 31337"):
        parse(spirv + struct.pack("<I", 1 << 16 | 40000))
    assert "31337" in analyse(spirv)["capabilities"]


def test_what_drivers_would_expand_without_end_is_refused():
    calls = "\n".join(
        f"%f{i} = OpFunction %void None %fn\n%l{i} = OpLabel\n%c{i} = OpFunctionCall %void %f{i + 1}\n"
        f"%d{i} = OpFunctionCall %void %f{i + 1}\nOpReturn\nOpFunctionEnd"
        for i in range(30)
    )
    calls += "\n%f30 = OpFunction %void None %fn\n%l30 = OpLabel\nOpReturn\nOpFunctionEnd"
    found = analyse(module(BODY.replace("OpReturn", "%f = OpFunctionCall %void %f0\nOpReturn"), after=calls))
    assert "calls are expanded" in found["kernels"]["main"]["needs"]["refuse"][0]

    huge = "%k = OpConstant %uint 1000000\n%many = OpTypeArray %uint %k\n%pm = OpTypePointer Function %many\n"
    found = analyse(module("%v = OpVariable %pm Function\n" + BODY, extra=huge))
    assert "4000000 bytes of variables" in found["kernels"]["main"]["needs"]["refuse"][0]

    values = huge + "\n".join(f"%n{i} = OpConstantNull %many" for i in range(5))
    assert "as values" in analyse(module(extra=values))["kernels"]["main"]["needs"]["refuse"][0]


def test_deep_types():
    nest = "%s0 = OpTypeStruct %uint\n" + "\n".join(f"%s{i + 1} = OpTypeStruct %s{i}" for i in range(400))
    with pytest.raises(InvalidError, match="nested more than 255 deep"):
        parse(module(extra=nest))
    arrays = "%s0 = OpTypeArray %uint %2u\n" + "\n".join(f"%s{i + 1} = OpTypeArray %s{i} %2u" for i in range(200))
    assert analyse(module(extra=arrays))["kernels"]["main"]["needs"]["refuse"] == []
