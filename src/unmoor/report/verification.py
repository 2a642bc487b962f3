"""What became of a check of a checkpoint, as text. Pure: values in, words out.

The first line says whether it is sound and how much of it a checksum vouches for. What none vouches for is always said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unmoor.errors import UnmoorError
from unmoor.values.finding import Finding
from unmoor.values.text import count, format_bytes, listing
from unmoor.values.verification import BadData, Unchecked, Verification

from .attention import finding_lines
from .layout import Line, Page, cells, join_lines, plain

__all__ = ["summary_line", "verification_line", "verification_lines", "verification_text", "verifications_document"]

_SHOWN: Final = 12
"""The most faults to spell out; --json has all of them."""

_DETAILS: Final = 6
_NAMED: Final = 4


def verification_text(made: Verification, *, width: int = 80, ellipsis: str = "…") -> str:
    """Whether a checkpoint is what was saved, every fault of it, and what no checksum vouches for."""
    return join_lines(verification_lines(made, width=width, ellipsis=ellipsis))


def verification_lines(made: Verification, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `verification_text` with their tones."""
    page = Page(width, ellipsis)
    verdict = _verdict(made)
    head = f"{page.elide(plain(made.path), max(width - cells(verdict) - 2, width // 3))}: {verdict}"
    lines = [Line(line, "error" if made.faults else "headline") for line in page.wrap(plain(head), rest="  ")]
    if made.records and not made.faults:
        lines.append(Line(f"  {_amount(made)}"))
    for fault in made.faults[:_SHOWN]:
        lines += _fault(fault, page, alone=len(made.faults) == 1)
    if len(made.faults) > _SHOWN:
        lines.append(Line(f"  and {len(made.faults) - _SHOWN:,} more (--json lists all)", "error"))
    lines += [Line(line) for line in _rest(made, page)]
    grave = [finding for finding in made.findings if finding.severity != "info"]
    return [*lines, *finding_lines([*grave, *_claims(made.findings)], page)]


def _claims(findings: Sequence[Finding]) -> list[Finding]:
    """What a reader should know of the manifest; other notes are told by inspect."""
    return [f for f in findings if f.severity == "info" and f.code.startswith("manifest-")]


def _verdict(made: Verification) -> str:
    if made.faults:
        return f"DAMAGED, {_how_bad(made)}"
    errors = sum(finding.severity in ("error", "danger") for finding in made.findings)
    tail = f"; but {count(errors, 'finding')} below" if errors else ""
    if not made.records:
        return f"structure whole, no checksums to check{tail}"
    return f"every checksum holds{tail}"


def _amount(made: Verification) -> str:
    """How much was checked, and how fast."""
    what = f"{count(made.tensors, 'tensor')}, {count(made.records, 'record')}, {format_bytes(made.nbytes)}"
    rate = f" ({format_bytes(int(made.nbytes / made.seconds))}/s)" if made.seconds > 0.1 else ""
    return f"{what} in {_seconds(made.seconds)}{rate}"


def _how_bad(made: Verification) -> str:
    summed = [fault for fault in made.faults if fault.kind != "structure"]
    if not summed:
        return (
            "its structure is broken" if len(made.faults) == 1 else f"{count(len(made.faults), 'fault')} in structure"
        )
    is_are = "is" if len(summed) == 1 else "are"
    return f"{len(summed):,} of {count(made.records, 'record')} {is_are} not what was saved"


def _fault(fault: BadData, page: Page, *, alone: bool) -> list[Line]:
    if fault.kind == "structure":
        told = page.wrap(plain(fault.message), first="  ", rest="    ")
        shown = fault.details[: None if alone else _DETAILS]
        told += [line for detail in shown for line in page.wrap(plain(detail), first="    ", rest="      ")]
        if len(shown) < len(fault.details):
            told.append(f"    and {len(fault.details) - len(shown):,} more")
        return [Line(line, "error") for line in told]
    place = plain(fault.place)
    what = plain(listing(fault.tensors, _NAMED)) if fault.tensors else f"{place}{_no_tensor(fault)}"
    where = f"bytes {fault.start:,} to {fault.end:,}" + (f" of {plain(fault.file)}" if fault.file else "")
    sums = f"CRC-32 saved {fault.saved:08x}, read {fault.read:08x}" if fault.read is not None else plain(fault.message)
    lines = page.wrap(what, first="  ", rest="    ")
    return [
        *(Line(line, "error") for line in lines),
        *(Line(line) for line in page.wrap(f"{where}; {sums}", first="    ", rest="    ")),
    ]


