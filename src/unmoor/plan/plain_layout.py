"""The tree of any dialect laid out as `unmoor.save` lays out a run: state by role, all other values beside it. Pure.

    {"model": state dict, "optimizer": state dict, "scheduler": ..., "rng": ..., and all other values by their own keys}

Plain torch.load and load_state_dict take that. A role with several objects is a list where they are counted, else a
dict by the key that each had. Only what structure proves is moved; the rest stays under its own key, where a restore of
the source would look for it too. A value whose key is a role's stands under `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.manifests import BY_STRUCTURE
from unmoor.values.ranks import RANKS
from unmoor.values.roles import ROLES

from .pickled_state import with_states
from .role_words import is_average, names_role
from .taken import Keys, Taken, remade, with_tree
from .told_roles import with_told_roles

__all__ = ["plain_layout"]

_ROLES: Final = (*ROLES, "custom")
"""What is laid out by its word, in this order; `custom` are objects of the user's own in folders that number them."""

_EXTRA: Final = "extra"
_GONE: Final = object()
_HOST: Final = {"torch-cpu": "torch", "numpy": "numpy", "python": "python"}
"""Kind of a saved state -> the key under which unmoor.save keeps it."""


@dataclass(slots=True)
class _Placed:
    """What is moved: by role the parts that play it; `states` are random states by rank, of the parts in `streams`."""

    roles: dict[str, list[Part]] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    streams: list[Part] = field(default_factory=list)

    def gone(self) -> frozenset[Keys]:
        """The places of all of it in the file."""
        return frozenset(part.keys for parts in (*self.roles.values(), self.streams) for part in parts)


def plain_layout(catalog: Catalog) -> Catalog:
    """The catalog of the same run in the plain layout; as it is where `unmoor.save` wrote it."""
    if (catalog.manifest or {}).get("roles"):
        return catalog
    placed = _placed(with_states(with_told_roles(catalog)))
    if not placed.roles and not placed.states:
        return catalog
    left = _left(catalog.tree, (), placed.gone())
    tree, parts = _tree(placed, left if isinstance(left, Mapping) else {} if left is _GONE else {_EXTRA: left})
    seen = with_tree(Taken(catalog.tree, catalog.tensors, parts=tuple(parts)), tree)
    roles = {part.keys: part.role for part in parts}
    tensors = tuple(
        replace(entry, role=next((roles[entry.keys[:n]] for n in (1, 2) if entry.keys[:n] in roles), entry.role))
        for entry in seen.tensors
    )
    others = tuple(part for part in catalog.parts if not _is_moved(part.keys, placed.gone()) and _stays(part, tree))
    return replace(
        catalog,
        tree=tree,
        tensors=tensors,
        parts=(*seen.parts, *others),
        manifest=_manifest(catalog, placed, parts),
    )


def _placed(catalog: Catalog) -> _Placed:
    placed = _Placed()
    offered = [
        part
        for part in catalog.run_parts()
        if part.role in _ROLES and part.kind != "tensors" and not part.detail.get("meant")
        and not part.detail.get("aside") and isinstance(part.node, Mapping)
    ]  # fmt: skip
    offered = [part for part in offered if not any(_is_below(part.keys, other.keys) for other in offered)]
    for part in offered:
        if part.role not in ("model", "rng"):
            placed.roles.setdefault(part.role, []).append(part)
    placed.roles["model"] = _models([part for part in offered if part.role == "model"])
    placed.roles = {role: placed.roles[role] for role in _ROLES if role in placed.roles and _keys(placed.roles[role])}
    _streams(catalog, placed)
    return placed


def _is_below(keys: Keys, other: Keys) -> bool:
    return len(keys) > len(other) and keys[: len(other)] == other


def _models(parts: Sequence[Part]) -> list[Part]:
    """What is the model: of several, those that are counted, or the one that bears its name; else all but the best.

    An average alone is none for certain, unless it is all that there is.
    """
    sure = [part for part in parts if not is_average(part) or (len(parts) == 1 and not part.keys)]
    if len(sure) > 1 and all(isinstance(key, int) for key in _keys(sure)):
        return sure
    named = [part for part in sure if names_role(part, "model")]
    return named if len(named) == 1 else [part for part in sure if not _is_best(part)] or sure


def _is_best(part: Part) -> bool:
    return any("best" in str(key).lower() for key in part.keys)


def _keys(parts: Sequence[Part]) -> list[Any]:
    """The key of each of several parts of one role: the place in a list where they are counted, else a name.

    Empty where two would have the same.
    """
    if len(parts) == 1:
        return [None]
    given = [part.detail.get("key") or (part.keys[-1] if part.keys else "") for part in parts]
    files = ["file" in part.detail and len(part.keys) == 1 and not part.detail.get("key") for part in parts]
    counted = [0 if own else int(key) if str(key).isdigit() else -1 for key, own in zip(given, files, strict=True)]
    if sorted(counted) == list(range(len(parts))):
        return counted
    names = [str(key) for key in given]
    return names if len(set(names)) == len(names) else [part.path for part in parts]


