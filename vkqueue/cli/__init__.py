"""The command line. A command's module is imported when the command runs, so that `--help` does not
need what the commands need, such as a Vulkan loader."""

from __future__ import annotations

import importlib
import sys

import click

from vkqueue.errors import VkqueueError
from vkqueue.version import __version__

COMMANDS = {
    "serve": "Run the daemon.",
    "demo": "Run three kernels from several processes and check every result.",
    "bench": "Measure the daemon beside what the device can do at most.",
}
"""Command → its line in the list of commands. Each is the click command `command` of the module of its name here."""


class LazyGroup(click.Group):
    """A group that knows its commands by `COMMANDS` and imports each when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"vkqueue.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vkqueue")
def group() -> None:
    """Share this machine's Vulkan devices between local programs."""


def main() -> None:
    """Entry point of `vkqueue` and `python -m vkqueue`; an error of ours ends with its message and status 1."""
    try:
        group(prog_name="vkqueue")
    except VkqueueError as error:
        click.echo(f"vkqueue: {error.code}: {error.message}", err=True)
        sys.exit(1)
