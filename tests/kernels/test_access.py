"""What kernels read and write: compilers' modules against their sources, and each way a pointer can take."""

from __future__ import annotations

import pytest
from support.assembler import COMPUTE, TYPES, assemble, buffers
from support.cases import CORPUS, by_name

from vkqueue.kernels.reflect import analyse

SHORT = {"none": "-", "read": "r", "write": "w", "read_write": "rw"}

# Read off the sources in tests/corpus, in (set, binding) order.
FROM_SOURCES = {
    "clspv_half_long_double": "r w w r",
    "clspv_saxpy_local": "rw r",
    "clspv_two_kernels": "r rw",
    "clspv_two_kernels__fill": "w",
    "dxc_saxpy": "r r rw",
    "dxc_saxpy_13": "r rw w",
    "dxc_typed_atomics": "w rw r",
    "glsl_atomics": "r rw",
    "glsl_axpy_10": "r rw",
    "glsl_axpy_O": "r rw",
    "glsl_desc_array": "w r",
    "glsl_eight_buffers": "r r r r r r w w",
    "glsl_int8_storage": "r r w w",
    "glsl_matmul_tiled": "r r w",
    "glsl_reduce_shared": "r w",
    "glsl_scan": "rw",
    "glsl_struct_runtime": "rw",
    "glsl_tvm_ubo_small": "r r w r",
    "glsl_unused_binding": "r w",
    "halide_scale2d": "r w r",
    "hlsl_glslang_saxpy": "r r rw",
    "iree_f16_i8_vec4": "r r w",
    "iree_saxpy": "r r r w",
    "naga_axpy": "r rw r",
    "naga_multi_entry": "r rw",
    "naga_multi_entry__twice": "rw",
    "naga_subgroup_f16": "rw rw",
    "slang_desc_array": "w r",
    "slang_generic_half": "rw r rw",
    "slang_scalar_layout": "r w w",
    "slang_scale_push": "r w",
    "slang_two_entries": "r rw",
    "slang_two_entries__fill_a": "w",
    "taichi_atomic_sum": "r r rw",
    "taichi_axpy_task0": "r w",
    "tint_axpy": "r rw r",
    "tint_robust_gather": "r r w",
    "zig_scale": "r w",
    "tvm020_int8_dot": "r r w",
    "tvm020_ubo_20_mixed": "r w r",
    "tvm021_half_axpy_vec4": "r r w",
    "tvm021_matmul_shared": "r r w",
    "tvm021_softmax_3k__softmax_kernel_2": "r w r r",
    "tvm026_conv2d_nchw": "r r w r",
    "tvm026_math_mix": "r w w",
    "tvm026_mixed_scalars": "rw",
    "tvm026_relax_mlp__fused_matmul_add_relu_kernel": "r w r r",
    "tvm026_relax_norm_dyn": "w r r",
}


def accesses(spirv: bytes, entry: str = "main") -> str:
    return " ".join(SHORT[b["access"]] for b in analyse(spirv)["kernels"][entry]["bindings"])


@pytest.mark.parametrize("name", FROM_SOURCES)
def test_compilers(name):
    case = by_name(name)
    assert accesses(case.spirv, case.entry) == FROM_SOURCES[name]


def test_every_compiler_is_there():
    producers = {by_name(name).producer for name in FROM_SOURCES}
    assert {case.producer for case in CORPUS if case.kind == "run"} - producers == {"assembly"}


def kernel(names: str, body: str, *, head: str = COMPUTE, extra: str = "", functions: str = "") -> bytes:
    decorations, declarations = buffers(*names.split())
    return assemble(
        f"{head}\n{decorations}\n{TYPES}\n{declarations}\n{extra}\n{functions}\n"
        f"%main = OpFunction %void None %fn\n%start = OpLabel\n{body}\nOpReturn\nOpFunctionEnd"
    )


def variable_pointers(head: str = COMPUTE) -> str:
    return head.replace("OpCapability Shader", "OpCapability Shader\nOpCapability VariablePointers")


