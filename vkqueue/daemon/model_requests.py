"""The requests `model.…` of clients."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.dispatch import Deferred
from vkqueue.daemon.model_loading import WeightReader, client_kernels
from vkqueue.daemon.model_selected import load_selected
from vkqueue.daemon.session import bytes_of
from vkqueue.errors import InternalError, InvalidError, JobCancelledError, VkqueueError
from vkqueue.models.repository import check_name
from vkqueue.models.source import KernelSource, ModelSource

if TYPE_CHECKING:
    from vkqueue.daemon.models import Models
    from vkqueue.daemon.service import Service
    from vkqueue.daemon.session import Session

log = logging.getLogger("vkqueue.daemon")

Handler = Callable[["Session", int, dict[str, Any], int], None]


class ModelRequests:
    """The handlers by method name."""

    def __init__(self, service: Service, models: Models) -> None:
        self._service = service
        self._models = models
        self._waiting: dict[tuple[int, int], Session] = {}  # loads and unloads that are not answered
        self._turns: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()
        self.handlers: dict[str, Handler] = {
            "model.load": self.load,
            "model.unload": self.unload,
            "model.infer": self.infer,
            "model.list": self.list,
            "model.config": self.config,
            "model.statistics": self.statistics,
        }

    def infer(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.infer`"""
        self._models.table.serving(p["name"], p.get("version")).infer(session, msgid, p, now)

    def list(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.list`"""
        self._service.answer(session, msgid, [version.to_wire() for version in self._models.table.all()])

    def config(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.config`"""
        version = self._models.table.get(p["name"], p.get("version"))
        if version.definition is None:
            raise InvalidError(f"model {version.name!r} has no configuration: {version.reason or 'it is being read'}")
        self._service.answer(session, msgid, {**version.definition.to_map(), "version": version.number})

    def statistics(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.statistics`"""
        if "name" in p and "version" not in p:
            self._models.table.get(p["name"], None)
            asked = self._models.table.of(p["name"])
        elif "name" in p:
            asked = [self._models.table.get(p["name"], p["version"])]
        else:
            asked = self._models.table.all()
        self._service.answer(session, msgid, [version.statistics_to_wire() for version in asked])

    # Loading

    def load(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.load`. Raises Deferred while a module that it names is being analysed."""
        check_name(p["name"])
        self._service.admit_job(session)
        device = self._service.device(p["device"]) if "device" in p else None
        if "config" not in p:
            self._begin(session, msgid, self._load_stored(p["name"], p.get("version"), device))
            return
        kernels: dict[str, KernelSource] = {}
        for name, kernel in client_kernels(p.get("kernels") or []).items():
            kernels[name] = kernel if isinstance(kernel, KernelSource) else self._of_module(session, *kernel)
        device = device or self._service.default_device(session)
        self._service.check_working(device)
        weights = WeightReader(self._service, session, p.get("weights") or {})

        async def read() -> ModelSource:
            if session.closed:
                raise JobCancelledError("its client has gone")
            found = await weights.read(p["config"], p["name"], device)
            return ModelSource(p["name"], p.get("version", 1), p["config"], kernels, found, None)

        async def loaded() -> dict[str, Any]:
            try:
                version = await self._models.load_sent(p["name"], p.get("version", 1), read, device)
            finally:
                weights.let_go()
            return {"name": version.name, "version": version.number}

        self._begin(session, msgid, loaded(), bytes_of(p))

    @staticmethod
    def _of_module(session: Session, name: str, handle: int, entry: str | None) -> KernelSource:
        module = session.module(handle)
        if module.code is None:
            raise Deferred
        code = module.code
        if code.form != "spirv":
            raise InvalidError(f"kernels: {name}: module {handle} was loaded in TVM's form; load its SPIR-V")
        if entry is None and len(module.kernels) == 1:
            entry = next(iter(module.kernels))
        return KernelSource(name, code.data, "spirv", entry, f"module {handle}")

    async def _load_stored(self, name: str, number: int | None, device: Any) -> dict[str, Any]:
        loaded = await load_selected(self._models, name, number, device)
        return {"name": name, "version": max(loaded)}

    def unload(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """`model.unload`"""
        self._service.admit_job(session)
        self._models.leaving(p["name"], p.get("version"))

        async def unloaded() -> dict[str, Any]:
            await self._models.unload(p["name"], p.get("version"))
            return {}

        self._begin(session, msgid, unloaded())

    def _begin(self, session: Session, msgid: int, work: Coroutine[Any, Any, dict[str, Any]], held: int = 0) -> None:
        """Run a load or unload, which counts as a job with so many bytes until it is answered. Those of one connection
        go one after the other, so that none takes all turns."""
        self._waiting[session.id, msgid] = session
        session.open_jobs += 1
        self._service.hold_bytes(session, held)
        self._models.spawn(self._answered(session, msgid, work, held))

    async def _answered(
        self, session: Session, msgid: int, work: Coroutine[Any, Any, dict[str, Any]], held: int
    ) -> None:
        answer: Any
        try:
            async with self._turns.setdefault(session.id, asyncio.Lock()):
                answer = await work
        except VkqueueError as error:
            answer = error
        except Exception:
            log.exception("a model's request of session %d", session.id)
            answer = InternalError("a fault of the daemon's own; its log has the details")
        if not session.closed:
            session.open_jobs -= 1
            self._service.hold_bytes(session, -held)
        if self._waiting.pop((session.id, msgid), None) is None or session.closed:
            return
        if isinstance(answer, VkqueueError):
            self._service.fail(session, msgid, answer)
        else:
            self._service.answer(session, msgid, answer)
        self._service.settle()

    def fail_waiting(self, error: VkqueueError) -> None:
        """The daemon stops: answer loads and unloads that are not over."""
        waiting, self._waiting = self._waiting, {}
        for (_, msgid), session in waiting.items():
            if not session.closed:
                self._service.fail(session, msgid, error)


__all__ = ["ModelRequests"]
