"""Modules: loading, inspecting, unloading; what is analysed and built once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import by_name, of_kind
from support.daemon import Daemon
from support.e2e import code, create, kernel, load, read, refused
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu


def variant(spirv: bytes, number: int) -> bytes:
    """The same module with another generator's number: other bytes, so another module to the daemon."""
    return spirv[:8] + number.to_bytes(4, "little") + spirv[12:]


def test_load_answers_with_the_reflection_of_each_kernel(any_client: RawClient) -> None:
    loaded = any_client.call("module.load", spirv=kernel("mix"))
    assert (loaded["module"], list(loaded["kernels"])) == (1, ["main"])
    told = loaded["kernels"]["main"]
    expected = {
        "local_size": [64, 1, 1],
        "bindings": [
            {"set": 0, "binding": 0, "kind": "storage", "access": "read", "name": "", "count": 1, "stride": 4,
             "size": 0},
            {"set": 0, "binding": 1, "kind": "storage", "access": "read_write", "name": "", "count": 1, "stride": 4,
             "size": 0},
        ],
        "scalars": [
            {"name": "n", "type": "uint32", "offset": 0, "size": 4, "where": "push"},
            {"name": "k", "type": "uint32", "offset": 4, "size": 4, "where": "push"},
        ],
        "push_constant_bytes": 8,
        "specialization": [],
        "capabilities": ["Shader"],
    }  # fmt: skip
    assert {key: told[key] for key in expected} == expected
    assert "unsupported" not in told


def test_reflection_of_every_kind_of_binding(any_client: RawClient) -> None:
    kernels = {
        name: any_client.call("module.load", spirv=kernel(name))["kernels"]["main"]
        for name in ("fill", "measure", "array", "uniform", "ranges")
    }
    assert [b["access"] for b in kernels["fill"]["bindings"]] == ["write"]
    assert [b["access"] for b in kernels["measure"]["bindings"]] == ["none", "write"]
    assert [b["count"] for b in kernels["array"]["bindings"]] == [3, 1]
    assert kernels["array"]["bindings"][0]["name"] == "parts"
    assert [(b["size"], b["stride"]) for b in kernels["ranges"]["bindings"]] == [(16, 4), (12, 0)]
    block = kernels["uniform"]["bindings"][0]
    assert (block["kind"], block["size"]) == ("uniform", 64)
    assert [(m["name"], m["offset"], m.get("count"), m.get("stride")) for m in block["members"]] == [
        ("scale", 0, None, None), ("offset", 16, 3, None), ("steps", 32, 2, 16),
    ]  # fmt: skip


def test_S24_inspect_shows_what_is_loaded(any_client: RawClient) -> None:
    module = any_client.call("module.load", spirv=kernel("mix"))
    text = any_client.call("module.inspect", module=module["module"], format="spirv-asm")["text"]
    for word in ("OpEntryPoint", "GLCompute", "OpExecutionMode", "LocalSize", "OpCapability", "Shader", "OpFunction"):
        assert word in text
    told = json.loads(any_client.call("module.inspect", module=module["module"], format="json")["text"])
    assert told["kernels"] == module["kernels"]
    several = by_name("naga_multi_entry")
    only = any_client.call("module.load", spirv=several.spirv, entry=several.entry)["module"]
    told = json.loads(any_client.call("module.inspect", module=only, format="json")["text"])
    assert list(told["kernels"]) == [several.entry]


