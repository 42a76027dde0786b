"""`vkqueue inspect`: offline, by this machine's drivers, by the daemon; with and without other projects' tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkqueue.cli import inspect as command
from vkqueue.cli.local import ProbeResult
from vkqueue.cli.module_file import generator_name
from vkqueue.kernels import validate

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests/corpus"
AXPY = ROOT / "vkqueue/cli/kernels/axpy.spv"

DEVICE = {
    "index": 0, "uuid": "00" * 16, "name": "card", "type": "discrete", "driver": "d 1", "api_version": "1.3.0",
    "memory_bytes": 3 << 30, "error": None, "features": {}, "limits": {"maxComputeWorkGroupInvocations": 1024},
}  # fmt: skip


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither spirv-dis nor spirv-val is installed."""
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a program of the test's."""

    def install(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setattr(shutil, "which", lambda asked: str(tmp_path / asked) if asked == name else None)

    return install


class TestOffline:
    def test_what_a_kernel_takes(self, vkqueue: Callable[..., Any], no_tools: None) -> None:
        report = vkqueue("inspect", "--offline", AXPY, "--json").json
        kernel = report["kernels"]["main"]
        assert [b["access"] for b in kernel["bindings"]] == ["read", "read_write"]
        assert [b["dtype"] for b in kernel["bindings"]] == ["float32", "float32"]
        assert [(s["name"], s["type"]) for s in kernel["scalars"]] == [("n", "uint32"), ("k", "float32")]
        assert kernel["devices"] == [] and report["form"] == "spirv"
        assert report["modules"][""] == {
            "spirv_version": "1.3", "generator": "shaderc (glslang) 11", "bytes": AXPY.stat().st_size,
            "spirv_val": None,
        }  # fmt: skip

    def test_for_people(self, vkqueue: Callable[..., Any], no_tools: None) -> None:
        ended = vkqueue("inspect", "--offline", CORPUS / "dxc/dxc_typed_atomics.spv")
        assert ended.code == 0
        for words in ("written by DXC", "spirv-val is not installed", "work group 4 x 4 x 4", "int64 (8 B)",
                      "member of A", "float32[3]", "Float64 Int64 Shader"):  # fmt: skip
            assert words in ended.out
        ended = vkqueue("inspect", "--offline", CORPUS / "glslang/glsl_localsizeid_1d.spv")
        assert "(set by specialization constants)" in ended.out and "FACTOR" in ended.out

    def test_tvm(self, vkqueue: Callable[..., Any], no_tools: None) -> None:
        file = ROOT / "tests/corpus_tvm/0.20/tvm020_softmax_3k.vulkan"
        report = vkqueue("inspect", "--offline", file, "--kernel", "softmax_kernel", "--json").json
        assert list(report["kernels"]) == list(report["modules"]) == ["softmax_kernel"]
        assert "TVM launch parameters: blockIdx.x threadIdx.x" in vkqueue("inspect", "--offline", file).out

    def test_a_name_cannot_drive_the_terminal(
        self, vkqueue: Callable[..., Any], no_tools: None, tmp_path: Path
    ) -> None:
        data = (CORPUS / "dxc/dxc_saxpy.spv").read_bytes()
        assert data.count(b"saxpy\0\0\0") >= 1
        (tmp_path / "m.spv").write_bytes(data.replace(b"saxpy\0\0\0", b"sa\x1b[1m\0\0"))
        out = vkqueue("inspect", "--offline", tmp_path / "m.spv").out
        assert "kernel sa\\x1b[1m" in out and "\x1b" not in out

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            ([AXPY, "--kernel", "mian"], "vkqueue: not_found: the module has no kernel 'mian'; it has main"),
            ([ROOT / "pyproject.toml"], "vkqueue: invalid: SPIR-V: "),
            ([CORPUS / "llvm-spirv/refuse_opencl_spirv.spv"], "vkqueue: unsupported: the module is written for OpenCL"),
        ],
    )
    def test_errors(self, vkqueue: Callable[..., Any], words: list[object], text: str) -> None:
        ended = vkqueue("inspect", "--offline", *words)
        assert ended.code == 1 and ended.err.startswith(text) and ended.err.count("\n") == 1


