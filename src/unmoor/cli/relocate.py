"""`unmoor relocate PATH`."""

from __future__ import annotations

import os
import sys

import click

from .exits import verdict
from .output import page, say_document, say_lines
from .progress import bar
from .shape import examples, json_option, path_argument

__all__ = ["command"]


@click.command(
    "relocate",
    epilog=examples(
        "unmoor relocate run/step_1000.pt --to cpu",
        "unmoor relocate run.pt --map cuda:7=cuda:0 --map cuda:3=cpu",
        "unmoor relocate run.pt --map cuda=cuda:0 --output here.pt",
        "unmoor relocate --undo run.pt",
    ),
)
@path_argument("path")
@click.option("--to", metavar="DEVICE", help="Where models go; the rest follows by its role, as in unmoor.load.")
@click.option(
    "--map",
    "maps",
    metavar="OLD=NEW",
    multiple=True,
    help="Another device for one tag; may be repeated. OLD without an index means every device of that type.",
)
@click.option("--output", type=click.Path(), metavar="FILE", help="Make a relocated copy, leave PATH as it is.")
@click.option("--undo", is_flag=True, help="Take the last relocation back: the file is to the byte what it was.")
@json_option("tags, files, and the command that undoes it")
def command(path: str, *, to: str | None, maps: tuple[str, ...], output: str | None, undo: bool, as_json: bool) -> int:
    """Change on which devices a checkpoint says its tensors are, so that a plain torch.load puts them elsewhere.

    Takes milliseconds at any size: a zip of torch gets a few records appended, and no byte of it is written over. It
    opens as the old or as the new one even where this is killed. Random number state is on the CPU always. Older
    formats are written anew. Needs no PyTorch.
    """
    from unmoor import api_files
    from unmoor.report.relocation import relocation_document, relocation_lines, undone_lines

    if undo:
        if to is not None or maps or output is not None:
            raise click.UsageError("--undo goes alone: it takes the last relocation back.")
        made, lines = api_files.undo_relocate(path), undone_lines
    else:
        with bar(f"relocating {path}", os.path.getsize(path) if os.path.isfile(path) else None) as advance:
            mapping = _mapping(maps)
            made = api_files.relocate(path, to=to, map_location=mapping, output=output, progress=advance)
        lines = relocation_lines
    if as_json:
        say_document(relocation_document(made))
    else:
        width, ellipsis = page(sys.stdout)
        say_lines(lines(made, width=width, ellipsis=ellipsis))
    return verdict(made.findings)


def _mapping(maps: tuple[str, ...]) -> dict[str, str] | None:
    """Old tag -> new, None for none. One that is there twice has to say the same both times."""
    goals: dict[str, str] = {}
    for old, new in map(_pair, maps):
        if goals.setdefault(old, new) != new:
            raise click.UsageError(f"--map {old} is given twice, to {goals[old]} and to {new}.")
    return goals or None


def _pair(text: str) -> tuple[str, str]:
    old, mark, new = text.partition("=")
    if not (mark and old and new):
        raise click.UsageError(f"--map {text}: write OLD=NEW, such as cuda:7=cuda:0.")
    return old, new
