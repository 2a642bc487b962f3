"""`unmoor completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .exits import FINE
from .output import say
from .shape import as_written

__all__ = ["command"]


@click.command(
    "completion",
    epilog=as_written(
        "Put one of these into the file that your shell reads at its start:",
        [
            'eval "$(unmoor completion bash)"     # ~/.bashrc',
            'eval "$(unmoor completion zsh)"      # ~/.zshrc',
            "unmoor completion fish | source      # ~/.config/fish/config.fish",
        ],
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the script with which a shell completes commands, options, files and choices of unmoor."""
    from . import commands

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    say(kind(commands, {}, "unmoor", "_UNMOOR_COMPLETE").source())
    return FINE
