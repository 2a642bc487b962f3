"""The checkpoints of a folder as text: one line each, the newest first, and under it what is the matter. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from unmoor.values.listing import Listing, Saved
from unmoor.values.text import count, format_bytes

from .documents import strict
from .layout import Line, Page, cells, join_lines, plain

__all__ = ["listing_document", "listing_lines", "listing_text"]

_METRICS: Final = 2
"""How many metrics have a column."""

_START: Final = 3
_NARROWEST: Final = 16
_WIDEST: Final = 12
"""Columns of the mark before a line, of a name at least, of the head of a metric at most."""


def listing_text(found: Listing, *, width: int = 80, ellipsis: str = "…") -> str:
    """The listing as text."""
    return join_lines(listing_lines(found, width=width, ellipsis=ellipsis))


def listing_lines(found: Listing, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The answer first: what resume would take; then what to know of the folder; then a line for each checkpoint."""
    page = Page(width, ellipsis)
    lines = [Line(line, "headline") for line in page.wrap(_headline(found), rest="  ")]
    lines += [Line(line, "warning") for note in found.notes for line in page.wrap(plain(note), first="  ", rest="    ")]
    if found.rows:
        lines += [Line(""), *_table(found, page)]
    return lines


def _headline(found: Listing) -> str:
    folder, newest = plain(found.folder), found.newest
    if not found.rows:
        return f"no checkpoint in {folder}"
    broken = sum(not row.complete for row in found.rows)
    total = f"{count(len(found.rows), 'checkpoint')} in {folder}, {format_bytes(sum(row.nbytes for row in found.rows))}"
    if newest is None:
        return f"{total}: none can be resumed from"
    end = " (the run had finished)" if newest.finished else ""
    rest = f"; {broken:,} cannot be resumed from" if broken else ""
    return f"{total}; resume takes {plain(newest.name)}{end}{rest}"


def _table(found: Listing, page: Page) -> list[Line]:
    columns = _fitting(found, page)
    widths = [column.width for column in columns]
    spare = page.width - _START - sum(widths) - 2 * (len(columns) - 1)
    names = next(number for number, column in enumerate(columns) if column.head == "name")
    widths[names] = max(min(_NARROWEST, widths[names]), widths[names] + min(spare, 0))
    lines = [Line(_row("", [column.head for column in columns], columns, widths, page), "hint")]
    below = _START + sum(widths[:names]) + 2 * names + 2
    for number, row in enumerate(found.rows):
        mark = "->" if row is found.newest else ""
        text = _row(mark, [column.cells[number] for column in columns], columns, widths, page)
        lines.append(Line(text, "" if row.complete else "error"))
        lines += _below(row, page, " " * below, chosen=row is found.newest)
    return lines


def _below(row: Saved, page: Page, indent: str, *, chosen: bool) -> list[Line]:
    """What is said under the line of a checkpoint: why it cannot be resumed from; what to know of the chosen one."""
    said = [] if row.complete else [(f"cannot be resumed from: {row.why}", "error")]
    said += [(note, "hint") for note in row.notes if chosen]
    return [
        Line(line, tone) for text, tone in said for line in page.wrap(plain(text), first=indent, rest=f"{indent}  ")
    ]


class _Column(NamedTuple):
    """One column: whether its cells end together, and, where a page is narrow, how soon it goes (0 never)."""

    head: str
    cells: list[str]
    right: bool = False
    goes: int = 0

    @property
    def width(self) -> int:
        """What its head or its longest cell takes."""
        return max(cells(self.head), *map(cells, self.cells))


def _fitting(found: Listing, page: Page) -> list[_Column]:
    """The columns that fit the page, the first to go left out as far as need be; names are elided before that."""
    columns = [column for column in _columns(found) if any(column.cells)]
    while True:
        least = sum(min(column.width, _NARROWEST) if column.head == "name" else column.width for column in columns)
        last = max(columns, key=lambda column: column.goes)
        if least + 2 * (len(columns) - 1) + _START <= page.width or not last.goes:
            return columns
        columns.remove(last)


def _columns(found: Listing) -> Iterator[_Column]:
    rows = found.rows
    units = {row.unit for row in rows if row.step is not None}
    mixed = len(units) > 1
    steps = ["" if row.step is None else f"{f'{row.unit} ' if mixed else ''}{row.step:,}" for row in rows]
    yield _Column("step" if mixed or not units else units.pop(), steps, right=True)
    yield _Column("name", [plain(row.name) for row in rows])
    yield _Column("size", [format_bytes(row.nbytes) for row in rows], right=True, goes=1)
    for number, name in enumerate(_metrics(rows)):
        values = [_number(row.metrics.get(name)) for row in rows]
        yield _Column(Page(ellipsis="~").elide(plain(name), _WIDEST), values, right=True, goes=3 + number)
    yield _Column("written", [_moment(row.written) for row in rows], goes=5)
    others = {row.dialect for row in rows if row.complete} - {"unmoor", "plain"}
    yield _Column("by", [row.dialect if others and row.complete else "" for row in rows], goes=6)
    yield _Column("", [_status(row) for row in rows], goes=2)


def _metrics(rows: Sequence[Saved]) -> list[str]:
    """The metrics that most of the checkpoints have."""
    counted = Counter(name for row in rows for name in row.metrics)
    return [name for name, _ in counted.most_common(_METRICS)]


def _row(mark: str, texts: Sequence[str], columns: Sequence[_Column], widths: Sequence[int], page: Page) -> str:
    made = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        shown = page.elide(text, width)
        space = " " * (width - cells(shown))
        made.append(space + shown if column.right else shown + space)
    return f"{mark:<{_START}}{'  '.join(made)}".rstrip()


def _status(row: Saved) -> str:
    words = ["damaged"] if row.verified is False else ["verified"] if row.verified else []
    return ", ".join([*words, *(["finished"] if row.finished else [])])


def _number(value: Any) -> str:
    return f"{value:,}" if type(value) is int else f"{value:.5g}" if type(value) is float else ""


def _moment(written: float) -> str:
    """A time as this machine's clock shows it; "" for one that is none."""
    try:
        return f"{datetime.fromtimestamp(written, timezone.utc).astimezone():%Y-%m-%d %H:%M}" if written > 0 else ""
    except (OverflowError, ValueError, OSError):
        return ""


def listing_document(found: Listing) -> dict[str, Any]:
    """The listing as plain JSON values, what JSON lacks as text."""
    made: dict[str, Any] = strict({"schema": "unmoor.listing/1", **found.to_json()})
    return made
