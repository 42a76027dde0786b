"""A backend without a device, for tests and dry runs: real bytes, scripted fences and failures, a log of calls.

What the host does (rows with DIRECT) happens in `submit`. What a device would do happens as late as it may: when
the fence is found signalled. So a missing barrier or a buffer that is freed early shows as wrong bytes, not only as
a broken contract. Kernels are Python callables by entry point; without one a launch leaves its buffers alone.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Literal, TypeAlias, cast

from vkqueue.errors import DeviceLostError, NotFoundError, OutOfDeviceMemoryError, VkqueueError
from vkqueue.gpu.backend import Submission
from vkqueue.gpu.contract import Contract, ContractError, transfer_ranges
from vkqueue.gpu.fake_graph import run_graph
from vkqueue.gpu.fake_info import fake_info
from vkqueue.gpu.fake_many import run_many
from vkqueue.model import (
    COPY,
    CREATE,
    DIRECT,
    DISPATCH,
    FILL,
    GRAPH,
    MANY,
    READ,
    ROW_CONSTANTS,
    ROW_GRID,
    ROW_MSGID,
    ROW_OP,
    ROW_OPTIONS,
    ROW_PAYLOAD,
    ROW_TARGET,
    ROW_TOKEN,
    WRITE,
    Batch,
    Completion,
    DeviceInfo,
    GraphInstance,
    PipelineSpec,
    Release,
    Row,
    Shared,
)

FakeKernel: TypeAlias = Callable[[list[memoryview], bytes, tuple[int, int, int]], None]
"""Called with the descriptors' memory in (set, binding, element) order, the push constants and the grid."""

Call: TypeAlias = Literal["submit", "wait", "collect", "retire", "release", "compile", "save_cache", "close"]

_GARBAGE = 0xCD
"""What memory holds before its first write on the device: never zero, so that a missing one shows."""


