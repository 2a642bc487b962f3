"""The state dict that was saved, out of the flat entries of a torch.distributed.checkpoint folder.

Key paths are those that the saving planner noted. Where torch or torchtitan flattened an optimizer's state or a model
into the keys of something larger, it is put back into the form that torch's own state dicts have. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from unmoor.errors import CorruptFile
from unmoor.values.nodes import TensorNode

__all__ = ["gathered", "grown", "restored_forms"]

_STATE: Final = "state."
_GROUPS: Final = "param_groups."
_MODEL: Final = "model"
_PLAIN: Final = (bool, int, float, str, type(None))
_MILESTONES: Final = "milestones"

Path = tuple[str | int, ...]


class Made(dict[Any, Any]):
    """A mapping that stands for its entries' key paths, as against one that is an entry itself."""


class Row(list[Any]):
    """A list that stands for its entries' key paths."""


def grown(items: Iterable[tuple[Path, Any]], path: str) -> Made:
    """Nested mappings and lists with each value at its key path. Raises CorruptFile where two paths contradict."""
    root = Made()
    lists: list[tuple[Made, Made, Any]] = []
    for keys, value in items:
        node: Any = root
        for key, following in pairwise(keys):
            below = node.get(key)
            if below is None:
                below = node[key] = Made()
                if type(following) is int:
                    lists.append((below, node, key))
            node = below
            if type(node) is not Made:
                break
        if type(node) is not Made or keys[-1] in node:
            raise CorruptFile(f"{path} puts two values at one place, {'.'.join(map(str, keys))[:200]}", path=path)
        node[keys[-1]] = value
    for below, node, key in reversed(lists):
        if sorted(below, key=str) != sorted(range(len(below)), key=str):
            raise CorruptFile(f"{path} leaves holes in the list at {str(key)[:200]}", path=path)
        node[key] = Row(below[i] for i in range(len(below)))
    return root


def restored_forms(node: Any) -> Any:
    """A grown tree as plain dicts and lists, optimizers and schedulers in the form of torch's own state dicts.

    Optimizers are `{"state": {parameter: {...}}, "param_groups": [...]}`. A planner notes every key as text, so that
    keys known to be numbers are turned back: parameters of an optimizer, milestones of a scheduler. Entries are left as
    they are, whatever they hold.
    """
    if type(node) is Row:
        return [restored_forms(item) for item in node]
    if type(node) is not Made:
        return node
    keys = [key for key in node if type(key) is str]
    if any(key.startswith(_GROUPS) for key in keys) and all(key.startswith((_STATE, _GROUPS)) for key in node):
        return _unflattened(node)
    plain = {key: restored_forms(value) for key, value in node.items()}
    if _has_groups(plain):
        return _numbered(plain)
    if type(node.get(_MILESTONES)) is Made and "last_epoch" in node:
        plain[_MILESTONES] = _counted(plain[_MILESTONES])
    return plain


def _has_groups(node: Mapping[Any, Any]) -> bool:
    """Whether this is an optimizer's state dict; one without state has no entry for it at all."""
    groups = node.get("param_groups")
    if type(groups) is not list or type(node.get("state", {})) is not dict:
        return False
    return all(type(group) is dict and type(group.get("params")) is list for group in groups)


def _numbered(node: dict[Any, Any]) -> dict[Any, Any]:
    """Parameters that are numbers in the groups are numbers in the state too."""
    numbers = {str(i): i for group in node["param_groups"] for i in group["params"] if type(i) is int}
    state = {numbers.get(key, key): entry for key, entry in node.get("state", {}).items()}
    return {"state": state, **{key: value for key, value in node.items() if key != "state"}}


def _counted(milestones: dict[Any, Any]) -> Any:
    known = all(str(key).isdecimal() and type(number) is int for key, number in milestones.items())
    return Counter({int(key): number for key, number in milestones.items()}) if known else milestones


def _unflattened(node: Mapping[str, Any]) -> dict[str, Any]:
    """From keys `state.<parameter>.<name>` and `param_groups.<parameter>.<option>`; equal options make one group."""
    state: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    for key, value in node.items():
        prefix, into = (_STATE, state) if key.startswith(_STATE) else (_GROUPS, options)
        parameter, _, name = key[len(prefix) :].rpartition(".")
        into.setdefault(parameter, {})[name] = restored_forms(value)
    groups: list[dict[str, Any]] = []
    seen: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for parameter, own in options.items():
        mark = tuple(sorted((name, _mark(value)) for name, value in own.items()))
        if mark not in seen:
            seen[mark] = {**own, "params": []}
            groups.append(seen[mark])
        seen[mark]["params"].append(parameter)
    return {"state": state, "param_groups": groups}


def _mark(value: Any) -> str:
    """What an option is equal by: numbers and flat lists of them by value, anything else by itself."""
    parts = value if type(value) in (list, tuple) else (value,)
    return repr(value) if all(type(part) in _PLAIN for part in parts) else f"object {id(value)}"


def gathered(tree: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], int]:
    """The tree with the tensors that stand beside other parts put under "model", and how many they are.

    torchtitan writes the model's parameters beside "optimizer" and the rest. A folder of tensors alone is a model
    already.
    """
    tensors = {key: value for key, value in tree.items() if type(value) is TensorNode}
    parts = any(type(value) is dict for value in tree.values())
    if _MODEL in tree or not parts or not any("." in str(key) for key in tensors):
        return tree, 0
    rest = {key: value for key, value in tree.items() if key not in tensors}
    return {_MODEL: tensors, **rest}, len(tensors)
