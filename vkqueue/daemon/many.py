"""Requests for many launches at once: `dispatch_many`.

They are checked as columns, which needs NumPy. A daemon that is never asked for them does without it: the first such
request waits, like one whose module is being analysed, until NumPy has been imported off the loop.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.dispatch import Deferred
from vkqueue.daemon.session import Buffer, Session
from vkqueue.errors import InvalidError, TooLargeError, UnsupportedError
from vkqueue.model import MANY

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.service import Service
    from vkqueue.kernels.launches import Many, ManyArgs
    from vkqueue.kernels.plan import Plan

# Of arguments that are kept, those of all connections: columns and, about, what one set takes besides. Arbitrary; with
# the tables that are made of them some five times as much.
_MOST_BYTES = 16 << 20
_ARGS_BYTES = 4096


class ManyRequests:
    """The handler of `dispatch_many`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._columns: Any = None  # the module kernels.many, once it is there
        self._failure: UnsupportedError | None = None
        self._waiting: list[Session] = []
        self._known: OrderedDict[Any, ManyArgs] = OrderedDict()
        self._known_bytes = 0

    def dispatch(self, session: Session, msgid: int, p: dict[str, Any], now: int) -> None:
        """Admit one request.

        Raises:
            VkqueueError: the answer; a launch that is wrong is named by it.
            Deferred: try again once NumPy, or the module's analysis, is there.
        """
        self._check_count(p["count"])
        if self._columns is None:
            self._await_columns(session)
        service, dispatcher = self._service, self._service.dispatcher
        device = dispatcher.device_of(session, {**p, "args": [_first(entry) for entry in p["args"]]})
        kernel = dispatcher.kernel(session, device, p["module"], p.get("kernel"), p.get("specialization"))
        service.admit_job(session)
        many = self._checked(session, device, kernel.plan, p)
        many.job.launch_ns = device.pace.launch_ns(kernel.pipeline, many.job.groups)
        options = dispatcher.options(session, device, msgid, p, now)
        row = (session.id, msgid, MANY, many.args.token, kernel.pipeline, b"", None, many, now, options)
        dispatcher.submit(session, device, kernel, row)

    def _checked(self, session: Session, device: Device, plan: Plan, p: dict[str, Any]) -> Many:
        """The launches. Arguments that come again are not looked at again."""
        # As long as the epoch is the same nothing that they were made from has been freed or lost.
        arguments = _key(p["args"])
        key = None if arguments is None else (session.id, session.epoch, plan, p["count"], arguments)
        known = None if key is None else self._known.get(key)
        many: Many = self._checker(session, device, plan, p, known).check()
        if known is not None:
            self._known.move_to_end(key)
        else:
            many.args.token = self._columns.token_of(self._service.new_id(), plan.layout, many.args)
            if key is not None:
                self._keep(key, many.args)
        return many

    def _keep(self, key: Any, args: ManyArgs) -> None:
        """Past the bound the longest unused go."""
        self._known[key] = args
        self._known_bytes += args.nbytes + _ARGS_BYTES
        while self._known_bytes > _MOST_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= oldest.nbytes + _ARGS_BYTES

    def _check_count(self, count: int) -> None:
        most = self._service.config.limits.max_many_launches
        if count > most:
            raise TooLargeError(
                f"count: {count} launches are over max_many_launches ({most}); send several requests",
                {"count": count, "max_many_launches": most},
            )

    def _checker(self, session: Session, device: Device, plan: Plan, p: dict[str, Any], known: ManyArgs | None) -> Any:
        objects, generation = session.objects, device.generation

        def find(handle: Any, label: str) -> Buffer:
            buffer = session.buffer(handle, label)
            if buffer.device is not device:
                raise InvalidError(
                    f"{label}: buffer {handle} is on device {buffer.device.index}, others of this job on {device.index}"
                )
            return buffer

        def find_all(handles: list[int]) -> list[Buffer | None]:
            return [
                b if type(b) is Buffer and b.generation == generation and b.device is device else None
                for b in map(objects.get, handles)
            ]

        return self._columns.Checker(plan, p, find, find_all, known)

    # NumPy

    def _await_columns(self, session: Session) -> None:
        """Raises Deferred, or why it cannot be had."""
        if self._failure is not None:
            raise UnsupportedError(self._failure.message)
        if not self._waiting:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, _import_columns).add_done_callback(self._imported)
        self._waiting.append(session)
        raise Deferred

    def _imported(self, found: asyncio.Future[Any]) -> None:
        if found.cancelled():  # the daemon stops
            return
        error = found.exception()
        if error is not None:
            self._failure = UnsupportedError(f"dispatch_many needs NumPy, which the daemon cannot import: {error}")
        else:
            self._columns = found.result()
        waiting, self._waiting = self._waiting, []
        for session in waiting:
            self._service.analysed(session)


def _import_columns() -> Any:
    # None of NumPy's linear algebra is used, and OpenBLAS would start a thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module("vkqueue.jobs.overlap")
    return importlib.import_module("vkqueue.kernels.many")


def _first(entry: Any) -> Any:
    """An entry of `args` as the first launch has it, as far as it matters to where the job runs."""
    if type(entry) is not dict:
        return entry
    if "buffer" in entry:
        return entry["buffer"]
    if "array" in entry and type(entry["array"]) is list:
        return {"array": [_first(element) for element in entry["array"]]}
    handles = entry.get("handles")
    if isinstance(handles, (bytes, bytearray, memoryview)) and len(handles) >= 4:
        return struct.unpack_from("<I", handles)[0]
    return entry


def _key(entry: Any) -> Any:
    """Arguments as a key: equal for equal ones. None if they bring data, which is theirs alone, or have no form."""
    if type(entry) is int:
        return entry
    if isinstance(entry, (bytes, bytearray, memoryview)):
        return bytes(entry)
    if type(entry) is dict:
        if entry.keys().isdisjoint(("handles", "buffer", "array")):
            return None
        parts: list[Any] = [tuple(entry), *map(_key, entry.values())]
    elif type(entry) is list:
        parts = list(map(_key, entry))
    else:
        return None
    return None if None in parts else tuple(parts)
