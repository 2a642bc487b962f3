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
_MILESTONES: Final = "milestones"

Path = tuple[str | int, ...]


def grown(items: Iterable[tuple[Path, Any]], path: str) -> dict[Any, Any]:
    """Nested dicts and lists with each value at its key path. Raises CorruptFile where two paths contradict."""
    root: dict[Any, Any] = {}
    lists: list[tuple[dict[int, Any], Any, Any]] = []
    for keys, value in items:
        node: Any = root
        for key, following in pairwise(keys):
            below = node.get(key)
            if below is None:
                below = node[key] = {}
                if type(following) is int:
                    lists.append((below, node, key))
            node = below
            if type(node) is not dict:
                break
        if type(node) is not dict or keys[-1] in node:
            raise CorruptFile(f"{path} puts two values at one place, {'.'.join(map(str, keys))[:200]}", path=path)
        node[keys[-1]] = value
    for below, node, key in reversed(lists):
        if sorted(below, key=str) != sorted(range(len(below)), key=str):
            raise CorruptFile(f"{path} leaves holes in the list at {str(key)[:200]}", path=path)
        node[key] = [below[i] for i in range(len(below))]
    return root


def restored_forms(tree: dict[Any, Any]) -> dict[Any, Any]:
    """The tree with the state of every optimizer and scheduler in the form of torch's own state dicts.

    Optimizers are `{"state": {parameter: {...}}, "param_groups": [...]}`. A planner notes every key as text, so that
    keys known to be numbers are turned back: parameters of an optimizer, milestones of a scheduler.
    """
    return {key: _restored(value) if type(value) in (dict, list) else value for key, value in tree.items()}


def _restored(node: Any) -> Any:
    if type(node) is list:
        return [_restored(item) if type(item) in (dict, list) else item for item in node]
    if any(type(key) is str and key.startswith(_GROUPS) for key in node):
        if all(type(key) is str and key.startswith((_STATE, _GROUPS)) for key in node):
            return _unflattened(node)
    elif type(node.get("param_groups")) is list:
        return _numbered(node)
    elif type(node.get(_MILESTONES)) is dict and "last_epoch" in node:
        return {**node, _MILESTONES: _counted(node[_MILESTONES])}
    return restored_forms(node)


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
        into.setdefault(parameter, {})[name] = value
    groups: list[dict[str, Any]] = []
    seen: dict[str, dict[str, Any]] = {}
    for parameter, own in options.items():
        mark = repr([(name, id(value) if type(value) is TensorNode else value) for name, value in sorted(own.items())])
        if mark not in seen:
            seen[mark] = {**own, "params": []}
            groups.append(seen[mark])
        seen[mark]["params"].append(parameter)
    return {"state": state, "param_groups": groups}


def _numbered(node: dict[Any, Any]) -> dict[Any, Any]:
    """Parameters that are numbers in the groups are numbers in the state too. Without state there is no entry at all."""
    groups, state = node["param_groups"], node.get("state", {})
    if type(state) is not dict or not all(
        type(group) is dict and type(group.get("params")) is list for group in groups
    ):
        return restored_forms(node)
    numbers = {str(i): i for group in groups for i in group["params"] if type(i) is int}
    return {"state": {numbers.get(key, key): entry for key, entry in state.items()}, **_without(node, "state")}


def _without(node: Mapping[Any, Any], key: Any) -> dict[Any, Any]:
    return {name: value for name, value in node.items() if name != key}


def gathered(tree: dict[Any, Any]) -> tuple[dict[Any, Any], int]:
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
