"""TVM's kernels: arguments, scalars, launch values, and what is refused (S1 to S4, S6 to S8, S22 to S24)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.assembler import assemble
from support.cases import by_name, of_kind
from support.tvm import Kernel, module

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.launch import LaunchTags
from vkqueue.kernels.plan import LayoutTable, Plan
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.requirements import unsupported
from vkqueue.kernels.tvm import analyse_tvm, disassemble_all
from vkqueue.kernels.tvm_format import join
from vkqueue.kernels.tvm_save import from_spirv, save_bytes, save_file, unpacked

LIMITS = {
    "minStorageBufferOffsetAlignment": 16,
    "minUniformBufferOffsetAlignment": 64,
    "maxStorageBufferRange": 1 << 27,
    "maxUniformBufferRange": 65536,
    "maxComputeWorkGroupCount": [65535, 65535, 65535],
    "maxPushConstantsSize": 128,
}
RUN = of_kind("run", tvm=True)


def kernel_of(name: str) -> dict[str, Any]:
    case = by_name(name)
    return analyse_tvm(case.file(case.tvm["bytes"]), "tvm")["kernels"][case.entry]


def shader(
    *, buffers: int = 1, scalars: tuple[str, ...] = (), uniform: bool = False, entry: str = "k", names: bool = False,
    set: int = 0, first: int = 0, gap: int = 8, capability: str = "Shader",
) -> bytes:  # fmt: skip
    """A shader as TVM writes them: each buffer is written, each scalar is read."""
    kinds = {"int32": "%int", "float32": "%float", "uint32": "%uint"}
    head = [f"OpCapability {capability}", "OpMemoryModel Logical GLSL450", f'OpEntryPoint GLCompute %main "{entry}"',
            "OpExecutionMode %main LocalSize 8 4 1"]  # fmt: skip
    marks = ["OpDecorate %array ArrayStride 4", "OpMemberDecorate %block 0 Offset 0", "OpDecorate %block BufferBlock"]
    for i in range(buffers):
        marks += [f"OpDecorate %b{i} DescriptorSet {set}", f"OpDecorate %b{i} Binding {i + first}"]
    types = ["%void = OpTypeVoid", "%function = OpTypeFunction %void", "%int = OpTypeInt 32 1",
             "%uint = OpTypeInt 32 0", "%float = OpTypeFloat 32", "%zero = OpConstant %int 0",
             "%array = OpTypeRuntimeArray %int", "%block = OpTypeStruct %array",
             "%block_p = OpTypePointer Uniform %block", "%int_p = OpTypePointer Uniform %int"]  # fmt: skip
    types += [f"%b{i} = OpVariable %block_p Uniform" for i in range(buffers)]
    body = []
    for i in range(buffers):
        body += [f"%at{i} = OpAccessChain %int_p %b{i} %zero %zero", f"OpStore %at{i} %zero"]
    if scalars:
        storage = "Uniform" if uniform else "PushConstant"
        marks += [f"OpMemberDecorate %words {i} Offset {gap * i}" for i in range(len(scalars))]
        marks += ["OpDecorate %words Block"]
        if names:
            head += [f'OpMemberName %words {i} "s{i}"' for i in range(len(scalars))]
        if uniform:
            marks += [f"OpDecorate %given DescriptorSet {set}", f"OpDecorate %given Binding {buffers}"]
        types += [f"%words = OpTypeStruct {' '.join(kinds[s] for s in scalars)}",
                  f"%words_p = OpTypePointer {storage} %words", f"%given = OpVariable %words_p {storage}"]  # fmt: skip
        body += ["%all = OpLoad %words %given"]
    text = [*head, *marks, *types, "%main = OpFunction %void None %function", "%start = OpLabel", *body, "OpReturn",
            "OpFunctionEnd"]  # fmt: skip
    return assemble("\n".join(text), version=(1, 0))


def analysed(kernel: Kernel, layout: str = "0.24") -> dict[str, Any]:
    return analyse_tvm(module([kernel], layout), "tvm")["kernels"][kernel.key]


def reason(kernel: dict[str, Any], **limits: Any) -> str | None:
    return unsupported(kernel, {**LIMITS, **limits}, {"shaderInt64": True}, api_version="1.3.0")


# S1, S2: arguments


@pytest.mark.parametrize("layout", ["0.20", "0.21", "0.24"])
def test_arguments_by_kind(layout: str) -> None:
    spirv = shader(buffers=2, scalars=("int32", "float32"))
    kernel = analysed(Kernel(args=["handle", "handle", "int32", "float32"], spirv=spirv), layout)
    assert [(b["binding"], b["access"]) for b in kernel["bindings"]] == [(0, "write"), (1, "write")]
    assert [(s["name"], s["type"], s["offset"], s["size"], s["where"]) for s in kernel["scalars"]] == [
        ("m0", "int32", 0, 4, "push"),
        ("m1", "float32", 8, 4, "push"),
    ]
    assert kernel["push_constant_bytes"] == 16
    assert kernel["launch_param_tags"] == ["blockIdx.x"]
    assert kernel["local_size"] == [8, 4, 1]
    assert reason(kernel) is None


def test_scalars_have_the_shaders_names_where_it_has_any() -> None:
    spirv = shader(scalars=("int32", "int32"), names=True)
    kernel = analysed(Kernel(args=["handle", "int32", "int32", "int64"], spirv=spirv))
    assert [s["name"] for s in kernel["scalars"]] == ["s0", "s1", "m2"]


@pytest.mark.parametrize(
    "args, extra, text",
    [
        (["int32", "handle"], None, "argument 1 is a handle after a scalar; device function need to be organized"),
        (["handle", "float32", "handle"], None, "argument 2 is a handle after a scalar"),
        (["3:32:1"], None, "a handle of 32 bits and 1 lanes"),
        (["3:64:2"], None, "a handle of 64 bits and 2 lanes"),
        (["handle", "int32"], [0], "1 extra tags for 2 arguments"),
    ],
)
def test_arguments_in_no_order_of_tvms(args: list[str], extra: list[int] | None, text: str) -> None:
    with pytest.raises(InvalidError, match=f"TVM kernel 'k': .*{text}"):
        analysed(Kernel(args=args, extra=extra, spirv=shader()))


@pytest.mark.parametrize("type_", ["uint64", "int8", "int16", "float16", "bfloat16", "6:8:1", "int32x2", "200:7:1"])
def test_scalars_that_tvm_refuses(type_: str) -> None:
    """S3: well formed, so such a kernel does not keep the others of its module from being loaded."""
    good, bad = Kernel("a", spirv=shader(entry="a")), Kernel("b", ["handle", type_], spirv=shader(entry="b"))
    kernels = analyse_tvm(module([good, bad]), "tvm")["kernels"]
    assert reason(kernels["a"]) is None
    assert f"of type {'bool' if type_ == '6:8:1' else type_.replace('200:7:1', 'code200_7')}" in reason(kernels["b"])
    assert all(s["type"] in ("uint64", "int8", "int16", "float16") for s in kernels["b"]["scalars"])


@pytest.mark.parametrize("case", of_kind("refuse", tvm=True), ids=str)
def test_refused_cases(case) -> None:
    kernel = kernel_of(case.name)
    assert case.expect_error["type"] in reason(kernel)


@pytest.mark.parametrize(
    "kernel, text",
    [
        (Kernel(args=["handle"], spirv=shader(buffers=2)), "uses set 0, binding 1; TVM binds its 1 buffers"),
        (Kernel(args=["handle"], spirv=shader(set=1)), "uses set 1, binding 0"),
        (Kernel(args=["handle"], spirv=shader(scalars=("int32",))), "reads 4 bytes of scalars; .* have 0 of 8"),
        (
            Kernel(args=["handle", "int32"], spirv=shader(scalars=("int32", "int32"))),
            "reads 12 bytes of scalars; its arguments have 1 of 8 bytes each",
        ),
        (
            Kernel(args=["handle", "int32"], spirv=shader(scalars=("int32",)), flag=1),
            "reads 4 bytes of push constants; its flag says",
        ),
        (Kernel(args=["handle", "int32"], spirv=shader(scalars=("int32",), uniform=True)), "uses set 0, binding 1"),
        (
            Kernel(args=["handle", "handle", "int32"], spirv=shader(scalars=("int32",), uniform=True)),
            "has a uniform buffer .* at set 0, binding 1; TVM binds one storage buffer",
        ),
        (Kernel("other", spirv=shader()), "no compute entry point of that name; it has 'k'"),
        (Kernel(spirv=shader()[:-8]), "SPIR-V"),
        (Kernel(spirv=b""), "SPIR-V: 0 bytes"),
        (Kernel(spirv=shader(), tags=["blockIdx.w"]), "launch tag 'blockIdx.w' is unknown"),
    ],
)
def test_shaders_that_do_not_fit_their_description(kernel: Kernel, text: str) -> None:
    with pytest.raises(InvalidError, match=f"TVM kernel '{kernel.key}': .*{text}"):
        analysed(kernel)


def test_a_shader_for_opencl_alone_is_unsupported() -> None:
    opencl = assemble("OpCapability Kernel\nOpMemoryModel Physical32 OpenCL")
    kernels = analyse_tvm(module([Kernel("a", spirv=shader(entry="a")), Kernel("b", spirv=opencl)]), "tvm")["kernels"]
    assert reason(kernels["a"]) is None
    assert "OpenCL" in reason(kernels["b"])


# S3, S6, S8: scalars and descriptors of a launch


def test_words() -> None:
    """S3: 8 bytes for each scalar; small ones in the lower half, the upper one empty."""
    plan = Plan("k", kernel_of("tvm026_mixed_scalars"), LIMITS, LayoutTable())
    packed = plan.scalars.pack([1.5, -1, -(2**40), 7, 2**32 - 1])
    assert packed == struct.pack("<f4xi4xqi4xI4x", 1.5, -1, -(2**40), 7, 2**32 - 1)
    assert plan.layout.push_constant_bytes == 40
    assert plan.layout.sets == ((0, ((0, "storage", 1),)),)


@pytest.mark.parametrize("case", RUN, ids=str)
def test_words_of_the_corpus(case) -> None:
    plan = Plan(case.entry, kernel_of(case.name), LIMITS, LayoutTable())
    for run in case.runs:
        given = {s["name"]: v["value"] for s, v in zip(kernel_of(case.name)["scalars"], run.scalars, strict=True)}
        packed = plan.scalars.pack([s["value"] for s in run.scalars] or None)
        assert packed == plan.scalars.pack(given or None)
        uniform = [e.array for e in run.entries if e.kind == "uniform"]
        expected = run.arrays()[uniform[0]].tobytes() if uniform else run.push_bytes()
        assert packed[: len(expected)] == expected and not any(packed[len(expected) :])
        assert plan.launch(run.launch) == run.grid


class Buffer:
    def __init__(self, id: int, size: int) -> None:
        self.id, self.size = id, size


def test_scalars_in_a_uniform_buffer_of_the_launch() -> None:
    """S6: one slice for each launch, behind the last buffer."""
    kernel = kernel_of("tvm021_ubo_20_mixed")
    plan = Plan("k", kernel, LIMITS, LayoutTable())
    assert plan.uniform == 2
    assert plan.layout.sets == ((0, ((0, "storage", 1), (1, "storage", 1), (2, "uniform", 1))),)
    assert plan.layout.push_constant_bytes == 0
    bound = plan.bind([{"in": b"abcdefgh"}, 7], lambda handle, label: Buffer(handle, 64))
    plan.provide(bound, bytes(168))
    assert bound.entries == [(0, 0, 8), (7, 0, 64), (0, 1, 168)]
    assert bound.payload == [("in", b"abcdefgh"), ("uniform", bytes(168))]


def test_a_uniform_buffer_that_the_shader_ignores_is_there_all_the_same() -> None:
    kernel = analysed(Kernel(args=["handle", "int32"], flag=1, spirv=shader()))
    assert kernel["needs"]["limits"]["uniform_buffers"] == 1
    assert Plan("k", kernel, LIMITS, LayoutTable()).layout.sets[0][1][-1] == (1, "uniform", 1)
    none = analysed(Kernel(args=["handle"], flag=1, spirv=shader()))
    assert Plan("k", none, LIMITS, LayoutTable()).uniform is None


def test_push_constants_over_the_limit() -> None:
    """S7: both numbers, and what to do."""
    kernel = analysed(Kernel(args=["handle"] + ["int32"] * 17, spirv=shader()))
    text = reason(kernel)
    assert "136 bytes of push constants" in text and "maxPushConstantsSize is 128" in text and "uniform" in text
    assert reason(kernel, maxPushConstantsSize=136) is None
    uniform = analysed(Kernel(args=["handle"] + ["int32"] * 17, flag=1, spirv=shader()))
    assert reason(uniform) is None
    assert "maxUniformBufferRange is 128" in reason(uniform, maxUniformBufferRange=128)


# S4: launch values


@pytest.mark.parametrize(
    "tags, launch, grid",
    [
        (["blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"], [5, 6, 4, 8], [6, 5, 1]),
        (["threadIdx.y", "blockIdx.z", "blockIdx.y"], [4, 2, 3], [1, 3, 2]),
        (["threadIdx.x"], [8], [1, 1, 1]),
        ([], [], [1, 1, 1]),
        (["blockIdx.x", "threadIdx.z"], [0, 0], [1, 1, 1]),
        (["blockIdx.x", "tir.use_dyn_shared_memory"], [3, 4096], [3, 1, 1]),
        (["blockIdx.x", "tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"], [3, 0], [3, 1, 1]),
        (["tir.use_cooperative_launch"], [], [1, 1, 1]),
        (["clusterCtaIdx.x", "blockIdx.x"], [9, 2], [2, 1, 1]),
    ],
)
def test_launch_values(tags: list[str], launch: list[int], grid: list[int]) -> None:
    assert LaunchTags(tags).grid(launch, [8, 4, 1]) == grid


@pytest.mark.parametrize(
    "tags, launch, text",
    [
        (["blockIdx.x"], [], "expected 1 integers .blockIdx.x., got 0"),
        (["blockIdx.x"], [1, 1], "got 2"),
        (["blockIdx.x"], None, "NoneType"),
        (["blockIdx.x"], [True], "blockIdx.x: expected an integer of at least 0, got True"),
        (["blockIdx.x"], [-1], "got -1"),
        (["threadIdx.y"], [8], "threadIdx.y is 8, .* work group of 4"),
        (["threadIdx.x"], [0], "threadIdx.x is 0, .* work group of 8"),
        (["tir.use_dyn_shared_memory"], [-1], "got -1"),
    ],
)
def test_wrong_launch_values(tags: list[str], launch: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        LaunchTags(tags).grid(launch, [8, 4, 1])


@pytest.mark.parametrize(
    "tags, text",
    [
        (["vthread"], "'vthread' is unknown"),
        (["blockIdx.xx"], "unknown"),
        (["blockIdx.x", "blockIdx.x"], "twice"),
        (["tir.use_dyn_shared_memory", "blockIdx.x"], "has to be the last"),
    ],
)
def test_wrong_tags(tags: list[str], text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        LaunchTags(tags)


def test_a_launch_over_the_device_limit() -> None:
    plan = Plan("k", analysed(Kernel(spirv=shader())), LIMITS, LayoutTable())
    with pytest.raises(
        InvalidError, match="65536 work groups are over the device's maxComputeWorkGroupCount.0. of 65535"
    ):
        plan.launch([65536])
    with pytest.raises(InvalidError, match="no launch tags"):
        Plan("k", analyse(shader())["kernels"]["k"], LIMITS, LayoutTable()).launch([1])


# S22 to S24


def test_a_module_travels_between_processes() -> None:
    case = by_name("tvm026_multi_7__Zed_kernel")
    data = case.file(case.tvm["bytes"])
    doc = analyse_tvm(data, "tvm")["module"]
    assert join(save_bytes(unpacked(doc), None), data) == data
    one = unpacked(doc).only(["Zed_kernel"])
    alone = join(save_bytes(one, None), data)
    assert list(analyse_tvm(alone, "tvm")["kernels"]) == ["Zed_kernel"]


def test_under_specialization_only_one_kernel_is_looked_at() -> None:
    """Constants are a shader's own: another one does not know them."""
    spirv = shader(entry="a")
    data = module([Kernel("a", spirv=spirv), Kernel("b", spirv=shader(entry="b"))])
    assert list(analyse_tvm(data, "tvm", None, {}, "a")["kernels"]) == ["a"]
    with pytest.raises(InvalidError):
        analyse_tvm(data, "tvm", None, {7: 1}, "a")


