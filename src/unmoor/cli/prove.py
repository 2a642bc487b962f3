"""`unmoor prove MODULE:FUNCTION`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from .exits import DIFFERENT, FINE
from .output import own_streams, page, say_document, say_lines
from .shape import as_written, examples, function_argument, json_option

__all__ = ["command"]

_CODES = as_written(
    "Exit codes:",
    [
        "0  the resumed run is the uninterrupted run",
        "2  the function builds no run, or its run fails by itself",
        "5  a process died, or took longer than its time",
        "7  they differ, the run does not resume, or it does not repeat itself",
    ],
)


@click.command(
    "prove",
    epilog="\n\n".join(
        (
            examples(
                "unmoor prove train:build",
                "unmoor prove train.py:build --steps 40 --cut 15 --resume-on cuda:0",
                "unmoor prove train:build --world 2 --resume-world 1",
                "unmoor prove train:build --save train:save --resume train:load",
                "unmoor prove train:build --omit scheduler --picture proof.png",
            ),
            _CODES,
        )
    ),
)
@function_argument("build")
@click.option("--steps", default=20, show_default=True, help="Steps of the run.")
@click.option("--cut", default=10, show_default=True, help="After which of them it is saved and resumed.")
@click.option("--save-on", default=None, metavar="DEVICE", help="Where it runs up to the cut.")
@click.option("--resume-on", default=None, metavar="DEVICE", help="Where it is resumed.")
@click.option("--world", default=1, show_default=True, help="Processes that save.")
@click.option("--resume-world", default=None, type=int, help="Processes that resume.")
@click.option("--wrap", default=None, help="ddp, fsdp2, compile, data_parallel or MODULE:FUNCTION.")
@click.option("--resume-wrap", default=None, help="The same of the resumed run; none for a plain model.")
@click.option("--omit", multiple=True, metavar="KEYWORD", help="Neither saved nor restored; may be repeated.")
@click.option("--save", default=None, metavar="MODULE:FUNCTION", help="Your own save(path, run), to be judged.")
@click.option("--resume", default=None, metavar="MODULE:FUNCTION", help="Your own resume(path, run).")
@click.option("--tolerance", default=1e-3, show_default=True, help="Where the arithmetic is another one.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for each run.")
@click.option("--folder", default=None, type=click.Path(), help="Leave checkpoint and recordings there.")
@click.option(
    "--picture",
    default=None,
    type=click.Path(),
    help="Loss curves as .png or .html, both without an ending; 'none' draws none.  [default: prove.png, prove.html]",
)
@json_option("the table, the losses, the first difference")
def command(build: str, *, omit: Sequence[str], picture: str | None, as_json: bool, **asked: Any) -> int:
    """Train a run without a break, and again cut, saved and resumed in a fresh process; compare step by step.

    The function returns the run: its model, optimizer, loader and so on by the keywords of restore, and a train_step.
    The first thing that differs is named, with its cause and what to do.
    """
    from unmoor import api_runs

    with _steps() as told, own_streams():
        made = api_runs.prove(build, omit=omit, picture=_picture(picture), progress=told, **asked)
    if as_json:
        from unmoor.report.proof import proof_document

        say_document(proof_document(made))
    else:
        from unmoor.report.proof import proof_lines

        width, ellipsis = page(sys.stdout)
        say_lines(proof_lines(made, width=width, ellipsis=ellipsis))
    return FINE if made.ok else DIFFERENT


def _picture(asked: str | None) -> str | None:
    """The pictures to write: prove.png and prove.html unless told otherwise, where they can be drawn and written."""
    if asked is not None:
        return None if asked == "none" else asked
    from unmoor.api_runs import can_draw

    return "prove" if can_draw() and os.access(".", os.W_OK) else None


@contextmanager
def _steps() -> Iterator[Callable[[str, int, int], None] | None]:
    """What is being done and how far it is, on stderr of a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")) or None)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("steps"), TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda title, done, total: shown.update(task, description=title, completed=done, total=total)
