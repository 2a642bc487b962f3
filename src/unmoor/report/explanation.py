"""Whether a checkpoint fits a run, and the call that resumes it, as text. Pure.

The first line answers; then the faults, then the call, then what that call does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from unmoor.values.explanation import Explanation
from unmoor.values.text import count

from .documents import strict
from .layout import Line, Page, join_lines, plain
from .restore import plan_rows

__all__ = ["SCHEMA", "call_text", "explanation_document", "explanation_lines", "explanation_text"]

SCHEMA: Final = "unmoor.explanation/1"

_WIDTH: Final = 76
_CALL: Final = "report = unmoor.restore("


def call_text(path: str, roles: Sequence[str], keywords: Mapping[str, str]) -> str:
    """The call of restore as Python, its arguments under each other where it is long."""
    words = [repr(path), *(f"{role}={role}" for role in roles), *(f"{key}={text}" for key, text in keywords.items())]
    words = [word.replace("'", '"') if word.count("'") == 2 and '"' not in word else word for word in words]
    line = f"{_CALL}{', '.join(words)})"
    if len(line) <= _WIDTH:
        return line
    lines = [_CALL]
    for word in words:
        if lines[-1] != _CALL and len(lines[-1]) + len(word) + 2 <= _WIDTH:
            lines[-1] += f" {word},"
        else:
            lines.append(f"    {word},")
    return "\n".join([*lines, ")"])


def explanation_text(made: Explanation, *, width: int = 80, ellipsis: str = "…") -> str:
    """What restore would do with a checkpoint and a run, as text of at most `width` columns."""
    return join_lines(explanation_lines(made, width=width, ellipsis=ellipsis))


def explanation_lines(made: Explanation, *, width: int = 80, ellipsis: str = "…") -> list[Line]:
    """The lines of `explanation_text` with their tones."""
    page = Page(width, ellipsis)
    lines = [Line(line, "headline" if made.fits else "error") for line in page.wrap(_headline(made), rest="  ")]
    for fault in made.faults:
        lines += [Line(line) for line in page.wrap(plain(fault), first="  ", rest="      ")]
    if not made.call:
        remedy = made.remedy or "No keyword of restore lets it through: change the run, or take another file."
        return [*lines, *(Line(line) for line in page.wrap(plain(remedy)))]
    head = "Resume it with" if made.fits else "This call resumes it"
    lines += [Line(""), Line(head if made.fits else f"{head}, at a price" if _price(made) else head, "headline")]
    lines += [Line(f"  {line}") for line in map(plain, made.call.split("\n"))]
    for cost in _price(made):
        lines += [Line(line, "warning") for line in page.wrap(plain(cost), first="  costs  ", rest="         ")]
    if made.plan is not None:
        lines += [Line(""), Line("It would do this", "headline"), *plan_rows(made.plan, page)]
    own = [change for change in made.live_only if change.after == "not restored"]
    for change in own:
        text = f"{change.label}: {change.before}, so nothing of it is restored"
        remedy = "; wrap it where it is made: unmoor.resumable(loader)" if "position" in change.before else ""
        lines += [Line(line, "warning") for line in page.wrap(plain(text + remedy), first="  ", rest="    ")]
    return lines


def explanation_document(made: Explanation) -> dict[str, Any]:
    """An explanation as plain JSON values for programs."""
    return {"schema": SCHEMA, **{key: strict(value) for key, value in made.to_json().items()}}


def _headline(made: Explanation) -> str:
    path = plain(made.path)
    if made.fits:
        return f"{path} fits the run of {plain(made.build)}: nothing was changed"
    number = count(len(made.faults), "fault") if made.error != "KindError" else "it is of another kind"
    return f"{path} does NOT fit the run of {plain(made.build)} as it is: {number}"


def _price(made: Explanation) -> tuple[str, ...]:
    return made.trial.cost if made.trial is not None else ()
