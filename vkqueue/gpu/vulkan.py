"""The Vulkan backend: submits batches, waits for their fences, recycles what they used, frees what was released.

Everything is the worker thread's, but for what stands at each method of `backend.Backend`. The thread that waits
touches only the submission that it waits for, between `submit` and `retire`.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from vkqueue.errors import DeviceLostError, InternalError, NotFoundError, VkqueueError
from vkqueue.gpu.backend import Submission
from vkqueue.gpu.buffers import Buffers, ClientBuffer
from vkqueue.gpu.commands import Commands
from vkqueue.gpu.descriptors import Descriptors
from vkqueue.gpu.device import Device, DeviceOptions, list_devices, open_device, open_instance
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.graphs import Graphs, Recording
from vkqueue.gpu.layout import PipelineLayout
from vkqueue.gpu.payload import UNLIMITED, Payloads, Tuning
from vkqueue.gpu.pipeline import PipelineTable
from vkqueue.gpu.recorder import Recorder
from vkqueue.gpu.transfers import Transfers
from vkqueue.model import CREATE, GRAPH, MANY, Batch, Completion, PipelineSpec, Release, Row

if TYPE_CHECKING:
    from vkqueue.gpu.many import ManyLauncher

log = logging.getLogger("vkqueue.gpu")

# How long `close` waits for what is in flight. Exit has to take less than a second.
CLOSE_TIMEOUT_S = 0.8


class VulkanSubmission:
    """A batch in flight: see `backend.Submission`. `order` counts the backend's submissions."""

    __slots__ = ("batch", "completion", "frame", "order", "pending")

    def __init__(self, batch: Batch, completion: Completion, order: int) -> None:
        self.batch = batch
        self.completion = completion
        self.order = order
        self.frame: Frame | None = None
        self.pending = False