def test_spirv_as_a_tvm_module() -> None:
    """S22, S23 for modules of other compilers: what fits the words is written, what does not is named."""
    spirv = shader(buffers=2, scalars=("int32", "uint32"), entry="main")
    kernels = analyse(spirv)["kernels"]
    made = from_spirv(kernels, len(spirv))
    data = join(save_bytes(made, None), spirv)
    found = analyse_tvm(data, "tvm")
    assert found["module"]["layout"] == "0.24"
    assert found["module"]["functions"][0][:2] == ["main", "main"]
    assert found["kernels"]["main"]["bindings"] == kernels["main"]["bindings"]
    assert [s["type"] for s in found["kernels"]["main"]["scalars"]] == ["int32", "uint32"]
    pieces, meta = save_file(made)
    assert analyse_tvm(join(pieces, spirv), "tvm_file", meta)["kernels"].keys() == {"main"}
    hole = shader(buffers=2, first=1)
    found = analyse_tvm(join(save_bytes(from_spirv(analyse(hole)["kernels"], len(hole)), "0.20"), hole), "tvm")
    assert [b["binding"] for b in found["kernels"]["k"]["bindings"]] == [1, 2]
    for other, text in (
        (shader(scalars=("int32", "int32"), gap=4), "at byte 4, in TVM's words of 8 bytes at 8"),
        (shader(set=2), "set 2, binding 0 is no single storage buffer"),
        (shader(scalars=("int32",), uniform=True), "set 0, binding 1 is no single storage buffer"),
        (by_name("tvm026_uint64_scalar").spirv, "of type uint64"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            from_spirv(analyse(other)["kernels"], len(other))


def test_listings_of_several_shaders() -> None:
    """S24"""
    one, two = shader(entry="one"), shader(entry="two")
    text = disassemble_all(one + two, [("one", 0, len(one)), ("two", len(one), len(two))])
    assert text.index("; kernel one") < text.index('"one"') < text.index("; kernel two") < text.index('"two"')