@pytest.mark.parametrize("wrong", [{}, {"format": "text"}, {"format": 1}, {"format": "spirv-asm", "x": 1}], ids=str)
def test_inspect_takes_one_of_its_formats(any_client: RawClient, wrong: dict[str, Any]) -> None:
    module = load(any_client, "mix")
    assert refused(any_client, "module.inspect", module=module, **wrong).code == "invalid"
    assert refused(any_client, "module.inspect", module=99, format="json").code == "not_found"


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"spirv": None}, {"spirv": "text"}, {"spirv": 5}, {"spirv": [1]}, {"tvm_file": b""}, {"tvm_meta": "{}"},
        {"source": "x"}, {"language": "glsl"}, {"source": "x", "language": "cobol"},
        {"spirv": b"", "tvm": b""}, {"spirv": b"", "defines": {}}, {"spirv": b"", "includes": {"a": "b"}},
        {"source": "x", "language": "glsl", "defines": {"A": [1]}}, {"source": b"x", "language": "glsl"},
        {"spirv": b"", "entry": 5}, {"spirv": b"", "name": b""},
    ],
    ids=str,
)  # fmt: skip
def test_load_takes_exactly_one_form(any_client: RawClient, wrong: dict[str, Any]) -> None:
    assert refused(any_client, "module.load", **wrong).code == "invalid"


@pytest.mark.parametrize("spirv", [b"", b"abc", b"\x03\x02\x23\x07", bytes(100), b"\x07\x23\x02\x03" + bytes(16)])
def test_bytes_that_are_no_module_are_invalid(any_client: RawClient, spirv: bytes) -> None:
    error = refused(any_client, "module.load", spirv=spirv)
    assert error.code == "invalid"
    assert error.message


def test_every_way_to_cut_a_module_short_is_refused(any_client: RawClient) -> None:
    spirv = kernel("mix")
    for size in range(0, len(spirv), 28):
        assert refused(any_client, "module.load", spirv=spirv[:size]).code in ("invalid", "unsupported")


def test_a_kernel_that_this_device_cannot_run_says_why(any_client: RawClient) -> None:
    """`unsupported` names the capability, feature or limit."""
    for case in of_kind("refuse"):
        if case.expect_error and case.expect_error["kind"] == "unsupported_capability":
            error = refused(any_client, "module.load", spirv=case.spirv)
            assert error.code == "unsupported"
            assert case.expect_error["capability"].split(" ")[0] in error.message


def test_unload_makes_the_handle_dead_and_work_sent_before_goes_on(client: RawClient) -> None:
    for number in range(5):
        module = client.call("module.load", spirv=variant(kernel("mix"), number))["module"]
        x, y = create(client, np.full(64, 3, np.uint32)), create(client, np.full(64, 2, np.uint32))
        launch = client.send("dispatch", module=module, args=[x, y], scalars=[64, 5], grid=[1])
        unload = client.send("module.unload", module=module)
        dead = client.send("dispatch", module=module, args=[x, y], scalars=[64, 5], grid=[1])
        again = client.send("module.unload", module=module)
        assert client.wait(unload) == {}
        assert client.wait(launch) == {"outputs": []}
        assert code(client, dead) == code(client, again) == "not_found"
        assert (read(client, y, np.uint32) == 70).all()


def test_S5_a_pipeline_is_built_once_for_all_connections(daemon: Daemon) -> None:
    clients = [daemon.client() for _ in range(8)]
    try:
        spirv = variant(kernel("mix"), 4711)
        before = clients[0].call("stats")["devices"][0]["pipelines_built"]
        msgids = []
        for client in clients:
            client.send("module.load", spirv=spirv, **{"as": 1})
            client.send("buffer.create", size=256, **{"as": 2})
            msgids.append(client.send("dispatch", module=1, args=[2, 2], scalars=[64, 1], grid=[1]))
        for client, msgid in zip(clients, msgids, strict=True):
            assert client.wait(msgid) == {"outputs": []}
        assert clients[0].call("stats")["devices"][0]["pipelines_built"] == before + 1
    finally:
        for client in clients:
            client.close()


def test_S5_many_modules_at_once(client: RawClient) -> None:
    """Each is another module: analysed, built and launched, all in one write."""
    x = client.call("buffer.create", data=np.full(64, 3, np.uint32).tobytes(), **{"as": 1})["buffer"]
    launches = []
    for number in range(40):
        module, y = 2 * number + 2, 2 * number + 3
        client.send("module.load", spirv=variant(kernel("mix"), 1000 + number), **{"as": module})
        client.send("buffer.create", size=256, **{"as": y})
        launches.append((client.send("dispatch", module=module, args=[x, y], scalars=[64, number], grid=[1]), y))
    for number, (launch, y) in enumerate(launches):
        assert client.wait(launch) == {"outputs": []}
        assert (read(client, y, np.uint32) == 3 + number).all()