class VulkanBackend:
    """A device that runs batches; see `backend.Backend`. Owns the device and closes it.

    Made by the worker thread. With `own_instance` the instance is closed with it.
    """

    def __init__(self, device: Device, tuning: Tuning | None = None, *, own_instance: bool = False) -> None:
        tuning = tuning or Tuning()
        self.device = device
        self._own_instance = own_instance
        self.buffers = Buffers(device)
        self.descriptors = Descriptors(device, self.buffers)
        self.pipelines = PipelineTable(device, device.options.cache_dir, self._layout_gone)
        commands = self._commands = Commands(device)
        self.payloads = Payloads(device, self.buffers, commands, tuning)
        self.graphs = Graphs(device, self.pipelines, self.buffers, self.descriptors, self.payloads, commands)
        transfers = Transfers(self.buffers, self.payloads, commands)
        transfers.by_op[GRAPH] = self.graphs.launch
        transfers.by_op[MANY] = self._launch_many
        client = self.buffers.types.client
        write_max = read_max = 0
        if client.host_visible:
            write_max = UNLIMITED if client.cached else tuning.direct_write_max
            read_max = UNLIMITED if client.cached else 0
        self.info = dataclasses.replace(device.info, direct_write_max=write_max, direct_read_max=read_max)
        self._recorder = Recorder(
            device,
            self.pipelines,
            self.descriptors,
            self.payloads,
            transfers,
            commands,
            self.buffers,
        )
        self.graphs.gone = self._recorder.gone
        self._many: ManyLauncher | None = None
        self._frames: list[Frame] = []  # idle ones
        self._in_flight: dict[int, VulkanSubmission] = {}  # by order, rising
        self._order = 0
        self._deferred: deque[tuple[int, list[ClientBuffer], tuple[int, ...], list[Recording]]] = deque()
        self._lost: DeviceLostError | None = None
        self._closed = False

    # --- batches -------------------------------------------------------------------------------------------------

    def submit(self, batch: Batch) -> VulkanSubmission:
        """See `backend.Backend.submit`. A batch that the driver has no memory for fails row by row, but for those
        rows that the host has done."""
        if self._lost is not None:
            raise DeviceLostError(self._lost.message, self._lost.data)
        self._order += 1
        completion = Completion(batch)
        submission = VulkanSubmission(batch, completion, self._order)
        frame = self._frame()
        try:
            recorded = self._recorder.record(batch, frame, completion)
            if self.graphs.dropped:
                self._deferred.append((self._order, [], (), self.graphs.take_dropped()))
            if recorded:
                self.buffers.flush()
                completion.submitted_ns = time.monotonic_ns()
                frame.submit()
                self._recorder.submitted(True)
                completion.submits = 1
                submission.frame = frame
                submission.pending = True
                self._in_flight[submission.order] = submission
                return submission
            self.buffers.flush()
        except DeviceLostError as error:
            self._lost = error
            frame.close()
            raise
        except VkqueueError as error:
            self._recorder.submitted(False)
            self._fail(batch, frame, completion, error)
        except BaseException as error:
            self._recorder.submitted(False)
            # Its rows fail, whatever the host did of them.
            frame.by_host.clear()
            self._fail(batch, frame, completion, InternalError(str(error)))
            frame.close()
            raise
        completion.submitted_ns = time.monotonic_ns()
        self._read_results(frame, completion)
        frame.reset(ran=False)
        self._frames.append(frame)
        completion.finished_ns = time.monotonic_ns()
        return submission

    def wait(self, submission: Submission, timeout_s: float) -> bool:
        """See `backend.Backend.wait`."""
        frame = _own(submission).frame
        if frame is None:
            return True
        try:
            return frame.wait(timeout_s)
        except DeviceLostError as error:
            self._lost = error
            raise

    def collect(self, submission: Submission) -> Completion:
        """See `backend.Backend.collect`."""
        completion, frame = submission.completion, _own(submission).frame
        if frame is not None:
            completion.finished_ns = time.monotonic_ns()
            self._read_results(frame, completion)
            for taking in frame.takings:
                taking.take()
            completion.device_us.update(frame.times())
            if frame.timed:
                completion.spent_ns = frame.spent()
        return completion

    def retire(self, submission: Submission) -> None:
        """See `backend.Backend.retire`."""
        own = _own(submission)
        frame = own.frame
        if frame is not None:
            own.frame = None
            own.pending = False
            del self._in_flight[own.order]
            frame.reset()
            self._frames.append(frame)
        self._free_deferred()

    def _frame(self) -> Frame:
        """One for a batch, whose barriers are owed if there is no memory for it."""
        if self._frames:
            return self._frames.pop()
        try:
            return Frame(self.device)
        except BaseException:
            self._recorder.submitted(False)
            raise

    def _read_results(self, frame: Frame, completion: Completion) -> None:
        for index, slices in frame.results:
            if index not in completion.errors:
                completion.results[index] = [piece.read() for piece in slices]

    def _fail(self, batch: Batch, frame: Frame, completion: Completion, error: VkqueueError) -> None:
        """Nothing was submitted: every row fails but those that the host did."""
        for index, row in enumerate(batch.rows):
            if index in frame.by_host or index in completion.errors:
                continue
            completion.errors[index] = type(error)(error.message, error.data)
            completion.results.pop(index, None)
            if row[2] == CREATE:
                self._uncreate(row[4])
        for id in frame.new_arenas:
            self._uncreate(id)
        frame.results.clear()

    def _uncreate(self, id: int) -> None:
        """A buffer that was made for a batch which was not submitted: its bytes are still another's."""
        buffer = self.buffers.take(id)
        if buffer is not None:
            self.buffers.undone += 1
            self.descriptors.forget((id,))
            self.graphs.destroy(self.graphs.forget(buffers=(id,)))
            self.buffers.destroy_client(buffer)

    # --- releases ------------------------------------------------------------------------------------------------

    def release(self, release: Release) -> None:
        """See `backend.Backend.release`."""
        self.descriptors.forget(release.buffers)
        buffers = [buffer for id in release.buffers if (buffer := self.buffers.take(id)) is not None]
        self._recorder.gone.update(release.pipelines)
        recordings = self.graphs.forget(release.buffers, release.pipelines, release.instances)
        self._deferred.append((self._order, buffers, release.pipelines, recordings))
        self._free_deferred()

    @property
    def has_deferred(self) -> bool:
        """See `backend.Backend.has_deferred`."""
        return bool(self._deferred)

    def _layout_gone(self, layout: PipelineLayout) -> None:
        self.descriptors.layout_gone(layout)
        self.graphs.layout_gone(layout)
        if self._many is not None:
            self._many.layout_gone(layout)

    def _launch_many(self, frame: Frame, completion: Completion, index: int, row: Row, direct: bool) -> bool:
        if self._many is None:
            from vkqueue.gpu.many import ManyLauncher  # not before it is needed: it imports NumPy

            self._many = ManyLauncher(
                self.device, self.pipelines, self.buffers, self.payloads, self._commands, self._recorder.gone
            )
        return self._many.launch(frame, completion, index, row, direct)

    def _free_deferred(self) -> None:
        oldest = next(iter(self._in_flight), self._order + 1)
        while self._deferred and self._deferred[0][0] < oldest:
            _, buffers, pipelines, recordings = self._deferred.popleft()
            self.graphs.destroy(recordings)
            for buffer in buffers:
                self.buffers.destroy_client(buffer)
            for id in pipelines:
                self.pipelines.destroy(id)
                self._recorder.gone.discard(id)

    # --- the rest ------------------------------------------------------------------------------------------------

    def compile(self, spec: PipelineSpec) -> None:
        """See `backend.Backend.compile`."""
        self.pipelines.build(spec)

    def save_cache(self) -> None:
        """See `backend.Backend.save_cache`."""
        self.pipelines.save_cache()

    def memory(self) -> dict[str, int]:
        """See `backend.Backend.memory`. `bytes_used` and `bytes_reserved` have staging in them."""
        memory = self.buffers.memory
        return {
            "bytes_used": memory.used,
            "bytes_reserved": memory.reserved,
            "allocations": memory.allocations,
            "buffers": self.buffers.count,
            "staging_bytes": self.payloads.reserved,
            "shared_bytes": self.buffers.shared_bytes,
        }

    def close(self) -> None:
        """See `backend.Backend.close`. If the device does not finish in time nothing of it is freed: destroying
        what it may still use can take the process down, and its end frees everything anyhow. A second call does
        nothing."""
        if self._closed:
            return
        self._closed = True
        if not self._drain():
            log.error("the device did not finish within %s s; its objects are left to the end of the process",
                      CLOSE_TIMEOUT_S)  # fmt: skip
            return
        for submission in list(self._in_flight.values()):
            if submission.frame is not None:
                submission.frame.close()
        self._in_flight.clear()
        self._free_deferred()
        for frame in self._frames:
            frame.close()
        self._frames.clear()
        self.graphs.close()
        if self._many is not None:
            self._many.close()
        self.pipelines.close()
        self.descriptors.close()
        self.payloads.close()
        self.buffers.close()
        self.device.close()
        if self._own_instance:
            self.device.instance.close()

    def _drain(self) -> bool:
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for submission in self._in_flight.values():
            frame = submission.frame
            try:
                if frame is not None and not frame.wait(deadline - time.monotonic()):
                    return False
            except DeviceLostError:
                # Then nothing is pending any more, and everything may be destroyed.
                return True
        return True


def _own(submission: Submission) -> VulkanSubmission:
    assert isinstance(submission, VulkanSubmission)
    return submission


def open_backend(device_index: int, options: DeviceOptions) -> VulkanBackend:
    """Open a device for the calling thread, with an instance of its own.

    Raises:
        UnsupportedError: no Vulkan, or the device cannot do what the options demand.
        NotFoundError: no device of this index.
        VkqueueError: the driver failed.
    """
    instance = open_instance(validation=options.validation)
    device: Device | None = None
    try:
        devices = list_devices(instance)
        if not 0 <= device_index < len(devices):
            names = ", ".join(f"{d.index}: {d.info.name}" for d in devices) or "none"
            raise NotFoundError(f"there is no device {device_index}; those that can be used: {names}")
        device = open_device(devices[device_index], options)
        return VulkanBackend(device, own_instance=True)
    except BaseException:
        if device is not None:
            device.close()
        instance.close()
        raise
