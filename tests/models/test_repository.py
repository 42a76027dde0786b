"""Directories of models: what is there, what is chosen, what is refused, and that one broken model hides no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.errors import InvalidError, NotFoundError, VkqueueError
from vkqueue.models import repository
from vkqueue.models.repository import Found, Repository, read_model
from vkqueue.models.safetensors import write
from vkqueue.models.source import Weight

CONFIG = """\
[[kernel]]
name = "twice"
file = "twice.comp"
[[kernel]]
name = "built"
file = "built.spv"
entry = "run"
[weights]
file = "w.safetensors"
"""


def add(root: Path, name: str, config: str = "", versions: tuple[int, ...] = (1,), **files: bytes) -> Path:
    """A model's folder; `files` are by names whose dots are written `__`, and `/` as `___`."""
    model = root / name
    for version in versions:
        (model / str(version)).mkdir(parents=True)
    model.mkdir(exist_ok=True)
    (model / "config.toml").write_text(config)
    for file, data in files.items():
        path = model / file.replace("___", "/").replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return model


def complete(root: Path, name: str = "net") -> Path:
    model = add(root, name, CONFIG, (1, 2), twice__comp=b"void main() {}", built__spv=b"\3\2\x23\7")
    write(model / "1" / "w.safetensors", {"a": Weight("U8", (1,), b"1")})
    write(model / "w.safetensors", {"a": Weight("U8", (1,), b"0")})
    return model


def test_files_come_from_the_version_first(tmp_path: Path) -> None:
    model = complete(tmp_path)
    source = Repository(tmp_path).read("net", 1)
    assert (source.name, source.version, source.directory) == ("net", 1, model.resolve())
    assert bytes(source.weights["a"].data) == b"1"
    assert bytes(Repository(tmp_path).read("net").weights["a"].data) == b"0"  # version 2 has none of its own
    twice, built = source.kernels["twice"], source.kernels["built"]
    assert (twice.language, twice.entry, twice.code) == ("glsl", None, b"void main() {}")
    assert (built.language, built.entry, built.code) == ("spirv", "run", b"\3\2\x23\7")
    assert built.path == str(model.resolve() / "built.spv")
    assert source.config["weights"] == {"file": "w.safetensors"}


def test_a_configuration_of_any_editor(tmp_path: Path) -> None:
    """With a byte order mark, and with any line ends."""
    model = complete(tmp_path)
    plain = Repository(tmp_path).read("net").config
    path = model / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert Repository(tmp_path).read("net").config == plain


def test_languages_by_the_end_of_the_name(tmp_path: Path) -> None:
    names = {"a.spv": "spirv", "b.comp": "glsl", "c.glsl": "glsl", "d.HLSL": "hlsl", "e.slang": "slang"}
    config = "".join(f'[[kernel]]\nname = "{n[0]}"\nfile = "{n}"\n' for n in names)
    model = add(tmp_path, "net", config)
    for name in names:
        (model / name).write_text("code")
    kernels = read_model(model).kernels
    assert {f"{name}": kernels[name[0]].language for name in names} == names
    add(tmp_path, "odd", '[[kernel]]\nname = "a"\nfile = "a.cl"\n', a__cl=b"")
    with pytest.raises(InvalidError, match=r"a\.cl: expected a file that ends in one of \.spv, \.comp"):
        read_model(tmp_path / "odd")


def test_includes_come_along(tmp_path: Path) -> None:
    model = add(
        tmp_path, "net", '[[kernel]]\nname = "k"\nfile = "k.comp"\n',
        k__comp=b'#include "lib/a.glsl"\n', lib___a__glsl=b"int a;",
    )  # fmt: skip
    assert read_model(model).kernels["k"].includes == {"lib/a.glsl": "int a;"}
    (tmp_path / "secret").write_text("s")
    (model / "lib/a.glsl").unlink()
    (model / "lib/a.glsl").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidError, match="outside"):
        read_model(model)


