"""Options that several commands have, and what they stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from vkqueue.cli.output import dump
from vkqueue.errors import VkqueueError

F = TypeVar("F", bound=Callable[..., Any])

socket_option = click.option(
    "--socket",
    metavar="PATH",
    type=click.Path(),
    help="The daemon's socket; else $VKQUEUE_SOCKET, else the user's own daemon's, else the system's.",
)
spawn_option = click.option(
    "--spawn", is_flag=True, help="Start a daemon of your own if none answers; it leaves by itself when it is not used."
)
device_option = click.option("--device", type=click.IntRange(0), metavar="INDEX", help="Work on this device.")


def pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE options as a map."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
        found[name] = value
    return found


def json_option(function: F) -> F:
    """`--json` (the parameter `as_json`). An error goes to standard output too, as {"ok": false, "error": {…}}."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        try:
            return function(*args, as_json=as_json, **kwargs)
        except VkqueueError as error:
            if as_json:
                dump({"ok": False, "error": error.to_wire()})
            raise

    return command  # type: ignore[return-value]  # click's decorators lose the type