class FakeSubmission:
    """A batch on the fake's device."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.completion = Completion(batch)
        self.pending = False
        self.staged: list[tuple[int, Row]] = []  # (index, row) of what the device is to do
        self.results: dict[int, list[Any]] = {}  # what the device wrote back, until it is collected
        self.due: float | None = None  # when an automatic fence signals; None: by hand
        self.fence: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.done = False
        self.collected = False


class FakeBackend:
    """Implements gpu.backend.Backend.

    Attributes:
        automatic: fences signal by themselves, `delay_s` after the one before or after the submission. Else each
            waits for `complete`. May be changed at any time, for the submissions to come.
        log: (call, serial or id) in the order in which calls came.
        violations: what broke the contract; the call raised it too.
        row_ns: what a row is said to have taken, in batches whose rows are timed.
        on_call: called with each log entry before the call does anything; may block, or raise.

    Args:
        info: what the device says of itself.
        kernels: what launches do, by the entry point's name.
        memory_bytes: buffers past this fail with `out_of_memory`.
        check: whether batches are checked against the contract (off for benchmarks).
    """

    def __init__(
        self,
        info: DeviceInfo | None = None,
        *,
        kernels: Mapping[str, FakeKernel] | None = None,
        automatic: bool = True,
        delay_s: float = 0.0,
        memory_bytes: int | None = None,
        check: bool = True,
    ) -> None:
        self.info = info if info is not None else fake_info()
        self.kernels = dict(kernels or {})
        self.automatic = automatic
        self.delay_s = delay_s
        self.log: deque[tuple[Call, int]] = deque(maxlen=10_000)
        self.violations: list[ContractError] = []
        self.row_ns: Callable[[Row], int] = lambda row: 1000
        self.on_call: Callable[[Call, int], None] | None = None
        self._memory_bytes = self.info.memory_bytes if memory_bytes is None else memory_bytes
        self._contract = Contract(self.info.max_push_descriptors) if check else None
        self._threads: dict[str, int] = {}
        self._failures: dict[str, deque[Exception]] = {}
        self._row_errors: dict[int, VkqueueError] = {}
        self._lost: DeviceLostError | None = None
        self._buffers: dict[int, bytearray | memoryview] = {}
        self._pipelines: dict[int, PipelineSpec] = {}
        self._submissions: dict[int, FakeSubmission] = {}  # by serial, in order, until retired
        self._deferred: deque[tuple[int, Release]] = deque()  # (last serial before it, release)
        self._serial = 0
        self._last_due = 0.0

    # Script

    def open(self) -> FakeBackend:
        """The `open_backend` of a worker thread."""
        self._on_thread("worker")
        return self

    def complete(self, serial: int) -> None:
        """Signal the fence of a batch that was submitted by hand (`automatic` off)."""
        self._submissions[serial].fence.put(None)

    def fail(self, call: Call, error: Exception, times: int = 1) -> None:
        """Let the next `times` calls of this name raise `error`; a DeviceLostError stays true for good."""
        self._failures.setdefault(call, deque()).extend([error] * times)

    def fail_row(self, msgid: int, error: VkqueueError) -> None:
        """Let rows with this msgid fail alone."""
        self._row_errors[msgid] = error

    def lose(self, message: str = "scripted") -> None:
        """Lose the device: from now on every call that can say so does."""
        self._lost = DeviceLostError(message)
        for submission in list(self._submissions.values()):
            submission.fence.put(None)

    def buffer(self, id: int) -> bytes:
        """A copy of a buffer's bytes."""
        return bytes(self._buffers[id])

    # Worker thread

    def submit(self, batch: Batch) -> Submission:
        self._enter("worker", "submit", batch.serial)
        if self._contract is not None:
            self._checked(lambda: cast(Contract, self._contract).check(batch))
        submission = FakeSubmission(batch)
        completion = submission.completion
        for index, row in enumerate(batch.rows):
            try:
                self._record(submission, index, row, bool(batch.flags[index] & DIRECT))
            except VkqueueError as error:
                completion.errors[index] = error
        self._serial = batch.serial
        self._submissions[batch.serial] = submission
        completion.submitted_ns = time.monotonic_ns()
        if submission.staged:
            completion.submits = 1
            submission.pending = True
            if self.automatic:
                self._last_due = submission.due = max(time.monotonic(), self._last_due) + self.delay_s
        else:
            self._finished(submission)
        return submission

    def retire(self, submission: Submission) -> None:
        serial = submission.batch.serial
        self._enter("worker", "retire", serial)
        first = next(iter(self._submissions), None)
        mine = cast(FakeSubmission, submission)
        if first != serial:
            self._violated(f"batch {serial} is retired, and batch {first} is the oldest")
        if not mine.done or (mine.pending and not mine.collected):
            self._violated(f"batch {serial} is retired before it is done and collected")
        del self._submissions[serial]
        self._free_deferred()

    def release(self, release: Release) -> None:
        self._enter("worker", "release", self._serial)
        self._deferred.append((self._serial, release))
        self._free_deferred()

    def close(self) -> None:
        self._enter("worker", "close", 0)
        for submission in self._submissions.values():
            if not submission.done and self._lost is None:
                self._violated(f"closed while batch {submission.batch.serial} is in flight")
        self._submissions.clear()
        self._deferred.clear()
        self._buffers.clear()
        self._pipelines.clear()

    # Waiting thread

    def wait(self, submission: Submission, timeout_s: float) -> bool:
        self._enter("wait", "wait", submission.batch.serial)
        mine = cast(FakeSubmission, submission)
        if mine.done:
            return True
        if not self._signalled(mine, timeout_s):
            return False
        self._raise_lost()
        for index, row in mine.staged:
            self._execute(mine, index, row)
        self._finished(mine)
        return True

    def collect(self, submission: Submission) -> Completion:
        mine = cast(FakeSubmission, submission)
        mine.collected = True  # also when it fails: there is no second attempt
        self._enter("wait", "collect", submission.batch.serial)
        if not mine.done:
            self._violated(f"batch {submission.batch.serial} is collected before its fence is known")
        completion = mine.completion
        completion.results.update(mine.results)
        if self.info.timestamps:
            for index, row in mine.staged:
                if row[ROW_OPTIONS] is not None and row[ROW_OPTIONS].timing:
                    completion.device_us[index] = 1
            if mine.batch.timed:
                completion.spent_ns = {index: self.row_ns(row) for index, row in mine.staged}
        completion.finished_ns = time.monotonic_ns()
        return completion

    # Compile thread

    def compile(self, spec: PipelineSpec) -> None:
        self._enter("compile", "compile", spec.id)
        self._pipelines[spec.id] = spec

    def save_cache(self) -> None:
        self._enter("compile", "save_cache", 0)

    # Any thread

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    def memory(self) -> dict[str, int]:
        buffers = list(self._buffers.values())
        used = sum(len(buffer) for buffer in buffers if isinstance(buffer, bytearray))
        return {
            "bytes_used": used,
            "bytes_reserved": used,
            "allocations": 1 if buffers else 0,
            "buffers": len(buffers),
            "staging_bytes": 0,
            "shared_bytes": sum(map(len, buffers)) - used,
        }

    # Script and contract, inside

    def _enter(self, thread: str, call: Call, number: int) -> None:
        self.log.append((call, number))
        self._on_thread(thread)
        if call in ("submit", "wait", "collect", "compile"):
            self._raise_lost()
        if self.on_call is not None:
            self.on_call(call, number)
        scripted = self._failures.get(call)
        if scripted:
            error = scripted.popleft()
            if isinstance(error, DeviceLostError):
                self._lost = error
            raise error

    def _on_thread(self, name: str) -> None:
        if name == "wait" and self._threads.get("worker") == get_ident():
            return  # the worker may wait for a lone batch itself
        known = self._threads.setdefault(name, get_ident())
        if known != get_ident():
            self._violated(f"the {name} thread's call comes from another thread")

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise DeviceLostError(self._lost.message)

    def _violated(self, message: str) -> None:
        def broken() -> None:
            raise ContractError(message)

        self._checked(broken)

    def _checked(self, check: Callable[[], None]) -> None:
        try:
            check()
        except ContractError as error:
            self.violations.append(error)
            raise

    # The device, inside

    def _record(self, submission: FakeSubmission, index: int, row: Row, direct: bool) -> None:
        """The host's part of a row."""
        error = self._row_errors.get(row[ROW_MSGID])
        if error is not None:
            raise error
        op = row[ROW_OP]
        if op == CREATE:
            self._create(row)
        if op in (DISPATCH, MANY) and row[ROW_TARGET] not in self._pipelines:
            raise NotFoundError(f"pipeline {row[ROW_TARGET]} is not there")
        if op == GRAPH:
            self._prepare(row[ROW_TARGET])
        for id in row[ROW_TOKEN].buffers:
            if id not in self._buffers:
                raise NotFoundError(f"buffer {id} is not there")
        if direct or (op == CREATE and not row[ROW_PAYLOAD][0]):
            self._transfer(row, submission.completion.results, index)
        else:
            submission.staged.append((index, row))

    def _prepare(self, instance: GraphInstance) -> None:
        for id, size in instance.arenas:
            if id not in self._buffers:
                self._allocate(id, size, 0)
        for node in instance.nodes:
            if node.op == DISPATCH and node.pipeline not in self._pipelines:
                raise NotFoundError(f"pipeline {node.pipeline} is not there")

    def _create(self, row: Row) -> None:
        size, data = row[ROW_PAYLOAD]
        if type(data) is Shared:
            self._buffers[row[ROW_TARGET]] = memoryview(data.map).cast("B")[:size]
        else:
            self._allocate(row[ROW_TARGET], size, _GARBAGE)

    def _allocate(self, id: int, size: int, content: int) -> None:
        used = self.memory()["bytes_used"]
        if used + size > self._memory_bytes:
            left = self._memory_bytes - used
            raise OutOfDeviceMemoryError(
                f"no memory for {size} bytes: {used} of {self._memory_bytes} are used, {left} left",
                {"asked": size, "used": used, "left": left, "largest_free": left},
            )
        self._buffers[id] = bytearray([content]) * size

    def _signalled(self, submission: FakeSubmission, timeout_s: float) -> bool:
        if submission.due is not None:
            left = submission.due - time.monotonic()
            if left > timeout_s:
                time.sleep(timeout_s)
                return False
            if left > 0:
                time.sleep(left)
            return True
        try:
            submission.fence.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True

    def _finished(self, submission: FakeSubmission) -> None:
        submission.done = True
        if self._contract is not None:
            self._contract.finished(submission.batch.serial)

    def _execute(self, submission: FakeSubmission, index: int, row: Row) -> None:
        """The device's part of a row."""
        if row[ROW_OP] == DISPATCH:
            outputs = self._dispatch(row)
            if outputs:
                submission.results[index] = outputs
        elif row[ROW_OP] == GRAPH:
            leaving = run_graph(row, self._memory, self._run)
            if leaving:
                submission.results[index] = leaving
        elif row[ROW_OP] == MANY:
            run_many(row, self._memory, self._run)
        else:
            self._transfer(row, submission.results, index)

    def _transfer(self, row: Row, results: dict[int, list[Any]], index: int) -> None:
        op, payload = row[ROW_OP], row[ROW_PAYLOAD]
        source, target = transfer_ranges(row)
        if op == READ:
            results[index] = [b"" if source is None else bytes(self._memory(source))]
            return
        if target is None:  # nothing of size 0 has anything to move
            return
        memory = self._memory(target)
        if op == WRITE:
            memory[:] = payload
        elif op == FILL:
            memory[:] = payload.to_bytes(4, "little") * (len(memory) // 4)
        elif op == COPY and source is not None:
            memory[:] = bytes(self._memory(source))
        elif op == CREATE:
            memory[:] = bytes(payload[0]) if payload[1] is None else payload[1]

    def _memory(self, range: tuple[int, int, int]) -> memoryview:
        id, start, end = range
        buffer = self._buffers[id]
        if not 0 <= start <= end <= len(buffer):
            self._violated(f"bytes {start} to {end} of buffer {id}, which has {len(buffer)}")
        return memoryview(buffer)[start:end]

    def _dispatch(self, row: Row) -> list[bytes]:
        payload = row[ROW_PAYLOAD] or ()
        transient = [bytearray([_GARBAGE]) * value if kind == "out" else bytearray(value) for kind, value in payload]
        bound = [
            self._memory((id, offset, offset + size)) if id else memoryview(transient[offset])[:size]
            for id, offset, size in row[ROW_TOKEN].entries
        ]
        self._run(row[ROW_TARGET], bound, row[ROW_CONSTANTS], row[ROW_GRID])
        return [bytes(memory) for (kind, _), memory in zip(payload, transient, strict=True) if kind in ("out", "inout")]

    def _run(self, pipeline: int, bound: list[memoryview], constants: bytes, grid: tuple[int, int, int]) -> None:
        kernel = self.kernels.get(self._pipelines[pipeline].entry)
        if kernel is not None:
            kernel(bound, constants, grid)

    def _free_deferred(self) -> None:
        """Free what no batch before it can use any more."""
        oldest = next(iter(self._submissions), None)
        while self._deferred and (oldest is None or self._deferred[0][0] < oldest):
            _, release = self._deferred.popleft()
            for id in release.buffers:
                self._buffers.pop(id, None)
            for id in release.pipelines:
                self._pipelines.pop(id, None)
