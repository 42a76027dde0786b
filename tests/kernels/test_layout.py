"""Blocks spread into members, sizes, and the features that a layout needs."""

from __future__ import annotations

from typing import Any

import pytest
from support.assembler import COMPUTE, TYPES, assemble

from vkqueue.errors import InvalidError
from vkqueue.kernels.reflect import analyse

MORE = """%half = OpTypeFloat 16
%double = OpTypeFloat 64
%long = OpTypeInt 64 1
%byte = OpTypeInt 8 0
%vec2 = OpTypeVector %float 2
%vec3 = OpTypeVector %float 3
%vec4 = OpTypeVector %float 4
%mat23 = OpTypeMatrix %vec3 2
%3u = OpConstant %uint 3
%4u = OpConstant %uint 4
"""
WIDE = "".join(f"OpCapability {name}\n" for name in ("Float16", "Float64", "Int64", "Int8"))
HEAD = COMPUTE.replace("OpMem", WIDE + "OpMem")


def kernel(
    block: str, decorations: str, *, storage: str = "PushConstant", types: str = "", kind: str = "Block"
) -> dict[str, Any]:
    """A kernel that uses a variable of the structure %block with these members."""
    spirv = assemble(
        f"{HEAD}\n{decorations}\n"
        f"OpDecorate %block {kind}\nOpDecorate %v DescriptorSet 0\nOpDecorate %v Binding 0\n{TYPES}\n{MORE}\n{types}\n"
        f"%block = OpTypeStruct {block}\n%pblock = OpTypePointer {storage} %block\n%v = OpVariable %pblock {storage}\n"
        "%main = OpFunction %void None %fn\n%start = OpLabel\n%use = OpCopyObject %pblock %v\nOpReturn\nOpFunctionEnd"
    )
    found: dict[str, Any] = analyse(spirv)["kernels"]["main"]
    return found


def offsets(*values: int, of: str = "block") -> str:
    return "\n".join(f"OpMemberDecorate %{of} {i} Offset {value}" for i, value in enumerate(values)) + "\n"


def names(*texts: str, of: str = "block") -> str:
    return "\n".join(f'OpMemberName %{of} {i} "{text}"' for i, text in enumerate(texts)) + "\n"


def brief(scalars: list[dict[str, Any]]) -> list[str]:
    """name:type@offset+size, ×count, /stride."""
    return [
        f"{s['name']}:{s['type']}@{s['offset']}+{s['size']}"
        + (f"x{s['count']}" if "count" in s else "")
        + (f"/{s['stride']}" if "stride" in s else "")
        for s in scalars
    ]


def test_scalars_and_vectors():
    found = kernel("%byte %half %float %double %long %vec3", offsets(0, 2, 4, 8, 16, 32))
    assert brief(found["scalars"]) == [
        "m0:uint8@0+1", "m1:float16@2+2", "m2:float32@4+4", "m3:float64@8+8", "m4:int64@16+8", "m5:float32@32+12x3",
    ]  # fmt: skip
    assert found["push_constant_bytes"] == 44
    assert all(scalar["where"] == "push" for scalar in found["scalars"])


def test_the_block_may_begin_above_0_and_members_may_stand_in_any_order():
    found = kernel("%float %uint", names("late", "early") + offsets(24, 16))
    assert brief(found["scalars"]) == ["late:float32@24+4", "early:uint32@16+4"]
    assert found["push_constant_bytes"] == 28


def test_arrays_of_scalars_are_one_entry():
    text = "OpDecorate %tight ArrayStride 4\nOpDecorate %wide ArrayStride 16\n" + offsets(0, 16)
    found = kernel("%tight %wide", text, types="%tight = OpTypeArray %uint %3u\n%wide = OpTypeArray %uint %2u")
    assert brief(found["scalars"]) == ["m0:uint32@0+12x3", "m1:uint32@16+20x2/16"]
    assert found["push_constant_bytes"] == 48


