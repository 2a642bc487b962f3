"""`unmoor repartition SOURCE TARGET --ranks N`."""

from __future__ import annotations

import sys

import click

from .exits import verdict
from .output import page, say_document, say_lines
from .progress import bar
from .shape import examples, json_option, path_argument
from .sizes import bytes_below

__all__ = ["command"]


@click.command("repartition", epilog=examples("unmoor repartition run run_on_8 --ranks 8"))
@path_argument("source")
@path_argument("target")
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="How many data parallel ranks will load it.")
@click.option(
    "--verify",
    type=click.Choice(["stream", "none"]),
    default="stream",
    show_default=True,
    help="Hold every checksum of SOURCE against its data before anything is written, or none.",
)
@json_option("what was written, by role")
def command(source: str, target: str, *, ranks: int, verify: str, as_json: bool) -> int:
    """Write a DeepSpeed checkpoint as another number of ranks would have saved it.

    SOURCE is a folder of DeepSpeed's save_checkpoint, of any ZeRO stage. Needs neither DeepSpeed nor the model, only
    PyTorch; nothing of the source is run. TARGET appears when it is complete and on the disk.
    """
    from unmoor import api_files
    from unmoor.report.restore import receipt_lines

    with bar(f"writing {target}", bytes_below(source)) as advance:
        made = api_files.repartition(source, target, ranks=ranks, verify=verify, progress=advance)  # type: ignore[arg-type]
    if as_json:
        say_document({"schema": "unmoor.receipt/1", **made.to_json()})
    else:
        width, ellipsis = page(sys.stdout)
        say_lines(receipt_lines(made, width=width, ellipsis=ellipsis))
    return verdict(made.findings)
