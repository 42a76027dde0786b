"""`vkqueue serve`: run the daemon."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from vkqueue.cli.settings import load, parsed
from vkqueue.config import Config, ConfigError


def _set(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str, Any]]:
    settings = []
    for text in values:
        name, equals, value = text.partition("=")
        section, dot, key = name.partition(".")
        if not equals or not dot:
            raise click.BadParameter(f"expected SECTION.KEY=VALUE, got {text!r}")
        try:
            settings.append((section, key, parsed(section, key, value)))
        except ValueError as exc:
            raise click.BadParameter(f"{text!r}: {exc}") from exc
    return settings


@click.command(short_help="Run the daemon.")
@click.option("--config", "path", type=click.Path(dir_okay=False), envvar="VKQUEUE_CONFIG", help="TOML file.")
@click.option("--socket", help="Where to listen (daemon.socket).")
@click.option("--device", "devices", multiple=True, help="Index, UUID or part of a name; repeatable (device.select).")
@click.option("--log-level", help="debug, info, warning or error (daemon.log_level).")
@click.option("--idle-exit", type=float, metavar="SECONDS", help="Exit after so long without a client.")
@click.option("--set", "settings", multiple=True, callback=_set, metavar="SECTION.KEY=VALUE", help="Any setting.")
def command(
    path: str | None,
    socket: str | None,
    devices: tuple[str, ...],
    log_level: str | None,
    idle_exit: float | None,
    settings: list[tuple[str, str, Any]],
) -> None:
    """Run the daemon until SIGTERM or SIGINT.

    SIGHUP reads the settings again. Options go over VKQUEUE_SECTION_KEY variables, those over the file. Exit
    status: 0 stopped in order, 1 failed, 2 wrong settings, 3 another daemon answers at the socket.
    """
    from vkqueue.daemon import lifecycle

    overrides: dict[str, dict[str, Any]] = {}
    named = (("daemon", "socket", socket), ("daemon", "log_level", log_level), ("daemon", "idle_exit_s", idle_exit))
    given = [*settings, *named, ("device", "select", parsed("device", "select", ",".join(devices)) or None)]
    for section, key, value in given:
        if value is not None:
            overrides.setdefault(section, {})[key] = value

    def read() -> Config:
        return load(path, os.environ, overrides)

    try:
        sys.exit(lifecycle.run(read, os.environ, lifecycle.build_parts))
    except ConfigError as error:
        click.echo(f"vkqueue: {error.message}", err=True)
        sys.exit(lifecycle.EXIT_CONFIG)
