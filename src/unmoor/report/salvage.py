"""What became of a rescue, as rows of a receipt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unmoor.values.salvage import Lost, Salvage
from unmoor.values.text import count, listing

__all__ = ["salvage_rows"]

_SHOWN: Final = 12
"""The most reasons to spell out; --json has every tensor."""


def salvage_rows(made: Salvage) -> list[tuple[str, str]]:
    """A word and a sentence each: how the source was read, what vouches for what was rescued, what is lost and why."""
    rows = [("source", note) for note in made.notes]
    rows += [("rescued", text) for text in _vouched(made)]
    lost = [one for one in made.lost if not one.kept]
    rows += [("LOST", text) for text in _reasons(lost)]
    rows += [("DAMAGED", f"{text}; written as it is") for text in _reasons([one for one in made.lost if one.kept])]
    rows += [("incomplete", f"{role}: {what}") for role, what in made.incomplete]
    if not made.lost and not made.incomplete:
        rows.append(("lost", "nothing that is known of"))
    return rows


def _vouched(made: Salvage) -> Iterator[str]:
    if made.summed:
        yield f"{count(made.summed, 'tensor')} whose checksum holds"
    if made.bare:
        yield f"{count(made.bare, 'tensor')} without a checksum to hold: damage to them cannot be seen"


def _reasons(lost: Sequence[Lost]) -> Iterator[str]:
    """One line for each reason, with the tensors that it is true of."""
    ways: dict[str, list[str]] = {}
    for one in lost:
        ways.setdefault(one.why, []).append(one.path)
    for number, (why, names) in enumerate(ways.items()):
        if number == _SHOWN:
            yield f"and {len(lost) - sum(map(len, list(ways.values())[:_SHOWN])):,} more (--json lists all)"
            return
        yield f"{listing(names)}: {why}"
