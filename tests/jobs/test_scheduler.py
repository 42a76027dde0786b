"""Which rows leave next: turns, order, priorities, `after`, held rows, deadlines; case by case."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
from support.jobs import PUSHED, create, free, launch, steps, token

from vkqueue.jobs.scheduler import Scheduler
from vkqueue.model import Options, Row, Token

A, B, C, X = 1, 2, 3, 4
PIPELINE = 77


class Rig(Scheduler):
    """A scheduler whose clock counts submissions, and that speaks of rows by msgid."""

    def __init__(self, sessions: int = 1, max_failures: int = 8) -> None:
        super().__init__(max_failures)
        self.clock = 0
        for id in range(1, sessions + 1):
            self.add_session(id)

    def put(
        self, msgid: int, reads: Any = (), writes: Any = (), session: int = 1, held: bool = False, **options: Any
    ) -> Row:
        self.clock += 1
        after = options.pop("after", ())
        row = launch(
            token(reads, writes),
            msgid,
            session=session,
            stamp=self.clock,
            options=Options(**options, after=after) if options or after else None,
        )
        self.submit(row, self.clock, PIPELINE if held else None, after)
        return row

    def taken(self, most: int = 100, now: int = 0) -> list[int]:
        return [row[1] for row in self.take(most, now)]

    def counts(self) -> tuple[int, int]:
        return self.queued, self.ready


# Turns


def test_rows_of_one_connection_leave_first_come_first_served() -> None:
    rig = Rig()
    for msgid in range(5):
        rig.put(msgid, [A])
    assert rig.counts() == (5, 5)
    assert rig.taken(3) == [0, 1, 2]
    assert rig.taken(3) == [3, 4]
    assert rig.counts() == (0, 0)
    assert rig.taken() == []


def test_each_connection_gets_an_equal_and_contiguous_share() -> None:
    rig = Rig(3)
    for session in (1, 2, 3):
        for n in range(10):
            rig.put(session * 100 + n, [A], session=session)
    assert rig.taken(6) == [100, 101, 200, 201, 300, 301]


def test_what_one_does_not_use_goes_to_the_others() -> None:
    rig = Rig(3)
    rig.put(100, session=1)
    for session in (2, 3):
        for n in range(10):
            rig.put(session * 100 + n, session=session)
    taken = rig.taken(9)
    assert taken[:7] == [100, 200, 201, 202, 300, 301, 302]
    assert sorted(taken[7:]) == [203, 303]


@pytest.mark.parametrize(("sessions", "most"), [(5, 2), (7, 3), (3, 3), (4, 10), (100, 8)])
def test_with_more_connections_than_rows_they_take_turns(sessions: int, most: int) -> None:
    rig = Rig(sessions)
    for session in range(1, sessions + 1):
        for n in range(200):
            rig.put(n, session=session)
    served: Counter[int] = Counter()
    for _ in range(3 * sessions):
        rows = rig.take(most, 0)
        assert len(rows) == most
        served.update(row[0] for row in rows)
        assert max(served.values()) - min(served[s] for s in range(1, sessions + 1)) <= max(most // sessions, 1) + 1
    assert len(served) == sessions


def test_a_flood_does_not_delay_a_newcomer_by_more_than_a_batch() -> None:
    rig = Rig(2)
    for n in range(1000):
        rig.put(n, session=1)
    rig.take(64, 0)
    rig.put(5000, session=2)
    assert 5000 in rig.taken(64)


# Counters and ages


def test_oldest_is_the_longest_waiting_row_that_may_leave() -> None:
    rig = Rig(2)
    assert rig.oldest_ns == 0 == rig.oldest_queued_ns
    rig.put(1, [A], [A], held=True)
    assert rig.oldest_ns == 0, "held rows do not count"
    assert rig.oldest_queued_ns == 1, "here they do"
    rig.put(2, session=2)
    rig.put(3, [B])
    assert rig.oldest_ns == 2
    rig.pipeline_ready(PIPELINE)
    assert rig.oldest_ns == 1
    rig.cancel(1, 1)
    assert rig.oldest_ns == 2
    rig.cancel(2, 2)
    assert rig.oldest_ns == 3


def test_a_held_row_does_not_age_the_ready_ones() -> None:
    rig = Rig()
    rig.clock = 99
    rig.put(1)
    rig.clock = 9
    assert rig.oldest_ns == 100
    rig.put(2, held=True)  # received before, and admitted late
    assert rig.oldest_ns == 100


@pytest.mark.parametrize("session", [1, 2], ids=["same connection", "another"])
def test_a_row_that_was_admitted_late_counts_from_its_receipt(session: int) -> None:
    rig = Rig(2)
    rig.clock = 99
    rig.put(1)
    assert rig.oldest_ns == 100
    rig.clock = 9
    rig.put(2, session=session)
    assert rig.oldest_ns == 10
    rig.put(3)
    rig.cancel(1, 3)
    assert rig.oldest_ns == (10 if session == 2 else 100), "in a plain queue the first row speaks for the rest"


def test_a_row_that_was_admitted_late_is_remembered_when_another_connections_leaves() -> None:
    rig = Rig(2)
    rig.clock = 99
    rig.put(1, deadline_ns=10**9)
    rig.clock = 9
    rig.put(2, deadline_ns=10**9)
    rig.clock = 0
    rig.put(3, session=2)
    assert rig.oldest_ns == 1
    rig.cancel(2, 3)
    assert rig.oldest_ns == 10


# Order and held rows


def test_rows_pass_a_held_one_where_order_allows() -> None:
    rig = Rig()
    rig.put(1, [A], [B], held=True)
    rig.put(2, [A], [C])  # reads what 1 reads
    rig.put(3, [B])  # reads what 1 writes
    rig.put(4, [], [A])  # writes what 1 reads
    rig.put(5, [X])
    rig.put(6, [A])  # behind 4
    assert rig.counts() == (6, 2)
    assert rig.taken() == [2, 5]
    rig.pipeline_ready(PIPELINE)
    assert rig.counts() == (4, 4), "what depends on each other is ready together"
    assert rig.taken() == [1, 3, 4, 6]


def test_other_connections_do_not_wait_for_a_held_row() -> None:
    rig = Rig(2)
    rig.put(1, [], [A], held=True)
    rig.put(2, [], [A], session=2)
    assert rig.taken() == [2]


def test_rows_queued_before_the_first_held_one_keep_their_place() -> None:
    rig = Rig()
    rig.put(1, [], [A])
    rig.put(2, [A], [B])
    rig.put(3, [B], held=True)
    assert rig.counts() == (3, 2)
    assert rig.taken() == [1, 2]
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [3]


def test_a_connection_is_plain_again_when_its_queue_is_empty() -> None:
    rig = Rig()
    rig.put(1, held=True)
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [1]
    rig.put(2)
    assert rig._sessions[1].ordered is None
    assert rig.taken() == [2]


@pytest.mark.parametrize("leave", ["cancel", "expire", "fail", "dependency"])
def test_a_row_behind_one_that_is_taken_out_still_waits_for_those_before(leave: str) -> None:
    """1 is held, 2 is behind it and goes by another way than `take`: 3 must not pass 1."""
    rig = Rig()
    rig.put(1, [], [A], held=True)
    rig.clock = 2
    row = launch(token([A], [A]), 2, options=Options(deadline_ns=50))
    rig.submit(row, 2, 78, (9,))
    rig.put(3, [A])
    assert rig.counts() == (3, 0)
    out = {
        "cancel": lambda: [rig.cancel(1, 2)],
        "expire": lambda: rig.expire(50),
        "fail": lambda: rig.pipeline_failed(78),
        "dependency": lambda: rig.finished(1, 9, False),
    }[leave]()
    assert out == [row]
    assert rig.counts() == (2, 0)
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [1, 3]


def test_a_writer_still_waits_for_readers_that_stood_before_a_cancelled_writer() -> None:
    rig = Rig()
    rig.put(1, [A], held=True)
    rig.put(2, [], [A])
    rig.put(3, [], [A])
    rig.put(4, [A])
    rig.cancel(1, 2)
    assert rig.counts() == (3, 0)
    rig.cancel(1, 3)
    assert rig.taken() == [4], "a reader may pass a reader"
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [1]


def test_rule_4_the_release_of_a_buffer_waits_for_its_users() -> None:
    rig = Rig()
    rig.put(1, [A], held=True)
    rig.submit(free(A), 2)
    rig.submit(free(B), 2)
    assert [row[4] for row in rig.take(9, 0)] == [B]
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [1, -1]


def test_an_empty_buffer_is_created_before_and_released_after_its_use() -> None:
    rig = Rig()
    rig.submit(create(A, 0, 1), 1)
    bound = Token(10**6, PUSHED, ((A, 0, 0),), (), ())
    rig.submit(launch(bound, 2, options=Options(priority=100)), 2, PIPELINE)
    rig.submit(free(A, 0), 3)
    assert rig.taken() == [1]
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [2, -1]


# Priorities


def test_larger_priorities_leave_first_and_equal_ones_in_order() -> None:
    rig = Rig()
    for msgid, priority in enumerate([0, 5, -5, 5, 100]):
        rig.put(msgid, [100 + msgid], priority=priority)
    assert rig.taken() == [4, 1, 3, 0, 2]


@pytest.mark.parametrize("writes", [(), [A]])
def test_a_priority_never_passes_a_job_with_a_common_buffer(writes: object) -> None:
    rig = Rig()
    rig.put(1, [A], priority=-1)
    rig.put(2, [X])
    rig.put(3, [A, B], writes, priority=50)
    rig.put(4, [B], priority=60)
    assert rig.taken() == [2, 1, 3, 4]


def test_a_held_jobs_priority_caps_too() -> None:
    rig = Rig()
    rig.put(1, [A], priority=-7, held=True)
    rig.put(2, [A], priority=9)
    rig.put(3, [X], priority=1)
    rig.pipeline_ready(PIPELINE)
    assert rig.taken() == [3, 1, 2]


def test_a_cap_is_passed_on_until_no_job_with_the_buffer_is_queued() -> None:
    rig = Rig()
    rig.put(1, [A], priority=-9)
    rig.put(2, [A], priority=5)
    assert rig.taken(1) == [1]
    rig.put(3, [X], priority=0)
    rig.put(4, [A], priority=5)  # behind 2, which was capped
    assert rig.taken(2) == [3, 2]
    rig.put(5, [X], priority=0)
    rig.put(6, [A], priority=5)
    assert rig.taken() == [5, 4, 6]
    rig.put(7, [X], priority=0)
    rig.put(8, [A], priority=5)
    assert rig.taken() == [8, 7]


def test_priorities_are_among_one_connections_own_jobs() -> None:
    rig = Rig(2)
    rig.put(1, session=1)
    rig.put(2, session=2, priority=100)
    assert rig.taken(1) == [1]


# `after`


def test_after_waits_for_success() -> None:
    rig = Rig()
    rig.put(5, [A], after=(3, 4, 4))
    rig.put(6, [B])
    assert rig.taken() == [6]
    assert rig.finished(1, 3, True) == []
    assert rig.counts() == (1, 0)
    assert rig.finished(1, 4, True) == []
    assert rig.taken() == [5]


def test_a_failed_dependency_takes_out_those_behind_it() -> None:
    rig = Rig()
    rows = [rig.put(5, [], [A], after=(3,)), rig.put(6, after=(3, 4))]
    rig.put(7, [A])
    assert rig.finished(1, 3, False) == rows
    assert rig.counts() == (1, 1)
    assert rig.finished(1, 4, True) == []
    assert rig.taken() == [7], "as if 5 had not been sent"


def test_after_is_within_a_connection() -> None:
    rig = Rig(2)
    rig.put(5, after=(3,))
    rig.finished(2, 3, True)
    assert rig.taken() == []
    assert rig.finished(3, 3, False) == [], "a connection that is gone"


def test_failures_are_remembered_until_the_msgid_succeeds_and_so_many_of_them() -> None:
    rig = Rig(2, max_failures=3)
    for msgid in (1, 2, 3):
        rig.finished(1, msgid, False)
    assert rig.failed_before(1, (9, 2, 1)) == 2
    assert rig.failed_before(2, (1, 2, 3)) is None
    rig.finished(1, 2, True)
    assert rig.failed_before(1, (2,)) is None
    rig.finished(1, 1, False)  # again, so the newest
    rig.finished(1, 4, False)
    rig.finished(1, 5, False)
    assert [rig.failed_before(1, (msgid,)) for msgid in (1, 3, 4, 5)] == [1, None, 4, 5]


# Pipelines


def test_a_failed_pipeline_takes_its_rows_out_and_no_others() -> None:
    rig = Rig(2)
    rows = [rig.put(1, [], [A], held=True), rig.put(2, session=2, held=True)]
    rig.put(3, [A])
    assert rig.pipeline_failed(PIPELINE) == rows
    assert rig.pipeline_failed(PIPELINE) == []
    assert rig.taken() == [3]


# Rule 19: deadlines


def test_rule_19_an_expired_row_is_never_taken_though_nobody_looked() -> None:
    rig = Rig()
    row = rig.put(1, [], [A], deadline_ns=50)
    rig.put(2, [A])
    assert rig.next_deadline_ns() == 50
    assert rig.taken(now=50) == [2]
    assert rig.counts() == (1, 0)
    assert rig.next_deadline_ns() == 50, "it still has to be answered"
    assert rig.expire(50) == [row]
    assert rig.counts() == (0, 0)
    assert rig.next_deadline_ns() is None


def test_rule_19_held_rows_expire_too() -> None:
    rig = Rig()
    held = rig.put(1, [], [A], held=True, deadline_ns=40)
    behind = rig.put(2, [], [A], deadline_ns=30)
    assert rig.expire(29) == []
    assert rig.expire(40) == [behind, held]
    rig.pipeline_ready(PIPELINE)
    assert rig.counts() == (0, 0)


def test_a_row_before_its_deadline_leaves() -> None:
    rig = Rig()
    rig.put(1, deadline_ns=50)
    assert rig.taken(now=49) == [1]
    assert rig.next_deadline_ns() is None
    assert rig.expire(60) == []


# Rule 22: cancelled and orphaned rows


@pytest.mark.parametrize("ordered", [False, True])
def test_rule_22_a_cancelled_row_leaves_at_once(ordered: bool) -> None:
    rig = Rig()
    options = {"deadline_ns": 10**9} if ordered else {}
    rows = [rig.put(msgid, [A], **options) for msgid in (1, 2, 3)]
    assert rig.cancel(1, 2) is rows[1]
    assert rig.cancel(1, 2) is None
    assert rig.cancel(1, 9) is None
    assert rig.counts() == (2, 2)
    assert rig.taken() == [1, 3]
    assert rig.cancel(1, 3) is None


@pytest.mark.parametrize("ordered", [False, True])
def test_rule_22_the_last_row_cancelled_ends_the_connections_turn(ordered: bool) -> None:
    rig = Rig(2)
    options = {"deadline_ns": 10**9} if ordered else {}
    rig.put(1, **options)
    rig.put(2, session=2)
    rig.cancel(1, 1)
    assert rig.taken(1) == [2]
    rig.put(3)
    assert rig.taken() == [3]


def test_rule_22_a_dead_connections_rows_are_dropped_and_nothing_waits_on_them() -> None:
    rig = Rig(3)
    gone = [rig.put(1, session=2), rig.put(2, session=2, held=True, deadline_ns=50), rig.put(3, session=2, after=(1,))]
    rig.put(4, session=1)
    rig.put(5, session=3)
    assert rig.remove_session(2) == gone
    assert rig.counts() == (2, 2)
    assert rig.next_deadline_ns() is None
    rig.pipeline_ready(PIPELINE)
    assert rig.pipeline_failed(PIPELINE) == []
    assert rig.finished(2, 1, False) == []
    assert rig.expire(99) == []
    assert rig.taken() == [4, 5]


def test_drain_empties_every_queue_and_leaves_the_connections() -> None:
    rig = Rig(2)
    rows = [rig.put(1), rig.put(2, held=True), rig.put(3, session=2)]
    assert rig.drain() == rows
    assert rig.counts() == (0, 0)
    rig.pipeline_ready(PIPELINE)
    rig.put(4)
    assert rig.taken() == [4]


# Rule 20: what rows hold is bounded by what is queued


class Payload:
    """Something that can be watched; bytes cannot."""


@pytest.mark.parametrize("leave", ["take", "cancel", "session"])
def test_rule_20_no_payload_is_kept_for_deadlines_or_pipelines_of_rows_that_left(leave: str) -> None:
    rig = Rig()
    watched = []
    rig.put(10**6, [X], deadline_ns=10**18, held=True)  # whoever waits for the pipeline or the deadline is still there
    for n in range(300):
        payload = Payload()
        watched.append(weakref.ref(payload))
        options = Options(deadline_ns=10**17 + n, priority=1)
        row = launch(token([A]), n, options=options, payload=(("in", payload),))
        rig.submit(row, n, PIPELINE if leave == "cancel" else None, (7,) if leave == "cancel" else ())
        del row, payload
        if leave == "take":
            assert len(rig.take(1, 0)) == 1
        elif leave == "cancel":
            rig.cancel(1, n)
    if leave == "session":
        rig.remove_session(1)
        rig.add_session(1)
        for n in range(300):
            rig.put(n, [A], deadline_ns=10**17)
    gc.collect()
    assert sum(ref() is not None for ref in watched) <= 64 + 4


# Rule 3, here: the cost of a row does not grow with the queue


@pytest.mark.parametrize(
    "kind", ["plain", "deadlines", "readers behind a writer", "writers", "priorities", "held", "after", "cancel"]
)
def test_the_cost_of_a_row_does_not_grow_with_the_queue(kind: str) -> None:
    def run(n: int) -> None:
        rig = Rig()
        reader, writer = token([A]), token([], [A])
        plain, dated = None, Options(deadline_ns=10**18)
        for i in range(n):
            options = plain if kind == "plain" else Options(priority=i % 200 - 100) if kind == "priorities" else dated
            t = writer if kind == "writers" or (kind == "readers behind a writer" and i == 0) else reader
            held = PIPELINE if kind == "held" or (kind == "readers behind a writer" and i == 0) else None
            rig.submit(launch(t, i, stamp=i, options=options), i, held, (10**6,) if kind == "after" else ())
            assert rig.oldest_ns >= 0
        rig.pipeline_ready(PIPELINE)
        rig.finished(1, 10**6, True)
        if kind == "cancel":
            for i in range(n - 1, -1, -1):
                assert rig.cancel(1, i)
        while rig.ready:
            assert rig.oldest_ns >= 0
            rig.take(64, 0)
        assert rig.counts() == (0, 0)

    small, large = (steps(lambda n=n: run(n)) for n in (500, 4000))
    assert large < 8.5 * small
