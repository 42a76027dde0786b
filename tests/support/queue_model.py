"""The scheduler's rules again, as plainly as they can be said: every question looks at all pairs of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vkqueue.model import CREATE, FREE, Row


@dataclass(eq=False)
class Job:
    row: Row
    number: int
    priority: int
    deadline_ns: int
    waits_for: set[tuple[str, int]] = field(default_factory=set)
    overdue: bool = False

    @property
    def session(self) -> int:
        session: int = self.row[0]
        return session


def _buffers(row: Row) -> set[int]:
    return {row[4]} if row[2] in (CREATE, FREE) else set(row[3].buffers)


def _written(row: Row) -> set[int]:
    return {row[4]} if row[2] in (CREATE, FREE) else {w[0] for w in row[3].writes}


def _keep_order(a: Row, b: Row) -> bool:
    """Whether two rows of a connection must. By buffers, not by ranges: the protocol promises no more."""
    return bool(_written(a) & _buffers(b) or _written(b) & _buffers(a))


class PlainScheduler:
    """What `vkqueue.jobs.scheduler.Scheduler` is to do."""

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        self.jobs: list[Job] = []
        self.failures: dict[int, list[int]] = {}
        self.turns: list[int] = []
        self.numbers = 0

    @property
    def queued(self) -> int:
        return len(self.jobs)

    @property
    def ready(self) -> int:
        return len(self._ready_jobs())

    @property
    def oldest_ns(self) -> int:
        return min((job.row[8] for job in self._ready_jobs()), default=0)

    @property
    def oldest_queued_ns(self) -> int:
        return min((job.row[8] for job in self.jobs), default=0)

    def _ready_of(self, session: int) -> list[Job]:
        """Jobs that neither wait for something nor have to keep their place behind one that does."""
        ready: list[Job] = []
        waiting: list[Job] = []
        for job in self.jobs:
            if job.session == session:
                held = bool(job.waits_for) or any(_keep_order(earlier.row, job.row) for earlier in waiting)
                (waiting if held else ready).append(job)
        return [job for job in ready if not job.overdue]

    def _ready_jobs(self) -> list[Job]:
        return [job for session in self.failures for job in self._ready_of(session)]

    def _update_turns(self, session: int) -> None:
        active = bool(self._ready_of(session))
        if active and session not in self.turns:
            self.turns.append(session)
        elif not active and session in self.turns:
            self.turns.remove(session)

    def add_session(self, id: int) -> None:
        self.failures[id] = []

    def remove_session(self, id: int) -> list[Row]:
        del self.failures[id]
        return self._drop(id)

    def drain(self) -> list[Row]:
        return [row for id in self.failures for row in self._drop(id)]

    def _drop(self, session: int) -> list[Row]:
        rows = [job.row for job in self.jobs if job.session == session]
        self.jobs = [job for job in self.jobs if job.session != session]
        self._update_turns(session)
        return rows

    def submit(self, row: Row, wait_for: int | None = None, outstanding: Iterable[int] = ()) -> None:
        options = row[9]
        priority = options.priority if options else 0
        for job in self.jobs:
            if job.session == row[0] and _buffers(job.row) & _buffers(row):
                priority = min(priority, job.priority)
        self.numbers += 1
        job = Job(row, self.numbers, priority, options.deadline_ns if options else 0)
        job.waits_for = {("after", msgid) for msgid in outstanding}
        if wait_for is not None:
            job.waits_for.add(("pipeline", wait_for))
        self.jobs.append(job)
        self._update_turns(row[0])

    def take(self, most: int, now_ns: int) -> list[Row]:
        rows: list[Row] = []
        while self.turns and len(rows) < most:
            share = max((most - len(rows)) // len(self.turns), 1)
            for session in list(self.turns):
                if len(rows) >= most:
                    break
                self.turns.remove(session)
                for _ in range(min(share, most - len(rows))):
                    job = self._next(session, now_ns)
                    if job is None:
                        break
                    self.jobs.remove(job)
                    rows.append(job.row)
                self._update_turns(session)
        return rows

    def _next(self, session: int, now_ns: int) -> Job | None:
        while ready := self._ready_of(session):
            job = min(ready, key=lambda job: (-job.priority, job.number))
            if not job.deadline_ns or job.deadline_ns > now_ns:
                return job
            job.overdue = True
        return None

    def _remove(self, jobs: Iterable[Job]) -> list[Row]:
        rows = []
        for job in jobs:
            self.jobs.remove(job)
            self._update_turns(job.session)
            rows.append(job.row)
        return rows

    def _waiting(self, what: tuple[str, int], session: int | None = None) -> list[Job]:
        return [job for job in self.jobs if what in job.waits_for and session in (None, job.session)]

    def _release(self, what: tuple[str, int], session: int | None = None) -> None:
        for job in self._waiting(what, session):
            job.waits_for.discard(what)
            self._update_turns(job.session)

    def pipeline_ready(self, id: int) -> None:
        self._release(("pipeline", id))

    def pipeline_failed(self, id: int) -> list[Row]:
        return self._remove(self._waiting(("pipeline", id)))

    def next_deadline_ns(self) -> int | None:
        return min((job.deadline_ns for job in self.jobs if job.deadline_ns), default=None)

    def expire(self, now_ns: int) -> list[Row]:
        due = [job for job in self.jobs if job.deadline_ns and job.deadline_ns <= now_ns]
        return self._remove(sorted(due, key=lambda job: (job.deadline_ns, job.number)))

    def cancel(self, session: int, msgid: int) -> Row | None:
        found = [job for job in self.jobs if job.session == session and job.row[1] == msgid]
        return self._remove(found)[0] if found else None

    def failed_before(self, session: int, msgids: Iterable[int]) -> int | None:
        return next((msgid for msgid in msgids if msgid in self.failures[session]), None)

    def finished(self, session: int, msgid: int, ok: bool) -> list[Row]:
        if session not in self.failures:
            return []
        failures = [known for known in self.failures[session] if known != msgid] + ([] if ok else [msgid])
        self.failures[session] = failures[-self.max_failures :]
        if ok:
            self._release(("after", msgid), session)
            return []
        return self._remove(self._waiting(("after", msgid), session))
