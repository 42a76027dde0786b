"""`vkqueue compile`, and source files in a module's place: what is included, messages, the daemon's compilers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkqueue.cli import COMMANDS
from vkqueue.cli import compile as command
from vkqueue.cli.sources import language_of, read_source
from vkqueue.errors import InvalidError, UnsupportedError
from vkqueue.kernels.reflect import analyse

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "vkqueue/cli/kernels"

SOURCE = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/one.glsl"
#ifndef MORE
#define MORE 0
#endif
layout(local_size_x = 8) in;
layout(binding = 0) buffer B { int v[]; };
void main() { v[gl_GlobalInvocationID.x] = ONE + TWO + THREE + MORE; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source whose includes include others: of their own folder, and of one that has to be named."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a.comp").write_text(SOURCE)
    (tmp_path / "lib/one.glsl").write_text('#define ONE 1\n#include "two.glsl"\n# include <three.glsl>\n')
    (tmp_path / "lib/two.glsl").write_text('#define TWO 2\n#ifndef ONE\n#include "one.glsl"\n#endif\n')
    (tmp_path / "elsewhere/three.glsl").write_text("#define THREE 3\n")
    return tmp_path


def no_compiler(*args: Any, **how: Any) -> None:
    raise UnsupportedError("language: no compiler for glsl is installed here", {"language": "glsl"})


class TestReading:
    def test_what_is_included(self, folder: Path) -> None:
        source = read_source(str(folder / "a.comp"), "glsl", [str(folder / "elsewhere")])
        assert set(source.includes) == {"lib/one.glsl", "lib/two.glsl", "three.glsl"}
        assert set(read_source(str(folder / "a.comp"), "glsl").includes) == {"lib/one.glsl", "lib/two.glsl"}

    def test_modules_of_slang(self, tmp_path: Path) -> None:
        (tmp_path / "a.slang").write_text('import lib.two_parts;\n__include "x.slang";\n#include "y.h"\nimport gone;\n')
        (tmp_path / "lib").mkdir()
        for name in ("lib/two-parts.slang", "x.slang", "y.h"):
            (tmp_path / name).write_text("")
        source = read_source(str(tmp_path / "a.slang"), "slang")
        assert set(source.includes) == {"lib/two-parts.slang", "x.slang", "y.h"}

    def test_nothing_above_the_folder_is_taken(self, folder: Path) -> None:
        (folder / "lib/up.comp").write_text('#include "../lib/one.glsl"\n#include "/etc/hostname"\n')
        assert read_source(str(folder / "lib/up.comp"), "glsl").includes == {}

    def test_other_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.comp").write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidError, match="UTF-8"):
            read_source(str(tmp_path / "a.comp"), "glsl")

    def test_languages(self) -> None:
        assert [language_of(name) for name in ("a.comp", "a.GLSL", "a.hlsl", "a.slang", "a.spv")] == [
            "glsl", "glsl", "hlsl", "slang", None,
        ]  # fmt: skip
        assert language_of("a.txt", "hlsl") == "hlsl"


@pytest.fixture
def glsl() -> None:
    """A compiler of this machine."""
    if not any(map(shutil.which, ("glslc", "glslangValidator", "glslang"))):
        (pytest.fail if "CI" in os.environ else pytest.skip)("no GLSL compiler")


@pytest.mark.usefixtures("glsl")
class TestCompilers:
    def test_a_file_is_written(self, vkqueue: Callable[..., Any], folder: Path) -> None:
        ended = vkqueue("compile", folder / "a.comp", "-I", folder / "elsewhere")
        assert ended.code == 0, ended.err
        assert list(analyse((folder / "a.spv").read_bytes())["kernels"]) == ["main"]
        assert ended.out == f"{folder}/a.spv: {(folder / 'a.spv').stat().st_size:,} bytes; kernels: main\n"

    def test_macros_and_targets(self, vkqueue: Callable[..., Any], folder: Path) -> None:
        words = ["-I", folder / "elsewhere", "-o", folder / "x", "--target-env", "spv1.4", "--json"]
        plain = vkqueue("compile", folder / "a.comp", *words).json
        report = vkqueue("compile", folder / "a.comp", *words, "-D", "MORE=v[0]").json
        assert report["bytes"] > plain["bytes"]
        assert report["ok"] and report["output"] == str(folder / "x") and report["kernels"] == ["main"]
        assert analyse((folder / "x").read_bytes())["spirv_version"] == [1, 4]

    def test_the_compilers_messages(self, vkqueue: Callable[..., Any], folder: Path) -> None:
        words = ["compile", folder / "a.comp", "-I", folder / "elsewhere", "-D", "MORE=undeclared"]
        ended = vkqueue(*words)
        assert ended.code == 1
        assert ended.err.startswith(f"vkqueue: compile: {folder}/a.comp\n{folder}/a.comp:")
        assert "'undeclared'" in ended.err and not (folder / "a.spv").exists()
        assert vkqueue(*words, "--json").json["error"]["code"] == "compile"

    def test_a_source_can_be_inspected(self, vkqueue: Callable[..., Any]) -> None:
        report = vkqueue("inspect", "--offline", KERNELS / "axpy.comp", "--json").json
        assert [s["name"] for s in report["kernels"]["main"]["scalars"]] == ["n", "k"]


def test_a_language_that_is_not_known(vkqueue: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    ended = vkqueue("compile", tmp_path / "a.txt")
    assert ended.code == 2 and "give --language" in ended.err


class TestWithoutACompiler:
    @pytest.fixture(autouse=True)
    def none_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(command, "compile_here", no_compiler)

    def test_and_without_a_daemon(self, vkqueue: Callable[..., Any], folder: Path) -> None:
        ended = vkqueue("compile", folder / "a.comp")
        assert ended.code == 1
        assert ended.err == "vkqueue: unsupported: language: no compiler for glsl is installed here\n"

    def test_the_daemon_is_asked(self, vkqueue: Callable[..., Any], folder: Path, fake: Any) -> None:
        ended = vkqueue("compile", folder / "a.comp", "--socket", fake.path, "-D", "X")
        assert ended.code == 1 and "undeclared identifier" in ended.err
        ((_, sent),) = [entry for entry in fake.log if entry[0] == "module.load"]
        assert sent["defines"] == {"X": "1"} and set(sent["includes"]) == {"lib/one.glsl", "lib/two.glsl"}

    def test_spirv_is_taken_from_tvms_form(
        self, vkqueue: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved = ROOT / "tests/corpus_tvm/0.21/tvm021_half_axpy_vec4.vulkan"
        meta = saved.with_suffix(".tvm_meta.json").read_text()

        class Gpu:
            def __enter__(self) -> Gpu:
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def compile(self, *args: Any, **how: Any) -> Gpu:
                return self

            def save(self, form: str) -> Any:
                assert form == "tvm_file"
                return type("Saved", (), {"data": saved.read_bytes(), "meta": meta})

        monkeypatch.setattr("vkqueue.client.sync.connect", lambda *args, **how: Gpu())
        ended = vkqueue("compile", folder / "a.comp", "-o", folder / "x.spv")
        assert ended.code == 0, ended.err
        assert (folder / "x.spv").read_bytes() == saved.with_suffix(".spv").read_bytes()


def test_no_command_needs_vulkan_to_tell_how_it_is_used() -> None:
    """Rule 33."""
    code = (
        "import sys; sys.modules['vulkan'] = None\n"
        "from vkqueue.cli import COMMANDS, group\n"
        "for name in COMMANDS: group.main([name, '--help'], 'vkqueue', standalone_mode=False)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: vkqueue ") == len(COMMANDS)