def test_arrays_of_vectors_of_arrays_and_of_structures():
    types = """%vs = OpTypeArray %vec2 %2u
%row = OpTypeArray %uint %3u
%rows = OpTypeArray %row %2u
%item = OpTypeStruct %uint %vec2
%items = OpTypeArray %item %2u"""
    text = names("v", "r", "s") + names("x", "y", of="item")
    text += "OpDecorate %vs ArrayStride 8\nOpDecorate %row ArrayStride 4\nOpDecorate %rows ArrayStride 12\n"
    text += "OpDecorate %items ArrayStride 16\n" + offsets(0, 16, 40) + offsets(0, 8, of="item")
    assert brief(kernel("%vs %rows %items", text, types=types)["scalars"]) == [
        "v[0]:float32@0+8x2", "v[1]:float32@8+8x2",
        "r[0]:uint32@16+12x3", "r[1]:uint32@28+12x3",
        "s[0].x:uint32@40+4", "s[0].y:float32@48+8x2", "s[1].x:uint32@56+4", "s[1].y:float32@64+8x2",
    ]  # fmt: skip


def test_nested_structures_join_names_with_dots():
    types = "%inner = OpTypeStruct %uint %float\n%outer = OpTypeStruct %inner"
    text = names("", "b", of="inner") + names("o") + offsets(0) + offsets(0, of="outer") + offsets(0, 4, of="inner")
    assert brief(kernel("%outer", text, types=types)["scalars"]) == ["o.m0.m0:uint32@0+4", "o.m0.b:float32@4+4"]


def test_matrices_are_columns():
    text = names("m") + offsets(0) + "OpMemberDecorate %block 0 MatrixStride 16\n"
    column = kernel("%mat23", text + "OpMemberDecorate %block 0 ColMajor")
    assert brief(column["scalars"]) == ["m[0]:float32@0+12x3", "m[1]:float32@16+12x3"]
    assert column["push_constant_bytes"] == 32
    row = kernel("%mat23", text + "OpMemberDecorate %block 0 RowMajor")
    assert brief(row["scalars"]) == ["m[0]:float32@0+36x3/16", "m[1]:float32@4+36x3/16"]
    assert row["push_constant_bytes"] == 48


def test_arrays_of_matrices():
    types = "%ms = OpTypeArray %mat23 %2u"
    text = names("m") + "OpDecorate %ms ArrayStride 32\n" + offsets(0) + "OpMemberDecorate %block 0 MatrixStride 16\n"
    assert brief(kernel("%ms", text, types=types)["scalars"]) == [
        "m[0][0]:float32@0+12x3", "m[0][1]:float32@16+12x3", "m[1][0]:float32@32+12x3", "m[1][1]:float32@48+12x3",
    ]  # fmt: skip


def test_members_of_one_name_stay_apart():
    found = kernel("%uint %uint", names("x", "x") + offsets(0, 4))
    assert len({scalar["name"] for scalar in found["scalars"]}) == 2


def test_a_stride_that_is_missing_is_the_natural_one():
    """As some compilers leave it out of arrays that they only copy."""
    found = kernel("%pair", offsets(8), types="%pair = OpTypeArray %uint %2u")
    assert brief(found["scalars"]) == ["m0:uint32@8+8x2"]


def test_many_members_are_not_spread():
    types = "%many = OpConstant %uint 5000\n%vs = OpTypeArray %vec4 %many"
    text = "OpDecorate %vs ArrayStride 16\n" + offsets(0)
    push = kernel("%vs", text, types=types)
    assert push["push_constant_bytes"] == 80000
    assert push["scalars"] == []
    assert "more members" in push["needs"]["refuse"][0]
    uniform = kernel("%vs", text, types=types, storage="Uniform")
    assert uniform["needs"]["refuse"] == []
    assert "members" not in uniform["bindings"][0]
    assert uniform["bindings"][0]["size"] == 80000


@pytest.mark.parametrize(
    ("storage", "kind", "expected"),
    [("Uniform", "Block", "uniform"), ("Uniform", "BufferBlock", "storage"), ("StorageBuffer", "Block", "storage")],
)
def test_kinds(storage, kind, expected):
    binding = kernel("%uint", offsets(0), storage=storage, kind=kind)["bindings"][0]
    assert binding["kind"] == expected
    assert ("members" in binding) == (expected == "uniform")


def test_a_run_time_array_ends_the_fixed_part():
    text = "OpDecorate %tail ArrayStride 16\n" + offsets(0, 16)
    types = "%tail = OpTypeRuntimeArray %vec4"
    binding = kernel("%uint %tail", text, types=types, storage="StorageBuffer")["bindings"][0]
    assert (binding["size"], binding["stride"]) == (16, 16)