def test_a_model_without_version_folders_is_version_1(tmp_path: Path) -> None:
    add(tmp_path, "net", "", ())
    assert Repository(tmp_path).scan() == [Found("net", (1,))]
    assert read_model(tmp_path / "net").version == 1


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        ("", (11,)),
        ("latest = {}", (11,)),
        ("latest = { num_versions = 2 }", (9, 11)),
        ("latest = { num_versions = 9 }", (2, 9, 11)),
        ("all = {}", (2, 9, 11)),
        ("specific = { versions = [9, 2, 9] }", (2, 9)),
    ],
)
def test_policies(tmp_path: Path, policy: str, selected: tuple[int, ...]) -> None:
    model = add(tmp_path, "net", f"version_policy = {{ {policy} }}" if policy else "", (2, 9, 11))
    for name in ("0", "01", "-1", "x", "1e3", "9999999999"):  # no versions
        (model / name).mkdir()
    (model / "7").write_text("a file")
    assert Repository(tmp_path).scan() == [Found("net", selected)]
    assert read_model(model).version == selected[-1]
    assert read_model(model, 2).version == 2  # by name also one that is not selected
    with pytest.raises(NotFoundError, match="no version 7; it has 2, 9, 11"):
        read_model(model, 7)


@pytest.mark.parametrize(
    "policy",
    ["3", "{}", "{ latest = 1 }", "{ latest = { num_versions = 0 } }", "{ latest = { num_versions = true } }",
     "{ latest = { n = 1 } }", "{ all = {}, latest = {} }", "{ all = { x = 1 } }", "{ specific = { versions = [] } }",
     "{ specific = { versions = [0] } }", "{ specific = { versions = ['1'] } }", "{ newest = {} }"],
)  # fmt: skip
def test_policies_that_are_none(tmp_path: Path, policy: str) -> None:
    add(tmp_path, "net", f"version_policy = {policy}")
    (found,) = Repository(tmp_path).scan()
    assert found.versions == ()
    assert "version_policy: expected {latest = {num_versions = 1}}" in found.reason


def test_a_version_that_the_policy_names_has_to_be_there(tmp_path: Path) -> None:
    add(tmp_path, "net", "version_policy = { specific = { versions = [1, 4] } }")
    (found,) = Repository(tmp_path).scan()
    assert "no folder of version 4" in found.reason


def test_one_broken_model_hides_no_other(tmp_path: Path) -> None:
    complete(tmp_path)
    add(tmp_path, "broken", "name = ")
    add(tmp_path, "renamed", 'name = "other"')
    (tmp_path / "bare").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "spaced name").mkdir()
    (tmp_path / "README").touch()
    add(tmp_path, "latin", "")
    (tmp_path / "latin" / "config.toml").write_bytes(b"name = '\xe4'")
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "config.toml").write_text("#" * (repository.MAX_CONFIG_BYTES + 1))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.toml").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.toml").write_text("a = " + "[" * 100_000)
    found = {model.name: model for model in Repository(tmp_path).scan()}
    assert found.pop("net") == Found("net", (2,))
    assert {name: model.versions for name, model in found.items()} == dict.fromkeys(found, ())
    for name, reason in {
        "broken": "no TOML",
        "renamed": "name is 'other', the folder's 'renamed'",
        "bare": "there is no",
        "spaced name": "cannot be a model's name",
        "latin": "no TOML",
        "long": "has over 1048576 bytes",
        "folder": "is no file",
        "deep": "no TOML",
    }.items():
        assert reason in found.pop(name).reason
    assert not found


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="repository of models cannot be read"):
        Repository(tmp_path / "absent").scan()
    with pytest.raises(NotFoundError, match="no model 'net'"):
        Repository(tmp_path).read("net")
    with pytest.raises(NotFoundError, match="there is no folder"):
        read_model(tmp_path / "net")
    for name in ("..", ".", "", "a/b", "/etc", "a\0", "-x", "é", "a" * 129):
        with pytest.raises(InvalidError, match="cannot be a model's name"):
            Repository(tmp_path).read(name)


def test_a_name_of_its_own_outside_of_a_repository(tmp_path: Path) -> None:
    add(tmp_path, "v3-final", 'name = "net"')
    assert read_model(tmp_path / "v3-final").name == "net"
    add(tmp_path, "bad", 'name = "../net"')
    with pytest.raises(InvalidError, match="cannot be a model's name"):
        read_model(tmp_path / "bad")


@pytest.mark.parametrize(
    "name", ["../w", "/etc/passwd", "a/../../w", ".", "./w", "a//w", "", "a\\u0000", "..", "1/../w"]
)
def test_paths_that_could_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "w").write_bytes(b"")
    add(tmp_path, "net", f'[weights]\nfile = "{name}"\n', w=b"")
    with pytest.raises(InvalidError, match="expected a path below the model's folder"):
        read_model(tmp_path / "net")


