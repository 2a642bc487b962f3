"""One row of a listing, made of a glance or of what kept one from being had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from unmoor.errors import FileError, NotACheckpoint, UnmoorError, UnsupportedFile
from unmoor.places import Entry, exists
from unmoor.values.listing import Saved
from unmoor.values.progress import RUN, at, measured, number, progress, step_in

from .glance import Glance

__all__ = ["broken", "looked_at", "row_of"]

_NANOSECONDS: Final = 1e9
_LONGEST: Final = 300
_HALF: Final = "it holds the state within a step, which an exception ended"


def looked_at(entry: Entry, look: Callable[[], Glance], *, nbytes: int, sure: bool = True) -> Saved | None:
    """The row of what `look` glances at; None for what has gone meanwhile, and, unless `sure`, for no checkpoint."""
    try:
        return row_of(entry, look(), nbytes=nbytes)
    except FileNotFoundError:
        return None
    except (FileError, OSError) as error:
        if not exists(entry.path) or (isinstance(error, NotACheckpoint | UnsupportedFile) and not sure):
            return None
        return broken(entry, [_words(error, entry.path)], nbytes=nbytes)


def row_of(entry: Entry, glance: Glance, *, nbytes: int) -> Saved:
    """The row of what a glance told. The step is that of its values, else that of its name, else its optimizer's."""
    values, run = glance.values, at(glance.values, (RUN,))
    own, named = progress(values), step_in(entry.name)
    found = own or named
    half = at(run, ("interrupted",)) is True
    saves = number(at(values, (RUN, "number"))) or 0
    notes = list(glance.notes)
    if own and named and own.unit == named.unit and own.step != named.step:
        notes.append(f"its name says {named.unit} {named.step:,}")
    return Saved(
        path=entry.path,
        name=entry.name,
        step=found.step if found else glance.counter,
        unit=found.unit if found else "step",
        number=max(saves, 0),
        metrics={**measured(values), **glance.metrics},
        nbytes=nbytes,
        written=entry.changed / _NANOSECONDS,
        complete=not half,
        why=_HALF if half else "",
        dialect=glance.dialect,
        finished=at(run, ("finished",)) is True,
        notes=tuple(notes),
    )


def broken(entry: Entry, faults: Sequence[str], *, nbytes: int, dialect: str = "", named: bool = True) -> Saved:
    """The row of what cannot be resumed from, and why; its step is that of its name where it is `named` for it."""
    found = step_in(entry.name) if named else None
    return Saved(
        path=entry.path,
        name=entry.name,
        step=found.step if found else None,
        unit=found.unit if found else "step",
        nbytes=nbytes,
        written=entry.changed / _NANOSECONDS,
        complete=False,
        why="; ".join(faults)[:_LONGEST],
        dialect=dialect,
    )


def _words(error: FileError | OSError, path: str) -> str:
    """What an error says, without the path that the row names already."""
    if not isinstance(error, UnmoorError):
        return f"cannot be read: {error.strerror or error}"
    said = error.headline.removeprefix(path).lstrip(": ").replace(f"{path}: ", "")
    return said.removeprefix("is ") or "no checkpoint"
