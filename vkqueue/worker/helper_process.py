"""One helper process as its thread in the daemon sees it: start, exchange within a time limit, kill.

Every object belongs to the thread that made it. (The kernel ties the process to that thread too: it is killed
when the thread ends, PR_SET_PDEATHSIG.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from vkqueue.errors import VkqueueError, from_wire
from vkqueue.worker.helper_main import HEADER, READY, Settings

# Arbitrary; a cold disk and a busy machine included. Measured: 0.1 s on a warm one.
_START_TIMEOUT_S = 30.0
# For one that closed its pipes to come to its own end, whose status says more than that of a kill. Arbitrary.
_LAST_WORDS_S = 1.0
_PIPE_BYTES = 1 << 20  # what an unprivileged process may ask for; the default of 64 KiB costs a wake-up each
_CHUNK = 1 << 20

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from vkqueue.worker.helper_main import main; main()"
)


class Died(Exception):
    """The process ended, or said something senseless; the text says how."""


class TimedOut(Exception):
    """No answer within the time limit."""


class Stopped(Exception):
    """The pool stops."""


class HelperProcess:
    """A started process; `wait_ready` before the first exchange. After any exception only `kill` is left to do.

    Args:
        settings: its limits.
        stop_fd: readable once the pool stops.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, settings: Settings, stop_fd: int) -> None:
        self._settings = settings
        self._stop_fd = stop_fd
        self._ready = False
        self._ending = False
        path = [os.path.abspath(entry) for entry in sys.path]  # the working directory will be another
        # Thread pools of numerical libraries, should one be imported, would eat the address space.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps(path), json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):  # over the user's sum for pipes: slower, not wrong
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def pid(self) -> int:
        """Of the process, which leads a group of its own."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it waits for a request: alive, and silent but for its first word."""
        if not self._ready:
            return True
        return not self._poll(self._out, select.POLLIN, 0)

    def wait_ready(self) -> None:
        """Raises Died, TimedOut, Stopped."""
        if not self._ready:
            if self._receive(time.monotonic() + _START_TIMEOUT_S) != READY:
                raise Died("it said something else than that it is ready")
            self._ready = True

    def exchange(self, kind: str, payload: bytes, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            Died, TimedOut, Stopped
        """
        deadline = time.monotonic() + timeout_s
        header = json.dumps({"kind": kind, "args": args}).encode()
        self._send(HEADER.pack(len(header), len(payload)) + header, deadline)
        self._send(payload, deadline)
        return self._receive(deadline)

    def kill(self) -> str:
        """End it and all that it started, now; how it ended."""
        if self._ending:
            pidfd = os.pidfd_open(self._process.pid)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(_LAST_WORDS_S * 1000)
            os.close(pidfd)
        # The group while its leader is not yet reaped: its number cannot be another's then.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process as process:  # closes the pipes, and reaps
            status = process.wait()
        return describe_exit(status)

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._in, view[:_CHUNK]) :]
            except BlockingIOError:  # less room than for one page
                continue
            except OSError as error:
                self._ending = True
                raise Died("it does not read its request") from error

    def _receive(self, deadline: float) -> dict[str, Any]:
        size, _ = HEADER.unpack(self._read(HEADER.size, deadline))
        if size > self._settings.max_answer_bytes:
            raise Died(f"it announced an answer of {size} bytes")
        try:
            answer = json.loads(self._read(size, deadline))
        except (ValueError, RecursionError) as error:
            raise Died("its answer is not JSON") from error
        if not isinstance(answer, dict):
            raise Died("its answer is not a map")
        return answer

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._wait(self._out, select.POLLIN, deadline)
            piece = os.read(self._out, min(size - len(data), _CHUNK))
            if not piece:
                self._ending = True
                raise Died("it ended")
            data += piece
        return data

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._poll(fd, event, left):
            raise TimedOut

    def _poll(self, fd: int, event: int, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(fd, event)
        poller.register(self._stop_fd, select.POLLIN)
        ready = poller.poll(timeout_s * 1000)
        if any(found == self._stop_fd for found, _ in ready):
            raise Stopped
        return bool(ready)


def describe_exit(status: int) -> str:
    """`Popen.returncode` in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def failure_of(answer: dict[str, Any]) -> VkqueueError | None:
    """The error that an answer carries, None when it carries a result."""
    error = answer.get("error")
    return from_wire(error) if isinstance(error, dict) else None
