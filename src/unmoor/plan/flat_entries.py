"""A file's values by the flat keys of torch.distributed.checkpoint: what a load may ask for. Pure.

Optimizers are given the form that `get_optimizer_state_dict` has, state by the names of parameters, where the file
holds those names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import UnsupportedFile
from unmoor.values.beside import NAMES
from unmoor.values.catalog import Catalog
from unmoor.values.frames import Framed, FrameError, framed
from unmoor.values.nodes import CompositeTensor, TensorNode, kind_of

from .choose import subtree
from .names import apply_rename
from .policy import Rename
from .taking import Taken, take

__all__ = ["FORMS", "Entries", "flat_entries"]

FORMS: Final = ("named", "flattened", "saved")

_PARAM_NAMES: Final = "param_names"
"""Where torch (2.6 on) has the names of parameters: in each group."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Values by flat key, the key path of each in a state dict, and what to call each in the file."""

    values: Mapping[str, Any]
    paths: Mapping[str, tuple[str | int, ...]]
    places: Mapping[str, str]


def flat_entries(catalog: Catalog, only: str | Sequence[str] | None, rename: Rename, optimizer: str) -> Entries:
    """All that `catalog` offers to a load.

    Raises MismatchError for an `only` that chooses nothing and for names that `rename` makes one, UnsupportedFile for a
    tree that is no mapping.
    """
    if catalog.entries and catalog.manifest is None and only is None:
        paths = {key: path for key, (path, _) in catalog.entries.items()}
        values = {key: value for key, (_, value) in catalog.entries.items()}
    else:
        made = _framed(catalog, _in_form(catalog, take(catalog, only), optimizer))
        values, paths = made.leaves, made.paths
    if rename is None:
        return Entries(values, paths, {key: key for key in values})
    back = apply_rename(list(values), rename)
    moved = {key: paths[old] if key == old else tuple(key.split(".")) for key, old in back.items()}
    return Entries({key: values[old] for key, old in back.items()}, moved, back)


def _framed(catalog: Catalog, tree: Any) -> Framed:
    if not isinstance(tree, Mapping):
        raise UnsupportedFile(
            f"{catalog.path} holds {kind_of(tree)}, and a load asks for values by name", path=catalog.path
        )
    try:
        return framed(tree, lambda _: False, lambda leaf: isinstance(leaf, TensorNode | CompositeTensor))
    except (FrameError, RecursionError) as fault:
        why = str(fault) if isinstance(fault, FrameError) else "it is nested too deeply"
        raise UnsupportedFile(
            f"{catalog.path} holds a tree that has no names for all of its values: {why[:200]}",
            remedy='Take the parts that you want: only="model", or a list of roles or key paths.',
            path=catalog.path,
        ) from None


def _in_form(catalog: Catalog, taken: Taken, optimizer: str) -> Any:
    """The tree with its optimizers in the form that was asked for."""
    tree, depth = taken.tree, len(taken.root)
    for part in catalog.part("optimizer") if optimizer != "saved" else ():
        if part.keys[:depth] == taken.root and _leads(tree, part.keys[depth:]):
            tree = _replaced(tree, part.keys[depth:], _flattened if optimizer == "flattened" else _named)
    return tree


def _leads(tree: Any, keys: tuple[Any, ...]) -> bool:
    try:
        return isinstance(subtree(tree, keys), Mapping)
    except KeyError:
        return False


def _replaced(tree: Any, keys: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of the containers on the way to `keys`, with what is there changed."""
    if not keys:
        return change(tree)
    made = list(tree) if isinstance(tree, list | tuple) else dict(tree)
    made[keys[0]] = _replaced(tree[keys[0]], keys[1:], change)
    return made


def _named(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """State by the names of parameters; as it is where the file does not hold them all."""
    groups = state.get("param_groups")
    names = _names(state, groups) if isinstance(groups, list) else None
    if names is None or not isinstance(groups, list):
        return state
    known = {number: name for group, row in zip(groups, names, strict=True)
             for number, name in zip(group["params"], row, strict=True)}  # fmt: skip
    entries = {known.get(number, number): entry for number, entry in state.get("state", {}).items()}
    rows = [{**group, "params": list(row)} for group, row in zip(groups, names, strict=True)]
    return {**{k: v for k, v in state.items() if k != NAMES}, "state": entries, "param_groups": rows}


def _names(state: Mapping[Any, Any], groups: Sequence[Any]) -> list[Sequence[str]] | None:
    """The names of the parameters, group by group; None where some are missing or two are the same."""
    if not all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups):
        return None
    rows = state.get(NAMES, [group.get(_PARAM_NAMES) for group in groups])
    if not isinstance(rows, list) or not all(isinstance(row, list | tuple) for row in rows):
        return None
    flat = [name for row in rows for name in row]
    whole = [len(row) for row in rows] == [len(group["params"]) for group in groups]
    return rows if whole and all(flat) and len(set(flat)) == len(flat) else None


def _flattened(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """As get_optimizer_state_dict has it with flatten_optimizer_state_dict: options by parameter too."""
    named = _named(state)
    groups = named.get("param_groups")
    if not isinstance(groups, list):
        return named
    made: dict[str, Any] = {}
    for name, entry in named.get("state", {}).items():
        made |= {f"state.{name}.{key}": value for key, value in entry.items()}
    for group in groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for name in group["params"]:
            made |= {f"param_groups.{name}.{key}": value for key, value in options.items()}
    return made
