"""A proof of a resumed run as text: whether it is equal; what differs first, why, and what to do; then the table.

Pure: proof in, lines out. What came from the user's run (names, values, errors) is escaped before it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from unmoor.values.proof import ABSENT, Compared, Difference, Proof
from unmoor.values.recording import RNG
from unmoor.values.text import columns

from .documents import strict
from .layout import Line, Page, cells, join_lines, plain

__all__ = ["SCHEMA", "difference_text", "headline", "proof_document", "proof_lines", "proof_text", "table_cells"]

SCHEMA: Final = "unmoor.proof/1"

_BITS: Final = "bit for bit"


def proof_text(proof: Proof, *, width: int = 80, ellipsis: str = "…") -> str:
    """What a proof found, as text of at most `width` columns."""
    return join_lines(proof_lines(proof, width=width, ellipsis=ellipsis))


def proof_lines(proof: Proof, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `proof_text` with their tones."""
    page = Page(width, ellipsis)
    tone = "headline" if proof.ok else "error"
    lines = [Line(line, tone) for line in page.wrap(headline(proof), rest="  ")]
    lines += [Line(line) for line in _rows(_facts(proof), page)]
    if proof.table:
        lines += [Line(line) for line in (_equal_table(proof, page) if proof.ok else _table(proof, page))]
    pictures = _rows([("picture", ", ".join(proof.pictures))] if proof.pictures else [], page)
    return [*lines, *(Line(line) for line in pictures)]


def proof_document(proof: Proof) -> dict[str, Any]:
    """A proof as plain JSON values for programs."""
    return {"schema": SCHEMA, **{key: strict(value) for key, value in proof.to_json().items()}}


def headline(proof: Proof) -> str:
    """The sentence that answers the question."""
    steps = f"{proof.steps} of {proof.steps} steps"
    if proof.verdict == "equal":
        return f"resumed run equals the uninterrupted run: {steps}, {_BITS}"
    if proof.verdict == "within":
        later = f"{proof.steps - proof.cut} of {proof.steps - proof.cut} steps after it within {proof.tolerance:g}"
        return f"resumed run equals the uninterrupted run: {_BITS} right after the restore, {later}"
    if proof.verdict == "undetermined":
        return "NOT proved: the run itself is not deterministic"
    if proof.difference is None:
        return "resumed run DIFFERS"
    if proof.difference.component == "the restore":
        return "the run DOES NOT RESUME from its checkpoint"
    if proof.difference.step == proof.cut:
        return f"resumed run DIFFERS from the restore on, after step {proof.cut}"
    return f"resumed run DIFFERS from step {proof.difference.step} on"


def _facts(proof: Proof) -> list[tuple[str, str]]:
    """Words and sentences below the headline."""
    rows = list(proof.setting)
    if proof.verdict == "within":
        rows.append(("largest", f"loss differs by {proof.largest:.1e} at most: the arithmetic is another one"))
    if proof.difference is not None and proof.difference.component != "the restore":
        rows.append(("first difference", difference_text(proof.difference, proof.cut)))
    if proof.cause:
        rows += [("cause" if not i else "", text) for i, text in enumerate(proof.cause.split("\n"))]
    rows += [*proof.notes, *([("fix", proof.fix)] if proof.fix else [])]
    return rows


def difference_text(found: Difference, cut: int) -> str:
    """The first difference as a sentence that shows both sides."""
    rank = f", on rank {found.rank}" if found.rank >= 0 else ""
    if found.component == "data order":
        theirs = f"the uninterrupted run drew {found.uninterrupted}"
        return f"data order: batch {found.step} holds {found.resumed}; {theirs}{rank}"
    more = f", and {found.more} more" if found.more else ""
    when = "right after the restore" if found.step == cut else f"after step {found.step}"
    if found.component.startswith(RNG):
        what = f"the random stream {found.name}"
        return f"{what} is not where it was {when}{more}{rank}"
    name = f"{found.component}: {found.name}" if found.name else found.component
    theirs = "had none" if found.uninterrupted == ABSENT else f"had {found.uninterrupted}"
    return f"{name} is {found.resumed} {when}; the uninterrupted run {theirs}{more}{rank}"


