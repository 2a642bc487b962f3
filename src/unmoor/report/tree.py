"""The tensors of a file: folded into patterns and set out as a tree, or one line each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part, TensorEntry
from unmoor.values.text import count, format_shape, listing

from .grouping import Row, fold, pattern_text
from .layout import Line, Page, cells, plain
from .members import Membership, relative_name
from .own import OWN

__all__ = ["tensor_lines", "tree_lines"]

_ROWS: Final = 40
"""The most rows of one part's tree; a model with more kinds of layers is told by the number of its tensors."""

_TREES: Final = 12
"""The most trees: parts whose tensors are alike share one."""

_WORDS: Final = 4
"""The most alternatives of one segment to spell out."""

_FOLLOWERS: Final = frozenset({"optimizer", "scheduler", "scaler", "rng", "metrics", "loader", OWN})
"""Roles whose tensors are told by the role table; listed only where a file has nothing else."""


_Marks = tuple[str, str, str]
"""Dtype, layout ("" for strided) and device."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a reader should see of a tensor; tensors of one kind and place share a row."""

    shape: tuple[int, ...]
    marks: _Marks


def tree_lines(members: Membership, page: Page) -> list[Line]:
    """Every part's tensors under its path, names folded into patterns."""
    groups: list[tuple[Part | None, Sequence[TensorEntry]]] = [(part, held) for part, held in members.parts if held]
    if members.loose:
        groups.append((None, members.loose))
    leading = [(part, held) for part, held in groups if part is None or part.role not in _FOLLOWERS]
    alike: dict[tuple[tuple[Row[_Kind], ...], _Marks], list[str]] = {}
    for part, held in leading or groups:
        place = "other tensors" if part is None else part.path
        alike.setdefault(_folded(part, held), []).append(place)
    trees = [
        line for (rows, usual), places in list(alike.items())[:_TREES] for line in _tree(places, rows, usual, page)
    ]
    left = sum(len(places) for places in list(alike.values())[_TREES:])
    return [Line(line) for line in [*trees, *([f"  and {count(left, 'part')} more"] if left else [])]]


def _folded(part: Part | None, entries: Sequence[TensorEntry]) -> tuple[tuple[Row[_Kind], ...], _Marks]:
    """The rows of a part, and the marks that most of its tensors have."""
    kinds = _kinds(entries)
    named = ((relative_name(part, entry), kind) for entry, kind in zip(entries, kinds, strict=True))
    rows = fold(named, families={kind: kind.marks for kind in dict.fromkeys(kinds)})
    return tuple(rows), Counter(kind.marks for kind in kinds).most_common(1)[0][0]


def _kinds(entries: Sequence[TensorEntry]) -> list[_Kind]:
    """The kind of each tensor, one object for each different one."""
    known: dict[tuple[Any, ...], _Kind] = {}
    kinds = []
    for entry in entries:
        key = (entry.shape, entry.dtype, entry.layout, entry.device)
        kind = known.get(key)
        if kind is None:
            marks = (entry.dtype, "" if entry.layout == "strided" else entry.layout, entry.device)
            kind = known[key] = _Kind(entry.shape, marks)
        kinds.append(kind)
    return kinds


def tensor_lines(catalog: Catalog) -> list[Line]:
    """Every tensor on a line of its own, its whole path last."""
    rows = [(format_shape(e.shape), e.dtype, plain(e.device), plain(e.path)) for e in catalog.tensors]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return [Line("  " + "  ".join([*map(str.ljust, row[:3], widths), row[3]])) for row in rows]


def _tree(places: Sequence[str], rows: Sequence[Row[_Kind]], usual: _Marks, page: Page) -> list[str]:
    """The rows below the paths of the parts that have them."""
    about = _usual_text(usual, {kind.marks for row in rows for kind in row.kinds})
    names = (
        listing([_name(row.pattern, page) for row in fold((place, 0) for place in places)])
        if any(places)
        else "tensors"
    )
    lines = page.wrap(f"{page.elide(names, max(page.width - cells(about) - 4, 16))}, {about}", first="  ", rest="    ")
    shown = rows if len(rows) <= _ROWS + 1 else rows[:_ROWS]
    lines += page.table([("  " * (depth + 1) + text, *rest) for depth, (text, *rest) in _nested(shown, usual, page)])
    if len(shown) < len(rows):
        lines.append(f"    and {count(sum(row.count for row in rows[len(shown) :]), 'tensor')} more")
    return lines


def _usual_text(usual: _Marks, marks: AbstractSet[_Marks]) -> str:
    """`all float32`, or what holds for the rows that say nothing else."""
    dtype, layout, device = usual
    told = " ".join(word for word in (layout, dtype) if word)
    if len(marks) == 1:
        return f"all {told}"
    devices = len({mark[2] for mark in marks}) > 1
    return f"{told}{' on ' + plain(device) if devices else ''} where nothing else is said"


def _nested(
    rows: Sequence[Row[_Kind]], usual: _Marks, page: Page, depth: int = 0, at: int = 0
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(depth, cells) a line: what several rows begin with stands on a line of its own above them."""
    for (ends, _), group in groupby(rows, key=lambda row: (len(row.pattern) == at + 1, row.pattern[at])):
        alike = list(group)
        if ends or len(alike) == 1:
            for row in alike:
                yield depth, (_name(row.pattern[at:], page), _tensors_text(row.kinds, usual))
            continue
        common = at + 1
        while all(len(row.pattern) > common + 1 and row.pattern[common] == alike[0].pattern[common] for row in alike):
            common += 1
        yield depth, (_name(alike[0].pattern[at:common], page),)
        yield from _nested(alike, usual, page, depth + 1, common)


def _name(pattern: Sequence[Sequence[str]], page: Page) -> str:
    return plain(pattern_text(pattern, longest=_WORDS, ellipsis=page.ellipsis)) or "(the tensor itself)"


def _tensors_text(kinds: Sequence[_Kind], usual: _Marks) -> str:
    shapes = ", ".join(format_shape(kind.shape) for kind in kinds)
    return " ".join(
        [shapes, *(plain(mark) for mark, default in zip(kinds[0].marks, usual, strict=True) if mark != default)]
    )
