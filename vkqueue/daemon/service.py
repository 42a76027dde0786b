"""The service: requests of all connections in, answers out. Owns sessions, devices and modules; knows no socket.

    connection → handle(session, requests) → Dispatcher / Requests → row → Device … → answer on session.conn → wake

Everything here runs on the loop thread and never blocks: modules are analysed in the helper processes, pipelines are
built on the compile threads, batches run on the worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vkqueue.config import Config
from vkqueue.daemon.alarms import Alarms
from vkqueue.daemon.device import Device
from vkqueue.daemon.dispatch import Deferred, Dispatcher, dependency_error
from vkqueue.daemon.graph import Graph
from vkqueue.daemon.graph_requests import GraphRequests
from vkqueue.daemon.many import ManyRequests
from vkqueue.daemon.models import Models
from vkqueue.daemon.modules import Helper, ModuleTable
from vkqueue.daemon.requests import CONTROL, CREATING, Requests
from vkqueue.daemon.session import Buffer, Deferral, Module, Peer, Session, row_bytes
from vkqueue.daemon.sharing import receive_share
from vkqueue.errors import (
    DeviceLostError,
    InternalError,
    InvalidError,
    JobExpiredError,
    ShuttingDownError,
    UnsupportedError,
    VkqueueError,
)  # fmt: skip
from vkqueue.kernels.plan import LayoutTable
from vkqueue.model import (
    CREATE,
    FREE,
    ROW_GRID,
    ROW_MSGID,
    ROW_OP,
    ROW_PAYLOAD,
    ROW_TARGET,
    Row,
    Token,
)
from vkqueue.wire.forms import Filled
from vkqueue.wire.framing import Limits
from vkqueue.wire.messages import METHODS, check
from vkqueue.wire.repeats import GraphLaunch, Launch
from vkqueue.wire.session import Request, ServerConnection
from vkqueue.worker.events import DeviceLost, Failed, Opened

if TYPE_CHECKING:
    from vkqueue.worker.thread import DeviceThread

log = logging.getLogger("vkqueue.daemon")

StartThread = Callable[[Callable[[list[Any]], None]], "DeviceThread"]

# Give up after this many failed rebuilds in a row, so that the service manager starts another daemon (arbitrary;
# systemd's own StartLimitBurst is 5).
_MAX_REBUILDS = 3


class Service:
    """The daemon without its sockets.

    Args:
        config: validated.
        start_threads: one per device: starts its worker thread, given where events go (called on the loop).
        helper: the helper processes; their callbacks run on the loop.
    """

    def __init__(self, config: Config, start_threads: Sequence[StartThread], helper: Helper) -> None:
        self.config = config
        self.sessions: dict[int, Session] = {}
        self.layouts = LayoutTable()
        self.alarms = Alarms()
        strict = config.isolation.spirv_val == "strict"
        self.modules = ModuleTable(helper, self._newest_api if strict else None)
        self.devices = [Device(self, index, start) for index, start in enumerate(start_threads)]
        self.dispatcher = Dispatcher(self)
        self.graphs = GraphRequests(self)
        self.many = ManyRequests(self)
        self.models = Models(self)
        self.requests = Requests(self)
        self.draining = False
        self.fatal: VkqueueError | None = None
        self._started_at = time.monotonic()
        self._ids = 0
        self._session_ids = 0
        self._opening = set(range(len(self.devices)))  # those that have not answered at all yet
        self._on_started: Callable[[], None] | None = None
        self._on_health: Callable[[bool], None] | None = None
        self._on_idle: Callable[[], None] | None = None
        limits = config.limits
        self._wire_limits = Limits(max_message_bytes=limits.max_message_bytes)
        # Of all connections, as in Session. `_paused` are those that are not read from.
        self._queued_bytes = 0
        self._deferred_bytes = 0
        self._paused: dict[int, Session] = {}
        self._max_output_bytes = limits.max_output_bytes
        self._total_queued_bytes = limits.total_queued_bytes
        self._settling = False
        self.full = False

    # Life

    def start(self, on_started: Callable[[], None], on_health: Callable[[bool], None]) -> None:
        """Open the devices. `on_started` is called once each has answered; `on_health` at each later change."""
        self._on_started, self._on_health = on_started, on_health
        for device in self.devices:
            device.open()
        if not self.devices:
            self.models.start(on_started)

    @property
    def healthy(self) -> bool:
        """Whether every device works and there is one."""
        return bool(self.devices) and all(device.working for device in self.devices)

    @property
    def busy(self) -> bool:
        """Whether any accepted work is not answered yet."""
        return any(d.busy for d in self.devices) or any(s.conn.pending for s in self.sessions.values())

    def drain(self, on_idle: Callable[[], None]) -> None:
        """Take no new work; `on_idle` is called once all accepted work is answered."""
        self.draining, self._on_idle = True, on_idle
        self.settle()

    def fail_queued(self) -> None:
        """The drain took too long: answer what was not submitted."""
        error = ShuttingDownError("the daemon stopped before this request ran")
        for session in list(self.sessions.values()):
            while session.deferred:
                entry = session.deferred.popleft()
                self._forget_deferred(session, entry)
                self.fail(session, entry.msgid, error)
        self.models.fail_queued(error)
        for device in self.devices:
            device.fail_queued()
        self.settle()

    def stop(self, timeout_s: float) -> None:
        """Blocking, off the loop: end the worker threads, all within the time."""
        deadline = time.monotonic() + timeout_s
        for device in self.devices:
            device.request_stop(timeout_s)
        for device in self.devices:
            device.join(deadline - time.monotonic())

    def device_event(self, device: Device, event: Any) -> None:
        """Opened, Failed or DeviceLost from a worker thread."""
        before = self.healthy
        if isinstance(event, Opened):
            log.info("device %d works: %s (%s)", device.index, event.info.name, event.info.driver)
            device.opened(event.info)
            self._answered_open(device)
            self.models.opened(device)
        elif isinstance(event, Failed):
            log.error("device %d does not open: %s", device.index, event.error)
            device.failure = event.error
            if device.generation:
                self._rebuild(device, event.error)
            self._answered_open(device)
        elif isinstance(event, DeviceLost):
            log.error("device %d was lost: %s", device.index, event.error)
            device.lost(DeviceLostError(f"the device was lost; the outcome of this job is unknown ({event.error})"))
            self.models.lost(device)
            self._rebuild(device, event.error)
        if self._on_health is not None and self.healthy != before:
            self._on_health(self.healthy)

    def _answered_open(self, device: Device) -> None:
        if self._opening:
            self._opening.discard(device.index)
            if not self._opening and self._on_started is not None:
                self.models.start(self._on_started)

    def _rebuild(self, device: Device, error: VkqueueError) -> None:
        device.rebuilds += 1
        if device.rebuilds > _MAX_REBUILDS:
            log.critical("device %d: %d rebuilds failed in a row; giving up", device.index, _MAX_REBUILDS)
            self.fatal = error
            if self._on_health is not None:
                self._on_health(False)
            return
        device.open()

    # Connections

    def open_session(self, peer: Peer, wake: Callable[[], None]) -> Session:
        """A connection came. `wake` is called when there is output, once or more per burst."""
        self._session_ids += 1
        session = Session(self._session_ids, ServerConnection(self._wire_limits), peer, wake)
        self._join(session)
        return session

    def open_internal(self, make: Callable[[int], Session]) -> Session:
        """A session of the daemon's own, made with its id."""
        self._session_ids += 1
        session = make(self._session_ids)
        self._join(session)
        return session

    def _join(self, session: Session) -> None:
        self.sessions[session.id] = session
        for device in self.devices:
            device.scheduler.add_session(session.id)

    def close_session(self, session: Session) -> None:
        """The connection is gone: queued jobs are dropped, running ones finish unseen, all it owned is freed."""
        if session.closed:
            return
        session.closed = True
        del self.sessions[session.id]
        self.models.drop_session(session)
        while session.deferred:
            self._forget_deferred(session, session.deferred.popleft())
        self._queued_bytes -= session.queued_bytes
        self._paused.pop(session.id, None)
        for found in session.objects.values():
            if type(found) is Module and found.code is not None:
                found.code.users -= 1
            elif type(found) is Graph:
                self.graphs.let_go(found)
        for cached in {id(c): c for c in session.kernels.values()}.values():
            cached.kernel.users -= 1
        for device in self.devices:
            device.drop_session(session)
        if session.device is not None:
            session.device.sessions -= 1
        session.objects.clear()
        session.kernels.clear()
        session.shares.clear()
        self.settle()

    def handle(self, session: Session, requests: list[Request]) -> None:
        """Take a burst of requests; answers appear on `session.conn` at once or later."""
        now = time.monotonic_ns()
        self._look_whether_full()
        self.note_refused(session)
        self._settling = True  # once, behind the last of the burst
        try:
            self._take_all(session, requests, now)
        finally:
            self._settling = False
        self.settle()
        session.wake()

    def note_refused(self, session: Session) -> None:
        """What the connection has answered itself has failed, for `after`."""
        if session.conn.refused:
            for msgid in session.conn.take_refused():
                self.request_done(session, msgid, False)

    def _take_all(self, session: Session, requests: list[Request], now: int) -> None:
        index = 0
        # The list grows while it is gone through: behind an accepted `hello` comes what was held back for it.
        while index < len(requests):
            msgid, method, params = requests[index]
            if type(params) is Launch and not session.blocked and not self.draining:
                ahead = self.dispatcher.again(session, requests, index, now)
                if ahead > index:
                    index = ahead
                    continue
            elif type(params) is Filled:
                if not self.models.forms.again(session, msgid, params, now):
                    session.burst = requests, index
                    self._request(session, msgid, method, params.whole(), now)
                    self.models.forms.learn(session, msgid, params)
                index += 1
                continue
            elif type(params) is GraphLaunch and not session.blocked and not self.draining:
                ahead = self.graphs.again(session, requests, index, now)
                if ahead > index:
                    index = ahead
                    continue
            session.burst = requests, index
            self._request(session, msgid, method, params, now)
            index += 1
        session.burst = (), 0

    def _look_whether_full(self) -> None:
        queued = self.models.queued if self.models.servings else 0
        for device in self.devices:
            queued += device.scheduler.queued
        self.full = queued >= self.config.limits.total_queued_jobs

    def holds_up(self, session: Session) -> bool:
        """Whether a request of this connection for work may have to wait or to be refused: `_request` knows."""
        return (
            session.blocked
            or self.draining
            or session.conn.bytes_out > self._max_output_bytes
            or self._queued_bytes - self._deferred_bytes > self._total_queued_bytes
        )

    def _request(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        """A request that has just come."""
        try:
            if method in CREATING:
                if method == "buffer.share":
                    receive_share(session, msgid, params.get("size"), self.config.limits.max_shared_buffers)
                session.reserve_handle(msgid, params.get("as"))
            control = method in CONTROL
            if session.conn.bytes_out > self._max_output_bytes:
                self._hold_up(session)
                control = False  # not this one's turn either: its answer would add to the others
            elif not control and self._queued_bytes - self._deferred_bytes > self._total_queued_bytes:
                self._hold_up(session)
            if self.draining and method in METHODS and method not in CONTROL:
                raise ShuttingDownError("the daemon is shutting down and takes no new work")
            if session.blocked and not control and method in METHODS:
                self._defer(session, msgid, method, params, now)
                return
        except VkqueueError as error:
            self.fail(session, msgid, error)
            return
        self._run(session, msgid, method, params, now)

    def _run(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        """A request whose turn it is."""
        try:
            if method == "dispatch":
                self.dispatcher.fast(session, msgid, params, now)
                return
            if method == "graph.launch":
                self.graphs.launch(session, msgid, params, now)
                return
            checked = check(method, params)
            self.requests.handlers[method](session, msgid, checked, now)
        except VkqueueError as error:
            self.fail(session, msgid, error)
        except Deferred:
            self._defer(session, msgid, method, params, now)
        except Exception:
            self.broken(session, msgid, method)

    def settle(self) -> None:
        """Behind everything that comes from outside: go on with what became possible by it."""
        if self._settling:
            return
        self._settling = True
        try:
            if self._paused:
                self._resume_paused()
            if self.models.due:
                self.models.pump()
            for device in self.devices:
                if device.scheduler.ready:
                    device.pump()
        finally:
            self._settling = False
        if self._on_idle is not None and not self.busy:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def broken(self, session: Session, msgid: int, method: str) -> None:
        """In an exception handler: answer a request that met a fault of the daemon's own."""
        log.exception("request %s of session %d", method, session.id)
        self.fail(session, msgid, InternalError(f"a fault of the daemon's own in {method!r}; its log has the details"))

    # Requests that wait: behind one that needs an analysis, or for the connection's bytes to sink

    def _defer(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        if len(session.deferred) + session.open_jobs >= self.config.limits.max_queued_jobs:
            self.fail(session, msgid, self.dispatcher.overloaded())
            return
        session.blocked = True
        entry = Deferral(msgid, method, params, now)
        session.deferred.append(entry)
        self._count_deferred(session, entry.size)
        deadline = params.get("deadline_ms")
        if method in ("dispatch", "dispatch_many", "graph.launch") and type(deadline) is int and deadline > 0:
            left = deadline / 1e3 - (time.monotonic_ns() - now) / 1e9
            entry.timer = asyncio.get_running_loop().call_later(max(left, 0), self._expire_deferred, session, entry)

    def _count_deferred(self, session: Session, count: int) -> None:
        session.deferred_bytes += count
        session.queued_bytes += count
        self._deferred_bytes += count
        self._queued_bytes += count

    def _drop_deferred(self, session: Session, entry: Deferral) -> None:
        """Its turn will not come; if it was the first, that of the others may have."""
        first = session.deferred[0] is entry
        session.deferred.remove(entry)
        self._forget_deferred(session, entry)
        if first:
            self._replay(session)

    def _forget_deferred(self, session: Session, entry: Deferral) -> None:
        self._count_deferred(session, -entry.size)
        if entry.timer is not None:
            entry.timer.cancel()

    def analysed(self, session: Session) -> None:
        """An analysis came that a request of this connection may wait for."""
        self._replay(session)
        self.settle()

    def _replay(self, session: Session) -> None:
        """Run what waits, up to the next request that has to wait."""
        if session.over or session.closed or not session.blocked:
            return
        session.blocked = False
        self._look_whether_full()
        waiting, session.deferred = session.deferred, deque()
        session.replayed = waiting
        while waiting and not session.blocked:
            entry = waiting.popleft()
            self._forget_deferred(session, entry)
            self._run(session, entry.msgid, entry.method, entry.params, entry.received)
            if session.conn.bytes_out > self._max_output_bytes:
                self._hold_up(session)
        session.replayed = ()
        session.deferred.extend(waiting)  # behind the one, if any, that had to wait again
        session.analysis_errors.clear()  # whom they were for has them, or is gone
        session.wake()

    def _expire_deferred(self, session: Session, entry: Deferral) -> None:
        """A deadline passed while the request waited."""
        self.fail(session, entry.msgid, self.expired_error())
        self._drop_deferred(session, entry)
        self.settle()

    # Bytes held for a connection

    def hold_bytes(self, session: Session, count: int) -> None:
        """Bytes more (or less, below zero) that the daemon holds for requests on their way. Past the bound further
        data requests wait, also those that have been read already; `settle` goes on with them."""
        if session.internal:  # what its rows carry is counted where it came from
            return
        session.queued_bytes += count
        self._queued_bytes += count
        limits = self.config.limits
        if count > 0 and (
            session.queued_bytes - session.deferred_bytes > limits.max_queued_bytes
            or self._queued_bytes - self._deferred_bytes > limits.total_queued_bytes
        ):
            self._hold_up(session)

    def _hold_up(self, session: Session) -> None:
        session.over = session.blocked = True
        self._paused[session.id] = session

    def may_read(self, session: Session) -> bool:
        """Whether to read on, once the connection's own output has sunk: what was held up goes first. If not,
        `session.resume` is called when it is worth asking again."""
        limits = self.config.limits
        if session.id in self._paused:
            if not self._has_sunk(session):
                return False
            if session.over:
                session.over = False
                self._replay(session)
                self.settle()
            if session.over or session.queued_bytes > limits.max_queued_bytes // 2:
                return False
            self._paused.pop(session.id, None)
        if session.queued_bytes > limits.max_queued_bytes or self._queued_bytes > limits.total_queued_bytes:
            self._paused[session.id] = session
        return session.id not in self._paused

    def _has_sunk(self, session: Session) -> bool:
        """To half of the bounds, so that a connection at its bound does not start and stop at every job."""
        limits = self.config.limits
        return (
            session.queued_bytes - session.deferred_bytes <= limits.max_queued_bytes // 2
            and self._queued_bytes - self._deferred_bytes <= limits.total_queued_bytes // 2
        )

    def _resume_paused(self) -> None:
        for session in list(self._paused.values()):
            if session.resume is None or not self._has_sunk(session):
                continue
            if session.over or session.queued_bytes <= self.config.limits.max_queued_bytes // 2:
                session.resume()

    def _newest_api(self) -> str:
        """The highest API version of the devices that work."""
        versions = [d.info.api_version for d in self.devices if d.info is not None and d.working]
        return max(versions, key=lambda v: tuple(map(int, v.split("."))), default="1.1.0")

    # What handlers ask for

    def new_id(self) -> int:
        """A number that this daemon never gave before: buffers, tokens, pipelines."""
        self._ids += 1
        return self._ids

    def device(self, index: int) -> Device:
        """Raises InvalidError for an index that is none."""
        if not 0 <= index < len(self.devices):
            raise InvalidError(f"device: {index} is none of the {len(self.devices)} devices (see `devices`)")
        return self.devices[index]

    def devices_working(self) -> list[Device]:
        """Those that a job can be sent to now."""
        return [device for device in self.devices if device.working]

    def least_loaded(self) -> Device | None:
        """Where a new connection goes: the working device with the fewest connections, then the first."""
        working = self.devices_working()
        return min(working, key=lambda d: d.sessions) if working else None

    def default_device(self, session: Session) -> Device:
        """The connection's device; one that came when none worked gets one now.

        Raises:
            UnsupportedError: no device works.
        """
        if session.device is None:
            session.device = self.least_loaded()
            if session.device is None:
                raise UnsupportedError("no device works; see `vkqueue doctor`")
            session.device.sessions += 1
        return session.device

    @staticmethod
    def check_working(device: Device) -> None:
        """Raises DeviceLostError while the device is being opened anew."""
        if not device.working:
            raise DeviceLostError(f"device {device.index} does not work at present; try again later")

    def max_memory_bytes(self, session: Session) -> int:
        """The connection's quota; 0 in the config means half of its device's memory."""
        configured = self.config.limits.max_memory_bytes
        if configured:
            return configured
        info = session.device.info if session.device is not None else None
        return info.memory_bytes // 2 if info is not None else 0

    def admit_job(self, session: Session) -> None:
        """Raises OverloadedError when the connection's queue is full."""
        if session.open_jobs >= self.config.limits.max_queued_jobs or self.full:
            raise self.dispatcher.overloaded()

    def queue(self, session: Session, device: Device, row: Row) -> None:
        """Queue an admitted transfer or creation."""
        session.open_jobs += 1
        self.hold_bytes(session, row_bytes(row))
        device.submit(row, None)

    def free_buffer(self, session: Session, buffer: Buffer, now: int) -> None:
        """Make the handle dead; the memory goes behind the last row that uses it."""
        del session.objects[buffer.handle]
        session.forget_buffer(buffer)
        self.free_memory(session, buffer, now)

    def free_memory(self, session: Session, buffer: Buffer, now: int) -> None:
        """Give a buffer's memory back, behind the last row that uses it."""
        if buffer.holders:
            buffer.released = session.id
            return
        if buffer.generation != buffer.device.generation:  # it went with the device
            session.buffers -= 1
            session.memory_bytes -= buffer.size
            return
        ranges = ((buffer.id, 0, buffer.size),) if buffer.size else ()
        token = Token(self.new_id(), None, (), (), ranges, cached=False)
        # msgid -1: answered already, so nothing can cancel it or wait for it.
        buffer.device.queue_free((session.id, -1, FREE, token, buffer.id, b"", None, buffer.size, now, None))

    def cancel(self, session: Session, msgid: int, error: VkqueueError) -> bool:
        """Whether a request was taken out before it was submitted (its answer is then queued)."""
        for entry in session.deferred:
            if entry.msgid == msgid:
                self.fail(session, msgid, error)
                self._drop_deferred(session, entry)
                return True
        if self.models.cancel(session, msgid, error):
            return True
        return any(device.cancel(session, msgid, error) for device in self.devices)

    @staticmethod
    def expired_error() -> VkqueueError:
        """The answer to a job whose deadline passed while it waited."""
        return JobExpiredError("the job's deadline passed before it was submitted to the device")

    # Answers

    def answer(self, session: Session, msgid: int, result: Any) -> None:
        """Answer a request that was not a row."""
        ok = session.conn.respond(msgid, result)
        if session.tracks_requests or not ok:
            self.request_done(session, msgid, ok)
        session.wake()

    def fail(self, session: Session, msgid: int, error: VkqueueError) -> None:
        """Answer a request that never became a row, or is none any more."""
        session.handles.pop(msgid, None)
        session.shares.pop(msgid, None)
        session.conn.fail(msgid, error)
        self.request_done(session, msgid, False)
        session.wake()

    def request_done(self, session: Session, msgid: int, ok: bool) -> None:
        """Tell the schedulers, for `after`; rows that wait for a failed request fail in turn."""
        if not ok:
            session.tracks_requests = True  # a failure is remembered until its msgid succeeds
        done = deque([(msgid, ok)])
        while done:  # no recursion: a chain may be as long as the queue
            msgid, ok = done.popleft()
            for device in self.devices:
                for row in device.scheduler.finished(session.id, msgid, ok):
                    device.counters["jobs_failed"] += 1
                    self._take_back(session, row)
                    session.conn.fail(row[ROW_MSGID], dependency_error(msgid))
                    done.append((row[ROW_MSGID], False))

    def job_failed(self, session: Session, row: Row, error: VkqueueError) -> None:
        """Answer a row that failed, and undo what its admission did."""
        self._take_back(session, row)
        self.fail(session, row[ROW_MSGID], error)

    def _take_back(self, session: Session, row: Row) -> None:
        self.row_done(session, row)
        if row[ROW_OP] != CREATE:
            return
        buffer = session.objects.get(row[ROW_GRID])
        # If it is dead already, the row that frees it is on its way.
        if type(buffer) is Buffer and buffer.id == row[ROW_TARGET]:
            del session.objects[buffer.handle]
            session.forget_buffer(buffer)
            buffer.device.never_created(session, buffer)

    def row_done(self, session: Session, row: Row) -> None:
        """A row has its answer: what is held for it goes."""
        session.open_jobs -= 1
        self.hold_bytes(session, -row_bytes(row))

    def buffer_created(self, session: Session, row: Row) -> None:
        """Answer a creation. The handle may be dead already (freed before the answer)."""
        session.conn.respond(row[ROW_MSGID], {"buffer": row[ROW_GRID], "size": row[ROW_PAYLOAD][0]})

    # Reports

    def devices_to_wire(self) -> list[dict[str, Any]]:
        """The `devices` answer: of each device that works."""
        return [d.info.to_wire() for d in self.devices if d.info is not None and d.working]

    def stats(self) -> dict[str, Any]:
        """The `stats` answer: of the whole daemon, and the same per device."""
        devices = [device.stats() for device in self.devices]
        totals = {
            key: sum(d[key] for d in devices)
            for key in (
                "buffers",
                "memory_bytes",
                "jobs_queued",
                "jobs_completed",
                "jobs_failed",
                "launches",
                "batches",
                "submits",
            )  # fmt: skip
        }
        uptime = round(time.monotonic() - self._started_at, 3)
        clients = sum(not session.internal for session in self.sessions.values())
        return {"clients": clients, "uptime_s": uptime, **totals, "devices": devices}
