"""What a reader should act on: the findings of a file, worst first, many of one kind together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from unmoor.values.catalog import Catalog
from unmoor.values.finding import SEVERITIES, Finding

from .content import Safety
from .layout import Line, Page, plain

__all__ = ["attention_lines", "finding_lines", "note_lines", "remedy_lines"]

_ALIKE: Final = 4
"""The most findings of one code to spell out."""

_TONES: Final = {"danger": "danger", "error": "error", "warning": "warning"}


def attention_lines(catalog: Catalog, judged: Safety, page: Page) -> list[Line]:
    """The findings to act on that the lines above have not told yet."""
    return finding_lines([f for f in catalog.findings if f.severity != "info" and f not in judged.told], page)


def note_lines(catalog: Catalog, judged: Safety, page: Page) -> list[Line]:
    """The findings that a reader should only know."""
    return finding_lines([f for f in catalog.findings if f.severity == "info" and f not in judged.told], page)


def finding_lines(findings: Sequence[Finding], page: Page) -> list[Line]:
    """Findings, worst first; each with its place, what is the matter, and what to do about it."""
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=_rank, reverse=True):
        by_code.setdefault((finding.severity, finding.code), []).append(finding)
    lines: list[Line] = []
    for (severity, _), alike in by_code.items():
        tone, shown = _TONES.get(severity, ""), alike if len(alike) <= _ALIKE + 1 else alike[:_ALIKE]
        remedies = {finding.remedy for finding in shown}
        for finding in shown:
            remedy = finding.remedy if len(remedies) > 1 else ""
            lines += [Line(line, tone) for line in _finding(finding, remedy, page)]
        if len(shown) < len(alike):
            lines.append(Line(f"  and {len(alike) - len(shown):,} more of this kind", tone))
        if len(remedies) == 1 and alike[0].remedy:
            lines += [Line(line) for line in remedy_lines(alike[0].remedy, page)]
    return lines


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else 0


def _finding(finding: Finding, remedy: str, page: Page) -> list[str]:
    word = "note" if finding.severity == "info" else finding.severity
    place = f"{page.elide(plain(finding.place), page.width // 2)}: " if finding.place else ""
    lines = page.wrap(f"{place}{plain(finding.message)}", first=f"{plain(word)}: ", rest="  ")
    return [*lines, *(remedy_lines(remedy, page) if remedy else [])]


def remedy_lines(remedy: str, page: Page) -> list[str]:
    """What to do, below what is the matter."""
    return page.wrap(plain(remedy), first="  -> ", rest="     ")
