"""Device nodes, and whether this user may use them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from vkqueue.cli.checks import Finding, Machine, group_name, ok, problem, warning

_PATTERNS = ("dri/renderD*", "nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "kfd", "dxg")
_GROUPS = ("render", "video")
_CONTAINER = "in a container, pass them in: --device /dev/dri, or --gpus all (NVIDIA)"


def check(machine: Machine) -> Iterator[Finding]:
    """The nodes that GPU drivers open."""
    nodes = sorted(path for pattern in _PATTERNS for path in machine.dev.glob(pattern))
    if not nodes:
        yield warning("device nodes", f"no {machine.dev}/dri/renderD* or {machine.dev}/nvidia*: no GPU", _CONTAINER)
    for node in nodes:
        if machine.may_use(node):
            yield ok(str(node), "may be used")
        else:
            yield problem(str(node), f"this user ({_user(machine)}) may not open it", _advice(node, machine))
    yield _membership(machine)


def _advice(node: Path, machine: Machine) -> str:
    group = group_name(node.stat().st_gid)
    if not node.stat().st_mode & 0o060:
        return f"its mode keeps everybody but its owner out: look at udev's rules, or chmod g+rw {node}"
    if group in _listed_groups(machine):
        return f"the user is in group {group}, but this session began before: log in again (or newgrp {group})"
    return f"sudo usermod -aG {group} {_user(machine)}, then log in again"


def _membership(machine: Machine) -> Finding:
    effective = {group_name(number) for number in machine.groups}
    mine = [name for name in _GROUPS if name in effective]
    if mine or machine.uid == 0:
        return ok("groups", f"{_user(machine)} is in {', '.join(mine)}" if mine else "root needs none")
    late = [name for name in _GROUPS if name in _listed_groups(machine)]
    if late:
        return warning("groups", f"{', '.join(late)} came after this session began", "log in again")
    return warning(
        "groups",
        f"{_user(machine)} is in neither of {' and '.join(_GROUPS)}, which most GPU drivers ask for",
        f"if a node above may not be used: sudo usermod -aG {_GROUPS[0]} {_user(machine)}, then log in again",
    )


def _user(machine: Machine) -> str:
    try:
        return pwd.getpwuid(machine.uid).pw_name
    except KeyError:
        return str(machine.uid)


def _listed_groups(machine: Machine) -> set[str]:
    """Groups that the user has by the user database, though perhaps not in this session."""
    try:
        user = pwd.getpwuid(machine.uid)
    except KeyError:
        return set()
    return {group_name(number) for number in os.getgrouplist(user.pw_name, user.pw_gid)}
