"""Which saved tensor is which live tensor.

A reading is a way to take the saved names: as they are, without wrappers' segments, without a leading prefix, with one
added. It is proved when it is a bijection between the live names and the saved names it covers, with equal shapes, and
no other reading that pairs differently is. Where no reading has all shapes, the only one that has all names holds, and
the shapes that differ are told. Names are never taken apart in any other way.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unmoor.errors import MismatchError, UsageError
from unmoor.values import wrapping

from .patterns import captures, fill
from .policy import Rename
from .remedies import rename_for
from .wrapped_names import wrapped_pairs

__all__ = [
    "WRAPPER_SEGMENTS",
    "NameMatch",
    "Reading",
    "all_without_wrappers",
    "apply_rename",
    "match_names",
    "without_wrappers",
    "wrappers_in",
]

WRAPPER_SEGMENTS: Final = frozenset(wrapping.WRAPPER_SEGMENTS)
"""Name segments that wrappers of torch and Lightning put in; a user's submodule may bear one of them too."""

_SEGMENT: Final = re.compile(rf"(?:^|\.)(?:{'|'.join(sorted(WRAPPER_SEGMENTS))})(?:\.|$)")
"""Finds a wrapper's segment in a name; most names have none."""

_BETWEEN: Final = ".\n."
"""Parts names that are searched as one text."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to take the saved names. `pairs` is live name -> saved name; `how` says the way in words.

    `outside` are saved names beyond the prefix that the way drops. `special` is a remedy that no prefixes tell.
    """

    how: str
    pairs: Mapping[str, str]
    outside: Sequence[str] = ()
    special: str = ""

    @property
    def remedy(self) -> str:
        """The `rename=` that makes this reading hold and no other."""
        return self.special or rename_for(self.pairs)


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

    Raises MismatchError, naming both, where two names would become one; UsageError for what gives no name.

    >>> apply_rename(["net.0.weight"], {"net.": ""})
    {'0.weight': 'net.0.weight'}
    >>> apply_rename(["a.attn.w"], {"*.attn.*": "*.attention.*"})
    {'a.attention.w': 'a.attn.w'}
    """
    _check(rename)
    if rename is None and len(found := {name: name for name in names}) == len(names):
        return found
    made: dict[str, str] = {}
    for name in names:
        new = _renamed(name, rename)
        if not isinstance(new, str):
            raise UsageError(f"rename= gives {name!r} the name {new!r}", remedy="It takes a name and returns one.")
        if new in made:
            raise MismatchError(
                f"rename= gives {made[new]!r} and {name!r} the same name {new!r}",
                remedy="Make the renaming one to one: use a longer prefix, or a callable.",
            )
        made[new] = name
    return made


def _check(rename: Any) -> None:
    texts = isinstance(rename, Mapping) and all(isinstance(text, str) for text in (*rename, *rename.values()))
    if not (rename is None or callable(rename) or texts):
        raise UsageError(
            f"rename={rename!r} is neither a dict of names nor a callable", remedy='rename={"net.": ""} drops a prefix.'
        )


def _renamed(name: str, rename: Rename) -> str:
    if rename is None:
        return name
    if callable(rename):
        return rename(name)
    for old, new in rename.items():
        if "*" not in old:
            if name.startswith(old):
                return new + name[len(old) :]
        elif (found := captures(old, name)) is not None:
            return fill(new, found, old)
    return name


def without_wrappers(name: str) -> str:
    """A name without wrappers' segments.

    >>> without_wrappers("module.encoder._orig_mod.weight")
    'encoder.weight'
    """
    if _SEGMENT.search(name) is None:
        return name
    return ".".join([part for part in name.split(".") if part not in WRAPPER_SEGMENTS])


def all_without_wrappers(names: Sequence[str], wrappers: Iterable[str]) -> list[str]:
    """`without_wrappers` of names that hold no other segments of wrappers than these: as one text, at a tenth of it."""
    text = f".{_BETWEEN.join(names)}."
    for segment in wrappers:
        while f".{segment}." in text:
            text = text.replace(f".{segment}.", ".")
    bare = [name[1:-1] for name in text.split("\n")]
    return bare if len(bare) == len(names) else [without_wrappers(name) for name in names]


def wrappers_in(names: Iterable[str]) -> list[str]:
    """The wrappers' segments that stand anywhere in the names, sorted. All names are searched as one text.

    >>> wrappers_in(["module.encoder.weight", "my_module.bias"])
    ['module']
    """
    text = f".{_BETWEEN.join(names)}."
    return sorted(segment for segment in WRAPPER_SEGMENTS if f".{segment}." in text)


def match_names(saved: Mapping[str, Shape | None], live: Mapping[str, Shape], rename: Rename = None) -> NameMatch:
    """Pair live names with saved names. A shape of None fits any."""
    if rename is None and saved == live:  # nearly always: every name and every shape is the same
        return NameMatch(Reading("as saved", {name: name for name in live}, ()), (), (), ())
    renamed = None if rename is None else apply_rename(list(saved), rename)
    shapes = saved if renamed is None else {new: saved[old] for new, old in renamed.items()}
    plain = Reading("as saved", {name: name for name in live if name in shapes})
    if len(plain.pairs) == len(live):
        return _translate(_judge(plain, shapes, live), renamed)
    chosen = {without_wrappers(new): new for new, old in renamed.items() if new != old} if renamed else {}
    found = [r for r in _readings(shapes, live) if not _contradicts(r, chosen)]
    whole = _distinct([r for r in found if len(r.pairs) == len(live) and _covers(r, shapes)])
    proved = [r for r in whole if _shapes_agree(r, shapes, live)]
    holding = proved or whole
    if len(holding) == 1:
        return _translate(_judge(holding[0], shapes, live), renamed)
    match = _judge(plain, shapes, live)
    near = () if proved else tuple(holding[:3]) or _nearest(shapes, live, len(plain.pairs), chosen)
    result = NameMatch(plain, match.missing, match.unexpected, match.mismatched, tuple(proved), near)
    return _translate(result, renamed)


def _readings(saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> Iterator[Reading]:
    """The simple readings; and those of the tree, where none of these takes every name on both sides."""
    complete = False
    for reading in _simple_readings(saved, live):
        complete = complete or len(reading.pairs) == len(live) == len(saved)
        yield reading
    if not complete:
        for prefix, pairs in wrapped_pairs(saved, live, WRAPPER_SEGMENTS):
            yield _wrapped_reading(prefix, pairs, saved)
    added = _added_prefix(list(saved), list(live))
    if added is not None:
        yield added


def _simple_readings(saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> Iterator[Reading]:
    bare = _bare(saved)
    if bare is not None:
        yield from _bare_readings(bare, live)
    yield from _prefix_readings({name: name for name in saved}, list(live), "")
    if bare is not None and bare.keys() != saved.keys():
        yield from _prefix_readings(bare, list(live), "wrappers' segments and ")


def _wrapped_reading(prefix: str, pairs: Mapping[str, str], saved: Iterable[str]) -> Reading:
    """A reading that the tree of names proves: `prefix` is dropped, and segments of wrappers wherever they stand."""
    inside = set(pairs.values())
    cut: set[str] = set()
    for own, name in pairs.items():
        if len(name) != len(prefix) + len(own):
            cut.update((Counter(name[len(prefix) :].split(".")) - Counter(own.split("."))).keys() - cut)
    dropped = [*([prefix] if prefix else []), *(f"{part}." for part in sorted(cut))]
    outside = [name for name in saved if name not in inside]
    return Reading(f"without {', '.join(map(repr, dropped))}", pairs, outside)


def _bare_readings(bare: Mapping[str, str], live: Mapping[str, Shape]) -> Iterator[Reading]:
    live_bare = _bare(live)
    if live_bare is None:
        return
    pairs = {live_bare[b]: s for b, s in bare.items() if b in live_bare}
    removed = wrappers_in([b for a, b in pairs.items() if a != b])
    if not removed:
        yield Reading("with wrappers' segments", pairs)
        return
    yield Reading(f"without {', '.join(repr(part + '.') for part in removed)}", pairs)


def _bare(names: Collection[str]) -> dict[str, str] | None:
    """Name without wrappers' segments -> name; None where two names would become one."""
    wrappers = wrappers_in(names)
    if not wrappers:
        return {name: name for name in names}
    made = dict(zip(all_without_wrappers(tuple(names), wrappers), names, strict=True))
    return made if len(made) == len(names) else None


