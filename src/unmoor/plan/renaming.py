"""Names of a state dict to others: wrappers' segments taken out where they are proved to be such, prefixes, patterns.

Nothing is ever replaced inside a name by its text alone. A prefix that is to go must stand before every name; a segment
of a wrapper is one only where, in the tree that the names span, it is the single child of what it stands under. What
does not hold, and every two names that would become one, is told together. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.errors import UsageError
from unmoor.values.text import count, listing

from .names import WRAPPER_SEGMENTS, apply_rename
from .patterns import captures, nearest
from .policy import Rename

__all__ = ["AUTO", "OWN_NAMES", "Naming", "Renamed", "module_paths", "naming", "new_names", "unmet"]

AUTO: Final = "auto"

OWN_NAMES: Final = frozenset({"n_averaged"})
"""Tensors of a wrapper itself, which stand beside what it wraps: AveragedModel's counter."""

_PRIVATE: Final = WRAPPER_SEGMENTS - {"module"}
"""Segments that no module of a user's own bears: torch and Lightning made them up."""

_ATTRIBUTES: Final[Mapping[str, frozenset[str]]] = {"lightning": frozenset({"model", "net"})}
"""Dialect -> the attribute under which its runs hold the model, where it is the only one."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What is to become of names: `strip` (prefixes, or AUTO), then `rename`, then `add`."""

    strip: tuple[str, ...] = ()
    rename: Rename = None
    add: str = ""

    @property
    def wanted(self) -> bool:
        """Whether anything is to change."""
        return bool(self.strip or self.rename or self.add)


@dataclass(slots=True)
class Renamed:
    """Old name -> new name of one state dict, the prefixes and patterns that were met, and what does not hold."""

    names: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def naming(strip: Any, rename: Rename, add: Any) -> Naming:
    """What a caller asked for. Raises UsageError for what is no prefix and no renaming."""
    words = (strip,) if isinstance(strip, str) else tuple(strip) if isinstance(strip, list | tuple) else ()
    if strip is not None and (not words or not all(isinstance(word, str) and word.strip(".") for word in words)):
        raise UsageError(
            f"strip={strip!r} is no prefix of names, nor a list of them",
            remedy='strip="module." takes it out, strip="auto" every wrapper\'s.',
        )
    if AUTO in words and len(words) > 1:
        raise UsageError(f"strip={strip!r}: auto stands alone", remedy='strip="auto", or the prefixes by name.')
    if add is not None and not (isinstance(add, str) and add.strip(".")):
        raise UsageError(f"add={add!r} is no prefix of names", remedy='add="module." puts it before every name.')
    apply_rename([], rename)
    return Naming(tuple(map(_whole, words)), rename or None, _whole(add) if add else "")


def _whole(word: str) -> str:
    """A prefix with the dot at its end: only whole segments are taken out and put in."""
    return word if word == AUTO or word.endswith(".") else f"{word}."


def new_names(names: Sequence[str], wish: Naming, *, label: str, dialect: str) -> Renamed:
    """The new name of each name of one state dict. `label` is for people; `dialect` is who wrote the file."""
    made = Renamed({name: name for name in names})
    if wish.strip == (AUTO,):
        made.names = _without_wrappers(names, _ATTRIBUTES.get(dialect, frozenset()))
    else:
        for prefix in wish.strip:
            _strip(made, prefix, label)
    if wish.rename is not None:
        _rename(made, wish.rename)
    if wish.add:
        made.names = {old: new if new in OWN_NAMES else wish.add + new for old, new in made.names.items()}
    made.faults += _nameless(made.names, label)
    made.faults += _collisions(made.names, label)
    return made


def _strip(made: Renamed, prefix: str, label: str) -> None:
    with_it = [name for name in made.names.values() if name.startswith(prefix)]
    if not with_it:
        return
    made.met.add(prefix)
    without = [name for name in made.names.values() if not name.startswith(prefix) and name not in OWN_NAMES]
    if without:
        made.faults.append(
            f"{label}: {count(len(with_it), 'name')} of {len(made.names):,} begin with {prefix!r}, "
            f"these do not: {listing(without, 6)}"
        )
        return
    made.names = {old: new.removeprefix(prefix) for old, new in made.names.items()}


