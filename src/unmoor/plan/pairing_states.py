"""Pickled objects of one checkpoint as the state dicts that they would give, where the other has such. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import Opaque
from unmoor.values.text import listing

from .choose import subtree
from .pickled_state import with_states
from .taken import Taken, replaced, with_tree

__all__ = ["by_states"]

_ROLES: Final = frozenset({"model", "ema", "loss", "optimizer", "scheduler"})


def by_states(a: Catalog, b: Catalog) -> tuple[Catalog, Catalog, list[str]]:
    """Both as they are where they pickle the same roles; else with states in place of objects, and what was done."""
    held = [{part.role for part in _pickled(catalog)} for catalog in (a, b)]
    if held[0] == held[1]:
        return a, b, []
    made, notes = [], []
    for side, catalog in zip("ab", (a, b), strict=True):
        pickled = _pickled(catalog)
        made.append(_with_states(catalog, frozenset(id(part) for part in pickled)) if pickled else catalog)
        if pickled:
            names = listing([part.path or part.role for part in pickled])
            notes.append(f"{names}: pickled objects of {side} by the state dicts that they would give")
    return made[0], made[1], notes


def _pickled(catalog: Catalog) -> list[Part]:
    """The pickled objects that have a state.

    What lies within another pickled object is left as it is, and a scheduler that holds the only optimizer.
    """
    parts = [part for part in catalog.parts if part.role in _ROLES and _is_pickled(catalog, part)]
    alone = not any(catalog.part("optimizer"))
    known = {part.keys for part in with_states(catalog).parts if not isinstance(part.node, Opaque)}
    return [part for part in parts if part.keys in known and not (alone and part.role == "scheduler")]


def _is_pickled(catalog: Catalog, part: Part) -> bool:
    try:
        return isinstance(part.node, Opaque) and subtree(catalog.tree, part.keys) is part.node
    except KeyError:
        return False


def _with_states(catalog: Catalog, pickled: AbstractSet[int]) -> Catalog:
    states = dict(zip(map(id, catalog.parts), with_states(catalog).parts, strict=False))
    new = {id(part.node): states[id(part)].node for part in catalog.parts if id(part) in pickled}
    parts = tuple(states[id(part)] if id(part) in pickled else part for part in catalog.parts)
    seen = with_tree(Taken(catalog.tree, catalog.tensors, parts=parts), replaced(catalog.tree, new))
    return replace(catalog, tree=seen.tree, tensors=seen.tensors, parts=seen.parts)
