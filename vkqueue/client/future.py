"""The blocking client's future."""

from __future__ import annotations

from typing import TypeVar

from vkqueue.client.call import Call
from vkqueue.errors import JobCancelledError

T = TypeVar("T")


class Future(Call[T]):
    """The outcome of work under way. Any thread may wait for it.

    Nothing is read from the daemon while no thread waits for anything, so `done()` looks for answers itself.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> T:
        """The value, once it is there.

        Raises:
            TimeoutError: it was not within `timeout` seconds; the work goes on.
            VkqueueError: the work failed.
        """
        if not self.finished and not self.client.link.wait(self, timeout):
            raise TimeoutError(f"no answer within {timeout} s; the work goes on")
        return self.outcome()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done; False if `timeout` seconds pass first."""
        return bool(self.client.link.wait(self, timeout))

    def done(self) -> bool:
        return self.finished or bool(self.client.link.wait(self, 0))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error it failed with, None if it succeeded.

        Raises:
            TimeoutError: it is not done within `timeout` seconds.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"no answer within {timeout} s; the work goes on")
        return self.error

    def cancel(self) -> bool:
        """Take the work back, if it has not been submitted to the device; whether that came in time."""
        if self.finished:
            return False
        asked = self.client.link.start(self.client.core.cancel, self)
        taken_back = asked is not None and asked.result()
        return taken_back or isinstance(self.error, JobCancelledError)
