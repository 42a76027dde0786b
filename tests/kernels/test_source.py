"""Sources: what is asked of which compiler, what is refused before one runs, and that none opens others' files."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from vkqueue.errors import CompileError, InvalidError, UnsupportedError
from vkqueue.kernels import confine, source
from vkqueue.kernels.source import Source, check, compile_source, define_text

GLSL = """\
#version 450
#extension GL_GOOGLE_include_directive : enable
#include "lib/twice.glsl"
layout(local_size_x = WIDTH) in;
layout(binding = 0) buffer X { float x[]; };
layout(push_constant) uniform P { float scale; uint n; };
void main() { if (gl_GlobalInvocationID.x < n) x[gl_GlobalInvocationID.x] = twice(scale); }
"""
HLSL = """\
#include "lib/twice.glsl"
RWStructuredBuffer<float> x;
[numthreads(WIDTH, 1, 1)]
void fill(uint3 id : SV_DispatchThreadID) { x[id.x] = twice(3.0); }
"""
LIBRARY = {
    "lib/twice.glsl": '#include "deep/two.glsl"\nfloat twice(float v) { return v * TWO; }\n',
    "lib/deep/two.glsl": "#define TWO 2.0\n",
}
COMPILERS = [name for name in ("glslc", "glslangValidator", "dxc") if shutil.which(name)]


@pytest.fixture
def one_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    only = {language: tuple(tool for tool in tools if tool[0] == name) for language, tools in source.TOOLS.items()}
    monkeypatch.setattr(source, "TOOLS", only)
    return name


each_compiler = pytest.mark.parametrize("one_compiler", ["glslc", "glslangValidator"], indirect=True)


def compiled(text: str, language: str = "glsl", **how: Any) -> dict[str, Any]:
    if not COMPILERS:
        pytest.skip("no compiler is installed")
    return compile_source(text.encode(), language, **how)


# What compilers are told


def test_command_lines() -> None:
    text = Source("", "hlsl", "fill", {"A": "1", "B": "x y"}, {}, "vulkan1.2")
    assert source._glslc("/bin/glslc", text, "/o.spv") == [
        "/bin/glslc", "-x", "hlsl", "-fshader-stage=compute", "--target-env=vulkan1.2", "-fauto-bind-uniforms",
        "-I../include", "-fentry-point=fill", "-DA=1", "-DB=x y", "-o", "/o.spv", "source.hlsl",
    ]  # fmt: skip
    assert source._glslang("/bin/glslang", text, "/o.spv")[-9:] == [
        "-I../include", "-D", "-e", "fill", "-DA=1", "-DB=x y", "-o", "/o.spv", "source.hlsl"
    ]  # fmt: skip
    assert source._dxc("/bin/dxc", text, "/o.spv") == [
        "/bin/dxc", "-spirv", "-T", "cs_6_6", "-E", "fill", "-fspv-target-env=vulkan1.2", "-I", "../include", "-DA=1",
        "-DB=x y", "-Fo", "/o.spv", "source.hlsl",
    ]  # fmt: skip
    assert source.slang_arguments(Source("", "slang", target_env="spv1.4")) == [
        "-target", "spirv", "-profile", "spirv_1_4", "-fvk-use-entrypoint-name"
    ]  # fmt: skip
    spirv = Source("", "glsl", target_env="spv1.4")
    assert "--target-env=vulkan1.2 --target-spv=spv1.4" in " ".join(source._glslc("glslc", spirv, "o"))
    assert "--target-env spirv1.4" in " ".join(source._glslang("glslang", spirv, "o"))
    assert "-fspv-target-env=vulkan1.1spirv1.4" in source._dxc("dxc", Source("", "hlsl", target_env="spv1.4"), "o")


def test_defines() -> None:
    values = {"A": 3, "B": True, "C": 0.5, "D": "x + 1", "_e": False}
    assert [define_text(name, value) for name, value in values.items()] == ["3", "1", "0.5", "x + 1", "0"]
    for name, value in (
        ("1A", 1),
        ("A B", 1),
        ("A=1\n#x", 1),
        ("F(x)", 1),
        ("", 1),
        ("A", "1\n#include <x>"),
        ("A", "\0"),
    ):
        with pytest.raises(InvalidError, match="defines"):
            define_text(name, value)


@pytest.mark.parametrize("target", ["", "vulkan", "vulkan2.0", "vulkan1.5", "spv1.7", "spv1.0 -o /x", "opengl"])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(InvalidError, match="vulkan1.0 to vulkan1.4"):
        check(Source("", "glsl", target_env=target))


BAD_NAMES = ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a//b", "./a", "a/", "a\\b", "a\nb", "a\0", "a" * 256]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a/" * 16 + "a"])
def test_names_of_includes(name: str) -> None:
    with pytest.raises(InvalidError, match="includes"):
        check(Source("", "glsl", includes={name: ""}))


def test_other_faults_before_any_compiler() -> None:
    for wrong, text in (
        (Source("", "glsl", includes={"a": "", "a/b": ""}), "a text and a folder"),
        (Source("", "glsl", includes={str(i): "" for i in range(1025)}), "at most 1024"),
        (Source("a\0b", "glsl"), "zero byte"),
        (Source("", "slang", includes={"a": "\0"}), "zero byte"),
        (Source("", "hlsl", entry="-o"), "identifier"),
    ):
        with pytest.raises(InvalidError, match=text):
            check(wrong)


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/hostname"',
        "#include </etc/hostname>",
        '  #  include "../../x"',
        '#include "a/../../../x"',
        '#include "~/x"',
        r'#include "\x2fetc/hostname"',
        r'#include "..\x"',
        "#include NAME",
        '#include\\\n "/etc/hostname"',
        '#in\\\nclude "/etc/hostname"',
        '# /* a */ include /* b\n*/ "/etc/hostname"',
        '/* // */ #include "/etc/hostname"',
        '#include_next "/etc/hostname"',
        '#import "/etc/hostname"',
        '%:include "/etc/hostname"',
        '??=include "/etc/hostname"',
        '#include "/etc/hostname',
    ],
)
def test_includes_of_other_files_are_refused(line: str) -> None:
    for text, includes in ((f"\n{line}\n", {}), ("", {"a.glsl": f"\n{line}\n"})):
        for language in ("glsl", "hlsl"):
            with pytest.raises(CompileError, match=rf"^({Source('', language).file_name}|a.glsl):2: error: '#include'"):
                check(Source(text, language, includes=includes))


def test_includes_of_texts_are_not() -> None:
    text = '#include "a.glsl"\n#include <lib/b..c.glsl>\n// #include "/etc/hostname"\nint included; // include "/x"\n'
    for language in ("glsl", "hlsl", "slang"):
        check(Source(text, language, includes={"a.glsl": ""}))


# What compilers do


@each_compiler
@pytest.mark.parametrize("language, text, entry", [("glsl", GLSL, None), ("hlsl", HLSL, "fill")])
def test_compiled(one_compiler: str, language: str, text: str, entry: str | None) -> None:
    found = compiled(text, language, entry=entry, defines={"WIDTH": 32}, includes=LIBRARY, target_env="vulkan1.0")
    assert found["analysis"]["spirv_version"] == [1, 0]
    kernel = found["analysis"]["kernels"][entry or "main"]
    assert kernel["local_size"] == [32, 1, 1]
    assert [b["access"] for b in kernel["bindings"]] == ["write"]
    assert base64.b64decode(found["spirv"])[:4] == b"\3\2\x23\7"
    newer = compiled(text, language, entry=entry, defines={"WIDTH": 32}, includes=LIBRARY, target_env="spv1.5")
    # glslc cannot write newer SPIR-V from HLSL; it does what it can when it is alone.
    assert newer["analysis"]["spirv_version"] == [1, 3] if (one_compiler, language) == ("glslc", "hlsl") else [1, 5]


@each_compiler
def test_messages_name_file_and_line_and_no_folder(one_compiler: str) -> None:
    wrong = {**LIBRARY, "lib/deep/two.glsl": "#define TWO 2.0\n\nfloat broken() { return }\n"}
    for text, includes, place in (
        (GLSL.replace("twice(scale)", "thrice(scale)"), LIBRARY, "source.comp:7:"),
        (GLSL, wrong, "lib/deep/two.glsl:3:"),
        (GLSL, {}, "lib/twice.glsl"),
        ("#version 450\nno GLSL", {}, "source.comp:2:"),
        ("// #version 450", {}, "source.comp:1: error: '#version' is missing"),
        ("", {}, "source.comp:1: error: '#version' is missing"),
    ):
        with pytest.raises(CompileError) as error:
            compiled(text, defines={"WIDTH": 1}, includes=includes)
        assert place in error.value.message
        assert "tmp" not in error.value.message and ".." not in error.value.message


@each_compiler
@pytest.mark.parametrize("language, text", [("glsl", GLSL), ("hlsl", HLSL)])
def test_no_compiler_reaches_other_files(
    one_compiler: str, language: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the check of the text miss one: where the kernel can, it keeps a compiler inside."""
    if not landlock_works():
        pytest.skip("this kernel has no Landlock")
    secret = Path.home() / f".vkqueue-test-{os.getpid()}"
    secret.write_text("float twice(float v) { return v; }\n")
    try:
        outside = text.replace("lib/twice.glsl", "../" * 8 + str(secret)[1:])
        monkeypatch.setattr(source, "_check_directives", lambda name, text: None)
        with pytest.raises(CompileError, match="include"):
            compiled(outside, language, entry="fill", defines={"WIDTH": 1})
        monkeypatch.setattr(confine, "restrict_files", lambda readable, writable: True)
        assert compiled(outside, language, entry="fill", defines={"WIDTH": 1})  # it is the kernel that kept it
    finally:
        secret.unlink()


