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
from vkqueue.daemon.device import FREE, Device
from vkqueue.daemon.dispatch import Deferred, Dispatcher, dependency_error
from vkqueue.daemon.modules import Helper, ModuleTable
from vkqueue.daemon.requests import CONTROL, Requests
from vkqueue.daemon.session import Buffer, Deferral, Module, Peer, Session
from vkqueue.errors import (
    DeviceLostError,
    InternalError,
    InvalidError,
    JobExpiredError,
    ShuttingDownError,
    UnknownMethodError,
    UnsupportedError,
    VkqueueError,
)  # fmt: skip
from vkqueue.kernels.plan import LayoutTable
from vkqueue.model import CREATE, DISPATCH, ROW_GRID, ROW_OP, ROW_PAYLOAD, ROW_TARGET, Release, Row, Token
from vkqueue.wire.framing import Limits
from vkqueue.wire.messages import METHODS, check
from vkqueue.wire.repeats import Launch
from vkqueue.wire.session import ServerConnection
from vkqueue.worker.events import DeviceLost, Failed, Opened

if TYPE_CHECKING:
    from vkqueue.worker.thread import DeviceThread

log = logging.getLogger("vkqueue.jobs")

StartThread = Callable[[Callable[[list[Any]], None]], "DeviceThread"]

