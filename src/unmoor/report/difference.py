"""How two checkpoints differ, as text. Pure: values in, words out.

The first line answers; then how the two were matched, what each side has alone, values that differ, and tensors, names
folded into patterns.
"""

from __future__ import annotations

from typing import Any, Final

from unmoor.values.catalog import Catalog
from unmoor.values.difference import Difference, Retagged, ValueDifference
from unmoor.values.text import count, format_bytes

from .content import headline
from .difference_tables import cast_rows, only_rows, tensor_rows, value_rows
from .layout import Line, Page, join_lines, plain

__all__ = ["difference_document", "difference_lines", "difference_text", "form_text"]

_NAMED: Final = 3
"""The most values to name in the first line."""


def form_text(catalog: Catalog) -> str:
    """What a checkpoint is, in one sentence."""
    return headline(catalog)


def difference_document(made: Difference) -> dict[str, Any]:
    """A difference as a JSON document."""
    return {"schema": "unmoor.difference/1", **made.to_json()}


def difference_text(made: Difference, *, width: int = 80, all_names: bool = False, ellipsis: str = "…") -> str:
    """How two checkpoints differ, in at most `width` columns; `all_names` spells out every name."""
    return join_lines(difference_lines(made, width=width, all_names=all_names, ellipsis=ellipsis))


def difference_lines(made: Difference, *, width: int = 80, all_names: bool = False, ellipsis: str = "…") -> list[Line]:
    """The lines of `difference_text` with their tones."""
    page = Page(width, ellipsis)
    above = [[*_wrapped(_head(made), page, "headline"), *_sides(made, page)], _about(made, page)]
    page = Page(_ENDLESS, ellipsis) if all_names else page
    blocks = [
        *above,
        _table(f"only in a: {_amount(made.only_a)}", only_rows(made.only_a, page, all_names=all_names), page),
        _table(f"only in b: {_amount(made.only_b)}", only_rows(made.only_b, page, all_names=all_names), page),
        _table("values", value_rows(made.values, page, all_names=all_names), page),
        _table("shapes and dtypes", cast_rows(made.changed, page, all_names=all_names), page),
        _numbers(made, page, all_names=all_names),
        [] if all_names or made.equal else _wrapped(_HINT, page, "hint", first="  ", rest="   "),
    ]
    lines: list[Line] = []
    for block in blocks:
        lines += [*([Line("")] if lines and block else []), *block]
    return lines


_ENDLESS: Final = 1 << 16
"""How wide a page is on which no name is cut."""

_HINT: Final = "(--all lists every name, --json for programs)"


def _head(made: Difference) -> str:
    """The answer."""
    if made.equal:
        return _equal(made)
    told = []
    apart = sum(not one.within for one in made.changed)
    if apart:
        told.append(f"{apart:,} of {count(made.compared, 'tensor')}")
    if made.values:
        told.append(_values_named(made.values))
    for side, leaves in (("a", made.only_a), ("b", made.only_b)):
        if leaves:
            told.append(f"{count(len(leaves), 'tensor')} only in {side}")
    if made.damaged:
        sides = sorted({name[0] for name in made.damaged})
        told.append(f"and {' and '.join(sides)} {'is' if len(sides) == 1 else 'are'} DAMAGED")
    rest = "" if apart or not made.compared else f"; {_same(made)}"
    return f"different: {', '.join(told)}{rest}"


def _equal(made: Difference) -> str:
    if made.structure_only:
        return f"equal in structure: {count(made.compared, 'tensor')}, all values"
    if made.changed:
        told = ", ".join(f"{name} {value:g}" for name, value in made.tolerances.items() if value)
        return (
            f"equal within {told}: {made.identical:,} of {count(made.compared, 'tensor')} bit for bit, "
            f"{len(made.changed):,} within; all values equal"
        )
    return f"equal: {count(made.compared, 'tensor')} bit for bit, all values"


def _same(made: Difference) -> str:
    number = count(made.compared, "tensor")
    if made.structure_only:
        return f"the {number} of both have equal shapes and dtypes"
    how = "within the tolerances" if made.changed else "bit for bit"
    return f"the {number} of both {'is' if made.compared == 1 else 'are'} equal {how}"


def _values_named(values: tuple[ValueDifference, ...]) -> str:
    """Values by the last word of their path, where they are few kinds."""
    words = list(dict.fromkeys(plain(value.path.rpartition(".")[2]) for value in values))
    words = [word for word in words if not word.isdigit()] or [plain(value.path) for value in values[:1]]
    more = f", ... ({count(len(values), 'value')})" if len(words) > _NAMED else ""
    return f"{', '.join(words[:_NAMED])}{more}"


def _sides(made: Difference, page: Page) -> list[Line]:
    """Which file is which, and what it is."""
    lines = []
    for side, path, form in (("a", made.a, made.forms[0]), ("b", made.b, made.forms[1])):
        text = f"{page.elide(plain(path), page.width // 2)}   {plain(form)}"
        lines += [Line(line) for line in page.wrap(text, first=f"  {side}  ", rest="       ")]
    return lines


def _about(made: Difference, page: Page) -> list[Line]:
    """What to know before reading numbers: damage, how names were matched, device tags."""
    lines = []
    for name in made.damaged[:_DAMAGED]:
        text = f"{plain(name)} does not match its own checksum: that is damage, no difference"
        lines += _wrapped(text, page, "error", first="  damaged  ", rest="           ")
    if len(made.damaged) > _DAMAGED:
        lines.append(Line(f"           and {len(made.damaged) - _DAMAGED:,} more", "error"))
    for word, notes in (("matched", made.matched), ("note", made.notes)):
        for note in notes:
            lines += _wrapped(plain(note), page, first=f"  {word:<7}  ", rest="           ")
    for row in made.retagged:
        lines += _wrapped(_retagged(row), page, first="  devices  ", rest="           ")
    return lines


_DAMAGED: Final = 8


def _retagged(row: Retagged) -> str:
    what = f"{count(row.tensors, 'tensor')}, {format_bytes(row.nbytes)}"
    return f"{plain(row.a)} -> {plain(row.b)}: {what} (a tag alone is no difference)"


def _amount(leaves: Any) -> str:
    return f"{count(len(leaves), 'tensor')}, {format_bytes(sum(leaf.nbytes for leaf in leaves))}"


def _table(title: str, rows: list[tuple[str, ...]], page: Page) -> list[Line]:
    if not rows:
        return []
    return [Line(f"  {title}"), *(Line(line) for line in page.table([(f"  {row[0]}", *row[1:]) for row in rows]))]


def _numbers(made: Difference, page: Page, *, all_names: bool) -> list[Line]:
    rows = tensor_rows(made.changed, page, all_names=all_names)
    if not rows:
        return []
    shown = 2 if page.width < _NARROW else 3 if page.width < _HALF else len(_HEAD)
    cut = [row if len(row) == 1 else row[:shown] for row in (_HEAD, *rows)]
    return [Line(line) for line in page.table(cut, right=frozenset({1, 2, 3, 4}) - {shown - 1})]


_HEAD: Final = ("tensors", "differ", "max abs", "max rel", "cosine", "first")
_NARROW: Final = 50
_HALF: Final = 72
"""Narrower pages show fewer columns; --json has all."""


def _wrapped(text: str, page: Page, tone: str = "", *, first: str = "", rest: str = "  ") -> list[Line]:
    return [Line(line, tone) for line in page.wrap(text, first=first, rest=rest)]
