"""`isolation.spirv_val = "strict"`: what spirv-val rejects is refused, although drivers would run it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from support.cases import by_name
from support.daemon import Daemon
from support.rawclient import RemoteError

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(shutil.which("spirv-val") is None and "CI" not in os.environ, reason="spirv-val is not installed")
def test_spirv_val_is_binding_where_it_is_told_to_be(start: Callable[..., Daemon]) -> None:
    running = start(config='[isolation]\nspirv_val = "strict"\n')
    with running.client() as client:
        assert client.call("module.load", spirv=by_name("glsl_axpy_O").spirv)["kernels"]
        rejected = by_name("iree_f16_i8_vec4")  # of every release: NoSignedWrap without its extension
        for _ in range(2):  # nothing of it is remembered as good
            with pytest.raises(RemoteError, match="spirv-val rejects the module") as refused:
                client.call("module.load", spirv=rejected.spirv)
            assert refused.value.code == "invalid"
        tvm = by_name("tvm026_push_16")
        assert client.call("module.load", tvm=tvm.file(tvm.tvm["bytes"]))["kernels"]  # type: ignore[index]
        if shutil.which("glslc"):
            source = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
            assert client.call("module.load", source=source, language="glsl")["kernels"]


def test_spirv_val_only_advises_by_default(start: Callable[..., Daemon]) -> None:
    with start().client() as client:
        assert client.call("module.load", spirv=by_name("iree_f16_i8_vec4").spirv)["kernels"]
