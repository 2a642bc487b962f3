"""Which saved tensor is which live tensor.

A reading is a way to take the saved names: as they are, without wrappers' segments, without a leading prefix, with one
added. It is proved when it is a bijection between the live names and the saved names it covers, with equal shapes, and
no other reading that pairs differently is. Where no reading has all shapes, the only one that has all names holds, and
the shapes that differ are told. Names are never taken apart in any other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from unmoor.errors import MismatchError

from .policy import Rename

__all__ = ["WRAPPER_SEGMENTS", "NameMatch", "Reading", "apply_rename", "match_names", "without_wrappers"]

WRAPPER_SEGMENTS: Final = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module"}
)
"""Name segments that wrappers of torch and Lightning put in; a user's submodule may bear one of them too."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to take the saved names. `pairs` is live name -> saved name; `how` says the way in words."""

    how: str
    pairs: Mapping[str, str]
    outside: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NameMatch:
    """The reading that holds, and what it leaves over.

    `missing` are live names without a saved one, `unexpected` saved names that nothing takes, `outside` saved names
    beyond the prefix that the reading chose. `rivals` are readings that fit as well and pair differently. `near` are
    readings that would fit more names than the one that holds, and are not proved.
    """

    reading: Reading
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    rivals: tuple[Reading, ...] = ()
    near: tuple[Reading, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every live and every saved name of the reading has its counterpart, of the same shape."""
        return not (self.missing or self.unexpected or self.mismatched or self.rivals)


def apply_rename(names: Sequence[str], rename: Rename) -> dict[str, str]:
    """New name -> saved name. A mapping replaces leading text, or with `*` in it whole patterns; a callable anything.

    >>> apply_rename(["net.0.weight"], {"net.": ""})
    {'0.weight': 'net.0.weight'}
    """
    made: dict[str, str] = {}
    for name in names:
        new = _renamed(name, rename)
        if new in made:
            raise MismatchError(
                f"rename= gives {made[new]!r} and {name!r} the same name {new!r}",
                remedy="Make the renaming one to one: use a longer prefix, or a callable.",
            )
        made[new] = name
    return made


def _renamed(name: str, rename: Rename) -> str:
    if rename is None:
        return name
    if callable(rename):
        return rename(name)
    for old, new in rename.items():
        if "*" in old:
            if fnmatchcase(name, old):
                return _fill(name, old, new)
        elif name.startswith(old):
            return new + name[len(old) :]
    return name


def _fill(name: str, pattern: str, replacement: str) -> str:
    """Carry the text under the one `*` of the pattern into the replacement's `*`."""
    head, _, tail = pattern.partition("*")
    middle = name[len(head) : len(name) - len(tail) if tail else None]
    return replacement.replace("*", middle, 1)


def without_wrappers(name: str) -> str:
    """A name without wrappers' segments.

    >>> without_wrappers("module.encoder._orig_mod.weight")
    'encoder.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPER_SEGMENTS)


def match_names(saved: Mapping[str, Shape | None], live: Mapping[str, Shape], rename: Rename = None) -> NameMatch:
    """Pair live names with saved names. A shape of None fits any."""
    renamed = apply_rename(list(saved), rename)
    shapes = {new: saved[old] for new, old in renamed.items()}
    plain = Reading("as saved", {name: name for name in live if name in shapes})
    if len(plain.pairs) == len(live):
        return _translate(_judge(plain, shapes, live), renamed)
    whole = [r for r in _readings(shapes, live) if len(r.pairs) == len(live) and not _leftover(r, shapes)]
    proved = _distinct([r for r in whole if _shapes_agree(r, shapes, live)])
    holding = proved or _distinct(whole)
    if len(holding) == 1:
        return _translate(_judge(holding[0], shapes, live), renamed)
    match = _judge(plain, shapes, live)
    near = () if proved else tuple(holding[:3]) or _nearest(shapes, live, len(plain.pairs))
    result = NameMatch(plain, match.missing, match.unexpected, match.mismatched, tuple(proved), near)
    return _translate(result, renamed)


def _readings(saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> Iterator[Reading]:
    bare = _bare(saved)
    if bare is not None:
        yield from _bare_readings(bare, live)
    yield from _prefix_readings({name: name for name in saved}, list(live), "")
    if bare is not None:
        yield from _prefix_readings(bare, list(live), "wrappers' segments and ")
    added = _added_prefix(list(saved), list(live))
    if added is not None:
        yield added


def _bare_readings(bare: Mapping[str, str], live: Mapping[str, Shape]) -> Iterator[Reading]:
    live_bare = _bare(live)
    if live_bare is None:
        return
    pairs = {live_bare[b]: s for b, s in bare.items() if b in live_bare}
    removed = sorted({part for a, b in pairs.items() if a != b for part in b.split(".")} & WRAPPER_SEGMENTS)
    if not removed:
        yield Reading("with wrappers' segments", pairs)
        return
    cut = "".join(f".replace({part + '.'!r}, '')" for part in removed)
    leading = len(removed) == 1 and all(b == f"{removed[0]}.{a}" for a, b in pairs.items())
    remedy = f"rename={{{removed[0] + '.'!r}: ''}}" if leading else f"rename=lambda name: name{cut}"
    yield Reading(f"without {', '.join(repr(part + '.') for part in removed)}", pairs, remedy=remedy)


def _bare(names: Iterable[str]) -> dict[str, str] | None:
    """Name without wrappers' segments -> name; None where two names would become one."""
    made: dict[str, str] = {}
    for name in names:
        if made.setdefault(without_wrappers(name), name) != name:
            return None
    return made


def _prefix_readings(saved: Mapping[str, str], live: list[str], also: str) -> Iterator[Reading]:
    """Readings that drop one leading prefix: the subtree under it must be all of the live names and no more."""
    if not live:
        return
    probe = max(live, key=len)
    prefixes = [name[: -len(probe)] for name in saved if name.endswith("." + probe)]
    for prefix in dict.fromkeys(prefixes):
        inside = {name[len(prefix) :]: full for name, full in saved.items() if name.startswith(prefix)}
        if all(name in inside for name in live):
            outside = tuple(full for name, full in saved.items() if not name.startswith(prefix))
            pairs = {name: inside[name] for name in live}
            yield Reading(f"without {also}{prefix!r}", pairs, outside, f"rename={{{prefix!r}: ''}}")


def _added_prefix(saved: list[str], live: list[str]) -> Reading | None:
    if not saved or len(saved) != len(live):
        return None
    probe = max(saved, key=len)
    for name in live:
        if name.endswith("." + probe):
            prefix = name[: -len(probe)]
            pairs = {prefix + s: s for s in saved}
            if all(n in pairs for n in live):
                return Reading(f"with {prefix!r} added", pairs, (), f"rename=lambda name: {prefix!r} + name")
    return None


def _nearest(saved: Mapping[str, Shape | None], live: Mapping[str, Shape], least: int) -> tuple[Reading, ...]:
    """The readings that pair the most live names, with their shapes, if those are more than `least`."""
    found = [*_inside_prefixes(saved, live), *_readings(saved, live)]
    fitting = {id(r): sum(_fits(live[n], saved[s]) for n, s in r.pairs.items()) for r in found}
    best = max(fitting.values(), default=0)
    return tuple(_distinct([r for r in found if fitting[id(r)] == best])[:3]) if best > least else ()


def _inside_prefixes(saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> Iterator[Reading]:
    """For each leading prefix of saved names, what stands below it under a live name."""
    pairs: dict[str, dict[str, str]] = {}
    for full in saved:
        parts = full.split(".")
        for i in range(1, len(parts)):
            name = ".".join(parts[i:])
            if name in live:
                pairs.setdefault(full[: -len(name)], {})[name] = full
    for prefix, found in pairs.items():
        yield Reading(f"without {prefix!r}", found, remedy=f"rename={{{prefix!r}: ''}}")


def _shapes_agree(reading: Reading, saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> bool:
    return all(_fits(live[n], saved[s]) for n, s in reading.pairs.items())


def _fits(live: Shape, saved: Shape | None) -> bool:
    return saved is None or saved == live


def _leftover(reading: Reading, saved: Mapping[str, Shape | None]) -> list[str]:
    taken = set(reading.pairs.values()) | set(reading.outside)
    return [name for name in saved if name not in taken]


def _distinct(readings: Sequence[Reading]) -> list[Reading]:
    seen: dict[tuple[tuple[str, str], ...], Reading] = {}
    for reading in readings:
        seen.setdefault(tuple(sorted(reading.pairs.items())), reading)
    return list(seen.values())


def _judge(reading: Reading, saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> NameMatch:
    wrong = tuple(n for n, s in reading.pairs.items() if not _fits(live[n], saved[s]))
    missing = tuple(n for n in live if n not in reading.pairs)
    return NameMatch(reading, missing, tuple(_leftover(reading, saved)), wrong)


def _translate(match: NameMatch, renamed: Mapping[str, str]) -> NameMatch:
    """Back from the names after `rename` to the names in the file."""

    def original(reading: Reading) -> Reading:
        pairs = {live: renamed[name] for live, name in reading.pairs.items()}
        return Reading(reading.how, pairs, tuple(renamed[name] for name in reading.outside), reading.remedy)

    return NameMatch(
        original(match.reading),
        match.missing,
        tuple(renamed[name] for name in match.unexpected),
        match.mismatched,
        tuple(original(r) for r in match.rivals),
        tuple(original(r) for r in match.near),
    )