def _prefix_readings(saved: Mapping[str, str], live: list[str], also: str) -> Iterator[Reading]:
    """Readings that drop one leading prefix: the subtree under it must be all of the live names and no more."""
    if not live:
        return
    probe = "." + max(live, key=len)
    prefixes = dict.fromkeys(name[: 1 - len(probe)] for name in saved if name.endswith(probe))
    ordered = sorted(saved) if prefixes else []
    for prefix in prefixes:
        if all(prefix + name in saved for name in live):
            pairs = {name: saved[prefix + name] for name in live}
            outside = _Outside(saved, prefix, _below(ordered, prefix))
            yield Reading(f"without {also}{prefix!r}", pairs, outside)


def _below(ordered: Sequence[str], prefix: str) -> int:
    """How many of the sorted names begin with the prefix, which ends with a dot."""
    after = prefix[:-1] + chr(ord(".") + 1)
    return bisect_left(ordered, after) - bisect_left(ordered, prefix)


class _Outside(Sequence[str]):
    """The saved names that do not begin with a prefix; counted at once, listed only when they are asked for."""

    def __init__(self, saved: Mapping[str, str], prefix: str, inside: int) -> None:
        self._saved, self._prefix, self._length = saved, prefix, len(saved) - inside

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return [full for name, full in self._saved.items() if not name.startswith(self._prefix)][index]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])


