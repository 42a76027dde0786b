"""A day in the life: scheduler, batcher and stream together, under a virtual clock, random clients and a device that
takes its time, loses batches, times out and dies. After every step all must be in order; at the end nothing is owed.

`World.pump` and `World._post` do what `daemon.device.Device` does, with time as a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from support.jobs import MIXED, PUSHED, RINGED, Judge, conflict, create, free, launch, read, token, write

from vkqueue.jobs import stream as stream_module
from vkqueue.jobs.batcher import Batcher, Close, Wait
from vkqueue.jobs.job import TERMINAL, Event, State, advance
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.jobs.stream import Stream
from vkqueue.model import CREATE, DIRECT, FREE, Batch, Options, Row, Token

MAX_JOBS, DELAY_NS, IN_FLIGHT = 12, 40_000, 3
MAX_QUEUED = 24

_WEIGHTS = {
    "send": 420, "tick": 400, "cancel": 100, "built": 50, "leave": 10, "join": 10, "time_out": 5, "lose": 1,
}  # fmt: skip
"""Of a thousand steps or so."""


class Client:
    """A connection. `queued`: its rows in the order sent; `pending`: requests without an answer."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.msgids = 0
        self.queued: dict[int, Row] = {}
        self.pending: set[int] = set()
        self.state: dict[int, State] = {}
        self.buffers: list[int] = []
        self.tokens: list[Token] = []


