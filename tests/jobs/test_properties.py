"""Random histories: the scheduler against its rules said plainly, the stream against a judge of every pair of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import (
    MIXED,
    PUSH_MAX,
    PUSHED,
    RINGED,
    Judge,
    create,
    free,
    launch,
    layout,
    read,
    token,
    write,
)
from support.queue_model import PlainScheduler

from vkqueue.gpu.contract import Contract
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.jobs.stream import Stream
from vkqueue.model import Options, Row, Token

# The scheduler

Act = Callable[[Any], Any]
"""Something done to a scheduler or to its model; what it returns must be equal."""

SESSIONS, PIPELINES = 3, (101, 102)
buffers = st.lists(st.integers(1, 4), max_size=2, unique=True)


class History:
    """Does the same to both, and compares all that can be seen."""

    def __init__(self) -> None:
        self.real, self.plain = Scheduler(3), PlainScheduler(3)
        self.clock = 10
        self.msgids = count(1)
        self.known: list[tuple[int, int]] = []  # (session, msgid) of requests that are not answered
        for session in range(1, SESSIONS + 1):
            self.both(lambda s, id=session: s.add_session(id))

    def both(self, act: Act) -> Any:
        seen, expected = act(self.real), act(self.plain)
        assert seen == expected
        for name in ("queued", "ready", "oldest_ns", "oldest_queued_ns"):
            assert getattr(self.real, name) == getattr(self.plain, name), name
        assert self.real.next_deadline_ns() == self.plain.next_deadline_ns()
        return seen

    def submit(self, row: Row, wait_for: int | None = None, after: tuple[int, ...] = ()) -> None:
        self.real.submit(row, row[8], wait_for, after)
        self.plain.submit(row, wait_for, after)
        self.both(lambda s: None)
        if row[1] >= 0:
            self.known.append((row[0], row[1]))

    def run(self, session: int, uses: list[int]) -> None:
        """Several plain rows at once."""
        rows = [launch(token([], [b]), next(self.msgids), session=session, stamp=self.clock) for b in uses]
        self.known += [(session, row[1]) for row in rows]
        self.real.submit_plain(session, rows, self.clock)
        for row in rows:
            self.plain.submit(row)
        self.both(lambda s: None)

    def take(self, most: int) -> None:
        self.both(lambda s: s.take(most, self.clock))

    def request(
        self, session: int, reads: list[int], writes: list[int], special: str, number: int, ahead: int, pipeline: int
    ) -> None:
        msgid = next(self.msgids)
        earlier = [m for s, m in self.known if s == session]
        after = tuple(earlier[-2:]) if special == "after" else ()
        options = {
            "priority": Options(priority=number),
            "deadline": Options(deadline_ns=self.clock + ahead),
            "both": Options(priority=number, deadline_ns=self.clock + ahead),
            "timing": Options(timing=True),
            "after": Options(after=after),
        }.get(special)
        row = launch(token(reads, writes), msgid, session=session, stamp=self.clock, options=options)
        self.submit(row, pipeline if special == "held" or (special == "both" and number > 0) else None, after)

    def buffer(self, session: int, which: str, buffer: int, size: int) -> None:
        if which == "free":
            self.submit(free(buffer, size, session=session, stamp=self.clock))
        else:
            self.submit(create(buffer, size, next(self.msgids), session=session, stamp=self.clock))

    def tick(self, by: int) -> None:
        self.clock += by

    def expire(self) -> None:
        self.both(lambda s: s.expire(self.clock))

    def pipeline(self, id: int, ok: bool) -> None:
        self.both(lambda s: s.pipeline_ready(id) if ok else s.pipeline_failed(id))

    def finish(self, which: int, ok: bool) -> None:
        if self.known:
            session, msgid = self.known.pop(which % len(self.known))
            self.both(lambda s: s.finished(session, msgid, ok))
            self.both(lambda s: s.failed_before(session, range(1, 100)) if session in s_ids(s) else None)

    def cancel(self, which: int) -> None:
        if self.known:
            session, msgid = self.known[which % len(self.known)]
            if session in s_ids(self.real):
                self.both(lambda s: s.cancel(session, msgid))

    def reconnect(self, session: int) -> None:
        self.both(lambda s: s.remove_session(session))
        self.known = [known for known in self.known if known[0] != session]
        self.both(lambda s: s.add_session(session))

    def drain(self) -> None:
        self.both(lambda s: s.drain())


def s_ids(scheduler: Scheduler | PlainScheduler) -> Any:
    return scheduler.failures if isinstance(scheduler, PlainScheduler) else scheduler._sessions


session = st.integers(1, SESSIONS)
pipeline = st.sampled_from(PIPELINES)
ACTS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    "request": (8, (
        session, buffers, buffers,
        st.sampled_from(["", "", "held", "after", "priority", "deadline", "both", "timing"]),
        st.integers(-2, 2), st.integers(1, 9), pipeline,
    )),
    "run": (3, (session, st.lists(st.integers(1, 4), min_size=1, max_size=4))),
    "buffer": (2, (session, st.sampled_from(["free", "create"]), st.integers(1, 4), st.sampled_from([0, 64]))),
    "take": (5, (st.integers(0, 6),)),
    "tick": (5, (st.integers(1, 3),)),
    "expire": (2, ()),
    "pipeline": (2, (pipeline, st.booleans())),
    "finish": (3, (st.integers(0, 50), st.booleans())),
    "cancel": (3, (st.integers(0, 50),)),
    "reconnect": (1, (session,)),
    "drain": (1, ()),
}  # fmt: skip
"""Each with its weight and its arguments."""

names = st.sampled_from([name for name, (weight, _) in ACTS.items() for _ in range(weight)])
acts = names.flatmap({name: st.tuples(st.just(name), *arguments) for name, (_, arguments) in ACTS.items()}.__getitem__)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(acts, min_size=15, max_size=80))
def test_the_scheduler_does_what_its_rules_say(history: list[tuple[Any, ...]]) -> None:
    both = History()
    for name, *arguments in history:
        getattr(both, name)(*arguments)
    for pipeline in PIPELINES:
        both.pipeline(pipeline, True)
    for _ in range(len(both.known)):
        both.finish(0, True)
    both.tick(100)
    both.expire()
    both.take(1000)
    assert both.real.queued == 0, "nothing is left behind"


# The stream

LAYOUTS = [PUSHED, RINGED, MIXED, layout(1), layout(0)]
spans = st.lists(st.integers(0, 12), min_size=2, max_size=2, unique=True).map(sorted)


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    found = []
    for buffer in draw(st.lists(st.integers(1, 3), max_size=2)):
        found.append((buffer, *draw(spans)))
    return found


@st.composite
def tokens(draw: st.DrawFn) -> Token:
    shape, transient = draw(st.sampled_from(LAYOUTS)), draw(st.integers(0, 3))
    return token(draw(ranges()), draw(ranges()), shape=shape, cached=transient > 0)


@st.composite
def transfers(draw: st.DrawFn) -> Row:
    where = (draw(st.integers(1, 3)), *draw(spans))
    return draw(st.sampled_from([read, write]))(where)


class Run:
    """A stream, the judge, and the contract that the fake backend holds batches to."""

    def __init__(self, max_push: int, direct: int) -> None:
        self.stream = Stream(max_push, direct, direct)
        self.judge, self.contract = Judge(max_push), Contract(max_push)
        self.serial = 0
        self.in_flight: list[int] = []

    def batch(self, rows: list[Row]) -> None:
        self.serial += 1
        made = self.stream.make_batch(rows, self.serial, "idle", 0)
        self.judge.see(made)
        self.contract.check(made)
        self.in_flight.append(self.serial)

    def complete(self, which: int) -> None:
        if self.in_flight:
            serial = self.in_flight.pop(which % len(self.in_flight))
            self.stream.completed(serial)
            self.judge.completed(serial)
            self.contract.finished(serial)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(tokens(), min_size=1, max_size=8),
    st.lists(transfers(), max_size=4),
    st.lists(st.one_of(st.lists(st.integers(0, 11), max_size=12), st.integers(-1, 3)), min_size=5, max_size=30),
    st.sampled_from([0, PUSH_MAX]),
    st.sampled_from([0, 6]),
)
def test_no_barrier_is_missing_and_no_descriptor_either(
    launches: list[Token], moves: list[Row], history: list[list[int] | int], max_push: int, direct: int
) -> None:
    rows = [launch(t) for t in launches] + moves
    run = Run(max_push, direct)
    for act in history:
        if isinstance(act, list):
            run.batch([rows[i % len(rows)] for i in act])
        elif act < 0:
            run.stream.reset()
            run.judge.reset()
        else:
            run.complete(act)
    assert run.judge.needless == 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(buffers, buffers), min_size=1, max_size=8),
    st.lists(st.one_of(st.lists(st.integers(0, 7), max_size=12), st.integers(0, 3)), min_size=5, max_size=30),
)
def test_with_whole_buffers_no_barrier_is_needless(
    uses: list[tuple[list[int], list[int]]], history: list[list[int] | int]
) -> None:
    """Ranges may be merged, which costs barriers; whole buffers never are."""
    rows = [launch(token(reads, writes)) for reads, writes in uses]
    run = Run(PUSH_MAX, 0)
    for act in history:
        if isinstance(act, list):
            run.batch([rows[i % len(rows)] for i in act])
        else:
            run.complete(act)
    assert run.judge.spurious == 0