def _left(node: Any, keys: Keys, gone: frozenset[Keys]) -> Any:
    """What of the tree is not moved; containers that held nothing else are gone with it."""
    if keys in gone:
        return _GONE
    if not any(place[: len(keys)] == keys for place in gone):
        return node
    if isinstance(node, Mapping):
        kept = {key: left for key, item in node.items() if (left := _left(item, (*keys, key), gone)) is not _GONE}
        return remade(node, kept.items()) if kept else _GONE
    if isinstance(node, list | tuple):
        items = (_left(item, (*keys, i), gone) for i, item in enumerate(node))
        return [item for item in items if item is not _GONE] or _GONE
    return node


def _tree(placed: _Placed, left: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Part]]:
    tree: dict[Any, Any] = {}
    parts: list[Part] = []
    for role, own in placed.roles.items():
        keys = _keys(own)
        if keys == [None]:
            tree[role] = own[0].node
        elif all(isinstance(key, int) for key in keys):
            tree[role] = [part.node for _, part in sorted(zip(keys, own, strict=True), key=lambda row: row[0])]
        else:
            tree[role] = {key: part.node for key, part in zip(keys, own, strict=True)}
        parts += [
            replace(
                part, role=role, kind="state_dict", keys=(role,) if key is None else (role, key), detail=_told(part)
            )
            for key, part in zip(keys, own, strict=True)
        ]
    if placed.states:
        tree["rng"] = placed.states[min(placed.states)]
    others = {str(rank): {"rng": state} for rank, state in placed.states.items() if rank != min(placed.states)}
    taken = {*tree, *([RANKS] if others else ())}
    tree |= {key: value for key, value in left.items() if key not in taken}
    clashing = {key: value for key, value in left.items() if key in taken}
    if clashing:
        inner = tree.pop(_EXTRA, None)
        tree[_EXTRA] = clashing if inner is None else {**clashing, _EXTRA: inner}
    return {**tree, **({RANKS: others} if others else {})}, parts


def _told(part: Part) -> dict[str, Any]:
    """What is known of a part beside its place."""
    return {key: value for key, value in part.detail.items() if key not in ("file", "key", "rank")}


def _is_moved(keys: Keys, gone: frozenset[Keys]) -> bool:
    return any(keys[:n] in gone for n in range(len(keys) + 1))


def _stays(part: Part, tree: Mapping[Any, Any]) -> bool:
    """Whether a part that is not moved stands where it stood."""
    node: Any = tree
    for key in part.keys:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return node is part.node


def _manifest(catalog: Catalog, placed: _Placed, parts: Sequence[Part]) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    for part in parts:
        label = part.role if len(part.keys) == 1 else f"{part.role}[{part.keys[1]}]"
        roles[label] = {"role": part.role, "keys": list(part.keys)}
    if placed.states:
        roles["rng"] = {"role": "rng", "keys": ["rng"], "streams": sorted(placed.states[min(placed.states)])}
    world = max(placed.states, default=0) + 1
    made = {"manifest": 1, "world_size": world, "roles": roles, "labels": BY_STRUCTURE}
    source = {"converted": {"dialect": catalog.dialect, "format": catalog.format}}
    return {**made, **source, **({RANKS: {str(r): {} for r in sorted(placed.states)[1:]}} if world > 1 else {})}


def _streams(catalog: Catalog, placed: _Placed) -> None:
    """The random states, where it is certain which is whose: one of each kind for each rank, ranks from 0 on."""
    parts = list(catalog.part("rng"))
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        own = found.setdefault(int(part.detail.get("rank", 0)), {})
        if not _put(own, part):
            return
    if parts and sorted(found) == list(range(len(found))):
        placed.states, placed.streams = found, parts


def _put(own: dict[str, Any], part: Part) -> bool:
    """Put a state where unmoor.save keeps it; False where there is one already, or it is of another generator."""
    key = _HOST.get(part.kind)
    if key is None:
        return _put_device(own, part)
    state = _numpy_state(part) if key == "numpy" else part.node
    if key in own or state is None:
        return False
    own[key] = state
    return True


def _put_device(own: dict[str, Any], part: Part) -> bool:
    states = list(part.node) if isinstance(part.node, list | tuple) else [part.node]
    devices = own.setdefault("devices", {})
    if part.kind in devices:
        return False
    devices[part.kind] = states
    if "rank" in part.detail and isinstance(part.node, list | tuple) and states:
        own.setdefault("current", {})[part.kind] = part.detail["rank"] % len(states)
    return True


def _numpy_state(part: Part) -> Any:
    """The state of numpy's global generator in the form of `get_state(legacy=False)`."""
    node = part.node
    if isinstance(node, list | tuple) and len(node) == 5 and node[0] == "MT19937":
        inner = {"key": node[1], "pos": node[2]}
        return {"bit_generator": node[0], "state": inner, "has_gauss": node[3], "gauss": node[4]}
    return node if isinstance(node, Mapping) and node.get("bit_generator") == "MT19937" else None
