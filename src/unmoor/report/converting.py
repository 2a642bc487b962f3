"""What a conversion wrote and how it differs from its source, as text and as a document. Pure.

The first line says what there is now; every difference that somebody asked for or that the format makes is a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from unmoor.values.conversion import Cast, Conversion
from unmoor.values.plan import Change
from unmoor.values.text import count, format_bytes, listing

from .attention import finding_lines
from .content import format_text, writer_text
from .layout import Line, Page, join_lines
from .restore import headline, renamed_words, row_lines, seconds_text
from .salvage import salvage_rows

__all__ = ["SCHEMA", "conversion_document", "conversion_lines", "conversion_text"]

SCHEMA: Final = "unmoor.conversion/1"

_WRITTEN: Final = {
    "torch": "a torch zip",
    "legacy": "a torch legacy stream",
    "safetensors": "safetensors",
    "dcp": "a folder of torch.distributed.checkpoint",
}


def conversion_text(made: Conversion, *, width: int = 80, ellipsis: str = "…") -> str:
    """The lines of `conversion_lines` as one text."""
    return join_lines(conversion_lines(made, width=width, ellipsis=ellipsis))


def conversion_lines(made: Conversion, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """What was written, out of what, how much of which role, and what is not as it was."""
    page = Page(width, ellipsis)
    first = headline("wrote", made.path, f": {format_bytes(made.nbytes)} in {seconds_text(made.seconds)}", page)
    rows = [("from", _source(made, page)), ("as", _form(made))]
    rows += [(role, f"{count(n, 'tensor')}, {format_bytes(b)}") for role, (n, b) in made.counts.items()]
    rows += [("renamed", text) for text in renamed_words(made.renamed)] if made.renamed else []
    rows += [("cast", text) for text in map(_cast, made.cast)]
    rows += [("plain", text) for text in _grouped(made.converted)]
    rows += made.notes
    rows += [("left out", text) for text in _grouped(made.left_out)]
    rows += salvage_rows(made.salvage) if made.salvage is not None else []
    return [*first, *row_lines(rows, page), *finding_lines(made.findings, page)]


def _source(made: Conversion, page: Page) -> str:
    told = ", ".join(filter(None, (format_text(made.source_format), writer_text(made.dialect))))
    return f"{page.elide(made.source, page.width // 2)} ({told})"


def _form(made: Conversion) -> str:
    files = f", {count(len(made.files), 'file')}" if made.files else ""
    return _WRITTEN[made.format] + files


def _cast(cast: Cast) -> str:
    head = f"{cast.before} -> {cast.after}: {count(len(cast.names), 'tensor')} of {cast.role}"
    if cast.after == "left as it is":
        return f"{cast.before}: {count(len(cast.names), 'tensor')} of {cast.role} left as they are"
    if not cast.changed:
        return f"{head}, every value the same"
    return f"{head}; {cast.changed:,} of {count(cast.elements, 'value')} rounded{_degree(cast)}"


def _degree(cast: Cast) -> str:
    return f", by at most {100 * cast.largest:.2g} %" if cast.largest else ""


def _grouped(changes: Sequence[Change]) -> Iterator[str]:
    """One line for all to which the same happened: what it was, what it is, where."""
    ways: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        ways.setdefault((change.before, change.after), []).append(change.name)
    for (before, after), names in ways.items():
        told = f"{before} -> {after}" if after != "left out" else before
        yield f"{told}: {listing(names)}"


def conversion_document(made: Conversion) -> dict[str, Any]:
    """A conversion as plain JSON values, with the number of its schema."""
    return {"schema": SCHEMA, **made.to_json()}