ROWS = "OpMemberDecorate %block 0 RowMajor\n"
STANDARD, SCALAR = "uniformBufferStandardLayout", "scalarBlockLayout"


@pytest.mark.parametrize(
    ("storage", "block", "text", "types", "expected"),
    [
        ("StorageBuffer", "%vec3 %float", offsets(0, 12), "", []),
        ("StorageBuffer", "%float %vec3", offsets(0, 4), "", []),  # relaxed: does not straddle
        ("StorageBuffer", "%float %vec2 %vec3", offsets(0, 4, 12), "", [SCALAR]),  # straddles
        ("StorageBuffer", "%a", "OpDecorate %a ArrayStride 12\n" + offsets(0), "%a = OpTypeArray %vec3 %2u", [SCALAR]),
        ("StorageBuffer", "%a", "OpDecorate %a ArrayStride 16\n" + offsets(0), "%a = OpTypeArray %vec3 %2u", []),
        ("StorageBuffer", "%a", "OpDecorate %a ArrayStride 4\n" + offsets(0), "%a = OpTypeArray %float %2u", []),
        ("Uniform", "%a", "OpDecorate %a ArrayStride 4\n" + offsets(0), "%a = OpTypeArray %float %2u", [STANDARD]),
        ("Uniform", "%a", "OpDecorate %a ArrayStride 16\n" + offsets(0), "%a = OpTypeArray %float %2u", []),
        ("Uniform", "%a", "OpDecorate %a ArrayStride 12\n" + offsets(0), "%a = OpTypeArray %vec3 %2u", [SCALAR]),
        ("Uniform", "%s %float", offsets(0, 16) + offsets(0, of="s"), "%s = OpTypeStruct %float", []),
        ("Uniform", "%s %float", offsets(0, 4) + offsets(0, of="s"), "%s = OpTypeStruct %float", [STANDARD]),
        ("StorageBuffer", "%s %float", offsets(0, 12) + offsets(0, 8, of="s"), "%s = OpTypeStruct %double %float",
         [SCALAR]),
        ("Uniform", "%mat23", offsets(0) + "OpMemberDecorate %block 0 MatrixStride 12", "", [SCALAR]),
        ("StorageBuffer", "%mat23", ROWS + offsets(0) + "OpMemberDecorate %block 0 MatrixStride 8", "", []),
        ("Uniform", "%mat23", ROWS + offsets(0) + "OpMemberDecorate %block 0 MatrixStride 8", "", [STANDARD]),
    ],
)  # fmt: skip
def test_features_of_layouts(storage, block, text, types, expected):
    assert kernel(block, text, types=types, storage=storage)["needs"]["features"] == expected


def test_what_no_device_reads_is_invalid():
    with pytest.raises(InvalidError, match="member 0 at offset 2 is not aligned to 4"):
        kernel("%uint", offsets(2))
    with pytest.raises(InvalidError, match="member 1 has no Offset"):
        kernel("%uint %uint", offsets(0), storage="StorageBuffer")


def shared(types: str) -> int:
    spirv = assemble(
        f"{HEAD}\n{TYPES}\n{MORE}\n{types}\n"
        "%pt = OpTypePointer Workgroup %t\n%v = OpVariable %pt Workgroup\n%unused = OpVariable %pt Workgroup\n"
        "%main = OpFunction %void None %fn\n%start = OpLabel\n%use = OpCopyObject %pt %v\nOpReturn\nOpFunctionEnd"
    )
    found: int = analyse(spirv)["kernels"]["main"]["needs"]["shared_bytes"]
    return found


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("%t = OpTypeArray %uint %3u", 12),
        ("%t = OpTypeArray %vec3 %3u", 48),
        ("%t = OpTypeArray %byte %3u", 4),
        ("%t = OpTypeArray %bool %3u", 12),
        ("%t = OpTypeStruct %uint %double %byte", 24),
        ("%s = OpTypeStruct %uint %double %byte\n%t = OpTypeArray %s %2u", 48),
    ],
)
def test_shared_memory(types, expected):
    assert shared(types) == expected
