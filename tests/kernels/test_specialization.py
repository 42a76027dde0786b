"""Specialization constants: what they are, and what a module is with other values."""

from __future__ import annotations

from typing import Any

import pytest
from support.assembler import COMPUTE, TYPES, assemble
from support.cases import by_name

from vkqueue.errors import InvalidError
from vkqueue.kernels.reflect import analyse


def kernel_of(name: str, spec: dict[int, Any] | None = None) -> dict[str, Any]:
    case = by_name(name)
    found: dict[str, Any] = analyse(case.spirv, spec)["kernels"][case.entry]
    return found


def test_work_group_size_by_constants():
    assert kernel_of("glsl_spec_constants")["local_size"] == [1, 1, 1]
    found = kernel_of("glsl_spec_constants", {10: 8, 11: 4})
    assert found["local_size"] == [8, 4, 1]
    assert found["needs"]["local_size_spec"] is True
    assert [s["default"] for s in found["specialization"] if s["id"] == 10] == [1]
    assert found["local_size_ids"] == [10, 11, None]


def test_work_group_size_by_execution_mode_id():
    name = "glsl_localsizeid_1d"
    spec = kernel_of(name)["specialization"]
    assert len({entry["id"] for entry in spec}) == len(spec)
    run = next(run for run in by_name(name).runs if run.spec)
    found = kernel_of(name, run.spec)
    assert found["local_size"] != kernel_of(name)["local_size"]
    assert found["local_size"][0] in run.spec.values()
    assert found["local_size_ids"] == [42, None, None]


def test_operations_are_worked_out_again():
    """The size is an operation on one constant, the other is a factor within the module."""
    assert kernel_of("asm_specop_localsize")["local_size"] == [2, 3, 1]
    found = kernel_of("asm_specop_localsize", {1: 4, 2: 8})
    assert found["local_size"] == [4, 4, 1]
    assert "local_size_ids" not in found, "y is worked out from a constant: whoever asks has to be told so"


def test_a_fixed_work_group_size_depends_on_no_constant():
    found = kernel_of("glsl_axpy_O")
    assert (found["local_size"], found["local_size_ids"]) == ([64, 1, 1], [None] * 3)


def test_shared_memory_follows():
    assert kernel_of("clspv_saxpy_local")["needs"]["shared_bytes"] == 4
    found = kernel_of("clspv_saxpy_local", {0: 16, 3: 16})
    assert found["needs"]["shared_bytes"] == 64
    assert found["needs"]["shared_spec"] is True
    assert found["local_size"] == [16, 1, 1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({99: 1}, "no constant with id 99 .it has: 0, 3, 4, 10, 11, 100"),
        ({10: -1}, "-1 is outside uint32"),
        ({10: 2**32}, "outside uint32"),
        ({10: 1.5}, "expected an integer"),
        ({10: True}, "expected an integer"),
        ({3: "x"}, "SCALE.*expected a number"),
        ({3: 1e300}, "overflows float32"),
        ({4: 2}, "NEG.*expected a bool"),
        ({10: 0}, "work-group size of 0 x 1 x 1.*specialization constants"),
    ],
)
def test_values_that_do_not_fit(spec, words):
    with pytest.raises(InvalidError, match=words):
        kernel_of("glsl_spec_constants", spec)


@pytest.mark.parametrize("spec", [{3: 2}, {3: float("nan")}, {4: True}, {4: 0}, {0: -5}, {100: 2**32 - 1}])
def test_values_that_fit(spec):
    kernel_of("glsl_spec_constants", spec)


HEAD = COMPUTE.replace("OpExecutionMode %main LocalSize 1 1 1\n", "")


def module(decorations: str, constants: str, extra: str = "") -> bytes:
    return assemble(
        f"{HEAD}\n{decorations}\nOpDecorate %size BuiltIn WorkgroupSize\n{TYPES}\n%uvec3 = OpTypeVector %uint 3\n"
        f"{constants}\n{extra}\n%main = OpFunction %void None %fn\n%start = OpLabel\nOpReturn\nOpFunctionEnd"
    )


def size(constants: str, spec: dict[int, Any] | None = None, decorations: str = "OpDecorate %n SpecId 7") -> list[int]:
    found: list[int] = analyse(module(decorations, constants), spec)["kernels"]["main"]["local_size"]
    return found


