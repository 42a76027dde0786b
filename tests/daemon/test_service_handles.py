"""Handles: who counts, what burns one, and what a dead one means."""

from __future__ import annotations

from typing import Any

import pytest
from support.inprocess import AXPY, InProcessClient, Rig, ServiceError, axpy

from vkqueue.errors import InternalError, InvalidError, NotFoundError, OutOfDeviceMemoryError
from vkqueue.wire.messages import METHODS

# What makes a creating request fail, whatever its handle: (method, parameters, code).
FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("buffer.create", {"size": -1}, "invalid"),
    ("buffer.create", {"size": "1"}, "invalid"),
    ("buffer.create", {"size": 4, "sise": 5}, "invalid"),
    ("buffer.create", {}, "invalid"),
    ("buffer.create", {"size": 4, "data": b"1234"}, "invalid"),
    ("buffer.create", {"size": 4, "device": 7}, "invalid"),
    ("buffer.create", {"size": 2**62}, "too_large"),
    ("buffer.create", {"size": 2**29 + 1}, "quota"),
    ("module.load", {"spirv": b""}, "invalid"),
    ("module.load", {"spirv": AXPY, "entry": "nobody"}, "not_found"),
    ("module.load", {"spirv": AXPY, "entree": "main"}, "invalid"),
    ("module.load", {"tvm": b"no module"}, "invalid"),
]


def code_of(client: InProcessClient, rig: Rig, method: str, **params: Any) -> str | None:
    msgid = client.send(method, **params)
    rig.settle()
    return client.code(msgid)


async def test_every_method_has_a_handler(rig: Rig) -> None:
    """Of each nothing is given: what needs something says so, and nothing is beyond the daemon."""
    client = rig.client()
    codes = {method: code_of(client, rig, method) for method in METHODS}
    assert set(codes.values()) == {None, "invalid"}, codes


@pytest.mark.parametrize(("method", "params", "code"), FAILURES, ids=lambda value: str(value)[:40])
async def test_rule_28_a_failed_creation_burns_its_handle(
    rig: Rig, method: str, params: dict[str, Any], code: str
) -> None:
    client = rig.client()
    assert code_of(client, rig, method, **params, **{"as": 5}) == code
    for name, use in (
        ("buffer.free", {"buffer": 5}),
        ("buffer.read", {"buffer": 5}),
        ("buffer.write", {"buffer": 5, "data": b"1"}),
        ("module.unload", {"module": 5}),
        ("module.inspect", {"module": 5, "format": "json"}),
        ("dispatch", {"module": 5, "args": [], "grid": [1]}),
    ):
        assert code_of(client, rig, name, **use) == "not_found", name
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 5}) == "invalid"
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 6}) is None


@pytest.mark.parametrize(("method", "params", "code"), FAILURES, ids=lambda value: str(value)[:40])
async def test_the_first_creation_decides_who_counts_even_if_it_fails(
    rig: Rig, method: str, params: dict[str, Any], code: str
) -> None:
    chooses = rig.client()
    assert code_of(chooses, rig, method, **params, **{"as": 1}) == code
    assert code_of(chooses, rig, "buffer.create", size=4) == "invalid"
    counted = rig.client()
    assert code_of(counted, rig, method, **params) == code
    assert code_of(counted, rig, "buffer.create", size=4, **{"as": 1000}) == "invalid"
    assert code_of(counted, rig, "buffer.create", size=4) is None


@pytest.mark.parametrize("wrong", [0, -1, 2**31, 1.0, "1", True, [1]], ids=repr)
async def test_a_wrong_as_is_invalid_and_decides_all_the_same(rig: Rig, wrong: Any) -> None:
    client = rig.client()
    assert code_of(client, rig, "buffer.create", size=4, **{"as": wrong}) == "invalid"
    assert code_of(client, rig, "buffer.create", size=4) == "invalid"
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 1}) is None
    assert code_of(client, rig, "buffer.create", size=4, **{"as": wrong}) == "invalid"


async def test_nil_as_is_the_same_as_none(rig: Rig) -> None:
    client = rig.client()
    assert client.call("buffer.create", size=4, **{"as": None})["buffer"] == 1
    assert client.call("buffer.create", size=4)["buffer"] == 2


