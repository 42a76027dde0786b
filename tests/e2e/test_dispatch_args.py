"""`args` of a dispatch: every kind of entry, with and without push descriptors, and every way to get one wrong."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from support.e2e import create, kernel, limit, load, read, refused
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu

X = np.arange(64, dtype=np.uint32)
Y = np.full(64, 2, np.uint32)
MIXED = 31 * Y + X + 5


def mix(client: RawClient, x: Any, y: Any, **params: Any) -> Any:
    module = load(client, "mix")
    return client.call("dispatch", module=module, args=[x, y], scalars=[64, 5], grid=[1], **params)


def test_handles(client: RawClient) -> None:
    y = create(client, Y)
    assert mix(client, create(client, X), y) == {"outputs": []}
    assert (read(client, y, np.uint32) == MIXED).all()


def test_ranges(client: RawClient) -> None:
    step = max(limit(client, "minStorageBufferOffsetAlignment"), 256)
    x, y = create(client, bytes(step) + X.tobytes() + bytes(step)), create(client, bytes(2 * step) + Y.tobytes())
    mix(client, [x, step, 256], [y, 2 * step, 256])
    assert (read(client, y, np.uint32)[step // 2 :] == MIXED).all()
    assert not read(client, y, np.uint32)[: step // 2].any()


def test_rule_42_a_range_is_all_that_the_kernel_sees(client: RawClient) -> None:
    """Its length is exact, and what lies around it in the same buffer is out of reach."""
    module = load(client, "ranges")
    x = create(client, np.arange(256, dtype=np.uint32))
    y = create(client, 12)
    for offset, size in ((0, 1024), (0, 16), (256, 20), (512, 512), (256, 116)):
        client.call("dispatch", module=module, args=[[x, offset, size], y], grid=[1])
        first, length, last = read(client, y, np.uint32)
        assert (first, length) == (offset // 4, (size - 16) // 4)
        assert last == (offset + size) // 4 - 1 if length else last == 0
    fill = load(client, "fill")
    z = create(client, b"\xee" * 1024)
    client.call("dispatch", module=fill, args=[[z, 256, 100]], scalars=[7], grid=[4])
    content = read(client, z)
    assert (content[:256] == 0xEE).all()
    assert (content[256:356].view(np.uint32) == np.arange(7, 32)).all()
    assert (content[356:] == 0xEE).all()


def test_in_and_inout(client: RawClient) -> None:
    answer = mix(client, {"in": X.tobytes()}, {"inout": Y.tobytes()})
    assert list(answer) == ["outputs"]
    [output] = answer["outputs"]
    assert (np.frombuffer(output, np.uint32) == MIXED).all()


def test_out_is_zero_filled(client: RawClient) -> None:
    """What the kernel does not write is zero, whatever was in that memory before."""
    module = load(client, "fill")
    for _ in range(5):
        answer = client.call("dispatch", module=module, args=[{"out": 1024}], scalars=[0xFFFFFF], grid=[4])
        assert answer["outputs"][0] != bytes(1024)
    answer = client.call("dispatch", module=module, args=[{"out": 1024}], scalars=[9], grid=[1])
    result = np.frombuffer(answer["outputs"][0], np.uint32)
    assert (result[:64] == np.arange(9, 73)).all()
    assert not result[64:].any()
    assert client.call("dispatch", module=module, args=[{"out": 1024}], scalars=[9], grid=[0]) == {
        "outputs": [bytes(1024)]
    }


def test_what_is_written_to_an_in_is_dropped(client: RawClient) -> None:
    data = Y.tobytes()
    assert mix(client, {"in": X.tobytes()}, {"in": data}) == {"outputs": []}
    assert data == Y.tobytes()


def test_outputs_come_in_the_order_of_args(client: RawClient) -> None:
    module = load(client, "ranges")
    x = X.tobytes()
    answer = client.call("dispatch", module=module, args=[{"in": x}, {"inout": b"\xee" * 16}], grid=[1])
    assert answer["outputs"] == [struct.pack("<4I", 0, 60, 63, 0xEEEEEEEE)]


def test_rule_42_the_length_of_a_transient_entry_is_exact(client: RawClient) -> None:
    module = load(client, "measure")
    for entry, length in (({"in": bytes(4)}, 1), ({"in": bytes(400)}, 100), ({"in": bytes(6)}, 1)):
        answer = client.call("dispatch", module=module, args=[entry, {"out": 4}], grid=[1])
        assert np.frombuffer(answer["outputs"][0], np.uint32)[0] == length


def test_one_buffer_may_appear_several_times(client: RawClient) -> None:
    both = create(client, Y)
    mix(client, both, both)
    assert (read(client, both, np.uint32) == 31 * Y + Y + 5).all()
    step = max(limit(client, "minStorageBufferOffsetAlignment"), 256)
    halves = create(client, X.tobytes() + bytes(step - 256) + Y.tobytes())
    mix(client, [halves, 0, 256], [halves, step, 256])
    assert (read(client, halves, np.uint32)[-64:] == MIXED).all()


def test_a_uniform_block_from_values_bytes_and_buffers(client: RawClient) -> None:
    """In std140, where the vector begins at 16 and each step of the array has 16 bytes."""
    module = load(client, "uniform")
    block = struct.pack("<f12x3f4xi12xi12x", 2.0, 1.0, 2.0, 3.0, 10, 20)
    i = np.arange(16)
    expected = 2.0 * i + np.array([1, 2, 3])[i % 3] + np.array([10, 20])[i % 2]
    aligned = max(limit(client, "minUniformBufferOffsetAlignment"), 256)
    buffer = create(client, bytes(aligned) + block + bytes(64))
    for entry in (
        {"values": {"scale": 2.0, "offset": [1.0, 2, 3.0], "steps": [10, 20]}},
        {"in": block},
        create(client, block),
        [buffer, aligned, 64],
    ):
        answer = client.call("dispatch", module=module, args=[entry, {"out": 64}], grid=[1])
        assert (np.frombuffer(answer["outputs"][0], np.float32) == expected).all(), entry


def test_rule_1_launches_in_flight_have_uniform_values_of_their_own(client: RawClient) -> None:
    module = load(client, "uniform")
    msgids = [
        client.send(
            "dispatch",
            module=module,
            args=[{"values": {"scale": 0, "offset": [n, n, n], "steps": [0, 0]}}, {"out": 64}],
            grid=[1],
        )
        for n in range(200)
    ]
    for n, msgid in enumerate(msgids):
        assert (np.frombuffer(client.wait(msgid)["outputs"][0], np.float32) == n).all()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"scale": 1.0, "offset": [1, 2, 3]},
        {"scale": 1.0, "offset": [1, 2], "steps": [1, 2]},
        {"scale": 1.0, "offset": 5, "steps": [1, 2]},
        {"scale": 1.0, "offset": [1, 2, 3], "steps": [1.5, 2]},
        {"scale": "1", "offset": [1, 2, 3], "steps": [1, 2]},
        {"scale": 1.0, "offset": [1, 2, 3], "steps": [1, 2], "other": 1},
        [1, 2],
        None,
    ],
    ids=repr,
)
def test_wrong_values_are_invalid(any_client: RawClient, values: Any) -> None:
    module = load(any_client, "uniform")
    error = refused(any_client, "dispatch", module=module, args=[{"values": values}, {"out": 64}], grid=[1])
    assert error.code == "invalid"


def test_an_array_of_descriptors(client: RawClient) -> None:
    module = load(client, "array")
    parts = [np.full(8, n, np.uint32) for n in (1, 2, 3)]
    handle = create(client, parts[0])
    step = max(limit(client, "minStorageBufferOffsetAlignment"), 256)
    ranged = create(client, bytes(step) + parts[1].tobytes())
    entries = [handle, [ranged, step, 32], {"in": parts[2].tobytes()}]
    answer = client.call("dispatch", module=module, args=[{"array": entries}, {"out": 32}], grid=[8])
    assert (np.frombuffer(answer["outputs"][0], np.uint32) == 321).all()
    same = client.call("dispatch", module=module, args=[{"array": [handle] * 3}, {"out": 32}], grid=[8])
    assert (np.frombuffer(same["outputs"][0], np.uint32) == 111).all()


@pytest.mark.parametrize(
    "entry",
    [
        [1, 1, 1],
        {"array": []},
        {"array": [{"in": bytes(32)}] * 2},
        {"array": [{"in": bytes(32)}] * 4},
        {"array": {"in": bytes(32)}},
        {"array": [{"in": bytes(32)}] * 3, "in": b""},
        {"array": [{"array": [{"in": bytes(32)}] * 3}] * 3},
        {"in": bytes(32)},
        5,
    ],
    ids=lambda entry: repr(entry)[:50],
)
def test_an_array_has_its_exact_length(any_client: RawClient, entry: Any) -> None:
    module = load(any_client, "array")
    error = refused(any_client, "dispatch", module=module, args=[entry, {"out": 32}], grid=[8])
    assert error.code == "invalid"
    assert "parts" in error.message


def test_an_array_is_for_array_bindings(any_client: RawClient) -> None:
    module = load(any_client, "fill")
    for entry in ({"array": [{"out": 256}]}, {"array": [{"out": 256}] * 2}):
        answer = None
        if len(entry["array"]) == 1:
            answer = any_client.call("dispatch", module=module, args=[entry], scalars=[1], grid=[1])
            assert len(answer["outputs"]) == 1
        else:
            assert refused(any_client, "dispatch", module=module, args=[entry], scalars=[1], grid=[1]).code == "invalid"


@pytest.mark.parametrize(
    "entry",
    [
        None, "1", 1.0, True, b"", [], [1], [1, 0], [1, 0, 4, 5], [1, 0.0, 256], [1, 0, "256"], [True, 0, 256], {},
        {"in": 5}, {"in": "text"}, {"out": -1}, {"out": 1.0}, {"out": True}, {"out": b""}, {"inout": 5},
        {"in": b"", "out": 5}, {"inn": b""}, {"values": {"a": 1}}, {"buffer": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_an_entry_of_no_known_form_is_invalid(any_client: RawClient, entry: Any) -> None:
    x = create(any_client, 256)
    assert x == 1
    module = load(any_client, "mix")
    params = {"module": module, "scalars": [1, 1], "grid": [1]}
    assert refused(any_client, "dispatch", args=[entry, x], **params).code == "invalid"
    assert refused(any_client, "dispatch", args=[x, entry], **params).code == "invalid"
    assert any_client.call("dispatch", args=[x, x], **params) == {"outputs": []}


@pytest.mark.parametrize("args", [[], [1], [1, 1, 1], None, {}, 1, "x", {"0": 1}], ids=repr)
def test_there_is_one_entry_for_each_binding(any_client: RawClient, args: Any) -> None:
    create(any_client, 256)
    module = load(any_client, "mix")
    error = refused(any_client, "dispatch", module=module, args=args, scalars=[1, 1], grid=[1])
    assert error.code == "invalid"
    if isinstance(args, list):
        assert "2" in error.message


def test_handles_that_name_no_buffer_are_not_found_and_the_binding_is_named(any_client: RawClient) -> None:
    x = create(any_client, 256)
    module = load(any_client, "mix")
    params = {"module": module, "scalars": [1, 1], "grid": [1]}
    for wrong in (99, 0, -1, module, 2**31):
        for args in ([wrong, x], [x, wrong], [[wrong, 0, 4], x]):
            error = refused(any_client, "dispatch", args=args, **params)
            assert error.code == "not_found"
            assert "binding" in error.message
    any_client.call("buffer.free", buffer=x)
    assert refused(any_client, "dispatch", args=[x, x], **params).code == "not_found"


@pytest.mark.parametrize(("offset", "size"), [(0, 257), (256, 16), (-16, 16), (0, -1), (2**62, 2**62), (2**64 - 1, 1)])
def test_rule_5_a_range_outside_its_buffer_is_invalid(any_client: RawClient, offset: int, size: int) -> None:
    x = create(any_client, 256)
    module = load(any_client, "mix")
    error = refused(any_client, "dispatch", module=module, args=[[x, offset, size], x], scalars=[1, 1], grid=[1])
    assert error.code == "invalid"
    assert "256" in error.message


def test_rule_5_offsets_obey_the_devices_alignment(any_client: RawClient) -> None:
    x = create(any_client, 1024)
    for name, args, wanted in (
        ("mix", lambda at: [[x, at, 64], x], "minStorageBufferOffsetAlignment"),
        ("uniform", lambda at: [[x, at, 64], {"out": 64}], "minUniformBufferOffsetAlignment"),
    ):
        align = limit(any_client, wanted)
        module = load(any_client, name)
        params = {"module": module, "grid": [1], **({"scalars": [1, 1]} if name == "mix" else {})}
        assert any_client.call("dispatch", args=args(align), **params)
        if align > 1:
            error = refused(any_client, "dispatch", args=args(align // 2), **params)
            assert error.code == "invalid"
            assert error.data == {"offset": align // 2, wanted: align}
            assert wanted in error.message


def test_rule_14_a_range_holds_at_least_the_fixed_part(any_client: RawClient) -> None:
    small, x = create(any_client, 15), create(any_client, 64)
    module = load(any_client, "ranges")
    for entry in (small, [x, 0, 15], [x, 0, 0], {"in": bytes(15)}, {"in": b""}):
        error = refused(any_client, "dispatch", module=module, args=[entry, {"out": 12}], grid=[1])
        assert error.code == "invalid"
        assert error.data["minimum"] == 16  # type: ignore[index]
    assert refused(any_client, "dispatch", module=module, args=[x, {"out": 11}], grid=[1]).code == "invalid"
    assert any_client.call("dispatch", module=module, args=[[x, 0, 16], {"out": 12}], grid=[1])


def test_rule_5_a_range_is_not_larger_than_the_device_binds(any_client: RawClient) -> None:
    """The error names limit and value; a part of the buffer can be bound."""
    for name, wanted, rest in (
        ("measure", "maxStorageBufferRange", [{"out": 4}]),
        ("uniform", "maxUniformBufferRange", [{"out": 64}]),
    ):
        most = limit(any_client, wanted)
        if most > 256 * 2**20:
            pytest.skip(f"{wanted} is {most}")
        large = create(any_client, most + 4)
        module = load(any_client, name)
        for entry in (large, [large, 0, most + 4]):
            error = refused(any_client, "dispatch", module=module, args=[entry, *rest], grid=[1])
            assert error.code == "invalid"
            assert error.data == {"size": most + 4, wanted: most}
            assert wanted in error.message
        assert any_client.call("dispatch", module=module, args=[[large, 0, most], *rest], grid=[1])
        any_client.call("buffer.free", buffer=large)


@pytest.mark.parametrize("entry", [{"out": 256}, {"inout": bytes(256)}], ids=["out", "inout"])
def test_out_and_inout_are_for_what_the_kernel_writes(any_client: RawClient, entry: Any) -> None:
    y = create(any_client, 256)
    params: dict[str, Any] = {"grid": [1]}
    mixing, measuring, uniform = (load(any_client, name) for name in ("mix", "measure", "uniform"))
    assert refused(any_client, "dispatch", module=mixing, args=[entry, y], scalars=[1, 1], **params).code == "invalid"
    assert refused(any_client, "dispatch", module=measuring, args=[entry, y], **params).code == "invalid"
    assert refused(any_client, "dispatch", module=uniform, args=[entry, y], **params).code == "invalid"
    assert any_client.call("dispatch", module=mixing, args=[y, entry], scalars=[1, 1], **params)["outputs"]


def test_values_are_for_uniform_bindings(any_client: RawClient) -> None:
    module = load(any_client, "mix")
    entry = {"values": {"x": 1}}
    error = refused(any_client, "dispatch", module=module, args=[entry, {"out": 256}], scalars=[1, 1], grid=[1])
    assert error.code == "invalid"


def test_a_launch_that_failed_changed_nothing(any_client: RawClient) -> None:
    """Whatever is wrong is found before anything of it has run."""
    x, y = create(any_client, X), create(any_client, Y)
    module = load(any_client, "mix")
    good = {"module": module, "args": [x, y], "scalars": [64, 5], "grid": [1]}
    jobs = any_client.call("stats")["jobs_completed"]
    for wrong in (
        {"args": [x, 99]}, {"args": [x]}, {"scalars": [64]}, {"scalars": [64, -1]}, {"grid": [-1]}, {"grid": []},
        {"grid": [1, 1, 1, 1]}, {"module": 99}, {"kernel": "nobody"}, {"priority": 101}, {"deadline_ms": 0},
        {"after": ["x"]}, {"timing": 1}, {"device": 9}, {"label": 5}, {"specialization": {"0": 1}}, {"launch": [1]},
        {"unknown": 1},
    ):  # fmt: skip
        refused(any_client, "dispatch", **{**good, **wrong})
    assert (read(any_client, y, np.uint32) == Y).all()
    assert any_client.call("stats")["jobs_completed"] == jobs + 1  # the read


def test_rule_42_neighbours_keep_their_bytes_whatever_an_entry_is(client: RawClient) -> None:
    """A kernel writes far behind each kind of entry; the clients' other buffers, and other entries, stay."""
    module = load(client, "fill")
    guards = [create(client, b"\xaa" * 4096) for _ in range(8)]
    target = create(client, 64)
    for entry in (target, [target, 0, 16], {"out": 64}, {"inout": bytes(64)}, {"in": bytes(64)}):
        client.call("dispatch", module=module, args=[entry], scalars=[0xBBBBBBBB], grid=[64])
    for guard in guards:
        assert client.call("buffer.read", buffer=guard)["data"] == b"\xaa" * 4096
    assert client.call("buffer.read", buffer=create(client, 4096))["data"] == bytes(4096)


