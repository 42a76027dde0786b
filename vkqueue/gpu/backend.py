"""The contract between the worker and whatever runs its batches (`gpu.vulkan`, `gpu.fake`).

Which thread may call what (W: the device's worker thread, F: the thread that waits for fences, C: the device's
compile thread) stands at each method. A backend has no locks but for the table that hands finished pipelines
from C to W.
"""

from __future__ import annotations

from typing import Protocol

from vkqueue.model import Batch, Completion, DeviceInfo, PipelineSpec, Release


class Submission(Protocol):
    """One batch in flight. `completion` fills up as things become known; `pending` is whether a fence is out."""

    batch: Batch
    completion: Completion
    pending: bool


class Backend(Protocol):
    """A device that runs batches."""

    info: DeviceInfo

    def submit(self, batch: Batch) -> Submission:
        """W. Do the host's part, record and submit.

        A row that cannot run (buffer that was never created, pipeline that is gone, no memory for its
        transient entries) gets an error in `completion.errors`; the rest run. Never blocks on the device.

        Raises:
            DeviceLostError: nothing of the batch may be taken as done.
            VkqueueError: the whole batch was not submitted.
        """

    def wait(self, submission: Submission, timeout_s: float) -> bool:
        """F, or W for a batch that F has not been given. Wait for the fence; False when `timeout_s` passed first.

        Raises:
            DeviceLostError: the outcome of the batch is unknown.
        """

    def collect(self, submission: Submission) -> Completion:
        """The thread that waited. After the fence: copy results out of mapped memory and read timestamps."""

    def retire(self, submission: Submission) -> None:
        """W. After `collect`: recycle what the batch used and free what was released before its end."""

    def release(self, release: Release) -> None:
        """W. Free buffers and pipelines once every batch submitted so far has been retired."""

    @property
    def has_deferred(self) -> bool:
        """Any thread. Whether releases wait for a `retire` (an idle worker is then woken to do it)."""

    def compile(self, spec: PipelineSpec) -> None:
        """C. Build a pipeline; afterwards batches may name its id.

        Raises:
            CompileError, UnsupportedError, OutOfDeviceMemoryError, DeviceLostError
        """

    def save_cache(self) -> None:
        """C. Write the pipeline cache to disk, if it has grown and the daemon keeps one. Never raises."""

    def memory(self) -> dict[str, int]:
        """Any thread. Counters: `bytes_used`, `bytes_reserved`, `allocations`, `buffers`, `staging_bytes`, and
        `shared_bytes` of memory that clients share."""

    def close(self) -> None:
        """W, once C has stopped. Wait for the device (bounded), free everything."""
