"""The roles that a file's own manifest records, in the place of those that structure tells.

A manifest is a claim: it renames the role of what stands at a key path, never what stands there. What single ranks have
for themselves stands under `ranks`, at the key paths of the run: there it has the roles of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmoor.values.catalog import Part, TensorEntry
from unmoor.values.manifests import UNORDERED
from unmoor.values.ranks import RANKS, saved_world
from unmoor.values.roles import ROLES

__all__ = ["with_recorded_roles"]


def with_recorded_roles(
    parts: Sequence[Part], entries: Sequence[TensorEntry], manifest: Mapping[str, Any] | None
) -> tuple[tuple[Part, ...], tuple[TensorEntry, ...]]:
    """Parts and tensors with the role words under which they were saved, and parts whose names have no order."""
    parts = _with_order(parts, manifest)
    roles = _roles(manifest)
    if not roles:
        return tuple(parts), tuple(entries)
    lengths = sorted({len(keys) for keys in roles})
    several = saved_world(manifest) > 1
    found = tuple(
        _own_part(part, _covering(part.keys[2:], roles, lengths))
        if several and part.keys[:1] == (RANKS,)
        else _part(part, roles.get(part.keys))
        for part in parts
    )
    if not several and lengths == [1]:  # as unmoor.save writes them: what stands under a word has its role
        told = {keys[0]: role for keys, role in roles.items()}
        return found, tuple([
            entry if (role := told.get(entry.keys[0], entry.role) if entry.keys else entry.role) == entry.role
            else replace(entry, role=role) for entry in entries
        ])  # fmt: skip
    return found, tuple(_entry(entry, roles, lengths, several=several) for entry in entries)


def _with_order(parts: Sequence[Part], manifest: Mapping[str, Any] | None) -> Sequence[Part]:
    recorded = (manifest or {}).get(UNORDERED)
    places = {tuple(keys) for keys in recorded} if isinstance(recorded, list) else set()
    return [replace(part, detail={**part.detail, "ordered": False}) if part.keys in places else part for part in parts]


def _roles(manifest: Mapping[str, Any] | None) -> dict[tuple[Any, ...], str]:
    """Key path -> role word, of those that the role table knows; anything malformed counts for nothing."""
    recorded = (manifest or {}).get("roles")
    roles: dict[tuple[Any, ...], str] = {}
    for entry in recorded.values() if isinstance(recorded, Mapping) else ():
        keys, role = (entry.get("keys"), entry.get("role")) if isinstance(entry, Mapping) else (None, None)
        if isinstance(keys, list) and all(isinstance(key, str | int) for key in keys) and role in ROLES:
            roles[tuple(keys)] = role
    return roles


def _part(part: Part, role: str | None) -> Part:
    if role is None or role == "rng":
        return part
    kind = "state_dict" if part.kind == "tensors" else part.kind
    return part if (role, kind) == (part.role, part.kind) else replace(part, role=role, kind=kind)


def _own_part(part: Part, role: str | None) -> Part:
    return part if role in (None, part.role) else replace(part, role=role)


def _entry(
    entry: TensorEntry, roles: Mapping[tuple[Any, ...], str], lengths: Sequence[int], *, several: bool
) -> TensorEntry:
    own = several and entry.keys[:1] == (RANKS,)
    role = _covering(entry.keys[2:] if own else entry.keys, roles, lengths)
    return entry if role in (None, entry.role) else replace(entry, role=role)


def _covering(keys: tuple[Any, ...], roles: Mapping[tuple[Any, ...], str], lengths: Sequence[int]) -> str | None:
    """The role of the outermost recorded place that `keys` is, or is below."""
    return next((role for length in lengths if (role := roles.get(keys[:length])) is not None), None)
