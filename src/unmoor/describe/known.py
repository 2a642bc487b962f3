"""The roles that the table of known classes gives to models inside pickled objects.

hippynn pickles model, training loss and evaluator as one object: all three are modules by their structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmoor.values.catalog import Part, TensorEntry
from unmoor.values.nodes import Opaque
from unmoor.values.objects import ALL, OBJECT_ROLES

__all__ = ["with_object_roles"]


def with_object_roles(
    tree: Any, names: Sequence[str], parts: Sequence[Part], entries: Sequence[TensorEntry]
) -> tuple[list[Part], list[TensorEntry]]:
    """Parts and tensors with the roles of known objects. `names` are the classes that the file names."""
    if not any(name in OBJECT_ROLES for name in names):
        return list(parts), list(entries)
    roles = {part.keys: _role_at(tree, part.keys) for part in parts if part.role == "model"}
    changed = {keys: role for keys, role in roles.items() if role not in ("", "model")}
    made = [replace(part, role=changed.get(part.keys, part.role)) for part in parts]
    return made, [_entry(entry, changed) for entry in entries]


def _entry(entry: TensorEntry, changed: Mapping[tuple[Any, ...], str]) -> TensorEntry:
    role = next((role for keys, role in changed.items() if entry.keys[: len(keys)] == keys), entry.role)
    return entry if role == entry.role else replace(entry, role=role)


def _role_at(tree: Any, keys: Sequence[Any]) -> str:
    """The role that the innermost known object on the way gives; "" where none is on it."""
    node, role, table = tree, "", None
    for key in keys:
        if table is not None and key != "args":
            role, table = table.get(key, table.get(ALL, "")), None
        node = _step(node, key)
        if isinstance(node, Opaque):
            table = OBJECT_ROLES.get(node.name, table)
    return role


def _step(node: Any, key: Any) -> Any:
    if isinstance(node, Opaque):
        states = node.state if isinstance(node.state, tuple) else (node.state,)
        inner = next((state[key] for state in states if isinstance(state, Mapping) and key in state), None)
        return node.args if inner is None and key == "args" else inner
    if isinstance(node, Mapping):
        return node.get(key)
    fits = isinstance(node, list | tuple) and isinstance(key, int) and key < len(node)
    return node[key] if fits else None
