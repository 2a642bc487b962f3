"""What single ranks have for themselves in a checkpoint of several, as one part beside those of the run. Pure."""

from __future__ import annotations

from dataclasses import replace

from unmoor.values.catalog import Catalog, Part
from unmoor.values.ranks import RANKS, saved_world
from unmoor.values.text import count, listing

__all__ = ["OWN", "own_text", "with_own_joined"]

OWN = "ranks"
"""The role of that part, which no part of a run has."""


def with_own_joined(catalog: Catalog) -> Catalog:
    """The catalog with one part for all that single ranks have for themselves."""
    kept = catalog.run_parts()
    own = [entry for entry in catalog.tensors if entry.keys[:1] == (RANKS,)]
    if saved_world(catalog.manifest) == 1 or (len(kept) == len(catalog.parts) and not own):
        return catalog
    devices: dict[str, int] = {}
    for entry in own:
        devices[entry.device] = devices.get(entry.device, 0) + 1
    tree = catalog.tree.get(RANKS) if isinstance(catalog.tree, dict) else None
    ranks = tree if isinstance(tree, dict) else {}
    names = list(dict.fromkeys(str(key) for leaves in ranks.values() if isinstance(leaves, dict) for key in leaves))
    detail = {"ranks": len(ranks), "names": names}
    joined = Part(OWN, "own", (RANKS,), len(own), sum(entry.nbytes for entry in own), devices, detail, tree)
    return replace(catalog, parts=(*kept, joined))


def own_text(part: Part) -> str:
    """Whose it is, and of what."""
    number, names = part.detail["ranks"], part.detail["names"]
    return f"what {count(number, 'rank')} {'has' if number == 1 else 'have'} unlike rank 0: {listing(names, 6)}"