def chain(result: str, base: str) -> str:
    return f"%{result} = OpAccessChain %puint %{base} %0u %1u\n"


def test_loads_stores_and_length():
    body = chain("pa", "a") + chain("pb", "b") + "%x = OpLoad %uint %pa\nOpStore %pb %x\n"
    body += "%n = OpArrayLength %uint %c 0"
    assert accesses(kernel("a b c", body)) == "r w -"


def test_an_address_that_is_never_used_counts_as_a_use_without_access():
    assert accesses(kernel("a b", chain("pa", "a"))) == "-"


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("%x = OpAtomicLoad %uint %p %1u %0u", "r"),
        ("OpAtomicStore %p %1u %0u %2u", "w"),
        ("%x = OpAtomicIAdd %uint %p %1u %0u %2u", "rw"),
        ("%x = OpAtomicExchange %uint %p %1u %0u %2u", "rw"),
        ("%x = OpAtomicCompareExchange %uint %p %1u %0u %0u %2u %1u", "rw"),
    ],
)
def test_atomics(instruction, expected):
    assert accesses(kernel("a", chain("p", "a") + instruction)) == expected


def test_copy_memory():
    assert accesses(kernel("a b", chain("pa", "a") + chain("pb", "b") + "OpCopyMemory %pb %pa Aligned 4")) == "r w"


def test_copied_address():
    body = chain("pa", "a") + "%q = OpCopyObject %puint %pa\nOpStore %q %1u"
    assert accesses(kernel("a", body)) == "w"


def test_select_between_buffers():
    body = chain("pa", "a") + chain("pb", "b") + "%q = OpSelect %puint %true %pa %pb\nOpStore %q %1u\n"
    body += "%x = OpLoad %uint %pb"
    assert accesses(kernel("a b", body, head=variable_pointers())) == "w rw"


def test_phi_of_addresses_around_a_loop():
    extra = "%bump = OpConstant %uint 3"
    body = chain("pa", "a") + chain("pb", "b")
    body += """OpBranch %loop
%loop = OpLabel
%q = OpPhi %puint %pa %start %r %next
OpLoopMerge %done %next None
OpBranch %test
%test = OpLabel
OpBranchConditional %true %next %done
%next = OpLabel
%r = OpPtrAccessChain %puint %q %1u
OpBranch %loop
%done = OpLabel
OpStore %q %1u
%x = OpLoad %uint %pb"""
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=extra)) == "w r"


def test_through_functions():
    """Two callees deep; the parameter that is only passed on gets what the inner function does."""
    functions = """
%copy = OpFunction %void None %fn2
%to = OpFunctionParameter %puint
%from = OpFunctionParameter %puint
%c1 = OpLabel
%v = OpLoad %uint %from
OpStore %to %v
OpReturn
OpFunctionEnd
%swap = OpFunction %void None %fn2
%s1 = OpFunctionParameter %puint
%s2 = OpFunctionParameter %puint
%c2 = OpLabel
%call = OpFunctionCall %void %copy %s2 %s1
OpReturn
OpFunctionEnd"""
    extra = "%fn2 = OpTypeFunction %void %puint %puint"
    body = chain("pa", "a") + chain("pb", "b") + "%r = OpFunctionCall %void %swap %pa %pb"
    assert accesses(kernel("a b", body, extra=extra, functions=functions)) == "r w"


def test_whole_buffer_as_an_argument():
    functions = """
%put = OpFunction %void None %fnb
%buf = OpFunctionParameter %pblock
%c1 = OpLabel
%p = OpAccessChain %puint %buf %0u %1u
OpStore %p %2u
OpReturn
OpFunctionEnd"""
    body = "%r = OpFunctionCall %void %put %b\n" + chain("pa", "a") + "%x = OpLoad %uint %pa"
    assert accesses(kernel("a b", body, extra="%fnb = OpTypeFunction %void %pblock", functions=functions)) == "r w"


