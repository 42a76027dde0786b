"""Modules made by TVM through the socket of a real daemon: every form, every case of the corpus, launches and grids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cases import TVM_CORPUS, Case, Run, by_name, of_kind, tvm_modules
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError
from support.tvm import library

pytestmark = pytest.mark.gpu

MODULES = [(Path(path), cases) for path, cases in tvm_modules()]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client


def skip_unless_runnable(case: Case, client: RawClient) -> None:
    device = client.welcome["devices"][client.welcome["device"]]
    missing = case.missing(device["limits"], device["features"], device["api_version"])
    if missing:
        pytest.skip(f"the device lacks {', '.join(missing)}")
    if case.deviates(device["name"]):
        pytest.skip(f"{device['name']} is known to deviate")


def forms(case: Case) -> dict[str, dict[str, Any]]:
    """Parameters of `module.load`, for each form in which the case's module is there."""
    tvm = case.tvm
    assert tvm is not None
    found: dict[str, dict[str, Any]] = {"bytes": {"tvm": case.file(tvm["bytes"])}}
    if "file" in tvm:
        found["file"] = {"tvm_file": case.file(tvm["file"]), "tvm_meta": case.file(tvm["metadata"]).decode()}
    if "library_bin" in tvm:
        found["library"] = {"tvm_library": case.file(tvm["library_bin"])}
    return found


FORMS = [
    pytest.param(case, form, id=f"{case.name}-{form}") for case in of_kind("run", tvm=True) for form in forms(case)
]


def scalars(run: Run) -> dict[str, Any]:
    values = [s["value"] for s in run.scalars]
    return {"scalars": values} if values else {}


def launched(client: RawClient, module: int, case: Case, run: Run, **how: Any) -> dict[str, bytes]:
    """Contents of all buffers after a launch on fresh ones."""
    buffers = [entry for entry in run.entries if entry.kind == "storage"]  # TVM's uniform buffer is no argument
    arrays = run.arrays()
    names = [entry.array for entry in buffers]
    handles = {name: client.call("buffer.create", data=arrays[name].tobytes())["buffer"] for name in set(names)}
    answer = client.call("dispatch", module=module, kernel=case.entry, args=[handles[n] for n in names], **how)
    assert answer == {"outputs": []}
    after = {name: client.call("buffer.read", buffer=handle)["data"] for name, handle in handles.items()}
    for handle in handles.values():
        client.call("buffer.free", buffer=handle)
    return after


@pytest.mark.parametrize("case, form", FORMS)
def test_results(case: Case, form: str, client: RawClient) -> None:
    """S1 to S4, S8, S22, S23: each case from each form, by launch values and by a grid, scalars as list and as map."""
    skip_unless_runnable(case, client)
    assert case.tvm is not None
    loaded = client.call("module.load", **forms(case)[form])
    assert set(loaded["kernels"]) == set(case.tvm["functions"])
    kernel = loaded["kernels"][case.entry]
    assert kernel["launch_param_tags"] == case.tvm["launch_param_tags"]
    for run in case.runs:
        run.check(launched(client, loaded["module"], case, run, launch=run.launch, **scalars(run)))
        named = {s["name"]: given["value"] for s, given in zip(kernel["scalars"], run.scalars, strict=True)}
        by_grid = {"grid": list(run.grid)} | ({"scalars": named} if named else {})
        run.check(launched(client, loaded["module"], case, run, **by_grid))


@pytest.mark.parametrize("case", of_kind("run", tvm=True), ids=str)
def test_reflection(case: Case, client: RawClient) -> None:
    """S1, S3, S6, S8: buffers by binding and name, scalars in words of eight bytes, wherever they go."""
    skip_unless_runnable(case, client)
    assert case.tvm is not None
    kernel = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["kernels"][case.entry]
    types, names = case.tvm["arg_types"], case.tvm["arg_names"]
    buffers = types.count("handle")
    assert [(b["set"], b["binding"], b["kind"], b["name"]) for b in kernel["bindings"]] == [
        (0, i, "storage", names[i]) for i in range(buffers)
    ]
    where = "uniform" if case.tvm["flag"] else "push"
    assert [(s["type"], s["offset"], s["where"]) for s in kernel["scalars"]] == [
        (type_, 8 * i, where) for i, type_ in enumerate(types[buffers:])
    ]
    assert kernel["push_constant_bytes"] == 8 * len(types[buffers:])
    assert kernel["local_size"] == case.reflection["local_size"]
    assert "unsupported" not in kernel


