"""The corpus loader itself: a loader that checks nothing would make every end-to-end test pass."""

from __future__ import annotations

import numpy as np
import pytest
from support.cases import CORPUS, TVM_CORPUS, by_name, generate, of_kind, tvm_modules


def test_all_cases_are_found():
    assert len(CORPUS) == 75
    assert len(TVM_CORPUS) == 56
    assert len({case.name for case in (*CORPUS, *TVM_CORPUS)}) == 131
    assert len(list(tvm_modules())) == 36
    assert all(case.spirv or case.name == "corrupt_empty" for case in (*CORPUS, *TVM_CORPUS))


def test_generated_values_are_those_of_the_formula():
    assert generate(3, np.uint32, seed=0, lo=0, hi=2**24).tolist() == [by_hand(i, 0) for i in range(3)]
    floats = generate(2, np.float32, seed=7, lo=-1, hi=1).tolist()
    assert floats == [2 * by_hand(i, 7) / 2**24 - 1 for i in range(2)]


def by_hand(i: int, seed: int) -> int:
    m = 2**64 - 1
    x = (i * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & m
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & m
    x ^= x >> 32
    return x >> 40


@pytest.mark.parametrize("case", of_kind("run") + of_kind("run", tvm=True), ids=str)
def test_what_the_run_leaves_untouched_is_noticed(case):
    """Nothing ran, so wherever a result differs from what was there before the check must fail."""
    for run in case.runs:
        before = run.arrays()
        assert {entry.array for entry in run.entries} == set(before)
        if all(array.size == 0 for array in before.values()):
            run.check(before)
            continue
        with pytest.raises(AssertionError):
            run.check(before)


def test_right_results_pass_and_a_missing_one_does_not():
    run = by_name("glsl_desc_array").runs[0]
    after = run.arrays()
    after["y"] = sum(after[f"x{i}"] for i in range(4)) + 10 * after["x2"]
    run.check(after)
    run.check({name: array.tobytes() for name, array in after.items()})
    del after["y"]
    with pytest.raises(AssertionError, match="no result for buffer y"):
        run.check(after)


def test_scalars_are_packed_at_their_offsets():
    data = by_name("glsl_push_mixed").runs[0].push_bytes()
    assert len(data) == 72
    assert np.frombuffer(data, np.int16, 1, 2)[0] == -12345
    assert np.frombuffer(data, np.uint32, 3, 60).tolist() == [1, 2, 2**32 - 1]


def test_needs_are_compared_with_a_device():
    case = by_name("naga_subgroup_f16")
    features = {need: True for need in case.needs}
    limits = {"subgroupSupportedOperations": 1 | 4}
    assert case.missing(limits, features, "1.0.0") == []
    assert case.missing({"subgroupSupportedOperations": 1}, features, "1.3.230") == ["subgroup:ARITHMETIC"]
    assert case.missing(limits, {**features, "shaderFloat16": False}, "1.3.0") == ["shaderFloat16"]
    assert by_name("tint_axpy").missing({}, {}, "1.1.290")[-1] == "apiVersion>=1.2"
    assert by_name("long_loop").deviates("llvmpipe (LLVM 15.0.6, 256 bits)")
    assert not by_name("long_loop").deviates("NVIDIA H200")