_RECORDS: Final = {
    "data.pkl": " (the pickle: the tree of everything)",
    "manifest.json": " (unmoor's manifest)",
    "byteorder": " (the byte order of all data)",
    "version": " (the version of the archive)",
}


def _no_tensor(fault: BadData) -> str:
    """What a record is that holds no tensor."""
    return _RECORDS.get(fault.place.rpartition("/")[2], "")


def _rest(made: Verification, page: Page) -> list[str]:
    """What holds beside the faults, what stands unverified, and what to use instead."""
    bad = sum(fault.kind != "structure" for fault in made.faults)
    lines: list[str] = []
    if made.faults and made.records > bad:
        good = f"{count(made.records - bad, 'other record')} {'holds' if made.records - bad == 1 else 'hold'}"
        lines += page.wrap(f"{good}, {count(made.tensors, 'tensor')} among them", first="  ", rest="    ")
    for row in made.unchecked:
        lines += page.wrap(f"unverified  {_unchecked(row)}", first="  ", rest=" " * 14)
    if made.newest:
        how = (
            "newest that verifies here" if made.newest_holds else "newest beside it, whole in structure (not verified)"
        )
        told = f"{how}: {plain(made.newest)}"
        lines += page.wrap(told, first="  -> ", rest="     ")
    return lines


def _unchecked(row: Unchecked) -> str:
    what = [count(row.tensors, "tensor")] if row.tensors else []
    what += [format_bytes(row.nbytes)] if row.nbytes else []
    return f"{row.reason}{'; ' if what else ''}{', '.join(what)}{'; structure checked' if row.tensors else ''}"


def verification_line(
    path: str, made: Verification | Exception, *, column: int = 0, width: int = 80, ellipsis: str = "…"
) -> Line:
    """One of several checkpoints in one line: what it is, which, and what is the matter.

    `column` is the length of the longest of their paths.
    """
    page = Page(width, ellipsis)
    if isinstance(made, Exception):
        word, tone = "ERROR", "error"
        text = f"{type(made).__name__}: {made.headline if isinstance(made, UnmoorError) else made}"
        text = text.replace(f"{path} ", "", 1).replace(f"{path}: ", "", 1)
    else:
        word, tone, text = _short(made)
    room = max(width // 2 - 10, 16)
    name = page.elide(plain(path), room)
    space = " " * (min(column, room) - cells(name))
    start = f"{word:<7}  {name}{space}  "
    return Line(start + page.elide(plain(text), max(width - cells(start), 16)), tone)


def _short(made: Verification) -> tuple[str, str, str]:
    """The word for a checkpoint, its tone, and the rest of its line."""
    if made.faults:
        if made.damaged:
            return "DAMAGED", "error", listing(made.damaged, 2)
        first = made.faults[0]
        text = first.message.removeprefix(made.path).lstrip(": ") if first.kind == "structure" else first.place
        return "DAMAGED", "error", text
    worst = next((f for f in made.findings if f.severity in ("danger", "error")), None)
    if worst is not None:
        return worst.severity.upper(), worst.severity, worst.message
    if made.complete:
        return "ok", "", f"{count(made.tensors, 'tensor')}, {format_bytes(made.nbytes)}"
    bare = sum(row.nbytes for row in made.unchecked)
    return "no sums", "warning", f"structure whole; {format_bytes(bare)} unverified"


def summary_line(ok: int, number: int) -> Line:
    """The last line of several: how many are sound."""
    if ok == number:
        return Line(f"all {number:,} are sound", "headline")
    return Line(f"{number - ok:,} of {number:,} {'is' if number - ok == 1 else 'are'} not sound", "error")


def verifications_document(results: Sequence[tuple[str, Verification | Exception]]) -> dict[str, object]:
    """Several checkpoints as one JSON document; an error as its class and its words."""
    rows = [made.to_json() if isinstance(made, Verification) else _error(path, made) for path, made in results]
    return {"schema": "unmoor.verifications/1", "ok": all(row["ok"] for row in rows), "results": rows}


def _error(path: str, error: Exception) -> dict[str, object]:
    return {"path": path, "ok": False, "error": type(error).__name__, "message": str(error)}


def _seconds(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"
