"""`unmoor diff A B`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from .exits import DIFFERENT, FINE
from .output import page, say_document, say_lines
from .progress import bar
from .shape import as_written, examples, json_option, path_argument
from .sizes import bytes_below

__all__ = ["command"]

_CODES = as_written("Exit codes:", ["0  equal", "7  different", "2, 3  called wrong; a file is broken"])


@click.command(
    "diff",
    epilog="\n\n".join(
        (
            examples(
                "unmoor diff run/step_1000.pt run/step_2000.pt",
                "unmoor diff theirs.ckpt model.safetensors --only model",
                "unmoor diff fp32.pt bf16.safetensors --rtol 1e-2 --only model",
                "unmoor diff a.pt b.pt --only model=ema   # the model of a, the average of b",
            ),
            _CODES,
        )
    ),
)
@path_argument("a")
@path_argument("b")
@click.option(
    "--only",
    multiple=True,
    metavar="ROLE|PATH",
    help="Compare this alone: a role (model, optimizer, ...), a key path, or LEFT=RIGHT. May be given again.",
)
@click.option("--atol", type=float, default=0.0, help="Elements this far apart count as equal.")
@click.option("--rtol", type=float, default=0.0, help="The same, relative to the element of B.")
@click.option("--structure", is_flag=True, help="Names, shapes, dtypes and values alone; reads no tensor data.")
@click.option("--all", "all_names", is_flag=True, help="List every name instead of patterns.")
@json_option("every difference")
def command(
    a: str,
    b: str,
    *,
    only: Sequence[str],
    atol: float,
    rtol: float,
    structure: bool,
    all_names: bool,
    as_json: bool,
) -> int:
    """Say how two checkpoints differ, whatever their formats: names, hyper-parameters, how far every tensor is apart.

    Runs nothing from the files. Equal tensors need no PyTorch; how far others are apart does.
    """
    from unmoor import api_looks

    total = None if structure else bytes_below(a) + bytes_below(b)
    with bar("comparing", total) as advance:
        made = api_looks.diff(
            a, b, only=list(only) or None, atol=atol, rtol=rtol, structure=structure, progress=advance
        )
    if as_json:
        from unmoor.report.difference import difference_document

        say_document(difference_document(made))
    else:
        from unmoor.report.difference import difference_lines

        width, ellipsis = page(sys.stdout)
        say_lines(difference_lines(made, width=width, all_names=all_names, ellipsis=ellipsis))
    return FINE if made.equal else DIFFERENT