def landlock_works() -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if confine.restrict_files(["/usr"], []) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("language, package", [("glsl", "glslang-tools"), ("hlsl", "dxc"), ("slang", "slangpy")])
def test_a_missing_compiler(language: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=package) as error:
        compile_source(b"", language)
    assert error.value.data == {"language": language}


# How they run


def script(body: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys\n{body}"]


def test_how_a_compiler_ends() -> None:
    python = confine.python_folders()
    with confine.workspace() as folder:
        for body, how, said in (
            ("print('fine')", "", "fine\n"),
            ("sys.stderr.write('no'); sys.exit(3)", "exit status 3", "no"),
            ("os.kill(os.getpid(), 11)", "signal SIGSEGV", ""),
            ("print(os.environ.get('HOME'), os.environ['TMPDIR'], os.getcwd())", "", f"None {folder} {folder}\n"),
            ("print('x' * 200_000)", "", "x" * confine.MAX_MESSAGES),
        ):
            assert confine.run(script(body), folder, folder, python) == (how, said)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confine, "MAX_FILE_BYTES", 4096)
            how, said = confine.run(script("os.write(1, b'x' * 9999); os.write(1, b'y')"), folder, folder, python)
            assert len(said) == 4096 and how


def test_folders_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what a helper process left behind that was killed, but not that of one that runs."""
    monkeypatch.setattr(confine.tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / "vkqueue-source-99999999-x"
    other = tmp_path / "vkqueue-source-1-x"
    for path in (dead, other, tmp_path / "else"):
        path.mkdir()
    with confine.workspace() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {p.name for p in tmp_path.iterdir()} == {folder.name, other.name, "else"}
    assert {p.name for p in tmp_path.iterdir()} == {other.name, "else"}


# Slang


def slang(text: str, **how: Any) -> dict[str, Any]:
    if source.slang_library() is None:
        pytest.skip("slangpy is not installed")
    return compile_source(text.encode(), "slang", **how)


SLANG = """\
#include "b.h"
import lib.twice;
RWStructuredBuffer<float> y;
[shader("compute")] [numthreads(WIDTH, 1, 1)]
void fill(uint3 id : SV_DispatchThreadID, uniform float k) { y[id.x] = twice(k) * K; }
[shader("compute")] [numthreads(4, 1, 1)]
void clear(uint3 id : SV_DispatchThreadID) { y[id.x] = 0; }
"""
SLANG_LIBRARY = {"b.h": "#define K 3\n", "lib/twice.slang": "public float twice(float x) { return x * 2; }\n"}


def test_slang() -> None:
    found = slang(SLANG, includes=SLANG_LIBRARY, defines={"WIDTH": 16})
    kernels = found["analysis"]["kernels"]
    assert {name: kernel["local_size"][0] for name, kernel in kernels.items()} == {"fill": 16, "clear": 4}
    assert [s["name"] for s in kernels["fill"]["scalars"]] == ["k"]
    assert found["analysis"]["spirv_version"] == [1, 3]
    one = slang(SLANG, includes=SLANG_LIBRARY, defines={"WIDTH": 16}, entry="clear", target_env="vulkan1.2")
    assert list(one["analysis"]["kernels"]) == ["clear"]
    assert one["analysis"]["spirv_version"] == [1, 5]


def test_slang_faults() -> None:
    for text, how, place in (
        (SLANG.replace("twice(k)", "thrice(k)"), {"includes": SLANG_LIBRARY}, "source.slang:5"),
        (SLANG, {}, "b.h"),
        (SLANG, {"includes": SLANG_LIBRARY, "entry": "nope"}, "nope"),
    ):
        with pytest.raises(CompileError) as error:
            slang(text, defines={"WIDTH": 1}, **how)
        assert place in error.value.message


@pytest.mark.parametrize("how", ['#include "{}"', '#define P "{}"\n#include P', 'import "{}";', '__include "{}";'])
def test_slang_opens_no_files(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.slang"
    secret.write_text("public float twice(float v) { return v; }\n")
    monkeypatch.setattr(confine, "restrict_files", lambda readable, writable: True)
    text = how.format(secret) + '\n[shader("compute")] [numthreads(1,1,1)] void main() { twice(1); }\n'
    with pytest.raises(CompileError, match="secret"):
        slang(text)
    if how.startswith("__include"):
        return  # takes parts of the module itself
    inside = how.format("secret.slang") + '\n[shader("compute")] [numthreads(1,1,1)] void main() { twice(1); }\n'
    assert slang(inside, includes={"secret.slang": secret.read_text()})["spirv"]
