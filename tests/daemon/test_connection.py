"""One client's bytes, over a real socket pair."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.echo import BLOCK, EchoService, LoopClient

from vkqueue.daemon.connection import Connection, HangUps
from vkqueue.daemon.session import Peer
from vkqueue.errors import InternalError, ProtocolError

MIB = 1024 * 1024


class Ends:
    """A connection with a client at its other end. `closed` is set when the connection has ended."""

    def __init__(self, service: EchoService, hang_ups: HangUps, **settings: Any) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.service = service
        self.closed = asyncio.Event()
        self.connection = Connection(
            ours,
            Peer(1, 2, 3),
            service,
            max_output_bytes=settings.get("max_output_bytes", 128 * MIB),
            write_timeout_s=settings.get("write_timeout_s", 20.0),
            hang_ups=hang_ups,
            on_closed=lambda connection: self.closed.set(),
        )
        self.client = LoopClient(theirs)

    @property
    def reading(self) -> bool:
        return self.connection._reading

    async def stuck(self) -> None:
        """Let the loop go on until nothing moves any more: the connection has written what the socket takes."""
        before = -1
        while (now := self.connection._out_bytes) != before or not self.connection._writing:
            before = now
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Ends]]:
    service, hang_ups, made = EchoService(), HangUps(), list[Ends]()

    def make(**settings: Any) -> Ends:
        made.append(Ends(service, hang_ups, **settings))
        return made[-1]

    yield make
    for ends in made:
        ends.connection.close("the test is over")
        ends.client.close()
    hang_ups.close()
    assert not service.sessions


async def test_requests_are_answered_in_one_write(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    msgids = [ends.client.request("ping") for _ in range(100)]
    await ends.client.send()
    await ends.client.wait(msgids[0])
    assert set(msgids[1:]) == ends.client.answers.keys()
    assert ends.service.bursts == [1, 100]


async def test_wakes_collapse(connect: Callable[..., Ends]) -> None:
    """Answers of one turn of the loop, from wherever, leave together."""
    ends = connect()
    await ends.client.hello()
    msgids = [ends.client.request("dispatch") for _ in range(10)]
    await ends.client.call("ping")
    for session, msgid in list(ends.service.jobs):
        ends.service.finish(session, msgid)
    await ends.client.wait(msgids[0])
    assert set(msgids[1:]) == ends.client.answers.keys()


@pytest.mark.parametrize("size", [64 * 1024, 4 * MIB, 64 * MIB - 4096])
async def test_large_bins_arrive_whole(connect: Callable[..., Ends], size: int) -> None:
    ends = connect()
    await ends.client.hello()
    await ends.client.call("buffer.write", buffer=1, data=memoryview(BLOCK)[:size])
    assert ends.service.received == size
    answer = await ends.client.call("buffer.read", buffer=1, size=size)
    assert answer["data"] == memoryview(BLOCK)[:size]


async def test_small_answers_between_large_ones_keep_their_order(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    sizes = [1, 3 * MIB, 0, 70_000, 2 * MIB, 5]
    msgids = [ends.client.request("buffer.read", buffer=1, size=size) for size in sizes]
    await ends.client.send()
    await ends.client.wait(msgids.pop())
    assert [len(ends.client.answers[msgid]["data"]) for msgid in msgids] == sizes[:-1]
    assert list(ends.client.answers) == msgids


async def test_a_client_that_does_not_read_is_bounded(connect: Callable[..., Ends]) -> None:
    """Rule 27, first half: past the bound nothing more is read from it; others notice nothing."""
    ends, other = connect(max_output_bytes=4 * MIB), connect()
    await ends.client.hello()
    await other.client.hello()
    first = ends.client.request("buffer.read", buffer=1, size=8 * MIB)
    await ends.client.send()
    await ends.stuck()
    assert not ends.reading
    handled = len(ends.service.bursts)
    second = ends.client.request("ping")
    await ends.client.send()
    await other.client.call("ping")
    assert len(ends.service.bursts) == handled + 1  # the other's
    await ends.client.wait(first)
    await ends.client.wait(second)
    assert ends.reading


async def test_a_client_that_never_reads_is_disconnected(connect: Callable[..., Ends]) -> None:
    """Rule 27, second half."""
    ends, other = connect(write_timeout_s=0.05), connect()
    await ends.client.hello()
    await other.client.hello()
    ends.client.request("buffer.read", buffer=1, size=8 * MIB)
    await ends.client.send()
    await ends.closed.wait()
    await other.client.call("ping")
    assert [session.id for session in ends.service.closed] == [1]


async def test_a_slow_client_is_not_disconnected(connect: Callable[..., Ends]) -> None:
    """The time runs from when the client last took something."""
    ends = connect(write_timeout_s=20.0)
    await ends.client.hello()
    msgid = ends.client.request("buffer.read", buffer=1, size=8 * MIB)
    await ends.client.send()
    await ends.stuck()
    connection = ends.connection
    connection._took_at -= 15.0
    connection._check_progress()
    assert not ends.closed.is_set()
    assert connection._write_timer is not None
    assert connection._write_timer.when() <= asyncio.get_running_loop().time() + 5.0
    await ends.client.wait(msgid)
    assert connection._write_timer is None


async def test_no_timer_runs_while_nothing_is_stuck(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    await ends.client.call("buffer.read", buffer=1, size=8 * MIB)
    assert ends.connection._write_timer is None
    assert not ends.connection._writing


async def test_the_service_can_stop_the_reading(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    ends.service.readable = False
    await ends.client.call("ping")  # was read already when the service said no
    assert not ends.reading
    msgid = ends.client.request("ping")
    await ends.client.send()
    for _ in range(10):
        await asyncio.sleep(0)
    assert ends.service.bursts == [1, 1]
    ends.service.readable = True
    session = ends.service.sessions[1]
    assert session.resume is not None
    session.resume()
    await ends.client.wait(msgid)


async def test_a_client_that_dies_while_it_is_not_read_from_is_noticed(connect: Callable[..., Ends]) -> None:
    """Rule 22: its queued jobs must leave at once, not when it would be read from again."""
    ends = connect()
    await ends.client.hello()
    ends.service.readable = False
    await ends.client.call("ping")
    ends.client.request("buffer.write", buffer=1, data=b"never read")
    await ends.client.send()
    ends.client.close()
    await ends.closed.wait()
    assert not ends.service.sessions


async def test_a_client_that_dies_in_the_middle(connect: Callable[..., Ends]) -> None:
    """Rule 32: of an upload, of a queue of jobs, of a download."""
    uploading, queueing, downloading, other = connect(), connect(), connect(), connect()
    for ends in (uploading, queueing, downloading, other):
        await ends.client.hello()
    uploading.client.request("buffer.write", buffer=1, data=BLOCK[: 8 * MIB])
    await asyncio.get_running_loop().sock_sendall(
        uploading.client.socket, b"".join(uploading.client.conn.data_to_send())[: 3 * MIB]
    )
    queueing.client.request("dispatch")
    await queueing.client.send()
    downloading.client.request("buffer.read", buffer=1, size=8 * MIB)
    await downloading.client.send()
    await downloading.stuck()
    assert queueing.service.jobs
    for ends in (uploading, queueing, downloading):
        ends.client.close()
        await ends.closed.wait()
    assert not queueing.service.jobs
    await other.client.call("ping")


async def test_what_was_received_goes_with_the_connection() -> None:
    """Without the garbage collector, which counts objects and not bytes: half an upload may be 64 MiB."""
    service, hang_ups = EchoService(), HangUps()
    gc.disable()
    try:
        ends = Ends(service, hang_ups)
        await ends.client.hello()
        ends.client.request("buffer.write", buffer=1, data=BLOCK[: 8 * MIB])
        await asyncio.get_running_loop().sock_sendall(
            ends.client.socket, b"".join(ends.client.conn.data_to_send())[: 3 * MIB]
        )
        received = weakref.ref(ends.connection._conn)
        ends.client.close()
        await ends.closed.wait()
        service.closed.clear()
        del ends.connection  # which calls `ends` back
        await asyncio.sleep(0)
        assert received() is None
    finally:
        gc.enable()
        hang_ups.close()


async def test_a_protocol_fault_is_told_before_the_end(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    msgid = ends.client.request("ping")
    await ends.client.send()
    await asyncio.get_running_loop().sock_sendall(ends.client.socket, b"\xc1")
    assert isinstance(await ends.client.until_closed(), ProtocolError)
    assert msgid in ends.client.answers
    await ends.closed.wait()


async def test_a_fault_of_the_daemon_costs_one_connection(connect: Callable[..., Ends]) -> None:
    ends, other = connect(), connect()
    await ends.client.hello()
    await other.client.hello()
    ends.client.request("module.unload", module=1)
    await ends.client.send()
    assert isinstance(await ends.client.until_closed(), InternalError)
    await other.client.call("ping")


async def test_finish_writes_what_is_left(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    msgid = ends.client.request("buffer.read", buffer=1, size=8 * MIB)
    await ends.client.send()
    await ends.stuck()
    ends.connection.finish()
    flushed = asyncio.ensure_future(ends.connection.flushed())
    await ends.client.wait(msgid)
    assert await ends.client.until_closed() is None
    await flushed
    await ends.closed.wait()


async def test_closing_wakes_who_waits_for_the_flush(connect: Callable[..., Ends]) -> None:
    ends = connect()
    await ends.client.hello()
    ends.client.request("buffer.read", buffer=1, size=8 * MIB)
    await ends.client.send()
    await ends.stuck()
    flushed = asyncio.ensure_future(ends.connection.flushed())
    await asyncio.sleep(0)
    ends.connection.close("for the test")
    ends.connection.close("again, which does nothing")
    ends.connection.wake()
    await flushed
    assert len(ends.service.closed) == 1
