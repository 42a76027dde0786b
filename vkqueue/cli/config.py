"""`vkqueue config`: check settings, and show which hold."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from vkqueue.cli.options import json_option
from vkqueue.cli.output import dump, say
from vkqueue.cli.settings import from_environ, load
from vkqueue.config import SECTIONS, Config, ConfigError, from_toml

EXIT_WRONG = 2
"""As `vkqueue serve` ends with wrong settings."""

file_argument = click.argument("file", required=False, type=click.Path(dir_okay=False), envvar="VKQUEUE_CONFIG")


@click.group(short_help="Check or show the daemon's settings.")
def command() -> None:
    """Check settings, or show those that a daemon started here would have.

    Without FILE, the one that $VKQUEUE_CONFIG names.
    """


@command.command(short_help="Check a settings file and the environment.")
@file_argument
@json_option
def check(file: str | None, as_json: bool) -> None:
    """Check a settings file, alone and with the VKQUEUE_… variables of the environment over it.

    Exit status: 0 if all is well, 2 if not.
    """
    try:
        if file is not None:
            from_toml(file)
        load(file, os.environ, {})
    except ConfigError as error:
        if as_json:
            dump({"ok": False, "file": file, "problems": error.problems})
        click.echo(f"vkqueue: {error.message}", err=True)
        sys.exit(EXIT_WRONG)
    if as_json:
        dump({"ok": True, "file": file, "problems": []})
    else:
        say(f"{file or 'environment'}: no fault found" + ("" if file else " (no FILE given)"))


@command.command(name="show", short_help="Show the settings in effect, and where each comes from.")
@file_argument
@click.option("--changed", is_flag=True, help="Only what differs from the built-in defaults.")
@json_option
def show_command(file: str | None, changed: bool, as_json: bool) -> None:
    """Show the settings in effect, as TOML that can be used as a file, and where each comes from."""
    try:
        config = load(file, os.environ, {})
        origins = origin_of(file)
    except ConfigError as error:
        click.echo(f"vkqueue: {error.message}", err=True)
        sys.exit(EXIT_WRONG)
    values = effective(config, changed)
    if as_json:
        dump({"ok": True, "file": file, "settings": values, "origins": origins})
        return
    lines = []
    for section, keys in values.items():
        lines.append(f"[{section}]")
        for key, value in keys.items():
            origin = origins.get(f"{section}.{key}")
            written = oct(value) if (section, key) == ("daemon", "mode") else toml(value)
            lines.append(f"{key} = {written}" + (f"  # {origin}" if origin else ""))
        lines.append("")
    say("\n".join(lines).rstrip("\n") or "every setting has its built-in default")


def effective(config: Config, changed: bool) -> dict[str, dict[str, Any]]:
    """Section → key → value; with `changed` without those at their defaults."""
    found = {
        section: {
            key: getattr(getattr(config, section), key)
            for key, known in keys.items()
            if not changed or getattr(getattr(config, section), key) != known.default
        }
        for section, keys in SECTIONS.items()
    }
    return {section: keys for section, keys in found.items() if keys}


def origin_of(file: str | None) -> dict[str, str]:
    """`section.key` → "file" or "environment", for those that one of them changes."""
    layers = [("environment", Config().replace(from_environ(os.environ), "environment"))]
    if file is not None:
        layers.insert(0, (file, from_toml(file)))
    return {
        f"{section}.{key}": name
        for name, layer in layers
        for section, keys in SECTIONS.items()
        for key, known in keys.items()
        if getattr(getattr(layer, section), key) != known.default
    }


def toml(value: Any) -> str:
    """A setting's value as TOML writes it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)  # strings, booleans and numbers are written alike
