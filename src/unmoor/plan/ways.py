"""Tensors that file or live model keep in another form than themselves: weight_norm, pruning and their like.

Two ways of one family hold the same numbers under other names, and are carried over as renamed. Any other difference
is a fault that names both ways and what to call; nothing is computed from one form to the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from unmoor.values.parametrizations import PARAMETRIZATIONS, found_in
from unmoor.values.text import listing

from .names import NameMatch, Reading, match_names
from .policy import Fault

__all__ = ["different_ways", "other_spelling"]

_SIBLINGS = {
    row.name: next(first for first in PARAMETRIZATIONS.values() if first.family == row.family)
    for row in PARAMETRIZATIONS.values()
}
"""Row -> the row of its family by whose names both sides are compared."""


def other_spelling(
    saved: Collection[str], ways: Mapping[str, str], match: Callable[[Mapping[str, str], Mapping[str, str]], NameMatch]
) -> NameMatch | None:
    """The match of names as one way of each family spells them; None where that changes nothing.

    `ways` are the live model's. `match` gets common -> saved name and common -> live name, and tells in common names.
    """
    families = {PARAMETRIZATIONS[row].family for row in ways.values()}
    theirs = {stem: row for stem, row in found_in(saved).items() if PARAMETRIZATIONS[row].family in families}
    saved_names, live_names = _common(theirs), _common(ways)
    if set(theirs.values()) == set(ways.values()) or not theirs:
        return None
    found = match(saved_names, live_names)
    back_saved = {new: old for old, new in saved_names.items()}
    back_live = {new: old for old, new in live_names.items()}
    changed = sorted(set(theirs.values()) ^ (set(theirs.values()) & set(ways.values())))
    how = f"{found.reading.how}, {', '.join(changed)} as the live model spells it"
    return _back(found, back_saved, back_live, how)


def _common(ways: Mapping[str, str]) -> dict[str, str]:
    """Name -> the name that the first row of its family has for the same tensor, where the two differ."""
    renamed: dict[str, str] = {}
    for stem, row in ways.items():
        renamed |= zip(PARAMETRIZATIONS[row].spelled(stem), _SIBLINGS[row].spelled(stem), strict=True)
    return {old: new for old, new in renamed.items() if old != new}


def _back(match: NameMatch, saved: Mapping[str, str], live: Mapping[str, str], how: str) -> NameMatch:
    pairs = {live.get(ours, ours): saved.get(theirs, theirs) for ours, theirs in match.reading.pairs.items()}
    outside = tuple(saved.get(name, name) for name in match.reading.outside)
    return replace(
        match,
        reading=Reading(how, pairs, outside),
        missing=tuple(live.get(name, name) for name in match.missing),
        unexpected=tuple(saved.get(name, name) for name in match.unexpected),
        mismatched=tuple(live.get(name, name) for name in match.mismatched),
    )


def different_ways(label: str, saved: Iterable[str], live: Iterable[str], ways: Mapping[str, str]) -> list[Fault]:
    """One fault for each pair of ways that stand in each other's place, where the names fit but for them."""
    saved, live = list(saved), list(live)
    theirs = found_in(saved)
    match = match_names(dict.fromkeys(_stems(saved, theirs)), dict.fromkeys(_stems(live, ways), ()))
    if not (theirs or ways) or not match.complete:
        return []
    pairs: dict[tuple[str, str], list[str]] = {}
    for ours, other in match.reading.pairs.items():
        kinds = theirs.get(other, ""), ways.get(ours, "")
        if kinds[0] != kinds[1]:
            pairs.setdefault(kinds, []).append(ours)
    return [_fault(label, *kinds, names) for kinds, names in pairs.items()]


def _stems(names: Iterable[str], ways: Mapping[str, str]) -> list[str]:
    """Names with one, the tensor's own, in the place of all that stand for it."""
    spelled = {name: stem for stem, row in ways.items() for name in PARAMETRIZATIONS[row].spelled(stem)}
    below = {name.rpartition(".")[0]: stem for name, stem in spelled.items() if name.rpartition(".")[2] in _ORIGINALS}

    def stem_of(name: str) -> str:
        match = _BELOW.match(name)
        return spelled.get(name) or (below.get(match[0]) if match else None) or name

    return list(dict.fromkeys(map(stem_of, names)))


_ORIGINALS: Final = ("original", "original0")
_BELOW: Final = re.compile(r"(?:.*\.)?parametrizations\.[^.]+")
"""The place where a parametrized tensor keeps its originals and what its parametrizations hold."""


def _fault(label: str, theirs: str, ours: str, names: list[str]) -> Fault:
    saved = f"kept by {theirs}" if theirs else "plain"
    live = f"kept by {ours}" if ours else "plain"
    text = f"{listing(names)}    in the file {saved}, in the live model {live}: these are other numbers"
    if theirs:
        remedy = f"build the live model with {PARAMETRIZATIONS[theirs].apply}, or save after "
        remedy += PARAMETRIZATIONS[theirs].remove
    else:
        remedy = f"restore into the plain model, then call {PARAMETRIZATIONS[ours].apply}"
    return Fault("mismatch", label, text, remedy.replace("{tensor}", names[0].rpartition(".")[2]))
