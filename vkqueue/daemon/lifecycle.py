"""From start to exit: builds the parts, obeys signals, drains, and keeps the service manager informed.

    signals → listen → service.start → accept, READY → … → stop accepting → drain → service.stop → flush → exit

The first SIGTERM or SIGINT drains: accepted jobs finish within `drain_timeout_s`, new ones are answered
`shutting_down`. A second one drops what is queued. SIGHUP reads the settings again. Files and names are looked at in
anyio's threads, so that the loop never waits for a disk or a directory server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib.util
import logging
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from vkqueue import log as logs
from vkqueue.config import Config, ConfigError, differences
from vkqueue.daemon.access import AccessList
from vkqueue.daemon.clients import Clients
from vkqueue.daemon.connection import ClientService
from vkqueue.daemon.listener import AlreadyRunningError, Listener, open_listener
from vkqueue.daemon.notify import Notifier
from vkqueue.errors import ShuttingDownError, VkqueueError
from vkqueue.gpu.backend import Backend
from vkqueue.worker.bridge import Outbox
from vkqueue.worker.events import Event
from vkqueue.worker.helper import HelperPool
from vkqueue.worker.thread import DeviceThread

log = logging.getLogger("vkqueue.daemon")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
"""Wrong settings; starting again will not help (also what wrong command-line options end with)."""
EXIT_ALREADY_RUNNING = 3

# Descriptors for everything but clients: device nodes, the selector, pipes to helpers, files of the moment.
RESERVED_FDS = 64
# How long clients may take to read their last answers; after a second signal, what a client that is in the middle
# of a read needs. Arbitrary.
FLUSH_S, HURRIED_FLUSH_S = 5.0, 0.2
# An exit with a fence wait in progress has to take less than a second in all.
STOP_S = 0.9

RELOADABLE = frozenset(
    f"daemon.{key}"
    for key in (
        "allow_users", "allow_groups", "max_clients", "write_timeout_s", "drain_timeout_s", "idle_exit_s",
        "log_level", "log_format",
    )
)  # fmt: skip
"""What SIGHUP changes; clients that are connected keep their own time-out."""


class Service(ClientService, Protocol):
    """What the life cycle wants of the service (daemon.service.Service, or a stub in tests). All on the loop.

    Attributes:
        healthy: whether the devices work.
        fatal: why the daemon must end and be started anew, None while it need not.
    """

    fatal: VkqueueError | None

    @property
    def healthy(self) -> bool: ...

    def start(self, on_started: Callable[[], None], on_health: Callable[[bool], None]) -> None:
        """Open the devices. `on_started` follows once each works or is known not to; `on_health` when `healthy`
        or `fatal` changes later."""

    def drain(self, on_idle: Callable[[], None]) -> None:
        """Answer new work `shutting_down` from now on; `on_idle` follows when all accepted work is answered."""

    def fail_queued(self) -> None:
        """Answer what is accepted but not submitted: it will not run."""

    def stop(self, timeout_s: float) -> None:
        """End the threads. Blocks, so not on the loop; what they still answer arrives there."""


CallSoon = Callable[[Callable[[], None]], object]
"""Runs a call on the loop, from any thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What the life cycle starts and ends. `helper` and `outboxes` are the service's ways to processes and threads."""

    service: Service
    helper: HelperPool | None = None
    outboxes: Sequence[Outbox[Event]] = ()


ServiceFactory = Callable[[Config, MutableMapping[str, str], CallSoon], Parts]
"""Makes the parts. Looks for devices, so it blocks and is not called on the loop."""


def build_parts(config: Config, environ: MutableMapping[str, str], call_soon: CallSoon) -> Parts:
    """The real parts. Their modules are imported here, so that looking at this one needs no Vulkan loader.

    Raises:
        ConfigError: `device.select` names what is not there.
    """
    from vkqueue.daemon.selection import select_devices
    from vkqueue.daemon.service import Service as VulkanService
    from vkqueue.gpu.probe import probe_devices

    found = probe_devices(environ)
    if found.message:
        log.warning("%s", found.message)
    environ.update(found.environment)  # drivers that crashed stay out of this process
    outboxes: list[Outbox[Event]] = []
    starters = [
        _thread_starter(config, physical, index, call_soon, outboxes)
        for index, physical in enumerate(select_devices(config.device.select, found.devices))
    ]
    helper = HelperPool(
        call_soon,
        size=config.helper.processes,
        timeout_s=config.helper.timeout_s,
        memory_bytes=config.helper.memory_bytes,
    )
    return Parts(VulkanService(config, starters, helper), helper, outboxes)


