"""Models through a real daemon: results of all shapes, buffers, ensembles, versions, and all that may go wrong."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from support.affine import (
    W,
    check,
    config,
    ensemble,
    expected,
    first,
    infer,
    inputs,
    kernels,
    lay_out,
    load,
    loading,
    outputs,
    settled,
    statistics,
)
from support.daemon import Daemon
from support.e2e import code, create, kernel, read, refused
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(client: RawClient) -> Iterator[str]:
    """The model on each of the daemons; everything is counted when it goes."""
    load(client)
    yield "m"
    counted = statistics(client)
    assert counted["accepted"] == settled(counted)
    assert counted["queued"] == 0
    client.call("model.unload", name="m")
    assert client.call("model.list") == []


def samples(rng: random.Random) -> np.ndarray:
    shape = rng.randint(1, 3), rng.randint(1, 16)
    return np.array([[rng.randint(-50, 50) for _ in range(shape[1])] for _ in range(shape[0])], np.float32)


def test_each_request_gets_its_own_results(daemon: Daemon, client: RawClient, model: str) -> None:
    """Of all lengths and numbers of samples, from several connections, in batches as they come."""
    rng = random.Random(1)
    with daemon.client() as other:
        for _ in range(4):
            sent = [(c, x, infer(c, x)) for c in (client, other) for x in [samples(rng) for _ in range(25)]]
            for connection, x, msgid in sent:
                check(connection.wait(msgid), x)
    counted = statistics(client)
    assert counted["inference_stats"]["success"]["count"] == 200
    assert counted["execution_count"] < 200
    assert counted["execution_count"] == sum(b["compute_infer"]["count"] for b in counted["batch_stats"])
    assert counted["inference_count"] == sum(
        b["batch_size"] * b["compute_infer"]["count"] for b in counted["batch_stats"]
    )
    assert sum(counted["closed"].values()) == counted["execution_count"]


def test_what_an_answer_has(client: RawClient, model: str) -> None:
    x = [[1, 2, 3], [4, 5, 6]]
    answer = client.wait(infer(client, x, timing=True))
    assert answer["version"] == 1
    assert answer["outputs"]["rows"]["shape"] == [2, 3, 4]
    assert answer["outputs"]["total"]["shape"] == [2]
    timing = answer["timing"]
    assert timing["batch"] == 2
    assert 0 <= timing["queued_us"] <= timing["total_us"]
    only = client.wait(infer(client, x, outputs=["total"], version=1))
    assert only["outputs"].keys() == {"total"}
    assert "timing" not in only
    check(only, x)
    check(client.wait(infer(client, x, outputs={"rows": None})), x)


def test_buffers_stand_in_for_bytes(client: RawClient, model: str) -> None:
    """In and out, padded and not, in a batch with requests that bring bytes."""
    rng = random.Random(2)
    sent = []
    for number in range(24):
        x = samples(rng)
        if number % 3 == 0:
            sent.append((x, None, infer(client, x)))
            continue
        offset = 4 * rng.randint(0, 3)
        source = create(client, bytes(offset) + x.tobytes())
        target = create(client, x.size * 16 + 8)
        given = {"x": {"shape": list(x.shape), "buffer": source, "offset": offset}}
        wanted = {"rows": {"buffer": target, "offset": 8}, "total": None}
        sent.append((x, target, client.send("model.infer", name="m", inputs=given, outputs=wanted)))
    for x, target, msgid in sent:
        answer = client.wait(msgid)
        if target is None:
            check(answer, x)
            continue
        assert answer["outputs"]["rows"] == {"shape": [*x.shape, 4]}
        np.testing.assert_allclose(
            outputs({"outputs": {"total": answer["outputs"]["total"]}})["total"], expected(x)["total"]
        )
        found = read(client, target, np.float32)
        assert not found[:2].any()
        np.testing.assert_allclose(found[2:].reshape(*x.shape, 4), expected(x)["rows"], rtol=1e-5)


def test_what_no_kernel_writes_is_zero_in_a_buffer_too(any_client: RawClient) -> None:
    """Not what an earlier request of somebody else had there."""
    client = any_client
    nodes = [
        {"copy": [["x", 0, 4], ["rows", 0, 4]]},
        {"fill": "total"},
        {"copy": ["x", ["rows", 0, "batch * seq * 4"]]},
    ]
    load(client, "z", node=nodes, temporary=None, kernel=None)
    infer(client, [[7] * 16], "z")
    target = create(client, np.full(64, 9, np.float32))
    given = {"name": "z", "inputs": inputs([[1, 2, 3, 4]])}
    client.call("model.infer", **given, outputs={"rows": {"buffer": target}})
    assert read(client, target, np.float32).tolist() == [1, 2, 3, 4] + [0] * 12 + [9] * 48
    answer = outputs(client.call("model.infer", **given, outputs=["rows"]))
    assert answer["rows"].ravel().tolist() == [1, 2, 3, 4] + [0] * 12
    client.call("model.unload", name="z")


def test_a_buffer_that_is_freed_at_once_is_there_until_the_answer(client: RawClient, model: str) -> None:
    x = np.ones((2, 5), np.float32)
    before = client.call("stats")["memory_bytes"]
    for _ in range(8):
        sent = []
        for _ in range(4):
            buffer = create(client, x.tobytes())
            sent.append(client.send("model.infer", name="m", inputs={"x": {"shape": [2, 5], "buffer": buffer}}))
            client.call("buffer.free", buffer=buffer)
        for msgid in sent:
            check(client.wait(msgid), x)
    assert client.call("stats")["memory_bytes"] <= before + (4 << 20)


def test_layouts_and_odd_sizes_come_back_as_they_went(client: RawClient) -> None:
    """Through a model that copies: the batch dimension anywhere, elements of any size, two dimensions, both ways."""
    forms: dict[str, tuple[str, str, list[Any], int]] = {
        "a": ("TYPE_UINT8", "u1", ["s", 3], 2), "b": ("TYPE_INT16", "<i2", ["t", "s"], 1),
        "c": ("TYPE_FP64", "<f8", [2, "t"], 0), "d": ("TYPE_UINT8", "u1", [], 0),
    }  # fmt: skip

    def tensors(prefix: str) -> list[dict[str, Any]]:
        return [
            {"name": prefix + name, "data_type": type_, "dims": dims, "batch_dimension": place}
            for name, (type_, _, dims, place) in forms.items()
        ]

    made = {
        "max_batch_size": 6,
        "dynamic_batching": {},
        "dimensions": {"s": {"buckets": [2, 5, 7]}, "t": {"min": 1, "max": 3}},
        "input": [{**tensor, "pad_value": 9} for tensor in tensors("")],
        "output": tensors("out_"),
        "node": [{"copy": [name, f"out_{name}"]} for name in forms],
    }
    client.call("model.load", name="same", config=made)
    rng = np.random.default_rng(5)
    sent = []
    for number in range(40):
        samples, sizes = int(rng.integers(1, 4)), {"s": int(rng.integers(1, 8)), "t": int(rng.integers(1, 4))}
        arrays, given, targets = {}, {}, {}
        for name, (_, dtype, dims, place) in forms.items():
            shape = [sizes[d] if isinstance(d, str) else d for d in dims]
            shape.insert(place, samples)
            array = arrays[name] = rng.integers(0, 200, shape).astype(dtype)
            given[name] = {"shape": shape, "data": array.tobytes()}
            if number % 4 == 1 and rng.random() < 0.5:
                given[name] = {"shape": shape, "buffer": create(client, b"??" + array.tobytes()), "offset": 2}
            if number % 4 == 2 and rng.random() < 0.5:
                targets[name] = create(client, array.nbytes + 1)
        wanted = {f"out_{name}": {"buffer": targets[name], "offset": 1} if name in targets else None for name in forms}
        sent.append((arrays, targets, client.send("model.infer", name="same", inputs=given, outputs=wanted)))
    for arrays, targets, msgid in sent:
        answer = client.wait(msgid)["outputs"]
        for name, array in arrays.items():
            found = answer[f"out_{name}"]
            assert found["shape"] == list(array.shape)
            data = read(client, targets[name]).tobytes()[1:] if name in targets else found["data"]
            assert data == array.tobytes(), name
    client.call("model.unload", name="same")


def test_a_bad_request_fails_alone(client: RawClient, model: str) -> None:
    x = [[1, 2, 3]]
    wrong: list[dict[str, Any]] = [
        {"x": {"shape": [1, 17], "data": bytes(68)}},
        {"x": {"shape": [1, 3], "data": bytes(11)}},
        {"x": {"shape": [9, 3], "data": bytes(108)}},
        {"x": {"shape": [1, 3], "buffer": 999}},
        {"x": {"shape": [1, 3]}},
        {"x": {"shape": [1, 3], "data": "abc"}},
        {"x": {"shape": [1, 3], "data": bytes(12), "dtype": "f"}},
        {},
    ]
    sent = []
    for given in wrong:
        sent.append((infer(client, x), None))
        sent.append((client.send("model.infer", name="m", inputs=given), "invalid"))
    for msgid, said in sent:
        if said is None:
            check(client.wait(msgid), x)
        else:
            with pytest.raises(RemoteError) as error:
                client.wait(msgid)
            assert error.value.code == ("not_found" if "buffer" in error.value.message[:30] else said)
    assert statistics(client)["rejected"] == len(wrong)


@pytest.mark.parametrize(
    ("params", "code", "said"),
    [
        (
            {"inputs": {"x": {"shape": [1, 17], "data": b""}}},
            "invalid",
            "x: its dimension seq has 17; this model takes 1",
        ),
        ({"inputs": {"x": {"shape": [1, 2], "data": b"1234"}}}, "invalid", "TYPE_FP32 has 8 bytes, data has 4"),
        ({"inputs": {"y": {"shape": [1, 2], "data": b"1234"}}}, "invalid", "x ([batch, seq]) is missing"),
        ({"inputs": {"x": {"shape": [2], "data": b"1234"}}}, "invalid", "expected the shape [batch, seq], got [2]"),
        ({"name": "n"}, "not_found", "no model 'n' is loaded; there are m"),
        ({"version": 2}, "not_found", "has no version 2; it has 1"),
        ({"outputs": ["row"]}, "invalid", "no output 'row'; the model has rows, total"),
        ({"outputs": {"rows": {"bufer": 1}}}, "invalid", "outputs: rows: expected nil or {buffer, offset?}"),
        ({"outputs": []}, "invalid", "none is asked for"),
        ({"outputs": {"rows": {"buffer": 77}}}, "not_found", "no buffer 77"),
    ],
)
def test_what_is_wrong_is_said(client: RawClient, model: str, params: dict[str, Any], code: str, said: str) -> None:
    error = refused(client, "model.infer", **{"name": "m", "inputs": inputs([[1, 2]]), **params})
    assert error.code == code
    assert said in error.message


def test_weights_from_buffers_and_modules_by_handle(any_client: RawClient) -> None:
    client = any_client
    w = np.array([2, 3, 5, 7], np.float32)
    buffer = create(client, bytes(256) + w.tobytes())
    modules = [
        {"name": name, "module": client.call("module.load", spirv=kernel(name))["module"]}
        for name in ("affine", "total")
    ]
    params = loading("h", weights={"w": [buffer, 256, 16]}) | {"kernels": modules}
    client.call("model.load", **params)
    client.call("buffer.free", buffer=buffer)
    for module in modules:
        client.call("module.unload", module=module["module"])
    check(client.wait(infer(client, [[1, 2]], "h")), [[1, 2]], w)
    client.call("model.unload", name="h")


def test_a_model_outlives_its_loader_and_serves_everybody(any_daemon: Daemon) -> None:
    with any_daemon.client() as loader:
        load(loader, "left")
    with any_daemon.client() as client:
        check(client.wait(infer(client, [[3]], "left")), [[3]])
        client.call("model.unload", name="left")


def test_without_a_batch_dimension(any_client: RawClient) -> None:
    client = any_client
    load(client, "single", max_batch_size=0, dynamic_batching=None)
    sent = []
    for x in ([1, 2, 3], [5] * 8, [4] * 16):
        given = {"x": {"shape": [len(x)], "data": np.float32(x).tobytes()}}
        sent.append((x, client.send("model.infer", name="single", inputs=given)))
    for x, msgid in sent:
        found = outputs(client.wait(msgid))
        np.testing.assert_allclose(found["rows"], expected([x])["rows"][0])
        np.testing.assert_allclose(found["total"], expected([x])["total"][0])
    assert refused(client, "model.infer", name="single", inputs=inputs([[1]])).code == "invalid"
    client.call("model.unload", name="single")


def test_without_dynamic_batching_each_request_is_a_batch(any_client: RawClient) -> None:
    client = any_client
    load(client, "alone", dynamic_batching=None)
    sent = [infer(client, [[i, i]] * 2, "alone") for i in range(10)]
    for i, msgid in enumerate(sent):
        check(client.wait(msgid), [[i, i]] * 2)
    assert statistics(client, "alone")["batch_sizes"] == {"2": 10}
    client.call("model.unload", name="alone")


# Loading


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"input": None}, "invalid", "config: input: is missing"),
        (
            {"output": [*config()["output"], {"name": "z", "data_type": "TYPE_FP32", "dims": []}]},
            "invalid",
            "writes 'z'",
        ),
        ({"kernel": [{"name": "affine"}, {"name": "total"}, {"name": "x"}]}, None, ""),
        ({"temporary": [{"name": "copy", "size": "batch * seq / 3"}]}, "invalid", "leaves a remainder; use // or ceil"),
        ({"temporary": [{"name": "copy", "size": "batch * seq"}]}, "invalid", "node"),
        ({"weights": {}}, "invalid", "node[1]: weights.w: no weight is called 'w'"),
        ({"weights": {"w": bytes(12)}}, None, ""),  # the binding has no fixed size
        ({"weights": {"w": 12345}}, "not_found", "weights: w: no buffer 12345"),
        ({"weights": {"w": 1.5}}, "invalid", "weights: w: expected a buffer handle"),
        ({"device": 9}, "invalid", "device: 9 is none of"),
    ],
)
def test_loads_that_fail_leave_nothing(
    any_client: RawClient, changes: dict[str, Any], code: str | None, said: str
) -> None:
    client = any_client
    params = loading("f", **changes)
    before = client.call("stats")
    if code is None:
        client.call("model.load", **params)
    else:
        error = refused(client, "model.load", **params)
        assert error.code == code
        assert said in error.message
    for found in client.call("model.list"):
        assert code is None
        client.call("model.unload", name=found["name"])
    while (after := client.call("stats"))["buffers"] != before["buffers"]:
        time.sleep(0.01)  # the device frees them in its own time
    assert after["clients"] == before["clients"]


@pytest.mark.skipif(not (shutil.which("glslc") or shutil.which("glslangValidator")), reason="no compiler for GLSL")
def test_source_kernels(any_client: RawClient) -> None:
    client = any_client
    folder = Path(__file__).parent / "kernels"
    sources = [{"name": n, "code": (folder / f"{n}.comp").read_text(), "language": "glsl"} for n in ("affine", "total")]
    client.call("model.load", **(loading("s") | {"kernels": sources}))
    check(client.wait(infer(client, [[1, 2]], "s")), [[1, 2]])
    client.call("model.unload", name="s")
    sources[0]["code"] = sources[0]["code"].replace("rows * columns", "rows * column")
    error = refused(client, "model.load", **(loading("s") | {"kernels": sources}))
    assert error.code == "compile"
    assert "kernel 'affine'" in error.message
    assert "column" in error.message


@pytest.mark.parametrize("by_buffer", [False, True])
def test_large_weights_come_in_pieces(any_client: RawClient, by_buffer: bool) -> None:
    """First, last, and what lies at the ends of pieces of 16 MiB."""
    client = any_client
    piece, size = 16 << 20, 33 << 20
    places = [0, piece - 8, piece, 2 * piece - 8, 2 * piece, size - 16]
    weights = bytearray(size)
    for number, place in enumerate(places, 1):
        weights[place : place + 16] = bytes([number]) * 16
    wanted = b"".join(bytes(weights[place : place + 16]) for place in places)
    nodes = [{"copy": [["weights.w", place, 16], ["o", 16 * n, 16]]} for n, place in enumerate(places)]
    made = {
        "input": [{"name": "x", "data_type": "TYPE_UINT8", "dims": [1]}],
        "output": [{"name": "o", "data_type": "TYPE_UINT8", "dims": [16 * len(places)]}],
        "node": nodes,
    }
    w = create(client, bytes(weights)) if by_buffer else bytes(weights)
    client.call("model.load", name="large", config=made, weights={"w": w})
    if by_buffer:
        client.call("buffer.free", buffer=w)
    answer = client.call("model.infer", name="large", inputs={"x": {"shape": [1], "data": b"x"}})
    assert answer["outputs"]["o"]["data"] == wanted
    client.call("model.unload", name="large")


def test_a_size_of_batch_without_a_graph_is_split(any_client: RawClient) -> None:
    """Batches of 3 cannot be; their requests can."""
    client = any_client
    nodes = [{"fill": ["total", 0, "4 * batch + 12 / (batch - 3) * 0"]}, {"fill": "rows"}]
    load(client, "s", node=nodes, temporary=None, kernel=None, instance_group={"count": 1}, max_batch_size=4,
         dynamic_batching={"max_queue_delay_microseconds": 50_000, "preferred_batch_size": [3]})  # fmt: skip
    sent = [infer(client, [[1]], "s") for _ in range(3)]
    assert [code(client, msgid) for msgid in sent] == [None] * 3
    assert statistics(client, "s")["batch_sizes"] == {"3": 1}
    assert code(client, infer(client, [[1]] * 3, "s")) == "invalid"
    client.call("model.unload", name="s")


def test_specialization_by_the_shape(any_client: RawClient) -> None:
    """A shape whose kernel is another is analysed and built when it comes; its request waits for that."""
    client = any_client
    made = {
        "dimensions": {"seq": {"buckets": [4, 8, 16]}},
        "input": [{"name": "x", "data_type": "TYPE_UINT8", "dims": ["seq"]}],
        "output": [{"name": "o", "data_type": "TYPE_INT32", "dims": [10]}],
        "kernel": [{"name": "c"}],
        "node": [
            {"kernel": "c", "args": ["o"], "grid": [1], "specialization": {"0": "seq * 3 - 50", "1": 7, "2": 1.5}}
        ],
    }
    code = [{"name": "c", "code": kernel("constants")}]
    client.call("model.load", name="c", config=made, kernels=code)
    sent = [
        (n, client.send("model.infer", name="c", inputs={"x": {"shape": [n], "data": bytes(n)}})) for n in (5, 3, 9)
    ]
    for n, msgid in sent:
        found = np.frombuffer(client.wait(msgid)["outputs"]["o"]["data"], np.int32)
        bucket = next(b for b in (4, 8, 16) if b >= n)
        assert found[:2].tolist() == [bucket * 3 - 50, 7]
        assert found[2:3].view(np.float32)[0] == 1.5
    made["node"][0]["specialization"]["nothing"] = 1  # type: ignore[index]
    error = refused(client, "model.load", name="c", config=made, kernels=code)
    assert error.code == "invalid"
    assert "no constant 'nothing'" in error.message
    client.call("model.unload", name="c")


def test_a_reload_under_load_drops_nothing(any_daemon: Daemon) -> None:
    """Each answer is wholly of one version; those sent behind the load's answer are of the new one."""
    with any_daemon.client() as client, any_daemon.client() as other:
        load(client, "r")
        x = np.arange(10, dtype=np.float32).reshape(2, 5)
        for turn in range(4):
            w = W * (turn + 2)
            old = W if turn == 0 else W * (turn + 1)
            loaded = other.send("model.load", **loading("r", w=w))
            sent = [infer(client, x, "r") for _ in range(50)]
            assert other.wait(loaded)["name"] == "r"
            for msgid in sent:
                found = outputs(client.wait(msgid))["rows"]
                assert any(np.allclose(found, expected(x, each)["rows"]) for each in (old, w))
            check(client.wait(infer(client, x, "r")), x, w)
        counted = statistics(client, "r")
        assert counted["inference_stats"]["success"]["count"] == 204
        assert counted["inference_stats"]["fail"]["count"] == 0
        assert refused(other, "model.load", **loading("r", weights={})).code == "invalid"
        check(client.wait(infer(client, x, "r")), x, W * 5)  # what was there before goes on
        other.call("model.unload", name="r")


