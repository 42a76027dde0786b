"""dispatch_many in the service: parts, one answer whatever happens to them, and what it waits for."""

from __future__ import annotations

import asyncio
import importlib
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.inprocess import InProcessClient, Rig, ServiceError, axpy

from vkqueue.errors import JobTimeoutError, OutOfDeviceMemoryError
from vkqueue.jobs.pace import PART_NS, Pace
from vkqueue.model import MANY, ROW_MSGID, ROW_OP, ROW_PAYLOAD, Batch, Completion, Row

PART = PART_NS // Pace().launch_ns(1, 1)
"""Launches of a kernel in one part, as long as it is not known how long they take."""
LARGE = 5 * PART + 7
ROW = 256


@pytest.fixture
def make_rig(make_rig: Callable[..., Rig]) -> Callable[..., Rig]:
    """NumPy is there already, so that requests are admitted at once."""

    def make(**options: object) -> Rig:
        rig = make_rig(**options)
        rig.service.many._columns = importlib.import_module("vkqueue.kernels.many")
        return rig

    return make


def prepared(rig: Rig, rows: int = 1, **params: Any) -> tuple[InProcessClient, int, int, int]:
    """A client with AXPY built, a source and a target of so many rows."""
    client = rig.client(**params)
    module, x, y = client.load(), client.buffer(ROW), client.buffer(ROW * rows)
    client.call("dispatch", **axpy(module, x, [y, 0, ROW]))
    return client, module, x, y


def rows_of(y: int, count: int) -> dict[str, Any]:
    return {"buffer": y, "offsets": struct.pack(f"<{count}Q", *(ROW * i for i in range(count))), "size": ROW}


def many(module: int, x: Any, y: Any, count: int, **params: Any) -> dict[str, Any]:
    args = [x, rows_of(y, count) if isinstance(y, int) else y]
    return {"module": module, "count": count, "args": args, "scalars": [64, 0.5], "grid": [1], **params}


def parts(rig: Rig) -> list[list[tuple[int, int]]]:
    """Of each batch on the device the MANY rows: (msgid, launches)."""
    return [
        [(row[ROW_MSGID], row[ROW_PAYLOAD].count) for row in batch.rows if row[ROW_OP] == MANY]
        for batch in rig.thread.batches
    ]