def test_returned_address():
    functions = """
%pick = OpFunction %puint None %fnp
%c1 = OpLabel
%p = OpAccessChain %puint %b %0u %1u
OpReturnValue %p
OpFunctionEnd"""
    body = "%q = OpFunctionCall %puint %pick\nOpStore %q %1u\n" + chain("pa", "a") + "%x = OpLoad %uint %pa"
    extra = "%fnp = OpTypeFunction %puint"
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=extra, functions=functions)) == "r w"


LOCAL = """%local = OpTypePointer Function %puint
%private = OpTypePointer Private %puint
%slot = OpVariable %private Private"""


def test_address_kept_in_a_local_variable():
    body = "%v = OpVariable %local Function\n" + chain("pa", "a") + chain("pb", "b")
    body += "OpStore %v %pa\n%q = OpLoad %puint %v\nOpStore %q %1u\n%x = OpLoad %uint %pb"
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=LOCAL)) == "w r"


def test_two_local_variables_are_kept_apart():
    body = "%v = OpVariable %local Function\n%w = OpVariable %local Function\n" + chain("pa", "a") + chain("pb", "b")
    body += "OpStore %v %pa\nOpStore %w %pb\n%q = OpLoad %puint %v\n%r = OpLoad %puint %w\n"
    body += "OpStore %q %1u\n%x = OpLoad %uint %r"
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=LOCAL)) == "w r"


def test_address_kept_by_one_function_and_used_by_another():
    functions = """
%later = OpFunction %void None %fn
%c1 = OpLabel
%q = OpLoad %puint %slot
OpStore %q %2u
OpReturn
OpFunctionEnd"""
    body = chain("pa", "a") + "OpStore %slot %pa\n%r = OpFunctionCall %void %later"
    assert accesses(kernel("a", body, head=variable_pointers(), extra=LOCAL, functions=functions)) == "w"


def test_address_stored_through_a_pointer_that_leads_to_no_one_place():
    """The callee stores through its parameter; the caller loads from the variable that it passed."""
    functions = """
%set = OpFunction %void None %fns
%where = OpFunctionParameter %local
%what = OpFunctionParameter %puint
%c1 = OpLabel
OpStore %where %what
OpReturn
OpFunctionEnd"""
    body = "%v = OpVariable %local Function\n" + chain("pa", "a") + chain("pb", "b")
    body += "%r = OpFunctionCall %void %set %v %pa\n%q = OpLoad %puint %v\nOpStore %q %1u\n%x = OpLoad %uint %pb"
    extra = LOCAL + "\n%fns = OpTypeFunction %void %local %puint"
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=extra, functions=functions)) == "w r"


def test_address_within_a_structure():
    extra = "%pair = OpTypeStruct %puint %uint"
    body = chain("pa", "a") + chain("pb", "b") + "%s = OpCompositeConstruct %pair %pa %1u\n"
    body += "%t = OpCompositeInsert %pair %pb %s 0\n%q = OpCompositeExtract %puint %t 0\n%x = OpLoad %uint %q"
    assert accesses(kernel("a b", body, head=variable_pointers(), extra=extra)) == "r r"


def test_initializer_that_is_an_address():
    extra = """%pp = OpTypePointer Private %pblock
%slot = OpVariable %pp Private %a"""
    body = "%p = OpLoad %pblock %slot\n%q = OpAccessChain %puint %p %0u %1u\nOpStore %q %1u"
    assert "w" in accesses(kernel("a", body, head=variable_pointers(), extra=extra))


def test_only_functions_that_are_reached_count():
    head = COMPUTE.replace("OpExecutionMode", 'OpEntryPoint GLCompute %other "other"\nOpExecutionMode', 1)
    head += "OpExecutionMode %other LocalSize 1 1 1\n"
    functions = """
%other = OpFunction %void None %fn
%c1 = OpLabel
%p = OpAccessChain %puint %a %0u %1u
OpStore %p %2u
OpReturn
OpFunctionEnd"""
    module = kernel("a b", chain("pa", "a") + "%x = OpLoad %uint %pa", head=head, functions=functions)
    assert accesses(module) == "r"
    assert accesses(module, "other") == "w"


