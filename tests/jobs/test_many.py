"""Many launches in one row: barriers among them, and the row among others."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import PUSHED, Judge, conflict, launch, read, steps, token, write

from vkqueue.gpu.contract import Contract
from vkqueue.jobs import overlap, wide
from vkqueue.jobs.overlap import barriers
from vkqueue.jobs.pace import PART_NS, Pace
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.jobs.stream import Stream
from vkqueue.kernels.launches import Many, ManyArgs, ManyJob, ManyToken, Slot
from vkqueue.kernels.many import token_of
from vkqueue.model import BARRIER, MANY, Options, Row, Token

_ids = count(1_000_000)


def column(values: list[int], dtype: Any = np.uint64) -> Any:
    return np.array(values, dtype)


def many(n: int, buffers: tuple[int, ...], *slots: Slot) -> Many:
    return Many(ManyJob(n, 0), ManyArgs(buffers, slots), 0, n, b"", (1, 1, 1))


def whole(buffers: list[int], *, writes: bool = True, size: int = 64) -> Many:
    """A launch on each of these buffers."""
    places = column(list(range(len(buffers))), np.int32)
    return many(len(buffers), tuple(buffers), Slot(places, 0, column([size] * len(buffers)), not writes, writes))


def row(launches: Many, msgid: int = 0, *, session: int = 1) -> Row:
    made = token_of(next(_ids), PUSHED, launches.args)
    return (session, msgid, MANY, made, 3, b"", None, launches, 0, None)


def one_by_one(launches: Many) -> list[int]:
    """Barriers by comparing every pair."""
    tokens = []
    for i in range(launches.count):
        reads, writes = launches.touched(i)
        tokens.append(Token(0, None, (), tuple(reads), tuple(writes)))
    found, since = [], 0
    for i, own in enumerate(tokens):
        if any(conflict(own, other) for other in tokens[since:i]):
            found.append(i)
            since = i
    return found


# Barriers among the launches of a row


@st.composite
def rows_of_launches(draw: st.DrawFn) -> Many:
    n = draw(st.integers(1, 10))
    step = draw(st.sampled_from([16, 16, 10]))  # 16: ranges are equal or apart; 10: they overlap in part
    each = {"min_size": n, "max_size": n}
    slots = []
    for _ in range(draw(st.integers(1, 3))):
        buffer: Any = draw(st.integers(-1, 3) | st.lists(st.integers(0, 3), **each).map(lambda v: column(v, np.int32)))
        ranges = st.integers(0, 4).map(lambda k: k * step)
        offset: Any = draw(ranges | st.lists(ranges, **each).map(column))
        sizes = st.sampled_from([16, 16, 16, 0])
        size: Any = draw(sizes | st.lists(sizes, **each).map(column))
        reads, writes = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
        slots.append(Slot(buffer, offset, size, reads, writes))
    return many(n, (11, 12, 13, 14), *slots)


@settings(max_examples=300)
@given(rows_of_launches())
def test_barriers_stand_where_single_launches_have_them(launches: Many) -> None:
    assert barriers(launches) == one_by_one(launches)


@settings(max_examples=100)
@given(rows_of_launches())
def test_the_slow_way_finds_the_same(launches: Many) -> None:
    clients = [slot for slot in launches.slots if not isinstance(slot.buffer, int) or slot.buffer >= 0]
    assert overlap._one_by_one(launches.count, clients) == one_by_one(launches)


def rows_in_order(n: int, size: int) -> Slot:
    return Slot(0, column([i * size for i in range(n)]), size, False, True)


@pytest.mark.parametrize(
    "launches",
    [
        pytest.param(whole(list(range(1, 2001))), id="buffers of their own"),
        pytest.param(many(2000, (1,), rows_in_order(2000, 64)), id="rows of a buffer"),
        pytest.param(many(2000, (1, 2), rows_in_order(2000, 64), Slot(1, 0, 64, True, False)), id="a common input"),
        pytest.param(many(2000, (1,), Slot(0, 0, 64, False, True)), id="all write the same"),
        pytest.param(many(2000, (1,), Slot(0, 0, 64, True, False)), id="nothing is written"),
    ],
)
def test_the_usual_rows_cost_nothing_for_each_launch(launches: Many) -> None:
    assert steps(lambda: barriers(launches)) < 100


def test_a_shuffled_buffer_and_a_chain_are_sorted_once() -> None:
    shuffled = np.random.default_rng(7).permutation(2000).astype(np.uint64) * np.uint64(64)
    assert steps(lambda: barriers(many(2000, (1,), Slot(0, shuffled, 64, True, True)))) < 100
    # Each reads what the one before it wrote: 0 → 1 → 2 …
    chain = column(list(range(2001)), np.int32)
    buffers = tuple(range(1, 2002))
    linked = many(2000, buffers, Slot(chain[:-1], 0, 64, True, False), Slot(chain[1:], 0, 64, False, True))
    assert barriers(linked) == list(range(1, 2000))


def test_buffers_too_large_for_one_line_are_compared_one_by_one() -> None:
    vast = 1 << 62
    slots = [Slot(column([0, 1, 2, 0], np.int32), column([vast] * 4), 64, False, True)]
    assert barriers(many(4, (1, 2, 3), *slots)) == [3]


# The row among others

wide_buffers = list(range(100, 100 + wide.FEW + 4))


def batch(stream: Stream, serial: int, *rows: Row) -> list[bool]:
    return [bool(flag & BARRIER) for flag in stream.make_batch(list(rows), serial, "idle", 0).flags]


@pytest.mark.parametrize("buffers", [wide_buffers, wide_buffers[:3]], ids=["wide", "narrow"])
def test_a_row_conflicts_as_its_launches_do(buffers: list[int]) -> None:
    first, other = buffers[0], 1
    writes, reads = row(whole(buffers)), row(whole(buffers, writes=False))
    for before, after, barrier in [
        (writes, launch(token([first])), True),
        (writes, launch(token([], [first])), True),
        (writes, launch(token([other], [2])), False),
        (reads, launch(token([first])), False),
        (reads, launch(token([], [first])), True),
        (launch(token([first])), writes, True),
        (launch(token([], [first])), reads, True),
        (launch(token([first])), reads, False),
        (launch(token([other], [2])), writes, False),
        (writes, row(whole(buffers)), True),
        (reads, row(whole(buffers)), True),
        (writes, row(whole(buffers, writes=False)), True),
        (reads, row(whole(buffers, writes=False)), False),
        (writes, row(whole([b + 1000 for b in buffers])), False),
        (writes, writes, True),
        (reads, reads, False),
    ]:
        assert batch(Stream(4, 0, 0), 1, before, after) == [False, barrier]
        stream = Stream(4, 0, 0)
        assert batch(stream, 1, before) == [False] and batch(stream, 2, after) == [barrier]
        stream = Stream(4, 0, 0)
        batch(stream, 1, before)
        stream.completed(1)
        assert batch(stream, 2, after) == [False]


def test_halves_of_a_buffer_need_no_barrier() -> None:
    lower, upper = (
        row(many(20, (1,), Slot(0, column([at + 64 * i for i in range(20)]), 64, False, True))) for at in (0, 1280)
    )
    assert batch(Stream(4, 0, 0), 1, lower, upper, lower) == [False, False, True]


def test_a_barrier_among_launches_is_noted_in_the_row() -> None:
    launches = many(4, (1, 2), Slot(column([0, 1, 0, 1], np.int32), 0, 64, False, True))
    batch(Stream(4, 0, 0), 1, row(launches))
    assert launches.barriers == [2]


def test_the_host_leaves_alone_what_a_row_in_flight_uses() -> None:
    stream = Stream(4, 1 << 20, 1 << 20)
    first = wide_buffers[0]
    batch(stream, 1, row(whole(wide_buffers, writes=False)))
    made = stream.make_batch([write((first, 0, 8)), read((first, 0, 8)), write((1, 0, 8))], 2, "idle", 0)
    assert [flag & 4 for flag in made.flags] == [0, 0, 4]  # the write of the first is in the read's way
    stream.completed(1)
    stream.completed(2)
    batch(stream, 3, row(whole(wide_buffers)))
    made = stream.make_batch([read((first, 0, 8)), read((1, 0, 8))], 4, "idle", 0)
    assert [flag & 4 for flag in made.flags] == [0, 4]


def test_many_rows_in_flight_stay_cheap() -> None:
    """A barrier now and then forgets the rows that every later one would be compared with."""
    stream = Stream(4, 0, 0)
    rows = [row(whole([100 * i + b for b in range(wide.FEW + 1)])) for i in range(1, 30)]
    flags = batch(stream, 1, *rows)
    assert 0 < sum(flags) <= len(rows) // wide.MOST
    assert len(stream._wide.since) <= wide.MOST


def test_a_reset_costs_the_next_row_a_barrier() -> None:
    stream = Stream(4, 0, 0)
    batch(stream, 1, row(whole(wide_buffers)))
    stream.reset()
    assert batch(stream, 2, row(whole([1] * 1 + [b + 500 for b in wide_buffers])), launch(token([1]))) == [True, True]


ranges = st.tuples(st.integers(1, 6), st.integers(0, 3)).map(lambda v: (v[0], 16 * v[1], 16 * v[1] + 16))


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Batches of rows, and completions between them."""
    steps: list[Any] = []
    for _ in range(draw(st.integers(1, 8))):
        rows: list[Row] = []
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(st.sampled_from(["launch", "many", "many", "read", "write"]))
            if kind == "launch":
                touched = draw(st.lists(ranges, max_size=2)), draw(st.lists(ranges, max_size=1))
                rows.append(launch(token(*touched)))
            elif kind == "many":
                n = draw(st.integers(1, 4))
                places = st.lists(st.integers(0, 5), min_size=n, max_size=n).map(lambda v: column(v, np.int32))
                at = st.lists(st.integers(0, 3).map(lambda k: 16 * k), min_size=n, max_size=n).map(column)
                slots = [Slot(draw(places), draw(at), 16, not w, w) for w in draw(st.lists(st.booleans(), max_size=2))]
                rows.append(row(many(n, (1, 2, 3, 4, 5, 6), *slots)))
            else:
                rows.append((read if kind == "read" else write)(draw(ranges)))
        steps.append(rows)
        steps += [None] * draw(st.integers(0, 2))
    return steps


