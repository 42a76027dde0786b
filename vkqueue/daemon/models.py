"""The models that the daemon serves: which there are, which are ready, and what becomes of them with their devices.

    LOADING → READY → UNLOADING → gone
       ↑  ↘ UNAVAILABLE (with the reason)
       └──── READY, when the device was lost

A version that is loaded anew goes on being served by what was loaded before, until the new one is ready; then the old
one answers what it has accepted, and goes.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.model_forms import ModelForms
from vkqueue.daemon.model_loading import load
from vkqueue.daemon.model_members import with_members
from vkqueue.daemon.model_requests import ModelRequests
from vkqueue.daemon.model_serving import Serving
from vkqueue.daemon.model_version import LOADING, READY, UNAVAILABLE, UNLOADING, Version, VersionTable
from vkqueue.errors import (
    DeviceLostError,
    InternalError,
    NotFoundError,
    QuotaError,
    UnsupportedError,
    VkqueueError,
)
from vkqueue.models.definition import Definition, Step
from vkqueue.models.repository import Repository
from vkqueue.models.source import ModelSource

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.modules import DeviceKernel
    from vkqueue.daemon.service import Service
    from vkqueue.daemon.session import Session

log = logging.getLogger("vkqueue.daemon")

# Versions that are loaded at once; each has its weights in the host's memory. Arbitrary: the helper processes are
# fewer.
_LOAD_AT_ONCE = 4


class Models:
    """All models of the daemon.

    Attributes:
        table: the versions, by name and number.
        servings: what is served, and what answers what it has accepted before it goes.
        due: those in which something happened that may let a batch leave; `Service.settle` goes through them.
        handlers: of the requests `model.…`.
        forms: takes requests for inference in that are known but for their inputs' bytes.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.table = VersionTable()
        self.forms = ModelForms(service, self.table)
        self.due: dict[Serving, None] = {}
        folder = service.config.models.repository
        self.repository = Repository(folder) if folder else None
        self.servings: dict[Serving, None] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._pipelines: dict[DeviceKernel, list[tuple[Device, asyncio.Future[None]]]] = {}
        self._gate = asyncio.Semaphore(_LOAD_AT_ONCE)
        self._requests = ModelRequests(service, self)
        self.handlers = self._requests.handlers

    # The life of the daemon

    def start(self, on_started: Callable[[], None]) -> None:
        """The devices have answered: load the repository, then call `on_started`."""
        if self.repository is None:
            on_started()
            return
        self.spawn(self._start(self.repository, on_started))

    async def _start(self, repository: Repository, on_started: Callable[[], None]) -> None:
        try:

            async def one(name: str, number: int) -> None:
                try:
                    await self.load_stored(name, number, None)
                except VkqueueError as error:
                    log.error("model %s, version %d is not available: %s", name, number, error.message)

            found = await asyncio.to_thread(repository.scan)
            for model in found:
                if model.reason:
                    log.error("model %s is not available: %s", model.name, model.reason)
                    version = Version(model.name, 1)
                    version.state, version.reason = UNAVAILABLE, model.reason
                    self.table.put(version)
            await asyncio.gather(*(one(model.name, number) for model in found for number in model.versions))
        except VkqueueError as error:
            log.error("[models] repository: %s", error.message)
        except Exception:
            log.exception("[models] repository")
        finally:
            on_started()

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Hold a task while it runs."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the requests."""
        self.keep(asyncio.ensure_future(work))

    def pump(self) -> None:
        """Let batches leave where something has happened."""
        while self.due:
            due, self.due = self.due, {}
            for serving in due:
                serving.pump()

    @property
    def queued(self) -> int:
        """Requests that wait for their batch."""
        return sum([len(serving.batcher) for serving in self.servings])

    def fail_queued(self, error: VkqueueError) -> None:
        """The daemon stops: answer what was not submitted, and who waits for a model."""
        for serving in list(self.servings):
            serving.end(error)
        self._requests.fail_waiting(error)

    # Requests that wait

    def cancel(self, session: Session, msgid: int, error: VkqueueError) -> bool:
        """Whether a request waited for its batch; it is answered then."""
        serving = session.infers.get(msgid)
        return serving is not None and serving.cancel(session, msgid, error)

    def drop_session(self, session: Session) -> None:
        """The connection is gone: its requests that have not left are dropped."""
        for msgid, serving in list(session.infers.items()):
            serving.cancel(session, msgid, None)

    # Loading and unloading

    def _alone(self, name: str) -> asyncio.Lock:
        """Loads and unloads of one name go one after the other."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def load_stored(self, name: str, number: int, device: Device | None) -> Version:
        """Load a version from the repository.

        Raises:
            VkqueueError: it is UNAVAILABLE, unless an earlier load of it goes on being served.
        """
        repository = self.repository
        if repository is None:
            raise NotFoundError("this daemon has no repository of models ([models] repository); send the config")
        return await self._load(name, number, lambda: asyncio.to_thread(repository.read, name, number), device, True)

    async def load_sent(
        self, name: str, number: int, read: Callable[[], Coroutine[Any, Any, ModelSource]], device: Device
    ) -> Version:
        """Load a version that a client sent; `read` is called when it is its turn. Raises as `load_stored`."""
        return await self._load(name, number, read, device, False)

    async def _load(
        self,
        name: str,
        number: int,
        read: Callable[[], Coroutine[Any, Any, ModelSource]],
        device: Device | None,
        stored: bool,
    ) -> Version:
        async with self._alone(name), self._gate:
            known = self.table.find(name, number)
            if known is None:
                self._check_room()
            version = Version(name, number)
            if known is not None:
                version.statistics, version.device = known.statistics, known.device
            if known is None or known.serving is None:
                self.table.put(version)
            try:
                version.source = await read()
                await self._get_ready(version, device)
            except Exception as exc:
                error = self._understood(exc, version)
                version.state, version.reason = UNAVAILABLE, error.message
                if not stored:  # its client has been told
                    self._put_back(version, known)
                elif isinstance(error, DeviceLostError):
                    version.state, version.lost = LOADING, True
                    if version.device is not None and version.device.working:  # it came back before this was known
                        self.spawn(self._again(version))
                raise error from exc
            self.table.put(version)
            if known is not None and known.serving is not None:
                self._retire(known)
                self._service.settle()
            log.info("model %s, version %d is ready", name, number)
            return version

    async def _get_ready(self, version: Version, device: Device | None) -> None:
        source = version.source
        assert source is not None
        version.definition = await asyncio.to_thread(Definition.from_map, source.config, source.name)
        device = device or version.device or self._service.least_loaded()
        if device is None:
            version.lost = True  # once a device works
            raise UnsupportedError("no device works; see `vkqueue doctor`")
        version.device = device
        definition, whole = await with_members(
            version.definition, source, self._member, self._service.config.limits.max_graph_nodes
        )
        if version.definition.steps:
            shown = {"max_batch_size": definition.max_batch_size, "dimensions": definition.dimensions}
            version.definition = replace(version.definition, batching=definition.batching, **shown)  # type: ignore[arg-type]
        serving = await load(self._service, definition, whole, device, version.statistics)
        self.servings[serving] = None
        version.serving, version.state, version.reason, version.lost = serving, READY, "", False

    async def _member(self, step: Step) -> ModelSource:
        """What a step's model is made from: as it is loaded, else as it is in the repository."""
        number = step.model_version if step.model_version > 0 else None
        try:
            version = self.table.get(step.model_name, number)
            if version.source is not None:
                return version.source
        except NotFoundError:
            if self.repository is None:
                raise
        if self.repository is None:
            raise NotFoundError(f"model {step.model_name!r} is {version.state}: {version.reason}")
        return await asyncio.to_thread(self.repository.read, step.model_name, number)

    def _put_back(self, version: Version, known: Version | None) -> None:
        """A version did not come into being: what was there before is there again."""
        if self.table.find(version.name, version.number) is version:
            self.table.remove(version)
            if known is not None:
                self.table.put(known)

    @staticmethod
    def _understood(exc: Exception, version: Version) -> VkqueueError:
        if isinstance(exc, VkqueueError):
            return exc
        log.error("model %s, version %d", version.name, version.number, exc_info=exc)
        return InternalError("a fault of the daemon's own while loading a model; its log has the details")

    def _check_room(self) -> None:
        most = self._service.config.models.max_models
        if len(self.table) >= most:
            raise QuotaError(
                f"max_models: {most} versions of models are loaded, the daemon's limit; unload some",
                {"quota": "max_models", "limit": most},
            )

    def _retire(self, version: Version) -> asyncio.Future[None]:
        """Take no more requests for a version that is served; it is done once the accepted ones are answered."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        serving, version.serving = version.serving, None
        assert serving is not None

        def idle() -> None:
            self._close(serving)
            future.set_result(None)

        serving.retire(idle)
        return future

    def _close(self, serving: Serving) -> None:
        self.servings.pop(serving, None)
        serving.graphs.close()

    def leaving(self, name: str, number: int | None) -> list[Version]:
        """The versions that an unload of that number, or of all, is about; from here on they take no requests.

        Raises:
            NotFoundError
        """
        version = self.table.get(name, number)
        versions = [version] if number is not None else self.table.of(name)
        for each in versions:
            each.state, each.reason, each.lost = UNLOADING, "", False
            if each.serving is not None:
                each.leaving.append(self._retire(each))
        return versions

    async def unload(self, name: str, number: int | None) -> None:
        """Unload a version, or all; returns once its accepted requests are answered.

        Raises:
            NotFoundError
        """
        async with self._alone(name):
            versions = self.leaving(name, number)
            self._service.settle()
            await asyncio.gather(*(future for version in versions for future in version.leaving))
            for version in versions:
                self.table.remove(version)
            log.info("model %s%s is unloaded", name, "" if number is None else f", version {number}")

    # Devices

    def pipeline(self, device: Device, kernel: DeviceKernel) -> asyncio.Future[None]:
        """Done once the kernel's pipeline is built; has the error if it cannot be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if kernel.ready:
            future.set_result(None)
        elif kernel.error is not None:
            future.set_exception(kernel.error)
        else:
            self._pipelines.setdefault(kernel, []).append((device, future))
        return future

    def built(self, kernel: DeviceKernel, error: VkqueueError | None) -> None:
        """A pipeline is there, or cannot be built."""
        for _, future in self._pipelines.pop(kernel, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def losing(self, device: Device) -> None:
        """The device was lost, and nothing is answered yet: nothing more is submitted to it."""
        error = DeviceLostError("the device was lost before this request was submitted")
        for serving in self.servings:
            if serving.graphs.device is device:
                serving.end(error)
        for kernel in [kernel for kernel, waiting in self._pipelines.items() if any(d is device for d, _ in waiting)]:
            self.built(kernel, error)

    def lost(self, device: Device) -> None:
        """What was in flight is answered: its models are of no use any more."""
        for version in self.table.all():
            if version.serving is not None and version.device is device:
                version.serving, version.state = None, LOADING
                version.reason, version.lost = "its device was lost", True
        for serving in [s for s in self.servings if s.graphs.device is device and not s.retiring]:
            serving.retire(lambda serving=serving: self._close(serving))  # type: ignore[misc]

    def opened(self, device: Device) -> None:
        """The device works (again): load what was on it."""
        for version in self.table.all():
            if version.lost and version.device in (device, None):
                self.spawn(self._again(version))

    async def _again(self, version: Version) -> None:
        async with self._alone(version.name):
            if self.table.find(version.name, version.number) is not version or not version.lost:
                return  # it was unloaded, or loaded anew
            version.state = LOADING
            try:
                await self._get_ready(version, None)
            except Exception as exc:
                error = self._understood(exc, version)
                if not isinstance(error, DeviceLostError):  # else it is tried again when the device works
                    version.state, version.reason, version.lost = UNAVAILABLE, error.message, False
                log.error("model %s, version %d: %s", version.name, version.number, error.message)
            else:
                log.info("model %s, version %d is ready again", version.name, version.number)


__all__ = ["Models"]
