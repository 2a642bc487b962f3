"""`unmoor explain PATH --build MODULE:FUNCTION`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from .exits import FINE, FIT
from .output import own_streams, page, say_document, say_lines
from .shape import as_written, examples, json_option, path_argument

__all__ = ["command"]

_CODES = as_written(
    "Exit codes:",
    [
        "0  the checkpoint fits the run: restore with its objects and nothing else",
        "2  the function does not build a run",
        "3  the file is broken, hostile, or no checkpoint",
        "4  it does not fit as it is: the faults, and the call that resumes it",
    ],
)


@click.command(
    "explain",
    epilog="\n\n".join(
        (
            examples(
                "unmoor explain run/step_1000.pt --build train:build",
                "unmoor explain theirs.ckpt --build train.py:build --device cuda:0",
                'unmoor explain old.pt --build train:build --only "encoder.*"',
            ),
            _CODES,
        )
    ),
)
@path_argument("path")
@click.option("--build", required=True, metavar="MODULE:FUNCTION", help="The function that builds the run.")
@click.option("--device", default=None, help="Where the run is to be: cpu, cuda:0, auto.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Names to restore; may be given several times.")
@json_option("the plan, the faults, the call")
def command(path: str, build: str, device: str | None, *, only: Sequence[str], as_json: bool) -> int:
    """Say what restore would do with a checkpoint and your run, before anything moves.

    Shows what fits, what is renamed, moved, cast and missing, and the exact call that resumes it. Where something does
    not fit, the keywords that could let it through are tried.
    """
    from unmoor import api_runs

    with own_streams():
        made = api_runs.explain(path, build, model_device=device, only=list(only) or None)
    if as_json:
        from unmoor.report.explanation import explanation_document

        say_document(explanation_document(made))
    else:
        from unmoor.report.explanation import explanation_lines

        width, ellipsis = page(sys.stdout)
        say_lines(explanation_lines(made, width=width, ellipsis=ellipsis))
    return FINE if made.fits else FIT