def _added_prefix(saved: list[str], live: list[str]) -> Reading | None:
    if not saved or len(saved) != len(live):
        return None
    probe, held = max(saved, key=len), set(live)
    for name in live:
        if name.endswith("." + probe):
            prefix = name[: -len(probe)]
            if all(prefix + s in held for s in saved):
                pairs = {prefix + s: s for s in saved}
                return Reading(f"with {prefix!r} added", pairs, (), f"rename=lambda name: {prefix!r} + name")
    return None


def _contradicts(reading: Reading, chosen: Mapping[str, str]) -> bool:
    """Whether a reading gives a live name to another saved name than the one that `rename` has brought there."""
    if not chosen:
        return False
    return any(chosen.get(without_wrappers(name), saved) != saved for name, saved in reading.pairs.items())


def _nearest(
    saved: Mapping[str, Shape | None], live: Mapping[str, Shape], least: int, chosen: Mapping[str, str]
) -> tuple[Reading, ...]:
    """The readings that pair the most live names, with their shapes, if those are more than `least`."""
    found = [r for r in (*_inside_prefixes(saved, live), *_readings(saved, live)) if not _contradicts(r, chosen)]
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
        yield Reading(f"without {prefix!r}", found)


def _shapes_agree(reading: Reading, saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> bool:
    pairs = reading.pairs.items()
    return not any((theirs := saved[s]) is not None and theirs != live[n] for n, s in pairs)


def _fits(live: Shape, saved: Shape | None) -> bool:
    return saved is None or saved == live


def _covers(reading: Reading, saved: Mapping[str, Shape | None]) -> bool:
    """Whether every saved name is paired or outside; none is both."""
    return len(reading.pairs) + len(reading.outside) == len(saved)


def _leftover(reading: Reading, saved: Mapping[str, Shape | None]) -> list[str]:
    taken = set(reading.pairs.values())
    taken.update(reading.outside)
    if len(taken) == len(saved):
        return []
    return [name for name in saved if name not in taken]


_FEW: Final = 4
"""So many readings are compared with each other; more are told apart by a hash."""


def _distinct(readings: Sequence[Reading]) -> list[Reading]:
    if len(readings) <= _FEW:
        return [r for i, r in enumerate(readings) if all(r.pairs != other.pairs for other in readings[:i])]
    seen: dict[frozenset[tuple[str, str]], Reading] = {}
    for reading in readings:
        seen.setdefault(frozenset(reading.pairs.items()), reading)
    return list(seen.values())


def _judge(reading: Reading, saved: Mapping[str, Shape | None], live: Mapping[str, Shape]) -> NameMatch:
    wrong = tuple(n for n, s in reading.pairs.items() if (theirs := saved[s]) is not None and theirs != live[n])
    missing = tuple(n for n in live if n not in reading.pairs)
    return NameMatch(reading, missing, tuple(_leftover(reading, saved)), wrong)


def _translate(match: NameMatch, renamed: Mapping[str, str] | None) -> NameMatch:
    """Back from the names after `rename` to the names in the file; None where they are the same."""

    def name_of(name: str) -> str:
        return name if renamed is None else renamed[name]

    def original(reading: Reading) -> Reading:
        pairs = reading.pairs if renamed is None else {live: renamed[name] for live, name in reading.pairs.items()}
        return Reading(reading.how, pairs, (), reading.special)

    return NameMatch(
        replace(original(match.reading), outside=tuple(map(name_of, match.reading.outside))),
        match.missing,
        tuple(map(name_of, match.unexpected)),
        match.mismatched,
        tuple(original(r) for r in match.rivals),
        tuple(original(r) for r in match.near),
    )
