"""docs/writing-kernels.md: each axpy in it is called as it stands there, from Python and on the wire."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon

import vkqueue
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.source import slang_library

from .conftest import EXAMPLES, ROOT, Run

DOC = (ROOT / "docs/writing-kernels.md").read_text()
FILES = sorted(p.name for p in (EXAMPLES / "axpy").iterdir() if p.suffix in (".spv", ".bin"))


def blocks(language: str) -> dict[str, str]:
    """File of a module → the code block that calls it."""
    return dict(re.findall(rf"^```{language} (\S+)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL))


def sources(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)


@pytest.fixture
def vectors() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Such that all sums are exact, in halves too."""
    x, y = np.random.default_rng(5).integers(-8, 8, (2, 1000)).astype("float32")
    return x, y


def test_every_module_is_called_in_both_ways() -> None:
    assert sorted(blocks("python")) == sorted(blocks("json")) == FILES


@pytest.mark.gpu
@pytest.mark.parametrize("file", FILES)
def test_from_python(file: str, gpu: vkqueue.Client, vectors: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    x, y = vectors
    scope: dict[str, Any] = {"gpu": gpu, "x": x.copy(), "y": y.copy(), "vkqueue": vkqueue, "struct": struct}
    exec(blocks("python")[file], scope)
    result = scope["result"]
    assert len(result) in (1000, 256)
    assert np.array_equal(result, (y + 2 * x)[: len(result)])


@pytest.mark.gpu
@pytest.mark.parametrize("file", FILES)
def test_on_the_wire(file: str, daemon: Daemon, vectors: tuple[Any, Any]) -> None:
    x, y = vectors
    dtype = "float16" if file.endswith(".bin") else "float32"
    form = "tvm" if file.endswith(".bin") else "spirv"
    with daemon.client() as client:
        client.call("module.load", **{form: (EXAMPLES / "axpy" / file).read_bytes(), "as": 1})
        for handle, vector in ((2, x), (3, y)):
            client.call("buffer.create", data=vector.astype(dtype).tobytes(), **{"as": handle})
        outputs = client.call("dispatch", **json.loads(blocks("json")[file]))["outputs"]
        result = np.frombuffer(outputs[0] if outputs else client.call("buffer.read", buffer=3)["data"], dtype)
    assert len(result) in (1000, 256)
    assert np.array_equal(result, (y + 2 * x)[: len(result)])


@pytest.mark.gpu
def test_the_example_runs_them_all(run: Run, example: Callable[[str], ModuleType]) -> None:
    done = run("axpy/axpy.py", "--describe")
    ways = example("axpy/axpy.py").WAYS
    assert sorted(ways) == FILES
    assert [line.split() for line in done.stdout.splitlines() if re.match(r"axpy\w*\.(spv|bin) ", line)] == [
        [name, "right"] for name in ways
    ]


def test_the_sources_are_those_of_the_files() -> None:
    """But for a file's first lines, which say how it is compiled."""
    for language, names in (
        ("glsl", ["axpy.comp"]),
        ("hlsl", ["axpy_push.hlsl", "axpy_cbuffer.hlsl"]),
        ("slang", ["axpy.slang"]),
        ("c", ["axpy.cl"]),
        ("wgsl", ["axpy.wgsl"]),
    ):
        shown = sources(language)
        assert len(shown) == len(names)
        for text, name in zip(shown, names, strict=True):
            assert (EXAMPLES / "axpy" / name).read_text().endswith(text)


def commands() -> dict[str, list[str]]:
    """Module → the words of the doc's command that makes it, of the compilers that a test's machine may have."""
    found = {}
    for line in "".join(sources("sh")).splitlines():
        words = line.split("#")[0].split()
        if words[0] in ("glslc", "glslangValidator"):
            found[words[-1]] = words
    return found


def test_commands_are_found() -> None:
    assert set(commands()) == {"axpy.spv", "axpy_push.spv"}


@pytest.mark.parametrize("module", commands())
def test_what_is_compiled_is_what_is_shipped(module: str, tmp_path: Path) -> None:
    words = commands()[module]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]}")
    made = tmp_path / module
    subprocess.run([*words[:-1], made], cwd=EXAMPLES / "axpy", check=True, timeout=30, stdout=subprocess.DEVNULL)
    assert analyse(made.read_bytes())["kernels"] == analyse((EXAMPLES / "axpy" / module).read_bytes())["kernels"]


@pytest.mark.gpu
def test_slang_compiles_to_what_is_shipped(run: Run, tmp_path: Path) -> None:
    if slang_library() is None:
        pytest.skip("slangpy is not installed")
    run(sys.executable, "-m", "vkqueue", "compile", EXAMPLES / "axpy/axpy.slang", "-o", "axpy.spv")
    made, shipped = (tmp_path / "axpy.spv", EXAMPLES / "axpy/axpy_slang.spv")
    assert analyse(made.read_bytes())["kernels"] == analyse(shipped.read_bytes())["kernels"]


@pytest.mark.gpu
def test_what_the_doc_says_of_names(gpu: vkqueue.Client, tmp_path: Path) -> None:
    if shutil.which("glslc") is None:
        pytest.skip("no glslc")
    source = EXAMPLES / "axpy/axpy.comp"
    kernels = {}
    for flags in ("-O", "-O -g", "-O0"):
        made = tmp_path / "axpy.spv"
        subprocess.run(["glslc", *flags.split(), source, "-o", made], check=True, timeout=30)
        kernels[flags] = gpu.load(made).kernel
    names = {flags: [p.name for p in (*k.bindings, *k.scalars)] for flags, k in kernels.items()}
    assert names == {"-O": ["", "", "m0", "m1"], "-O -g": ["x", "y", "n", "k"], "-O0": ["x", "y", "n", "k"]}