async def test_the_daemon_counts_up_from_1_over_modules_and_buffers(rig: Rig) -> None:
    client = rig.client()
    assert [client.buffer(), client.load(), client.buffer(0), client.load()] == [1, 2, 3, 4]
    client.call("buffer.free", buffer=3)
    assert client.buffer() == 5


async def test_the_largest_handle_is_the_last(rig: Rig) -> None:
    client = rig.client()
    assert client.call("buffer.create", size=4, **{"as": 2**31 - 1})["buffer"] == 2**31 - 1
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 2**31 - 1}) == "invalid"


async def test_rule_28_a_handle_of_another_connection_is_as_unknown_as_one_that_never_was(rig: Rig) -> None:
    owner, other = rig.client(), rig.client()
    buffer, module = owner.buffer(), owner.load()
    answers = []
    for handle_of_buffer, handle_of_module in ((buffer, module), (buffer + 100, module + 100)):
        texts = []
        for method, params in (
            ("buffer.read", {"buffer": handle_of_buffer}),
            ("buffer.free", {"buffer": handle_of_buffer}),
            ("module.unload", {"module": handle_of_module}),
        ):
            with pytest.raises(ServiceError) as error:
                other.call(method, **params)
            texts.append((error.value.code, error.value.message.replace(str(handle_of_buffer + 1), "B")))
        answers.append([(code, "".join(c for c in text if not c.isdigit())) for code, text in texts])
    assert answers[0] == answers[1]
    assert owner.call("buffer.read", buffer=buffer)["data"] == bytes(256)


async def test_a_module_is_no_buffer_and_a_buffer_no_module(rig: Rig) -> None:
    client = rig.client()
    buffer, module = client.buffer(), client.load()
    assert code_of(client, rig, "buffer.read", buffer=module) == "not_found"
    assert code_of(client, rig, "buffer.free", buffer=module) == "not_found"
    assert code_of(client, rig, "module.unload", module=buffer) == "not_found"
    assert code_of(client, rig, "dispatch", **axpy(buffer, buffer, buffer)) == "not_found"
    assert code_of(client, rig, "dispatch", **axpy(module, module, buffer)) == "not_found"


@pytest.mark.parametrize("handle", [0, -1, 2**63, 2**64 - 1, -(2**63)], ids=str)
async def test_a_number_that_can_be_no_handle_is_not_found(rig: Rig, handle: int) -> None:
    client = rig.client()
    assert code_of(client, rig, "buffer.free", buffer=handle) == "not_found"
    assert code_of(client, rig, "module.unload", module=handle) == "not_found"


@pytest.mark.parametrize("handle", [True, 1.0, "1", None, [1], b"1"], ids=repr)
async def test_what_is_no_integer_names_nothing_even_where_it_equals_a_handle(rig: Rig, handle: Any) -> None:
    """Also once the launch with the true handles is cached: True == 1 == 1.0 as a key."""
    client = rig.client()
    module, x, y = client.load(), client.buffer(), client.buffer()
    assert (module, x) == (1, 2)
    client.call("dispatch", **axpy(module, x, y))
    assert code_of(client, rig, "dispatch", **axpy(handle, x, y)) == "invalid"
    other = rig.client()
    x, y, module = other.buffer(), other.buffer(), other.load()
    other.call("dispatch", **axpy(module, x, y))
    assert code_of(other, rig, "dispatch", **axpy(module, handle, y)) == "invalid"


async def test_as_lets_everything_be_sent_at_once(rig: Rig) -> None:
    client = rig.client()
    rig.helper.holding = True
    create_x, create_y, load, launch, read, free = client.burst(
        ("buffer.create", {"size": 256, "as": 1}),
        ("buffer.create", {"data": bytes(256), "as": 2}),
        ("module.load", {"spirv": AXPY, "as": 3}),
        ("dispatch", axpy(3, 1, 2)),
        ("buffer.read", {"buffer": 2}),
        ("buffer.free", {"buffer": 1}),
    )
    rig.settle()
    assert client.result(create_x) == {"buffer": 1, "size": 256}
    assert client.result(create_y) == {"buffer": 2, "size": 256}
    assert not client.has(launch)
    rig.helper.holding = False
    rig.settle()
    assert client.result(load)["module"] == 3
    assert client.result(launch) == {"outputs": []}
    assert client.result(read) == {"data": bytes(256)}
    assert client.result(free) == {}


