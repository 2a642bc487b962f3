"""`unmoor preflight MODULE:FUNCTION`."""

from __future__ import annotations

import sys

import click

from .exits import verdict
from .output import own_streams, page, say_document, say_lines
from .shape import as_written, examples, function_argument, json_option

__all__ = ["command"]

_CODES = as_written(
    "Exit codes:",
    [
        "0  nothing was found that would fail",
        "1  a mismatch, or another error that a real run would hit",
        "2  the function builds no run, or the device cannot be in pretence",
        "5  the process died, or took longer than its time",
    ],
)


@click.command(
    "preflight",
    epilog="\n\n".join(
        (
            examples(
                "unmoor preflight train:build",
                "unmoor preflight train.py:build --device cuda:1",
                "unmoor preflight train:build --json | jq .mismatch",
            ),
            _CODES,
        )
    ),
)
@function_argument("build")
@click.option("--device", default="cuda:0", show_default=True, help="The device to pretend; it need not be here.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for building and for the step.")
@json_option("the mismatch, the findings, how far the step came")
def command(build: str, *, device: str, timeout: float, as_json: bool) -> int:
    """Take one training step as if on a device that this machine lacks, and say which mismatch it would hit.

    The function returns the run: its model, optimizer, loss and so on by the keywords of restore, and a train_step.
    """
    from unmoor import api_runs
    from unmoor.report.preflight import preflight_document, preflight_lines

    with own_streams():
        found = api_runs.preflight(build, device, timeout=timeout)
    if as_json:
        say_document(preflight_document(found))
    else:
        width, ellipsis = page(sys.stdout)
        say_lines(preflight_lines(found, width=width, ellipsis=ellipsis))
    return verdict(found.findings)
