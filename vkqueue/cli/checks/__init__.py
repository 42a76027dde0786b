"""What `vkqueue doctor` looks at: each check is a function of a `Machine` to findings. None needs a Vulkan loader."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Status(StrEnum):
    """How well something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report.

    Attributes:
        name: what was looked at.
        text: what is the case.
        advice: what to install or look at; empty when there is nothing to do.
    """

    status: Status
    name: str
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"status": str(self.status), "name": self.name, "text": self.text, "advice": self.advice}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the checks look at; tests put another one in its place.

    Attributes:
        environ: for drivers, paths and settings, and for child processes.
        loader: file name of the Vulkan loader.
        dev, proc: where device nodes and the kernel's files are.
        uid, groups: of this process.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    loader: str = "libvulkan.so.1"
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    uid: int = field(default_factory=os.getuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset({os.getegid(), *os.getgroups()}))

    def may_use(self, path: Path) -> bool:
        """Whether this process may read and write a device node."""
        return os.access(path, os.R_OK | os.W_OK)


def group_name(number: int) -> str:
    """A group's name, else its number."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def ok(name: str, text: str) -> Finding:
    return Finding(Status.OK, name, text)


def warning(name: str, text: str, advice: str = "") -> Finding:
    return Finding(Status.WARNING, name, text, advice)


def problem(name: str, text: str, advice: str = "") -> Finding:
    return Finding(Status.PROBLEM, name, text, advice)
