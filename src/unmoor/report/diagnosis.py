"""A diagnosis as a person reads it: whether a step will work, what stands in its way, and what was looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from unmoor.values.diagnosis import Diagnosis
from unmoor.values.finding import PAGE, Finding
from unmoor.values.text import count, listing

from .layout import Line, Page, join_lines, plain

__all__ = ["diagnosis_lines", "diagnosis_text", "silent"]

_SILENT: Final = frozenset(
    {"not-finite", "optimizer-holds-other-parameters", "scheduler-of-another-optimizer", "stale-groups"}
)
"""Errors with which a step runs and does something else than it says."""

_NOUNS: Final = (("parameters", "parameter"), ("buffers", "buffer"), ("state", "tensor"))


def silent(findings: Sequence[Finding]) -> bool:
    """Whether every error among the findings lets the step run, and makes it wrong."""
    errors = {finding.code for finding in findings if finding.severity == "error"}
    return bool(errors) and errors <= _SILENT


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as text of 80 columns."""
    return join_lines(diagnosis_lines(diagnosis, Page()))


def diagnosis_lines(diagnosis: Diagnosis, page: Page) -> list[Line]:
    """First what the answer is, then each finding with the line that fixes it, then what was looked at."""
    lines = [Line(line, _tone(diagnosis)) for line in page.wrap(_headline(diagnosis), rest="  ")]
    for finding in diagnosis.findings:
        lines += _finding(finding, page)
    for label, reason in diagnosis.unseen:
        lines += [Line(line) for line in page.wrap(f"not looked at: {label}: {plain(reason)}", rest="  ")]
    if diagnosis.errors or diagnosis.warnings:
        looked = _looked(diagnosis.looked, diagnosis.devices)
        lines += [Line(line) for line in page.wrap(f"looked at {looked}", rest="  ")]
    codes = list(dict.fromkeys(finding.code for finding in diagnosis.findings))
    if codes:
        where = f"explained in {PAGE}#{codes[0]}" if len(codes) == 1 else f"each code is explained in {PAGE}"
        lines += [Line(line, "hint") for line in page.wrap(where, rest="  ")]
    return lines


def _tone(diagnosis: Diagnosis) -> str:
    return "error" if diagnosis.errors else "warning" if diagnosis.warnings else "headline"


def _headline(diagnosis: Diagnosis) -> str:
    errors, warnings = len(diagnosis.errors), len(diagnosis.warnings)
    numbers = ", ".join(count(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n)
    if silent(diagnosis.findings):
        return f"this step will run and be wrong: {numbers}"
    if errors:
        return f"this step will fail: {numbers}"
    if warnings:
        return f"this step may go wrong: {numbers}"
    seen = "nothing that was looked at" if diagnosis.unseen else "nothing"
    return f"{seen} stands in the way of a step: {_looked(diagnosis.looked, diagnosis.devices)}"


def _looked(looked: Mapping[str, int], devices: Mapping[str, int]) -> str:
    parts = [count(looked["parameters"], "parameter")]
    parts += [count(looked["buffers"], "buffer")] if looked["buffers"] else []
    parts += [f"{count(looked['state'], 'tensor')} of optimizer state"] if looked["state"] else []
    parts += [f"a batch of {count(looked['batch'], 'tensor')}"] if looked["batch"] else []
    return f"{', '.join(parts)} on {listing(list(devices), 6) or 'no device'}"


def _finding(finding: Finding, page: Page) -> list[Line]:
    word = "note" if finding.severity == "info" else finding.severity
    tone = finding.severity if finding.severity in ("error", "warning") else ""
    place = f"{plain(finding.place)}: " if finding.place else ""
    text = f"{place}{plain(finding.message)}"
    lines = [Line(line, tone) for line in page.wrap(text, first=f"{word} {finding.code}: ", rest="  ")]
    return lines + ([Line(f"  -> {plain(finding.remedy)}")] if finding.remedy else [])
