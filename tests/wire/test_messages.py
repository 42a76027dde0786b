"""The table of methods, and what its check says."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from vkqueue.errors import InvalidError, UnknownMethodError, UnsupportedError, VkqueueError
from vkqueue.wire.messages import METHODS, PARAMETER_NAMES, check

FULL: dict[str, list[dict[str, Any]]] = {
    "hello": [{"protocol": 1, "client": "c", "device": 0}],
    "ping": [{}],
    "devices": [{}],
    "stats": [{}],
    "module.load": [
        {"spirv": b"", "entry": "main", "name": "n", "as": 1},
        {"tvm": b"x", "as": 2**31 - 1},
        {"tvm_file": b"x", "tvm_meta": "{}"},
        {"tvm_library": memoryview(b"x")},
        {"source": "void main() {}", "language": "glsl", "defines": {"N": 1, "T": "float", "F": 0.5, "B": True},
         "includes": {"a.h": ""}, "target_env": "vulkan1.1"},
    ],
    "module.unload": [{"module": 1}],
    "module.inspect": [{"module": 1, "format": "spirv-asm"}, {"module": 1, "format": "json"}],
    "module.save": [{"module": 1, "format": "tvm", "layout": "0.24"}, {"module": 1, "format": "tvm_file"}],
    "buffer.create": [{"size": 0, "device": 1, "as": 5}, {"data": b"", "device": 0, "as": 1}, {"size": 2**63 - 1}],
    "buffer.write": [{"buffer": 1, "data": b"x", "offset": 4}],
    "buffer.read": [{"buffer": 1, "offset": 0, "size": 0}],
    "buffer.share": [{"size": 1, "device": 1, "as": 5}],
    "buffer.copy": [{"source": 1, "target": 2, "source_offset": 0, "target_offset": 4, "size": 0}],
    "buffer.free": [{"buffer": -5}],
    "dispatch": [
        {"module": 1, "kernel": "main", "args": [1, [1, 0, 4], {"in": b""}, "left to the plan"],
         "scalars": [1, 0.5, True],
         "grid": [1, 2, 2**32 - 1], "specialization": {"0": 64, "K": 0.5, "B": True}, "priority": -100,
         "deadline_ms": 1, "after": [0, 2**32 - 1], "timing": True, "device": 0, "label": ""},
        {"module": 1, "args": [], "scalars": {"n": 1}, "launch": [], "priority": 100},
        {"module": 1, "args": [], "scalars": b"", "launch": [1, 2, 3, 4, 5], "timing": False},
    ],
    "dispatch_many": [
        {"module": 1, "kernel": "main", "count": 2**32 - 1, "args": [1, {"handles": b""}, "left to the check"],
         "scalars": {"packed": b""}, "grid": {"grids": b""}, "specialization": {"0": 64}, "priority": 1,
         "deadline_ms": 1, "after": [0], "timing": True, "device": 0, "label": ""},
        {"module": 1, "count": 1, "args": [], "scalars": {"columns": {"n": b""}}, "launch": [1]},
        {"module": 1, "count": 1, "args": [], "scalars": b"", "grid": [1]},
    ],
    "graph.create": [
        {"nodes": [{}], "inputs": {"x": 0}, "outputs": {"y": 4}, "temporaries": {"t": 2**63 - 1},
         "scalars": {"n": "left to the check of graphs"}, "device": 0, "as": 1},
    ],
    "graph.launch": [
        {"graph": 1, "buffers": {"x": 1, "y": {"out": 4}}, "scalars": {"n": 1, "k": 0.5, "b": True}, "priority": 1,
         "deadline_ms": 1, "after": [0], "timing": True, "label": ""},
    ],
    "graph.free": [{"graph": 1}],
    "model.load": [
        {"name": "m", "version": 1, "device": 0},
        {"name": "m", "config": {"left": "to the check of models"}, "kernels": [{}], "weights": {"w": b""}},
    ],
    "model.unload": [{"name": "m", "version": 2**31 - 1}],
    "model.infer": [
        {"name": "m", "version": 1, "inputs": {"x": {"shape": [1], "data": b""}}, "outputs": ["y"], "priority": 1,
         "timeout_us": 0, "timing": True},
        {"name": "m", "inputs": {}, "outputs": {"y": None}},
    ],
    "model.list": [{}],
    "model.config": [{"name": "m", "version": 1}],
    "model.statistics": [{"name": "m", "version": 1}, {}],
    "cancel": [{"msgid": 0}],
}  # fmt: skip

REQUIRED = {
    "hello": ["protocol", "client"], "module.unload": ["module"], "module.inspect": ["module", "format"],
    "module.save": ["module", "format"], "buffer.write": ["buffer", "data"], "buffer.read": ["buffer"],
    "buffer.share": ["size"], "buffer.copy": ["source", "target"], "buffer.free": ["buffer"],
    "dispatch": ["module", "args"], "dispatch_many": ["module", "count", "args"], "cancel": ["msgid"],
    "graph.create": ["nodes"], "graph.launch": ["graph"],
    "graph.free": ["graph"],
    "model.load": ["name"], "model.unload": ["name"], "model.infer": ["name", "inputs"], "model.config": ["name"],
}  # fmt: skip


def refused(method: str, params: dict[str, Any]) -> VkqueueError:
    with pytest.raises(VkqueueError) as caught:
        check(method, params)
    return caught.value


def test_the_methods_are_those_of_the_protocol() -> None:
    assert set(METHODS) == set(FULL)
    assert {name for forms in FULL.values() for form in forms for name in form} == PARAMETER_NAMES


@pytest.mark.parametrize("method", FULL)
def test_full_parameters_pass_unchanged(method: str) -> None:
    for params in FULL[method]:
        given = check(method, params)
        assert given == params and given is not params


@pytest.mark.parametrize("method", FULL)
def test_nil_is_the_same_as_leaving_it_out(method: str) -> None:
    params = FULL[method][0]
    absent = {name: None for name in METHODS[method].parameters if name not in params}
    assert check(method, {**params, **absent}) == params


@pytest.mark.parametrize("method", FULL)
def test_an_unknown_parameter_is_named(method: str) -> None:
    error = refused(method, {**FULL[method][0], "gird": None})
    assert isinstance(error, InvalidError)
    assert method in error.message and '"gird"' in error.message
    assert all(name in error.message for name in METHODS[method].parameters)
    assert ('did you mean "grid"?' in error.message) == (method in ("dispatch", "dispatch_many"))


@pytest.mark.parametrize(("method", "name"), [(m, n) for m, names in REQUIRED.items() for n in names])
def test_a_missing_parameter_is_named(method: str, name: str) -> None:
    params = FULL[method][0]
    for without in ({k: v for k, v in params.items() if k != name}, {**params, name: None}):
        error = refused(method, without)
        assert isinstance(error, InvalidError) and error.data == {"parameter": name}
        assert f'needs the parameter "{name}"' in error.message


ANYTHING: list[Any] = [True, 1, 1.0, "s", b"b", [], {}, msgpack.ExtType(1, b""), msgpack.Timestamp(0, 0)]


@pytest.mark.parametrize(("method", "name"), [(m, n) for m, spec in METHODS.items() for n in spec.parameters])
def test_each_type_that_does_not_fit_is_refused_by_name(method: str, name: str) -> None:
    kind = METHODS[method].parameters[name]
    params = next(form for form in FULL[method] if name in form)
    wrong = [value for value in ANYTHING if type(value) not in kind.types]
    assert len(wrong) >= 5
    for value in wrong:
        error = refused(method, {**params, name: value})
        assert isinstance(error, InvalidError) and error.data == {"parameter": name}
        assert f'"{name}" of {method} must be {kind.text}, not ' in error.message


@pytest.mark.parametrize(
    ("method", "name", "values"),
    [
        ("hello", "device", [-1]), ("module.load", "as", [0, -1, 2**31]), ("buffer.create", "as", [0, 2**31]),
        ("buffer.create", "size", [-1, 2**63]), ("buffer.create", "device", [-1]),
        ("buffer.write", "offset", [-1, 2**64 - 1]), ("buffer.read", "offset", [-1]), ("buffer.read", "size", [-1]),
        ("dispatch", "grid", [[], [1, 1, 1, 1]]), ("dispatch", "priority", [-101, 101]),
        ("dispatch", "deadline_ms", [0, -1]), ("dispatch", "device", [-1]), ("cancel", "msgid", [-1, 2**32]),
        ("module.load", "language", ["GLSL", "wgsl"]), ("module.inspect", "format", ["", "text"]),
        ("module.save", "format", ["spirv"]), ("module.save", "layout", ["0.22"]),
    ],
)  # fmt: skip
def test_ranges(method: str, name: str, values: list[Any]) -> None:
    params = next(form for form in FULL[method] if name in form)
    for value in values:
        error = refused(method, {**params, name: value})
        assert isinstance(error, InvalidError) and error.data == {"parameter": name}
        assert METHODS[method].parameters[name].text in error.message


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("dispatch", {"grid": [1, -1]}, '"grid[1]" of dispatch must be an integer from 0 to 4294967295, not the inte'),
        ("dispatch", {"grid": [True]}, '"grid[0]" of dispatch must be an integer from 0 to 4294967295, not the boo'),
        ("dispatch", {"after": [2**32]}, '"after[0]"'),
        ("dispatch", {"specialization": {"K": "x"}}, '"specialization["K"]" of dispatch must be a number or a boolean'),
        ("dispatch", {"priority": 101}, "an integer from -100 to 100, not the integer 101"),
        ("dispatch", {"timing": 1}, "a boolean, not the integer 1"),
    ],
)
def test_entries(method: str, params: dict[str, Any], says: str) -> None:
    assert says in refused(method, {**FULL[method][0], **params}).message


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("module.load", {}, 'exactly one of "spirv"; "tvm"; "tvm_file" with "tvm_meta"; "tvm_library"; "source" with'),
        ("module.load", {"name": "n"}, "it came with none of them"),
        ("module.load", {"spirv": b"", "source": ""}, 'it came with "spirv" and "source"'),
        ("module.load", {"tvm_file": b""}, '"tvm_file" of module.load needs "tvm_meta" (a string) beside it'),
        ("module.load", {"tvm_meta": ""}, '"tvm_meta" of module.load needs "tvm_file"'),
        ("module.load", {"source": ""}, '"source" of module.load needs "language" (one of "glsl", "hlsl", "slang")'),
        ("module.load", {"spirv": b"", "defines": {}}, '"defines" of module.load goes with "source" only'),
        ("module.load", {"spirv": b"", "includes": {}}, '"includes" of module.load goes with "source" only'),
        ("module.load", {"tvm": b"", "target_env": "x"}, '"target_env" of module.load goes with "source" only'),
        ("module.save", {"module": 1, "format": "tvm_file", "layout": "0.20"}, 'goes with "format": "tvm" only'),
        ("buffer.create", {}, 'exactly one of "size"; "data"'),
        ("buffer.create", {"size": 1, "data": b"1"}, 'it came with "size" and "data"'),
        ("dispatch", {"module": 1, "args": []}, 'exactly one of "grid"; "launch"'),
        ("dispatch", {"module": 1, "args": [], "grid": [1], "launch": [1]}, 'it came with "grid" and "launch"'),
    ],
)
def test_what_goes_with_what(method: str, params: dict[str, Any], says: str) -> None:
    error = refused(method, params)
    assert isinstance(error, InvalidError) and says in error.message


def test_an_unknown_method() -> None:
    error = refused("bufer.read", {})
    assert isinstance(error, UnknownMethodError) and 'did you mean "buffer.read"?' in error.message
    assert "did you mean" not in refused("zzz", {}).message


@pytest.mark.parametrize("version", [0, 2, 2**32])
def test_another_version_is_unsupported_whatever_else_comes(version: int) -> None:
    error = refused("hello", {"protocol": version, "later": 1})
    assert isinstance(error, UnsupportedError) and str(version) in error.message and "version 1" in error.message


def test_a_version_that_is_no_integer_is_invalid() -> None:
    assert isinstance(refused("hello", {"protocol": True, "client": ""}), InvalidError)


def test_messages_stay_short_whatever_came() -> None:
    long = "x" * 1_000_000
    for error in (
        refused(long, {}), refused("ping", {long: 1}), refused("buffer.create", {"size": long}),
        refused("dispatch", {**FULL["dispatch"][0], "specialization": {long: ""}}),
    ):  # fmt: skip
        assert len(msgpack.packb(error.to_wire())) < 1000
