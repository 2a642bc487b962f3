"""The role table: which part of a training run stands where in a file, how large it is, what it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.values.catalog import Part
from unmoor.values.text import count, format_bytes, key_text, listing

from .claims import Claims
from .content import role_rank
from .devices import tags_text
from .grouping import fold, pattern_text
from .layout import Line, Page, plain
from .members import Membership
from .parts import part_text, rng_text

__all__ = ["RoleRow", "role_lines", "role_rows"]

_STACKED: Final = 64
"""Below this width the table is told in sentences: six columns of words do not fit."""

_ROWS: Final = 24
"""The most rows; parts that are alike are folded first, then what is left is told by its number."""

_VALUES: Final = 12
"""The most plain values to name."""

_HEAD: Final = ("role", "at", "tensors", "bytes", "device", "what")


@dataclass(frozen=True, slots=True)
class RoleRow:
    """What a row says of one part, apart from its path."""

    role: str
    tensors: int
    nbytes: int
    devices: tuple[str, ...]
    what: str


def role_lines(members: Membership, claims: Claims, page: Page) -> list[Line]:
    """One row for each part; the random streams of one place share a row, and plain values the last one."""
    rows, values = role_rows(members, claims)
    if len(rows) > _ROWS:
        rows = [_folded(row.pattern, row.kinds[0], row.count, page) for row in fold(rows)]
    else:
        streams = fold(row for row in rows if row[1].role == "rng")
        rows = [row for row in rows if row[1].role != "rng"]
        rows += [_folded(row.pattern, row.kinds[0], row.count, page) for row in streams]
    rows.sort(key=lambda row: role_rank(row[1].role))
    shown = rows if len(rows) <= _ROWS + 1 else rows[:_ROWS]
    lines = _table(shown, page) if page.width >= _STACKED else _sentences(shown, page)
    if len(shown) < len(rows):
        lines.append(f"  and {count(len(rows) - len(shown), 'part')} more")
    return [Line(line) for line in [*lines, *_values(values, shown, page)]]


def role_rows(members: Membership, claims: Claims) -> tuple[list[tuple[str, RoleRow]], list[str]]:
    """The path and the row of each part that has tensors or plays a role, and the paths of plain values."""
    streams: dict[tuple[Any, ...], list[Part]] = {}
    for part, _ in members.parts:
        if part.role == "rng":
            streams.setdefault(_place_of(part.keys), []).append(part)
    if any(part.role != "rng" for part, _ in members.parts):
        streams.pop((), None)
    rows, values = [], []
    for part, entries in members.parts:
        together = streams.get(_place_of(part.keys), ())
        if part.role == "extra" and not part.tensors:
            values += [] if together and (part.keys[-3:-2] == (_OWN,) or part.keys[-1] == _CURRENT) else [part.path]
        elif part.role != "rng" or len(together) < 2:
            text = part_text(part, entries, claims.of(part.keys))
            rows.append((part.path, RoleRow(_role(part), part.tensors, part.nbytes, _by_number([part]), text)))
        elif part is together[0]:
            rows.append((key_text(_place_of(part.keys)), _streams(together)))
    return rows, values


_OWN: Final = "generators"
"""Under which key the streams of the caller's own generators stand, each by its name, in what unmoor saves."""


_DEVICES: Final = "devices"
"""Under which key the streams of accelerators stand, each kind of device by its name."""

_CURRENT: Final = "current"
"""The key of the number of the device that was the current one."""


def _place_of(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where a random stream belongs: the mapping that holds it and others."""
    below = 3 if keys[-3:-2] == (_OWN,) else 2 if keys[-2:-1] == (_DEVICES,) else 1
    return keys[:-below]


def _streams(parts: Sequence[Part]) -> RoleRow:
    own = [plain(str(part.keys[-2])) for part in parts if part.keys[-3:-2] == (_OWN,)]
    stock = [rng_text(part) for part in parts if part.keys[-3:-2] != (_OWN,)]
    owners = listing(stock, 6) + (f"{'; ' if stock else ''}generators of your own: {listing(own, 6)}" if own else "")
    tensors, nbytes = sum(part.tensors for part in parts), sum(part.nbytes for part in parts)
    return RoleRow("rng", tensors, nbytes, _by_number(parts), owners)


def _role(part: Part) -> str:
    return part.kind if part.kind == "tensors" else part.role


def _by_number(parts: Iterable[Part]) -> tuple[str, ...]:
    """The devices of parts, the one with most tensors first."""
    sums: dict[str, int] = {}
    for part in parts:
        for tag, number in part.devices.items():
            sums[tag] = sums.get(tag, 0) + number
    return tuple(sorted(sums, key=lambda tag: -sums[tag]))


def _folded(pattern: Sequence[Sequence[str]], one: RoleRow, number: int, page: Page) -> tuple[str, RoleRow]:
    """Parts that are alike as one row."""
    if number == 1:
        return pattern_text(pattern), one
    what = f"{number:,} alike" + (f", each {one.what}" if one.what else "")
    path = pattern_text(pattern, longest=4, ellipsis=page.ellipsis)
    return path, RoleRow(one.role, one.tensors * number, one.nbytes * number, one.devices, what)


def _table(rows: Sequence[tuple[str, RoleRow]], page: Page) -> list[str]:
    """The table, without the column of devices where all parts have the same: the lines above have told it."""
    if not rows:
        return []
    told = [(plain(c.role), _place(path), f"{c.tensors:,}", _size(c), tags_text(c.devices), c.what) for path, c in rows]
    keep = [0, 1, 2, 3, 5] if len({c.devices for _, c in rows if c.devices}) < 2 else range(6)
    return page.table([[row[i] for i in keep] for row in [_HEAD, *told]], right=frozenset({2, 3}), shrink=1)


def _sentences(rows: Sequence[tuple[str, RoleRow]], page: Page) -> list[str]:
    lines = []
    for path, c in rows:
        role = f"  {plain(c.role)}  "
        lines.append(role + page.elide(_place(path), page.width - len(role)))
        facts = [count(c.tensors, "tensor"), _size(c), tags_text(c.devices)] if c.tensors else []
        lines += page.wrap("; ".join(filter(None, [", ".join(facts), c.what])), first="    ", rest="    ")
    return lines


def _place(path: str) -> str:
    return plain(path) or "the whole file"


def _size(c: RoleRow) -> str:
    return format_bytes(c.nbytes) if c.tensors else ""


def _values(paths: Sequence[str], rows: Sequence[tuple[str, RoleRow]], page: Page) -> list[str]:
    """The plain values of the file on one line, under the table's second column."""
    if not paths:
        return []
    names = [plain(path) or "the whole file" for path in paths]
    if len(names) > _VALUES:
        names = [pattern_text(row.pattern, longest=4, ellipsis=page.ellipsis) for row in fold((n, 0) for n in names)]
    width = max([5, *(len(plain(c.role)) for _, c in rows)]) if page.width >= _STACKED else 5
    return page.wrap(listing(names, _VALUES), first=f"  {'extra':<{width}}  ", rest=" " * (width + 4))
