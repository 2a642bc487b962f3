"""What a restore says of the ranks that saved and those that are there now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from unmoor.values.catalog import Catalog
from unmoor.values.plan import Change
from unmoor.values.ranks import Keys, ranks_text
from unmoor.values.target import Target
from unmoor.values.text import count, key_text, listing

from .of_rank import is_withheld, label_of, own_leaves, recorded_roles, saved_by

__all__ = ["Told", "tell_ranks", "withheld"]


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to say of ranks: one sentence, "" for a checkpoint of one, and what was not restored."""

    note: str = ""
    not_restored: tuple[Change, ...] = ()


def tell_ranks(catalog: Catalog, rank: int, world: int, labels: Collection[str]) -> Told:
    """Which of the ranks' own leaves rank `rank` of `world` takes, and whose are not used.

    `labels` are what is restored; of other roles nothing is said here. Random streams tell of themselves.
    """
    saved = saved_by(catalog)
    if catalog.manifest is None or (saved == 1 and world == 1):
        return Told()
    rows = _rows(catalog, labels)
    words = _words(catalog, rows)
    now = f"this is rank {rank} of {world}" if world > 1 else "this is one process"
    head = f"saved by {count(saved, 'rank')}, {now}"
    if rank >= saved:
        roles = recorded_roles(catalog)
        common = [word for label, word in words.items() if not is_withheld(roles.get(label))]
        return Told(f"{head}: {listing(common)} as on rank 0" if common else head, tuple(_lost(catalog, rows, rank)))
    own = [word for label, word in words.items() if rank == 0 or label in rows.get(rank, {})]
    unused = tuple(_unused(rows, words, world, recorded_roles(catalog)))
    return Told(f"{head}: {listing(own)} of rank {rank}" if own else head, unused)


def withheld(catalog: Catalog, target: Target) -> dict[str, str]:
    """Label -> why a rank that did not exist takes no state for it: ranks had their own, or a sum would count twice."""
    saved, roles, labels = saved_by(catalog), recorded_roles(catalog), target.labels()
    if target.rank < saved:
        return {}
    summed = {item.label for item in target.objects if item.summed} if saved == 1 else set()
    differing = {label for own in _rows(catalog, labels).values() for label in own}
    own = {label for label in labels if label in differing and is_withheld(roles.get(label))}
    return {
        **dict.fromkeys(own, f"each of {count(saved, 'rank')} had its own"),
        **dict.fromkeys(summed, "1 rank saved its sums, which would count twice"),
    }


Rows = dict[int, dict[str, list[Keys]]]
"""Rank -> label, or the text of the place of a plain value -> own leaves in it."""


def _rows(catalog: Catalog, labels: Collection[str]) -> Rows:
    roles = recorded_roles(catalog)
    rows: Rows = {}
    for rank, leaves in own_leaves(catalog).items():
        for keys in leaves:
            label = label_of(roles, keys)
            if not label or (label in labels and label != "rng"):
                rows.setdefault(rank, {}).setdefault(label or key_text(keys), []).append(keys)
    return rows


def _words(catalog: Catalog, rows: Rows) -> dict[str, str]:
    """Label -> what to call the leaves in it that are not the same on all ranks: of a module they are buffers."""
    roles = recorded_roles(catalog)
    places: dict[str, set[Keys]] = {}
    for row in rows.values():
        for label, keys in row.items():
            places.setdefault(label, set()).update(keys)
    return {
        label: f"{count(len(found), 'buffer')} of {label}" if _is_module(roles.get(label)) else label
        for label, found in places.items()
    }


def _is_module(role: Mapping[str, object] | None) -> bool:
    return role is not None and "wrappers" in role and not is_withheld(role)


def _unused(rows: Rows, words: Mapping[str, str], world: int, roles: Collection[str]) -> Iterator[Change]:
    """Own leaves of ranks that are there no more."""
    for label, word in words.items():
        ranks = [rank for rank in rows if rank >= world and label in rows[rank]]
        if ranks:
            what = "" if word == label else f"{word.partition(' of ')[0]} "
            place = (label, "") if label in roles else ("extra", label)
            yield Change(*place, f"{what}of {ranks_text(ranks)}", "not used")


def _lost(catalog: Catalog, rows: Rows, rank: int) -> Iterator[Change]:
    """Plain values that ranks had for themselves: a new rank has none."""
    roles, saved = recorded_roles(catalog), saved_by(catalog)
    for name in dict.fromkeys(label for row in rows.values() for label in row if label not in roles):
        yield Change("extra", name, f"each of {count(saved, 'rank')} had its own", f"rank {rank} has none")
