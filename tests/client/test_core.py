"""The clients' common core against the daemon's end of the protocol, without a socket between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from client.fake_daemon import FakeDaemon, Session
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.client.array import BaseDeviceArray
from vkqueue.client.call import Call
from vkqueue.client.core import Core
from vkqueue.client.launch import LaunchPlan
from vkqueue.errors import ConnectionLostError, InvalidError, JobCancelledError, NotFoundError, QuotaError

F32 = np.dtype("f4")
X = np.ones(4, F32)


class Pair:
    """A core and a session of the fake daemon; bytes move when a test says so."""

    def __init__(self, **settings: Any) -> None:
        self.daemon = FakeDaemon(**settings)
        self.session = Session(None, self.daemon, 1)  # type: ignore[arg-type]
        self.core = Core(lambda decode, uses: Call(self, decode, uses))
        greeting = self.core.greet(None, "test")
        self.exchange()
        assert greeting.outcome() is self.core.hello

    def send(self) -> None:
        """To the daemon."""
        for piece in self.core.session.data_to_send():
            self.session.take(self.session.conn.receive_data(piece))

    def receive(self) -> None:
        """From the daemon."""
        for piece in self.session.conn.data_to_send():
            rest = memoryview(piece)
            while rest:
                place = self.core.get_buffer()
                count = min(len(rest), len(place))
                place[:count] = rest[:count]
                rest = rest[count:]
                self.core.buffer_updated(count)

    def exchange(self) -> None:
        while self.core.session.bytes_out or self.session.conn.bytes_out:
            self.send()
            self.receive()

    def plan(self, name: str) -> LaunchPlan:
        call = self.core.load({"spirv": b"fake:" + name.encode()}, lambda handle, title, plans: plans[name], "")
        self.exchange()
        plan: LaunchPlan = call.outcome()
        return plan

    def array(self, values: Any) -> BaseDeviceArray:
        return BaseDeviceArray(self.core.create(values.shape, values.dtype, values), values.shape, values.dtype)

    def launch(self, plan: LaunchPlan, *args: Any, **keywords: Any) -> Call[Any]:
        return self.core.launch(plan.prepare(args, {"grid": 1, **keywords}))

    def close(self) -> None:
        self.daemon._near.close()
        self.daemon._far.close()
        self.daemon._selector.close()

    def methods(self) -> list[str]:
        return [method for method, _ in self.daemon.log]


@pytest.fixture
def pairs() -> Any:
    made: list[Pair] = []

    def make(**settings: Any) -> Pair:
        made.append(Pair(**settings))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def test_what_uses_a_new_buffer_does_not_wait_for_its_creation(pairs: Any) -> None:
    pair = pairs()
    axpy = pair.plan("axpy")
    x, y = pair.array(X), pair.array(2 * X)
    call = pair.launch(axpy, x, y, n=4, a=3)
    read = pair.core.read(y)
    pair.send()
    assert not call.finished
    pair.receive()
    assert call.outcome() is None
    assert read.outcome().tolist() == [5, 5, 5, 5]


def test_requests_over_the_limit_are_held_back_in_order(pairs: Any) -> None:
    pair = pairs(max_queued_jobs=2)
    axpy = pair.plan("axpy")
    pair.daemon.holding = True
    x = pair.array(X)
    calls = [pair.launch(axpy, X, x, n=4, a=1) for _ in range(5)]
    pair.exchange()
    assert pair.methods().count("dispatch") == 1
    assert len(pair.core._held) == 4
    assert not pair.core.has_sent(pair.core.started)
    assert pair.core.has_sent(pair.core.started - 4)
    ping = pair.core.control("ping", {})  # not held back
    pair.exchange()
    assert ping.finished
    pair.daemon.holding = False
    pair.session.run()
    pair.exchange()
    assert [call.outcome() for call in calls] == [None] * 5
    assert not pair.core.holding


def test_a_call_that_is_held_back_can_be_cancelled(pairs: Any) -> None:
    pair = pairs(max_queued_jobs=1)
    copy = pair.plan("copy")
    pair.daemon.holding = True
    first, second, third = [pair.launch(copy, X, X) for _ in range(3)]
    pair.exchange()
    assert pair.core.cancel(second) is None
    with pytest.raises(JobCancelledError, match="before it was sent"):
        second.outcome()
    asked = pair.core.cancel(first)
    pair.exchange()
    assert asked.outcome() is True
    assert isinstance(first.error, JobCancelledError)
    pair.daemon.holding = False
    pair.session.run()
    pair.exchange()
    assert third.outcome().tolist() == X.tolist()
    assert pair.core.cancel(third) is None
    assert not pair.core.holding


def test_dropping_a_call_does_not_count_for_those_before_it(pairs: Any) -> None:
    pair = pairs(max_queued_jobs=1)
    copy = pair.plan("copy")
    pair.daemon.holding = True
    pair.launch(copy, X, X)
    pair.launch(copy, X, X)
    mine = pair.core.started
    last = pair.launch(copy, X, X)
    pair.core.cancel(last)
    assert not pair.core.has_sent(mine)
    assert pair.core.settled


def test_cancelling_what_has_several_requests(pairs: Any) -> None:
    pair = pairs(max_message_bytes=8192, max_queued_jobs=6)
    copy = pair.plan("copy")
    data = np.ones(4096, F32)
    pair.daemon.holding = True
    call = pair.launch(copy, data, data)
    pair.exchange()
    assert pair.core._held
    pair.core.cancel(call)
    pair.exchange()
    with pytest.raises(JobCancelledError):
        call.outcome()
    pair.daemon.holding = False
    pair.session.run()
    pair.exchange()
    assert pair.session.buffers == {}  # what was made is freed all the same
    again = pair.launch(copy, data, data, elements=None, grid=64)
    pair.daemon.holding = False
    pair.exchange()
    assert again.outcome().sum() == 4096


def test_of_several_errors_the_first_requests_counts(pairs: Any) -> None:
    pair = pairs(max_message_bytes=8192, max_memory=10_000)
    copy = pair.plan("copy")
    data = np.ones(4096, F32)
    call = pair.launch(copy, data, data)
    pair.exchange()
    with pytest.raises(QuotaError):  # and not that the launch did not find its buffers
        call.outcome()
    array = pair.array(data)
    read = pair.core.read(array)
    pair.exchange()
    with pytest.raises(QuotaError):
        read.outcome()
    with pytest.raises(QuotaError):
        pair.core.check()
    pair.core.check()


def test_not_found_without_a_failed_creation_stays(pairs: Any) -> None:
    pair = pairs()
    array = pair.array(X)
    pair.exchange()
    pair.session.buffers.clear()
    read = pair.core.read(array)
    pair.exchange()
    with pytest.raises(NotFoundError):
        read.outcome()


def test_handles_rise_in_the_order_of_creation_and_dead_ones_go_first(pairs: Any) -> None:
    pair = pairs()
    first = pair.array(X)
    number = first.handle.id
    pair.exchange()
    del first
    second = pair.array(X)
    pair.exchange()
    assert pair.methods()[1:] == ["buffer.create", "buffer.free", "buffer.create"]
    assert second.handle.id == number + 1
    pair.core.release(second.handle)
    pair.exchange()
    assert pair.session.buffers == {}


def test_the_end_fails_all_calls_once(pairs: Any) -> None:
    pair = pairs(max_queued_jobs=3)
    copy = pair.plan("copy")
    pair.daemon.holding = True
    calls = [pair.launch(copy, X, X) for _ in range(5)]
    pair.exchange()
    pair.core.buffer_updated(0)
    pair.core.fail("again")
    for call in calls:
        with pytest.raises(ConnectionLostError, match="the daemon closed the connection"):
            call.outcome()
    assert len({id(call.error) for call in calls}) == 5
    with pytest.raises(ConnectionLostError):
        pair.core.create((1,), F32)
    assert pair.core.cancel(calls[0]) is None
    assert not pair.core.holding


def test_after_another_connections_call(pairs: Any) -> None:
    here, there = pairs(), pairs()
    other = there.launch(there.plan("copy"), X, X)
    copy = here.plan("copy")
    with pytest.raises(InvalidError, match="another connection"):
        here.launch(copy, X, X, after=other)


def test_after_names_what_is_under_way(pairs: Any) -> None:
    pair = pairs(max_message_bytes=8192)
    copy = pair.plan("copy")
    large = np.ones(4096, F32)
    done = pair.launch(copy, X, X)
    pair.exchange()
    array = pair.array(large)
    read = pair.core.read(array)
    pair.launch(copy, X, X, after=[done, read])
    pair.exchange()
    pieces = pair.methods().count("buffer.read")
    assert pieces > 1
    assert len(pair.daemon.log[-1][1]["after"]) == pieces


def test_what_a_result_is_made_of_is_the_callers_problem(pairs: Any) -> None:
    """A result that cannot be stored fails its call, not whoever reads the socket."""
    pair = pairs()
    copy = pair.plan("copy")
    target = np.ones(4, F32)
    bad = pair.launch(copy, X, target, inplace=True)
    good = pair.launch(copy, X, X)
    target.flags.writeable = False
    pair.exchange()
    assert isinstance(bad.error, ValueError)
    assert good.outcome().tolist() == X.tolist()


NAMES = st.sampled_from(["create", "write", "read", "axpy", "host", "drop", "free", "ping"])


def play(pair: Pair, operations: list[tuple[str, int]]) -> tuple[list[tuple[Call[Any], Any]], list[BaseDeviceArray]]:
    """Start the operations; calls with what they must give, and the arrays that are still used."""
    axpy = pair.plan("axpy")
    arrays: list[tuple[BaseDeviceArray, Any]] = []
    expected: list[tuple[Call[Any], Any]] = []
    for index, (operation, number) in enumerate(operations):
        values = np.full(3000, number, F32)
        if operation == "create":
            arrays.append((pair.array(values), values.copy()))
        elif operation == "ping":
            pair.exchange()
        elif arrays:
            array, model = arrays[number % len(arrays)]
            if operation == "write":
                pair.core.write(array, values)
                model[:] = values
            elif operation == "read":
                expected.append((pair.core.read(array), model.copy()))
            elif operation == "axpy":
                source, of_source = arrays[index % len(arrays)]
                pair.launch(axpy, source, array, n=3000, a=2, grid=64)
                model += 2 * of_source
            elif operation == "host":
                expected.append((pair.launch(axpy, array, values, n=3000, a=1, grid=64), model + values))
            else:
                if operation == "free":
                    pair.core.release(array.handle)
                arrays.pop(number % len(arrays))
    return expected, [array for array, _ in arrays]


@given(st.lists(st.tuples(NAMES, st.integers(0, 9))), st.integers(1, 6), st.sampled_from([4096, 1 << 20]))
def test_any_program_gives_what_it_would_without_a_daemon(operations: Any, limit: int, message: int) -> None:
    """Order, pieces, holding back and lazy frees never show in the results."""
    pair = Pair(max_queued_jobs=limit, max_message_bytes=message)
    try:
        expected, arrays = play(pair, operations)
        pair.exchange()
        for call, values in expected:
            assert np.array_equal(call.outcome(), values)
        pair.core.outstanding()  # what was collected goes out
        pair.exchange()
        pair.core.check()
        assert set(pair.session.buffers) == {array.handle.id for array in arrays}
    finally:
        pair.close()