def _rows(rows: Sequence[tuple[str, str]], page: Page) -> list[str]:
    """Words in a column and their sentences beside it, wrapped."""
    width = max((cells(word) for word, _ in rows), default=0)
    lines = []
    for word, text in rows:
        first = f"  {word}{' ' * (width - cells(word))}   "
        lines += page.wrap(plain(text), first=first, rest=" " * cells(first))
    return lines


def _joined(proof: Proof) -> list[tuple[str, list[Compared]]]:
    """The rows of the table; random streams are one."""
    own = [(row.component, [row]) for row in proof.table if not row.component.startswith(RNG)]
    streams = [row for row in proof.table if row.component.startswith(RNG)]
    return [*own, ("rng", streams)] if streams else own


def _equal_table(proof: Proof, page: Page) -> list[str]:
    """Components and their verdicts, several on a line."""
    cellsets = [(name, _verdict(name, rows)) for name, rows in _joined(proof)]
    short = [pair for pair in cellsets if pair[0] != "rng"]
    wide = max((cells(name) for name, _ in cellsets), default=0)
    words = max((cells(word) for _, word in short), default=0)
    fitting = max((page.width - 2) // (wide + words + 6), 1)
    lines = []
    for start in range(0, len(short), fitting):
        parts = [f"{name.ljust(wide)}  {word.ljust(words)}" for name, word in short[start : start + fitting]]
        lines.append(("  " + "    ".join(parts)).rstrip())
    for name, word in cellsets:
        if name == "rng":
            lines += page.wrap(word, first=f"  {name.ljust(wide)}  ", rest=" " * (wide + 4))
    return lines


def _verdict(name: str, rows: Sequence[Compared]) -> str:
    if name != "rng":
        return rows[0].verdict
    return f"{', '.join(row.component.removeprefix(RNG) for row in rows)} equal"


def table_cells(proof: Proof) -> list[tuple[str, str, str]]:
    """A row for each component: right after the restore, and in the steps that followed; titles first."""
    steps = f"steps {proof.cut + 1} to {proof.steps}" if proof.cut + 1 < proof.steps else f"step {proof.steps}"
    made = [("", "restored", steps)]
    for name, rows in _joined(proof):
        if name == "rng":
            made += [(name if not i else "", *cell) for i, cell in enumerate(_streams(rows))]
        else:
            made.append((name, _restored(rows[0]), _later(rows[0])))
    return made


def _table(proof: Proof, page: Page) -> list[str]:
    rows = [tuple(map(plain, row)) for row in table_cells(proof)]
    lines = list(columns(rows, gap=3))
    return lines if all(cells(line) <= page.width for line in lines) else _narrow(rows, page)


def _narrow(rows: Sequence[tuple[str, ...]], page: Page) -> list[str]:
    """The table where it is wider than the page: close together, what is last in a row wrapped."""
    wide = [max(cells(row[i]) for row in rows) for i in (0, 1)]
    lines = []
    for row in rows:
        first = "  " + "".join(f"{text}{' ' * (width - cells(text))} " for text, width in zip(row, wide, strict=False))
        lines += page.wrap(row[2], first=first, rest=" " * cells(first))
    return [line.rstrip() for line in lines]


def _streams(rows: Sequence[Compared]) -> list[tuple[str, str]]:
    """Streams with one fate on one line each."""
    fates: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        fates.setdefault((_restored(row), _later(row)), []).append(row.component.removeprefix(RNG))
    return [(restored, f"{later}  ({', '.join(names)})") for (restored, later), names in fates.items()]


def _restored(row: Compared) -> str:
    return "" if row.restored is None else "equal" if row.restored else "DIFFERS"


def _later(row: Compared) -> str:
    if not row.steps:
        return ""
    if row.first:
        return f"differs from step {row.first}"
    return row.verdict if row.verdict == "within" else "equal"
