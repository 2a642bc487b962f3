"""`unmoor verify PATH...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .exits import FILE, FINE, exit_code, verdict
from .output import page, say_document, say_lines
from .progress import bar
from .shape import as_written, examples, json_option, path_argument
from .sizes import bytes_below

if TYPE_CHECKING:
    from unmoor.values.verification import Verification

__all__ = ["command"]

_CODES = as_written(
    "Exit codes:",
    [
        "0  everything that has a checksum holds, the structure is whole",
        "1  the bytes are sound, and something in the file will fail",
        "3  damaged, cut short, or no checkpoint",
        "6  the file would run code that no checkpoint needs",
    ],
)


@click.command(
    "verify",
    epilog="\n\n".join(
        (
            examples(
                "unmoor verify run/step_1000.pt",
                "unmoor verify run/*.pt                  # one line each, the worst decides",
                "unmoor verify --quiet run/last && echo safe to delete the older ones",
            ),
            _CODES,
        )
    ),
)
@path_argument("paths", nargs=-1, required=True)
@json_option("every fault, with its bytes and checksums")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing where all is well.")
def command(paths: Sequence[str], *, as_json: bool, quiet: bool) -> int:
    """Check every checksum and every structural fact of checkpoints, and name the tensor that is bad.

    Runs nothing from the files and needs no PyTorch.
    """
    if len(paths) == 1:
        return _one(paths[0], as_json=as_json, quiet=quiet)
    return _several(paths, as_json=as_json, quiet=quiet)


def _one(path: str, *, as_json: bool, quiet: bool) -> int:
    made = _verified(path)
    if as_json:
        say_document({"schema": "unmoor.verification/1", **made.to_json()})
    elif not (quiet and made.ok):
        from unmoor.report.verification import verification_lines

        width, ellipsis = page(sys.stdout)
        say_lines(verification_lines(made, width=width, ellipsis=ellipsis))
    return _code(made)


def _several(paths: Sequence[str], *, as_json: bool, quiet: bool) -> int:
    from unmoor.errors import UnmoorError
    from unmoor.report.verification import summary_line, verification_line, verifications_document

    width, ellipsis = page(sys.stdout)
    results: list[tuple[str, Verification | Exception]] = []
    worst, column = FINE, max(map(len, paths))
    for path in paths:
        made: Verification | Exception
        try:
            made = _verified(path)
            code = _code(made)
        except (UnmoorError, OSError) as error:
            made, code = error, exit_code(error)
        worst = max(worst, code)
        results.append((path, made))
        if not as_json and not (quiet and code == FINE):
            say_lines([verification_line(path, made, column=column, width=width, ellipsis=ellipsis)])
    good = sum(not isinstance(made, Exception) and made.ok for _, made in results)
    if as_json:
        say_document(verifications_document(results))
    elif not (quiet and worst == FINE):
        say_lines([summary_line(good, len(results))])
    return worst


def _verified(path: str) -> Verification:
    from unmoor import api_looks

    with bar(f"verifying {path}", bytes_below(path)) as advance:
        return api_looks.verify(path, progress=advance)


def _code(made: Verification) -> int:
    return FILE if made.faults else verdict(made.findings)