def _rename(made: Renamed, rename: Rename) -> None:
    patterns = tuple(rename) if isinstance(rename, Mapping) else ()
    for old, name in made.names.items():
        ((new, _),) = apply_rename([name], rename).items()
        made.names[old] = new
        hit = next((p for p in patterns if _matches(p, name)), None)
        if hit is not None:
            made.met.add(hit)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern) if "*" not in pattern else captures(pattern, name) is not None


def unmet(wish: Naming, met: Iterable[str], names: Sequence[str]) -> list[str]:
    """One fault for each prefix and pattern that no name bears, with the names that come nearest."""
    asked = [prefix for prefix in wish.strip if prefix != AUTO]
    asked += list(wish.rename) if isinstance(wish.rename, Mapping) else []
    known = set(met)
    return [
        f"no name {'begins with' if '*' not in word else 'matches'} {word!r}; there are {listing(nearest(word, names))}"
        for word in asked
        if word not in known
    ]


def _nameless(names: Mapping[str, str], label: str) -> list[str]:
    empty = [old for old, new in names.items() if not new or new.startswith(".") or new.endswith(".")]
    return [f"{label}: no name would be left of {listing(empty)}"] if empty else []


def _collisions(names: Mapping[str, str], label: str) -> list[str]:
    counts = Counter(names.values())
    twice = [new for new, number in counts.items() if number > 1]
    return [
        f"{label}: {' and '.join(old for old, made in names.items() if made == new)} would both be {new!r}"
        for new in twice[:10]
    ]


@dataclass(slots=True, eq=False)
class _Node:
    below: dict[str, _Node] = field(default_factory=dict)
    ends: bool = False


def _without_wrappers(names: Sequence[str], attributes: frozenset[str]) -> dict[str, str]:
    """Names without the segments that are proved to be wrappers'.

    Those that torch made up go wherever they stand alone. At the root one `module` goes too, and one attribute of a
    dialect: a wrapper of ranks stands outermost, and once. A `module` with neighbours, or deeper, is the user's own.
    """
    root = _Node()
    for name in names:
        node = root
        for part in name.split("."):
            node = node.below.setdefault(part, _Node())
        node.ends = True
    return {name: ".".join(_kept(name.split("."), root, attributes)) for name in names}


def _kept(parts: list[str], node: _Node, attributes: frozenset[str]) -> list[str]:
    made: list[str] = []
    left = [frozenset({"module"}), attributes]
    for part in parts:
        child = node.below[part]
        alone = len(node.below) == 1 and not node.ends and bool(child.below)
        once = next((words for words in left if part in words), None) if alone and not made else None
        if once is not None:
            left.remove(once)
        elif not (alone and part in _PRIVATE):
            made.append(part)
        node = child
    return made


def module_paths(names: Mapping[str, str], paths: Iterable[str]) -> dict[str, str]:
    """Old path of a module -> new path, told by the names of the tensors in it; "" is the root.

    What a state dict notes of modules (`_metadata`) goes by these. A module without tensors follows what it stands in.

    >>> module_paths({"module.0.w": "0.w"}, ["", "module", "module.0", "module.1"])
    {'module': '', 'module.0': '0', 'module.1': '1'}
    """
    known: dict[str, str] = {}
    for old, new in names.items():
        a, b = old.split("."), new.split(".")
        while a and b and a[-1] == b[-1]:
            a, b = a[:-1], b[:-1]
            known.setdefault(".".join(a), ".".join(b))
    made = {path: _followed(path, known) for path in paths}
    sure = {made[path] for path in made if path in known}
    return {path: new for path, new in made.items() if path in known or new not in sure}


def _followed(path: str, known: Mapping[str, str]) -> str:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        above = ".".join(parts[:length])
        if above in known:
            return ".".join(filter(None, (known[above], *parts[length:])))
    return ".".join(filter(None, (known[""], path))) if "" in known else path