def test_kernels_of_a_module_are_named_or_the_only_one(any_client: RawClient) -> None:
    from support.cases import by_name

    several = by_name("naga_multi_entry")
    module = any_client.call("module.load", spirv=several.spirv)
    assert len(module["kernels"]) > 1
    error = refused(any_client, "dispatch", module=module["module"], args=[], grid=[1])
    assert error.code == "invalid"
    assert all(name in error.message for name in module["kernels"])
    error = refused(any_client, "dispatch", module=module["module"], kernel="nobody", args=[], grid=[1])
    assert error.code == "not_found"
    assert any(name in error.message for name in module["kernels"])
    only = any_client.call("module.load", spirv=several.spirv, entry=several.entry)
    assert list(only["kernels"]) == [several.entry]
    other = next(name for name in module["kernels"] if name != several.entry)
    assert refused(any_client, "dispatch", module=only["module"], kernel=other, args=[], grid=[1]).code == "not_found"


def test_the_same_module_loaded_twice_has_two_handles(any_client: RawClient) -> None:
    first, second = load(any_client, "fill"), load(any_client, "fill")
    assert first != second
    any_client.call("module.unload", module=first)
    answer = any_client.call("dispatch", module=second, args=[{"out": 256}], scalars=[1], grid=[1])
    assert answer["outputs"][0] != bytes(256)
    assert refused(any_client, "dispatch", module=first, args=[{"out": 4}], scalars=[1], grid=[1]).code == "not_found"
    assert kernel("fill")
