"""hello, messages and what ends a connection: docs/protocol.md from the top."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgpack
import pytest
from support.daemon import Daemon
from support.e2e import create, kernel, refused
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

CODES = {
    "protocol", "unknown_method", "invalid", "not_found", "unsupported", "compile", "too_large", "quota", "overloaded",
    "dependency", "cancelled", "expired", "timeout", "device_lost", "out_of_memory", "shutting_down", "denied",
    "internal",
}  # fmt: skip


@pytest.fixture
def silent(any_daemon: Daemon) -> Any:
    """A client that has not said hello."""
    with any_daemon.client(hello=False) as client:
        yield client


def test_hello_tells_of_the_daemon_its_devices_and_limits(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        welcome = client.welcome
    assert set(welcome) == {"protocol", "server", "session", "device", "devices", "limits"}
    assert welcome["protocol"] == 1
    assert welcome["server"].startswith("vkqueue/")
    assert type(welcome["session"]) is int
    device = welcome["devices"][welcome["device"]]
    assert set(device) == {
        "index", "uuid", "name", "type", "driver", "api_version", "memory_bytes", "limits", "features",
    }  # fmt: skip
    assert device["index"] == welcome["device"] == 0
    assert device["type"] in ("discrete", "integrated", "virtual", "cpu", "other")
    assert len(bytes.fromhex(device["uuid"])) == 16
    assert [int(part) for part in device["api_version"].split(".")] >= [1, 1, 0]
    assert all(type(value) is bool for value in device["features"].values())
    limits = welcome["limits"]
    assert limits["max_message_bytes"] == 64 * 2**20
    assert limits["max_buffers"] == 65_536
    assert limits["max_queued_jobs"] == 4_096
    assert limits["max_memory_bytes"] == device["memory_bytes"] // 2


def test_S19_the_device_tells_all_that_decides_what_it_runs(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        [device] = client.call("devices")
        assert device == client.welcome["devices"][0]
    for name in (
        "maxComputeWorkGroupCount", "maxComputeWorkGroupInvocations", "maxComputeWorkGroupSize",
        "maxPushConstantsSize", "maxStorageBufferRange", "maxUniformBufferRange", "maxComputeSharedMemorySize",
        "minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment", "maxPushDescriptors", "subgroupSize",
        "subgroupSupportedOperations", "spirvVersionMajor", "spirvVersionMinor",
    ):  # fmt: skip
        assert name in device["limits"], name
    for name in (
        "shaderFloat64", "shaderInt64", "shaderInt16", "shaderInt8", "shaderFloat16", "storageBuffer16BitAccess",
        "storageBuffer8BitAccess", "robustBufferAccess",
    ):  # fmt: skip
        assert name in device["features"], name
    assert device["features"]["robustBufferAccess"]
    assert device["limits"]["spirvVersionMajor"] == 1


def test_sessions_have_numbers_of_their_own(any_daemon: Daemon) -> None:
    with any_daemon.client() as first, any_daemon.client() as second:
        assert first.welcome["session"] != second.welcome["session"]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"protocol": 2, "client": "x"}, "unsupported"),
        ({"protocol": 0, "client": "x"}, "unsupported"),
        ({"protocol": 2, "client": 3, "other": 4}, "unsupported"),  # whatever else it has
        ({"protocol": "1", "client": "x"}, "invalid"),
        ({"protocol": True, "client": "x"}, "invalid"),
        ({"client": "x"}, "invalid"),
        ({"protocol": 1}, "invalid"),
        ({"protocol": 1, "client": 5}, "invalid"),
        ({"protocol": 1, "client": "x", "device": 99}, "invalid"),
        ({"protocol": 1, "client": "x", "device": -1}, "invalid"),
        ({"protocol": 1, "client": "x", "cliant": "x"}, "invalid"),
    ],
    ids=str,
)
def test_a_hello_that_fails_may_be_tried_again(silent: RawClient, params: dict[str, Any], code: str) -> None:
    with pytest.raises(RemoteError) as error:
        silent.call("hello", **params)
    assert error.value.code == code
    with pytest.raises(RemoteError) as early:
        silent.call("ping")
    assert early.value.code == "protocol"
    assert silent.call("hello", protocol=1, client="x")["protocol"] == 1
    assert silent.call("ping") == {}


def test_nil_device_in_hello_is_the_same_as_none(silent: RawClient) -> None:
    assert silent.call("hello", protocol=1, client="x", device=None)["device"] == 0


def test_a_second_hello_is_invalid(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        assert refused(client, "hello", protocol=1, client="again").code == "invalid"
        assert refused(client, "hello", protocol=7, client="again").code == "invalid"


def test_requests_may_follow_hello_in_the_same_write(silent: RawClient) -> None:
    silent.sock.sendall(
        b"".join(
            msgpack.packb(message)
            for message in (
                [0, 1, "hello", [{"protocol": 1, "client": "x"}]],
                [0, 2, "buffer.create", [{"data": b"hello"}]],
                [0, 3, "buffer.read", [{"buffer": 1}]],
            )
        )
    )
    assert silent.wait(3) == {"data": b"hello"}
    assert silent.wait(2) == {"buffer": 1, "size": 5}
    assert silent.wait(1)["protocol"] == 1


def test_what_follows_a_hello_that_fails_fails_as_well(silent: RawClient) -> None:
    hello, ping = silent.send("hello", protocol=1, client="x", device=99), silent.send("ping")
    for msgid, code in ((hello, "invalid"), (ping, "protocol")):
        with pytest.raises(RemoteError) as error:
            silent.wait(msgid)
        assert error.value.code == code


def test_unknown_methods_are_answered_before_and_after_hello(any_daemon: Daemon, silent: RawClient) -> None:
    with pytest.raises(RemoteError) as early:
        silent.call("buffer.crate")
    assert early.value.code == "protocol"
    with any_daemon.client() as client:
        error = refused(client, "buffer.crate", size=4)
        assert error.code == "unknown_method"
        assert "buffer.create" in error.message


@pytest.mark.parametrize("params", [None, {}, [1], [{}, {}], [None], "x", 3, [[{}]]], ids=repr)
def test_params_that_are_not_one_map_are_invalid_and_the_connection_goes_on(any_daemon: Daemon, params: Any) -> None:
    with any_daemon.client() as client:
        client.send_message([0, 1000, "ping", params])
        with pytest.raises(RemoteError) as error:
            client.wait(1000)
        assert error.value.code == "invalid"
        assert client.call("ping") == {}


def test_notifications_are_ignored_also_when_they_name_a_method(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        buffer = create(client, b"1234")
        for message in (
            [2, "buffer.free", [{"buffer": buffer}]],
            [2, "no such thing", []],
            [2, "hello", "whatever"],
        ):
            client.send_message(message)
        assert client.call("buffer.read", buffer=buffer)["data"] == b"1234"


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (b"\xc1", "protocol"),
        (msgpack.packb("text"), "protocol"),
        (msgpack.packb({"a": 1}), "protocol"),
        (msgpack.packb([]), "protocol"),
        (msgpack.packb([3, 1, "ping", []]), "protocol"),
        (msgpack.packb([1, 1, None, {}]), "protocol"),
        (msgpack.packb([0, -1, "ping", []]), "protocol"),
        (msgpack.packb([0, 2**32, "ping", []]), "protocol"),
        (msgpack.packb([0, 1.0, "ping", []]), "protocol"),
        (msgpack.packb([0, 900, 5, []]), "protocol"),
        (msgpack.packb([0, 900, "ping"]), "protocol"),
        (msgpack.packb([0, 900, "ping", [], 1]), "protocol"),
        (msgpack.packb([0, 900, "ping", [{1: 2}]]), "protocol"),
        (msgpack.packb([0, 900, "dispatch", [{"module": 1, "args": [{"in": {2: 3}}], "grid": [1]}]]), "protocol"),
        (b"\x94\x00\x01\xa4ping\x91\x81\xa1\xff\x01", "protocol"),
        (b"\x91" * 100 + b"\xc0", "protocol"),
        (b"\x94\x00\x01\xa4ping\xc6" + struct.pack(">I", 2**31), "too_large"),
        (b"\x94\x00\x01\xa4ping\xdd" + struct.pack(">I", 2**32 - 1), "too_large"),
        (b"\x94\x00\x01\xa4ping\xdb" + struct.pack(">I", 17 * 2**20), "too_large"),
        (b"\x94\x00\x01\xa4ping\xdd" + struct.pack(">I", 200_000), "protocol"),
    ],
)
def test_rule_26_what_cannot_be_taken_ends_the_connection_with_a_reason(
    any_daemon: Daemon, bytes_sent: bytes, code: str
) -> None:
    with any_daemon.client() as client, any_daemon.client() as other:
        answered = client.send("ping")
        client.sock.sendall(bytes_sent + msgpack.packb([0, 901, "ping", []]))
        [notice] = client.until_closed()
        assert notice[:2] == [2, "error"]
        [error] = notice[2]
        assert error["code"] == code
        assert error["message"]
        assert client.wait(answered) == {}  # what came before was taken
        assert 901 not in client.answers  # nothing behind it is
        assert other.call("ping") == {}


def test_a_msgid_in_use_ends_the_connection(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        twice = [[0, 500, "module.load", [{"spirv": kernel("axpy")}]], [0, 500, "ping", []]]
        client.sock.sendall(b"".join(map(msgpack.packb, twice)))
        [notice] = client.until_closed()
        assert notice[2][0]["code"] == "protocol"
        assert "500" in notice[2][0]["message"]


def test_a_msgid_may_be_used_again_once_it_is_answered(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        for _ in range(3):
            client.msgid = 77
            assert client.call("ping") == {}


@pytest.mark.parametrize("msgid", [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1])
def test_msgids_come_back_in_every_form(any_daemon: Daemon, msgid: int) -> None:
    with any_daemon.client() as client:
        client.msgid = msgid - 1
        assert client.call("ping") == {}
        assert client.order[-1] == msgid


def test_rule_26_a_message_may_come_byte_by_byte(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        data = msgpack.packb([0, 10_000, "buffer.create", [{"data": b"0123456789" * 20}]])
        for byte in data:
            client.sock.sendall(bytes([byte]))
        assert client.wait(10_000)["size"] == 200


@pytest.mark.parametrize(
    ("method", "params", "hint"),
    [
        ("ping", {"x": 1}, "ping"),
        ("buffer.create", {"sise": 4}, "size"),
        ("buffer.read", {"buffer": 1, "ofset": 0}, "offset"),
        ("dispatch", {"module": 1, "args": [], "grid": [1], "priorty": 1}, "priority"),
        ("module.load", {"spirv": b"", "entri": "main"}, "entry"),
        ("cancel", {"msgid": 1, "msg": 1}, "msgid"),
        ("stats", {"all": True}, "stats"),
    ],
)
def test_an_unknown_parameter_is_invalid_and_named(
    any_daemon: Daemon, method: str, params: dict[str, Any], hint: str
) -> None:
    with any_daemon.client() as client:
        error = refused(client, method, **params)
        assert error.code == "invalid"
        assert hint in error.message


def test_nil_is_the_same_as_leaving_out_an_optional_parameter(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        x = client.call("buffer.create", size=256, device=None, data=None)["buffer"]
        assert client.call("buffer.read", buffer=x, offset=None, size=None)["data"] == bytes(256)
        loaded = client.call("module.load", spirv=kernel("axpy"), entry=None, name=None, tvm=None)
        answer = client.call(
            "dispatch",
            module=loaded["module"],
            kernel=None,
            args=[x, x],
            scalars=[64, 0.5],
            grid=[1],
            launch=None,
            specialization=None,
            priority=None,
            deadline_ms=None,
            after=None,
            timing=None,
            device=None,
            label=None,
        )
        assert answer == {"outputs": []}
        assert refused(client, "buffer.free", buffer=None).code == "invalid"


def test_of_equal_keys_the_last_counts(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        # {"size": 4, "size": 8}
        client.sock.sendall(b"\x94\x00\xcd\x03\xe8\xadbuffer.create\x91\x82\xa4size\x04\xa4size\x08")
        assert client.wait(1000)["size"] == 8


def test_every_code_that_was_seen_is_one_of_the_protocols(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        for method, params in (
            ("x", {}), ("buffer.read", {"buffer": 1}), ("module.load", {"spirv": b"1234"}), ("buffer.create", {}),
            ("buffer.create", {"size": 2**62}), ("module.load", {"source": "", "language": "hlsl", "defines": {}}),
        ):  # fmt: skip
            error = refused(client, method, **params)
            assert error.code in CODES
            assert error.message