def test_versions_side_by_side(any_client: RawClient) -> None:
    client = any_client
    for version in (1, 3):
        load(client, "v", version=version, w=W * version)
    assert [(f["version"], f["state"]) for f in client.call("model.list")] == [(1, "READY"), (3, "READY")]
    for version, told in ((1, 1), (3, 3), (None, 3)):
        answer = client.wait(infer(client, [[1]], "v", version=version))
        assert answer["version"] == told
        check(answer, [[1]], W * told)
    client.call("model.unload", name="v", version=3)
    assert client.wait(infer(client, [[1]], "v"))["version"] == 1
    assert client.call("model.config", name="v")["version"] == 1
    client.call("model.unload", name="v")


def test_an_unload_answers_what_was_accepted(any_client: RawClient) -> None:
    client = any_client
    load(client, "u", dynamic_batching={"max_queue_delay_microseconds": 100_000})
    sent = [infer(client, [[i]], "u") for i in range(5)]
    gone = client.send("model.unload", name="u")
    late = infer(client, [[1]], "u")
    for i, msgid in enumerate(sent):
        check(client.wait(msgid), [[i]])
    assert client.wait(gone) == {}
    assert code(client, late) == "not_found"


# Queue


def waiting(client: RawClient, name: str = "q", **changes: Any) -> None:
    """A model whose batches wait for a minute."""
    load(client, name, dynamic_batching={"max_queue_delay_microseconds": 60_000_000, **changes})


