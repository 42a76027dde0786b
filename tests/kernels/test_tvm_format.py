"""TVM's formats: what is read is written again, what is broken is refused where it breaks (S1, S22, S23)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from support.cases import TVM_CORPUS, Case, by_name, tvm_modules
from support.tvm import Kernel, at_most, dtype, library, module, string, u64

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.tvm_format import LAYOUTS, TvmModule, join, read_bytes, size_of, write_bytes, write_file
from vkqueue.kernels.tvm_library import read_library
from vkqueue.kernels.tvm_meta import read_file, write_meta
from vkqueue.kernels.tvm_types import DataType

MODULES = [(Path(path).read_bytes(), cases) for path, cases in tvm_modules()]
FORMS = {"newer": "0.24", "older": "0.21", "oldest": "0.20"}


def content(found: TvmModule) -> tuple:
    """What does not depend on the layout."""
    functions = [(f.key, f.name or f.key, f.arg_types, f.launch_tags) for f in found.functions]
    return functions, [(s.key, s.flag, s.size) for s in found.shaders]


@pytest.mark.parametrize("data, cases", MODULES, ids=[cases[0].name for _, cases in MODULES])
def test_the_corpus_is_read_and_written(data: bytes, cases: list[Case]) -> None:
    """S23: orders of both maps, names, types, tags; each layout and back."""
    found = read_bytes(data)
    tvm = cases[0].tvm
    assert found.layout == FORMS[tvm["form"]]
    assert [f.key for f in found.functions] == tvm["functions"]
    assert [s.key for s in found.shaders] == tvm["shaders"]
    for case in cases:
        function = next(f for f in found.functions if f.key == case.entry)
        shader = next(s for s in found.shaders if s.key == case.entry)
        assert function.name == case.tvm["info_name"]
        assert [str(t) for t in function.arg_types] == case.tvm["arg_types"]
        assert function.launch_tags == case.tvm["launch_param_tags"]
        assert function.extra_tags == case.tvm["arg_extra_tags"]
        assert shader.flag == case.tvm["flag"]
        assert data[shader.start : shader.start + shader.size] == case.spirv
    for layout in LAYOUTS:
        pieces = write_bytes(found, layout)
        written = join(pieces, data)
        assert size_of(pieces) == len(written)
        assert (written == data) == (layout == found.layout)
        again = read_bytes(written)
        assert (again.layout, content(again)) == (layout, content(found))
        assert join(write_bytes(again, found.layout), written) == data


@pytest.mark.parametrize("case", [c for c in TVM_CORPUS if "file" in c.tvm], ids=str)
def test_files_are_read_and_written(case: Case) -> None:
    """S22: the file byte for byte, the metadata as JSON, and the bytes form of the same version from them."""
    data, meta = case.file(case.tvm["file"]), case.file(case.tvm["metadata"]).decode()
    found = read_file(data, meta)
    assert join(write_file(found.shaders), data) == data
    assert json.loads(write_meta(found)) == json.loads(meta)
    whole = case.file(case.tvm["bytes"])
    assert join(write_bytes(found, FORMS[case.tvm["form"]]), data) == whole
    from_bytes = read_bytes(whole)
    assert join(write_file(from_bytes.shaders), whole) == data
    assert json.loads(write_meta(from_bytes)) == json.loads(meta)


@pytest.mark.parametrize("case", [c for c in TVM_CORPUS if "library_bin" in c.tvm], ids=str)
def test_libraries_are_read(case: Case) -> None:
    data = case.file(case.tvm["library_bin"])
    found = read_library(data)
    assert join(write_bytes(found, found.layout), data) == case.file(case.tvm["bytes"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_built_by_hand(layout: str) -> None:
    """The test's own writer and the daemon's agree, on orders and flags that the corpus does not have."""
    kernels = [
        Kernel("b", ["handle", "float32x4", "uint8"], ["threadIdx.y", "blockIdx.z"], b"\1\2\3\4" * 5, 1, "other"),
        Kernel("a", [], [], b"", 6),
    ]
    data = module(kernels, layout, kernels[::-1])
    found = read_bytes(data)
    assert found.layout == layout
    assert [(s.key, s.flag, s.size) for s in found.shaders] == [("a", 6, 0), ("b", 1, 20)]
    assert join(write_bytes(found, layout), data) == data


def test_an_old_metadata_key_is_read() -> None:
    case = by_name("tvm020_int8_dot")
    data, meta = case.file(case.tvm["file"]), case.file(case.tvm["metadata"]).decode()
    assert content(read_file(data, meta.replace("launch_param_tags", "thread_axis_tags"))) == content(
        read_file(data, meta)
    )


def test_extra_tags_do_not_get_lost() -> None:
    data = module([Kernel(args=["handle", "handle"], extra=[0, 2])])
    found = read_bytes(data)
    assert found.functions[0].extra_tags == [0, 2]
    assert json.loads(write_meta(found))["func_info"]["k"]["arg_extra_tags"] == [0, 2]
    with pytest.raises(UnsupportedError, match="0.20 has no room"):
        write_bytes(found, "0.20")


@pytest.mark.parametrize(
    "text",
    ["handle", "bool", "boolx4", "int8", "uint64", "float16x4", "bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuzx2"],
)
def test_types_have_the_names_that_tvm_gives_them(text: str) -> None:
    assert str(DataType.from_text(text)) == text


@pytest.mark.parametrize("text", ["", "int", "int32x", "int32x0", "int32foo", "int999", "handle32", "x4", "Int32", "٣"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="no type that TVM writes"):
        DataType.from_text(text)


# What is broken


def offset_of(error: InvalidError) -> int:
    assert error.data is not None and f"at byte {error.data['offset']}" in error.message
    return error.data["offset"]


def test_a_fault_is_shown_where_it_is() -> None:
    good = module([Kernel("kernel", spirv=bytes(20))], "0.24")
    place = good.index(string("blockIdx.x"))
    broken = good[:place] + u64(2**63) + good[place + 8 :]
    with pytest.raises(InvalidError, match="a launch tag has a length of 9223372036854775808") as error:
        read_bytes(broken)
    assert offset_of(error.value) == place
    for data, text in (
        (b"", "8 bytes, 0 are left"),
        (good[:-1], "20 bytes, 19 are left|5 words"),
        (good + b"\0", "1 bytes are left after the last shader"),
        (good.replace(b"vulkan", b"openCL"), "'openCL', 'vulkan' is expected"),
        (good.replace(b"blockIdx", b"block\xffdx"), "not UTF-8"),
        (string("vulkan") + u64(2**62), "functions take at least"),
        (string("vulkan") + u64(5000) + bytes(5000 * 40), "at most 4096"),
    ):
        with pytest.raises(InvalidError, match=text) as error:
            read_bytes(data)
        assert 0 <= offset_of(error.value) <= len(data)


def test_maps_that_do_not_match() -> None:
    one, two = Kernel("one"), Kernel("two")
    for kernels, shaders, text in (
        ([one, two], [one], "'two' has no shader"),
        ([one], [one, two], "'two' has no description"),
        ([one, one], [one], "function 'one' is there twice"),
        ([one], [one, one], "shader 'one' is there twice"),
    ):
        for layout in LAYOUTS:
            with pytest.raises(InvalidError, match=text):
                read_bytes(module(kernels, layout, shaders))
    with pytest.raises(UnsupportedError, match="no kernel"):
        read_bytes(module([]))


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda d: "[", "no JSON"),
        (lambda d: "[" * 100_000, "no JSON"),
        (lambda d: json.dumps([]), "func_info"),
        (lambda d: json.dumps({"func_info": {}}), "no description"),
        (lambda d: json.dumps({"func_info": {"k": 3}}), "expected an object"),
        (lambda d: d.replace("int64", "int1000"), "no type"),
        (lambda d: d.replace('"handle"', "3", 1), "'arg_types' to be a list of str"),
        (lambda d: d.replace("launch_param_tags", "tags"), "thread_axis_tags"),
        (lambda d: d.replace('"name": ""', '"name": "\\ud800"'), "surrogate"),
        (lambda d: d.replace("blockIdx.x", "\\udfff"), "surrogate"),
        (lambda d: d.replace('"arg_extra_tags": [0,', '"arg_extra_tags": [4294967296,'), "32 bits"),
        (lambda d: d.replace('"arg_extra_tags": [0,', '"arg_extra_tags": [true,'), "list of int"),
        (lambda d: d.replace('"name": "",', '"name": "", "name": "x",'), "twice"),
    ],
)
def test_broken_metadata(change, text: str) -> None:
    case = by_name("tvm021_mixed_scalars")
    data, meta = case.file(case.tvm["file"]), case.file(case.tvm["metadata"]).decode()
    changed = change(meta)
    assert changed != meta
    with pytest.raises(InvalidError, match=text):
        read_file(data, changed)


def test_broken_files() -> None:
    case = by_name("tvm021_mixed_scalars")
    data, meta = case.file(case.tvm["file"]), case.file(case.tvm["metadata"]).decode()
    for broken, text in (
        (b"", "4 bytes, 0 are left"),
        (b"\1\2\3\4" + data[4:], "0x04030201, 0x02700027"),
        (data + b"x", "1 bytes are left"),
        (data[:-2], "are left"),
    ):
        with pytest.raises(InvalidError, match=text):
            read_file(broken, meta)


# Libraries


@pytest.mark.parametrize("newer", [True, False])
def test_a_library_of_several_modules_is_one(newer: bool) -> None:
    a, b = module([Kernel("a", spirv=bytes(8))], "0.21"), module([Kernel("b", spirv=bytes(4))], "0.21")
    # What a virtual machine's program looks like: one string.
    entries = [("_lib", b""), ("vulkan", a), ("relax.Executable", bytes(50)), ("vulkan", b)]
    data = library(entries, newer)
    if not newer:
        data = library([*entries[:2], ("relax.Executable", string(bytes(50))), entries[3]], newer)
    found = read_library(data)
    assert [f.key for f in found.functions] == [s.key for s in found.shaders] == ["a", "b"]
    assert join(write_bytes(found, "0.21"), data) == module(
        [Kernel("a", spirv=bytes(8)), Kernel("b", spirv=bytes(4))], "0.21"
    )
    with pytest.raises(InvalidError, match="'a' is there twice"):
        read_library(library([("_lib", b""), ("vulkan", a), ("vulkan", a)], newer))
    with pytest.raises(UnsupportedError, match=r"no module for Vulkan is in it; it holds _lib, cuda"):
        read_library(library([("_lib", b""), ("cuda", string(b"x"))], newer))


@pytest.mark.parametrize("layout", ["0.20", "0.21"])
def test_an_older_library_with_modules_of_unknown_shape(layout: str) -> None:
    """They have no length: what is known behind them is found."""
    vulkan = module([Kernel("a", spirv=bytes(8))], layout)
    for odd in (b"", b"\xff" * 33, u64(2**60), string("cubin") + u64(3) + b"\7" * 41):
        data = library([("_lib", b""), ("const_loader", odd), ("vulkan", vulkan), ("tail", odd)], newer=False)
        assert [f.key for f in read_library(data).functions] == ["a"]
    without_tree = u64(2) + string("_lib") + string("vulkan") + vulkan
    assert read_library(u64(len(without_tree)) + without_tree).layout == layout


@pytest.mark.parametrize("newer", [True, False])
def test_broken_libraries(newer: bool) -> None:
    vulkan = module([Kernel("a", spirv=bytes(8))], "0.21")
    good = library([("_lib", b""), ("vulkan", vulkan)], newer)
    assert read_library(good).functions
    for data in (
        b"", good[:-1], good + b"\0", u64(len(good)) + good[8:],
        u64(len(good) - 7) + good[8:] + b"\0", good.replace(b"vulkan", b"vulk\n\0", 1),
        good.replace(vulkan, vulkan[:-4] + b""), good.replace(u64(3), u64(2**61), 1),
    ):  # fmt: skip
        if data != good:
            with pytest.raises((InvalidError, UnsupportedError)) as error:
                read_library(data)
            assert error.value.message


def test_lengths_cost_nothing() -> None:
    """A few bytes that promise gigabytes, and many that promise as much as they can hold."""
    tag = string("vulkan")
    promises = [
        tag + u64(1) + u64(2**40),
        tag + u64(1) + string("k") + string("") + u64(2**60),
        tag + u64(1) + string("k") + string("") + u64(2**30) + bytes(64),
        tag + u64(2**20) + bytes(2**20 * 40),
        struct.pack("<QQQ", 2**24 - 8, 2**20, 2**20) + bytes(2**24 - 24),
    ]
    for data in promises:
        with at_most(1 << 20):
            for read in (read_bytes, read_library):
                with pytest.raises((InvalidError, UnsupportedError)):
                    read(data)


def test_the_tests_own_types() -> None:
    assert dtype("handle") == dtype("3:64:1")
    assert dtype("float32x4") == b"\x02\x20\x04\x00"
