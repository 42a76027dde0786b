"""When the compile thread saves its cache, and how it ends; building itself is tested through the device's thread."""

from __future__ import annotations

import threading
from typing import Any

from support.rows import layout

from vkqueue.errors import DeviceLostError, ShuttingDownError
from vkqueue.gpu.fake import FakeBackend
from vkqueue.model import PipelineBuilt, PipelineSpec
from vkqueue.worker.bridge import Latch
from vkqueue.worker.compile import CompileThread

from .conftest import PATIENCE_S, Gate, Mailbox


def spec(id: int) -> PipelineSpec:
    return PipelineSpec(id, layout(), b"", "main")


def start(fake: FakeBackend, events: Mailbox, **options: Any) -> CompileThread:
    lost: Latch[DeviceLostError] = Latch()
    thread = CompileThread("compile", events.put, lost, lambda error: lost.set(error) and None, **options)
    thread.start(fake)
    return thread


def end(thread: CompileThread) -> None:
    thread.request_stop()
    assert thread.join(PATIENCE_S)


def test_a_burst_is_saved_once_when_it_is_over():
    fake, events = FakeBackend(), Mailbox()
    saved = threading.Event()
    fake.on_call = lambda call, _: saved.set() if call == "save_cache" else None
    thread = start(fake, events, quiet_s=0.05)
    for id in (1, 2, 3):
        thread.post(spec(id))
    assert saved.wait(PATIENCE_S)
    assert list(fake.log) == [("compile", 1), ("compile", 2), ("compile", 3), ("save_cache", 0)]
    end(thread)
    assert fake.log.count(("save_cache", 0)) == 1


def test_an_endless_burst_is_saved_in_between():
    fake, events = FakeBackend(), Mailbox()
    thread = start(fake, events, quiet_s=PATIENCE_S, burst_s=0.0)
    for id in (1, 2):
        thread.post(spec(id))
        assert events.next(PipelineBuilt).error is None
    end(thread)
    assert list(fake.log)[:3] == [("compile", 1), ("save_cache", 0), ("compile", 2)]


def test_the_end_saves_what_is_unsaved():
    fake, events = FakeBackend(), Mailbox()
    thread = start(fake, events, quiet_s=PATIENCE_S)
    thread.post(spec(1))
    events.next(PipelineBuilt)
    end(thread)
    assert list(fake.log) == [("compile", 1), ("save_cache", 0)]


def test_failed_builds_are_not_saved():
    fake, events = FakeBackend(), Mailbox()
    thread = start(fake, events, quiet_s=0.0)
    fake.fail("compile", DeviceLostError("scripted"))
    thread.post(spec(1))
    events.next(PipelineBuilt)
    end(thread)
    assert list(fake.log) == [("compile", 1)]


def test_what_is_queued_at_the_end_is_answered():
    fake, events, gate = FakeBackend(), Mailbox(), Gate()
    fake.on_call = lambda call, _: gate.stop_here() if call == "compile" else None
    thread = start(fake, events)
    for id in (1, 2, 3):
        thread.post(spec(id))
    gate.wait_reached()
    thread.request_stop()
    assert not thread.join(0)
    gate.go()
    assert thread.join(PATIENCE_S)
    answers = {answer.id: answer.error for answer in (events.next(PipelineBuilt) for _ in range(3))}
    assert answers[1] is None
    assert isinstance(answers[2], ShuttingDownError) and isinstance(answers[3], ShuttingDownError)
    assert not thread.post(spec(4))
