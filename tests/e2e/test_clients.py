"""The corpus by the public API, on a real daemon: NumPy arrays by the blocking client, device arrays by the other."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from support.cases import Case, Run, of_kind
from support.daemon import Daemon

import vkqueue
import vkqueue.aio

pytestmark = pytest.mark.gpu


def skip_unless_runnable(case: Case, device: vkqueue.Device) -> None:
    missing = case.missing(device.limits, device.features, device.api_version)
    if missing:
        pytest.skip(f"the device lacks {', '.join(missing)}")
    if case.deviates(device.name):
        pytest.skip(f"{device.name} is known to deviate")


def arguments(run: Run, values: dict[str, Any]) -> list[Any]:
    """A value for each binding, those of descriptor arrays as a list."""
    groups = [[values[e.array] for e in group] for _, group in groupby(run.entries, key=lambda e: (e.set, e.binding))]
    return [group[0] if len(group) == 1 else group for group in groups]


def keywords(run: Run) -> dict[str, Any]:
    given: dict[str, Any] = {"grid": run.grid}
    if run.push is not None:
        given["scalars"] = run.push
    if run.spec:
        given["specialization"] = run.spec
    return given


def fitting(kernel: Any, run: Run, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays, as bytes where the module sees them as smaller elements than the case does."""
    strides = {(b.set, b.binding): b.stride for b in kernel.bindings}
    bare = {e.array for e in run.entries if strides[e.set, e.binding] % arrays[e.array].itemsize}
    return {name: array.reshape(-1).view(np.uint8) if name in bare else array for name, array in arrays.items()}


@pytest.mark.parametrize("case", of_kind("run"), ids=str)
def test_numpy_arrays(case: Case, daemon: Daemon) -> None:
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        assert gpu.device is not None
        skip_unless_runnable(case, gpu.device)
        kernel = gpu.load(case.spirv, entry=case.entry)[case.entry]
        assert list(kernel.local_size) == case.reflection["local_size"]
        for run in case.runs:
            if len({e.array for e in run.entries}) != len(run.entries):
                continue  # an array that is bound twice cannot come back as two results
            arrays = fitting(kernel, run, run.arrays())
            written = {(b.set, b.binding) for b in kernel.bindings if b.written}
            names = [e.array for e in run.entries if (e.set, e.binding) in written]
            # What the kernel leaves as it was is compared too, so its contents are sent: inplace.
            results = kernel(*arguments(run, arrays), **keywords(run), inplace=True)
            assert (results is None) == (not names)
            for name, result in zip(names, results if isinstance(results, tuple) else [results], strict=bool(names)):
                assert result is arrays[name]
            run.check({name: array.tobytes() for name, array in arrays.items()})


@pytest.mark.parametrize("case", of_kind("run", "oob"), ids=str)
def test_device_arrays(case: Case, daemon: Daemon) -> None:
    async def body() -> None:
        async with vkqueue.aio.connect(daemon.path) as gpu:
            skip_unless_runnable(case, gpu.device)
            kernel = (await gpu.load(case.spirv, entry=case.entry))[case.entry]
            for run in case.runs:
                host = fitting(kernel, run, run.arrays())
                arrays = {name: await gpu.array(array) for name, array in host.items()}
                assert await kernel(*arguments(run, arrays), **keywords(run)) is None
                run.check({name: (await array.get()).tobytes() for name, array in arrays.items()})

    asyncio.run(body())


@pytest.mark.parametrize("case", of_kind("run", tvm=True), ids=str)
def test_modules_of_tvm(case: Case, daemon: Daemon) -> None:
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        assert gpu.device is not None
        skip_unless_runnable(case, gpu.device)
        assert case.tvm is not None
        module = gpu.load(case.file(case.tvm["bytes"]))
        kernel = module[case.tvm["function"]]
        for run in case.runs:
            arrays = {name: gpu.array(array.reshape(-1).view(np.uint8)) for name, array in run.arrays().items()}
            entries = run.entries[: len(kernel.bindings)]  # behind them stands the buffer for scalars
            kernel(
                *(arrays[e.array] for e in entries), scalars=[s["value"] for s in run.scalars], launch=run.launch
            )
            run.check({e.array: arrays[e.array].get().tobytes() for e in entries})
        saved = module.save()
        assert gpu.load(saved.data).kernels.keys() == module.kernels.keys()
        assert "OpEntryPoint" in module.inspect()


def test_specialized_work_groups(daemon: Daemon) -> None:
    """`elements` counts in the work groups that the constants make, where these are told."""
    worked, refused = set(), set()
    with vkqueue.connect(daemon.path, timeout=30) as gpu:
        assert gpu.device is not None
        for case in of_kind("run"):
            if not any(run.spec for run in case.runs) or case.missing(
                gpu.device.limits, gpu.device.features, gpu.device.api_version
            ):
                continue
            kernel = gpu.load(case.spirv, entry=case.entry)[case.entry]
            ids = kernel.reflection.local_size_ids
            for run in (run for run in case.runs if run.spec):
                arrays = {name: gpu.array(array) for name, array in fitting(kernel, run, run.arrays()).items()}
                given = keywords(run)
                if ids is None:
                    refused.add(case.name)
                    with pytest.raises(vkqueue.InvalidError, match="give grid="):
                        kernel(*arguments(run, arrays), **{**given, "grid": None, "elements": 1})
                    continue
                worked.add(case.name)
                sizes = [run.spec.get(id, size) for id, size in zip(ids, kernel.local_size, strict=True)]
                groups = [*run.grid, 1, 1][:3]
                given["elements"] = [n * size for n, size in zip(groups, sizes, strict=True)]
                del given["grid"]
                kernel(*arguments(run, arrays), **given)
                run.check({name: array.get().tobytes() for name, array in arrays.items()})
    assert worked >= {"glsl_localsizeid_1d", "glsl_spec_constants"} and refused == {"asm_specop_localsize"}


def test_large_arrays_and_many_launches(daemon: Daemon) -> None:
    with vkqueue.connect(daemon.path, timeout=60) as gpu:
        values = np.random.default_rng(1).random(18 << 20, np.float32)  # 72 MiB: more than a message holds
        array = gpu.array(values)
        assert np.array_equal(array.get(), values)
        [case] = [case for case in of_kind("run") if case.name == "glsl_axpy_10"]
        axpy = gpu.load(case.spirv).kernel
        x, y = gpu.array(np.ones(64, np.float32)), gpu.zeros(64, np.float32)
        with gpu.batch():
            futures = [axpy.submit(x, y, n=64, a=1, elements=64) for _ in range(5000)]
            assert [f.result() for f in futures] == [None] * 5000
        assert y.get()[0] == 5000
        result = axpy(values, values, n=64, a=1, elements=64)  # larger than a message in both directions
        assert np.array_equal(result[:64], 2 * values[:64])
        assert np.array_equal(result[64:], values[64:])
