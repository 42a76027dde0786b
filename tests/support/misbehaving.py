"""Functions for the helper processes' tests: what parsers and compilers do at their worst."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from vkqueue.errors import CompileError


def echo(payload: bytes, **args: object) -> dict[str, object]:
    return {"bytes": len(payload), "sum": sum(payload[:1000]), "args": args, "pid": os.getpid()}


def refuse(payload: bytes, **args: object) -> None:
    raise CompileError("line 3: no such type", {"line": 3})


def fail(payload: bytes) -> None:
    raise LookupError("unforeseen")


def crash(payload: bytes) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(payload: bytes) -> None:
    os._exit(3)


def hang(payload: bytes) -> None:
    """Does not even end when asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def spin(payload: bytes) -> None:
    while True:
        pass


def report_and_hang(payload: bytes) -> None:
    """Write own process id and a child's into the named file (a pipe), then hang."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open(payload.decode(), "w") as pipe:
        pipe.write(f"{os.getpid()} {child.pid}\n")
    time.sleep(1000)


def eat(payload: bytes) -> int:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def talk(payload: bytes) -> str:
    return "x" * int(payload)


def complain(payload: bytes) -> None:
    raise CompileError("é" * int(payload))


def prints(payload: bytes) -> str:
    sys.stdout.write("a stray line on standard output\n")
    sys.stdout.flush()
    os.write(1, b"and another\n")
    return "quiet"


def babble(payload: bytes) -> None:
    """Write rubbish where answers go: every descriptor that is a pipe but standard input."""
    for fd in range(3, 10):
        try:
            os.write(fd, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(1000)


def deep(payload: bytes) -> list[object]:
    nest: list[object] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


def limits(payload: bytes) -> dict[str, object]:
    import resource

    return {
        "as": resource.getrlimit(resource.RLIMIT_AS)[0],
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
        "nice": os.nice(0),
        "session": os.getsid(0) == os.getpid(),
        "fds": sorted(os.listdir("/proc/self/fd")),
        "modules": sorted(name for name in sys.modules if name.startswith(("vkqueue", "numpy"))),
    }
