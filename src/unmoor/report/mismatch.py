"""A mismatch of devices as words: who got what from where, both sides, the code, the line that fixes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from unmoor.values.mismatch import FIXES, Fix, Met, Mismatch, SourceLine
from unmoor.values.text import count, format_shape

from .layout import Page, plain

__all__ = ["code_rows", "details", "headline", "remedy", "with_text"]

_ROWS: Final = 4
_STATES: Final = 2
"""Tensors of one device that are named, and state of parameters; of more the number is told."""


def with_text(mismatch: Mismatch) -> Mismatch:
    """The mismatch with its whole message."""
    lines = [headline(mismatch), *(f"  {line}" for line in details(mismatch))]
    return replace(mismatch, text="\n".join([*lines, remedy(mismatch)]).rstrip())


def headline(mismatch: Mismatch) -> str:
    """Who met what where, in one sentence."""
    return plain(_SENTENCES[mismatch.situation](mismatch))


def remedy(mismatch: Mismatch, width: int = 80) -> str:
    """What to do, the likeliest cause first."""
    return "\n".join(_cure(fix, width) for fix in mismatch.fixes if fix.kind)


def _cure(fix: Fix, width: int) -> str:
    """The kind of cure, and the line of code, on a line of its own where both do not fit on one."""
    words, line = FIXES[fix.kind], plain(fix.line)
    if len(words) + len(line) + 2 <= width:
        return f"{words}: {line}"
    return "\n".join([*Page(width).wrap(f"{words}:"), f"  {line}"])


def details(mismatch: Mismatch, width: int = 80, ellipsis: str = "…") -> list[str]:
    """Both sides, one row a device, and the lines of code: under each other, for a page of `width` columns."""
    rows = [(device, plain(_side(mismatch, device))) for device in _devices(mismatch)]
    page = Page(width, ellipsis)
    start = max(len(row[0]) for row in rows) + 4
    made = dict.fromkeys(met.made for met in mismatch.away if met.made not in (None, *mismatch.lines))
    for word, lines in (("made", [line for line in made if line]), ("at", mismatch.lines)):
        shown = [row for line in lines for row in code_rows(line, page, width - start)]
        rows += [(word if not i else "", row.replace(" ", "\xa0")) for i, row in enumerate(shown)]
    return [line[2:] for line in page.table(rows)]


def code_rows(line: SourceLine, page: Page, room: int) -> list[str]:
    """A line of code with its place, in `room` columns; on two rows where one is too short. Code stays in one piece."""
    whole = plain(str(line))
    return [whole] if len(whole) <= room else [plain(line.spot), "  " + page.elide(plain(line.text), room - 2)]


def _devices(mismatch: Mismatch) -> list[str]:
    """The devices that met, those that are away first."""
    away = [met.device for met in mismatch.away]
    home = [mismatch.home] if mismatch.home not in mismatch.devices and mismatch.others.get(mismatch.home) else []
    return list(dict.fromkeys([*away, *mismatch.devices, *home]))


def _side(mismatch: Mismatch, device: str) -> str:
    """What lies on one device: the tensors that met, and how many parameters of the model besides."""
    met = [one for one in mismatch.met if one.device == device]
    others = mismatch.others.get(device, 0) if device == mismatch.home else 0
    if device == mismatch.home:
        spare = [one for one in met if one.kind == "parameter"][1:]
        met, others = [one for one in met if one not in spare], others + len(spare)
    most = _STATES if met and met[0].kind == "state" else _ROWS
    shown = [_named(one, alone=len(met) == 1) for one in met[:most]]
    if len(met) > most:
        shown.append(f"{len(met) - most} more")
    if others and any(one.kind == "parameter" for one in met):
        shown.append(count(others, "other parameter"))
    elif others:
        shown.append(f"{count(others, 'parameter')} of the model")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _named(met: Met, *, alone: bool) -> str:
    if not alone or met.shape is None or met.kind in ("parameter", "state"):
        return met.name
    return f"{met.name} ({met.dtype} {format_shape(met.shape)})"


def _module(mismatch: Mismatch) -> str:
    given = [met for met in mismatch.met if not _is_own(met)]
    own = [met for met in mismatch.met if _is_own(met)]
    who = _who(mismatch)
    pair = next(((a, b) for a in given for b in own if a.device != b.device), None)
    if pair is not None:
        return f"{who} got its {_word(pair[0])} on {pair[0].device}, its {_word(pair[1])} is on {pair[1].device}"
    first, second = _pair(mismatch.met)
    if _is_own(first) and _is_own(second):
        return f"{who} has its {_word(first)} on {first.device}, its {_word(second)} on {second.device}"
    return f"{who} got its {_word(first)} on {first.device}, its {_word(second)} on {second.device}"


def _code(mismatch: Mismatch) -> str:
    first, second = _pair(sorted(mismatch.met, key=lambda met: met.device == mismatch.home))
    where = _who(mismatch) if mismatch.owner else _spot(mismatch.lines)
    return f"{where} brings together {first.name} on {first.device} and {second.name} on {second.device}"


def _optimizer(mismatch: Mismatch) -> str:
    away, home = mismatch.away[0], mismatch.met[-1]
    what = f"holds {away.name}" if away.kind == "state" else f"was given the {away.name}"
    return f"{_who(mismatch)} {what} on {away.device}, the parameter is on {home.device}"


def _capturable(mismatch: Mismatch) -> str:
    return f"{_who(mismatch)} is capturable, and its parameter {mismatch.met[0].name} is on {mismatch.home}"


def _wrapper(mismatch: Mismatch) -> str:
    met = mismatch.met[0]
    return f"{_who(mismatch)} wants its module on {mismatch.home}, and {met.name} is on {met.device}"


_SENTENCES: Final = {
    "module": _module,
    "code": _code,
    "optimizer": _optimizer,
    "capturable": _capturable,
    "wrapper": _wrapper,
}


def _who(mismatch: Mismatch) -> str:
    if not mismatch.place:
        return mismatch.owner
    return f"{mismatch.place} ({mismatch.owner})" if mismatch.owner else mismatch.place


def _spot(lines: Sequence[SourceLine]) -> str:
    return lines[-1].spot if lines else "this code"


def _is_own(met: Met) -> bool:
    """Whether the tensor belongs to the module, and was not handed in."""
    return met.kind in ("parameter", "buffer", "attribute", "loss")


def _word(met: Met) -> str:
    """What the module calls a tensor: the last part of the name of one of its own."""
    return met.name.rpartition(".")[2] if _is_own(met) else met.word or met.name


def _pair(mets: Sequence[Met]) -> tuple[Met, Met]:
    """The first two that are on different devices."""
    first = mets[0]
    return first, next((met for met in mets if met.device != first.device), first)
