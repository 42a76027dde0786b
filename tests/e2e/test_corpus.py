"""Every module of the corpus through the socket of a real daemon, by a client that knows only the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from support.cases import Case, Run, of_kind
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

REFUSALS = {
    "bad_bound": "invalid",
    "bad_magic": "invalid",
    "bad_version": "invalid",
    "bad_word_count": "invalid",
    "byte_swapped": "invalid",
    "truncated": "invalid",
    "entry_point_not_found": "not_found",
    "device_address": "unsupported",
    "limit": "unsupported",
    "no_compute_entry_point": "unsupported",
    "unsized_descriptor_array": "unsupported",
    "unsupported_capability": "unsupported",
    "image": "unsupported",
}


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client


def device_of(client: RawClient) -> dict[str, Any]:
    return client.welcome["devices"][client.welcome["device"]]


def skip_unless_runnable(case: Case, client: RawClient) -> None:
    device = device_of(client)
    missing = case.missing(device["limits"], device["features"], device["api_version"])
    if missing:
        pytest.skip(f"the device lacks {', '.join(missing)}")
    if case.deviates(device["name"]):
        pytest.skip(f"{device['name']} is known to deviate")


def arguments(run: Run, entry_of: Callable[[str, str], Any]) -> list[Any]:
    """`args` of a dispatch: one entry for each (set, binding), descriptor arrays gathered."""
    args = []
    for _, group in groupby(run.entries, key=lambda e: (e.set, e.binding)):
        elements = [entry_of(e.array, e.kind) for e in group]
        args.append(elements[0] if len(elements) == 1 else {"array": elements})
    return args


def scalars(run: Run) -> dict[str, Any]:
    given = {} if run.push is None else {"scalars": run.push}
    if run.spec:
        given["specialization"] = {str(id): value for id, value in run.spec.items()}
    return given


@pytest.mark.parametrize("case", of_kind("run", "oob"), ids=str)
def test_results_through_buffers(case: Case, client: RawClient) -> None:
    skip_unless_runnable(case, client)
    loaded = client.call("module.load", spirv=case.spirv, entry=case.entry)
    assert list(loaded["kernels"]) == [case.entry]
    for run in case.runs:
        arrays = run.arrays()
        handles = {name: client.call("buffer.create", data=array.tobytes())["buffer"] for name, array in arrays.items()}
        answer = client.call(
            "dispatch",
            module=loaded["module"],
            kernel=case.entry,
            args=arguments(run, lambda name, kind, handles=handles: handles[name]),
            grid=list(run.grid),
            **scalars(run),
        )
        assert answer == {"outputs": []}
        run.check({name: client.call("buffer.read", buffer=handle)["data"] for name, handle in handles.items()})
        for handle in handles.values():
            client.call("buffer.free", buffer=handle)


@pytest.mark.parametrize("case", of_kind("run"), ids=str)
def test_results_through_transient_entries(case: Case, client: RawClient) -> None:
    """`in` and `inout` in place of buffers; what reflection calls read-only goes in and does not come back."""
    skip_unless_runnable(case, client)
    loaded = client.call("module.load", spirv=case.spirv, entry=case.entry)
    access = {(b["set"], b["binding"]): b["access"] for b in loaded["kernels"][case.entry]["bindings"]}
    for run in case.runs:
        if len({e.array for e in run.entries}) != len(run.entries):
            continue  # one buffer bound twice has no transient form
        arrays = run.arrays()
        written = [e.array for e in run.entries if "write" in access[e.set, e.binding]]

        def entry(name: str, kind: str) -> dict[str, bytes]:
            return {"inout" if name in written else "in": arrays[name].tobytes()}  # noqa: B023

        answer = client.call(
            "dispatch",
            module=loaded["module"],
            args=arguments(run, entry),
            grid=list(run.grid),
            **scalars(run),
        )
        after: dict[str, Any] = dict(zip(written, answer["outputs"], strict=True))
        # What is expected of a buffer that the kernel does not write is that it stays as it was.
        run.check({name: after.get(name, array.tobytes()) for name, array in arrays.items()})


@pytest.mark.parametrize("case", of_kind("refuse"), ids=str)
def test_refusals(case: Case, client: RawClient) -> None:
    assert case.expect_error is not None
    kind = case.expect_error["kind"]
    expected = "invalid" if case.name == "corrupt_header_only" else REFUSALS[kind]
    with pytest.raises(RemoteError) as refused:
        client.call("module.load", spirv=case.spirv, entry=case.entry)
    assert refused.value.code == expected, refused.value
    for word in filter(None, (case.expect_error.get("capability"), case.expect_error.get("limit"))):
        assert word.split(" ")[0] in refused.value.message
    assert client.call("ping") == {}


@pytest.mark.parametrize("case", of_kind("optional"), ids=str)
def test_images_are_refused_by_name(case: Case, client: RawClient) -> None:
    with pytest.raises(RemoteError) as refused:
        client.call("module.load", spirv=case.spirv, entry=case.entry)
    assert refused.value.code == "unsupported"
    assert "image" in refused.value.message.lower()


@pytest.mark.parametrize("case", of_kind("oob"), ids=str)
def test_out_of_range_accesses_leave_neighbours_alone(case: Case, client: RawClient) -> None:
    """Rule 42, with the corpus' own kernels: buffers around those of the launch keep their bytes."""
    skip_unless_runnable(case, client)
    loaded = client.call("module.load", spirv=case.spirv, entry=case.entry)
    guard = bytes(range(256)) * 16
    for run in case.runs:
        arrays = run.arrays()
        fences = [client.call("buffer.create", data=guard)["buffer"]]
        handles = {}
        for name, array in arrays.items():
            handles[name] = client.call("buffer.create", data=array.tobytes())["buffer"]
            fences.append(client.call("buffer.create", data=guard)["buffer"])
        client.call(
            "dispatch",
            module=loaded["module"],
            args=arguments(run, lambda name, kind, handles=handles: handles[name]),
            grid=list(run.grid),
            **scalars(run),
        )
        for fence in fences:
            assert client.call("buffer.read", buffer=fence)["data"] == guard


def test_every_reflected_kernel_says_what_the_corpus_says(client: RawClient) -> None:
    """The reflection that travels: local size and (set, binding) of every runnable module."""
    for case in of_kind("run"):
        device = device_of(client)
        if case.missing(device["limits"], device["features"], device["api_version"]):
            continue
        kernel = client.call("module.load", spirv=case.spirv, entry=case.entry)["kernels"][case.entry]
        assert kernel["local_size"] == case.reflection["local_size"], case
        assert [(b["set"], b["binding"]) for b in kernel["bindings"]] == [
            (b["set"], b["binding"]) for b in case.reflection["bindings"]
        ], case
        assert np.all([b["count"] for b in kernel["bindings"]])
