"""Admission of dispatches: from a message's map to a row of the scheduler. The hot path of the daemon.

Three ways, each filling what the one before it reads. `again` takes requests that repeat byte for byte: what was worked
out for them is pinned to their parameters. `fast` takes a kernel and buffers that this connection has used together
before. `full` checks every parameter and says what is wrong. The first two make one tuple a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkqueue.daemon.modules import specialization
from vkqueue.daemon.session import Buffer, Module, Session, SessionKernel, row_bytes
from vkqueue.errors import DependencyError, InvalidError, NotFoundError, OverloadedError, VkqueueError, brief
from vkqueue.kernels.plan import check_reply
from vkqueue.model import DISPATCH, ROW_OPTIONS, ROW_STAMP, Options, Row, Token
from vkqueue.wire.messages import check
from vkqueue.wire.repeats import Launch

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.modules import DeviceKernel
    from vkqueue.daemon.service import Service

# Arbitrary: past it a connection's cached argument lists go, so that a client of ever new ranges stays bounded.
_MAX_LAUNCHES = 16_384

_OPTIONS = frozenset({"priority", "deadline_ms", "after", "timing", "label"})
# Characters of a label: for logs and debuggers, not to hold memory by.
_MAX_LABEL = 256


class Deferred(Exception):
    """The request needs an analysis that is on its way; `Service.analysed` then runs it again."""


class Dispatcher:
    """Turns dispatch requests into rows."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._max_jobs = service.config.limits.max_queued_jobs
        self._max_message = service.config.limits.max_message_bytes

    def again(self, session: Session, requests: list[tuple[int, str, dict[str, Any]]], first: int, now: int) -> int:
        """Admit the run of repeated dispatches that begins at `first`; the index of the first other request.

        A memo holds as long as the session's epoch: nothing that it was made from has been freed or lost.
        """
        epoch, id = session.epoch, session.id
        room = 0 if self._service.full else self._max_jobs - session.open_jobs
        rows: list[Row] = []
        add = rows.append
        device: Device | None = None
        kernel: DeviceKernel | None = None
        ready = False
        count = len(requests)
        index = first
        while index < count and room:
            msgid, _, params = requests[index]
            if type(params) is not Launch or (memo := params.memo) is None or memo[0] != epoch:
                break
            if memo[2] is not kernel:
                _, on, kernel, _, _, _ = memo
                if device is not None and on is not device:
                    break
                device, ready = on, kernel.ready
                kernel.last_used = now
            if not ready:
                break
            _, _, _, token, constants, groups = memo
            add((id, msgid, DISPATCH, token, kernel.pipeline, constants, groups, None, now, None))
            room -= 1
            index += 1
        if rows:
            assert device is not None
            device.scheduler.submit_plain(id, rows, now)
            session.open_jobs += len(rows)
        return index

    def fast(self, session: Session, msgid: int, params: dict[str, Any], now: int) -> None:
        """Admit one dispatch received at `now`.

        Raises:
            VkqueueError: the answer.
            Deferred: try again once the analysis is there.
        """
        get = params.get
        module, name, args, scalars, grid = get("module"), get("kernel"), get("args"), get("scalars"), get("grid")
        launch = get("launch")
        known = 2 + (name is not None) + (args is not None) + (scalars is not None)
        try:
            if known != len(params) or (grid is None) == (launch is None) or type(module) is not int:
                raise KeyError
            token, kernel, device = session.kernels[module, name].tokens[tuple(args)]  # type: ignore[arg-type]
            for handle in args:  # type: ignore[union-attr]
                if type(handle) is not int:  # True and 1.0 equal 1 as keys
                    raise KeyError
        except (KeyError, TypeError):
            self.full(session, msgid, params, now)
            return
        if session.open_jobs >= self._max_jobs or self._service.full:
            raise self.overloaded()
        plan = kernel.plan
        constants = plan.scalars.pack(scalars)
        groups = plan.grid(grid) if launch is None else plan.launch(launch)
        row = (session.id, msgid, DISPATCH, token, kernel.pipeline, constants, groups, None, now, None)
        if type(params) is Launch:
            params.memo = (session.epoch, device, kernel, token, constants, groups)
        if now > kernel.last_used:  # a request that had to wait comes with an old stamp
            kernel.last_used = now
        if kernel.ready:
            device.scheduler.submit(row, now, None)
        else:
            row = self._await_pipeline(device, kernel, row)
            device.scheduler.submit(row, now, kernel.pipeline)
        session.open_jobs += 1

    def full(self, session: Session, msgid: int, params: dict[str, Any], now: int) -> None:
        """As `fast`, with every parameter."""
        p = check("dispatch", params)
        module = session.module(p["module"])
        if module.code is None:
            raise Deferred
        name = self._kernel_name(module, p.get("kernel"))
        device = self.device_of(session, p)
        cached = self._session_kernel(session, module, name, p.get("specialization"), device)
        kernel = cached.kernel
        if session.open_jobs >= self._max_jobs or self._service.full:
            raise self.overloaded()
        plan = kernel.plan
        grid = plan.launch(p["launch"]) if "launch" in p else plan.grid(p["grid"])
        constants = plan.scalars.pack(p.get("scalars"))
        token, payload = self._token(session, cached, p["args"], constants)
        options = self.options(session, device, msgid, p, now)
        if plan.uniform is not None:
            constants = b""  # they are in the payload
        row = (session.id, msgid, DISPATCH, token, kernel.pipeline, constants, grid, payload, now, options)
        self.submit(session, device, kernel, row)

    def submit(self, session: Session, device: Device, kernel: DeviceKernel, row: Row) -> None:
        """Queue a row of this kernel's that has been checked, behind its pipeline if that is not there."""
        kernel.last_used = max(kernel.last_used, row[ROW_STAMP])
        outstanding = row[ROW_OPTIONS].after if row[ROW_OPTIONS] is not None else ()
        if kernel.ready:
            device.submit(row, None, outstanding)
        else:
            row = self._await_pipeline(device, kernel, row)
            device.submit(row, kernel.pipeline, outstanding)
        session.open_jobs += 1
        self._service.hold_bytes(session, row_bytes(row))

    def kernel(
        self, session: Session, device: Device, module: Any, name: str | None, given: dict[str, Any] | None
    ) -> DeviceKernel:
        """A kernel by its module's handle and its name, with specialization values.

        Raises:
            VkqueueError: it is not there, or the device cannot run it.
            Deferred: try again once the analysis is there.
        """
        found = session.module(module)
        if found.code is None:
            raise Deferred
        return self._session_kernel(session, found, self._kernel_name(found, name), given, device).kernel

    def overloaded(self) -> VkqueueError:
        """Why no job is taken at present."""
        if self._service.full:
            limit = self._service.config.limits.total_queued_jobs
            return OverloadedError(
                f"{limit} jobs of all connections are queued (total_queued_jobs); try again later",
                {"total_queued_jobs": limit},
            )
        return OverloadedError(
            f"{self._max_jobs} jobs of this connection are queued or running (max_queued_jobs); wait for answers",
            {"max_queued_jobs": self._max_jobs},
        )

    def _await_pipeline(self, device: Device, kernel: DeviceKernel, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """The row with the id of the pipeline that is being built for it."""
        if kernel.error is not None:
            raise kernel.error
        device.build(kernel)
        return (*row[:4], kernel.pipeline, *row[5:])

    def options(self, session: Session, device: Device, msgid: int, p: dict[str, Any], now: int) -> Options | None:
        """The rarer parameters of a launch."""
        if p.keys().isdisjoint(_OPTIONS):
            return None
        return Options(
            priority=p.get("priority", 0),
            deadline_ns=now + p["deadline_ms"] * 1_000_000 if "deadline_ms" in p else 0,
            after=self._outstanding(session, device, msgid, p["after"]) if p.get("after") else (),
            timing=p.get("timing", False),
            label=p.get("label", "")[:_MAX_LABEL],
        )

    @staticmethod
    def _outstanding(session: Session, device: Device, msgid: int, after: list[int]) -> tuple[int, ...]:
        """The requests of `after` that are not answered yet, each once.

        Raises:
            DependencyError: one of them has failed.
        """
        session.tracks_requests = True
        # Only what was sent before counts: a later request may itself wait for this one.
        pending = session.conn.pending - session.sent_later()
        failed = device.scheduler.failed_before(session.id, (m for m in after if m not in pending))
        if failed is not None:
            raise dependency_error(failed)
        return tuple({m: None for m in after if m in pending and m != msgid})

    @staticmethod
    def _kernel_name(module: Module, name: str | None) -> str:
        if name is None:
            if len(module.kernels) == 1:
                return next(iter(module.kernels))
            raise InvalidError(f"kernel: the module has several, name one of {', '.join(sorted(module.kernels))}")
        if name not in module.kernels:
            have = ", ".join(sorted(module.kernels)[:16])
            raise NotFoundError(f"kernel: module {module.handle} has no kernel {brief(name)}; it has {have}")
        return name

    def device_of(self, session: Session, p: dict[str, Any]) -> Device:
        """Where the job runs: where its buffers are, else `device`, else the connection's device."""
        wanted = self._service.device(p["device"]) if "device" in p else None
        device, first = wanted, None
        for handle in _handles(p["args"]):
            buffer = session.objects.get(handle)
            if type(buffer) is not Buffer:
                continue  # the plan says so, with the binding's name
            if device is not None and buffer.device is not device:
                where = (
                    f"buffer {first} is on device {device.index}" if first else f"device: {device.index} was asked for"
                )
                raise InvalidError(f"args: buffer {handle} is on device {buffer.device.index}, but {where}")
            device, first = buffer.device, handle
        return device if device is not None else self._service.default_device(session)

    def _session_kernel(
        self, session: Session, module: Module, name: str, given: dict[str, Any] | None, device: Device
    ) -> SessionKernel:
        reflected = module.kernels[name]
        spec, values = specialization(reflected, given) if given else ((), {})
        # The plain key is that of `fast`; a job elsewhere than on the connection's device gets its own.
        key: Any = (module.handle, name, spec, device.index)
        cached = session.kernels.get(key)
        if cached is not None:
            return cached
        assert module.code is not None
        wanted = (module.code.digest, name, spec)
        if (error := session.analysis_errors.pop(wanted, None)) is not None:
            raise error
        found: list[Any] = []
        waiting = True

        def done(result: Any) -> None:
            if waiting:
                found.append(result)
                return
            if isinstance(result, VkqueueError) and session.blocked:
                session.analysis_errors[wanted] = result
            self._service.analysed(session)

        self._service.modules.variant(module.code, name, spec, values, done)
        waiting = False
        if not found:
            raise Deferred
        if isinstance(found[0], VkqueueError):
            raise found[0]
        kernel = device.kernel(module.code, name, found[0][name], spec)
        cached = SessionKernel(kernel, device)
        self._keep(session, key, cached)
        if not spec and device is self._service.default_device(session):
            session.kernels[module.handle, name] = cached
            if len(module.kernels) == 1:
                session.kernels[module.handle, None] = cached
        return cached

    def _keep(self, session: Session, key: Any, cached: SessionKernel) -> None:
        """Count the kernel for the connection; past `max_pipelines` its longest unused one goes."""
        cached.kernel.users += 1
        session.kernels[key] = cached
        owned = {id(c): c for c in session.kernels.values()}
        if len(owned) <= self._service.config.limits.max_pipelines:
            return
        victim = min((c for c in owned.values() if c is not cached), key=lambda c: c.kernel.last_used)
        self.forget(session, victim)
        if victim.kernel.users == 0:
            victim.device.evict(victim.kernel)

    @staticmethod
    def forget(session: Session, victim: SessionKernel) -> None:
        """Drop a kernel from the connection's caches."""
        session.forget_launches(victim)
        keys = [key for key, value in session.kernels.items() if value is victim]
        for key in keys:
            del session.kernels[key]
        if keys:
            victim.kernel.users -= 1

    def _token(self, session: Session, cached: SessionKernel, args: Any, constants: bytes) -> tuple[Token, Any]:
        """The token of these arguments, from the cache where they are plain buffers and ranges, and the payload."""
        plan = cached.kernel.plan
        key = None
        if plan.uniform is None and _plain(args):
            key = tuple(tuple(a) if type(a) is list else a for a in args)
        if key is not None and key in cached.tokens:
            return cached.tokens[key][0], None
        bound = plan.bind(args, session.buffer)
        if plan.uniform is not None:
            plan.provide(bound, constants)
        payload = tuple(bound.payload) or None
        outputs = sum(kind in ("out", "inout") for kind, _ in bound.payload)
        check_reply(bound.outputs_bytes, outputs, self._max_message)
        token = Token(
            self._service.new_id(), plan.layout, tuple(bound.entries), tuple(bound.reads), tuple(bound.writes),
            cached=payload is None,
        )  # fmt: skip
        if key is not None and payload is None:
            if session.cached_launches >= _MAX_LAUNCHES:
                for kernel in session.kernels.values():
                    session.forget_launches(kernel)
            session.keep_launch(cached, key, token, bound.buffers)
        return token, payload


def dependency_error(msgid: int) -> VkqueueError:
    """The answer to a request whose `after` names one that failed."""
    return DependencyError(f"after: request {msgid} failed, so this one did not run", {"msgid": msgid})


def _plain(args: list[Any]) -> bool:
    """Whether the arguments are handles and ranges of integers only (then they may be a key)."""
    for a in args:
        if type(a) is not int and (type(a) is not list or any(type(v) is not int for v in a)):
            return False
    return True


def _handles(args: Any) -> list[int]:
    """Every buffer handle that an argument list names."""
    found: list[int] = []
    for entry in args:
        elements = entry.get("array") if type(entry) is dict else None
        for element in elements if type(elements) is list else (entry,):
            handle = element[0] if type(element) is list and element else element
            if type(handle) is int:
                found.append(handle)
    return found