class World:
    """Everything, and what must be true of it."""

    def __init__(self, seed: int, *, max_push: int, whole_buffers: bool) -> None:
        self.random = Random(seed)
        self.now = 1_000
        self.whole_buffers, self.max_push = whole_buffers, max_push
        self.scheduler = Scheduler(64)
        self.batcher = Batcher(MAX_JOBS, DELAY_NS // 1000, IN_FLIGHT)
        self.clients: dict[int, Client] = {}
        self.live: set[int] = set()  # buffers created and not released
        self.building: list[int] = []
        self.in_flight: dict[int, Batch] = {}
        self.ends: dict[int, int] = {}
        self.answered: set[int] = set()
        self.timer: int | None = None
        self.serial = self.ids = self.rows = self.spurious = self.barriers = self.direct = 0
        self.outcomes = dict.fromkeys(TERMINAL, 0)
        self.judge: Judge
        self._new_device()
        for _ in range(4):
            self.join()

    def _new_device(self) -> None:
        self.stream = Stream(self.max_push, 64, 64)
        if hasattr(self, "judge"):
            self._sum_up()
        self.judge = Judge(self.max_push)

    def _sum_up(self) -> None:
        assert self.judge.needless == 0, "an initializer ran although the descriptors were in place"
        self.spurious += self.judge.spurious
        self.barriers += self.judge.barriers
        self.direct += self.judge.direct
        self.rows += self.judge.rows

    def _id(self) -> int:
        self.ids += 1
        return self.ids

    # What clients do

    def join(self) -> None:
        client = Client(self._id())
        self.clients[client.id] = client
        self.scheduler.add_session(client.id)

    def leave(self, client: Client) -> None:
        """Rules 22 and 32: killed, whatever it is doing."""
        del self.clients[client.id]
        assert self.scheduler.remove_session(client.id) == list(client.queued.values())
        self.stream.forget(tuple(client.buffers))
        self.live.difference_update(client.buffers)

    def send(self, client: Client) -> None:
        """One request, of whatever kind."""
        if len(client.queued) >= MAX_QUEUED:
            return
        pick = self.random.random()
        if len(client.buffers) < 2 or pick < 0.02:
            self._create(client)
        elif pick < 0.03:
            self._free(client)
        elif pick < 0.13:
            move = read if pick < 0.08 else write
            row = move(self._range(client), self._msgid(client), session=client.id, stamp=self.now)
            self._submit(client, row)
        else:
            self._dispatch(client)

    def _msgid(self, client: Client) -> int:
        client.msgids += 1
        client.pending.add(client.msgids)
        client.state[client.msgids] = State.QUEUED
        return client.msgids

    def _range(self, client: Client) -> tuple[int, int, int]:
        buffer = self.random.choice(client.buffers)
        if self.whole_buffers:
            return buffer, 0, 64
        first, end = sorted(self.random.sample(range(0, 65, 16), 2))
        return buffer, first, end

    def _create(self, client: Client) -> None:
        buffer, size = self._id(), self.random.choice([0, 64, 128])
        if size:
            client.buffers.append(buffer)
        row = create(buffer, size, self._msgid(client), session=client.id, stamp=self.now)
        self._submit(client, row)

    def _free(self, client: Client) -> None:
        buffer = self.random.choice(client.buffers)
        client.buffers.remove(buffer)
        client.tokens = [t for t in client.tokens if buffer not in t.buffers]
        row = free(buffer, session=client.id, stamp=self.now)
        client.queued[-row[3].id] = row
        self.scheduler.submit(row, self.now)

    def _dispatch(self, client: Client) -> None:
        rng = self.random
        if client.tokens and rng.random() < 0.9:
            t = rng.choice(client.tokens)
        else:
            reads, writes = ([self._range(client) for _ in range(rng.choice([0, 1, 1, 2]))] for _ in range(2))
            cached = rng.random() < 0.8
            t = token(reads, writes, shape=rng.choice([PUSHED, PUSHED, RINGED, MIXED]), cached=cached)
            if cached:
                client.tokens.append(t)
                del client.tokens[:-12]
        options, wait_for, after = None, None, ()
        if rng.random() < 0.15:
            after = tuple(rng.sample(sorted(client.pending), min(2, len(client.pending))))
            options = Options(
                priority=rng.choice([0, 0, -5, 5]),
                deadline_ns=self.now + rng.choice([10_000, 100_000, 10**9]) if rng.random() < 0.5 else 0,
                after=after if rng.random() < 0.3 else (),
            )
            after = options.after
        if rng.random() < 0.05:
            if not self.building or rng.random() < 0.3:
                self.building.append(self._id())
            wait_for = rng.choice(self.building)
        msgid = self._msgid(client)
        if wait_for is not None:
            self._advance(client, msgid, Event.HOLD)
        row = launch(t, msgid, session=client.id, stamp=self.now, options=options)
        if self.scheduler.failed_before(client.id, after) is not None:
            self._fail(row, Event.RELEASE if wait_for else None, Event.FAIL)
            return
        self._submit(client, row, wait_for, after)

    def _submit(
        self, client: Client, row: Row, wait_for: int | None = None, after: Iterable[int] = ()
    ) -> None:
        client.queued[row[1]] = row
        self.scheduler.submit(row, row[8], wait_for, after)

    def cancel(self, client: Client) -> None:
        known_ids = [msgid for msgid in client.queued if msgid > 0]
        msgid = self.random.choice([*known_ids, client.msgids + 1, max(1, client.msgids - MAX_QUEUED)])
        known = client.queued.get(msgid)
        if known is None or known[2] != CREATE:
            row = self.scheduler.cancel(client.id, msgid)
            assert row is known, "it is in the queue, or it is not"
            if row is not None:
                self._fail(row, Event.CANCEL)

    # Answers

    def _advance(self, client: Client, msgid: int, event: Event) -> None:
        client.state[msgid] = advance(client.state[msgid], event)

    def _fail(self, row: Row, *events: Event | None) -> None:
        """A row was taken out of the queue: its one answer, and those of the ones that depend on it."""
        failed = [(row, events)]
        while failed:
            row, events = failed.pop()
            client = self.clients[row[0]]
            client.queued.pop(row[1] if row[2] != FREE else -row[3].id, None)
            if row[2] != FREE:
                failed += [(r, (Event.FAIL,)) for r in self._answer(client, row[1], *events)]

    def _answer(self, client: Client, msgid: int, *events: Event | None) -> list[Row]:
        for event in events:
            if event is not None:
                self._advance(client, msgid, event)
        state = client.state[msgid]
        self.outcomes[state] += 1
        client.pending.remove(msgid)
        return self.scheduler.finished(client.id, msgid, state is State.DONE)

    # What the device and the compiler do

    def complete(self, serial: int) -> None:
        """The fence of a batch is known, or that it never will be."""
        batch = self.in_flight.pop(serial)
        del self.ends[serial]
        everything = self.random.random() < 0.01
        if everything:
            self.stream.reset()
            self.judge.reset()
        self.stream.completed(serial)
        self.judge.completed(serial)
        if serial in self.answered:
            self.answered.remove(serial)
            return
        for row in batch.rows:
            client = self.clients.get(row[0])
            if client is not None:
                failed = everything or self.random.random() < 0.01
                for dependent in self._answer(client, row[1], Event.FAIL if failed else Event.FINISH):
                    self._fail(dependent, Event.FAIL)

    def time_out(self, serial: int) -> None:
        """Rule 38: answered, and in flight as before."""
        if serial not in self.answered:
            self.answered.add(serial)
            self._answer_all(self.in_flight[serial], Event.TIME_OUT)

    def _answer_all(self, batch: Batch, event: Event) -> None:
        for row in batch.rows:
            client = self.clients.get(row[0])
            if client is not None:
                for dependent in self._answer(client, row[1], event):
                    self._fail(dependent, Event.FAIL)

    def lose(self) -> None:
        """Rule 35: the device is lost, with all that is on it."""
        for row in self.scheduler.drain():
            client = self.clients[row[0]]
            del client.queued[row[1] if row[2] != FREE else -row[3].id]
            if row[2] != FREE:
                assert not self._answer(client, row[1], Event.LOSE), "nothing is left that could depend on it"
        for serial in list(self.in_flight):
            if serial not in self.answered:
                self._answer_all(self.in_flight[serial], Event.LOSE)
        self.in_flight.clear()
        self.ends.clear()
        self.answered.clear()
        self.building.clear()
        self.live.clear()
        for client in self.clients.values():
            client.buffers.clear()
            client.tokens.clear()
        self.batcher.reset()
        self._new_device()

    def built(self, ok: bool) -> None:
        if not self.building:
            return
        id = self.building.pop(self.random.randrange(len(self.building)))
        if not ok:
            for row in self.scheduler.pipeline_failed(id):
                self._fail(row, Event.FAIL)
            return
        held = [
            (client, msgid)
            for client in self.clients.values()
            for msgid, row in client.queued.items()
            if row[2] != FREE and client.state[msgid] is State.HELD and self._held_for(row) == id
        ]
        self.scheduler.pipeline_ready(id)
        for client, msgid in held:
            self._advance(client, msgid, Event.RELEASE)

    def _held_for(self, row: Row) -> int | None:
        ordered = self.scheduler._sessions[row[0]].ordered
        entry = ordered.find(row[1]) if ordered is not None else None
        return entry.pipeline if entry is not None else None

    # The loop

    def pump(self) -> None:
        scheduler = self.scheduler
        while scheduler.ready:
            decision = self.batcher.decide(scheduler.ready, scheduler.oldest_ns, len(self.in_flight), self.now)
            if isinstance(decision, Close):
                before = scheduler.queued
                rows = scheduler.take(decision.count, self.now)
                assert scheduler.queued == before - len(rows)
                self._post(rows, decision.reason)
            else:
                if isinstance(decision, Wait) and (self.timer is None or decision.until_ns < self.timer):
                    self.timer = decision.until_ns
                break

    def _post(self, taken: list[Row], reason: str) -> None:
        for row in taken:
            self._check_leaving(row)
        rows = [row for row in taken if row[2] != FREE]
        if rows:
            self.serial += 1
            self.batcher.count(reason, len(rows))
            batch = self.stream.make_batch(rows, self.serial, reason, self.now)
            self.judge.see(batch)
            self.in_flight[self.serial] = batch
            self.ends[self.serial] = self.now + self.random.choice([1_000, 20_000, 200_000])
            if all(flag & DIRECT for flag in batch.flags):
                self.ends[self.serial] = self.now + 500  # nothing on the device: it passes those before it
        freed = tuple(row[4] for row in taken if row[2] == FREE)
        self.stream.forget(freed)

    def _check_leaving(self, row: Row) -> None:
        client = self.clients[row[0]]
        key = row[1] if row[2] != FREE else -row[3].id
        for other_key, other in client.queued.items():
            if other_key == key:
                break
            assert not conflict(row[3], other[3]), f"row {key} passes row {other_key}"
        del client.queued[key]
        if row[2] == CREATE:
            self.live.add(row[4])
        else:
            assert self.live.issuperset(row[3].buffers), "a row without its buffer"
        if row[2] == FREE:
            self.live.remove(row[4])
            return
        assert row[9] is None or not row[9].deadline_ns or row[9].deadline_ns > self.now, "rule 19"
        self._advance(client, row[1], Event.SUBMIT)

    def tick(self) -> None:
        """To the next thing that happens by itself, or a little on."""
        due = [*self.ends.values(), self.now + self.random.choice([100, 5_000, 50_000])]
        deadline = self.scheduler.next_deadline_ns()
        due += [t for t in (deadline, self.timer) if t is not None]
        self.now = max(self.now, min(due))
        if self.timer is not None and self.timer <= self.now:
            self.timer = None
        for row in self.scheduler.expire(self.now):
            self._fail(row, Event.EXPIRE)
        for serial in [s for s, end in self.ends.items() if end <= self.now]:
            self.complete(serial)

    def step(self) -> None:
        rng = self.random
        client = rng.choice(list(self.clients.values()))
        [what] = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if what == "send":
            for _ in range(rng.choice([1, 1, 2, 6])):
                self.send(client)
        elif what == "built":
            self.built(rng.random() < 0.8)
        elif what in ("cancel", "leave"):
            getattr(self, what)(client)
        elif what == "time_out":
            if self.in_flight:
                self.time_out(rng.choice(list(self.in_flight)))
        else:
            getattr(self, what)()
        while len(self.clients) < 3:
            self.join()
        self.pump()
        self.check()

    def check(self) -> None:
        scheduler = self.scheduler
        assert scheduler.queued == sum(len(client.queued) for client in self.clients.values())
        assert 0 <= scheduler.ready <= scheduler.queued
        if scheduler.ready:
            assert self.in_flight, "work is ready, the device idle, and nobody does anything"
            if len(self.in_flight) < IN_FLIGHT:
                assert self.timer is not None, "no wake-up"
                assert self.timer <= scheduler.oldest_ns + DELAY_NS, "a late wake-up"
                assert scheduler.ready < MAX_JOBS, "a full batch waits"
        assert len(self.in_flight) <= IN_FLIGHT

    def finish(self) -> None:
        """No new work: what is owed is answered, without any help but the device's and the compiler's."""
        while self.building:
            self.built(True)
            self.pump()
        steps = 0
        while self.scheduler.queued or self.in_flight:
            self.tick()
            self.pump()
            self.check()
            steps += 1
            assert steps < 10_000, "something waits for ever"
        for client in self.clients.values():
            assert not client.pending
            assert TERMINAL.issuperset(client.state.values())
        self._sum_up()


@pytest.mark.parametrize("whole_buffers", [True, False], ids=["buffers", "ranges"])
@pytest.mark.parametrize("max_push", [0, 4], ids=["rings", "push"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_steps(seed: int, max_push: int, whole_buffers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_MIN_SLOTS", 6)  # so that tokens have to make room for others
    world = World(seed + max_push + 100 * whole_buffers, max_push=max_push, whole_buffers=whole_buffers)
    for _ in range(12_500):
        world.step()
    world.finish()

    if whole_buffers:
        assert world.spurious == 0, "a barrier where nothing conflicts"
    else:
        assert world.spurious < world.barriers * 0.05, "merged ranges cost that much?"
    # The day was a busy one.
    assert world.rows > 5_000
    assert world.direct > 100
    assert world.barriers > 1_000
    assert min(world.batcher.reasons.values()) > 50
    assert {s for s in TERMINAL if not world.outcomes[s]} <= {State.SHUT_DOWN}
