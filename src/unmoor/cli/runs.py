"""`unmoor runs FOLDER`."""

from __future__ import annotations

import sys

import click

from .exits import FILE, FINE
from .output import page, say_document, say_lines
from .progress import bar
from .shape import as_written, examples, json_option, path_argument
from .sizes import bytes_below

__all__ = ["command"]

_CODES = as_written(
    "Exit codes:",
    [
        "0  there is one to resume from",
        "3  there is none, or --verify found a damaged one",
    ],
)


@click.command(
    "runs",
    epilog="\n\n".join(
        (
            examples(
                "unmoor runs runs/exp1",
                "unmoor runs --verify lightning_logs/version_0",
                "unmoor runs runs/exp1 --json | jq -r .newest",
            ),
            _CODES,
        )
    ),
)
@path_argument("folder")
@json_option("every checkpoint, and the newest to resume from")
@click.option("--verify", is_flag=True, help="Read all of each, and hold it against its checksums.")
def command(folder: str, *, as_json: bool, verify: bool) -> int:
    """List the checkpoints of a folder, the newest first, and say which one can be resumed from.

    Knows the folders of unmoor.Run, Lightning, the HF Trainer, accelerate, DeepSpeed, torchtitan, Megatron and others.
    Runs nothing from the files and needs no PyTorch.
    """
    from unmoor import api_folders
    from unmoor.report.listing import listing_document, listing_lines

    with bar(f"verifying {folder}", bytes_below(folder) if verify else 0) as advance:
        found = api_folders.runs(folder, verify=verify, progress=advance)
    if as_json:
        say_document(listing_document(found))
    else:
        width, ellipsis = page(sys.stdout)
        say_lines(listing_lines(found, width=width, ellipsis=ellipsis))
    broken = any(row.verified is False for row in found.rows)
    return FILE if found.newest is None or broken else FINE
