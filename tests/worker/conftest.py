"""A device thread over the fake, and a mailbox in which its events are awaited."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from vkqueue.gpu.fake import FakeBackend
from vkqueue.worker.events import Opened, Stopped
from vkqueue.worker.thread import DeviceThread

E = TypeVar("E")

PATIENCE_S = 10.0
"""How long a test waits for what must come; only a failing test waits so long."""


class Mailbox:
    """Takes what a thread delivers; the test fetches it in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, event: Any) -> bool:
        self._queue.put(event)
        return True

    def next(self, kind: type[E]) -> E:
        event = self._queue.get(timeout=PATIENCE_S)
        assert isinstance(event, kind), event
        return event

    def rest(self) -> list[Any]:
        """What has come and was not fetched."""
        events = []
        while not self._queue.empty():
            events.append(self._queue.get_nowait())
        return events


class Gate:
    """A place in a call of the fake where its thread stops until the test says go on."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def stop_here(self) -> None:
        self._reached.release()
        assert self._go.acquire(timeout=PATIENCE_S)

    def wait_reached(self) -> None:
        assert self._reached.acquire(timeout=PATIENCE_S)

    def go(self) -> None:
        self._go.release()


class Rig:
    """A DeviceThread, its fake and its mailbox."""

    def __init__(self, fake: FakeBackend, waiter: Any, **options: Any) -> None:
        self.fake = fake
        self.events = Mailbox()
        options = {"batch_timeout_s": 60.0, **options}
        self.thread = DeviceThread("device", fake.open, self.events.put, waiter=waiter, **options)

    def calls(self, *names: str) -> list[tuple[str, int]]:
        """The fake's log, of these calls."""
        return [entry for entry in self.fake.log if entry[0] in names]

    def stop(self) -> Stopped:
        """Stop without patience for the device; nothing else may be left to say."""
        self.end()
        return self.events.next(Stopped)

    def end(self) -> None:
        self.thread.request_stop(0.25)
        assert self.thread.join(PATIENCE_S)


@pytest.fixture(params=["companion", "same"])
def waiter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(waiter: str) -> Iterator[Callable[..., Rig]]:
    """Makes rigs whose device is open; at the end they are stopped, and must not have broken the contract."""
    rigs: list[Rig] = []

    def make(fake: FakeBackend | None = None, **options: Any) -> Rig:
        made = Rig(fake or FakeBackend(), waiter, **options)
        made.thread.start()
        rigs.append(made)
        made.events.next(Opened)
        return made

    yield make
    for made in rigs:
        made.fake.on_call = None
        made.end()
        assert made.fake.violations == []


@pytest.fixture
def gate() -> Gate:
    return Gate()
