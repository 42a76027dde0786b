"""What the clients read themselves: libraries of TVM's, source files with what they include."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import by_name
from support.elf import shared_object
from support.tvm import library

from vkqueue.client.elf import SYMBOLS, library_bytes
from vkqueue.client.module import load_params, read_module
from vkqueue.errors import InvalidError
from vkqueue.source_file import read_source

BLOB = library([("_lib", b"")])


@pytest.mark.parametrize("symbol", SYMBOLS)
@pytest.mark.parametrize("dynamic", [True, False])
def test_an_exported_library(symbol: str, dynamic: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.so"
    path.write_bytes(shared_object(symbol, BLOB + b"padding", dynamic=dynamic))
    assert library_bytes(path) == BLOB
    assert read_module(path) == (BLOB, None, "net")
    assert load_params(path, None, None) == ({"tvm_library": BLOB, "name": "net"}, "net")
    assert load_params(BLOB, "f", "x") == ({"tvm_library": BLOB, "entry": "f", "name": "x"}, "x")


def test_a_library_from_a_linker(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    case = by_name("tvm026_scale_dyn_i64")
    blob = case.file(case.tvm["library_bin"])
    source = tmp_path / "blob.c"
    values = ",".join(map(str, blob))
    source.write_text(f"const unsigned char {SYMBOLS[0]}[{len(blob)}] = {{{values}}};\nint other = 3;\n")
    built = tmp_path / "lib.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-s", "-o", built, source], check=True)
    assert library_bytes(built) == blob


@pytest.mark.parametrize(
    "data, text",
    [
        (b"\x7fELF", "too few"),
        (shared_object("printf", BLOB), "none of the symbols"),
        (shared_object(SYMBOLS[0], BLOB, section=0), "none of the symbols"),
        (shared_object(SYMBOLS[0], BLOB, section=9), "in no section"),
        (shared_object(SYMBOLS[0], BLOB, address=0x0FFF), "outside of its section"),
        (shared_object(SYMBOLS[0], BLOB, address=0x1000 + len(BLOB) - 4), "outside of its section"),
        (shared_object(SYMBOLS[0], BLOB, size=9), f"take {len(BLOB)} bytes, 9 are there"),
        (shared_object(SYMBOLS[0], BLOB[:-1], size=0), f"take {len(BLOB)} bytes, {len(BLOB) - 1} are there"),
        (b"\x7fELF\1\1" + shared_object(SYMBOLS[0], BLOB)[6:], "64 bits"),
        (shared_object(SYMBOLS[0], BLOB)[:-1], "section headers"),
    ],
)
def test_broken_libraries(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "net.so"
    path.write_bytes(data)
    with pytest.raises(InvalidError, match=text):
        read_module(path)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
def test_mutated_libraries(changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = bytearray(shared_object(SYMBOLS[1], BLOB))
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "mutated.so"
    path.write_bytes(data[: len(data) - cut])
    try:
        found = library_bytes(path)
    except InvalidError as error:
        assert error.message.startswith(str(path))
    else:
        assert len(found) == 8 + int.from_bytes(found[:8], "little") <= len(data)


def test_a_source_with_its_includes(tmp_path: Path) -> None:
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    top = '#include "lib/a.glsl"\n#include <missing.h>\n  # include "../outside.h"\n'
    files = {
        "k.comp": top,
        "lib/a.glsl": '#include "deep/b.glsl"\n#include "a.glsl"\n',
        "lib/deep/b.glsl": '#include "lib/c.glsl"\n',
        "lib/c.glsl": "float c;\n",
        "lib/unused.glsl": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path.parent / "outside.h").write_text("")
    found = read_source(tmp_path / "k.comp", "glsl")
    assert found.text == top
    assert found.includes == {n: files[n] for n in ("lib/a.glsl", "lib/deep/b.glsl", "lib/c.glsl")}
    params, title = load_params(str(tmp_path / "k.comp"), "main", None)
    assert (params["language"], params["name"], title, params["includes"]) == ("glsl", "k", "k", found.includes)


def test_slang_imports(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name, text in {
        "k.slang": 'import lib.my_part;\n__include "rest.slang";\nimport "lib/x";\n',
        "lib/my-part.slang": "",
        "rest.slang": "implementing k;",
    }.items():
        (tmp_path / name).write_text(text)
    assert set(read_source(tmp_path / "k.slang", "slang").includes) == {"lib/my-part.slang", "rest.slang"}


def test_a_source_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "k.hlsl").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidError, match=r"k\.hlsl: source text has to be UTF-8"):
        load_params(tmp_path / "k.hlsl", None, None)
    with pytest.raises(FileNotFoundError):
        load_params(tmp_path / "none.comp", None, None)
