"""Putting words on a page of a given width: escaping, eliding in the middle, wrapping, columns.

Pure text. Nothing here knows what the words mean. Whatever came out of a file goes through `plain` before it is
measured or printed: a name in a checkpoint may hold escape sequences, and a terminal would obey them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.values.text import plain

__all__ = ["TONES", "Line", "Page", "cells", "join_lines", "plain", "plain_words"]

TONES: Final = ("", "headline", "danger", "error", "warning", "hint")
"""What a line is, for whoever paints it. A tone repeats what the line's words say and never adds to them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page and its tone."""

    text: str
    tone: str = ""


def join_lines(lines: Sequence[Line]) -> str:
    """The lines as one text, without a newline at the end."""
    return "\n".join(line.text for line in lines)


def plain_words(text: str) -> str:
    """`plain`, with the no-break spaces left that `Page.wrap` knows."""
    return "\xa0".join(map(plain, text.split("\xa0")))


def cells(text: str) -> int:
    """The columns that `text` takes on a terminal: two for wide characters, none for combining marks."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


@dataclass(frozen=True, slots=True)
class Page:
    """How much fits on a line, and the mark that stands for what was left out."""

    width: int = 80
    ellipsis: str = "…"

    def elide(self, text: str, width: int) -> str:
        """`text` in at most `width` columns, its middle left out where it is longer."""
        if cells(text) <= width:
            return text
        room = max(width - len(self.ellipsis), 2)
        tail = room // 2
        return _fitting(text, room - tail) + self.ellipsis + _fitting(text[::-1], tail)[::-1]

    def wrap(self, text: str, *, first: str = "", rest: str = "") -> list[str]:
        """`text` broken at spaces; the first line starts with `first`, the others with `rest`.

        A no-break space becomes a space that holds its words together.
        """
        lines, line, empty = [], first, True
        for word in text.split(" "):
            if not empty and cells(line) + 1 + cells(word) > self.width:
                lines.append(line.rstrip())
                line, empty = rest, True
            fitting = self.elide(word, max(self.width - cells(line) - (not empty), 8))
            line, empty = (line + fitting if empty else f"{line} {fitting}"), False
        return [line.replace("\xa0", " ") for line in [*lines, line.rstrip()]]

    def table(
        self, rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), shrink: int = 0
    ) -> list[str]:
        """Rows of cells under each other, indented by two; columns in `right` end together.

        A row of one cell is a title and may run across the columns. Column `shrink` is elided where it would take more
        than its share. The last column wraps inside itself; where it would be too narrow, its long cells hang below
        their row, under the second column.
        """
        last = max(map(len, rows), default=1) - 1
        full = [row for row in rows if len(row) > 1]
        widths = [max((cells(row[i]) for row in full if i < len(row)), default=0) for i in range(last)]
        others = sum(widths[:shrink] + widths[shrink + 1 :]) + 2 * (last + 1)
        share = min(_LAST, max((cells(row[last]) for row in full if len(row) > last), default=0))
        if widths:
            widths[shrink] = min(widths[shrink], max(self.width - others - share, self.width * 3 // 8))
        return [line for row in rows for line in self._row(row, widths, right, shrink)]

    def _row(self, row: Sequence[str], widths: list[int], right: frozenset[int], shrink: int) -> list[str]:
        if len(row) == 1:
            return [self.elide(f"  {row[0]}", self.width)]
        start = "  "
        for i, width in enumerate(widths):
            cell = row[i] if i < len(row) else ""
            cell = self.elide(cell, width) if i == shrink else cell
            space = " " * (width - cells(cell))
            start += (space + cell if i in right else cell + space) + "  "
        text, room = row[-1] if len(row) > len(widths) else "", self.width - cells(start)
        if room >= min(cells(text), _LAST):
            return self.wrap(text, first=start, rest=" " * cells(start))
        below = " " * (4 + widths[0])
        return [start.rstrip(), *self.wrap(text, first=below, rest=below)]


_LAST: Final = 24
"""The last column of a table wraps inside itself while it has so many columns."""


def _fitting(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for i, character in enumerate(text):
        taken += cells(character)
        if taken > width:
            return text[:i]
    return text
