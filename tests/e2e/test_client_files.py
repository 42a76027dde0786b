"""`gpu.load` of every kind of file, and `gpu.compile`, on a real daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Case, by_name
from support.daemon import Daemon
from support.elf import shared_object

import vkqueue

pytestmark = pytest.mark.gpu

SOURCE = """\
#version 450
#extension GL_GOOGLE_include_directive : enable
#include "lib/scale.glsl"
layout(local_size_x = 64) in;
layout(binding = 0) buffer Data { float data[]; } x;
layout(push_constant) uniform P { uint n; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) x.data[i] = scale(x.data[i]); }
"""


def run_tvm(case: Case, module: vkqueue.Module) -> None:
    """All runs of a case through the Python client, scalars and launch values in TVM's order."""
    kernel = module[case.entry]
    for run in case.runs:
        arrays = run.arrays()
        with_arrays = {name: module._client.array(array) for name, array in arrays.items()}
        args = [with_arrays[e.array] for e in run.entries if e.kind == "storage"]
        scalars: dict[str, Any] = {"scalars": [s["value"] for s in run.scalars]} if run.scalars else {}
        kernel(*args, launch=run.launch, **scalars)
        run.check({name: array.numpy() for name, array in with_arrays.items()})


def test_files(daemon: Daemon, tmp_path: Path) -> None:
    plain, scalars, uniform = (by_name(f"tvm021_{n}") for n in ("grid3d", "scale_dyn_i64", "ubo_20_mixed"))
    with vkqueue.connect(daemon.path) as gpu:
        for case in (plain, scalars, uniform):
            for module in (
                gpu.load(case.path.parent / case.tvm["file"]),
                gpu.load(case.path.parent / case.tvm["bytes"]),
                gpu.load(case.file(case.tvm["bytes"])),
            ):
                run_tvm(case, module)
                assert module.save().data == gpu.load(module.save().data).save().data
        module = gpu.load(plain.path.parent / plain.tvm["bytes"])
        for format in ("tvm", "tvm_file"):
            module.save(format).write(tmp_path / "saved.vulkan")
            run_tvm(plain, gpu.load(tmp_path / "saved.vulkan"))
        newer = by_name("tvm026_scale_dyn_i64")
        for case, symbol in ((scalars, "__tvm_ffi_library_bin"), (newer, "__tvm_ffi__library_bin")):
            (tmp_path / "net.so").write_bytes(shared_object(symbol, case.file(case.tvm["library_bin"])))
            module = gpu.load(tmp_path / "net.so")
            assert module.name == "net"
            run_tvm(case, module)
        assert gpu.load(plain.path.parent / plain.doc["spv"]).kernel.name == plain.entry


def test_sources(start: Callable[..., Daemon], tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "scale.glsl").write_text("float scale(float x) { return 3 * x; }\n")
    (tmp_path / "triple.comp").write_text(SOURCE)
    daemon = start(validation=False)
    with vkqueue.connect(daemon.path) as gpu:
        module = gpu.load(tmp_path / "triple.comp")
        assert (module.name, list(module)) == ("triple", ["main"])
        values = np.arange(100, dtype=np.float32)
        assert np.array_equal(module.kernel(values, n=100, elements=100), 3 * values)
        made = gpu.compile(
            SOURCE, includes={"lib/scale.glsl": "float scale(float x) { return F * x; }"}, defines={"F": 0.5}
        )
        assert np.array_equal(made.kernel(x=values, n=100, elements=100), values / 2)
        with pytest.raises(vkqueue.errors.CompileError, match=r"source\.comp:3.*scale\.glsl"):
            gpu.compile(SOURCE, "glsl")
