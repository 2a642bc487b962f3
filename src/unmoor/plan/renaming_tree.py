"""The names of models, averages and optimizers of a tree, changed alike: in their states, beside them, in the manifest.

Pure. Raises one MismatchError for all that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from unmoor.errors import MismatchError
from unmoor.values.beside import FROZEN, NAMES
from unmoor.values.catalog import Catalog, Part
from unmoor.values.nodes import kind_of
from unmoor.values.plan import Change
from unmoor.values.ranks import RANKS, saved_world

from .renaming import AUTO, Naming, Renamed, module_paths, new_names, unmet
from .taken import Taken, remade, replaced, with_tree

__all__ = ["NAMED_ROLES", "renamed"]

NAMED_ROLES: Final = ("model", "ema", "loss")
"""Roles whose state goes by the names of modules."""


def renamed(taken: Taken, catalog: Catalog, wish: Naming) -> tuple[Taken, tuple[Change, ...]]:
    """The tree with new names, and what was called otherwise before."""
    if not wish.wanted:
        return taken, ()
    modules = [part for part in taken.parts if part.role in NAMED_ROLES and _has_names(part)]
    optimizers = [part for part in taken.parts if part.role == "optimizer" and isinstance(part.node, Mapping)]
    if wish.strip == (AUTO,) and _is_canonical(catalog):
        wish = Naming((), wish.rename, wish.add)
    found = {
        id(part.node): new_names(list(part.node), wish, label=_label(part), dialect=catalog.dialect) for part in modules
    }
    labels = _labels(catalog)
    names = _Names([found[id(part.node)] for part in modules], wish, catalog.dialect, labels)
    listed = {id(part.node): names.of(list(_optimizer_names(part.node)), _label(part)) for part in optimizers}
    faults = [fault for one in (*found.values(), *listed.values()) for fault in one.faults]
    met = {word for one in (*found.values(), *listed.values()) for word in one.met}
    faults += unmet(wish, met, [name for one in (*found.values(), *listed.values()) for name in one.names])
    faults += [] if modules or any(one.names for one in listed.values()) else _without_names(taken)
    if faults:
        raise MismatchError(
            f"the names in {catalog.path} cannot be changed as asked; nothing was written",
            details=faults[:20],
            remedy='strip="auto" takes out what is proved to be a wrapper\'s; rename= takes one pattern a case.',
            path=catalog.path,
        )
    new = {id(part.node): _module(part.node, found[id(part.node)].names) for part in modules}
    new |= {id(part.node): _optimizer(part.node, listed[id(part.node)].names) for part in optimizers}
    new |= _of_ranks(taken, catalog, {part.keys: found[id(part.node)].names for part in modules})
    changes = [
        Change(_label(part), old, old, after)
        for part in (*modules, *optimizers)
        for old, after in (found | listed)[id(part.node)].names.items()
        if old != after
    ]
    told = {part.keys: one.names for part in modules for one in (found[id(part.node)],)}
    manifest = _manifest(taken.manifest, names, told)
    return with_tree(taken, replaced(taken.tree, new), manifest=manifest), tuple(changes)


def _has_names(part: Part) -> bool:
    return isinstance(part.node, Mapping) and bool(part.node) and all(isinstance(name, str) for name in part.node)


def _is_canonical(catalog: Catalog) -> bool:
    """Whether unmoor.save wrote the names, without any wrapper's segments: a `module` among them is the user's own."""
    return catalog.dialect == "unmoor" and bool((catalog.manifest or {}).get("roles"))


def _labels(catalog: Catalog) -> frozenset[str]:
    roles = (catalog.manifest or {}).get("roles")
    return frozenset(roles) if isinstance(roles, Mapping) else frozenset()


def _label(part: Part) -> str:
    return part.path or part.role


def _without_names(taken: Taken) -> list[str]:
    objects = [part for part in taken.parts if part.role in NAMED_ROLES]
    if not objects:
        return ["there is no model and no optimizer with names in it"]
    return [f'{_label(part)}: {kind_of(part.node)}; layout="plain" makes a state dict of it' for part in objects]


class _Names:
    """The names of optimizers: those of the models where a model has them, else by the same rules."""

    def __init__(self, modules: list[Renamed], wish: Naming, dialect: str, labels: frozenset[str]) -> None:
        self._wish, self._dialect, self._labels = wish, dialect, labels
        self._known: dict[str, set[str]] = {}
        for one in modules:
            for old, new in one.names.items():
                self._known.setdefault(old, set()).add(new)

    def of(self, names: list[str], label: str) -> Renamed:
        """Old -> new name; `model[gen]:weight` keeps what stands before its colon."""
        bare = {name: self._bare(name) for name in names}
        unknown = list(dict.fromkeys(own for _, own in bare.values() if own not in self._known))
        others = new_names(unknown, self._wish, label=label, dialect=self._dialect)
        made = Renamed(met=others.met, faults=others.faults)
        for name, (head, own) in bare.items():
            found = self._known.get(own) or {others.names[own]}
            if len(found) > 1:
                made.faults.append(f"{label}: {name} is called {' or '.join(sorted(found))}, model by model")
            made.names[name] = head + min(found)
        if len(set(made.names.values())) < len(made.names) and not made.faults:
            made.faults.append(f"{label}: two names of its parameters would become one")
        return made

    def _bare(self, name: str) -> tuple[str, str]:
        head, colon, own = name.rpartition(":")
        return (head + colon, own) if head in self._labels else ("", name)


def _module(node: Mapping[Any, Any], names: Mapping[str, str]) -> Any:
    made = remade(node, ((names[name], value) for name, value in node.items()))
    metadata = getattr(node, "_metadata", None)
    if isinstance(metadata, Mapping):
        paths = module_paths(names, [path for path in metadata if isinstance(path, str)])
        kept = ((paths[path], metadata[path]) for path in metadata if path in paths)
        made._metadata = remade(metadata, kept)
    return made


def _optimizer_names(node: Mapping[Any, Any]) -> Iterator[str]:
    """Every name of a parameter in an optimizer's state, once."""
    found: dict[str, None] = {}
    _mapped_optimizer(node, lambda name: found.setdefault(name) or name)
    return iter(found)


