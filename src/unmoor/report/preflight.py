"""What a preflight found, as words: the mismatch or that there is none, how far it came, what was invented. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from unmoor.values.finding import Finding
from unmoor.values.mismatch import Mismatch, SourceLine
from unmoor.values.preflight import INVENTED, PARTS, Preflight, Stop
from unmoor.values.text import count, format_bytes

from .layout import Line, Page, join_lines, plain
from .mismatch import code_rows, details, headline, remedy

__all__ = ["SCHEMA", "preflight_document", "preflight_lines", "preflight_text", "step_findings"]

SCHEMA: Final = "unmoor.preflight/1"
_SHOWN: Final = 3
"""Lines of one kind that are shown; of more the number is told."""


def step_findings(
    build: str, device: str, mismatch: Mismatch | None, stop: Stop | None, *, there: bool
) -> list[Finding]:
    """What the step itself showed, as findings."""
    found = []
    if mismatch is not None:
        place = mismatch.place or (mismatch.lines[-1].spot if mismatch.lines else "")
        found.append(Finding("device-mismatch", "error", place, headline(mismatch), remedy(mismatch)))
    if stop is not None:
        severity = "error" if stop.why == "fails" else "warning"
        place = stop.lines[-1].spot if stop.lines else ""
        found.append(Finding(_CODES[stop.why], severity, place, f"{stop.error}: {stop.message}", _STOPS[stop.why]))
    if not there:
        found.append(
            Finding(
                "run-stays-on-cpu",
                "warning",
                build,
                f"nothing of the model is on {device}, so the step ran on the CPU",
                "use the device that the function is given: model.to(device)",
            )
        )
    return found


_CODES: Final = {"fails": "step-fails", "operator": "not-faked", "invented": "not-faked"}
_STOPS: Final = {
    "fails": "a real run fails here too",
    "operator": "torch has no rule for it without data: what comes after was not checked",
    "invented": "values were invented before, so a real run may not come here: what comes after was not checked",
}


def preflight_document(found: Preflight) -> dict[str, Any]:
    """A preflight as a JSON document."""
    return {"schema": SCHEMA, **found.to_json()}


def preflight_text(found: Preflight) -> str:
    """A preflight as text for a page of 80 columns."""
    return join_lines(preflight_lines(found))


def preflight_lines(found: Preflight, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """A preflight as lines: the answer, what needs attention, how far the step came, what it would hold there."""
    page = Page(width, ellipsis)
    lines = [Line(line, "headline") for line in page.wrap(plain(_answer(found)), rest="  ")]
    if found.mismatch is not None:
        lines += [Line(f"  {line}") for line in details(found.mismatch, width - 2, ellipsis)]
        lines += [Line(line, "error") for line in remedy(found.mismatch, width).split("\n")]
    rows = [line for finding in found.findings if finding.code != "device-mismatch" for line in _finding(finding, page)]
    if found.stop is not None:
        rows += [Line(line) for line in _places(found.stop, page)]
    return [*lines, *rows, *_facts(found, page)]


def _places(stop: Stop, page: Page) -> list[str]:
    return [f"    {row}" for line in stop.lines for row in code_rows(line, page, page.width - 4)]


def _answer(found: Preflight) -> str:
    if found.mismatch is not None:
        return f"{found.build} would fail on {found.device}: {headline(found.mismatch)}"
    errors = [finding for finding in found.findings if finding.severity == "error"]
    if found.stop is not None and found.stop.why == "fails":
        return f"{found.build} would fail on {found.device}, and not for its devices"
    if errors:
        return f"{found.build} would fail on {found.device}: {count(len(errors), 'error')} in what it is made of"
    if any(finding.code == "run-stays-on-cpu" for finding in found.findings):
        return f"{found.build} never goes to {found.device}: its step ran on the CPU"
    if found.stop is not None:
        return f"no mismatch of devices in {found.build} on {found.device} as far as it could be followed"
    return f"no mismatch of devices: one step of {found.build} ran as if on {found.device}"


def _finding(finding: Finding, page: Page) -> list[Line]:
    place = f"{finding.place}: " if finding.place else ""
    text = f"{finding.severity}: {place}{finding.message}"
    lines = page.wrap(plain(text), first="  ", rest="    ")
    lines += page.wrap(plain(finding.remedy), first="    ", rest="    ") if finding.remedy else []
    return [Line(line, finding.severity if finding.severity in ("error", "warning") else "") for line in lines]


def _facts(found: Preflight, page: Page) -> list[Line]:
    rows = [("ran", _ran(found)), *_not_reached(found)]
    rows += [row for what, words in INVENTED.items() for row in _invented(found, what, words, page)]
    if found.placed:
        rows.append(("placed", f"{plain(found.build)} takes no device: its model was put on {found.device}"))
    if found.memory:
        total = format_bytes(sum(found.memory.values()))
        each = ", ".join(f"{what} {format_bytes(nbytes)}" for what, nbytes in found.memory.items())
        rows.append(("memory", f"{total} on {found.device} without activations: {each}"))
    return [Line(line) for line in page.table(rows)]


def _ran(found: Preflight) -> str:
    parts = [part if found.parts[part] == 1 else f"{part} ({found.parts[part]} times)" for part in _reached(found)]
    return f"{', '.join(parts)}, on tensors without data, in {found.seconds:.1f} s"


def _reached(found: Preflight) -> list[str]:
    return [part for part in PARTS if found.parts.get(part)]


def _not_reached(found: Preflight) -> list[tuple[str, str]]:
    left = [part for part in PARTS if not found.parts.get(part)]
    if not left:
        return []
    ended = found.mismatch is not None or found.stop is not None
    return [("not run", f"{', '.join(left)}: {'the step ended before' if ended else 'the step has none'}")]


def _invented(found: Preflight, what: str, words: str, page: Page) -> list[tuple[str, str]]:
    lines: Sequence[SourceLine] = [one.line for one in found.invented if one.what == what and one.line.file]
    if not lines:
        return []
    rows = [row for line in lines[:_SHOWN] for row in code_rows(line, page, page.width - 16)]
    shown = [("", f"  {row}".replace(" ", "\xa0")) for row in rows]
    more = [("", f"  and {count(len(lines) - _SHOWN, 'line')} more")] if len(lines) > _SHOWN else []
    return [("invented", words), *shown, *more]
