"""The tables of a difference: names folded into patterns, the numbers of all that a pattern covers in one row. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from unmoor.values.difference import Distance, Leaf, TensorDifference, ValueDifference
from unmoor.values.text import count, format_shape

from .grouping import Row, fold, pattern_text
from .layout import Page, cells, plain

__all__ = ["cast_rows", "only_rows", "tensor_rows", "value_rows"]

_ROWS: Final = 24
"""The most rows of a table; --all has all of them."""

_WORDS: Final = 4
_THOUSAND: Final = 100_000
_CLOSE: Final = 0.9999

Cells = tuple[str, ...]


def only_rows(leaves: Sequence[Leaf], page: Page, *, all_names: bool) -> list[Cells]:
    """Tensors that one side has alone."""
    kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
    named = zip((leaf.path for leaf in leaves), kinds, strict=True)
    rows: list[Cells] = []
    for pattern, row in _folded(named, page, all_names=all_names):
        texts = dict.fromkeys(f"{format_shape(shape)} {plain(dtype)}" for shape, dtype in row.kinds)
        rows.append((pattern, ", ".join(texts)))
    return _cut(rows, all_names=all_names)


def value_rows(values: Sequence[ValueDifference], page: Page, *, all_names: bool) -> list[Cells]:
    """Plain values that differ."""
    found = {value.path: _change(value) for value in values}
    few = len(values) <= _ROWS
    named = [(value.path, (value.kind, found[value.path] if few else "")) for value in values]
    rows: list[Cells] = []
    for pattern, row in _folded(named, page, all_names=all_names):
        texts = [found[name] for name, _ in row.unfold()]
        more = f", ... ({count(len(texts), 'value')})" if len(set(texts)) > 1 else ""
        rows.append((pattern, f"{texts[0]}{more}"))
    return _cut(rows, all_names=all_names)


def _change(value: ValueDifference) -> str:
    if value.kind == "only-a":
        return f"only in a: {plain(value.a)}"
    if value.kind == "only-b":
        return f"only in b: {plain(value.b)}"
    return f"{plain(value.a)} -> {plain(value.b)}" if value.b else plain(value.a)


def cast_rows(changed: Sequence[TensorDifference], page: Page, *, all_names: bool) -> list[Cells]:
    """Tensors whose shape or dtype differs."""
    named = [(one.name, _cast(one)) for one in changed if one.reshaped or one.cast]
    rows: list[Cells] = [(pattern, str(row.kinds[0])) for pattern, row in _folded(named, page, all_names=all_names)]
    return _cut(rows, all_names=all_names)


def _cast(one: TensorDifference) -> str:
    told = []
    if one.reshaped:
        told.append(f"{format_shape(one.a.shape)} -> {format_shape(one.b.shape)}")
    if one.cast:
        told.append(f"{plain(one.a.dtype)} -> {plain(one.b.dtype)}")
    same = one.cast and one.distance is not None and one.distance.differing == 0
    return ", ".join(told) + (", values equal" if same else "")


def tensor_rows(changed: Sequence[TensorDifference], page: Page, *, all_names: bool) -> list[Cells]:
    """Tensors whose elements differ, with how far they are apart; several in one row with the worst of them."""
    found = {one.name: one for one in changed if one.distance is not None and one.distance.differing != 0}
    named = [(name, (one.a.dtype, _is_numeric(one), name.rpartition(".")[2])) for name, one in found.items()]
    entries: list[list[Cells]] = []
    for _, group in groupby(_folded(named, page, all_names=all_names), key=lambda pair: pair[1].pattern[0]):
        alike = [row for _, row in group]
        depth = 0 if all_names else _common(alike)
        title: list[Cells] = [(f"  {_pattern(alike[0].pattern[:depth], page)}",)] if depth else []
        for row in alike:
            shown = f"{'    ' if depth else '  '}{_pattern(row.pattern[depth:], page)}"
            numbers = _numbers([found[name] for name, _ in row.unfold()])
            long = not all_names and cells(shown) > page.width * 3 // 8 - 2
            entries.append([*title, *([(shown,), ("", *numbers)] if long else [(shown, *numbers)])])
            title = []
    few = entries if all_names or len(entries) <= _ROWS + 1 else entries[:_ROWS]
    more: list[Cells] = [(f"  and {count(len(entries) - len(few), 'row')} more",)] if len(few) < len(entries) else []
    return [*(row for entry in few for row in entry), *more]


def _common(rows: Sequence[Row[Any]]) -> int:
    """How many segments all rows begin with, the last one of each left out."""
    depth, first = 0, rows[0].pattern
    while all(len(row.pattern) > depth + 1 and row.pattern[depth] == first[depth] for row in rows):
        depth += 1
    return depth


def _pattern(pattern: Sequence[Sequence[str]], page: Page) -> str:
    return plain(pattern_text(pattern, longest=_WORDS, ellipsis=page.ellipsis)) or "(the tensor itself)"


def _is_numeric(one: TensorDifference) -> bool:
    """Whether how far two tensors are apart means something: the state of a random stream is no quantity."""
    return one.distance is not None and one.distance.max_abs is not None and one.a.role != "rng"


def _numbers(held: Sequence[TensorDifference]) -> Cells:
    distances = [one.distance for one in held if one.distance is not None]
    if not _is_numeric(held[0]):
        distances = [Distance(d.differing, d.first, None if held[0].a.role == "rng" else d.values) for d in distances]
    elements = sum(one.elements for one in held)
    differing = None if any(d.differing is None for d in distances) else sum(d.differing or 0 for d in distances)
    worst = [_largest(d.max_abs for d in distances), _largest(d.max_rel for d in distances)]
    cosines = [d.cosine for d in distances if d.cosine is not None]
    strange = sum(d.not_finite for d in distances)
    last = _first(distances[0]) if len(held) == 1 else ""
    tail = f"; {strange:,} NaN or infinite on a side" if strange else ""
    return (
        _share(differing, elements),
        *("" if value is None else f"{value:.1e}" for value in worst),
        _cosine(min(cosines)) if cosines else "",
        f"{last}{tail}".removeprefix("; "),
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _share(differing: int | None, elements: int) -> str:
    if differing is None:
        return "yes"
    if elements == 1:
        return "1"
    if differing == elements:
        return f"all {_short(elements)}"
    told, of = _short(differing), _short(elements)
    return f"nearly all {of}" if told == of else f"{told} of {of}"


def _short(number: int) -> str:
    """A number of elements in few characters."""
    if number < _THOUSAND:
        return f"{number:,}"
    size, unit = number / 1000, 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g}{_UNITS[unit]}"


_UNITS: Final = ("k", "M", "G", "T")


def _cosine(cosine: float) -> str:
    """As it is; close to one by how far it is from it."""
    if cosine >= 1.0:
        return "1"
    return f"1-{1 - cosine:.0e}" if cosine > _CLOSE else f"{cosine:.4f}"


def _first(distance: Distance) -> str:
    """The first differing element and what stands there."""
    values = distance.values
    change = f"{_value(values[0])} -> {_value(values[1])}" if values is not None else ""
    if not distance.first:
        return change
    where = f"[{', '.join(map(str, distance.first))}]"
    return f"{where.replace(' ', chr(0xA0))} {change}".rstrip()


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)


def _folded(named: Iterable[tuple[str, Hashable]], page: Page, *, all_names: bool) -> list[tuple[str, Row[Any]]]:
    """Pattern and row of names, each name on its own with `all_names`."""
    items = list(named)
    if all_names:
        rows = [Row(((name,),), (kind,)) for name, kind in items]
        return [(plain(name), row) for (name, _), row in zip(items, rows, strict=True)]
    return [(_pattern(row.pattern, page), row) for row in fold(items)]


def _cut(rows: list[Cells], *, all_names: bool) -> list[Cells]:
    if all_names or len(rows) <= _ROWS + 1:
        return rows
    return [*rows[:_ROWS], (f"  and {count(len(rows) - _ROWS, 'row')} more",)]
