"""`vkqueue doctor`: what keeps Vulkan or the daemon from working. Needs no loader, driver or daemon itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable

import click
from rich.text import Text

from vkqueue.cli.checks import Finding, Machine, Status, daemon, drivers, loader, nodes, programs, system
from vkqueue.cli.options import json_option, socket_option
from vkqueue.cli.output import console, dump, plain, say, show

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "bold red"}

SECTIONS: dict[str, Callable[[Machine], Iterable[Finding]]] = {
    "Vulkan": loader.check,
    "Drivers": drivers.check,
    "Device nodes": nodes.check,
    "Compilers and tools": programs.check,
    "System": system.check,
}


def examine(machine: Machine, socket: str | None, say_section: Callable[[str, list[Finding]], None]) -> bool:
    """Make every check, and tell each section's findings; whether a device works."""
    works = False

    def look(title: str, check: Callable[[], Iterable[Finding]]) -> None:
        with console(stderr=True).status(f"{title} …"):  # gone before anything is printed
            findings = list(check())
        say_section(title, findings)

    def devices() -> list[Finding]:
        nonlocal works
        findings, works = drivers.check_devices(machine)
        return findings

    for title, check in SECTIONS.items():
        look(title, functools.partial(check, machine))
        if title == "Drivers":
            look("Devices, as the daemon sees them", devices)
    look("Daemon", functools.partial(daemon.check, machine, socket))
    return works


@click.command(short_help="Look for what keeps Vulkan or the daemon from working.")
@socket_option
@json_option
def command(socket: str | None, as_json: bool) -> None:
    """Look at the Vulkan loader, every driver (each in a process of its own), device nodes, compilers, limits, settings
    and the daemon; say what is wrong, and what to install or look at.

    Exit status: 0 if a device works, whatever else is said; 1 if none does.
    """
    sections: dict[str, list[Finding]] = {}

    def keep(title: str, findings: list[Finding]) -> None:
        sections[title] = findings
        if not as_json:
            show_section(title, findings)

    works = examine(Machine(), socket, keep)
    if as_json:
        dump({"ok": works, "sections": {title: [f.to_json() for f in found] for title, found in sections.items()}})
    else:
        problems = sum(f.status is Status.PROBLEM for found in sections.values() for f in found)
        warnings = sum(f.status is Status.WARNING for found in sections.values() for f in found)
        say()
        say(
            f"{'A device works' if works else 'No device works'}; problems: {problems}, warnings: {warnings}",
            "bold green" if works and not problems else "bold" if works else "bold red",
        )
    sys.exit(0 if works else 1)


def show_section(title: str, findings: list[Finding]) -> None:
    """The section for people."""
    say()
    say(title, "bold")
    for finding in findings:
        line = Text(f"{finding.status:>9}", _STYLES[finding.status])
        line.append(f"  {plain(finding.name)}: {plain(finding.text)}", "default")
        show(line)
        if finding.advice:
            say(f"{'':>9}  → {finding.advice}")
