"""Source text through a real daemon: the corpus' own sources give its results, faults are the compiler's words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.test_corpus import arguments, scalars, skip_unless_runnable
from support.cases import Case, of_kind
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError

from vkqueue.kernels.source import slang_library

pytestmark = pytest.mark.gpu

AXPY = """\
#version 450
#extension GL_GOOGLE_include_directive : enable
#include "ops.glsl"
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { float x[]; } xs;
layout(binding = 1) buffer Y { float y[]; } ys;
layout(push_constant) uniform P { uint n; float k; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) ys.y[i] = axpy(k, xs.x[i], ys.y[i]) * SCALE; }
"""
OPS = "float axpy(float k, float x, float y) { return k * x + y; }\n"


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all: how descriptors are bound has no part in this."""
    running = Daemon(tmp_path_factory.mktemp("compiling"))
    yield running
    assert running.stop() == 0
    assert not running.complaints(), "\n".join(running.complaints())[:4000]


@pytest.fixture
def client(compiling: Daemon) -> Iterator[RawClient]:
    with compiling.client() as client:
        yield client


def options(case: Case) -> dict[str, Any]:
    """Parameters of `module.load` that do what the case's compiler was told."""
    told = case.doc["producer"]["options"]
    found: dict[str, Any] = {}
    if match := re.search(r"--target-env[= ](\S+)", told):
        found["target_env"] = match[1]
    if case.doc["source"]["language"] in ("HLSL", "Slang"):
        found["entry"] = match[1] if (match := re.search(r"(?:-E|-e|-entry) (\S+)", told)) else case.entry
    return found


def from_sources() -> list[Any]:
    """Cases whose source the daemon can compile to a module with the same interface."""
    found = []
    for case in of_kind("run"):
        language = case.doc["source"]["language"].lower() if case.doc["source"] else ""
        told = case.doc["producer"]["options"]
        usual = case.producer in ("glslc", "glslang") or language == "slang"
        if language in ("glsl", "hlsl", "slang") and usual and not re.search("--source-entrypoint|-layout", told):
            found.append(pytest.param(case, language, id=case.name))
    return found


@pytest.mark.parametrize("case, language", from_sources())
def test_the_sources_of_the_corpus(case: Case, language: str, client: RawClient) -> None:
    skip_unless_runnable(case, client)
    if language == "slang" and slang_library() is None:
        pytest.skip("slangpy is not installed")
    how = options(case)
    loaded = client.call("module.load", source=case.source, language=language, **how)
    [kernel] = loaded["kernels"] if "entry" in how or language != "slang" else [case.entry]
    reflected = loaded["kernels"][kernel]
    assert reflected["local_size"] == case.reflection["local_size"]
    for run in case.runs:
        arrays = run.arrays()
        handles = {name: client.call("buffer.create", data=array.tobytes())["buffer"] for name, array in arrays.items()}
        args = arguments(run, lambda name, kind, handles=handles: handles[name])
        client.call("dispatch", module=loaded["module"], kernel=kernel, args=args, grid=list(run.grid), **scalars(run))
        run.check({name: client.call("buffer.read", buffer=handle)["data"] for name, handle in handles.items()})


def test_includes_and_defines(client: RawClient) -> None:
    how = {"language": "glsl", "includes": {"ops.glsl": OPS}, "defines": {"SCALE": 2}}
    loaded = client.call("module.load", source=AXPY, **how)
    kernel = loaded["kernels"]["main"]
    assert [b["access"] for b in kernel["bindings"]] == ["read", "read_write"]
    assert [b["name"] for b in kernel["bindings"]] == ["xs", "ys"]
    x, y = b"\0\0\x80\x3f" * 64, b"\0\0\0\x40" * 64  # 1.0, 2.0
    answer = client.call(
        "dispatch", module=loaded["module"], args=[{"in": x}, {"inout": y}], grid=[1], scalars={"n": 64, "k": 3.0}
    )
    assert answer["outputs"] == [b"\0\0\x20\x41" * 64]  # (3 * 1 + 2) * 2
    again = client.call("module.load", source=AXPY, **how)
    assert again["kernels"] == loaded["kernels"]
    other = client.call("module.load", source=AXPY, **{**how, "defines": {"SCALE": 4}})
    outputs = client.call(
        "dispatch", module=other["module"], args=[{"in": x}, {"inout": y}], grid=[1], scalars={"n": 64, "k": 3.0}
    )["outputs"]
    assert outputs == [b"\0\0\xa0\x41" * 64]


