"""The service without sockets and without threads: the test is the client, the helper process and the device.

    client.send(...) → session.conn → Service → ScriptedThread.batches … test: thread.finish() → client.answers

Nothing happens by itself: a batch is done when the test says so, an analysis comes when the test lets it, and time is
the loop's. So every order of events can be had, and none has to be waited for.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack

from vkqueue.config import Config
from vkqueue.daemon.graph import Graph
from vkqueue.daemon.service import Service
from vkqueue.daemon.session import Module, Peer, Session
from vkqueue.errors import DeviceLostError, VkqueueError
from vkqueue.gpu.contract import Contract
from vkqueue.gpu.fake_info import fake_info
from vkqueue.model import (
    CREATE,
    DISPATCH,
    FREE,
    GRAPH,
    MANY,
    READ,
    ROW_MSGID,
    ROW_OP,
    ROW_OPTIONS,
    ROW_PAYLOAD,
    ROW_TARGET,
    ROW_TOKEN,
    Batch,
    Completion,
    DeviceInfo,
    PipelineBuilt,
    PipelineSpec,
    Release,
    Row,
)
from vkqueue.worker.events import DeviceLost, Failed, Opened
from vkqueue.worker.helper_main import KINDS

KERNELS = Path(__file__).resolve().parents[2] / "vkqueue" / "cli" / "kernels"
AXPY = (KERNELS / "axpy.spv").read_bytes()
"""y[i] += k * x[i]: binding 0 is read, binding 1 read and written; scalars n, k; `local_size` 64."""
HISTOGRAM = (KERNELS / "histogram.spv").read_bytes()
MATMUL = (KERNELS / "matmul.spv").read_bytes()


class AtOnce(ThreadPoolExecutor):
    """An executor whose work is done when it has been asked for, so that nothing is going on beside the test."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class ServiceError(Exception):
    """An error response."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] | None = error.get("data")


class ScriptedHelper:
    """Analyses at once, or, while `holding`, when told."""

    def __init__(self) -> None:
        self.holding = False
        self.requests: deque[tuple[str, bytes, dict[str, Any], Callable[[Any], None]]] = deque()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def submit(self, kind: str, payload: bytes, args: dict[str, Any], on_done: Callable[[Any], None]) -> None:
        self.asked.append((kind, args))
        self.requests.append((kind, payload, args, on_done))

    def answer(self, error: VkqueueError | None = None) -> None:
        """Answer the oldest request: truly, or with `error`."""
        kind, payload, args, on_done = self.requests.popleft()
        if error is not None:
            on_done(error)
            return
        known = KINDS[kind]
        function = getattr(importlib.import_module(known.module), known.function)
        try:
            # As it is when it has come from a process.
            result: Any = json.loads(json.dumps(known.run(function, payload, args)))
        except VkqueueError as refused:
            result = refused
        on_done(result)


class ScriptedThread:
    """Stands for `worker.thread.DeviceThread`: keeps what is posted until the test answers it.

    Each batch is held to the backend's contract, and to naming nothing that was released before it.

    Attributes:
        batches: posted and not finished, in order.
        releases: every Release, in order.
        posted: batches and releases in the order in which they came.
        specs: pipelines asked for and not built yet.
        row_ns: what a row takes, told of batches that are to be timed.
    """

    def __init__(self, deliver: Callable[[list[Any]], None], info: DeviceInfo) -> None:
        self._deliver = deliver
        self.info = info
        self.batches: deque[Batch] = deque()
        self.posted: list[Batch | Release] = []
        self.specs: deque[PipelineSpec] = deque()
        self.row_ns: Callable[[Row], int] = lambda row: 1000
        self.stopped = False
        self._contract = Contract(info.max_push_descriptors)
        self._built: set[int] = set()
        self._gone: set[int] = set()  # buffers that were there and were released
        self._uncreated: set[int] = set()  # failed creations; who was queued behind them still names them

    @property
    def releases(self) -> list[Release]:
        return [item for item in self.posted if isinstance(item, Release)]

    @property
    def created(self) -> set[int]:
        """Ids of buffers whose creation was posted, and of those of graphs that were launched."""
        batches = [item for item in self.posted if isinstance(item, Batch)]
        rows = [row for batch in batches for row in batch.rows]
        arenas = {id for row in rows if row[ROW_OP] == GRAPH for id, _ in row[ROW_TARGET].arenas}
        return arenas.union(row[ROW_TARGET] for row in rows if row[ROW_OP] == CREATE)

    @property
    def released(self) -> set[int]:
        """Ids of buffers that were released."""
        return {id for release in self.releases for id in release.buffers}

    # What the daemon calls

    def post(self, item: Batch | Release) -> bool:
        if self.stopped:
            return False
        self.posted.append(item)
        if isinstance(item, Batch):
            self._check(item)
            self.batches.append(item)
        else:
            self._built.difference_update(item.pipelines)
            self._gone.update(self.created.intersection(item.buffers) - self._uncreated)
        return True

    def _check(self, batch: Batch) -> None:
        self._contract.check(batch)
        for row in batch.rows:
            assert row[ROW_OP] != FREE
            if row[ROW_OP] in (DISPATCH, MANY):
                assert row[ROW_TARGET] in self._built, f"job {row[ROW_MSGID]}: its pipeline is not there"
            elif row[ROW_OP] == GRAPH:
                assert {node.pipeline for node in row[ROW_TARGET].nodes if node.pipeline} <= self._built
            assert self._gone.isdisjoint(row[ROW_TOKEN].buffers), f"job {row[ROW_MSGID]}: a buffer of it is gone"

    def compile(self, spec: PipelineSpec) -> bool:
        self.specs.append(spec)
        return not self.stopped

    def memory(self) -> dict[str, int]:
        return {"buffers": 0, "bytes_used": 0}

    def request_stop(self, timeout_s: float = 0.9) -> None:
        self.stopped = True

    def join(self, timeout_s: float) -> bool:
        return True

    def stop(self, timeout_s: float = 0.9) -> bool:
        self.stopped = True
        return True

    # What the test calls

    def deliver(self, *events: Any) -> None:
        self._deliver(list(events))

    def open(self) -> None:
        self.deliver(Opened(self.info))

    def fail_to_open(self, error: VkqueueError) -> None:
        """As the thread does it: the pipelines that were asked for are refused as well."""
        self.stopped = True
        self.deliver(Failed(error))
        while self.specs:
            self.build(error)

    def lose(self, message: str = "scripted") -> None:
        """As the thread does it: the news first, then the batches that it spoils."""
        error = DeviceLostError(message)
        spoiled = list(self.batches)
        self.batches.clear()
        self.deliver(
            DeviceLost(error),
            *(Completion(batch, errors=dict.fromkeys(range(len(batch.rows)), error), lost=True) for batch in spoiled),
        )

    def build(self, error: VkqueueError | None = None) -> None:
        """Answer the oldest request for a pipeline."""
        id = self.specs.popleft().id
        if error is None:
            self._built.add(id)
        self.deliver(PipelineBuilt(id, error))

    def finish(self, errors: Mapping[int, VkqueueError] | None = None) -> Batch:
        """The oldest batch is done; `errors` by msgid."""
        batch = self.batches.popleft()
        self._contract.finished(batch.serial)
        self._uncreate(row for row in batch.rows if errors and row[ROW_MSGID] in errors)
        self.deliver(self.completion(batch, errors))
        return batch

    def late(self, error: VkqueueError) -> Batch:
        """The oldest batch is past its limit: a first answer, and it stays on the device."""
        batch = self.batches[0]
        self._uncreate(batch.rows)
        self.deliver(Completion(batch, errors=dict.fromkeys(range(len(batch.rows)), error), final=False))
        return batch

    def _uncreate(self, rows: Iterable[Row]) -> None:
        self._uncreated.update(row[ROW_TARGET] for row in rows if row[ROW_OP] == CREATE)

    def completion(self, batch: Batch, errors: Mapping[int, VkqueueError] | None = None) -> Completion:
        """What a device would say: reads give zeros, launches what was put in."""
        done = Completion(batch, submits=1, submitted_ns=batch.closed_ns + 1000, finished_ns=batch.closed_ns + 5000)
        for index, row in enumerate(batch.rows):
            if errors and row[ROW_MSGID] in errors:
                done.errors[index] = errors[row[ROW_MSGID]]
            elif row[ROW_OP] == READ:
                done.results[index] = [bytes(sum(end - start for _, start, end in row[ROW_TOKEN].reads))]
            elif row[ROW_OP] in (DISPATCH, GRAPH) and row[ROW_PAYLOAD]:
                # Of ("out", size) these are so many zeros, of ("inout", bytes) a copy.
                outputs = [bytes(value) for kind, value in row[ROW_PAYLOAD] if kind in ("inout", "out")]
                if outputs:
                    done.results[index] = outputs
            if row[ROW_OPTIONS] is not None and row[ROW_OPTIONS].timing:
                done.device_us[index] = 3
        if batch.timed:
            done.spent_ns = {index: self.row_ns(row) for index, row in enumerate(batch.rows)}
        return done


class InProcessClient:
    """One connection of the service."""

    def __init__(self, rig: Rig, hello: bool = True, **params: Any) -> None:
        self._rig = rig
        self._woken = asyncio.Event()
        self.session: Session = rig.service.open_session(Peer(1, 2, 3), self._woken.set)
        self.session.resume = self._resume
        self.reading = True
        self.msgid = 0
        self._unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1, strict_map_key=False)
        self._answers: dict[int, tuple[Any, Any]] = {}
        self.answered: list[int] = []
        self.notices: list[Any] = []
        self.welcome = self.call("hello", protocol=1, client="in process", **params) if hello else None

    def _resume(self) -> None:
        """As the connection does: ask again, if its own output has sunk."""
        if self.session.conn.bytes_out <= self._rig.service.config.limits.max_output_bytes // 2:
            self.reading = self._rig.service.may_read(self.session)

    def encode(self, method: str, **params: Any) -> bytes:
        """A request's bytes, for `send_bytes`; its msgid is `self.msgid` afterwards."""
        self.msgid += 1
        packed: bytes = msgpack.packb([0, self.msgid, method, [params] if params else []])
        return packed

    def send_bytes(self, data: bytes) -> None:
        """One read of the connection's, with what it does after it."""
        requests = self.session.conn.receive_data(data)
        self._rig.service.handle(self.session, requests)
        self.reading = self._rig.service.may_read(self.session)

    def send(self, method: str, **params: Any) -> int:
        self.send_bytes(self.encode(method, **params))
        return self.msgid

    def burst(self, *requests: tuple[str, dict[str, Any]]) -> list[int]:
        """Requests in one read."""
        first = self.msgid + 1
        self.send_bytes(b"".join([self.encode(method, **params) for method, params in requests]))
        return list(range(first, self.msgid + 1))

    def collect(self) -> None:
        for piece in self.session.conn.data_to_send():
            self._unpacker.feed(piece)
        if not self.reading:
            self._resume()
        for message in self._unpacker:
            if message[0] == 1:
                assert message[1] not in self._answers, f"request {message[1]} is answered twice"
                self._answers[message[1]] = (message[2], message[3])
                self.answered.append(message[1])
            else:
                self.notices.append(message)

    def has(self, msgid: int) -> bool:
        """Whether the request is answered."""
        self.collect()
        return msgid in self._answers

    async def answer(self, msgid: int) -> str | None:
        """`code`, once the answer comes by itself (a timer of the daemon's)."""
        while not self.has(msgid):
            await self._woken.wait()
            self._woken.clear()
        return self.code(msgid)

    def result(self, msgid: int) -> Any:
        assert self.has(msgid), f"request {msgid} is not answered"
        error, result = self._answers.pop(msgid)
        if error is not None:
            raise ServiceError(error)
        return result

    def code(self, msgid: int) -> str | None:
        """The code of the error that a request was answered with; None for a success."""
        assert self.has(msgid), f"request {msgid} is not answered"
        error, _ = self._answers.pop(msgid)
        return None if error is None else str(error["code"])

    def call(self, method: str, **params: Any) -> Any:
        """A request that is answered at once, or needs the device and the helper once each."""
        msgid = self.send(method, **params)
        if not self.has(msgid):
            self._rig.settle()
        return self.result(msgid)

    def close(self) -> None:
        self._rig.service.close_session(self.session)

    # Common requests

    def load(self, spirv: bytes = AXPY, **params: Any) -> int:
        return int(self.call("module.load", spirv=spirv, **params)["module"])

    def buffer(self, size: int = 256, **params: Any) -> int:
        return int(self.call("buffer.create", size=size, **params)["buffer"])

    def launch(self, module: int, x: Any, y: Any, **params: Any) -> int:
        """Send a launch of AXPY."""
        return self.send("dispatch", **axpy(module, x, y, **params))