async def test_users_of_a_failed_load_are_not_found(rig: Rig) -> None:
    client = rig.client()
    rig.helper.holding = True
    load, launch, inspect, unload = client.burst(
        ("module.load", {"spirv": AXPY, "as": 1}),
        ("dispatch", axpy(1, {"in": bytes(256)}, {"out": 256})),
        ("module.inspect", {"module": 1, "format": "json"}),
        ("module.unload", {"module": 1}),
    )
    rig.helper.answer(InvalidError("scripted"))
    assert [client.code(msgid) for msgid in (load, launch, inspect, unload)] == ["invalid", *["not_found"] * 3]


async def test_a_creation_that_waits_keeps_its_handle_when_it_is_cancelled(rig: Rig) -> None:
    """It burnt its handle on receipt, also where it could not even be looked at."""
    client = rig.client()
    rig.helper.holding = True
    client.burst(("module.load", {"spirv": AXPY, "as": 1}), ("module.inspect", {"module": 1, "format": "json"}))
    create = client.send("buffer.create", size=4, **{"as": 2})
    assert client.call("cancel", msgid=create) == {"cancelled": True}
    assert client.code(create) == "cancelled"
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 2}) == "invalid"
    rig.helper.answer()
    assert code_of(client, rig, "buffer.create", size=4, **{"as": 3}) is None


async def test_a_load_that_meets_a_fault_of_the_daemon_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client()
    monkeypatch.setattr(rig.service.devices[0], "unsupported", lambda *args, **options: 1 // 0)
    rig.helper.holding = True
    load, use = client.burst(
        ("module.load", {"spirv": AXPY, "as": 1}), ("module.inspect", {"module": 1, "format": "json"})
    )
    rig.helper.answer()
    assert client.code(load) == "internal"
    assert client.code(use) == "not_found"
    assert client.call("ping") == {}


@pytest.mark.parametrize("freed_first", [False, True])
async def test_a_creation_that_fails_on_the_device_gives_everything_back_once(rig: Rig, freed_first: bool) -> None:
    client = rig.client()
    create = client.send("buffer.create", size=4096)
    if freed_first:
        assert client.result(client.send("buffer.free", buffer=1)) == {}
    rig.thread.finish({create: OutOfDeviceMemoryError("scripted")})
    assert client.code(create) == "out_of_memory"
    rig.settle()
    assert (client.session.buffers, client.session.memory_bytes) == (0, 0)
    assert code_of(client, rig, "buffer.free", buffer=1) == "not_found"


async def test_who_was_queued_behind_a_creation_that_was_cancelled_is_told_without_the_daemons_own_numbers(
    rig: Rig
) -> None:
    client = rig.client()
    rig.service.devices[0].batcher.max_batch_delay_ns = 0
    for _ in range(3):
        client.send("buffer.create", size=64)
    create, read = client.send("buffer.create", size=64), client.send("buffer.read", buffer=4)
    assert client.call("cancel", msgid=create) == {"cancelled": True}
    while len(rig.thread.batches) > 1:
        rig.thread.finish()
    rig.thread.finish({read: NotFoundError("Buffer 4711 was never created or is gone", {"buffer": 4711})})
    with pytest.raises(ServiceError) as error:
        client.result(read)
    assert (error.value.code, error.value.data) == ("not_found", None)
    assert "4711" not in error.value.message
    assert client.code(create) == "cancelled"


async def test_users_of_a_creation_that_fails_on_the_device(rig: Rig) -> None:
    client = rig.client()
    create = client.send("buffer.create", size=4096)
    rig.thread.finish({create: InternalError("scripted")})
    assert client.code(create) == "internal"
    for method, params in (("buffer.read", {}), ("buffer.write", {"data": b"1"}), ("buffer.free", {})):
        assert code_of(client, rig, method, buffer=1, **params) == "not_found"