def test_a_request_that_waits_is_cancelled_at_once(any_client: RawClient) -> None:
    client = any_client
    waiting(client)
    sent = [infer(client, [[i, 0]], "q") for i in range(3)]
    assert client.call("cancel", msgid=sent[1]) == {"cancelled": True}
    assert code(client, sent[1]) == "cancelled"
    assert client.call("cancel", msgid=sent[1]) == {"cancelled": False}
    more = [infer(client, [[i, 0]] * 3, "q") for i in range(2)]
    for i, msgid in ((0, sent[0]), (2, sent[2])):
        check(client.wait(msgid), [[i, 0]])
    for i, msgid in enumerate(more):
        check(client.wait(msgid), [[i, 0]] * 3)
    counted = statistics(client, "q")
    assert counted["cancelled"] == 1
    assert counted["batch_sizes"] == {"8": 1}
    client.call("model.unload", name="q")


def test_requests_of_who_is_gone_leave_at_once(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        waiting(client)
        before = client.call("stats")["buffers"]
        gone = any_daemon.client()
        buffer = create(gone, bytes(8))
        for _ in range(3):
            gone.send("model.infer", name="q", inputs={"x": {"shape": [1, 2], "buffer": buffer}})
        infer(gone, [[1, 2]], "q")
        gone.call("ping")
        assert statistics(client, "q")["queued"] == 4
        gone.close()
        while statistics(client, "q")["cancelled"] < 4:
            time.sleep(0.01)
        counted = statistics(client, "q")
        assert counted["queued"] == 0
        assert counted["accepted"] == settled(counted) == 4
        while client.call("stats")["buffers"] > before:
            time.sleep(0.01)
        client.call("model.unload", name="q")


def test_a_request_that_waits_too_long_is_expired(any_client: RawClient) -> None:
    client = any_client
    policy = {"default_timeout_microseconds": 50_000, "allow_timeout_override": True}
    waiting(client, default_queue_policy=policy)
    sent = [infer(client, [[1]], "q"), infer(client, [[1]], "q", timeout_us=1000)]
    assert [code(client, msgid) for msgid in sent] == ["expired"] * 2
    counted = statistics(client, "q")
    assert counted["expired"] == 2
    assert counted["execution_count"] == 0
    client.call("model.unload", name="q")


def test_a_full_queue_says_so(any_client: RawClient) -> None:
    client = any_client
    waiting(client, default_queue_policy={"max_queue_size": 2})
    sent = [infer(client, [[i]], "q") for i in range(3)]
    assert code(client, sent[2]) == "overloaded"
    gone = client.send("model.unload", name="q")
    for msgid in sent[:2]:
        assert client.call("cancel", msgid=msgid)["cancelled"]
    assert client.wait(gone) == {}


def test_who_floods_a_model_does_not_hold_up_another(any_daemon: Daemon) -> None:
    """Far fewer batches run between another's request and its answer than the flood needs, which came first."""
    with any_daemon.client() as flood, any_daemon.client() as other:
        load(other, "f", instance_group={"count": 1})
        check(other.wait(infer(other, [[1]], "f")), [[1]])
        sent = range(flood.msgid + 1, flood.msgid + 4001)
        given = {"name": "f", "inputs": inputs([[1]])}
        flood.sock.sendall(b"".join(msgpack.packb([0, msgid, "model.infer", [given]]) for msgid in sent))
        before = statistics(other, "f")
        while before["queued"] < 2000 and before["accepted"] <= len(sent):
            before = statistics(other, "f")
        assert before["queued"] >= 2000, "no flood"
        check(other.wait(infer(other, [[2]], "f")), [[2]])
        ran = statistics(other, "f")["execution_count"] - before["execution_count"]
        assert ran < before["queued"] // 8 // 4
        for msgid in sent:
            check(flood.wait(msgid), [[1]])
        other.call("model.unload", name="f")


def test_answers_in_order(any_client: RawClient) -> None:
    client = any_client
    load(client, "o", dynamic_batching={"preserve_ordering": True})
    rng = random.Random(3)
    sent = [infer(client, samples(rng), "o") for _ in range(60)]
    for msgid in sent:
        client.wait(msgid)
    assert [msgid for msgid in client.order if msgid in set(sent)] == sent
    client.call("model.unload", name="o")


# Ensembles


def test_an_ensemble_does_what_its_steps_do(client: RawClient) -> None:
    load(client, "second")
    two = {"w": np.float32([2]).tobytes()}
    params = {"name": "first", "config": first(), "kernels": kernels()[:1], "weights": two}
    client.call("model.load", **params)
    client.call("model.load", name="both", config=ensemble())
    whole = client.call("model.config", name="both")
    assert whole["max_batch_size"] == 4
    assert whole["dimensions"]["s"]["buckets"] == [8, 16]
    rng = random.Random(4)
    sent = []
    for _ in range(30):
        x = samples(rng)
        sent.append((x, client.send("model.infer", name="both", inputs={"in": inputs(x)["x"]})))
    for x, msgid in sent:
        found = outputs(client.wait(msgid))
        middle = 2 * x + x.shape[1]
        np.testing.assert_allclose(found["middle"], middle, rtol=1e-5)
        bucket = 8 if x.shape[1] <= 8 else 16
        padding = (bucket - x.shape[1]) * (2 * 1000 + x.shape[1])
        np.testing.assert_allclose(found["sums"], middle.sum(1) + padding, rtol=1e-5)
    error = refused(client, "model.load", name="wrong", config=ensemble(output=[ensemble()["input"][0]]))
    assert "ensemble 'wrong'" in error.message or "is an input as well" in error.message
    steps = ensemble()["ensemble_scheduling"]["step"]
    steps[0]["model_name"] = "absent"
    error = refused(client, "model.load", name="wrong", config=ensemble(ensemble_scheduling={"step": steps}))
    assert error.code == "not_found"
    client.call("model.unload", name="first")  # the ensemble has all that it needs
    x = [[1, 2]]
    found = outputs(client.call("model.infer", name="both", inputs={"in": inputs(x)["x"]}))
    np.testing.assert_allclose(found["middle"], [[4, 6]])
    for found in client.call("model.list"):
        client.call("model.unload", name=found["name"])


# The daemon's own life


def test_sigterm_answers_what_was_accepted(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with daemon.client() as client:
        load(client, "m", dynamic_batching={"max_queue_delay_microseconds": 300_000})
        sent = [infer(client, [[i]]) for i in range(6)]
        client.call("ping")
        daemon.process.send_signal(signal.SIGTERM)
        for i, msgid in enumerate(sent):
            check(client.wait(msgid), [[i]])
    assert daemon.process.wait(20) == 0


def test_a_drain_that_takes_too_long_answers_too(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[daemon]\ndrain_timeout_s = 0.05\n")
    with daemon.client() as client:
        waiting(client)
        sent = [infer(client, [[1]], "q") for _ in range(3)]
        client.call("ping")
        daemon.process.send_signal(signal.SIGTERM)
        assert [code(client, msgid) for msgid in sent] == ["shutting_down"] * 3
    assert daemon.process.wait(20) == 0


def test_a_client_killed_with_requests_everywhere_harms_nobody(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        before = client.call("stats")["buffers"]
        load(client, "k")
        for _ in range(5):
            victim = any_daemon.client()
            buffer = create(victim, np.ones(16, np.float32))
            for number in range(40):
                if number % 2:
                    infer(victim, [[number] * 9], "k")
                else:
                    victim.send("model.infer", name="k", inputs={"x": {"shape": [4, 4], "buffer": buffer}})
            mine = [infer(client, [[i, 2]], "k") for i in range(10)]
            victim.close()
            for i, msgid in enumerate(mine):
                check(client.wait(msgid), [[i, 2]])
        counted = statistics(client, "k")
        while settled(counted) < counted["accepted"]:
            time.sleep(0.01)
            counted = statistics(client, "k")
        assert counted["inference_stats"]["fail"]["count"] == 0
        client.call("model.unload", name="k")
        while client.call("stats")["buffers"] > before:
            time.sleep(0.01)


def test_a_repository_is_served_from_the_start(start: Callable[..., Daemon], tmp_path: Path) -> None:
    """The daemon answers once all are ready, or known not to be; one is loaded anew by its name."""
    root = tmp_path / "models"
    lay_out(root, "latest")
    lay_out(root, "all", version_policy={"all": {}})
    lay_out(root, "broken")
    (root / "broken" / "affine.spv").write_bytes(b"no module")
    (root / "worse").mkdir()
    daemon = start(config=f'[models]\nrepository = "{root}"\n')
    with daemon.client() as client:
        found = {(f["name"], f["version"]): f for f in client.call("model.list")}
        states = {key: f["state"] for key, f in found.items()}
        assert states == {
            ("all", 1): "READY",
            ("all", 2): "READY",
            ("broken", 2): "UNAVAILABLE",
            ("latest", 2): "READY",
            ("worse", 1): "UNAVAILABLE",
        }
        assert "affine.spv" in found["broken", 2]["reason"]
        assert "config.toml" in found["worse", 1]["reason"]
        for name, version, factor in (("latest", None, 2), ("all", 1, 1), ("all", None, 2)):
            check(client.wait(infer(client, [[1, 2]], name, version=version)), [[1, 2]], W * factor)
        error = refused(client, "model.infer", name="broken", inputs=inputs([[1]]))
        assert error.code == "not_found"
        assert "UNAVAILABLE" in error.message
        (root / "broken" / "affine.spv").write_bytes(kernel("affine"))
        assert client.call("model.load", name="broken") == {"name": "broken", "version": 2}
        check(client.wait(infer(client, [[3]], "broken")), [[3]], W * 2)
        text = (root / "all" / "config.toml").read_text().replace('"all" = {}', '"latest" = {"num_versions" = 1}')
        (root / "all" / "config.toml").write_text(text)
        assert client.call("model.load", name="all") == {"name": "all", "version": 2}
        assert [f["version"] for f in client.call("model.list") if f["name"] == "all"] == [2]
        assert client.call("model.load", name="all", version=1) == {"name": "all", "version": 1}
        assert refused(client, "model.load", name="absent").code == "not_found"
        assert refused(client, "model.load", name="all", version=7).code in ("not_found", "invalid")