OPERATIONS = [
    ("%x = OpSpecConstantOp %uint IMul %n %2u", 8),
    ("%x = OpSpecConstantOp %uint ISub %n %1u", 3),
    ("%x = OpSpecConstantOp %uint UDiv %n %2u", 2),
    ("%x = OpSpecConstantOp %uint UMod %n %3u", 1),
    ("%x = OpSpecConstantOp %uint ShiftLeftLogical %n %1u", 8),
    ("%x = OpSpecConstantOp %uint ShiftRightLogical %n %1u", 2),
    ("%x = OpSpecConstantOp %uint BitwiseOr %n %1u", 5),
    ("%x = OpSpecConstantOp %uint BitwiseXor %n %1u", 5),
    ("%big = OpSpecConstantOp %bool UGreaterThan %n %3u\n%x = OpSpecConstantOp %uint Select %big %n %1u", 4),
    ("%big = OpSpecConstantOp %bool ULessThan %n %3u\n%x = OpSpecConstantOp %uint Select %big %n %2u", 2),
    ("%big = OpSpecConstantOp %bool IEqual %n %3u\n%not = OpSpecConstantOp %bool LogicalNot %big\n"
     "%x = OpSpecConstantOp %uint Select %not %n %1u", 4),
    ("%m = OpConstant %int -12\n%q = OpSpecConstantOp %int SDiv %m %n\n%x = OpSpecConstantOp %uint IAdd %q %n", 1),
    ("%m = OpConstant %int -7\n%q = OpSpecConstantOp %int SRem %m %n\n%x = OpSpecConstantOp %uint IAdd %q %n", 1),
    ("%m = OpConstant %int -7\n%q = OpSpecConstantOp %int SMod %m %n\n%x = OpSpecConstantOp %uint IAdd %q %n", 5),
    ("%v = OpSpecConstantComposite %uvec3 %1u %n %2u\n%x = OpSpecConstantOp %uint CompositeExtract %v 1", 4),
    ("%v = OpSpecConstantComposite %uvec3 %1u %n %2u\n%w = OpSpecConstantOp %uvec3 VectorShuffle %v %v 4 0 2\n"
     "%x = OpSpecConstantOp %uint CompositeExtract %w 0", 4),
    ("%v = OpConstantComposite %uvec3 %1u %1u %1u\n%w = OpSpecConstantOp %uvec3 CompositeInsert %n %v 2\n"
     "%x = OpSpecConstantOp %uint CompositeExtract %w 2", 4),
    ("%v = OpSpecConstantComposite %uvec3 %1u %n %2u\n%w = OpSpecConstantOp %uvec3 IAdd %v %v\n"
     "%x = OpSpecConstantOp %uint CompositeExtract %w 1", 8),
    ("%a = OpTypeArray %uint %2u\n%v = OpSpecConstantComposite %a %1u %n\n"
     "%x = OpSpecConstantOp %uint CompositeExtract %v 1", 4),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), OPERATIONS, ids=[text.split("Op ")[1] for text, _ in OPERATIONS])
def test_operations(text, expected):
    head = "%3u = OpConstant %uint 3\n%n = OpSpecConstant %uint 4\n"
    assert size(f"{head}{text}\n%size = OpSpecConstantComposite %uvec3 %x %1u %1u") == [expected, 1, 1]


def test_an_operation_without_a_value_is_told_where_one_is_needed():
    text = "%n = OpSpecConstant %uint 4\n%x = OpSpecConstantOp %uint UDiv %n %0u\n"
    text += "%size = OpSpecConstantComposite %uvec3 %x %1u %1u"
    with pytest.raises(InvalidError, match=r"work-group size of \? x 1 x 1"):
        size(text)


def test_array_lengths():
    text = "%n = OpSpecConstant %uint 4\n%size = OpConstantComposite %uvec3 %1u %1u %1u"
    spirv = module("OpDecorate %n SpecId 7", text, "%array = OpTypeArray %uint %n")
    assert analyse(spirv, {7: 2})["kernels"]["main"]["specialization"][0]["id"] == 7
    with pytest.raises(InvalidError, match="an array of 0 elements"):
        analyse(spirv, {7: 0})


def test_several_constants_may_share_an_id():
    text = "%n = OpSpecConstant %uint 4\n%k = OpSpecConstant %uint 4\n%size = OpSpecConstantComposite %uvec3 %n %k %1u"
    decorations = "OpName %k \"wide\"\nOpDecorate %n SpecId 7\nOpDecorate %k SpecId 7"
    assert size(text, {7: 3}, decorations) == [3, 3, 1]
    spec = analyse(module(decorations, text))["kernels"]["main"]["specialization"]
    assert spec == [{"id": 7, "name": "wide", "type": "uint32", "default": 4}]


def test_sizes_that_share_an_id_must_agree():
    head = HEAD.replace("OpCapability Shader", "OpCapability Shader\nOpCapability Int16")
    text = "%short = OpTypeInt 16 0\n%n = OpSpecConstant %uint 4\n%k = OpSpecConstant %short 4\n"
    text += "%size = OpConstantComposite %uvec3 %1u %1u %1u"
    spirv = assemble(
        f"{head}\nOpDecorate %n SpecId 7\nOpDecorate %k SpecId 7\nOpDecorate %size BuiltIn WorkgroupSize\n{TYPES}\n"
        f"%uvec3 = OpTypeVector %uint 3\n{text}\n%main = OpFunction %void None %fn\n%start = OpLabel\nOpReturn\n"
        "OpFunctionEnd"
    )
    with pytest.raises(InvalidError, match="sizes must agree"):
        analyse(spirv)


def test_no_work_group_size():
    spirv = assemble(
        f"{HEAD}\n{TYPES}\n%main = OpFunction %void None %fn\n%start = OpLabel\nOpReturn\nOpFunctionEnd"
    )
    with pytest.raises(InvalidError, match="no work-group size"):
        analyse(spirv)