@pytest.mark.parametrize(
    ("decoration", "expected"),
    [
        ("OpDecorate %a NonWritable", "r"),
        ("OpDecorate %a NonReadable", "w"),
        ("OpMemberDecorate %block 0 NonWritable", "r"),
        ("OpDecorate %group NonWritable\n%group = OpDecorationGroup\nOpGroupDecorate %group %a", "r"),
        ("OpDecorate %group NonReadable\n%group = OpDecorationGroup\nOpGroupMemberDecorate %group %block 0", "w"),
        ("OpDecorate %a Restrict", "rw"),
    ],
)
def test_decorations_narrow(decoration, expected):
    body = chain("p", "a") + "%x = OpAtomicIAdd %uint %p %1u %0u %2u"
    assert accesses(kernel("a", body, head=COMPUTE + decoration)) == expected


def test_extended_instructions_write_through_their_pointers():
    head = COMPUTE.replace("OpMemoryModel", '%glsl = OpExtInstImport "GLSL.std.450"\nOpMemoryModel')
    decorations = """OpDecorate %floats ArrayStride 4
OpDecorate %fblock Block
OpMemberDecorate %fblock 0 Offset 0
OpDecorate %f DescriptorSet 0
OpDecorate %f Binding 7
"""
    extra = """%floats = OpTypeRuntimeArray %float
%fblock = OpTypeStruct %floats
%pfblock = OpTypePointer StorageBuffer %fblock
%pfloat = OpTypePointer StorageBuffer %float
%f = OpVariable %pfblock StorageBuffer
%half = OpConstant %float 1.5"""
    body = "%p = OpAccessChain %pfloat %f %0u %0u\n%x = OpExtInst %float %glsl 35 %half %p"
    assert accesses(kernel("a", body, head=head + decorations, extra=extra)) == "w"


def test_debug_instructions_use_nothing():
    head = COMPUTE.replace(
        "OpMemoryModel", '%debug = OpExtInstImport "NonSemantic.Shader.DebugInfo.100"\nOpMemoryModel'
    )
    assert accesses(kernel("a", "%x = OpExtInst %void %debug 28 %a", head=head)) == ""


ARRAY = """%five = OpConstant %uint 5
%four = OpSpecConstantOp %uint ISub %five %1u
%many = OpTypeArray %block %four
%pmany = OpTypePointer StorageBuffer %many
%all = OpVariable %pmany StorageBuffer"""


@pytest.mark.parametrize(
    ("index", "dynamic"),
    [("%2u", False), ("%1s", False), ("%four", True), ("%read", True)],
    ids=["constant", "operation on constants", "out of bounds", "loaded"],
)
def test_dynamic_index_of_descriptors(index, dynamic):
    head = COMPUTE + "OpDecorate %all DescriptorSet 0\nOpDecorate %all Binding 9"
    extra = ARRAY + "\n%1s = OpSpecConstantOp %uint ISub %four %1u"
    body = chain("pa", "a") + f"%read = OpLoad %uint %pa\n%p = OpAccessChain %puint %all {index} %0u %1u\n"
    found = analyse(kernel("a", body + "%x = OpLoad %uint %p", head=head, extra=extra))["kernels"]["main"]
    assert found["needs"]["dynamic_descriptors"] is dynamic
    assert [b["count"] for b in found["bindings"]] == [1, 4]


def test_corpus_index_of_descriptors():
    dynamic = {case.name for case in CORPUS if case.runs and _dynamic(case)}
    assert dynamic == {"glsl_desc_array", "slang_desc_array"}


def _dynamic(case):
    return analyse(case.spirv)["kernels"][case.entry]["needs"]["dynamic_descriptors"]