def _thread_starter(
    config: Config, physical: int, index: int, call_soon: CallSoon, outboxes: list[Outbox[Event]]
) -> Callable[[Callable[[list[Event]], None]], DeviceThread]:
    """What opens a device: Vulkan's number `physical`, which the daemon and its clients call `index`."""
    from vkqueue.gpu.device import DeviceOptions
    from vkqueue.gpu.vulkan import open_backend

    device = config.device
    options = DeviceOptions(
        descriptors=device.descriptors,
        dedicated_allocation=device.dedicated_allocation,
        external_memory_host=device.external_memory_host,
        validation=device.validation,
        dump_shaders=Path(device.dump_shaders) if device.dump_shaders else None,
        debug_labels=device.debug_labels,
        cache_dir=Path(device.cache_dir) if device.cache_dir else None,
    )

    def open_it() -> Backend:
        backend = open_backend(physical, options)
        backend.info = dataclasses.replace(backend.info, index=index)
        return cast(Backend, backend)  # its submissions are its own kind, and only they come back to it

    def start(deliver: Callable[[list[Event]], None]) -> DeviceThread:
        outbox = Outbox(call_soon, deliver)
        outboxes.append(outbox)
        thread = DeviceThread(
            f"device-{index}",
            open_it,
            outbox.post,
            batch_timeout_s=config.batching.batch_timeout_s,
            waiter="same" if device.waiter == "same" else "companion",
            glance_us=config.batching.max_batch_delay_us,
            spin_us=config.batching.spin_us,
        )
        thread.start()
        return thread

    return start


def run(
    load: Callable[[], Config],
    environ: MutableMapping[str, str],
    factory: ServiceFactory,
) -> int:
    """Run the daemon until it is told to stop; the exit status.

    Args:
        load: reads the settings; called again on SIGHUP.
        environ: for what systemd says in it; the variables that name passed sockets are taken out.

    Raises:
        ConfigError: from the first `load`, or a setting that this machine cannot fulfil.
    """
    config = load()
    if config.daemon.uvloop and importlib.util.find_spec("uvloop") is None:
        raise ConfigError("settings", ["daemon.uvloop: uvloop is not installed (pip install 'vkqueue[uvloop]')"])
    journal = logs.is_journal(environ.get("JOURNAL_STREAM", ""))
    logs.setup(config.daemon.log_level, config.daemon.log_format, journal=journal)
    sys.setswitchinterval(config.daemon.switch_interval_us / 1_000_000)
    # Rows and messages are tuples and maps that die young and in no cycle; the default thresholds made the collector
    # look at them often enough to cost 0.13 to 0.35 µs a message.
    gc.set_threshold(50_000, 20, 50)
    most_clients = raise_file_limit() - RESERVED_FDS

    async def serve() -> int:
        status = await Daemon(config, load, environ, factory, most_clients=most_clients).serve()
        # One more signal, while the interpreter winds up, must not turn an orderly exit into a death by signal.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        return status

    return anyio.run(serve, backend_options={"use_uvloop": config.daemon.uvloop})


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one: 1,024 would not do for 1,000 clients. The new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as exc:
        log.warning("cannot raise the limit of open files from %d to %d: %s", soft, hard, exc)
        return soft
    return hard


