"""Which tensor of one state dict is which of another: by equal names, or by a reading of them that is proved.

Nobody is restored here, so what no reading pairs is listed on its own side and nothing is an error. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .names import match_names, without_wrappers

__all__ = ["NamePairs", "pair_names"]

_DROPPED: Final = " without "
"""In the words of a reading that drops what one side has more: said rather than that the other side lacks it."""

Shapes = Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class NamePairs:
    """`pairs` are (name in a, name in b), in the order of a. `how` says the reading, "" where names are equal."""

    pairs: tuple[tuple[str, str], ...]
    how: str = ""


def pair_names(a: Shapes, b: Shapes) -> NamePairs:
    """The reading that pairs the most names; of two that pair as many, the one that changes names least."""
    best = NamePairs(tuple((name, name) for name in a if name in b))
    if len(best.pairs) in (len(a), len(b)):
        return best
    return max([best, *_readings(a, b)], key=lambda found: (len(found.pairs), not found.how, _DROPPED in found.how))


def _readings(a: Shapes, b: Shapes) -> Iterator[NamePairs]:
    for side, saved, live in (("a", a, b), ("b", b, a)):
        known = {name: shape for name, shape in live.items() if shape is not None}
        match = match_names(saved, known)
        readings = [match.reading, *(match.near if len(match.near) == 1 else ())]
        for reading in [] if match.rivals else readings:
            pairs = ((one, other) if side == "a" else (other, one) for other, one in reading.pairs.items())
            yield NamePairs(_ordered(a, pairs), f"names of {side} {reading.how}")
    bare_a, bare_b = _bare(a), _bare(b)
    if bare_a is not None and bare_b is not None:
        found = ((name, bare_b[bare]) for bare, name in bare_a.items() if bare in bare_b)
        yield NamePairs(_ordered(a, found), "names without wrappers' segments")


def _ordered(a: Shapes, pairs: Iterator[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    found = dict(pairs)
    return tuple((name, found[name]) for name in a if name in found)


def _bare(names: Shapes) -> dict[str, str] | None:
    """Name without wrappers' segments -> name; None where two would become one."""
    made = {without_wrappers(name): name for name in names}
    return made if len(made) == len(names) else None
