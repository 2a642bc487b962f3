"""Which tensors belong to which part of a file. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unmoor.values.catalog import Catalog, Part, TensorEntry

__all__ = ["Membership", "membership", "relative_name"]


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """Each part with its tensors, in the order of the file, and the tensors that no part has."""

    parts: tuple[tuple[Part, tuple[TensorEntry, ...]], ...]
    loose: tuple[TensorEntry, ...]


def membership(catalog: Catalog) -> Membership:
    """Give every tensor to the innermost part that it stands in."""
    found: list[list[TensorEntry]] = [[] for _ in catalog.parts]
    place = {_address(part.keys): i for i, part in enumerate(catalog.parts)}
    loose: list[TensorEntry] = []
    owners: dict[tuple[str, ...], int | None] = {}
    for entry in catalog.tensors:
        address = _address(entry.keys)
        owner = place.get(address)
        if owner is None:
            above = address[:-1]
            if above not in owners:
                owners[above] = next((place[above[:n]] for n in range(len(above), -1, -1) if above[:n] in place), None)
            owner = owners[above]
        (loose if owner is None else found[owner]).append(entry)
    return Membership(tuple((part, tuple(found[i])) for i, part in enumerate(catalog.parts)), tuple(loose))


def relative_name(part: Part | None, entry: TensorEntry) -> str:
    """The name of a tensor inside its part."""
    return entry.path if part is None or not part.keys else entry.path[len(part.path) + 1 :]


def _address(keys: Iterable[Any]) -> tuple[str, ...]:
    """Keys as text: a key of a file may be of a kind that cannot be looked up."""
    return tuple(map(str, keys))