def _optimizer(node: Mapping[Any, Any], names: Mapping[str, str]) -> Any:
    return _mapped_optimizer(node, lambda name: names.get(name, name))


def _mapped_optimizer(node: Mapping[Any, Any], new: Callable[[str], Any]) -> Any:
    """An optimizer's state with every name of a parameter mapped: ids that are text, and the lists of names."""

    def items() -> Iterator[tuple[Any, Any]]:
        for key, value in node.items():
            if key == "state" and isinstance(value, Mapping):
                yield key, remade(value, ((_new(k, new), entry) for k, entry in value.items()))
            elif key == "param_groups" and isinstance(value, list | tuple):
                yield key, type(value)(_group(group, new) for group in value)
            elif key == NAMES and isinstance(value, list | tuple):
                yield key, _deep(value, new)
            elif key == FROZEN and isinstance(value, Mapping):
                yield key, _mapped_optimizer(value, new)
            else:
                yield key, value

    return remade(node, items())


def _group(group: Any, new: Callable[[str], Any]) -> Any:
    if not isinstance(group, Mapping):
        return group
    return remade(group, ((k, _deep(v, new) if k in ("params", "param_names") else v) for k, v in group.items()))


def _deep(value: Any, new: Callable[[str], Any]) -> Any:
    return type(value)(_deep(item, new) for item in value) if isinstance(value, list | tuple) else _new(value, new)


def _new(value: Any, new: Callable[[str], Any]) -> Any:
    return new(value) if isinstance(value, str) else value


def _of_ranks(taken: Taken, catalog: Catalog, told: Mapping[tuple[Any, ...], Mapping[str, str]]) -> dict[int, Any]:
    """What other ranks have of their own of the models, under the new names."""
    tree = taken.tree
    ranks = tree.get(RANKS) if isinstance(tree, Mapping) and saved_world(catalog.manifest) > 1 else None
    made: dict[int, Any] = {}
    for own in ranks.values() if isinstance(ranks, Mapping) else ():
        for keys, names in told.items():
            node = own
            for key in map(str, keys):
                node = node.get(key) if isinstance(node, Mapping) else None
            if isinstance(node, Mapping):
                made[id(node)] = remade(node, ((names.get(name, name), leaf) for name, leaf in node.items()))
    return made


def _manifest(
    manifest: Mapping[str, Any] | None, names: _Names, told: Mapping[tuple[Any, ...], Mapping[str, str]]
) -> Mapping[str, Any] | None:
    """The manifest with the new names of parameters, and of what single ranks lack or have whole."""
    if manifest is None:
        return None
    rows = manifest.get("roles")
    roles = {label: _row(row, names) for label, row in (rows.items() if isinstance(rows, Mapping) else ())}
    made = {**manifest, "roles": roles}
    if isinstance(manifest.get(RANKS), Mapping):
        made[RANKS] = {rank: _rank(row, told) for rank, row in manifest[RANKS].items()}
    return made


def _row(row: Any, names: _Names) -> Any:
    own = row.get("names") if isinstance(row, Mapping) else None
    return {**row, "names": list(names.of(own, "").names.values())} if isinstance(own, list) else row


def _rank(row: Any, told: Mapping[tuple[Any, ...], Mapping[str, str]]) -> Any:
    if not isinstance(row, Mapping):
        return row
    lists = {
        key: [_path(path, told) for path in row[key]] for key in ("whole", "absent") if isinstance(row.get(key), list)
    }
    return {**row, **lists}


def _path(path: Any, told: Mapping[tuple[Any, ...], Mapping[str, str]]) -> Any:
    for keys, names in told.items():
        if isinstance(path, list) and len(path) > len(keys) and tuple(path[: len(keys)]) == keys:
            return [*path[: len(keys)], names.get(path[len(keys)], path[len(keys)]), *path[len(keys) + 1 :]]
    return path