def test_rule_16_the_pipeline_cache_survives_a_killed_daemon(start: Callable[..., Daemon], tmp_path: Path) -> None:
    """It is written behind the builds; a daemon that is killed then leaves a whole file, which the next one reads."""
    cache = tmp_path / "cache"
    env = {"VKQUEUE_DEVICE_CACHE_DIR": str(cache)}
    first = start(env=env)
    with first.client() as client:
        client.call("dispatch", module=load(client, "fill"), args=[{"out": 256}], scalars=[1], grid=[1])
        while not cache.exists() or not any(path.stat().st_size for path in cache.rglob("*") if path.is_file()):
            assert client.call("ping") == {}
    first.process.kill()
    first.process.wait()
    kept = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 32}
    assert kept
    for spoil in (False, True):
        if spoil:
            for path in kept:
                path.write_bytes(b"rubbish" * 100)
        daemon = start(env=env)
        with daemon.client() as client:
            answer = client.call("dispatch", module=load(client, "fill"), args=[{"out": 256}], scalars=[5], grid=[1])
            assert (np.frombuffer(answer["outputs"][0], np.uint32) == np.arange(5, 69)).all()
        assert ("pipeline cache" in daemon.log.read_text()) == spoil


def test_S20_switches_from_the_environment(start: Callable[..., Daemon]) -> None:
    daemon = start(
        env={"VKQUEUE_DEVICE_DESCRIPTORS": "sets", "VKQUEUE_DEVICE_DEBUG_LABELS": "true",
             "VKQUEUE_DEVICE_DEDICATED_ALLOCATION": "false"}
    )  # fmt: skip
    with daemon.client() as client:
        module = load(client, "mix")
        x = create(client, np.full(64, 2, np.uint32))
        for label in ("first", "second"):
            client.call("dispatch", module=module, args=[x, x], scalars=[64, 1], grid=[1], label=label)
        assert (read(client, x, np.uint32) == 32 * (32 * 2 + 1) + 1).all()


def test_S20_validation_layers_by_a_switch(start: Callable[..., Daemon]) -> None:
    """Turned on by the setting instead of from outside; the daemon logs what they say, and they say nothing."""
    daemon = start(validation=False, env={"VKQUEUE_DEVICE_VALIDATION": "true"})
    with daemon.client() as client:
        client.call("dispatch", module=load(client, "fill"), args=[{"out": 256}], scalars=[1], grid=[1])
    assert daemon.stop() == 0
    assert "VUID" not in daemon.log.read_text()


def test_S20_shaders_are_dumped_by_a_switch(start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start(env={"VKQUEUE_DEVICE_DUMP_SHADERS": str(tmp_path / "shaders")})
    with daemon.client() as client:
        client.call("dispatch", module=load(client, "fill"), args=[{"out": 256}], scalars=[1], grid=[1])
    dumped = [path.read_bytes() for path in (tmp_path / "shaders").iterdir()]
    assert kernel("fill") in dumped


def test_rule_13_S21_nothing_is_alive_when_the_daemon_ends(start: Callable[..., Daemon]) -> None:
    """Buffers, modules, pipelines, queued work: the layers report no object that was not destroyed."""
    daemon = start()
    clients = [daemon.client() for _ in range(3)]
    for client in clients:
        x = create(client, 4096)
        create(client, 0)
        for name in ("mix", "fill", "array", "uniform"):
            load(client, name)
        module = load(client, "mix")
        for _ in range(20):
            client.send("dispatch", module=module, args=[x, {"inout": bytes(256)}], scalars=[64, 1], grid=[1])
    assert daemon.stop() == 0
    assert not daemon.complaints()
    for client in clients:
        client.close()
