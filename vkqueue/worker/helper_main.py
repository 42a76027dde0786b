"""The helper process: does what may crash, hang or eat memory (parsing clients' modules, compiling their sources).

Requests come on standard input, answers go to what was standard output; both are a length-prefixed JSON header,
a request's followed by raw bytes (see HEADER). The process lives with its parent: it ends when the pipe closes
or the parent dies. It trusts nothing it parses, so there is no pickle, and it has limits of its own.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from vkqueue.errors import CompileError, InternalError, InvalidError, TooLargeError, VkqueueError

HEADER = struct.Struct("<IQ")
"""Before each message: bytes of JSON, bytes of payload after it (0 in answers)."""

READY = {"ready": True}
"""The first answer, unasked: modules are imported, limits are set."""

_NICE = 10  # the hot path's threads go first; arbitrary
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request.

    Attributes:
        module, function: who does it, imported on first use (or ahead, see `main`).
        run: calls the function with the payload and the request's arguments.
        failure: the error of a request that the process did not survive.
    """

    module: str
    function: str
    run: Callable[[Callable[..., Any], bytes, dict[str, Any]], Any]
    failure: type[VkqueueError] = InternalError


def _analyse(function: Callable[..., Any], payload: bytes, args: dict[str, Any]) -> Any:
    values = args.get("specialization")  # JSON's keys are strings
    return function(payload, {int(id): value for id, value in values.items()} if values else None)


def _analyse_tvm(function: Callable[..., Any], payload: bytes, args: dict[str, Any]) -> Any:
    values = args.get("specialization")
    spec = {int(id): value for id, value in values.items()} if values else None
    return function(payload, args["form"], args.get("meta"), spec, args.get("kernel"))


def _payload_only(function: Callable[..., Any], payload: bytes, args: dict[str, Any]) -> Any:
    return function(payload)


def _with_arguments(function: Callable[..., Any], payload: bytes, args: dict[str, Any]) -> Any:
    return function(payload, **args)


KINDS: dict[str, Kind] = {
    "analyse": Kind("vkqueue.kernels.reflect", "analyse", _analyse),
    "analyse_tvm": Kind("vkqueue.kernels.tvm", "analyse_tvm", _analyse_tvm),
    "validate": Kind("vkqueue.kernels.validate", "validate", _with_arguments),
    "disassemble": Kind("vkqueue.kernels.disasm", "disassemble", _payload_only),
    "disassemble_all": Kind("vkqueue.kernels.tvm", "disassemble_all", _with_arguments),
    "source": Kind("vkqueue.kernels.source", "compile_source", _with_arguments, CompileError),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the pool tells a process when it starts it; travels as JSON.

    Attributes:
        memory_bytes: of address space.
        cpu_s: CPU seconds for one request.
        max_answer_bytes: longer answers become `too_large`.
        parent: the daemon's process id.
        preimport: kinds whose modules are imported before the first request.
        extra_kinds: name -> (module, function, whether it compiles), called with the payload and the request's
            arguments as keywords: how tests bring functions that misbehave.
    """

    memory_bytes: int
    cpu_s: int
    max_answer_bytes: int
    parent: int
    preimport: tuple[str, ...] = ()
    extra_kinds: dict[str, tuple[str, str, bool]] | None = None

    def kinds(self) -> dict[str, Kind]:
        """KINDS and the extra ones."""
        kinds = dict(KINDS)
        for name, (module, function, compiles) in (self.extra_kinds or {}).items():
            failure = CompileError if compiles else InternalError
            kinds[name] = Kind(module, function, _with_arguments, failure)
        return kinds


def confine(settings: Settings) -> None:
    """Give up what a process that handles hostile input does not need."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory = settings.memory_bytes if hard == resource.RLIM_INFINITY else min(settings.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != settings.parent:  # it died before its death could be signalled
        os._exit(0)


def allow_cpu(seconds: int) -> None:
    """Let the process use so much more CPU time from now; past it the kernel kills it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + seconds  # 1: the sum is rounded down
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def answer_to(kind: Kind | None, name: str, payload: bytes, args: dict[str, Any], settings: Settings) -> bytes:
    """Do a request; the answer's JSON: {"result"} or {"error"}, with "exit" when the process is spent."""
    spent = False
    try:
        if kind is None:
            raise InternalError(f"the helper process knows no request {name!r}")
        function = getattr(importlib.import_module(kind.module), kind.function)
        encoded = json.dumps({"result": kind.run(function, payload, args)}).encode()
        if len(encoded) > settings.max_answer_bytes:
            raise TooLargeError(
                f"the answer has {len(encoded)} bytes, over the bound of {settings.max_answer_bytes}",
                {"bytes": len(encoded), "max_bytes": settings.max_answer_bytes},
            )
        return encoded
    except VkqueueError as caught:
        error = caught
    except MemoryError:
        spent = True
        error = (kind.failure if kind else InternalError)(
            f"{name} needs more than the {settings.memory_bytes >> 20} MiB that it may use"
        )
    except RecursionError:
        error = InvalidError(f"{name}: nested too deeply")
    except Exception as caught:
        # On the daemon's standard error, where its log is.
        sys.excepthook(type(caught), caught, caught.__traceback__)
        error = InternalError(f"{name} failed: {type(caught).__name__}: {caught}"[:1000])
    return json.dumps({"error": _cut(error.to_wire(), settings.max_answer_bytes), "exit": spent}).encode()


def _cut(wire: dict[str, Any], limit: int) -> dict[str, Any]:
    """An error that fits: a compiler's text may be endless."""
    if len(json.dumps(wire)) <= limit // 2:
        return wire
    # 12: what one character takes at most as JSON, a surrogate pair.
    return {"code": wire["code"], "message": wire["message"][: limit // 24] + " … (cut)"}


def serve(source: BinaryIO, sink: BinaryIO, settings: Settings) -> None:
    """Answer requests until the pipe closes or the process is spent."""
    kinds = settings.kinds()
    for name in settings.preimport:
        importlib.import_module(kinds[name].module)
    _send(sink, json.dumps(READY).encode())
    while True:
        prefix = source.read(HEADER.size)
        if len(prefix) < HEADER.size:
            return
        header_bytes, payload_bytes = HEADER.unpack(prefix)
        header = json.loads(source.read(header_bytes))
        payload = source.read(payload_bytes)
        allow_cpu(settings.cpu_s)
        name = header["kind"]
        answer = answer_to(kinds.get(name), name, payload, header["args"], settings)
        del payload
        _send(sink, answer)
        if answer.endswith(b'"exit": true}'):
            return


def _send(sink: BinaryIO, answer: bytes) -> None:
    sink.write(HEADER.pack(len(answer), 0) + answer)
    sink.flush()


def main() -> None:
    """Entry point of the process. Its last argument is the Settings as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the daemon, which ends this process
    settings = Settings(**json.loads(sys.argv[-1]))
    # A stray print, here or in a compiler, must not get between the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(0, "rb")
    confine(settings)
    serve(source, sink, settings)
