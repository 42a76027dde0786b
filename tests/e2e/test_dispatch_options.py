"""The rarer parameters of a dispatch, cancel, and what a queue does under load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon
from support.e2e import SLOW, code, create, device, kernel, load, read, refused
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu


class Busy:
    """A client whose device has a long launch to do, behind which everything queues."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.axpy = load(client, "axpy")
        self.x, self.y = create(client, np.full(64, 2, np.float32)), create(client, 256)
        self.quick(1)

    def quick(self, k: float, **params: Any) -> None:
        self.client.wait(self.send(k, **params))

    def send(self, k: float, **params: Any) -> int:
        given = {"module": self.axpy, "args": [self.x, self.y], "scalars": [64, k], "grid": [1], **params}
        return self.client.send("dispatch", **given)

    def block(self) -> list[int]:
        """Something long: with one batch in flight, what comes next stays queued for a while."""
        long = self.send(0, grid=[65535, 64])
        while not self.client.call("stats")["devices"][0]["batches_in_flight"]:
            assert long not in self.client.answers
        return [long]


@pytest.fixture(scope="module")
def one_batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one batch in flight, so that one long launch holds up the others."""
    daemon = Daemon(tmp_path_factory.mktemp("one-batch"), config="[batching]\nbatches_in_flight = 1\n")
    yield daemon
    assert daemon.stop() == 0
    assert not daemon.complaints()


@pytest.fixture
def busy(one_batch: Daemon) -> Iterator[Busy]:
    with one_batch.client() as client:
        if device(client)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        yield Busy(client)


def test_timing(client: RawClient) -> None:
    module = load(client, "axpy")
    x, y = create(client, 256), create(client, 256)
    answer = client.call("dispatch", module=module, args=[x, y], timing=True, scalars=[64, 0.5], grid=SLOW)
    assert set(answer) == {"outputs", "timing", "device"}
    assert answer["device"] == client.welcome["device"]
    timing = answer["timing"]
    assert set(timing) == {"queued_us", "device_us", "total_us"}
    assert all(type(value) is int for value in timing.values())
    assert 0 < timing["device_us"] <= timing["total_us"]
    assert 0 <= timing["queued_us"] <= timing["total_us"]
    plain = client.call("dispatch", module=module, args=[x, y], scalars=[0, 0], grid=[1], timing=False)
    assert plain == {"outputs": []}
    none = client.call("dispatch", module=module, args=[x, y], scalars=[0, 0], grid=[0], timing=True)
    assert none["timing"]["total_us"] >= 0


def test_S17_labels(client: RawClient) -> None:
    module = load(client, "axpy")
    x = create(client, 256)
    for label in ("", "a label", "ünïcødé ✓", "x" * 100_000):
        params = {"module": module, "args": [x, x], "scalars": [64, 0], "grid": [1]}
        assert client.call("dispatch", **params, label=label) == {"outputs": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 101}, {"priority": -101}, {"priority": 1.0}, {"priority": "1"}, {"priority": True},
        {"deadline_ms": 0}, {"deadline_ms": -1}, {"deadline_ms": 1.5}, {"deadline_ms": 2**63},
        {"after": 1}, {"after": ["1"]}, {"after": [-1]}, {"after": [2**32]}, {"after": [1.0]}, {"after": [True]},
        {"timing": 1}, {"timing": "yes"}, {"device": -1}, {"device": 99}, {"device": "0"}, {"device": True},
        {"label": 5}, {"label": b"x"}, {"kernel": 5}, {"kernel": b"main"}, {"specialization": []},
        {"specialization": {"0": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_invalid(any_client: RawClient, wrong: dict[str, Any]) -> None:
    module = load(any_client, "axpy")
    x = create(any_client, 256)
    good = {"module": module, "args": [x, x], "grid": [1], "scalars": [1, 1]}
    error = refused(any_client, "dispatch", **{**good, **wrong})
    assert error.code == "invalid"
    assert next(iter(wrong)) in error.message


@pytest.mark.parametrize(
    "right", [{"priority": 100}, {"priority": -100}, {"deadline_ms": 2**63 - 1}, {"after": []}], ids=str
)
def test_options_to_the_edge(any_client: RawClient, right: dict[str, Any]) -> None:
    module = load(any_client, "axpy")
    x = create(any_client, 256)
    params = {"module": module, "args": [x, x], "grid": [1], "scalars": [1, 1]}
    assert any_client.call("dispatch", **params, **right) == {"outputs": []}


def test_rule_19_a_deadline_passes_behind_a_long_launch(busy: Busy) -> None:
    client = busy.client
    long = busy.block()
    started = time.monotonic()
    expired = busy.send(1.0, deadline_ms=20)
    patient = busy.send(1.0, deadline_ms=60_000)
    assert code(client, expired) == "expired"
    assert time.monotonic() - started >= 0.02
    assert not any(msgid in client.answers for msgid in long)  # on time, while the device is still busy
    for msgid in (*long, patient):
        assert client.wait(msgid) == {"outputs": []}
    assert (read(client, busy.y, np.float32) == 4.0).all()  # that of `quick` and of the patient one, not of the expired


def test_cancel_takes_out_what_is_queued_and_nothing_else(busy: Busy) -> None:
    client = busy.client
    long = busy.block()
    queued = [busy.send(1.0) for _ in range(3)]
    assert client.call("cancel", msgid=queued[1]) == {"cancelled": True}
    assert client.order[-2:] == [queued[1], client.msgid]  # its own answer came first
    assert code(client, queued[1]) == "cancelled"
    assert client.call("cancel", msgid=queued[1]) == {"cancelled": False}
    assert client.call("cancel", msgid=long[0]) == {"cancelled": False}
    assert client.call("cancel", msgid=1) == {"cancelled": False}
    assert client.call("cancel", msgid=2**32 - 1) == {"cancelled": False}
    for msgid in (*long, queued[0], queued[2]):
        client.wait(msgid)
    assert client.call("cancel", msgid=queued[0]) == {"cancelled": False}
    assert (read(client, busy.y, np.float32) == 6.0).all()


def test_cancel_of_transfers_and_creations(busy: Busy) -> None:
    client = busy.client
    busy.block()
    write = client.send("buffer.write", buffer=busy.y, data=bytes(256))
    created = client.send("buffer.create", size=64)
    handle = busy.y + 1
    result = client.send("buffer.read", buffer=busy.y)
    for msgid in (write, created):
        assert client.call("cancel", msgid=msgid) == {"cancelled": True}
        assert code(client, msgid) == "cancelled"
    assert (np.frombuffer(client.wait(result)["data"], np.float32) == 2.0).all()
    assert refused(client, "buffer.read", buffer=handle).code == "not_found"


def test_cancel_of_what_waits_for_its_module(any_client: RawClient) -> None:
    """The whole conversation in one write: the launch may or may not have been submitted, and says which."""
    client = any_client
    client.call("buffer.create", size=256, **{"as": 1})
    spirv = kernel("axpy")
    generator = int.from_bytes(spirv[8:12], "little") ^ 0x5A5A
    client.send("module.load", spirv=spirv[:8] + generator.to_bytes(4, "little") + spirv[12:], **{"as": 2})
    launch = client.send("dispatch", module=2, args=[1, 1], scalars=[64, 1.0], grid=[1])
    cancelled = client.call("cancel", msgid=launch)["cancelled"]
    assert code(client, launch) == ("cancelled" if cancelled else None)


@pytest.mark.parametrize("wrong", [{}, {"msgid": -1}, {"msgid": "1"}, {"msgid": 1.0}, {"msgid": 2**32}], ids=str)
def test_cancel_takes_a_msgid(any_client: RawClient, wrong: dict[str, Any]) -> None:
    assert refused(any_client, "cancel", **wrong).code == "invalid"


def test_after_a_failure_nothing_that_names_it_runs(busy: Busy) -> None:
    client = busy.client
    busy.block()
    doomed = busy.send(1.0)
    behind = busy.send(1.0, after=[doomed])
    further = busy.send(1.0, after=[behind])
    free = busy.send(1.0)
    assert client.call("cancel", msgid=doomed) == {"cancelled": True}
    assert [code(client, msgid) for msgid in (doomed, behind, further)] == ["cancelled", "dependency", "dependency"]
    assert client.wait(free) == {"outputs": []}
    assert (read(client, busy.y, np.float32) == 4.0).all()
    assert code(client, busy.send(1.0, after=[doomed])) == "dependency"
    assert code(client, busy.send(1.0, after=[free])) is None


def test_priority_lets_a_later_job_pass(busy: Busy) -> None:
    client = busy.client
    others = [(create(client, 256), create(client, 256)) for _ in range(2)]
    busy.block()
    low = busy.send(0, args=list(others[0]), priority=-1, grid=SLOW)
    high = busy.send(0, args=list(others[1]), priority=1, grid=SLOW)
    client.wait(low), client.wait(high)
    assert client.order.index(high) < client.order.index(low) or client.order[-2:] == [high, low]


def test_rule_20_23_past_the_queue_overloaded_at_once_and_control_goes_on(start: Callable[..., Daemon]) -> None:
    daemon = start(
        config="[batching]\nbatches_in_flight = 1\n[limits]\nmax_queued_jobs = 10\n",
        validation=False,
    )
    with daemon.client() as client, daemon.client() as other:
        if device(client)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        busy = Busy(client)
        msgids = busy.block() + [busy.send(1.0) for _ in range(9)]
        for _ in range(5):
            assert code(client, busy.send(1.0)) == "overloaded"
        assert client.call("ping") == {}
        assert client.call("stats")["jobs_queued"] >= 9
        assert client.call("cancel", msgid=msgids[-1]) == {"cancelled": True}
        assert other.call("ping") == {}
        assert not any(msgid in client.answers for msgid in msgids[:-1])  # all that at once
        for msgid in msgids[:-1]:
            client.wait(msgid)
        assert busy.client.wait(busy.send(1.0)) == {"outputs": []}


def test_rule_25_stats_count_batches_and_their_reasons(any_client: RawClient) -> None:
    stats = any_client.call("stats")
    assert set(stats) >= {
        "clients", "buffers", "memory_bytes", "jobs_queued", "jobs_completed", "jobs_failed", "batches", "submits",
        "devices",
    }  # fmt: skip
    for one in stats["devices"]:
        assert set(one) >= set(stats) - {"devices", "uptime_s"}
        assert set(one["closed"]) == {"idle", "full", "delay", "backlog"}
        assert sum(one["closed"].values()) >= one["batches"]
    assert stats["batches"] == sum(one["batches"] for one in stats["devices"])
    before = any_client.call("stats")
    create(any_client, 16)
    after = any_client.call("stats")
    assert after["jobs_completed"] == before["jobs_completed"] + 1
    assert after["buffers"] == before["buffers"] + 1


def test_rule_2_clients_that_alternate_share_submits(one_batch: Daemon) -> None:
    """Behind a long launch the jobs of both pile up, and leave together."""
    with one_batch.client() as first, one_batch.client() as second:
        if device(first)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        sides = [Busy(first), Busy(second)]
        before = first.call("stats")["submits"]
        long = sides[0].block()
        msgids = [(side, side.send(1.0)) for _ in range(50) for side in sides]
        for side, msgid in msgids:
            side.client.wait(msgid)
        for msgid in long:
            first.wait(msgid)
        assert first.call("stats")["submits"] - before <= 4
        for side in sides:
            assert (read(side.client, side.y, np.float32) == 2.0 + 100.0).all()


def test_rule_38_a_batch_past_its_limit_is_answered_while_it_runs(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[batching]\nbatch_timeout_s = 0.05\n")
    with daemon.client() as client, daemon.client() as other:
        if device(client)["type"] != "cpu":
            pytest.skip("nothing here takes long on a GPU")
        module = load(client, "fill")
        y = create(client, 256)
        late = client.send("dispatch", module=module, args=[y], scalars=[7], grid=[65535, 64])
        assert code(client, late) == "timeout"
        stats = other.call("stats")["devices"][0]
        assert stats["batches_in_flight"] == 1  # answered while it runs
        again = client.send("buffer.read", buffer=y)
        assert client.call("buffer.free", buffer=y) == {}  # its objects stay until the fence is known
        assert code(client, again) in ("timeout", None)  # it waits for the launch: the order holds
        while other.call("stats")["devices"][0]["batches_in_flight"]:
            pass
        answer = client.call("dispatch", module=module, args=[{"out": 256}], scalars=[9], grid=[1])
        assert (np.frombuffer(answer["outputs"][0], np.uint32) == np.arange(9, 73)).all()
        assert other.call("stats")["buffers"] == 0
