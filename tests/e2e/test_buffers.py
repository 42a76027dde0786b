"""Buffers: creation, transfers, ranges, frees, quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon
from support.e2e import code, create, device, kernel, load, read, refused
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [0, 1, 3, 4, 255, 4096, 65_535, 65_536, 1_000_001, 16 * 2**20])
def test_what_is_written_is_read(any_client: RawClient, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    buffer = any_client.call("buffer.create", data=data)
    assert buffer["size"] == size
    assert any_client.call("buffer.read", buffer=buffer["buffer"])["data"] == data
    other = data[::-1]
    assert any_client.call("buffer.write", buffer=buffer["buffer"], data=other) == {}
    assert any_client.call("buffer.read", buffer=buffer["buffer"])["data"] == other
    any_client.call("buffer.free", buffer=buffer["buffer"])


@pytest.mark.parametrize("size", [0, 1, 4097, 2**20])
def test_a_new_buffer_is_zero_whatever_was_there_before(any_client: RawClient, size: int) -> None:
    """Also memory that another client has just filled and given back."""
    for _ in range(3):
        dirty = create(any_client, b"\xff" * max(size, 1))
        any_client.call("buffer.free", buffer=dirty)
        clean = create(any_client, size)
        assert any_client.call("buffer.read", buffer=clean)["data"] == bytes(size)
        any_client.call("buffer.free", buffer=clean)


def test_parts_are_written_and_read_at_any_offset(any_client: RawClient) -> None:
    mirror = bytearray(1000)
    buffer = create(any_client, 1000)
    for offset, size in ((0, 1), (999, 1), (1, 3), (500, 500), (13, 77), (0, 0), (1000, 0), (250, 251)):
        data = bytes([offset % 251 + 1]) * size
        mirror[offset : offset + size] = data
        any_client.call("buffer.write", buffer=buffer, data=data, offset=offset)
        assert any_client.call("buffer.read", buffer=buffer)["data"] == mirror
        assert any_client.call("buffer.read", buffer=buffer, offset=offset)["data"] == mirror[offset:]
        part = any_client.call("buffer.read", buffer=buffer, offset=offset, size=size)["data"]
        assert part == mirror[offset : offset + size]


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 257), (256, 1), (257, 0), (1, 256), (2**63 - 1, 1), (2**62, 2**62), (2**63 - 1, 0)]
)
def test_rule_5_a_range_outside_the_buffer_is_invalid_and_named(
    any_client: RawClient, offset: int, size: int
) -> None:
    buffer = create(any_client, b"x" * 256)
    error = refused(any_client, "buffer.read", buffer=buffer, offset=offset, size=size)
    assert error.code == "invalid"
    assert error.data == {"offset": offset, "size": size, "buffer_size": 256}
    assert "256" in error.message
    if size < 1000:
        error = refused(any_client, "buffer.write", buffer=buffer, offset=offset, data=bytes(size))
        assert error.code == "invalid"
    assert any_client.call("buffer.read", buffer=buffer)["data"] == b"x" * 256


@pytest.mark.parametrize(
    "params",
    [{"offset": -1}, {"size": -1}, {"offset": 1.0}, {"size": "1"}, {"offset": True}, {"offset": 2**63}],
    ids=str,
)
def test_offsets_and_sizes_are_whole_numbers_from_0(any_client: RawClient, params: dict[str, Any]) -> None:
    buffer = create(any_client, 16)
    assert refused(any_client, "buffer.read", buffer=buffer, **params).code == "invalid"


def test_rule_6_an_empty_buffer_is_valid_and_can_be_bound(client: RawClient) -> None:
    empty, y = create(client, 0), create(client, [7] * 64)
    assert client.call("buffer.read", buffer=empty)["data"] == b""
    assert client.call("buffer.write", buffer=empty, data=b"") == {}
    assert refused(client, "buffer.read", buffer=empty, size=1).code == "invalid"
    module = load(client, "axpy")
    answer = client.call("dispatch", module=module, args=[empty, y], scalars=[0, 1.0], grid=[1])
    assert answer == {"outputs": []}
    assert list(read(client, y, np.int64)) == [7] * 64
    assert client.call("buffer.free", buffer=empty) == {}


def test_S16_a_range_of_no_bytes_can_be_bound(client: RawClient) -> None:
    x, y = create(client, np.arange(64, dtype=np.float32)), create(client, 256)
    module = load(client, "measure")
    for entry, length in (([x, 0, 0], 0), ([x, 256, 0], 0), ([x, 0, 4], 1), ({"in": b""}, 0)):
        client.call("dispatch", module=module, args=[entry, y], grid=[1])
        seen = read(client, y, np.uint32)[0]
        assert seen == length or (length == 0 and seen <= 4)  # an empty range is bound as a few bytes of nothing


def test_S16_no_barrier_is_missing_where_nothing_is_written(any_client: RawClient) -> None:
    """The validation layers take a bound byte for one that is written."""
    x, y, empty = create(any_client, 256), create(any_client, 256), create(any_client, 0)
    module = load(any_client, "axpy")
    sent = [
        any_client.send("dispatch", module=module, args=args, scalars=[64, 1.0], grid=[1])
        for _ in range(8)
        for args in ([x, [y, 0, 0]], [[y, 256, 0], empty])
    ]
    for msgid in sent:
        any_client.wait(msgid)


def test_rule_6_a_size_over_the_devices_limits_is_one_clear_error(any_client: RawClient) -> None:
    memory = device(any_client)["memory_bytes"]
    for size in (memory + 1, 2**62, 2**63 - 1):
        error = refused(any_client, "buffer.create", size=size)
        assert error.code in ("too_large", "quota")
        assert str(size) in error.message
        assert read(any_client, create(any_client, b"next")).tobytes() == b"next"
    error = refused(any_client, "buffer.create", size=2**62)
    assert error.code == "too_large"


def test_quotas_name_themselves(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[limits]\nmax_buffers = 3\nmax_memory_bytes = 10000\nmax_modules = 2\n")
    with daemon.client() as client, daemon.client() as other:
        limits = client.welcome["limits"]
        assert (limits["max_buffers"], limits["max_memory_bytes"]) == (3, 10000)
        first = create(client, 9000)
        error = refused(client, "buffer.create", size=1001)
        assert (error.code, error.data["quota"]) == ("quota", "max_memory_bytes")  # type: ignore[index]
        create(client, 1000), create(client, 0)
        error = refused(client, "buffer.create", size=0)
        assert (error.code, error.data["quota"]) == ("quota", "max_buffers")  # type: ignore[index]
        assert create(other, 10000)  # each has its own
        client.call("buffer.free", buffer=first)
        assert client.call("buffer.read", buffer=create(client, 9000), size=1)["data"] == b"\0"
        load(client, "axpy"), load(client, "axpy")
        error = refused(client, "module.load", spirv=kernel("mix"))
        assert (error.code, error.data["quota"]) == ("quota", "max_modules")  # type: ignore[index]


def test_rule_7_many_small_buffers_use_a_handful_of_allocations(any_client: RawClient) -> None:
    before = any_client.call("stats")["devices"][0]["memory"]["allocations"]
    msgids = []
    for index in range(10_000):
        msgids.append(any_client.send("buffer.create", size=256))
        if index % 1000 == 999:
            for msgid in msgids:
                any_client.wait(msgid)
            msgids.clear()
    stats = any_client.call("stats")
    assert stats["devices"][0]["memory"]["allocations"] <= before + 8
    assert stats["buffers"] >= 10_000


def test_rule_7_all_of_them_are_gone_with_their_connection(any_daemon: Daemon) -> None:
    with any_daemon.client() as client:
        for _ in range(500):
            client.send("buffer.create", size=4096)
        client.call("ping")
    with any_daemon.client() as client:
        while client.call("stats")["buffers"] or client.call("stats")["clients"] > 1:
            pass


def test_rule_4_a_buffer_freed_behind_its_use_is_used_all_the_same(client: RawClient) -> None:
    module = load(client, "mix")
    for _ in range(20):
        x, y = create(client, np.full(64, 3, np.uint32)), create(client, np.full(64, 2, np.uint32))
        launch = client.send("dispatch", module=module, args=[x, y], scalars=[64, 5], grid=[1])
        result = client.send("buffer.read", buffer=y)
        frees = [client.send("buffer.free", buffer=buffer) for buffer in (x, y)]
        dead = client.send("buffer.read", buffer=y)
        assert client.wait(frees[0]) == client.wait(frees[1]) == {}
        assert code(client, dead) == "not_found"
        assert client.wait(launch) == {"outputs": []}
        assert (np.frombuffer(client.wait(result)["data"], np.uint32) == 31 * 2 + 3 + 5).all()


def test_rule_12_an_upload_may_reuse_its_source_at_once(any_client: RawClient) -> None:
    """The daemon has its own copy: many writes in flight, each from the same memory with other content."""
    buffers = [create(any_client, 65536) for _ in range(16)]
    source = bytearray(65536)
    msgids = []
    for value, buffer in enumerate(buffers):
        source[:] = bytes([value]) * len(source)
        msgids.append(any_client.send("buffer.write", buffer=buffer, data=bytes(source)))
    for msgid in msgids:
        any_client.wait(msgid)
    for value, buffer in enumerate(buffers):
        assert any_client.call("buffer.read", buffer=buffer)["data"] == bytes([value]) * 65536


@pytest.fixture
def small_messages(start: Callable[..., Daemon]) -> Iterator[RawClient]:
    """A client of a daemon whose messages hold 64 KiB."""
    limits = "max_message_bytes = 65536\nmax_module_bytes = 65536\nmax_queued_bytes = 65536\nmax_output_bytes = 65536\n"
    with start(config=f"[limits]\n{limits}").client() as client:
        yield client


def test_a_reply_over_a_message_is_too_large_before_anything_runs(small_messages: RawClient) -> None:
    client = small_messages
    assert client.welcome["limits"]["max_message_bytes"] == 65536
    buffer = create(client, 100_000)
    jobs = client.call("stats")["jobs_completed"]
    assert refused(client, "buffer.read", buffer=buffer).code == "too_large"
    error = refused(client, "buffer.read", buffer=buffer, size=65536)
    assert error.code == "too_large"
    assert "65536" in error.message
    module = load(client, "fill")
    assert refused(client, "dispatch", module=module, args=[{"out": 65536}], scalars=[1], grid=[1]).code == "too_large"
    assert client.call("stats")["jobs_completed"] == jobs
    # "a part of 4096 bytes less than the limit always fits"
    assert client.call("buffer.read", buffer=buffer, size=65536 - 4096)["data"] == bytes(65536 - 4096)
    answer = client.call(
        "dispatch", module=module, args=[{"out": 65536 - 4096}], scalars=[1], grid=[1], timing=True
    )
    assert len(answer["outputs"][0]) == 65536 - 4096
    client.call("buffer.write", buffer=buffer, data=bytes(65536 - 4096))


def test_a_request_over_a_message_ends_the_connection(small_messages: RawClient) -> None:
    small_messages.sock.sendall(b"\x94\x00\x05\xacbuffer.write\x91\x81\xa4data\xc6\x00\x01\x00\x00")
    [notice] = small_messages.until_closed()
    assert notice[2][0]["code"] == "too_large"
    assert "65536" in notice[2][0]["message"]


def test_buffer_copy_moves_bytes_on_the_device(client: RawClient) -> None:
    source, target = create(client, bytes(range(200))), create(client, b"\xee" * 300)
    assert client.call("buffer.copy", source=source, target=target, source_offset=7, target_offset=100, size=50) == {}
    expected = bytearray(b"\xee" * 300)
    expected[100:150] = bytes(range(7, 57))
    assert client.call("buffer.read", buffer=target)["data"] == expected
    assert client.call("buffer.copy", source=source, target=source, target_offset=100, size=100) == {}
    assert client.call("buffer.read", buffer=source)["data"] == bytes(range(100)) * 2
    for wrong in (
        {"source_offset": 201},
        {"size": 201},
        {"target_offset": 299, "size": 2},
        {"target": source, "target_offset": 10, "size": 11},
    ):
        assert refused(client, "buffer.copy", **{"source": source, "target": target, **wrong}).code == "invalid"
    assert refused(client, "buffer.copy", source=source, target=999).code == "not_found"
