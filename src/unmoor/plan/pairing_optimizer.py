"""Which parameter of one saved optimizer is which of another: by name where both have names, else by a proved order.

An optimizer that numbers its parameters lists them in the order of a model: which names they have, the model of its own
file tells, or that of the other, where shapes leave one way. Else numbers are held against each other as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import TensorNode

from .optimizer_order import told_by_order
from .pairing_names import pair_names
from .saved_optimizer import SavedOptimizer, take_apart

__all__ = ["ParamPair", "ParamPairs", "is_optimizer", "pair_params"]

Shape = tuple[int, ...]

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class ParamPair:
    """The ids of one parameter on both sides and what to call it."""

    a: Any
    b: Any
    name: str


@dataclass(frozen=True, slots=True)
class ParamPairs:
    """The parameters that both optimizers have, and how they were matched ("" where ids are equal and nothing is)."""

    pairs: tuple[ParamPair, ...]
    a: SavedOptimizer
    b: SavedOptimizer
    how: str = ""


def is_optimizer(node: Any) -> bool:
    """Whether a subtree is a state dict of torch's optimizers, whole enough to be taken apart."""
    if not isinstance(node, Mapping) or not isinstance(node.get("state"), Mapping):
        return False
    groups = node.get("param_groups")
    return isinstance(groups, list | tuple) and all(
        isinstance(group, Mapping)
        and isinstance(group.get("params"), list | tuple)
        and all(isinstance(identity, str | int) for identity in group["params"])
        for group in groups
    )


def pair_params(a: Catalog, part_a: Part, b: Catalog, part_b: Part) -> ParamPairs:
    """Pair the parameters of two optimizers."""
    one, other = take_apart(part_a, _recorded(a, part_a)), take_apart(part_b, _recorded(b, part_b))
    if one.names is None and other.names is None:
        return _by_place(one, other, "")
    told_a, told_b = _names(one, a, b), _names(other, b, a)
    if told_a is None or told_b is None:
        return _by_place(one, other, _why(one, other))
    ids_a, ids_b = dict(zip(told_a, one.flat, strict=True)), dict(zip(told_b, other.flat, strict=True))
    found = pair_names(_shapes(one, ids_a), _shapes(other, ids_b))
    how = [found.how] if found.how else []
    how += [f"numbers of {side} by the order of the model" for side, s in (("a", one), ("b", other)) if s.names is None]
    pairs = tuple(ParamPair(ids_a[x], ids_b[y], x) for x, y in found.pairs)
    return ParamPairs(pairs, one, other, ", ".join(how))


def _recorded(catalog: Catalog, part: Part) -> Sequence[str] | None:
    """The names of the parameters in the manifest of a file."""
    roles = (catalog.manifest or {}).get("roles")
    for row in roles.values() if isinstance(roles, Mapping) else ():
        if isinstance(row, Mapping) and row.get("keys") == list(part.keys) and isinstance(row.get("names"), list):
            return list(row["names"])
    return None


def _names(optimizer: SavedOptimizer, own: Catalog, other: Catalog) -> list[str] | None:
    """A name for every parameter in the order of the groups; None where nothing proves one."""
    if optimizer.names is not None:
        return list(optimizer.names)
    shapes = [[optimizer.shape(identity) for identity in ids] for ids in optimizer.ids]
    for catalog in (own, other):
        told = [names for part in catalog.part("model") if (names := told_by_order(shapes, _params(part))) is not None]
        if len(told) == 1 and part_is_ordered(catalog):
            return [name for names in told[0] for name in names]
    return None


def part_is_ordered(catalog: Catalog) -> bool:
    """Whether the models of a file list their tensors in their own order: safetensors sorts them."""
    return catalog.format != "safetensors" and all(p.detail.get("ordered", True) is True for p in catalog.part("model"))


def _params(part: Part) -> list[tuple[str, Shape]]:
    """The tensors of a model that may be parameters, one name for tied ones."""
    found: list[tuple[str, Shape]] = []
    seen: set[tuple[Any, ...]] = set()
    for name, node in part.node.items() if isinstance(part.node, Mapping) else ():
        if not isinstance(node, TensorNode) or not isinstance(name, str) or name.rpartition(".")[2] in _BUFFERS:
            continue
        place = (node.storage.key, node.offset, node.shape, node.stride) if node.storage is not None else (name,)
        if place not in seen:
            seen.add(place)
            found.append((name, node.shape))
    return found


def _shapes(optimizer: SavedOptimizer, ids: Mapping[str, Any]) -> dict[str, Shape | None]:
    return {name: optimizer.shape(identity) for name, identity in ids.items()}


def _by_place(one: SavedOptimizer, other: SavedOptimizer, how: str) -> ParamPairs:
    """Parameters at the same place of the same group, where all shapes allow it; where not, those of equal ids."""
    sizes = [list(map(len, side.ids)) for side in (one, other)]
    shapes = zip(map(one.shape, one.flat), map(other.shape, other.flat), strict=False)
    fitting = sizes[0] == sizes[1] and all(x is None or y is None or x == y for x, y in shapes)
    if fitting:
        names = one.names or other.names or tuple(map(str, one.flat))
        pairs = tuple(ParamPair(x, y, name) for x, y, name in zip(one.flat, other.flat, names, strict=True))
        return ParamPairs(pairs, one, other, how and f"{how}: matched by position, all shapes agree")
    held = set(other.flat)
    same = tuple(ParamPair(identity, identity, str(identity)) for identity in one.flat if identity in held)
    return ParamPairs(same, one, other, how and f"{how}, and positions do not agree in shape: not matched")


def _why(one: SavedOptimizer, other: SavedOptimizer) -> str:
    side = "a" if one.names is None else "b"
    del other
    return f"{side} numbers its parameters and no model tells their names"
