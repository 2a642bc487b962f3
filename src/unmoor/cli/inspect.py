"""`unmoor inspect PATH`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .exits import verdict
from .output import page, say_document, say_lines
from .shape import examples, json_option, path_argument

if TYPE_CHECKING:
    from unmoor.values.catalog import Catalog

__all__ = ["command"]


@click.command(
    "inspect",
    epilog=examples(
        "unmoor inspect run/step_1000.pt",
        "unmoor inspect theirs.ckpt --all | grep running_mean",
        "unmoor inspect theirs.ckpt --json | jq .devices",
        "unmoor inspect theirs.ckpt --html theirs.html",
    ),
)
@path_argument("path")
@json_option("every tensor is in it")
@click.option("--all", "all_tensors", is_flag=True, help="List every tensor by its whole name.")
@click.option(
    "--html", "target", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page for a browser instead."
)
def command(path: str, *, as_json: bool, all_tensors: bool, target: str | None) -> int:
    """Say what a checkpoint holds, on which devices it was, and whether it is safe.

    Runs nothing from the file, reads no tensor data and needs no PyTorch.
    """
    from unmoor import api
    from unmoor.values.pausing import collector_paused

    with collector_paused():
        catalog = api.describe(path)
        _tell(catalog, as_json=as_json, all_tensors=all_tensors, target=target)
    return verdict(catalog.findings)


def _tell(catalog: Catalog, *, as_json: bool, all_tensors: bool, target: str | None) -> None:
    if target is not None:
        _write_page(catalog, target, quiet=as_json)
    if as_json:
        from unmoor.report.documents import catalog_document

        say_document(catalog_document(catalog))
    elif target is None:
        from unmoor.report.inspect import inspect_lines

        width, ellipsis = page(sys.stdout)
        say_lines(inspect_lines(catalog, width=width, all_tensors=all_tensors, ellipsis=ellipsis))


def _write_page(catalog: Catalog, target: str, *, quiet: bool) -> None:
    from unmoor import api_looks
    from unmoor.report.inspect import page_lines

    text = api_looks.page(catalog, target)
    if not quiet:
        width, ellipsis = page(sys.stdout)
        say_lines(page_lines(catalog, target, len(text.encode()), width=width, ellipsis=ellipsis))