@pytest.mark.parametrize("case", of_kind("refuse", tvm=True), ids=str)
def test_what_tvm_itself_refuses_is_refused(case: Case, client: RawClient) -> None:
    for form in forms(case).values():
        with pytest.raises(RemoteError) as refused:
            client.call("module.load", **form)
        assert refused.value.code == "unsupported"
        assert "uint64" in refused.value.message


@pytest.mark.parametrize("path, cases", MODULES, ids=[path.name for path, _ in MODULES])
def test_saved_as_loaded(path: Path, cases: list[Case], client: RawClient) -> None:
    """S22, S23: the same bytes in the layout of loading, from whichever form; any layout loads as the same module."""
    case = cases[0]
    if case.kind == "refuse":
        pytest.skip("is not loaded")
    skip_unless_runnable(case, client)
    assert case.tvm is not None
    data = path.read_bytes()
    loaded = client.call("module.load", tvm=data)
    module = loaded["module"]
    layout = {"newer": "0.24", "older": "0.21", "oldest": "0.20"}[case.tvm["form"]]
    assert client.call("module.save", module=module, format="tvm")["data"] == data
    for other in ("0.20", "0.21", "0.24"):
        converted = client.call("module.save", module=module, format="tvm", layout=other)["data"]
        assert (converted == data) == (other == layout)
        again = client.call("module.load", tvm=converted)
        assert again["kernels"] == loaded["kernels"]
        assert client.call("module.save", module=again["module"], format="tvm")["data"] == converted
        assert client.call("module.save", module=again["module"], format="tvm", layout=layout)["data"] == data
    saved = client.call("module.save", module=module, format="tvm_file")
    again = client.call("module.load", tvm_file=saved["data"], tvm_meta=saved["meta"])
    assert again["kernels"] == loaded["kernels"]
    assert client.call("module.save", module=again["module"], format="tvm_file") == saved
    assert client.call("module.save", module=again["module"], format="tvm", layout=layout)["data"] == data
    if "file" in case.tvm:
        assert saved["data"] == case.file(case.tvm["file"])
        meta = case.file(case.tvm["metadata"]).decode()
        assert json.loads(saved["meta"]) == json.loads(meta)
        from_file = client.call("module.load", tvm_file=saved["data"], tvm_meta=meta)["module"]
        saved = client.call("module.save", module=from_file, format="tvm_file")
        assert (saved["data"], json.loads(saved["meta"])) == (case.file(case.tvm["file"]), json.loads(meta))
    if "library_bin" in case.tvm:
        library = client.call("module.load", tvm_library=case.file(case.tvm["library_bin"]))
        assert library["kernels"] == loaded["kernels"]
        assert client.call("module.save", module=library["module"], format="tvm")["data"] == data


def test_one_kernel_of_several_is_loaded_and_saved_alone(client: RawClient) -> None:
    case = by_name("tvm026_multi_7__Zed_kernel")
    assert case.tvm is not None
    loaded = client.call("module.load", tvm=case.file(case.tvm["bytes"]), entry="Zed_kernel")
    assert list(loaded["kernels"]) == ["Zed_kernel"]
    data = client.call("module.save", module=loaded["module"], format="tvm")["data"]
    assert client.call("module.load", tvm=data)["kernels"] == loaded["kernels"]
    with pytest.raises(RemoteError, match="not_found"):
        client.call("module.load", tvm=case.file(case.tvm["bytes"]), entry="zed_kernel")
    for format in ("spirv-asm", "json"):
        assert "alpha" not in client.call("module.inspect", module=loaded["module"], format=format)["text"]


def test_inspect_lists_every_kernel(client: RawClient) -> None:
    """S24: after loading too."""
    case = by_name("tvm021_softmax_3k__softmax_kernel")
    assert case.tvm is not None
    module = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["module"]
    text = client.call("module.inspect", module=module, format="spirv-asm")["text"]
    assert text.count("OpEntryPoint GLCompute") == 3
    assert all(f"; kernel {name}\n" in text for name in case.tvm["functions"])
    kernels = json.loads(client.call("module.inspect", module=module, format="json")["text"])["kernels"]
    assert set(kernels) == set(case.tvm["functions"])
    assert kernels["softmax_kernel"]["launch_param_tags"] == ["blockIdx.x"]


