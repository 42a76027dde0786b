"""Runs a compiler on a client's text: in a folder of its own, with its files and output bounded.

Includes are checked before (`source`), so that no compiler is told to open a file by a client. Where the kernel has
Landlock (Linux 5.13), it cannot: it may read system folders and its own, and write its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_FILE_BYTES = 64 << 20
"""Of each file that a compiler writes, its messages included. Arbitrary; far above any module that is taken."""
MAX_MESSAGES = 64 << 10
"""Characters of a compiler's messages that are kept."""

_PREFIX = "vkqueue-source-"
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/nix/store", "/etc/ld.so.cache", "/etc/ld.so.conf",
           "/etc/ld.so.conf.d", "/dev/null", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
           "/sys/devices/system/cpu")  # fmt: skip
_KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH")

# linux/landlock.h, first version: what may be done with files. The system calls have these numbers everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ALL_ACCESS = (1 << 13) - 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder of the process's own, gone afterwards. What helpers that were killed left behind goes too."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            pid = entry.name.removeprefix(_PREFIX).partition("-")[0]
            if entry.name.startswith(_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        shutil.rmtree(entry.path, ignore_errors=True)


def run(command: Sequence[str], cwd: Path, folder: Path, readable: Sequence[str] = ()) -> tuple[str, str]:
    """Run a command that may read system folders, `readable` and `folder`, and write the latter.

    The processor time and memory of the calling process bound it too, and who kills that one's group kills it.

    Returns:
        How it ended, empty for success; and the beginning of what it wrote to its outputs.
    """
    reading = [*_SYSTEM, *readable, os.path.dirname(os.path.realpath(command[0]))]
    reading += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        restrict_files(reading, [str(folder)])

    messages = folder / "messages"
    with messages.open("wb") as output:
        status = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment, "LANG": "C.UTF-8", "TMPDIR": str(folder)},
            preexec_fn=confine,  # the helper process has one thread
            check=False,
        ).returncode
    with messages.open(encoding="utf-8", errors="replace") as found:
        text = found.read(MAX_MESSAGES)
    if status < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-status).name}", text
    return f"exit status {status}" if status else "", text


def restrict_files(readable: Sequence[str], writable: Sequence[str]) -> bool:
    """Let this process, for good, open only files under these paths; False where the kernel cannot do that.

    Paths that do not exist are left out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("<Q", _ALL_ACCESS)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for paths, access in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, _ALL_ACCESS)):
            for path in filter(None, paths):
                _allow(libc, ruleset, path, access)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                access &= _OF_FILES
            if path == os.devnull:
                access |= _WRITE_FILE
            libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("<Qi", access, fd), 0)
        finally:
            os.close(fd)


def python_folders() -> list[str]:
    """What a Python process started from here reads."""
    return [sys.prefix, sys.base_prefix, *(path for path in sys.path if os.path.isabs(path))]
