"""What the rows of a batch that is over are answered: one pass, and each connection is woken once for all its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkqueue.daemon.session import Session
from vkqueue.errors import NotFoundError, VkqueueError
from vkqueue.kernels.launches import Many
from vkqueue.model import (
    CREATE,
    DISPATCH,
    GRAPH,
    MANY,
    READ,
    ROW_MSGID,
    ROW_OP,
    ROW_OPTIONS,
    ROW_PAYLOAD,
    ROW_SESSION,
    ROW_STAMP,
    ROW_TARGET,
    Completion,
    Row,
)
from vkqueue.wire.codec import pack

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.service import Service

_EMPTY = pack({})
_NO_OUTPUTS = {DISPATCH: pack({"outputs": []}), GRAPH: pack({"outputs": {}})}


class Answers:
    """Answers the rows of one device's batches.

    Attributes:
        touched: connections with answers that are not on their way yet, by id; the device wakes them and empties it.
    """

    def __init__(self, service: Service, device: Device) -> None:
        self._service = service
        self._device = device
        self._counters = device.counters
        self._concluded: list[int] = []  # of the batch being answered, indices of many launches that were done
        self.touched: dict[int, Session] = {}

    def batch(self, completion: Completion) -> None:
        """One pass over the rows: each gets its one answer; each connection is woken once a run of its rows."""
        rows = completion.batch.rows
        launches = self._counters["launches"]
        special = completion.errors.keys() | completion.results.keys()
        plain: list[int] = []  # msgids of a run of launches with nothing to say but that they are done
        of = kind = None
        for i, row in enumerate(rows):
            op = row[2]
            if row[0] != of or op != kind:
                if plain:
                    self._plain(of, plain, kind)
                    plain = []
                of, kind = row[0], op
            # A launch without options (9) and payload (7). Numbers instead of names: this runs once per job.
            if (op == DISPATCH or op == GRAPH) and row[9] is None and row[7] is None and i not in special:
                plain.append(row[1])
                continue
            if plain:
                self._plain(of, plain, kind)
                plain = []
            self._special(row, completion, i)
        if plain:
            self._plain(of, plain, kind)
        if self._concluded:
            self._learn(completion, self._counters["launches"] - launches)
        failed = len(completion.errors)
        self._counters["jobs_failed"] += failed
        self._counters["jobs_completed"] += len(rows) - failed

    def _learn(self, completion: Completion, launches: int) -> None:
        """How long launches take, of a batch with so many of them: by what was measured of each row; where nothing is,
        they are taken for all that the batch did."""
        concluded, self._concluded = self._concluded, []
        spent = completion.finished_ns - max(completion.submitted_ns, self._device.finished_ns)
        for index in concluded:
            row = completion.batch.rows[index]
            many, measured = row[ROW_PAYLOAD], completion.spent_ns.get(index)
            each = spent // launches if measured is None else measured // many.count
            self._device.pace.took(row[ROW_TARGET], many.job.groups, each)

    def _plain(self, of: int | None, msgids: list[int], op: Any) -> None:
        if op == DISPATCH:
            self._counters["launches"] += len(msgids)
        session = self._service.sessions.get(of) if of is not None else None
        if session is None:
            return
        session.open_jobs -= len(msgids)
        if session.tracks_requests:
            for msgid in msgids:
                self._service.request_done(session, msgid, True)
        session.conn.respond_alike(msgids, _NO_OUTPUTS[op])
        self.touched[session.id] = session

    def _special(self, row: Row, completion: Completion, i: int) -> None:
        if row[ROW_OP] == MANY:
            if not self._concludes(row, completion, i):
                return
        elif row[ROW_OP] == DISPATCH and i not in completion.errors:
            self._counters["launches"] += 1
        session = self._service.sessions.get(row[ROW_SESSION])
        if session is None:
            return
        if i in completion.errors:
            self._service.job_failed(session, row, _for_client(completion.errors[i]))
            return
        self._service.row_done(session, row)
        if session.tracks_requests:
            self._service.request_done(session, row[ROW_MSGID], True)
        self._row(session, row, completion, i)
        self.touched[session.id] = session

    def _concludes(self, row: Row, completion: Completion, i: int) -> bool:
        """Of a part of many launches: whether the request is answered by it: it is the last, or the first to fail."""
        many: Many = row[ROW_PAYLOAD]
        job, failed = many.job, i in completion.errors
        if not failed:
            self._counters["launches"] += many.count
            self._concluded.append(i)
            job.submitted_ns = job.submitted_ns or completion.submitted_ns
            job.device_us += completion.device_us.get(i, 0)
        if job.over or not (failed or many.last):
            self._counters["jobs_failed" if failed else "jobs_completed"] -= 1  # it is counted with its batch's rows
            return False
        job.over = True
        if failed:
            self._device.scheduler.drop_rest(row[ROW_SESSION], row[ROW_MSGID])
        return True

    def _row(self, session: Session, row: Row, completion: Completion, i: int) -> None:
        """An answer with something in it."""
        op, msgid = row[ROW_OP], row[ROW_MSGID]
        if op == READ:
            session.conn.respond(msgid, {"data": completion.results[i][0]})
        elif op == CREATE:
            self._service.buffer_created(session, row)
        elif op in _NO_OUTPUTS:
            outputs: Any = completion.results.get(i, [])
            if op == GRAPH:
                outputs = dict(zip(row[ROW_TARGET].results, outputs, strict=True))
            times = self._times(row, completion, completion.submitted_ns, completion.device_us.get(i))
            session.conn.respond(msgid, {"outputs": outputs, **times})
        elif op == MANY:
            job = row[ROW_PAYLOAD].job
            device_us = job.device_us if i in completion.device_us else None
            session.conn.respond(
                msgid, {"count": job.total, **self._times(row, completion, job.submitted_ns, device_us)}
            )
        else:
            session.conn.respond_packed(msgid, _EMPTY)

    def _times(self, row: Row, completion: Completion, submitted: int, device_us: int | None) -> dict[str, Any]:
        """What an answer has more where times were asked for."""
        if row[ROW_OPTIONS] is None or not row[ROW_OPTIONS].timing:
            return {}
        started = row[ROW_STAMP]
        return {
            "timing": {
                "queued_us": max((submitted - started) // 1000, 0),
                "device_us": device_us,
                "total_us": max((completion.finished_ns - started) // 1000, 0),
            },
            "device": self._device.index,
        }


def _for_client(error: VkqueueError) -> VkqueueError:
    """A device's error without the daemon's own numbers for buffers, which a client would take for handles."""
    if error.code == "not_found" and error.data is not None and "buffer" in error.data:
        return NotFoundError("a buffer of this job is not there: its creation failed, or was cancelled")
    return error
