"""Every request but launches: control messages, modules, buffers and transfers.

A handler gets the session, the msgid, checked parameters and the time of receipt; it answers, or queues rows whose
completion answers, or raises the VkqueueError that is the answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.dispatch import Deferred
from vkqueue.daemon.modules import Code, wire_reflection
from vkqueue.daemon.session import Buffer, Module, Session
from vkqueue.errors import (
    InvalidError,
    JobCancelledError,
    NotFoundError,
    OutOfDeviceMemoryError,
    OverloadedError,
    QuotaError,
    TooLargeError,
    UnsupportedError,
    VkqueueError,
)  # fmt: skip
from vkqueue.kernels.tvm_format import join, size_of
from vkqueue.kernels.tvm_save import save_bytes, save_file
from vkqueue.model import COPY, CREATE, READ, WRITE, Shared, Token
from vkqueue.version import __version__
from vkqueue.wire.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.service import Service

log = logging.getLogger("vkqueue.daemon")

Handler = Callable[[Session, int, dict[str, Any], int], None]

# A reply's frame beside its one bin: array, msgid, map, key, bin header; rounded up.
_READ_FRAME = 64

CONTROL = frozenset({"hello", "ping", "devices", "cancel", "stats", "model.list", "model.config", "model.statistics"})
"""Answered at once, also on a connection whose data requests wait for an analysis."""

CREATING = frozenset({"module.load", "buffer.create", "buffer.share", "graph.create"})
"""These get a handle, on receipt."""

_LISTING_BYTES = 12
"""Of a listing for each byte of its module, about."""

# Names are for logs and debuggers.
_MAX_NAME = 256


class Requests:
    """The handlers by method name: `handlers`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._limits = service.config.limits
        self.handlers: dict[str, Handler] = {
            "hello": self.hello,
            "ping": lambda session, msgid, p, now: service.answer(session, msgid, {}),
            "devices": lambda session, msgid, p, now: service.answer(session, msgid, service.devices_to_wire()),
            "stats": lambda session, msgid, p, now: service.answer(session, msgid, service.stats()),
            "cancel": self.cancel,
            "module.load": self.module_load,
            "module.unload": self.module_unload,
            "module.inspect": self.module_inspect,
            "module.save": self.module_save,
            "buffer.create": self.buffer_create,
            "buffer.share": self.buffer_share,
            "buffer.copy": self.buffer_copy,
            "buffer.write": self.buffer_write,
            "buffer.read": self.buffer_read,
            "buffer.free": self.buffer_free,
            "dispatch_many": service.many.dispatch,
            "graph.create": service.graphs.create,
            "graph.free": service.graphs.free,
            **service.models.handlers,
        }

    # Control

    def hello(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        service = self._service
        device = service.device(p["device"]) if "device" in p else service.least_loaded()
        session.client = p["client"][:_MAX_NAME]
        log.debug("session %d: %s", session.id, session.client)
        session.conn.ready()
        service.note_refused(session)  # of what came behind `hello` in its burst
        if device is not None:
            session.device = device
            device.sessions += 1
        service.answer(
            session,
            msgid,
            {
                "protocol": PROTOCOL_VERSION,
                "server": f"vkqueue/{__version__}",
                "session": session.id,
                "device": None if device is None else device.index,
                "devices": service.devices_to_wire(),
                "limits": {
                    "max_message_bytes": self._limits.max_message_bytes,
                    "max_buffers": self._limits.max_buffers,
                    "max_memory_bytes": service.max_memory_bytes(session),
                    "max_queued_jobs": self._limits.max_queued_jobs,
                    "max_many_launches": self._limits.max_many_launches,
                },
            },
        )

    def cancel(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        target = p["msgid"]
        cancelled = self._service.cancel(session, target, JobCancelledError("cancelled at the client's request"))
        self._service.answer(session, msgid, {"cancelled": cancelled})

    # Modules

    def module_load(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        handle = session.handles.pop(msgid)
        form = next(k for k in ("spirv", "tvm", "tvm_file", "tvm_library", "source") if k in p)
        if not self._service.devices_working():
            raise UnsupportedError("module.load: no device works, so no kernel can run; see `vkqueue doctor`")
        if session.modules >= self._limits.max_modules:
            raise QuotaError(
                f"max_modules: this connection holds {session.modules} modules, its limit; unload some",
                {"quota": "max_modules", "limit": self._limits.max_modules},
            )
        data, meta, includes = p[form], p.get("tvm_meta"), p.get("includes", {})
        size = len(data) + len(meta or "") + sum(len(name) + len(text) for name, text in includes.items())
        if size > self._limits.max_module_bytes:
            raise TooLargeError(
                f"{form}: {size} bytes are over max_module_bytes ({self._limits.max_module_bytes})",
                {"size": size, "max_module_bytes": self._limits.max_module_bytes},
            )
        session.modules += 1
        module = Module(handle)
        session.objects[handle] = module
        self._service.hold_bytes(session, size)

        def done(result: Any) -> None:
            if not session.closed:
                self._service.hold_bytes(session, -size)
                self._loaded(session, msgid, module, p, result)
                self._service.analysed(session)

        if form == "source":
            how = {"target_env": self.target_env()}
            how |= {name: p[name] for name in ("language", "entry", "defines", "includes", "target_env") if name in p}
            self._service.modules.load_source(data, how, done)
        else:
            self._service.modules.load(form, bytes(data), meta, done)

    def target_env(self) -> str:
        """What sources are compiled for if the client does not say: what every device that works takes."""
        versions = [d.info.api_version.split(".")[:2] for d in self._service.devices_working() if d.info is not None]
        lowest = min((int(major), int(minor)) for major, minor in versions)
        return f"vulkan1.{min(max(lowest, (1, 1)), (1, 3))[1]}"

    def _loaded(self, session: Session, msgid: int, module: Module, p: dict[str, Any], result: Any) -> None:
        try:
            if isinstance(result, VkqueueError):
                raise result
            answer = self._adopt(session, module, result, p.get("entry"))
        except Exception as error:
            session.modules -= 1
            del session.objects[module.handle]
            if isinstance(error, VkqueueError):
                self._service.fail(session, msgid, error)
            else:
                self._service.broken(session, msgid, "module.load")
        else:
            result.users += 1  # it is there still: to unload it waits for the analysis
            name = p.get("name", "")[:_MAX_NAME]
            log.debug("session %d: module %d %s is %s", session.id, module.handle, name, result.digest[:12])
            self._service.answer(session, msgid, {"module": module.handle, "kernels": answer})

    def _adopt(self, session: Session, module: Module, code: Code, entry: str | None) -> dict[str, Any]:
        """Give the module its kernels; the `kernels` of the answer."""
        kernels = code.analysis["kernels"]
        if entry is not None:
            if entry not in kernels:
                have = ", ".join(sorted(kernels)[:16])
                raise NotFoundError(f"entry: the module has no compute entry point {entry!r}; it has {have}")
            kernels = {entry: kernels[entry]}
        own = self._service.default_device(session)
        answer: dict[str, Any] = {}
        reasons: list[str] = []
        runs_somewhere = False
        for name, kernel in kernels.items():
            answer[name] = wire_reflection(kernel)
            for device in self._service.devices_working():
                reason = device.unsupported(kernel, specializable=True)
                runs_somewhere |= reason is None
                if reason is not None and device is own:
                    answer[name]["unsupported"] = reason
                if reason is not None:
                    reasons.append(f"{name}: {reason}")
        if not runs_somewhere:
            some = "; ".join(list(dict.fromkeys(reasons))[:16])
            raise UnsupportedError(f"no device can run a kernel of this module: {some}")
        module.code, module.kernels = code, kernels
        return answer

    def _module(self, session: Session, handle: int) -> tuple[Module, Code]:
        module = session.module(handle)
        if module.code is None:
            raise Deferred
        return module, module.code

    def module_unload(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        module, code = self._module(session, p["module"])
        del session.objects[module.handle]
        session.modules -= 1
        code.users -= 1
        for key, cached in list(session.kernels.items()):
            if key[0] == module.handle and key in session.kernels:
                self._service.dispatcher.forget(session, cached)
        self._service.answer(session, msgid, {})

    def module_inspect(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        module, code = self._module(session, p["module"])
        if p["format"] == "json":
            kernels = {name: wire_reflection(kernel) for name, kernel in module.kernels.items()}
            self._service.answer(session, msgid, {"text": json.dumps({"kernels": kernels}, indent=1)})
            return
        held = len(code.data) * _LISTING_BYTES

        def done(result: Any) -> None:
            if session.closed:
                return
            self._service.hold_bytes(session, -held)
            if isinstance(result, VkqueueError):
                self._service.fail(session, msgid, result)
            else:
                self._service.answer(session, msgid, {"text": result})
            self._service.settle()

        self._service.hold_bytes(session, held)
        self._service.modules.disassemble(code, module.kernels, done)

    def module_save(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        module, code = self._module(session, p["module"])
        tvm = code.tvm(module.kernels)
        meta: str | None = None
        if p["format"] == "tvm":
            pieces = save_bytes(tvm, p.get("layout"))
        else:
            pieces, meta = save_file(tvm)
            if code.meta is not None and len(module.kernels) == len(code.analysis["kernels"]):
                meta = code.meta  # as it came
        size = size_of(pieces) + len((meta or "").encode())
        if size + 2 * _READ_FRAME > self._limits.max_message_bytes:
            raise TooLargeError(
                f"module.save: a reply with {size} bytes is over max_message_bytes ({self._limits.max_message_bytes})",
                {"size": size, "max_message_bytes": self._limits.max_message_bytes},
            )
        if session.conn.bytes_out + size > self._limits.max_output_bytes:
            raise OverloadedError("module.save: too many answers of this connection are on their way; read them first")
        answer = {"data": join(pieces, code.data)}
        self._service.answer(session, msgid, answer if meta is None else {**answer, "meta": meta})

    # Buffers and transfers

    def buffer_create(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        handle = session.handles.pop(msgid)
        device = self._device_for_buffer(session, p)
        data = p.get("data")
        size = len(data) if data is not None else p["size"]
        self.admit_buffer(session, device, size)
        self.create(session, device, msgid, handle, size, data, now)

    def buffer_share(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        handle = session.handles.pop(msgid)
        device = self._device_for_buffer(session, p)
        if msgid not in session.shares:
            raise InvalidError(
                "buffer.share: no file descriptor came; send a sealed memfd with the request (SCM_RIGHTS)"
            )
        self.admit_buffer(session, device, p["size"])
        shared = session.shares.pop(msgid)
        if isinstance(shared, VkqueueError):
            raise shared
        self.create(session, device, msgid, handle, p["size"], shared, now)

    def _device_for_buffer(self, session: Session, p: dict[str, Any]) -> Device:
        self._service.admit_job(session)
        device = self._service.device(p["device"]) if "device" in p else self._service.default_device(session)
        self._service.check_working(device)
        return device

    def admit_buffer(self, session: Session, device: Device, size: int) -> None:
        """Raises TooLargeError, QuotaError or OutOfDeviceMemoryError when no buffer of `size` may be made."""
        limits = self._limits
        assert device.info is not None
        for limit in ("maxBufferSize", "maxMemoryAllocationSize"):
            most = device.info.limits.get(limit)
            if most is not None and size > most:
                raise TooLargeError(
                    f"size: {size} bytes are over the device's {limit} of {most}", {"size": size, limit: most}
                )
        if size > device.info.memory_bytes:
            raise TooLargeError(
                f"size: {size} bytes are over the device's memory of {device.info.memory_bytes}",
                {"size": size, "memory_bytes": device.info.memory_bytes},
            )
        if not session.internal:
            self._admit_to_share(session, size)
        most = limits.total_memory_bytes
        if most and device.memory_bytes + size > most:
            raise OutOfDeviceMemoryError(
                f"size: {size} bytes more than the {device.memory_bytes} that all connections hold on device "
                f"{device.index} pass the daemon's total_memory_bytes of {most}",
                {"asked": size, "used": device.memory_bytes, "left": max(most - device.memory_bytes, 0)},
            )

    def _admit_to_share(self, session: Session, size: int) -> None:
        limits = self._limits
        if session.buffers >= limits.max_buffers:
            raise QuotaError(
                f"max_buffers: this connection holds {session.buffers} buffers, its limit; free some",
                {"quota": "max_buffers", "limit": limits.max_buffers},
            )
        most = self._service.max_memory_bytes(session)
        if session.memory_bytes + size > most:
            raise QuotaError(
                f"max_memory_bytes: {size} bytes more than the {session.memory_bytes} that this connection holds pass "
                f"its limit of {most}; free buffers and wait for their last use",
                {"quota": "max_memory_bytes", "limit": most, "used": session.memory_bytes, "asked": size},
            )

    def create(
        self, session: Session, device: Device, msgid: int, handle: int, size: int, data: Any, now: int
    ) -> Buffer:
        """Queue the creation of a buffer that has been admitted."""
        service = self._service
        buffer = Buffer(service.new_id(), handle, size, device)
        session.objects[handle] = buffer
        session.buffers += 1
        session.memory_bytes += size
        device.memory_bytes += size
        ranges = ((buffer.id, 0, size),) if size and type(data) is not Shared else ()
        token = Token(service.new_id(), None, (), (), ranges, cached=False)
        service.queue(
            session, device, (session.id, msgid, CREATE, token, buffer.id, b"", handle, (size, data), now, None)
        )
        return buffer

    def buffer_write(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        self._service.admit_job(session)
        buffer, data, offset = session.buffer(p["buffer"]), p["data"], p.get("offset", 0)
        self._check_range(buffer, offset, len(data))
        self.write(session, msgid, buffer, data, offset, now)

    def write(self, session: Session, msgid: int, buffer: Buffer, data: Any, offset: int, now: int) -> None:
        """Queue a write that has been admitted, inside the buffer."""
        ranges = ((buffer.id, offset, offset + len(data)),) if len(data) else ()
        token = Token(self._service.new_id(), None, (), (), ranges, cached=False)
        self._service.queue(
            session, buffer.device, (session.id, msgid, WRITE, token, buffer.id, b"", None, data, now, None)
        )

    def buffer_read(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        self._service.admit_job(session)
        buffer, offset = session.buffer(p["buffer"]), p.get("offset", 0)
        size = p["size"] if "size" in p else max(buffer.size - offset, 0)
        self._check_range(buffer, offset, size)
        if size + _READ_FRAME > self._limits.max_message_bytes:
            raise TooLargeError(
                f"size: a reply with {size} bytes is over max_message_bytes ({self._limits.max_message_bytes}); read "
                "in parts",
                {"size": size, "max_message_bytes": self._limits.max_message_bytes},
            )
        ranges = ((buffer.id, offset, offset + size),) if size else ()
        token = Token(self._service.new_id(), None, (), ranges, (), cached=False)
        self._service.queue(
            session, buffer.device, (session.id, msgid, READ, token, buffer.id, b"", None, None, now, None)
        )

    def buffer_copy(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        self._service.admit_job(session)
        source, target = session.buffer(p["source"], "source"), session.buffer(p["target"], "target")
        start, place = p.get("source_offset", 0), p.get("target_offset", 0)
        size = p["size"] if "size" in p else max(source.size - start, 0)
        self._check_range(source, start, size, "source_offset")
        self._check_range(target, place, size, "target_offset")
        if source.device is not target.device:
            raise InvalidError(
                f"buffer.copy: source is on device {source.device.index}, target on {target.device.index}; read and "
                "write it"
            )
        if source is target and start < place + size and place < start + size:
            raise InvalidError(f"buffer.copy: bytes {start} and {place} of one buffer, {size} long, overlap")
        reads = ((source.id, start, start + size),) if size else ()
        writes = ((target.id, place, place + size),) if size else ()
        token = Token(self._service.new_id(), None, (), reads, writes, cached=False)
        self._service.queue(
            session, source.device, (session.id, msgid, COPY, token, target.id, b"", None, None, now, None)
        )

    @staticmethod
    def _check_range(buffer: Buffer, offset: int, size: int, what: str = "offset") -> None:
        if offset + size > buffer.size:
            raise InvalidError(
                f"{what}: {offset} + {size} bytes lie outside buffer {buffer.handle} of {buffer.size} bytes",
                {"offset": offset, "size": size, "buffer_size": buffer.size},
            )

    def buffer_free(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        found = session.objects.get(p["buffer"])
        if type(found) is not Buffer:
            raise NotFoundError(f"buffer: no buffer {p['buffer']} on this connection", {"handle": p["buffer"]})
        self._service.free_buffer(session, found, now)
        self._service.answer(session, msgid, {})


__all__ = ["CONTROL", "CREATING", "Requests"]
