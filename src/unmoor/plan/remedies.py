"""The `rename=` that makes one reading of the saved names hold and no other: what an error offers."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["rename_for"]

_MOST = 4
"""More prefixes than these are told as the first few."""

_ENOUGH = 50
"""More than these are not looked for."""


def rename_for(pairs: Mapping[str, str]) -> str:
    """A renaming by prefixes, longest first, that gives each saved name its live one. `pairs` is live -> saved name.

    >>> rename_for({"a.w": "net.a._orig_mod.w", "b.w": "net.b.w"})
    "rename={'net.a._orig_mod.': 'a.', 'net.': ''}"
    """
    prefixes: dict[str, str] = {}
    for ours, theirs in sorted(pairs.items(), key=lambda pair: len(pair[1])):
        if _renamed(theirs, prefixes) != ours:
            head, own = _heads(ours, theirs)
            prefixes = {**prefixes, head: own} if prefixes.get(head, own) == own else {**prefixes, theirs: ours}
            prefixes = dict(sorted(prefixes.items(), key=lambda item: -len(item[0])))
        if len(prefixes) > _ENOUGH:
            break
    for ours, theirs in sorted(pairs.items(), key=lambda pair: len(pair[1])) if len(prefixes) <= _ENOUGH else ():
        if _renamed(theirs, prefixes) != ours:  # a prefix that came later takes it
            prefixes = dict(sorted({**prefixes, theirs: ours}.items(), key=lambda item: -len(item[0])))
    if not prefixes:
        return ""
    rows = [f"{old!r}: {new!r}" for old, new in prefixes.items()]
    return f"rename={{{', '.join(rows[:_MOST])}{', ...' if len(rows) > _MOST else ''}}}"


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def _heads(ours: str, theirs: str) -> tuple[str, str]:
    """What stands before the segments that both names end in, with its dot; whole names where none is shared."""
    own, other = ours.split("."), theirs.split(".")
    same = 0
    while same < min(len(own), len(other)) and own[-1 - same] == other[-1 - same]:
        same += 1
    if not same or not len(other) - same:
        return theirs, ours
    return "".join(f"{part}." for part in other[:-same]), "".join(f"{part}." for part in own[:-same])
