"""Reflection of every module of the corpus against what the corpus says of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from support.cases import CORPUS, TVM_CORPUS, Case, by_name

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.reflect import analyse

ALL = [*CORPUS, *TVM_CORPUS]
CORRUPT = [case for case in CORPUS if case.producer == "corrupt"]
REFLECTED = [case for case in ALL if "reflection" in case.doc]
RUNNABLE = [case for case in REFLECTED if case.runs]


@cache
def analysed(name: str) -> dict[str, Any]:
    return analyse(by_name(name).spirv)


def kernel_of(case: Case) -> dict[str, Any]:
    kernel: dict[str, Any] = analysed(case.name)["kernels"][case.entry]
    return kernel


@pytest.mark.parametrize("case", CORRUPT, ids=str)
def test_broken_modules_are_invalid(case):
    with pytest.raises(InvalidError, match=r"SPIR-V.*[a-z]"):
        analyse(case.spirv)


def test_the_text_of_a_fault_says_where_and_what():
    with pytest.raises(InvalidError, match=r"word 28, OpDecorate: word count 0") as error:
        analyse(by_name("corrupt_wordcount_zero").spirv)
    assert error.value.data == {"word": 28, "opcode": "OpDecorate"}
    with pytest.raises(InvalidError, match="big-endian"):
        analyse(by_name("corrupt_byte_swapped").spirv)


@pytest.mark.parametrize(
    ("name", "words"),
    [("refuse_fragment", "no compute kernel.*Fragment"), ("refuse_opencl_spirv", "OpenCL.*Kernel")],
)
def test_without_a_compute_kernel_a_module_is_unsupported(name, words):
    with pytest.raises(UnsupportedError, match=words):
        analyse(by_name(name).spirv)


@pytest.mark.parametrize("case", REFLECTED, ids=str)
def test_module(case):
    found, expected = analysed(case.name), case.reflection
    assert ".".join(map(str, found["spirv_version"])) == expected["spirv_version"]
    assert found["generator"] == int(expected["generator"], 16)
    assert found["entry_points"] == expected["entry_points"]
    names = [name.replace("cap#4436", "StorageInputOutput16") for name in expected["capabilities"]]
    assert found["capabilities"] == sorted(names)
    assert sorted(found["extensions"]) == expected["extensions"]


@pytest.mark.parametrize("case", REFLECTED, ids=str)
def test_work_group(case):
    kernel, expected = kernel_of(case), case.reflection
    assert kernel["local_size"] == expected["local_size"]
    by_constants = any(id is not None for id in expected.get("local_size_spec_ids", ()))
    assert kernel["needs"]["local_size_spec"] == by_constants


def members(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The corpus' members in the protocol's words."""
    sizes = {"8": 1, "6": 2, "2": 4, "4": 8}
    found = []
    for member in expected:
        type_ = "uint64" if member["type"] == "pointer" else member["type"]
        element = sizes[type_[-1]]
        entry = {key: member[key] for key in ("name", "offset", "count") if key in member} | {"type": type_}
        step = member.get("stride", element)
        if step != element:
            entry["stride"] = step
        entry["size"] = element + step * (member.get("count", 1) - 1)
        found.append(entry)
    return found


@pytest.mark.parametrize("case", REFLECTED, ids=str)
def test_scalars(case):
    kernel, block = kernel_of(case), case.reflection["push_constants"]
    if block is None:
        assert kernel["scalars"] == []
        assert kernel["push_constant_bytes"] == 0
        return
    assert kernel["push_constant_bytes"] == block["size"]
    assert kernel["scalars"] == [{**member, "where": "push"} for member in members(block["members"])]


@pytest.mark.parametrize("case", REFLECTED, ids=str)
def test_bindings(case):
    expected = [b for b in case.reflection["bindings"] if b["kind"].endswith("_buffer")]
    found = kernel_of(case)["bindings"]
    assert [(b["set"], b["binding"]) for b in found] == [(b["set"], b["binding"]) for b in expected]
    for have, want in zip(found, expected, strict=True):
        assert have["kind"] == want["kind"].removesuffix("_buffer")
        assert have["count"] == want["count"]
        assert have["name"] == want.get("var_name", "")
        tail = want.get("runtime_array")
        assert (have["size"], have["stride"]) == (
            (tail["offset"], tail["stride"]) if tail else (want["size"], 0)
        )
        assert have.get("members", []) == members(want.get("members", []))
        assert not (want.get("nonwritable") and "write" in have["access"])
        assert not (want.get("nonreadable") and "read" in have["access"])


@pytest.mark.parametrize("case", REFLECTED, ids=str)
def test_specialization(case):
    found = kernel_of(case)["specialization"]
    expected = case.reflection["spec_constants"]
    assert [(s["id"], s["type"], s["default"], s["name"]) for s in found] == [
        (s["id"], s["type"], s["default"], s.get("name", "")) for s in expected
    ]


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_what_runs_give_fits_the_reflection(case):
    for run in case.runs:
        kernel = analyse(case.spirv, run.spec)["kernels"][case.entry] if run.spec else kernel_of(case)
        places = [(b["set"], b["binding"]) for b in kernel["bindings"]]
        assert sorted({(e.set, e.binding) for e in run.entries}) == places
        if isinstance(run.push, dict):
            assert set(run.push) == {scalar["name"] for scalar in kernel["scalars"]}
        elif run.push is not None and case.tvm is None:
            assert len(run.push) == kernel["push_constant_bytes"]


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_what_changes_is_seen_to_be_written(case):
    kernel = kernel_of(case)
    access = {(b["set"], b["binding"]): b["access"] for b in kernel["bindings"]}
    for run in case.runs:
        for name in {entry.array for entry in run.entries if entry.expected}:
            bound = [access[e.set, e.binding] for e in run.entries if e.array == name]
            assert any("write" in found for found in bound)


def test_aliased_variables_are_one_binding():
    kernel = kernel_of(by_name("dxc_typed_atomics"))
    places = [(b["set"], b["binding"]) for b in kernel["bindings"]]
    assert len(places) == len(set(places))


def test_a_member_missing_from_this_entry_point_is_not_reflected():
    case = by_name("glsl_unused_binding")
    assert {(u["set"], u["binding"]) for u in case.reflection["unused_bindings"]} == {(0, 1)}
    assert [(b["set"], b["binding"]) for b in kernel_of(case)["bindings"]] == [(0, 0), (0, 2)]


def test_answers_hold_nothing_but_plain_values():
    for case in REFLECTED:
        _plain(analysed(case.name))


def _plain(value: object) -> None:
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        for part in value.values():
            _plain(part)
    elif isinstance(value, list):
        for part in value:
            _plain(part)
    else:
        assert value is None or type(value) in (str, int, bool, float)
