"""The result of a matrix as a table: a row a subject, a column a situation, in each field the equal and all cells.

What lives here is counting and layout. It does not know what a cell is: an Outcome is all that it sees.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Outcome", "Verdict", "failures", "reasons", "table"]

Verdict = Literal["equal", "differs", "refused", "illegal"]

WIDTH: Final = 80


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell: `equal`, `differs` and `refused` (by the carrier) count; `illegal` ones exist for no carrier.

    `reason` says where it differs, or quotes who refused. `cell` names it in full.
    """

    row: str
    column: str
    verdict: Verdict
    cell: str = ""
    reason: str = ""


def table(outcomes: Sequence[Outcome], *, head: str, columns: Sequence[str] = (), total: bool = True) -> str:
    """Rows in the order in which they were met, and so the columns where none are given; "-" where no cell is legal."""
    rows = list(dict.fromkeys(o.row for o in outcomes))
    columns = columns or list(dict.fromkeys(o.column for o in outcomes))
    legal = [o for o in outcomes if o.verdict != "illegal"]
    counted = Counter((o.row, o.column) for o in legal)
    equal = Counter((o.row, o.column) for o in legal if o.verdict == "equal")
    lines = [[head, *columns]]
    lines += [[row, *(_share(equal[row, c], counted[row, c]) for c in columns)] for row in rows]
    if total:
        sums = [[sum(found[row, c] for row in rows) for c in columns] for found in (equal, counted)]
        lines.append(["all", *(_share(*pair) for pair in zip(*sums, strict=True))])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _share(equal: int, counted: int) -> str:
    return f"{equal}/{counted}" if counted else "-"


def reasons(outcomes: Iterable[Outcome], verdict: Verdict) -> str:
    """The reasons of one verdict with their numbers, the most frequent first, wrapped."""
    found = Counter(o.reason for o in outcomes if o.verdict == verdict)
    blank = " " * 7
    return "\n".join(
        textwrap.fill(f"{number:>5}  {reason}", WIDTH, subsequent_indent=blank, break_long_words=False)
        for reason, number in found.most_common()
    )


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each cell that is not equal."""
    return [f"{o.cell}: {o.verdict}: {o.reason}" for o in outcomes if o.verdict in ("differs", "refused")]
