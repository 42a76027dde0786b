"""Whatever the bytes are: a module, `invalid` or `unsupported`; soon, and in little memory (S23)."""

from __future__ import annotations

import json
import struct
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import TVM_CORPUS
from support.tvm import Kernel, at_most, library, module, string, u64

from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.tvm import analyse_tvm
from vkqueue.kernels.tvm_format import join
from vkqueue.kernels.tvm_save import save_bytes, save_file, unpacked

QUICK = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def seeds() -> list[tuple[str, bytes, str | None]]:
    found: set[tuple[str, bytes, str | None]] = set()
    for case in TVM_CORPUS:
        tvm = case.tvm or {}
        if len(data := case.file(tvm["bytes"])) < 5000:
            found.add(("tvm", data, None))
            if "file" in tvm:
                found.add(("tvm_file", case.file(tvm["file"]), case.file(tvm["metadata"]).decode()))
            if "library_bin" in tvm:
                found.add(("tvm_library", case.file(tvm["library_bin"]), None))
    return sorted(found, key=lambda seed: (seed[0], seed[1]))


SEEDS = seeds()
COUNTS = st.sampled_from([0, 1, 2, 7, 255, 4096, 4097, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])


def check(form: str, data: bytes, meta: str | None) -> bool:
    """True when the module was taken; then it can be saved, and what is saved is the same module."""
    started = time.perf_counter()
    try:
        found = analyse_tvm(data, form, meta)
    except (InvalidError, UnsupportedError) as error:
        assert error.message
        return False
    finally:
        assert time.perf_counter() - started < 5  # milliseconds, but for a machine under load
    doc = json.loads(json.dumps(found))
    saved = unpacked(doc["module"])
    written = join(save_bytes(saved, None), data)
    if form == "tvm":
        assert written == data
    again = analyse_tvm(written, "tvm")["kernels"]
    pieces, text = save_file(saved)
    if not any("code" in reason for k in again.values() for reason in k["needs"]["refuse"]):
        assert analyse_tvm(join(pieces, data), "tvm_file", text)["kernels"].keys() == again.keys()
    assert {name: k["scalars"] for name, k in again.items()} == {n: k["scalars"] for n, k in found["kernels"].items()}
    return True


def test_the_seeds_are_good() -> None:
    assert len(SEEDS) > 40
    assert all(check(*seed) for seed in SEEDS)


@QUICK
@given(data=st.data())
def test_bytes_changed(data: st.DataObject) -> None:
    form, raw, meta = data.draw(st.sampled_from(SEEDS))
    changed = bytearray(raw)
    # The descriptions stand in front, so that is where most of the changes go.
    place = st.one_of(st.integers(0, min(400, len(raw) - 9)), st.integers(0, len(raw) - 9))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(place)
        what = data.draw(st.sampled_from(["byte", "count", "cut", "insert", "double"]))
        if what == "byte":
            changed[at] = data.draw(st.integers(0, 255))
        elif what == "count":
            changed[at : at + 8] = struct.pack("<Q", data.draw(COUNTS))
        elif what == "cut":
            del changed[at : at + data.draw(st.integers(1, 64))]
        elif what == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        else:
            changed[at:at] = changed[at : at + data.draw(st.integers(1, 200))]
        if len(changed) < 9:
            break
        place = st.integers(0, min(400, len(changed) - 9))
    check(form, bytes(changed), meta)


@QUICK
@given(
    kernels=st.lists(
        st.builds(
            Kernel,
            key=st.text(max_size=4),
            args=st.lists(st.sampled_from(["handle", "int32", "float64", "uint64", "3:32:1", "int32x2"]), max_size=4),
            tags=st.lists(st.sampled_from(["blockIdx.x", "threadIdx.y", "tir.use_dyn_shared_memory", "x"]), max_size=3),
            spirv=st.sampled_from([b"", bytes(20), b"\3\2\x23\7" + bytes(16)]),
            flag=st.integers(0, 3),
            name=st.text(max_size=3),
        ),
        max_size=4,
    ),
    layout=st.sampled_from(["0.20", "0.21", "0.24"]),
    blob=st.sampled_from([None, True, False]),
)
def test_modules_made_up(kernels: list[Kernel], layout: str, blob: bool | None) -> None:
    data = module(kernels, layout)
    if blob is None:
        check("tvm", data, None)
    else:
        check("tvm_library", library([("_lib", b""), ("vulkan", data)], blob), None)


@QUICK
@given(change=st.data())
def test_metadata_changed(change: st.DataObject) -> None:
    form, data, meta = change.draw(st.sampled_from([seed for seed in SEEDS if seed[0] == "tvm_file"]))
    assert meta is not None
    doc = json.loads(meta)
    info = next(iter(doc["func_info"].values()))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    target = change.draw(st.sampled_from(["doc", "functions", "info", "entry"]))
    if target == "doc":
        doc[change.draw(st.sampled_from(["func_info", "tvm_version"]))] = change.draw(junk)
    elif target == "functions":
        doc["func_info"][change.draw(st.text(max_size=5))] = change.draw(junk)
    elif target == "info":
        info[change.draw(st.sampled_from(sorted(info)))] = change.draw(junk)
    else:
        info[change.draw(st.sampled_from(["arg_types", "launch_param_tags", "arg_extra_tags"]))] = [change.draw(junk)]
    check(form, data, json.dumps(doc))


def test_the_largest_modules_take_little() -> None:
    """As much as a file can make of its bytes: many functions, many arguments, long names, in the wrong layout too."""
    names = [Kernel(f"{i:04000}", [], [], name="x") for i in range(1000)]
    many = [Kernel(f"k{i}", ["handle"] * 9, ["blockIdx.x"]) for i in range(4096)]
    wide = [Kernel(f"k{i}", ["int32"] * 1024, []) for i in range(500)]
    rows = string("vulkan") + u64(4096) + bytes(4 << 20)
    for data in (module(names), module(many, "0.20"), module(many)[:-4], module(wide, "0.21"), rows):
        with at_most(24 * len(data) + (4 << 20)):
            assert not check("tvm", data, None)
