"""The helper processes at their worst: one bad request fails alone (rule 44)."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cases import of_kind

from vkqueue.errors import CompileError, InternalError, InvalidError, ShuttingDownError, TooLargeError, VkqueueError
from vkqueue.worker.helper import HelperPool
from vkqueue.worker.helper_process import describe_exit

from .conftest import PATIENCE_S

MODULE = "support.misbehaving"
COMPILERS = ("crash_compiler", "hang_compiler")
NAMES = (
    "babble", "complain", "crash", "deep", "eat", "echo", "fail", "hang", "leave", "limits", "prints", "refuse",
    "report_and_hang", "spin", "talk",
)  # fmt: skip
KINDS = {name: (MODULE, name, False) for name in NAMES} | {
    name: (MODULE, name.removesuffix("_compiler"), True) for name in COMPILERS
}


class Pool:
    """A pool whose loop is the test: answers are handled while it waits for one."""

    def __init__(self, **options: Any) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        options = {"preimport": (), "size": 1, "timeout_s": PATIENCE_S, "memory_bytes": 1 << 29, **options}
        self.pool = HelperPool(self._calls.put, extra_kinds=KINDS, **options)

    def start(self, kind: str, payload: bytes = b"", **args: Any) -> list[Any]:
        """The list that the answer will come into."""
        answers: list[Any] = []
        self.pool.submit(kind, payload, args, answers.append)
        return answers

    def wait(self, answers: list[Any]) -> Any:
        while not answers:
            self._calls.get(timeout=2 * PATIENCE_S)()
        [answer] = answers
        return answer

    def call(self, kind: str, payload: bytes = b"", **args: Any) -> Any:
        return self.wait(self.start(kind, payload, **args))

    def fails(self, kind: str, payload: bytes = b"") -> VkqueueError:
        """The error of a request after which the next one works, in another process or the same."""
        error = self.call(kind, payload)
        assert isinstance(error, VkqueueError), error
        assert self.call("echo", b"abc")["bytes"] == 3
        return error

    def end(self) -> None:
        self.pool.request_stop()
        assert self.pool.join(PATIENCE_S)
        self.pool.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    """One process for the tests that do not end it (or in which the next one works as well)."""
    pool = Pool(max_answer_bytes=100_000)
    yield pool
    pool.end()


@pytest.fixture
def pool() -> Iterator[Any]:
    made: list[Pool] = []

    def make(**options: Any) -> Pool:
        made.append(Pool(**options))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_requests_carry_bytes_and_arguments_and_share_a_process(shared: Pool):
    first = shared.call("echo", b"abc", values={"1": 2.5}, name="é")
    assert (first["bytes"], first["sum"], first["args"]) == (3, 294, {"values": {"1": 2.5}, "name": "é"})
    assert shared.call("echo")["pid"] == first["pid"]
    assert shared.pool.pids == [first["pid"]]


def test_large_payloads_pass(shared: Pool):
    assert shared.call("echo", bytes(20_000_000))["bytes"] == 20_000_000


def test_errors_travel_with_code_message_and_data(shared: Pool):
    error = shared.fails("refuse")
    assert type(error) is CompileError
    assert error.to_wire() == {"code": "compile", "message": "line 3: no such type", "data": {"line": 3}}


def test_an_unforeseen_failure_is_internal(shared: Pool, capfd: pytest.CaptureFixture[str]):
    error = shared.fails("fail")
    assert type(error) is InternalError
    assert error.message == "fail failed: LookupError: unforeseen"


@pytest.mark.parametrize(
    ("kind", "error_type", "text"),
    [
        ("crash", InternalError, "SIGSEGV"),
        ("crash_compiler", CompileError, "SIGSEGV"),
        ("leave", InternalError, "exit status 3"),
        ("babble", InternalError, "announced an answer of"),
    ],
)
def test_a_crash_fails_its_request_and_the_next_works(
    shared: Pool, kind: str, error_type: type[VkqueueError], text: str
):
    before = shared.call("echo")["pid"]
    error = shared.fails(kind)
    assert type(error) is error_type
    assert text in error.message and "other requests are not affected" in error.message
    assert before not in shared.pool.pids


def test_an_unknown_kind_is_internal(shared: Pool):
    assert "knows no request" in shared.fails("no_such_kind").message


def test_a_nest_too_deep_for_the_answer_is_invalid(shared: Pool):
    assert type(shared.fails("deep")) is InvalidError


def test_answers_are_bounded(shared: Pool):
    assert len(shared.call("talk", b"99000")) == 99_000
    error = shared.fails("talk", b"100000")
    assert type(error) is TooLargeError
    assert error.data == {"bytes": 100_014, "max_bytes": 100_000}
    text = shared.fails("complain", b"1000000").message
    assert text.startswith("ééé") and text.endswith("(cut)") and len(text) < 10_000


def test_what_is_printed_does_not_get_between_answers(shared: Pool):
    assert shared.call("prints") == "quiet"
    assert shared.call("echo", b"abc")["bytes"] == 3


def test_arguments_that_cannot_travel_fail_alone(shared: Pool):
    assert type(shared.call("echo", b"", value=b"bytes")) is InternalError
    assert shared.call("echo", b"abc")["bytes"] == 3


def test_processes_are_confined(shared: Pool):
    limits = shared.call("limits")
    assert limits["as"] == 1 << 29
    assert limits["core"] == 0
    assert 0 < limits["cpu"] < 60
    assert limits["nice"] >= 10
    assert limits["session"]
    # Input, two of output, the answers' pipe, and the one that lists them.
    assert len(limits["fds"]) == 5
    assert not any(name.startswith("numpy") for name in limits["modules"]), "starting takes longer with it"


@pytest.mark.parametrize(("kind", "error_type"), [("hang", InternalError), ("hang_compiler", CompileError)])
def test_a_hanging_request_is_ended(pool: Any, kind: str, error_type: type[VkqueueError]):
    made = pool(timeout_s=0.2)
    error = made.call(kind)
    assert type(error) is error_type
    assert "took longer than 0.2 s" in error.message


def test_a_busy_request_is_ended_and_the_next_works(pool: Any):
    made = pool(timeout_s=1)
    assert "took longer than" in made.fails("spin").message


def test_a_request_that_eats_memory_says_so(pool: Any):
    made = pool(memory_bytes=1 << 27)
    assert made.fails("eat").message == "eat needs more than the 128 MiB that it may use"


def test_what_a_request_started_ends_with_it(pool: Any, tmp_path: Path):
    made = pool(timeout_s=PATIENCE_S)
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    answers = made.start("report_and_hang", str(fifo).encode())
    pids = [int(pid) for pid in fifo.read_text().split()]
    descriptors = [os.pidfd_open(pid) for pid in pids]
    made.end()
    assert isinstance(made.wait(answers), ShuttingDownError)
    for descriptor in descriptors:
        wait_gone(descriptor)


def wait_gone(pidfd: int) -> None:
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "the process is still there"
    os.close(pidfd)


def test_processes_die_with_the_daemon(tmp_path: Path):
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    script = (
        f"import sys, threading; sys.path[:] = {sys.path!r}\n"
        "from vkqueue.worker.helper import HelperPool\n"
        f"kinds = {{'it': ({MODULE!r}, 'report_and_hang', False)}}\n"
        "pool = HelperPool(lambda call: None, preimport=(), extra_kinds=kinds)\n"
        f"pool.submit('it', {str(fifo).encode()!r}, {{}}, print)\n"
        "threading.Event().wait()\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", script])
    pid, child = (int(pid) for pid in fifo.read_text().split())
    descriptor = os.pidfd_open(pid)
    daemon.kill()
    daemon.wait()
    wait_gone(descriptor)
    os.kill(child, 9)


def test_a_process_that_dies_while_idle_is_replaced(pool: Any):
    made = pool()
    before = made.call("echo")["pid"]
    descriptor = os.pidfd_open(before)
    os.kill(before, 9)
    wait_gone(descriptor)
    assert made.call("echo")["pid"] != before


def test_with_two_processes_a_slow_request_does_not_hold_up_the_others(pool: Any):
    made = pool(size=2)
    slow = made.start("hang")
    assert made.call("echo", b"abc")["bytes"] == 3
    assert made.pool.pending == 1
    assert slow == []


def test_one_idle_process_is_enough(pool: Any):
    made = pool(size=2)
    assert made.call("echo")["pid"] == made.call("echo")["pid"]
    assert len(made.pool.pids) == 1


def test_more_requests_than_processes_wait_their_turn(pool: Any):
    made = pool()
    answers = [made.start("echo", bytes(i)) for i in range(20)]
    assert [made.wait(answer)["bytes"] for answer in answers] == list(range(20))


def test_a_callback_that_fails_does_not_stop_the_others(pool: Any, caplog: pytest.LogCaptureFixture):
    made = pool()
    made.pool.submit("echo", b"", {}, lambda result: 1 / 0)
    assert made.call("echo", b"abc")["bytes"] == 3
    assert "ZeroDivisionError" in caplog.text


def test_prestart_starts_one(pool: Any):
    made = pool(size=2)
    made.pool.prestart()
    made.pool.prestart()
    first = made.call("echo")
    assert made.pool.pids == [first["pid"]]


def test_a_process_that_does_not_start_fails_the_request(pool: Any, capfd: pytest.CaptureFixture[str]):
    made = Pool(preimport=("broken",))
    made.pool._settings.extra_kinds["broken"] = ("support.no_such_module", "it", False)
    try:
        error = made.call("echo")
        assert type(error) is InternalError
        assert "does not start (exit status 1)" in error.message
        assert type(made.call("echo")) is InternalError
    finally:
        made.end()


def test_stop_answers_what_runs_and_what_waits(pool: Any):
    made = pool()
    running, waiting = made.start("hang"), made.start("echo")
    started = time.monotonic()
    made.end()
    assert time.monotonic() - started < 2  # most of it the start of a process
    assert isinstance(made.wait(waiting), ShuttingDownError)
    assert isinstance(made.wait(running), ShuttingDownError)
    assert isinstance(made.call("echo"), ShuttingDownError)
    assert made.pool.pids == []


async def test_a_loop_that_never_blocks():
    answers: asyncio.Queue[Any] = asyncio.Queue()
    pool = HelperPool(asyncio.get_running_loop().call_soon_threadsafe, preimport=(), extra_kinds=KINDS)
    pool.prestart()
    for i in range(50):
        pool.submit("echo", bytes(i), {}, answers.put_nowait)
    assert sorted([(await answers.get())["bytes"] for _ in range(50)]) == list(range(50))
    pool.submit("crash", b"", {}, answers.put_nowait)
    assert isinstance(await answers.get(), InternalError)
    pool.request_stop()
    assert await asyncio.to_thread(pool.join, PATIENCE_S)
    pool.close()


def test_exits_are_described():
    assert [describe_exit(status) for status in (0, 3, -11, -64)] == [
        "exit status 0", "exit status 3", "signal SIGSEGV", "signal SIGRTMAX",
    ]  # fmt: skip
    assert describe_exit(-63) == "signal 63"


# The real kinds


def test_modules_are_analysed_and_listed(shared: Pool):
    spirv = of_kind("run")[0].spirv
    analysis = shared.call("analyse", spirv)
    assert analysis["kernels"]
    assert isinstance(shared.call("disassemble", spirv), str)
    assert type(shared.call("analyse", b"rubbish")) is InvalidError