# Rule 37: give up after this many failed rebuilds in a row (arbitrary; systemd's own StartLimitBurst is 5).
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
        self.modules = ModuleTable(helper)
        self.devices = [Device(self, index, start) for index, start in enumerate(start_threads)]
        self.dispatcher = Dispatcher(self)
        self.requests = Requests(self)
        self.draining = False
        self.fatal: VkqueueError | None = None
        self._started_at = time.monotonic()
        self._ids = 0
        self._session_ids = 0
        self._rebuilds = dict.fromkeys(range(len(self.devices)), 0)
        self._pending_opens = len(self.devices)
        self._on_started: Callable[[], None] | None = None
        self._on_health: Callable[[bool], None] | None = None
        self._on_idle: Callable[[], None] | None = None
        limits = config.limits
        self._wire_limits = Limits(max_message_bytes=limits.max_message_bytes)
        self._max_queued_bytes = limits.max_queued_bytes
        self._queued_bytes = 0
        self._paused: dict[int, Session] = {}
        self.full = False

    # Life

    def start(self, on_started: Callable[[], None], on_health: Callable[[bool], None]) -> None:
        """Open the devices. `on_started` is called once each has answered; `on_health` at each later change."""
        self._on_started, self._on_health = on_started, on_health
        for device in self.devices:
            device.open()
        if not self.devices:
            on_started()

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
        self.batch_done()

    def fail_queued(self) -> None:
        """The drain took too long: answer what was not submitted."""
        error = ShuttingDownError("the daemon stopped before this request ran")
        for session in list(self.sessions.values()):
            while session.deferred:
                self.fail(session, session.deferred.popleft()[0], error)
        for device in self.devices:
            device.fail_queued()

    def stop(self, timeout_s: float) -> None:
        """Blocking, off the loop: end the worker threads."""
        for device in self.devices:
            device.stop(timeout_s)

    def device_event(self, device: Device, event: Any) -> None:
        """Opened, Failed or DeviceLost from a worker thread."""
        before = self.healthy
        if isinstance(event, Opened):
            log.info("device %d works: %s (%s)", device.index, event.info.name, event.info.driver)
            device.opened(event.info)
            self._rebuilds[device.index] = 0 if device.generation == 0 else self._rebuilds[device.index]
            self._opened()
        elif isinstance(event, Failed):
            log.error("device %d does not open: %s", device.index, event.error)
            device.failure = event.error
            if device.generation:
                self._rebuild(device, event.error)
            self._opened()
        elif isinstance(event, DeviceLost):
            log.error("device %d was lost: %s", device.index, event.error)
            device.lost(DeviceLostError(f"the device was lost; the outcome of this job is unknown ({event.error})"))
            self._rebuild(device, event.error)
        if self._on_health is not None and self.healthy != before:
            self._on_health(self.healthy)

    def _opened(self) -> None:
        if self._pending_opens:
            self._pending_opens -= 1
            if self._pending_opens == 0 and self._on_started is not None:
                self._on_started()

    def _rebuild(self, device: Device, error: VkqueueError) -> None:
        self._rebuilds[device.index] += 1
        if self._rebuilds[device.index] > _MAX_REBUILDS:
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
        self.sessions[session.id] = session
        for device in self.devices:
            device.scheduler.add_session(session.id)
        return session

    def close_session(self, session: Session) -> None:
        """The connection is gone: queued jobs are dropped, running ones finish unseen, all it owned is freed."""
        if session.closed:
            return
        session.closed = True
        del self.sessions[session.id]
        session.deferred.clear()
        self._queued_bytes -= session.queued_bytes
        self._paused.pop(session.id, None)
        self._maybe_resume()
        owned: dict[int, list[int]] = {}
        for found in session.objects.values():
            if type(found) is Buffer:
                owned.setdefault(found.device.index, []).append(found.id)
            elif type(found) is Module and found.code is not None:
                found.code.users -= 1
        for cached in {id(c): c for c in session.kernels.values()}.values():
            cached.kernel.users -= 1
        for device in self.devices:
            device.drop_session(session)
            device.free(owned.get(device.index, ()), [])
        if session.device is not None:
            session.device.sessions -= 1
        session.objects.clear()
        session.kernels.clear()
        self.batch_done()

    def may_read(self, session: Session) -> bool:
        """False while the connection's queued bytes are over their bound; `session.resume` is called later."""
        if session.queued_bytes > self._max_queued_bytes or self._queued_bytes > self.config.limits.total_queued_bytes:
            self._paused[session.id] = session
        return session.id not in self._paused

    def handle(self, session: Session, requests: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Take a burst of requests; answers appear on `session.conn` at once or later."""
        now = time.monotonic_ns()
        self.full = sum(d.scheduler.queued for d in self.devices) >= self.config.limits.total_queued_jobs
        index = 0
        # The list grows while it is gone through: behind an accepted `hello` comes what was held back for it.
        while index < len(requests):
            msgid, method, params = requests[index]
            if type(params) is Launch and not session.blocked and not self.draining:
                ahead = self.dispatcher.again(session, requests, index, now)
                if ahead > index:
                    index = ahead
                    continue
            self._request(session, msgid, method, params, now)
            index += 1
        for device in self.devices:
            if device.scheduler.ready:
                device.pump()
        session.wake()

    def _request(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        try:
            if session.blocked and method not in CONTROL and method in METHODS:
                self._defer(session, msgid, method, params, now)
                return
            self._run(session, msgid, method, params, now)
        except VkqueueError as error:
            self.fail(session, msgid, error)
        except Deferred:
            self._defer(session, msgid, method, params, now)
        except Exception:
            self._broken(session, msgid, method)

    def _run(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        if method == "dispatch":
            if self.draining:
                raise self._draining()
            self.dispatcher.fast(session, msgid, params, now)
            return
        handler = self.requests.handlers.get(method)
        if handler is None:
            raise UnknownMethodError(f"no method {method!r}; the methods are {', '.join(sorted(METHODS))}")
        try:
            checked = check(method, params)
        except VkqueueError:
            session.burn_handle(method, params)
            raise
        if self.draining and method not in CONTROL:
            raise self._draining()
        handler(session, msgid, checked, now)
        if session.tracks_requests and msgid not in session.conn.pending:
            self.request_done(session, msgid, True)

    def _broken(self, session: Session, msgid: int, method: str) -> None:
        log.exception("request %s of session %d", method, session.id)
        self.fail(session, msgid, InternalError(f"a fault of the daemon's own in {method!r}; its log has the details"))

    @staticmethod
    def _draining() -> VkqueueError:
        return ShuttingDownError("the daemon is shutting down and takes no new work")

    # Requests behind one that waits for an analysis

    def _defer(self, session: Session, msgid: int, method: str, params: dict[str, Any], now: int) -> None:
        if len(session.deferred) + session.open_jobs >= self.config.limits.max_queued_jobs:
            self.fail(session, msgid, self.dispatcher.overloaded())
            return
        session.blocked = True
        entry = (msgid, method, params, now)
        session.deferred.append(entry)
        self.hold_bytes(session, _params_bytes(params))
        deadline = params.get("deadline_ms")
        if method == "dispatch" and type(deadline) is int and deadline > 0:
            left = deadline / 1e3 - (time.monotonic_ns() - now) / 1e9
            asyncio.get_running_loop().call_later(max(left, 0), self._expire_deferred, session, entry)

    def unblock(self, session: Session) -> None:
        """An analysis came: replay what waited, up to the next request that has to wait."""
        session.blocked = False
        if session.closed or not session.deferred:
            return
        waiting, session.deferred = session.deferred, deque()
        while waiting and not session.blocked:
            msgid, method, params, received = waiting.popleft()
            self.hold_bytes(session, -_params_bytes(params))
            self._request(session, msgid, method, params, received)
        session.deferred.extend(waiting)  # behind the one, if any, that had to wait again
        for device in self.devices:
            device.pump()
        self._maybe_resume()
        session.wake()

    def _expire_deferred(self, session: Session, entry: Deferral) -> None:
        """A deadline passed while the request waited for an analysis."""
        if not session.closed and entry in session.deferred:
            session.deferred.remove(entry)
            self.hold_bytes(session, -_params_bytes(entry[2]))
            self.fail(session, entry[0], self.expired_error())

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
        self.hold_bytes(session, _row_bytes(row))
        device.submit(row, None)

    def free_buffer(self, session: Session, buffer: Buffer, now: int) -> None:
        """Make the handle dead; the memory goes behind the last row that uses it."""
        del session.objects[buffer.handle]
        session.buffers -= 1
        session.forget_buffer(buffer)
        if buffer.generation != buffer.device.generation or buffer.failed:
            session.memory_bytes -= 0 if buffer.failed else buffer.size
            return
        ranges = ((buffer.id, 0, buffer.size),) if buffer.size else ()
        token = Token(self.new_id(), None, (), (), ranges, cached=False)
        # msgid -1: answered already, so nothing can cancel it or wait for it.
        buffer.device.queue_free((session.id, -1, FREE, token, buffer.id, b"", None, buffer.size, now, None))

    def cancel(self, session: Session, msgid: int, error: VkqueueError) -> bool:
        """Whether a request was taken out before it was submitted (its answer is then queued)."""
        for entry in session.deferred:
            if entry[0] == msgid:
                session.deferred.remove(entry)
                self.hold_bytes(session, -_params_bytes(entry[2]))
                self.fail(session, msgid, error)
                return True
        for device in self.devices:
            row = device.cancel(session, msgid)
            if row is not None:
                self.job_failed(session, row, error)
                device.pump()
                return True
        return False

    @staticmethod
    def expired_error() -> VkqueueError:
        return JobExpiredError("the job's deadline passed before it was submitted to the device")

    # Answers

    def answer(self, session: Session, msgid: int, result: Any) -> None:
        """Answer a request that was not a row, outside of its own burst."""
        session.conn.respond(msgid, result)
        self.request_done(session, msgid, True)
        session.wake()
        self.batch_done()

    def fail(self, session: Session, msgid: int, error: VkqueueError) -> None:
        """Answer a request that never became a row."""
        session.conn.fail(msgid, error)
        self.request_done(session, msgid, False)
        session.wake()
        self.batch_done()

    def request_done(self, session: Session, msgid: int, ok: bool) -> None:
        """Tell the schedulers, for `after`; rows that wait for a failed request fail in turn."""
        if not ok:
            session.tracks_requests = True  # a failure is remembered until its msgid succeeds
        for device in self.devices:
            for row in device.scheduler.finished(session.id, msgid, ok):
                self.job_failed(session, row, dependency_error(msgid))

    def job_failed(self, session: Session, row: Row, error: VkqueueError) -> None:
        """Answer a row that failed, and undo what its admission did."""
        session.open_jobs -= 1
        if row[ROW_PAYLOAD] is not None:
            self.payload_done(session, row)
        if row[ROW_OP] == CREATE:
            self._creation_failed(session, row)
        session.conn.fail(row[1], error)
        self.request_done(session, row[1], False)
        session.wake()

    def payload_done(self, session: Session, row: Row) -> None:
        """The row's payload is held no longer."""
        self.hold_bytes(session, -_row_bytes(row))
        self._maybe_resume()

    def hold_bytes(self, session: Session, count: int) -> None:
        """Payload bytes more (or less, below zero) that the daemon holds for a connection."""
        session.queued_bytes += count
        self._queued_bytes += count

    def _maybe_resume(self) -> None:
        """Read again from connections whose bytes have sunk.

        To half of the bounds, so that a connection at its bound does not start and stop at every job.
        """
        if self._queued_bytes > self.config.limits.total_queued_bytes // 2:
            return
        for session in list(self._paused.values()):
            if session.queued_bytes <= self._max_queued_bytes // 2:
                del self._paused[session.id]
                if session.resume is not None:
                    session.resume()

    def _creation_failed(self, session: Session, row: Row) -> None:
        for handle, found in session.objects.items():
            if type(found) is Buffer and found.id == row[ROW_TARGET]:
                found.failed = True
                session.buffers -= 1
                session.memory_bytes -= found.size
                session.forget_buffer(found)
                del session.objects[handle]
                found.device.post_release(Release(buffers=(found.id,)))
                return

    def buffer_created(self, session: Session, row: Row) -> None:
        """Answer a creation. The handle may be dead already (freed before the answer)."""
        session.conn.respond(row[1], {"buffer": row[ROW_GRID], "size": row[ROW_PAYLOAD][0]})

    def batch_done(self) -> None:
        """Called after each batch: tells a drain when nothing is left."""
        if self._on_idle is not None and not self.busy:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    # Reports

    def devices_to_wire(self) -> list[dict[str, Any]]:
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
                "batches",
                "submits",
            )  # fmt: skip
        }
        uptime = round(time.monotonic() - self._started_at, 3)
        return {"clients": len(self.sessions), "uptime_s": uptime, **totals, "devices": devices}


def _row_bytes(row: Row) -> int:
    """Bytes that a row's payload holds in the daemon."""
    payload = row[ROW_PAYLOAD]
    if payload is None:
        return 0
    op = row[ROW_OP]
    if op == DISPATCH:
        return sum(value if kind == "out" else len(value) for kind, value in payload)
    if op == CREATE:
        return 0 if payload[1] is None else len(payload[1])
    return len(payload)


def _params_bytes(params: dict[str, Any]) -> int:
    """Bytes of the bins in a request that waits, as far as they may be large."""
    total = 0
    for value in params.values():
        if isinstance(value, (bytes, bytearray, memoryview)):
            total += len(value)
        elif type(value) is list:
            for entry in value:
                if type(entry) is dict:
                    total += sum(len(v) for v in entry.values() if isinstance(v, (bytes, bytearray, memoryview)))
    return total