@pytest.mark.parametrize("few", [0, wide.FEW])
@settings(max_examples=100)
@given(history=histories())
def test_random_rows_are_ordered(few: int, history: list[Any]) -> None:
    stream, judge, contract = Stream(4, 32, 32), Judge(), Contract(4)
    in_flight: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkqueue.jobs.stream.FEW", few)
        for serial, step in enumerate(history, 1):
            if step is None:
                if in_flight:
                    done = in_flight.pop(0)
                    for told in (stream.completed, judge.completed, contract.finished):
                        told(done)
                continue
            made = stream.make_batch(step, serial, "idle", 0)
            judge.see(made)
            contract.check(made)
            in_flight.append(serial)
    assert judge.spurious <= judge.rows // wide.MOST


# The row in the queue


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkqueue.jobs.scheduler.PART_NS", 10)


class Queue:
    """A scheduler with two connections. Rows of many launches go by their count, others are ".", parts too."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(9)
        for id in (1, 2):
            self.scheduler.add_session(id)
        self.msgids = count(1)

    def many(self, n: int, *, session: int = 1, options: Options | None = None, after: tuple[int, ...] = ()) -> int:
        msgid = next(self.msgids)
        made = row(whole(list(range(100 * msgid, 100 * msgid + n))), msgid, session=session)
        self.scheduler.submit((*made[:9], options), 0, None, after)
        return msgid

    def one(self, *, session: int = 1, options: Options | None = None) -> int:
        msgid = next(self.msgids)
        self.scheduler.submit(launch(token([], [9]), msgid, session=session, options=options), 0)
        return msgid

    def take(self, most: int = 256, now: int = 0) -> list[Any]:
        taken = []
        for made in self.scheduler.take(most, now):
            launches = made[7].count if made[2] == MANY else "."
            taken.append((made[1], launches) if made[2] == MANY and made[7].count < made[7].job.total else launches)
        return taken

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.scheduler.queued, self.scheduler.ready, self.scheduler.launches


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_a_batch_takes_so_many_launches(queue: Queue) -> None:
    for n in (4, 6, 3, 8):
        queue.many(n)
    queue.one()
    assert queue.counts == (5, 5, 21)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [[4, 6], [3], [8, "."], []]
    assert queue.counts == (0, 0, 0)


def test_a_large_row_leaves_in_parts_with_others_beside_it(queue: Queue) -> None:
    large = queue.many(25)
    behind = queue.many(2)
    for _ in range(3):
        queue.one(session=2)
    assert queue.take() == [(large, 10), ".", ".", "."]
    assert queue.counts == (2, 2, 17)
    queue.one(session=2)
    assert queue.take() == [(large, 10), "."]
    assert queue.scheduler.cancel(1, large) is None and queue.scheduler.cancel(1, behind) is not None
    queue.one()
    assert queue.take() == [(large, 5), "."]
    assert queue.counts == (0, 0, 0)


def test_connections_with_large_rows_take_turns(queue: Queue) -> None:
    first, second = queue.many(20), queue.many(30, session=2)
    assert [queue.take() for _ in range(5)] == [
        [(first, 10)], [(second, 10)], [(first, 10)], [(second, 10)], [(second, 10)],
    ]  # fmt: skip


def test_a_row_in_parts_is_not_expired_and_keeps_its_place(queue: Queue) -> None:
    large = queue.many(15, options=Options(deadline_ns=50))
    late = queue.many(2, options=Options(deadline_ns=50, priority=5))
    soon = queue.many(3, options=Options(priority=9))
    assert queue.take(1) == [3] and soon == 3
    assert queue.take(1) == [2] and late == 2
    queue.many(2, options=Options(deadline_ns=50))
    assert queue.take() == [(large, 10)]
    assert [r[1] for r in queue.scheduler.expire(60)] == [4]
    assert queue.take(now=60) == [(large, 5)] and queue.counts == (0, 0, 0)


def test_an_overdue_row_is_passed_over(queue: Queue) -> None:
    queue.many(2, options=Options(deadline_ns=50))
    queue.many(3)
    assert queue.take(now=60) == [3]
    assert queue.counts == (1, 0, 2)
    assert len(queue.scheduler.expire(60)) == 1 and queue.counts == (0, 0, 0)


def test_a_row_that_waits_is_counted_and_released(queue: Queue) -> None:
    first = queue.one()
    held = queue.many(12, options=Options(after=(first,)), after=(first,))
    assert queue.counts == (2, 1, 12)
    assert queue.take() == ["."]
    queue.scheduler.finished(1, first, True)
    assert queue.take() == [(held, 10)] and queue.take() == [(held, 2)]


def test_the_rest_of_a_row_can_be_dropped(queue: Queue) -> None:
    large = queue.many(25)
    queue.one()
    queue.take()
    queue.scheduler.drop_rest(1, large + 1)
    assert queue.counts == (2, 2, 15)
    queue.scheduler.drop_rest(1, large)
    queue.scheduler.drop_rest(1, large)
    assert queue.counts == (1, 1, 0) and queue.take() == ["."] and queue.take() == []
    queue.scheduler.drop_rest(7, large)


@pytest.mark.parametrize("all", [False, True])
def test_the_rest_goes_with_its_connection(queue: Queue, all: bool) -> None:
    large = queue.many(25)
    queue.one()
    queue.take()
    assert queue.scheduler.oldest_queued_ns == queue.scheduler.oldest_ns == 0
    rows = queue.scheduler.drain() if all else queue.scheduler.remove_session(1)
    assert [r[1] for r in rows] == [large, large + 1] and queue.counts == (0, 0, 0)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 25), st.integers(0, 3)), max_size=12), st.integers(1, 6))
def test_every_launch_leaves_once_and_in_order(sent: list[tuple[int, int, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vkqueue.jobs.scheduler.PART_NS", 10)
        queue = Queue()
        left: dict[int, list[Any]] = {1: [], 2: []}

        def take() -> None:
            rows = queue.scheduler.take(most, 0)
            assert len(rows) <= most and sum(r[7].count for r in rows if r[2] == MANY) <= 10
            for r in rows:
                left[r[0]].append((r[1], r[7].first, r[7].count) if r[2] == MANY else (r[1], 0, 0))

        expected: dict[int, list[int]] = {1: [], 2: []}
        for session, n, takes in sent:
            expected[session].append(queue.many(n, session=session) if n else queue.one(session=session))
            for _ in range(takes):
                take()
        while queue.scheduler.ready:
            before = queue.counts
            take()
            assert queue.counts < before
    assert queue.counts == (0, 0, 0)
    for session, rows in left.items():
        assert list(dict.fromkeys(msgid for msgid, _, _ in rows)) == expected[session]
        reached = 0
        for _, first, n in rows:
            assert first == (reached if first else 0)
            reached = first + n
    sizes = {1: 0, 2: 0}
    for session, n, _ in sent:
        sizes[session] += n
    assert {session: sum(n for _, _, n in rows) for session, rows in left.items()} == sizes


def test_a_launch_that_takes_long_leaves_alone(queue: Queue) -> None:
    """Of 10 ns at a time, launches of 4 leave by twos, those of 11 one by one, and next to others not at all."""
    large, huge = queue.many(5), queue.many(3)
    for queued, ns in zip(queue.scheduler._sessions[1].plain, (4, 11), strict=True):
        queued[7].job.launch_ns = ns
    queue.many(10, session=2)
    assert [queue.take() for _ in range(7)] == [
        [(large, 2)], [10], [(large, 2)], [(large, 1)], [(huge, 1)], [(huge, 1)], [(huge, 1)],
    ]  # fmt: skip
    assert queue.counts == (0, 0, 0)


# How long they take


def test_pace_rises_at_once_and_falls_slowly() -> None:
    pace = Pace()
    unknown = pace.launch_ns(1, 64)
    assert unknown == PART_NS // 256
    pace.took(1, 64, 10 * PART_NS)
    assert pace.launch_ns(1, 64) == pace.launch_ns(1, 127) == 10 * PART_NS
    assert pace.launch_ns(1, 63) == pace.launch_ns(1, 128) == pace.launch_ns(2, 64) == unknown
    before = 10 * PART_NS
    for _ in range(100):
        pace.took(1, 64, 0)
        assert before * 7 // 8 <= pace.launch_ns(1, 64) <= before
        before = pace.launch_ns(1, 64)
    assert 0 < before < PART_NS // 4000


def test_pace_forgets_what_is_longest_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkqueue.jobs.pace._MOST", 2)
    pace = Pace()
    for pipeline in (1, 2, 1, 3):
        pace.took(pipeline, 1, PART_NS)
    assert [pace.launch_ns(pipeline, 1) == PART_NS for pipeline in (1, 2, 3)] == [True, False, True]


def test_tokens_say_what_they_cover() -> None:
    made = token_of(1, PUSHED, whole(wide_buffers).args)
    assert isinstance(made, ManyToken) and made.reads == () and {w[0] for w in made.writes} == set(wide_buffers)
    with pytest.raises(AttributeError):
        made.nothing  # noqa: B018
    assert all(a < b for a, b in pairwise(sorted(made.written)))