@pytest.mark.parametrize("version", ["020", "021", "026"])
def test_queued_uniform_launches_see_their_own_scalars(version: str, client: RawClient) -> None:
    """S6, rule 1: launches sent without waiting, each with other values for all of its scalars."""
    case = by_name(f"tvm{version}_ubo_20_mixed")
    assert case.tvm is not None
    module = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["module"]
    run = case.runs[0]
    entries = [entry.array for entry in run.entries if entry.kind == "storage"]
    sent = []
    for k in range(16):
        arrays = run.arrays()
        handles = [client.call("buffer.create", data=arrays[name].tobytes())["buffer"] for name in entries]
        values = [s["value"] for s in run.scalars]
        values[-1] = float(k)  # s9, the last float32
        sent.append((handles, values))
    for handles, values in sent:
        client.send("dispatch", module=module, args=handles, scalars=values, launch=run.launch)
    together = [[client.call("buffer.read", buffer=h)["data"] for h in handles] for handles, _ in sent]
    alone = []
    for handles, values in sent:
        for handle, name in zip(handles, entries, strict=True):
            client.call("buffer.write", buffer=handle, data=run.arrays()[name].tobytes())
        client.call("dispatch", module=module, args=handles, scalars=values, launch=run.launch)
        alone.append([client.call("buffer.read", buffer=h)["data"] for h in handles])
    assert together == alone
    assert len({tuple(result) for result in together}) > 1, "the scalar that differs shows in the results"


def test_scalars_in_a_buffer_of_their_own_are_no_argument(client: RawClient) -> None:
    case = by_name("tvm026_ubo_20_mixed")
    assert case.tvm is not None
    module = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["module"]
    run = case.runs[0]
    handles = [
        client.call("buffer.create", data=run.arrays()[e.array].tobytes())["buffer"]
        for e in run.entries
        if e.kind == "storage"
    ]
    values = [s["value"] for s in run.scalars]
    for args, given, word in (
        ([*handles, handles[0]], values, "takes 2 entries"),
        (handles, values[:-1], "expected 21 values"),
        (handles, b"\0" * 164, "exactly 168 bytes"),
    ):
        with pytest.raises(RemoteError, match=word) as refused:
            client.call("dispatch", module=module, args=args, scalars=given, launch=run.launch)
        assert refused.value.code == "invalid"
    inline = [{"inout": run.arrays()[e.array].tobytes()} for e in run.entries if e.kind == "storage"]
    access = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["kernels"][case.entry]["bindings"]
    args: list[Any] = [
        entry if "write" in b["access"] else {"in": entry["inout"]} for entry, b in zip(inline, access, strict=True)
    ]
    words = b"".join(run.arrays()[e.array].tobytes() for e in run.entries if e.kind == "uniform").ljust(168, b"\0")
    outputs = [
        client.call("dispatch", module=module, args=args, scalars=given, launch=run.launch)["outputs"]
        for given in (values, words)
    ]
    assert outputs[0] == outputs[1]
    written = [e.array for e, b in zip(run.entries, access, strict=False) if "write" in b["access"]]
    run.check({**{n: a.tobytes() for n, a in run.arrays().items()}, **dict(zip(written, outputs[0], strict=True))})


def test_launch_values(client: RawClient) -> None:
    """S4: one for each tag; 0 counts as 1; thread extents are the work group's; too many groups are an error."""
    case = by_name("tvm026_grid3d")
    assert case.tvm is not None
    device = client.welcome["devices"][client.welcome["device"]]
    most = device["limits"]["maxComputeWorkGroupCount"][0]
    loaded = client.call("module.load", tvm=case.file(case.tvm["bytes"]))
    run = case.runs[0]
    groups, threads = run.launch[:3], run.launch[3:]
    assert threads == loaded["kernels"][case.entry]["local_size"]
    for launch, word in (
        ([*groups], "expected 6 integers"),
        ([*run.launch, 1], "expected 6 integers"),
        ([*groups, threads[0] + 1, *threads[1:]], "threadIdx.x"),
        ([most + 1, *run.launch[1:]], str(most)),
        ([-1, *run.launch[1:]], "-1"),
        ([2**31, *run.launch[1:]], str(2**31)),
    ):
        with pytest.raises(RemoteError) as refused:
            launched(client, loaded["module"], case, run, launch=launch, **scalars(run))
        assert refused.value.code == "invalid"
        assert word in refused.value.message
    one = launched(client, loaded["module"], case, run, launch=[1, 1, 1, *threads], **scalars(run))
    zero = launched(client, loaded["module"], case, run, launch=[0, 0, 0, *threads], **scalars(run))
    none = launched(client, loaded["module"], case, run, grid=[0], **scalars(run))
    assert one == zero != none
    assert none == {name: array.tobytes() for name, array in run.arrays().items()}


def test_a_module_without_tags_takes_no_launch(client: RawClient) -> None:
    case = by_name("tvm026_scale_dyn_i64")
    module = client.call("module.load", spirv=case.spirv)["module"]
    with pytest.raises(RemoteError, match="no launch tags") as refused:
        launched(client, module, case, case.runs[0], launch=[1, 1], scalars=case.runs[0].push)
    assert refused.value.code == "invalid"