class Daemon:
    """One run of the daemon; see `run` for the arguments. Made and used on the loop thread."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        environ: MutableMapping[str, str],
        factory: ServiceFactory,
        *,
        most_clients: int,
    ) -> None:
        self._config = config
        self._load = load
        self._environ = environ
        self._factory = factory
        self._most_clients = most_clients
        self._notifier = Notifier(environ)
        self._journal = logs.is_journal(environ.get("JOURNAL_STREAM", ""))
        self._service: Service | None = None
        self._clients: Clients | None = None
        self._where = ""
        self._listening = False
        self._announced = False
        self._stop = anyio.Event()
        self._hurried = False
        self._exit_code = EXIT_OK
        # Cancelled by a stop: the start, if that is still going on; by a second one: the drain.
        self._starting = anyio.CancelScope()
        self._draining = anyio.CancelScope()

    async def serve(self) -> int:
        """Start, serve until told to stop, stop; the exit status.

        Raises:
            ConfigError: a setting that this machine cannot fulfil.
        """
        error: VkqueueError | None = None
        async with anyio.create_task_group() as tasks:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                tasks.start_soon(self._obey, signals)
                if self._notifier.watchdog_s:
                    tasks.start_soon(self._feed_watchdog)
                try:
                    await self._live(tasks)
                except VkqueueError as exc:  # kept from the task group, which would wrap it
                    error = exc
                tasks.cancel_scope.cancel()
        if error is not None:
            self._notifier.stopping(error.message)
        self._notifier.close()
        if isinstance(error, ConfigError):
            raise error
        if error is not None:
            log.error("%s", error.message)
            return EXIT_ALREADY_RUNNING if isinstance(error, AlreadyRunningError) else EXIT_FAILED
        return self._exit_code

    def stop(self, why: str) -> None:
        """Stop in order; called again, stop without waiting for queued jobs."""
        if not self._stop.is_set():
            log.info("stopping: %s", why)
            self._stop.set()
            self._starting.cancel()
        elif not self._hurried:
            log.info("stopping at once: %s", why)
            self._hurried = True
            self._draining.cancel()

    async def _live(self, tasks: TaskGroup) -> None:
        access = await to_thread.run_sync(AccessList.from_config, self._config.daemon)
        listener = await to_thread.run_sync(open_listener, self._config.daemon, self._environ)
        self._where = listener.name
        try:
            call_soon = asyncio.get_running_loop().call_soon_threadsafe
            parts = await to_thread.run_sync(self._factory, self._config, self._environ, call_soon)
            await self._serve_with(parts, listener, access, tasks)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(listener.remove_path)
            listener.close()

    async def _serve_with(self, parts: Parts, listener: Listener, access: AccessList, tasks: TaskGroup) -> None:
        service = self._service = parts.service
        clients = self._clients = Clients(
            service,
            self._config,
            access,
            most=self._most_clients,
            on_idle=lambda: tasks.start_soon(self._leave, listener, clients),
        )
        try:
            started = anyio.Event()
            if parts.helper is not None:
                parts.helper.prestart()
            service.start(started.set, self._health_changed)
            with self._starting:
                await started.wait()
            if not self._stop.is_set():
                listener.start(clients.admit, clients.refuse_starved)
                self._listening = True
                self._announce()
            await self._stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self._shut_down(parts, listener, clients)

    async def _shut_down(self, parts: Parts, listener: Listener, clients: Clients) -> None:
        service, helper = parts.service, parts.helper
        self._notifier.stopping("finishing accepted jobs")
        clients.refusal = ShuttingDownError("the daemon is shutting down")
        await to_thread.run_sync(listener.remove_path)
        if not listener.is_passed:
            listener.accept_rest()
        listener.close()
        idle = anyio.Event()
        service.drain(idle.set)
        with self._draining, anyio.move_on_after(self._config.daemon.drain_timeout_s):
            await idle.wait()
        if not idle.is_set():
            log.warning("jobs are left unfinished")
            service.fail_queued()
        if helper is not None:
            helper.request_stop()
        await to_thread.run_sync(service.stop, STOP_S)
        if helper is not None:
            await to_thread.run_sync(helper.join, STOP_S)
            helper.close()
        for outbox in parts.outboxes:
            outbox.close()
        await clients.finish(HURRIED_FLUSH_S if self._hurried else FLUSH_S)
        clients.close()
        log.info("stopped")

    async def _leave(self, listener: Listener, clients: Clients) -> None:
        """Nobody has been connected for long: stop, unless somebody comes at the last moment.

        The path goes first. Whoever had connected by then is served, and the idle clock runs anew; for anybody
        later there is no daemon, so a new one can be started. Passed sockets wait for the next daemon.
        """
        await to_thread.run_sync(listener.remove_path)
        if not listener.is_passed:
            listener.accept_rest()
        if not len(clients):
            self.stop(f"no client for {self._config.daemon.idle_exit_s:g} s")

    async def _obey(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for received in signals:
            if received is signal.SIGHUP:
                await self._reload()
            else:
                self.stop(received.name)

    async def _reload(self) -> None:
        """Take what can be changed from the settings as they are now; say what cannot."""
        if self._announced:
            self._notifier.reloading()
        try:
            config = await to_thread.run_sync(self._load)
            access = await to_thread.run_sync(AccessList.from_config, config.daemon)
        except ConfigError as error:
            log.error("the settings stay as they are: %s", error.message)
        else:
            changed = differences(self._config, config)
            fixed = [name for name in changed if name not in RELOADABLE]
            taken = {name.partition(".")[2]: None for name in changed if name in RELOADABLE}
            values = {key: getattr(config.daemon, key) for key in taken}
            self._config = dataclasses.replace(self._config, daemon=dataclasses.replace(self._config.daemon, **values))
            logs.setup(self._config.daemon.log_level, self._config.daemon.log_format, journal=self._journal)
            if self._clients is not None:
                self._clients.configure(self._config, access)
            log.info("settings read again; changed: %s", ", ".join(taken) or "nothing")
            if fixed:
                log.warning("only a restart changes %s", ", ".join(fixed))
        if self._announced:
            self._notifier.ready(self._status())

    def _health_changed(self, healthy: bool) -> None:
        assert self._service is not None
        if self._service.fatal is not None:
            log.error("giving up: %s", self._service.fatal.message)
            self._exit_code = EXIT_FAILED
            self.stop("a new daemon has to take over")
        elif self._listening and not self._stop.is_set():
            self._announce()

    def _announce(self) -> None:
        """Tell the service manager whether the devices work: READY the first time they do, then by the status.

        systemd takes READY back only for good, so `STATUS` is where readiness turns false.
        """
        if self._service is not None and self._service.healthy and not self._announced:
            self._announced = True
            self._notifier.ready(self._status())
        else:
            self._notifier.status(self._status())
        log.info("%s", self._status())

    def _status(self) -> str:
        healthy = self._service is not None and self._service.healthy
        return f"{'ready' if healthy else 'not ready: a device does not work;'} at {self._where}"

    async def _feed_watchdog(self) -> None:
        while True:
            self._notifier.watchdog()
            await anyio.sleep(self._notifier.watchdog_s)
