"""A catalog as a page of text: the first line answers the question, then what needs attention, then the detail.

Pure: catalog in, lines out. Everything that came out of a file is escaped here before it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unmoor.values.catalog import Catalog
from unmoor.values.text import format_bytes

from .about import Fact, facts
from .attention import attention_lines, note_lines, remedy_lines
from .claims import claims
from .content import Safety, headline, safety, safety_text
from .devices import devices_text
from .layout import Line, Page, cells, join_lines, plain, plain_words
from .members import membership
from .own import with_own_joined
from .roles import role_lines
from .sharing import sharing
from .tree import tensor_lines, tree_lines

__all__ = ["inspect_lines", "inspect_text", "page_lines"]


def inspect_text(catalog: Catalog, *, width: int = 80, all_tensors: bool = False, ellipsis: str = "…") -> str:
    """What a file holds, as text of at most `width` columns.

    `all_tensors` lists every tensor by its whole name, however long, instead of folding names into patterns.
    `ellipsis` stands where the middle of something long was left out.
    """
    return join_lines(inspect_lines(catalog, width=width, all_tensors=all_tensors, ellipsis=ellipsis))


def inspect_lines(catalog: Catalog, *, width: int = 80, all_tensors: bool = False, ellipsis: str = "…") -> list[Line]:
    """The lines of `inspect_text` with their tones."""
    page, judged, claimed = Page(width, ellipsis), safety(catalog), claims(catalog)
    catalog = with_own_joined(catalog)
    members = membership(catalog)
    blocks = [
        [*_wrapped(headline(catalog), page, "headline"), *_second(catalog, judged, page)],
        attention_lines(catalog, judged, page),
        role_lines(members, claimed, page),
        _facts([*facts(catalog, members, claimed, judged), *sharing(catalog)], page),
        note_lines(catalog, judged, page),
        tensor_lines(catalog) if all_tensors else tree_lines(members, page),
        [] if all_tensors or not catalog.tensors else _wrapped(_HINT, page, "hint", first="  ", rest="   "),
    ]
    lines: list[Line] = []
    for block in blocks:
        lines += [*([Line("")] if lines and block else []), *block]
    return lines


def page_lines(catalog: Catalog, target: str, nbytes: int, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """What was written where, under the first line of the text form."""
    page = Page(width, ellipsis)
    where = f"page {plain(target)}, {format_bytes(nbytes)}: open it in a browser; it needs no network"
    return [*_wrapped(headline(catalog), page, "headline"), *_wrapped(where, page, rest="  ")]


_HINT: Final = "(--all lists every tensor, --json for programs, --html FILE for a page)"


def _facts(rows: Sequence[Fact], page: Page) -> list[Line]:
    """A word and its sentence a row; a word that several rows share is said once."""
    width, said, lines = max((len(word) for word, _ in rows), default=0) + 4, "", []
    for word, text in rows:
        start = f"  {'' if word == said else word}".ljust(width)
        lines += _wrapped(plain_words(text), page, first=start, rest=" " * width)
        said = word
    return lines


def _second(catalog: Catalog, judged: Safety, page: Page) -> list[Line]:
    """Where the tensors were, and whether the file holds code; together where both fit on one line."""
    where, code = plain(devices_text(catalog)), safety_text(judged)
    if judged.dangers:
        remedy = judged.dangers[0].remedy
        told = [*_wrapped(where, page), *_wrapped(code, page, "danger")]
        return [*told, *([Line(line) for line in remedy_lines(remedy, page)] if remedy else [])]
    together = f"{where}   {code}"
    return [Line(together)] if cells(together) <= page.width else [*_wrapped(where, page), *_wrapped(code, page)]


def _wrapped(text: str, page: Page, tone: str = "", *, first: str = "", rest: str = "  ") -> list[Line]:
    return [Line(line, tone) for line in page.wrap(text, first=first, rest=rest)]
