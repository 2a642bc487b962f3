"""Which tensor of one state dict is which of another: by equal names, or by a reading of them that is proved.

Nobody is restored here, so what no reading pairs is listed on its own side and nothing is an error. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from unmoor.values.catalog import TensorEntry
from unmoor.values.nodes import TensorNode

from .names import match_names, without_wrappers
from .renaming import module_paths

__all__ = ["NamePairs", "kept_once", "pair_names"]

_DROPPED: Final = " without "
"""In the words of a reading that drops what one side has more: said rather than that the other side lacks it."""

Shapes = Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class NamePairs:
    """`pairs` are (name in a, name in b), in the order of a. `how` says the reading, "" where names are equal."""

    pairs: tuple[tuple[str, str], ...]
    how: str = ""

    def in_a(self, name: str) -> str:
        """The name that something of b without a pair has in a: a module's extra state goes by the module's name."""
        if not self.how:
            return name
        module, _, own = name.rpartition(".")
        there = module_paths({theirs: mine for mine, theirs in self.pairs}, [module]).get(module, module)
        return f"{there}.{own}" if there else own


def pair_names(a: Shapes, b: Shapes) -> NamePairs:
    """The reading that pairs the most names; of two that pair as many, the one that changes names least."""
    best = NamePairs(tuple((name, name) for name in a if name in b))
    if len(best.pairs) in (len(a), len(b)):
        return best
    return max([best, *_readings(a, b)], key=lambda found: (len(found.pairs), not found.how, _DROPPED in found.how))


def kept_once(entries: Mapping[str, TensorEntry], paired: Collection[str]) -> dict[str, str]:
    """Names that are not among `paired` -> a name there of the very same tensor."""
    own = {_window(entries[name]): name for name in entries if name in paired}
    rest = ((name, own.get(_window(entry))) for name, entry in entries.items() if name not in paired)
    return {name: other for name, other in rest if other is not None}


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


def _window(entry: TensorEntry) -> Hashable:
    """What two names of one tensor have in common; an object of its own where nothing can be."""
    node = entry.node
    if not isinstance(node, TensorNode) or node.storage is None:
        return id(entry)
    return (node.storage.key, node.offset, node.shape, node.stride, node.dtype, node.bits)
