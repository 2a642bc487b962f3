"""`unmoor demo`."""

from __future__ import annotations

import sys

import click

from .output import say
from .shape import examples

__all__ = ["command"]


@click.command("demo", epilog=examples("unmoor demo"))
def command() -> int:
    """Resume a published run (CHGNet, saved on cuda:7) on this machine and prove it exact. Needs torch and chgnet."""
    from unmoor.demo import run

    if not sys.stdout.isatty():
        return run(say)
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with console.status("training here, as the run would have gone on there"):
        return run(console.print)