def axpy(module: int, x: Any, y: Any, **params: Any) -> dict[str, Any]:
    """The parameters of a launch of AXPY."""
    return {"module": module, "args": [x, y], "scalars": [64, 0.5], "grid": [1], **params}


class Rig:
    """A service with scripted devices, all open."""

    def __init__(
        self, devices: int = 1, config: Mapping[str, Any] | None = None, infos: list[DeviceInfo] | None = None
    ) -> None:
        self.helper = ScriptedHelper()
        self.threads: list[ScriptedThread] = []  # the newest of each device
        self.opened = 0
        self.health: list[bool] = []
        self.infos = infos or [fake_info(uuid=f"{index:032x}") for index in range(devices)]
        self.threads = [None] * len(self.infos)  # type: ignore[list-item]
        settings = Config().replace(config or {}, "the test")
        self.service = Service(settings, [self._starter(index) for index in range(len(self.infos))], self.helper)
        self.started = 0

    def _starter(self, index: int) -> Callable[[Callable[[list[Any]], None]], Any]:
        def start(deliver: Callable[[list[Any]], None]) -> ScriptedThread:
            self.opened += 1
            self.threads[index] = ScriptedThread(deliver, self.infos[index])
            return self.threads[index]

        return start

    def start(self) -> Rig:
        def started() -> None:
            self.started += 1

        self.service.start(started, self.health.append)
        for thread in self.threads:
            thread.open()
        return self

    @property
    def thread(self) -> ScriptedThread:
        [thread] = self.threads
        return thread

    def client(self, hello: bool = True, **params: Any) -> InProcessClient:
        return InProcessClient(self, hello, **params)

    def turn(self) -> bool:
        """Answer everything that is asked of the helper and the devices at this moment; False when nothing was."""
        done = False
        if not self.helper.holding:
            for _ in range(len(self.helper.requests)):
                self.helper.answer()
                done = True
        for thread in self.threads:
            for _ in range(len(thread.specs)):
                thread.build()
                done = True
            for _ in range(len(thread.batches)):
                thread.finish()
                done = True
        return done

    def settle(self) -> None:
        """`turn` until nothing is left to do."""
        while self.turn():
            pass

    def finish(self) -> None:
        """Let everything end, close every connection, and look at the accounts before and after."""
        self.helper.holding = False
        self.settle()
        self.check_idle()
        service = self.service
        for session in list(service.sessions.values()):
            service.close_session(session)
        self.settle()
        self.check_idle()
        for device, thread in zip(service.devices, self.threads, strict=True):
            assert device.memory_bytes == 0
            assert thread.created <= thread.released, "buffers are left on the device"
            assert all(kernel.users == kernel.pinned == 0 for kernel in device.kernels.values())
            assert device.sessions == 0

    def check_idle(self) -> None:
        """With nothing going on, nothing may be left on any account."""
        service = self.service
        assert service._deferred_bytes == 0
        assert not service.busy
        assert service._queued_bytes == 0
        for device in service.devices:
            assert device.scheduler.queued == device.scheduler.ready == 0
            assert not device.busy
        for session in service.sessions.values():
            assert session.open_jobs == 0
            assert session.queued_bytes == session.deferred_bytes == 0
            buffers = [buffer for device in service.devices for buffer in session.buffers_on(device)]
            assert session.buffers == len(buffers)
            assert session.memory_bytes == sum(buffer.size for buffer in buffers)
            assert session.modules == sum(isinstance(found, Module) for found in session.objects.values())
            assert session.graphs == sum(isinstance(found, Graph) for found in session.objects.values())
            assert not session.handles
            assert not session.deferred
            assert not session.blocked
            assert not session.conn.pending


__all__ = [
    "AXPY",
    "AtOnce",
    "HISTOGRAM",
    "KERNELS",
    "MATMUL",
    "InProcessClient",
    "Rig",
    "ScriptedHelper",
    "ScriptedThread",
    "ServiceError",
    "axpy",
]