def test_repeated_launches_are_checked_the_same(client: RawClient) -> None:
    """The short way for launches that come again: other values, wrong values, both of grid and launch."""
    case = by_name("tvm026_scale_dyn_i64")
    assert case.tvm is not None
    module = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["module"]
    run = case.runs[0]
    arrays = run.arrays()
    names = [e.array for e in run.entries]
    handles = [client.call("buffer.create", data=arrays[n].tobytes())["buffer"] for n in names]
    common = {"module": module, "args": handles, "scalars": [s["value"] for s in run.scalars]}
    for _ in range(3):
        client.call("dispatch", **common, launch=run.launch)
    run.check({n: client.call("buffer.read", buffer=h)["data"] for n, h in zip(names, handles, strict=True)})
    for wrong in ({"launch": [*run.launch, 1]}, {"launch": run.launch, "grid": [1]}, {}, {"launch": [1, 999_999]}):
        with pytest.raises(RemoteError) as refused:
            client.call("dispatch", **common, **wrong)
        assert refused.value.code == "invalid"


def test_broken_modules_are_refused(client: RawClient) -> None:
    good = by_name("tvm026_scale_dyn_i64").file("tvm026_scale_dyn_i64.tvm.bin")
    for data in (b"", good[:-1], good + b"\0", good.replace(b"vulkan", b"vulkbn", 1)):
        with pytest.raises(RemoteError, match="at byte") as refused:
            client.call("module.load", tvm=data)
        assert refused.value.code == "invalid"
    with pytest.raises(RemoteError, match="no module for Vulkan is in it; it holds _lib") as refused:
        client.call("module.load", tvm_library=library([("_lib", b""), ("cuda", b"")]))
    assert refused.value.code == "unsupported"
    assert client.call("ping") == {}


def test_a_library_of_several_modules(client: RawClient) -> None:
    """One module with all kernels, and saved as such; a name twice is an error."""
    cases = [by_name("tvm021_scale_dyn_i64"), by_name("tvm021_grid3d")]
    parts = [case.file(case.tvm["bytes"]) for case in cases if case.tvm]
    for newer in (True, False):
        blob = library([("_lib", b""), *(("vulkan", part) for part in parts)], newer)
        loaded = client.call("module.load", tvm_library=blob)
        assert list(loaded["kernels"]) == [case.entry for case in cases]
        saved = client.call("module.save", module=loaded["module"], format="tvm")["data"]
        again = client.call("module.load", tvm=saved)
        assert again["kernels"] == loaded["kernels"]
        for case in cases:
            run = case.runs[0]
            run.check(launched(client, loaded["module"], case, run, launch=run.launch, **scalars(run)))
            run.check(launched(client, again["module"], case, run, launch=run.launch, **scalars(run)))
        with pytest.raises(RemoteError, match="twice") as refused:
            client.call("module.load", tvm_library=library([("vulkan", parts[0])] * 2, newer))
        assert refused.value.code == "invalid"


def test_spirv_is_saved_for_tvm_where_its_scalars_fit(client: RawClient) -> None:
    case = by_name("tvm026_mixed_scalars")  # its shader alone, as any SPIR-V module
    loaded = client.call("module.load", spirv=case.spirv)
    saved = client.call("module.save", module=loaded["module"], format="tvm")["data"]
    again = client.call("module.load", tvm=saved)
    kernel = again["kernels"][case.entry]
    assert kernel["bindings"] == loaded["kernels"][case.entry]["bindings"]
    assert kernel["launch_param_tags"] == ["blockIdx.x", "blockIdx.y", "blockIdx.z"]
    for run in case.runs:
        run.check(launched(client, again["module"], case, run, launch=list(run.grid), **scalars(run)))
    file = client.call("module.save", module=loaded["module"], format="tvm_file")
    assert client.call("module.load", tvm_file=file["data"], tvm_meta=file["meta"])["kernels"] == again["kernels"]
    for name, word in (("glsl_push_mixed", "scalar"), ("glsl_desc_array", "binding")):
        other = by_name(name)
        module = client.call("module.load", spirv=other.spirv, entry=other.entry)["module"]
        with pytest.raises(RemoteError, match=word) as refused:
            client.call("module.save", module=module, format="tvm")
        assert refused.value.code == "unsupported"


def test_all_forms_and_layouts_are_in_the_corpus() -> None:
    assert {case.tvm["form"] for case in TVM_CORPUS if case.tvm} == {"newer", "older", "oldest"}
    assert {form for case in TVM_CORPUS for form in forms(case)} == {"bytes", "file", "library"}