def test_links_within_are_followed_and_others_are_not(tmp_path: Path) -> None:
    root, outside = tmp_path / "models", tmp_path / "outside.safetensors"
    weights = {"a": Weight("U8", (1,), b"1")}
    root.mkdir()
    write(outside, weights)
    write(root / "shared.safetensors", weights)
    model = add(root, "net", '[weights]\nfile = "w.safetensors"\n')
    link = model / "1" / "w.safetensors"

    link.symlink_to("../../shared.safetensors")  # in the repository, outside of the model
    assert Repository(root).read("net").weights.keys() == {"a"}
    with pytest.raises(InvalidError, match="is a link to .*shared.safetensors, outside of"):
        read_model(model)

    for target in (outside, "../../../outside.safetensors"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(InvalidError, match="is a link to .*outside.safetensors, outside of"):
            Repository(root).read("net")

    for target in ("nothing", "w.safetensors"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(NotFoundError, match="cannot be opened"):
            Repository(root).read("net")

    link.unlink()
    (model / "1").rmdir()
    (model / "1").symlink_to(tmp_path)  # a version that is a link
    write(tmp_path / "w.safetensors", weights)
    with pytest.raises(InvalidError, match="outside of"):
        Repository(root).read("net")


def test_a_model_may_be_a_link(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    complete(tmp_path, "net")
    (root / "net").symlink_to("../net")
    assert Repository(root).scan() == [Found("net", (2,))]
    assert Repository(root).read("net", 1).weights.keys() == {"a"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("kernel = 1", "write [[kernel]]"),
        ("kernel = [1]", "a kernel needs name"),
        ("[[kernel]]\nfile = 'a'", "a kernel needs name"),
        ("[[kernel]]\nname = 'a'", "[[kernel]] 1 'a': file: expected a path below"),
        ("[[kernel]]\nname = 'a'\nfile = 'absent.comp'", "there is no 'absent.comp' in "),
        ("[[kernel]]\nname = 'a'\nfile = '1'", "expected a file that ends in"),
        ("[[kernel]]\nname = 'a'\nfile = 'a.spv'\nentry = 1", "entry: expected"),
        ("[[kernel]]\nname = 'a'\nfile = 'a.spv'\n" * 2, "the name is there twice"),
        ("[[kernel]]\nname = 'a'\nfile = 'f.spv'", "is no file"),
        ("[[kernel]]\nname = 'a'\nfile = 'f.comp'", "is no file of at most"),
        ("[[kernel]]\nname = 'a'\nfile = 'latin.comp'", "has to be UTF-8"),
        ("weights = 'w'", "write [weights]"),
        ("[weights]\nfile = 'a.spv'", "no safetensors file"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, config: str, message: str) -> None:
    model = add(tmp_path, "net", config, a__spv=b"x", latin__comp=b"\xe4")
    (model / "f.spv").mkdir()
    (model / "f.comp").mkdir()
    with pytest.raises(VkqueueError) as caught:
        read_model(model)
    assert message in caught.value.message
    assert str(model) in caught.value.message


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(tmp_path)

    def refuse(*args: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotFoundError, match="Permission denied"):
        Repository(tmp_path).read("net")
    (found,) = Repository(tmp_path).scan()
    assert "Permission denied" in found.reason


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = complete(tmp_path)
    monkeypatch.setattr(repository, "MAX_CODE_BYTES", 3)
    with pytest.raises(InvalidError, match="at most 3 bytes"):
        read_model(model)
    monkeypatch.setattr(repository, "MAX_VERSIONS", 1)
    with pytest.raises(InvalidError, match="has 2 versions"):
        read_model(model)
    add(tmp_path, "more")
    monkeypatch.setattr(repository, "MAX_MODELS", 1)
    with pytest.raises(InvalidError, match="has 2 folders"):
        Repository(tmp_path).scan()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["a", "w", "..", "all", "k.comp"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "file", "entry", "versions", "latest", "all"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(["kernel", "weights", "version_policy", "name"]), VALUES, max_size=3),
    st.integers(0, 2),
)
def test_any_configuration(tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], version: int) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    if not root.exists():
        add(root, "net", "", (1, 2), w=b"", k__comp=b"")
    (root / "net" / "config.toml").write_text("".join(f"{k} = {_toml(v)}\n" for k, v in config.items()))
    (found,) = Repository(root).scan()
    assert bool(found.versions) != bool(found.reason)
    try:
        source = Repository(root).read("net", version or None)
    except VkqueueError as error:
        assert error.message
    else:
        assert source.version in (1, 2)
        assert all(os.path.dirname(kernel.path).startswith(str(root)) for kernel in source.kernels.values())


def _toml(value: Any) -> str:
    match value:
        case None:
            return '""'
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, int) else f'"{value}"'
