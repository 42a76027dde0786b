"""The two ways of a device's worker thread to have fences waited for while it also takes batches.

`Companion`: a second thread does nothing but wait. A fence costs no hop on the way back (the companion delivers
to the loop), a batch costs one on the way there, hidden behind the device's own time.
`SameThread`: the worker waits itself, in short slices, looking for a batch between them.
"""

from __future__ import annotations

import queue
import threading
import time
from enum import Enum
from typing import Protocol, TypeAlias

from vkqueue.gpu.backend import Submission
from vkqueue.model import Batch, Release
from vkqueue.worker.bridge import Inbox, Latch
from vkqueue.worker.fences import Deliver, FenceLine, abandoned, early_answer


class Signal(Enum):
    """What the worker finds in its inbox beside the daemon's items."""

    LOOK = "there may be submissions to retire"
    WAITED = "nothing is waited for any more, and never will be"


Item: TypeAlias = Batch | Release | Signal | None
"""None: stop."""


class Waiting(Protocol):
    """The waiting side, as the worker thread sees it."""

    def add(self, submission: Submission, delivered: bool) -> None:
        """See FenceLine.add."""

    def next_item(self) -> Item:
        """Wait for something to do. In time after `finish`: WAITED."""

    def finish(self) -> None:
        """Nothing will be added any more."""


class SameThread:
    """Waits on the worker thread."""

    def __init__(self, inbox: Inbox[Item], line: FenceLine, stop_at: Latch[float], spin_s: float) -> None:
        self._inbox = inbox
        self._spin_s = spin_s
        self._line = line
        self._stop_at = stop_at
        self._finishing = False

    def add(self, submission: Submission, delivered: bool) -> None:
        self._line.add(submission, delivered)

    def next_item(self) -> Item:
        if not self._line:
            return Signal.WAITED if self._finishing else self._inbox.get(spin_s=self._spin_s)
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            pass
        if _is_past(self._stop_at):
            self._line.abandon()
            return Signal.WAITED
        self._line.step()
        return Signal.LOOK

    def finish(self) -> None:
        self._finishing = True


class Companion:
    """Waits on a thread of its own, which alone touches the line."""

    def __init__(
        self,
        name: str,
        inbox: Inbox[Item],
        line: FenceLine,
        stop_at: Latch[float],
        deliver: Deliver,
        spin_s: float,
    ) -> None:
        self._inbox = inbox
        self._spin_s = spin_s
        self._line = line
        self._stop_at = stop_at
        self._deliver = deliver
        self._submissions: Inbox[tuple[Submission, bool] | None] = Inbox()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, submission: Submission, delivered: bool) -> None:
        if not self._submissions.post((submission, delivered)) and not delivered:
            # The companion has just given up: the time to stop is over.
            self._deliver(early_answer(submission.completion, abandoned()))

    def next_item(self) -> Item:
        return self._inbox.get(spin_s=self._spin_s)

    def finish(self) -> None:
        self._submissions.post(None)

    def _run(self) -> None:
        finishing = False
        while True:
            if not self._line:
                if finishing:
                    break
                finishing = self._take(self._submissions.get())
            finishing = finishing or self._take_waiting()
            if self._line:
                if _is_past(self._stop_at):
                    break
                self._line.step()
        for entry in self._submissions.close():
            self._take(entry)
        self._line.abandon()
        self._inbox.post(Signal.WAITED)

    def _take_waiting(self) -> bool:
        try:
            while not self._take(self._submissions.get_nowait()):
                pass
        except queue.Empty:
            return False
        return True

    def _take(self, entry: tuple[Submission, bool] | None) -> bool:
        """Put an entry into the line; True when it was the last."""
        if entry is None:
            return True
        self._line.add(*entry)
        return False


def _is_past(stop_at: Latch[float]) -> bool:
    value = stop_at.value
    return value is not None and time.monotonic() >= value
