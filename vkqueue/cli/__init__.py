"""The command line. A command's module is imported when the command runs, so that `--help` does not
need what the commands need, such as a Vulkan loader."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from vkqueue.errors import VkqueueError
from vkqueue.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "serve": "Run the daemon.",
    "demo": "Run three kernels from several processes and check every result.",
    "bench": "Measure the daemon beside what the device can do at most.",
    "devices": "List the devices.",
    "inspect": "What a module takes and needs, and which devices run it.",
    "run": "Run a kernel on arrays from files and ranges.",
    "compile": "Compile source text to SPIR-V.",
    "model": "List, load, call and measure models.",
    "stats": "What the daemon has done, and does.",
    "ping": "Whether the daemon answers, and how fast.",
    "doctor": "Look for what keeps Vulkan or the daemon from working.",
    "config": "Check or show the daemon's settings.",
    "completion": "Print the completion script of a shell.",
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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """click's own would import every command for its line of help, at each press of the key."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vkqueue")
def group() -> None:
    """Share this machine's Vulkan devices between local programs."""


def main() -> None:
    """Entry point of `vkqueue` and `python -m vkqueue`. An error that is no fault of the program's ends with what it
    says, and status 1.
    """
    try:
        group(prog_name="vkqueue")
    except VkqueueError as error:
        _fail(f"{error.code}: {error.message}")
    except TimeoutError as error:  # the client's; an OSError too
        _fail(f"timeout: {error}")
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError as error:
        _fail(f"out of memory: {error or 'there is not enough for this'}")


def _fail(text: str) -> NoReturn:
    click.echo(f"vkqueue: {text}", err=True)
    sys.exit(1)