def test_faults_are_the_compilers_words(client: RawClient) -> None:
    how: dict[str, Any] = {"language": "glsl", "defines": {"SCALE": 1}}
    for source, includes, word in (
        (AXPY, {"ops.glsl": OPS.replace("k * x", "k * z")}, r"ops.glsl:1: .*'z'"),
        (AXPY.replace("xs.x[i]", "xs.q[i]"), {"ops.glsl": OPS}, r"source.comp:8: .*q"),
        (AXPY, {}, "ops.glsl"),
        (AXPY.replace("ops.glsl", "/etc/hostname"), {}, r"source.comp:3: error: '#include'.*outside of `includes`"),
        (AXPY.replace("ops.glsl", "../../etc/hostname"), {}, "outside of `includes`"),
    ):
        with pytest.raises(RemoteError, match=word) as failed:
            client.call("module.load", source=source, includes=includes, **how)
        assert failed.value.code == "compile"
        assert "/tmp" not in failed.value.message
    for wrong, word in (
        ({"includes": {"../ops.glsl": OPS}}, "includes"),
        ({"includes": {"/ops.glsl": OPS}}, "includes"),
        ({"defines": {"A B": 1}}, "defines"),
        ({"target_env": "vulkan9.9"}, "target_env"),
    ):
        with pytest.raises(RemoteError, match=word) as failed:
            client.call("module.load", source=AXPY, **{**how, **wrong})
        assert failed.value.code == "invalid"
    with pytest.raises(RemoteError, match="nope") as failed:
        client.call("module.load", source=AXPY, includes={"ops.glsl": OPS}, entry="nope", **how)
    assert failed.value.code == "not_found"
    assert client.call("ping") == {}


def test_work_behind_a_compilation_waits_for_it(client: RawClient) -> None:
    how = {"language": "glsl", "includes": {"ops.glsl": OPS}, "defines": {"SCALE": 7}}
    client.send("module.load", source=AXPY, **{"as": 1}, **how)
    x = b"\0\0\x80\x3f" * 64
    dispatch = client.send("dispatch", module=1, args=[{"in": x}, {"inout": bytes(256)}], grid=[1], scalars=[64, 1.0])
    assert client.wait(dispatch)["outputs"] == [b"\0\0\xe0\x40" * 64]
    with pytest.raises(RemoteError, match="not_found"):
        client.send("module.load", source="nothing", **{"as": 2}, language="glsl")
        client.call("dispatch", module=2, args=[], grid=[1])


def test_without_compilers(start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start(env={"PATH": str(tmp_path)}, validation=False)
    with daemon.client() as client:
        for language, package in (("glsl", "glslc"), ("hlsl", "dxc"), ("slang", "slangpy")):
            if language == "slang" and slang_library() is not None:
                continue
            with pytest.raises(RemoteError, match=package) as failed:
                client.call("module.load", source=AXPY, language=language)
            assert failed.value.code == "unsupported"


def test_a_compiler_that_hangs_or_crashes(start: Callable[..., Daemon], tmp_path: Path) -> None:
    """Rule 44, and each source is compiled once: compilers of the test's own write down that they ran."""
    tools = tmp_path / "tools"
    tools.mkdir()
    script = tools / "glslc"
    script.write_text(
        "#!/bin/sh\n"
        'for source; do :; done; cat $source > "$TMPDIR/copy"\n'
        'case "$(cat "$TMPDIR/copy")" in *crash*) kill -SEGV $$;; *hang*) while :; do :; done;; esac\n'
        "echo source.comp:1: no such word >&2\nexit 1\n"
    )
    script.chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    daemon = start(env={"PATH": path}, validation=False, config="[helper]\ntimeout_s = 1.5\n")
    with daemon.client() as client:
        for text, word in (("crash", "SIGSEGV"), ("hang", "longer than 1.5 s|signal SIGXCPU"), ("x", "no such word")):
            with pytest.raises(RemoteError, match=word) as failed:
                client.call("module.load", source=f"#version 450\n{text}", language="glsl")
            assert failed.value.code == "compile"
        assert client.call("ping") == {}