async def test_one_answer_comes_when_the_last_part_is_done(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    before = rig.service.stats()
    request = client.send("dispatch_many", **many(module, x, y, LARGE))
    for left in (6, 5, 4, 3, 2):
        assert not client.has(request) and len(rig.thread.batches) == min(left, 3)
        assert parts(rig)[0] == [(request, PART)]
        rig.thread.finish()
    assert parts(rig)[-1] == [(request, 7)]
    rig.settle()
    assert client.result(request) == {"count": LARGE}
    after = rig.service.stats()
    assert after["launches"] - before["launches"] == LARGE
    assert after["jobs_completed"] - before["jobs_completed"] == 1


async def test_others_jobs_run_between_the_parts(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    other, *theirs = prepared(rig)
    request = client.send("dispatch_many", **many(module, x, y, LARGE))
    behind = client.send("buffer.read", buffer=y, size=4)
    job = other.launch(*theirs)
    rig.thread.finish()
    assert len(rig.thread.batches) == 3 and not other.has(job)
    while not other.has(job):
        rig.thread.finish()
    assert not client.has(request) and not client.has(behind)
    rig.settle()
    assert client.has(behind) and client.answered[-2:] == [request, behind]


@pytest.mark.parametrize("failing", [0, 1, 5])
async def test_the_first_part_that_fails_is_the_answer(rig: Rig, failing: int) -> None:
    client, module, x, y = prepared(rig, LARGE)
    before = rig.service.stats()
    request = client.send("dispatch_many", **many(module, x, y, LARGE, after=[client.msgid]))
    behind = client.send("buffer.read", buffer=y, size=4)
    for _ in range(failing):
        rig.thread.finish()
    rig.thread.finish({request: OutOfDeviceMemoryError("scripted")})
    assert client.code(request) == "out_of_memory"
    again = client.send("ping")
    client.msgid = request - 1  # the msgid is free again
    second = client.send("dispatch_many", **many(module, x, y, 3))
    client.msgid = again
    rig.settle()
    assert second == request and client.result(second) == {"count": 3} and client.result(behind)
    after = rig.service.stats()
    assert after["jobs_failed"] - before["jobs_failed"] == 1
    assert after["jobs_completed"] - before["jobs_completed"] == 2


async def test_it_can_be_cancelled_until_a_part_is_submitted(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    large = client.send("dispatch_many", **many(module, x, y, LARGE))
    small = client.send("dispatch_many", **many(module, x, y, 3))
    assert client.call("cancel", msgid=large) == {"cancelled": False}
    assert client.call("cancel", msgid=small) == {"cancelled": True}
    assert client.code(small) == "cancelled"
    rig.settle()
    assert client.result(large) == {"count": LARGE}


async def test_a_late_part_is_answered_once(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    request = client.send("dispatch_many", **many(module, x, y, LARGE))
    rig.thread.late(JobTimeoutError("scripted"))
    assert client.code(request) == "timeout"
    rig.settle()
    assert not client.has(request)


async def test_a_lost_device_is_answered_once(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    requests = [client.send("dispatch_many", **many(module, x, y, n)) for n in (LARGE, 2 * PART, 4)]
    rig.thread.finish()
    rig.thread.lose()
    assert [client.code(request) for request in requests] == ["device_lost"] * 3
    rig.thread.open()
    with pytest.raises(ServiceError, match="lost"):
        client.call("dispatch_many", **many(module, x, y, 4))


async def test_the_rest_goes_with_the_connection(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    client.send("dispatch_many", **many(module, x, y, LARGE))
    client.close()
    rig.settle()
    assert rig.service.stats()["jobs_queued"] == 0


async def test_what_is_not_submitted_when_the_drain_ends_is_answered(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    started = client.send("dispatch_many", **many(module, x, y, LARGE))
    queued = client.send("dispatch_many", **many(module, x, y, 4))
    rig.service.drain(lambda: None)
    refused = client.send("dispatch_many", **many(module, x, y, 4))
    rig.service.fail_queued()
    assert [client.code(msgid) for msgid in (started, queued, refused)] == ["shutting_down"] * 3
    rig.settle()


async def test_it_holds_its_bytes_and_counts_as_one_job(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(config={"limits": {"max_queued_jobs": 4}})
    client, module, x, y = prepared(rig, 100)
    never = [client.send("dispatch_many", **many(module, x, y, 100)) for _ in range(4)]
    assert client.session.open_jobs == 4
    assert 4 * 800 <= client.session.queued_bytes < 4 * 2000
    assert client.code(client.send("dispatch_many", **many(module, x, y, 100))) == "overloaded"
    rig.settle()
    assert [client.result(request) for request in never] == [{"count": 100}] * 4
    assert client.session.queued_bytes == 0


async def test_timing_is_of_all_parts(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    request = client.send("dispatch_many", **many(module, x, y, LARGE, timing=True))
    rig.settle()
    answer = client.result(request)
    assert (answer["count"], answer["device"], answer["timing"]["device_us"]) == (LARGE, 0, 6 * 3)
    assert 0 <= answer["timing"]["queued_us"] <= answer["timing"]["total_us"]


async def test_a_failed_dependency_takes_it_along(rig: Rig) -> None:
    client, module, x, y = prepared(rig, LARGE)
    first = client.launch(module, x, [y, 0, ROW])
    behind = client.send("dispatch_many", **many(module, x, y, LARGE, after=[first]))
    rig.thread.finish({first: OutOfDeviceMemoryError("scripted")})
    assert client.code(first) == "out_of_memory" and client.code(behind) == "dependency"


async def test_a_pipeline_is_waited_for(rig: Rig) -> None:
    client = rig.client()
    module, x, y = client.load(), client.buffer(ROW), client.buffer(9 * ROW)
    request = client.send("dispatch_many", **many(module, x, y, 9))
    assert not rig.thread.batches
    rig.thread.build()
    assert parts(rig) == [[(request, 9)]]


async def test_it_runs_where_its_buffers_are(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(devices=2)
    client, module, x, y = prepared(rig, 4, device=0)
    there = client.buffer(4 * ROW, device=1)
    away = client.buffer(ROW, device=1)
    for target in ({"handles": struct.pack("<2I", there, away)}, rows_of(there, 2)):
        request = client.send("dispatch_many", **many(module, {"in": bytes(ROW)}, target, 2))
        rig.settle()
        assert client.result(request) == {"count": 2}
    mixed = client.send("dispatch_many", **many(module, x, {"handles": struct.pack("<3I", y, y, away)}, 3))
    with pytest.raises(ServiceError, match=r"launch 2: .* is on device 1, others of this job on 0"):
        client.result(mixed)
    for wrong in (rows_of(there, 2), {"handles": struct.pack("<2I", there, y)}):
        assert client.code(client.send("dispatch_many", **many(module, x, wrong, 2))) == "invalid"
    other = client.send("dispatch_many", **many(module, x, y, 2, device=1))
    assert client.code(other) == "invalid"


async def test_handles_that_name_no_buffer(rig: Rig) -> None:
    client, module, x, y = prepared(rig, 4)
    for handle in (0, module, 999, 2**32 - 1):
        wrong = {"handles": struct.pack("<3I", y, y, handle)}
        with pytest.raises(ServiceError, match=f"launch 2: .*no buffer {handle}") as caught:
            client.result(client.send("dispatch_many", **many(module, x, wrong, 3)))
        assert caught.value.code == "not_found"
    assert client.code(client.send("dispatch_many", **many(module, x, {"array": 3}, 3))) == "invalid"
    assert client.code(client.send("dispatch_many", **many(module, x, {"handles": b"123"}, 3))) == "invalid"
    assert client.code(client.send("dispatch_many", **many(999, x, y, 3))) == "not_found"


@pytest.mark.parametrize("measured", [False, True])
async def test_parts_are_as_large_as_their_time_allows(rig: Rig, measured: bool) -> None:
    """That of the launches alone, where the device tells; else they are taken for all that the batch did."""
    client, module, x, y = prepared(rig, LARGE)

    as_ever = rig.thread.completion
    launch_us = 0
    others_ns = 50_000_000 if measured else 0

    def completion(batch: Batch, *more: Any) -> Completion:
        """Launches take so long, and what else there is; batches follow one another without a gap."""
        nonlocal clock
        done = as_ever(batch, *more)
        done.submitted_ns = clock
        done.finished_ns = clock = clock + others_ns + sum(map(took_ns, batch.rows))
        if not measured:
            done.spent_ns = {}
        return done

    def took_ns(row: Row) -> int:
        return int(row[ROW_PAYLOAD].count) * launch_us * 1000

    rig.thread.row_ns = took_ns
    clock = 10**18
    rig.thread.completion = completion  # type: ignore[method-assign]

    def first_part(us: int, count: int = LARGE, **params: Any) -> int:
        nonlocal launch_us
        launch_us = us
        request = client.send("dispatch_many", **many(module, x, y, count, **params))
        size = parts(rig)[0][0][1]
        rig.settle()
        assert client.result(request) == {"count": count}
        return size

    assert first_part(1000) == PART
    assert first_part(1000) == 10  # 10 ms of them
    for _ in range(20):
        grown = first_part(2, 100)
    assert grown == 100 and first_part(2) > 100
    assert first_part(1000, grid=[100]) == PART  # another grid is another matter
    rig.thread.completion = as_ever  # type: ignore[method-assign]


async def test_arguments_that_come_again_are_known(rig: Rig) -> None:
    client, module, x, y = prepared(rig, 20)
    z = client.buffer(ROW)

    def args(count: int = 20, target: Any = None) -> Any:
        client.send("dispatch_many", **many(module, x, y if target is None else target, count))
        found = rig.thread.batches[-1].rows[-1][ROW_PAYLOAD].args
        rig.settle()
        return found

    handles = {"handles": struct.pack("<20I", *[y] * 20)}
    known, of_handles = args(), args(target=handles)
    assert args() is known and args(target=handles) is of_handles and known is not of_handles
    assert args(19) is not known and args(target=[y, 0, ROW]) is not known
    assert args(target=[y, 0, ROW]) is args(target=[y, 0, ROW])
    client.call("buffer.free", buffer=z)  # as any buffer that goes, it may be one of them
    again = args()
    assert again is not known and args() is again
    with pytest.raises(ServiceError, match=r"launch 3: grid"):
        grids = struct.pack("<60I", *[1 if i != 10 else 2**31 for i in range(60)])
        client.call("dispatch_many", **many(module, x, y, 20, grid={"grids": grids}))
    client.call("buffer.free", buffer=y)
    with pytest.raises(ServiceError, match="no buffer"):
        client.call("dispatch_many", **many(module, x, y, 20))


async def test_known_arguments_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkqueue.daemon.many._MOST_BYTES", 3 * (100 * 8 + 4096))
    client, module, x, y = prepared(rig, 200)
    table = rig.service.many
    for start in range(10):
        offsets = struct.pack("<100Q", *(ROW * (start + i) for i in range(100)))
        client.call("dispatch_many", **many(module, x, {"buffer": y, "offsets": offsets, "size": ROW}, 100))
        assert len(table._known) == min(start + 1, 3)
    client.call("dispatch_many", **many(module, {"in": bytes(ROW)}, y, 100))
    assert len(table._known) == 3  # data is not kept


# NumPy is imported by the first request


def hold_import(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> threading.Event:
    """Let the import wait for the event."""
    go = threading.Event()

    def imported() -> Any:
        go.wait(20)
        if error is not None:
            raise error
        return importlib.import_module("vkqueue.kernels.many")

    monkeypatch.setattr("vkqueue.daemon.many._import_columns", imported)
    return go


async def test_the_first_requests_wait_for_numpy_and_others_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = hold_import(monkeypatch)
    rig.service.many._columns = None
    client, module, x, y = prepared(rig, 4)
    other, *theirs = prepared(rig)
    first = client.send("dispatch_many", **many(module, x, y, 4))
    behind = client.launch(module, x, [y, 0, ROW])
    expiring = client.send("dispatch_many", **many(module, x, y, 4, deadline_ms=1))
    assert client.result(client.send("ping")) == {}
    second = other.send("dispatch_many", **many(theirs[0], theirs[1], theirs[2], 1))
    assert await client.answer(expiring) == "expired"
    assert not rig.thread.batches and client.session.queued_bytes > 0
    go.set()
    first_done = asyncio.ensure_future(client.answer(first))
    while not first_done.done():
        await asyncio.wait([first_done], timeout=0)
        rig.settle()
    assert other.result(second) == {"count": 1} and client.answered[-2:] == [first, behind]


async def test_without_numpy_the_request_is_unsupported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_import(monkeypatch, ImportError("no module named numpy"))
    rig.service.many._columns = None
    client, module, x, y = prepared(rig, 4)
    first = client.send("dispatch_many", **many(module, x, y, 4))
    go.set()
    assert await client.answer(first) == "unsupported"
    assert client.code(client.send("dispatch_many", **many(module, x, y, 4))) == "unsupported"