class TestDevices:
    def test_this_machines_say_why_not(
        self, vkqueue: Callable[..., Any], no_tools: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = {**DEVICE, "index": 1, "error": "lost"}
        found = ProbeResult("ok", "", (DEVICE, other))
        monkeypatch.setattr("vkqueue.cli.local.probe_devices", lambda environ: found)
        ended = vkqueue("inspect", CORPUS / "glslang/refuse_workgroup_too_big.spv")  # and no daemon answers
        assert ended.code == 0
        assert "device 0 (card) of this machine: does not run it: the work group of 1024 x 1024 x 1 has" in ended.out
        assert "device 1 (card) of this machine: does not run it: the device cannot be used: lost" in ended.out
        assert "device 0 (card) of this machine: runs it" in vkqueue("inspect", "--local", AXPY).out

    def test_none(self, vkqueue: Callable[..., Any], no_tools: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vkqueue.cli.local.probe_devices", lambda environ: ProbeResult("no_loader", "none"))
        ended = vkqueue("inspect", AXPY)
        assert ended.code == 0 and "no device of this machine to ask; see `vkqueue doctor`" in ended.out

    def test_the_daemon_has_the_last_word(self, vkqueue: Callable[..., Any], no_tools: None, fake: Any) -> None:
        """The fake one takes no SPIR-V."""
        report = vkqueue("inspect", AXPY, "--socket", fake.path, "--json").json
        assert report["devices_of"] == "fake/1"
        assert report["kernels"]["main"]["devices"] == [
            {"index": 0, "name": "NumPy", "unsupported": "no SPIR-V: the first word is no magic number"}
        ]

    def test_a_socket_that_is_named_has_to_answer(self, vkqueue: Callable[..., Any]) -> None:
        assert vkqueue("inspect", AXPY, "--socket", "/nonexistent/s").code == 1


class TestTools:
    def test_our_own_listing(self, vkqueue: Callable[..., Any], no_tools: None) -> None:
        assert "OpEntryPoint GLCompute" in vkqueue("inspect", "--offline", "--asm", AXPY).out

    def test_spirv_dis_listing(self, vkqueue: Callable[..., Any], tool: Callable[[str, str], None]) -> None:
        tool("spirv-dis", 'test "$1" = --no-color && echo listing')
        assert vkqueue("inspect", "--offline", "--asm", AXPY, "--json").json["asm"] == {"": "listing\n"}

    def test_one_that_fails_is_replaced(self, vkqueue: Callable[..., Any], tool: Callable[[str, str], None]) -> None:
        tool("spirv-dis", "echo too new >&2; exit 1")
        assert "OpEntryPoint GLCompute" in vkqueue("inspect", "--offline", "--asm", AXPY).out

    def test_advice(self, vkqueue: Callable[..., Any], tool: Callable[[str, str], None]) -> None:
        tool("spirv-val", 'echo "error: $1 $2" >&2; exit 1')
        out = vkqueue("inspect", "--offline", AXPY).out
        assert "spirv-val (advice only) says: error: --target-env vulkan1.3" in out
        tool("spirv-val", "exit 0")
        assert "spirv-val finds no fault" in vkqueue("inspect", "--offline", AXPY).out

    def test_an_environment_that_it_is_too_old_for(self, tool: Callable[[str, str], None]) -> None:
        tool("spirv-val", 'case "$*" in *vulkan1.9*) echo "Unrecognized target environment" >&2; exit 1;; esac')
        assert validate.spirv_val(b"", "1.9.1") == (True, "")

    def test_one_that_hangs(self, tool: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(validate, "_TIMEOUT_S", 0.1)
        tool("spirv-val", "exec sleep 20")
        assert validate.spirv_val(b"", "1.3.0") == (False, "spirv-val took longer than 0.1 s")


def test_generators() -> None:
    assert generator_name(13 << 16 | 11) == "shaderc (glslang) 11"
    assert generator_name(28) == "naga"
    assert generator_name(999 << 16) == "tool 999"


def test_the_verdict_leaves_room_for_specialization() -> None:
    """A work group that is too large by its defaults may be made smaller."""
    from vkqueue.kernels.reflect import analyse

    kernel = analyse((CORPUS / "glslang/glsl_localsizeid_1d.spv").read_bytes())["kernels"]["main"]
    limits = {"maxComputeWorkGroupInvocations": 8}
    device = {**DEVICE, "limits": limits, "features": {"maintenance4": True}}
    assert command.verdict(kernel, device) is None
