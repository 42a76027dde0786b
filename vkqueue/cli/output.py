"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

# Names come from modules, drivers and clients: a control character in one must not drive the terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x09), *range(0x0B, 0x20), 0x7F, *range(0x80, 0xA0))}

# Of what is no terminal; tables are then read by programs such as grep, and cut nothing off. Arbitrary.
_WIDE = 250

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def console(*, stderr: bool = False) -> Console:
    """A console on which brackets are brackets."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def plain(text: object) -> str:
    """Text without control characters but line ends and tabs."""
    return str(text).translate(_ESCAPES)


def say(text: object = "", style: str = "") -> None:
    """A line on standard output, wrapped by the terminal and not here."""
    console().print(Text(plain(text), style=style), soft_wrap=True)


def table(*headings: str, title: str | None = None) -> Table:
    """An empty table; a heading that starts with ">" is of a column of numbers."""
    made = Table(title=title and Text(title, style="bold"), title_justify="left", header_style="bold")
    for heading in headings:
        name = heading.removeprefix(">")
        made.add_column(name, justify="right" if name != heading else "left", overflow="fold")
    return made


def add_row(to: Table, *cells: object) -> None:
    """Add a row of plain text, or of what rich can show."""
    shown: list[RenderableType] = [cell if isinstance(cell, Text) else Text(plain(cell)) for cell in cells]
    to.add_row(*shown)


def show(what: RenderableType) -> None:
    """Print a table."""
    console().print(what)


def dump(value: Any) -> None:
    """Print JSON. Of the numbers that it does not have come strings: "inf", "-inf", "nan"."""
    click.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def size(count: int) -> str:
    """Bytes for people: 2.0 GiB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
