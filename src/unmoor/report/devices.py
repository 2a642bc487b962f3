"""Where the tensors of a file were, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.text import count

from .claims import claims
from .content import role_rank
from .layout import plain

__all__ = ["devices_text", "tags_text"]

_TAGS: Final = 4
"""More devices than this are told by their number and their ends."""

_WITHOUT: Final = frozenset({"safetensors"})
"""Formats that record no devices: their tensors are on the CPU only in the sense that they are in a file."""


def devices_text(catalog: Catalog) -> str:
    """`saved on cuda:7 (390 tensors) and cpu (127: Adam's step)`, with the number of ranks where there were several."""
    by_tag: dict[str, list[TensorEntry]] = {}
    for entry in catalog.tensors:
        by_tag.setdefault(plain(entry.device), []).append(entry)
    if not by_tag:
        return "no tensors"
    tags = [tag for tag in catalog.devices() if tag in by_tag] if len(by_tag) > 1 else list(by_tag)
    tags += [tag for tag in by_tag if tag not in tags]
    if tags == [""] or catalog.format in _WITHOUT:
        return f"{count(len(catalog.tensors), 'tensor')}, no device recorded"
    world = claims(catalog).world
    saved = "saved on " if world < 2 else f"saved by {count(world, 'rank')} on "
    if len(tags) > _TAGS:
        return f"{saved}{len(tags)} devices, {tags_text(tags)} ({count(len(catalog.tensors), 'tensor')})"
    first = f"{tags[0]} ({count(len(by_tag[tags[0]]), 'tensor')})"
    others = [f"{tag or 'no device'} ({len(by_tag[tag]):,}{_whose(by_tag[tag], catalog)})" for tag in tags[1:]]
    return saved + _and([first, *others])


def tags_text(tags: Iterable[str]) -> str:
    """A few device tags as they are, many by their ends."""
    known = [plain(tag) or "none" for tag in tags]
    if len(known) <= 2:
        return ", ".join(known)
    ordered = sorted(known, key=lambda tag: (tag.partition(":")[0], len(tag), tag))
    return f"{ordered[0]} to {ordered[-1]}"


def _whose(entries: Sequence[TensorEntry], catalog: Catalog) -> str:
    """Whose a minority of tensors is, as `: Adam's step and rng`."""
    by_role: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        by_role.setdefault(entry.role, []).append(entry)
    owners = [_owner(role, by_role[role], catalog) for role in sorted(by_role, key=role_rank)]
    return f": {_and(owners)}" if len(owners) <= _TAGS else ""


def _owner(role: str, entries: Sequence[TensorEntry], catalog: Catalog) -> str:
    keys = {entry.path.rpartition(".")[2] for entry in entries}
    if role != "optimizer" or len(keys) > 1:
        return plain(role)
    families = {str(part.detail.get("family") or "") for part in catalog.part(role)} - {""}
    family = families.pop() if len(families) == 1 else "the optimizer"
    return plain(f"{family}'s {keys.pop()}")


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
