"""Saved parameter names to live ones: as they are, through the renaming of the model, or by a reading that is proved.

The names of an optimizer may be fewer than the model's (frozen layers) or partly gone (a layer that was removed), so a
reading is proved when it lands every saved name on a live parameter, or finds every live one, without a shape against
it, and when no other reading that lands them elsewhere does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .names import apply_rename, without_wrappers, wrappers_in
from .policy import Rename

__all__ = ["Landing", "LiveNames", "land"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiveNames:
    """The names there are to land on.

    `own` is name -> shape of the live optimizer's parameters. `known` is every name of a parameter of a live model ->
    the name it goes by in an optimizer, those of other optimizers and of frozen parameters among them.
    """

    own: Mapping[str, Shape]
    known: Mapping[str, str]

    def all(self) -> dict[str, None]:
        """Every name once, the optimizer's own first."""
        return dict.fromkeys((*self.own, *self.known))


@dataclass(frozen=True, slots=True)
class Landing:
    """A reading of the saved names: `to` is saved name -> canonical live name, for those that land; `how` in words."""

    how: str
    to: Mapping[str, str]


def land(
    saved: Mapping[str, Shape | None], live: LiveNames, *, renamed: Mapping[str, str], rename: Rename
) -> list[Landing]:
    """The reading that holds; none where no name lands, several where they are equally good.

    `saved` is name -> shape of its state, None where nothing tells. `renamed` is saved -> live name for what the model
    took. `rename` is the caller's, for names that the model does not have.
    """
    others = apply_rename([name for name in saved if name not in renamed], rename)
    names = {saved_name: renamed[saved_name] for saved_name in saved if saved_name in renamed}
    names |= {old: new for new, old in others.items()}
    plain = _landing("as saved", names.items(), live)
    if _holds(plain, saved, live):
        return [plain]
    found: dict[tuple[tuple[str, str], ...], Landing] = {}
    for reading in _readings(names, live):
        if _holds(reading, saved, live) and any(name in live.own for name in reading.to.values()):
            found.setdefault(tuple(reading.to.items()), reading)
    return list(found.values()) or ([plain] if plain.to else [])


def _landing(how: str, names: Iterable[tuple[str, str]], live: LiveNames) -> Landing:
    own, known = live.own, live.known
    to = {saved: there for saved, name in names if (there := name if name in own else known.get(name)) is not None}
    return Landing(how, to)


def _holds(reading: Landing, saved: Mapping[str, Shape | None], live: LiveNames) -> bool:
    """Whether every saved name or every live one has its counterpart, one each, and no shape is against it."""
    landed = set(reading.to.values())
    if not landed or len(landed) < len(reading.to):
        return False
    if len(reading.to) < len(saved) and not landed >= live.own.keys():
        return False
    shapes = ((saved[name], live.own.get(to)) for name, to in reading.to.items())
    return all(ours is None or theirs is None or ours == theirs for theirs, ours in shapes)


def _readings(names: Mapping[str, str], live: LiveNames) -> Iterator[Landing]:
    """`names` is saved name -> the same after renaming."""
    everything = list(live.all())
    bare_names = {saved: without_wrappers(name) for saved, name in names.items()}
    bare_live = _unique((without_wrappers(name), name) for name in everything)
    removed = wrappers_in(names.values())
    how = f"without {', '.join(repr(part + '.') for part in removed)}" if removed else "with wrappers' segments"
    yield _landing(how, ((saved, bare_live.get(name, "")) for saved, name in bare_names.items()), live)
    for own, also in ((names, ""), (bare_names, "wrappers' segments and ")):
        for prefix in _common_prefixes(list(own.values())):
            rest = ((saved, name[len(prefix) :]) for saved, name in own.items())
            yield _landing(f"without {also}{prefix!r}", rest, live)
    for prefix in _added(list(names.values()), everything):
        yield _landing(f"with {prefix!r} added", ((saved, prefix + name) for saved, name in names.items()), live)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Bare name -> name, without those that several names share."""
    made: dict[str, str] = {}
    twice: set[str] = set()
    for bare, name in pairs:
        if made.setdefault(bare, name) != name:
            twice.add(bare)
    return {bare: name for bare, name in made.items() if bare not in twice}


_ENDS: Final = ".:"
"""What a prefix ends with: a dot within names, the colon after the label of one of several models."""


def _common_prefixes(names: Sequence[str]) -> Iterator[str]:
    """Leading segments that all names share, the shortest first."""
    if not names:
        return
    first, last = min(names), max(names)
    for i, letter in enumerate(first):
        if i >= len(last) or last[i] != letter:
            return
        if letter in _ENDS:
            yield first[: i + 1]


def _added(names: Sequence[str], live: Sequence[str]) -> Iterator[str]:
    """Prefixes under which every saved name is a live one."""
    if not names:
        return
    probe, held = max(names, key=len), set(live)
    for name in live:
        if name.endswith(probe) and name[: -len(probe)].endswith(tuple(_ENDS)):
            prefix = name[: -len(probe)]
            if all(prefix + own in held for own in names):
                yield prefix
