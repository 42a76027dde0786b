"""`vkqueue completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": 'eval "$(vkqueue completion bash)" in ~/.bashrc, or save it as '
    "~/.local/share/bash-completion/completions/vkqueue",
    "zsh": 'eval "$(vkqueue completion zsh)" in ~/.zshrc, after compinit',
    "fish": "vkqueue completion fish > ~/.config/fish/completions/vkqueue.fish",
}


@click.command(
    short_help="Print the completion script of a shell.",
    epilog="\n\n".join(f"{shell}: {how}" for shell, how in SHELLS.items()),
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that has the shell complete vkqueue's commands, options and files."""
    root = ctx.find_root()
    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(root.command, {}, "vkqueue", "_VKQUEUE_COMPLETE").source())
