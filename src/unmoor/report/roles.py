"""The role table: which part of a training run stands where in a file, how large it is, what it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unmoor.values.catalog import Part
from unmoor.values.text import count, format_bytes, listing

from .content import role_rank
from .devices import tags_text
from .grouping import fold, pattern_text
from .layout import Line, Page, plain
from .members import Membership
from .parts import part_text

__all__ = ["role_lines"]

_STACKED: Final = 64
"""Below this width the table is told in sentences: six columns of words do not fit."""

_ROWS: Final = 24
"""The most rows; parts that are alike are folded first, then what is left is told by its number."""

_VALUES: Final = 12
"""The most plain values to name."""

_HEAD: Final = ("role", "at", "tensors", "bytes", "device", "what")


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a row says of one part, apart from its path."""

    role: str
    tensors: int
    nbytes: int
    devices: tuple[str, ...]
    what: str


def role_lines(members: Membership, page: Page) -> list[Line]:
    """One row for each part; parts that hold plain values only share the last row."""
    told = [
        (part.path, _Cells(_role(part), part.tensors, part.nbytes, _by_number(part), part_text(part, entries)))
        for part, entries in members.parts
    ]
    values = [path for path, cells in told if cells.role == "extra" and not cells.tensors]
    rows = [(path, cells) for path, cells in told if cells.role != "extra" or cells.tensors]
    if len(rows) > _ROWS:
        rows = [_folded(row.pattern, row.kinds[0], row.count, page) for row in fold(rows)]
    rows.sort(key=lambda row: role_rank(row[1].role))
    shown = rows if len(rows) <= _ROWS + 1 else rows[:_ROWS]
    lines = _table(shown, page) if page.width >= _STACKED else _sentences(shown, page)
    if len(shown) < len(rows):
        lines.append(f"  and {count(len(rows) - len(shown), 'part')} more")
    return [Line(line) for line in [*lines, *_values(values, shown, page)]]


def _role(part: Part) -> str:
    return part.kind if part.kind == "tensors" else part.role


def _by_number(part: Part) -> tuple[str, ...]:
    """The devices of a part, the one with most tensors first."""
    return tuple(sorted(part.devices, key=lambda tag: -part.devices[tag]))


def _folded(pattern: Sequence[Sequence[str]], one: _Cells, number: int, page: Page) -> tuple[str, _Cells]:
    """Parts that are alike as one row."""
    if number == 1:
        return pattern_text(pattern), one
    what = f"{number:,} alike" + (f", each {one.what}" if one.what else "")
    path = pattern_text(pattern, longest=4, ellipsis=page.ellipsis)
    return path, _Cells(one.role, one.tensors * number, one.nbytes * number, one.devices, what)


def _table(rows: Sequence[tuple[str, _Cells]], page: Page) -> list[str]:
    """The table, without the column of devices where all parts have the same: the lines above have told it."""
    if not rows:
        return []
    told = [(plain(c.role), _place(path), f"{c.tensors:,}", _size(c), tags_text(c.devices), c.what) for path, c in rows]
    keep = [0, 1, 2, 3, 5] if len({c.devices for _, c in rows if c.devices}) < 2 else range(6)
    return page.table([[row[i] for i in keep] for row in [_HEAD, *told]], right=frozenset({2, 3}), shrink=1)


def _sentences(rows: Sequence[tuple[str, _Cells]], page: Page) -> list[str]:
    lines = []
    for path, c in rows:
        role = f"  {plain(c.role)}  "
        lines.append(role + page.elide(_place(path), page.width - len(role)))
        facts = [count(c.tensors, "tensor"), _size(c), tags_text(c.devices)] if c.tensors else []
        lines += page.wrap("; ".join(filter(None, [", ".join(facts), c.what])), first="    ", rest="    ")
    return lines


def _place(path: str) -> str:
    return plain(path) or "the whole file"


def _size(c: _Cells) -> str:
    return format_bytes(c.nbytes) if c.tensors else ""


def _values(paths: Sequence[str], rows: Sequence[tuple[str, _Cells]], page: Page) -> list[str]:
    """The plain values of the file on one line, under the table's second column."""
    if not paths:
        return []
    names = [plain(path) or "the whole file" for path in paths]
    if len(names) > _VALUES:
        names = [pattern_text(row.pattern, longest=4, ellipsis=page.ellipsis) for row in fold((n, 0) for n in names)]
    width = max([5, *(len(plain(c.role)) for _, c in rows)]) if page.width >= _STACKED else 5
    return page.wrap(listing(names, _VALUES), first=f"  {'extra':<{width}}  ", rest=" " * (width + 4))
