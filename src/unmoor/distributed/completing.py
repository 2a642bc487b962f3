"""Optimizer state that a rank lacks because it holds no element of the parameter: told by the rank that has the first.

FSDP with use_orig_params leaves a rank parameters without elements, which never get state there; for the save, and for
the ranks to be alike, each has to know of all.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from unmoor.live.content import Content
from unmoor.live.held import Held

from .meeting import Meeting

__all__ = ["complete_states", "lacks_states"]

Keys = tuple[Any, ...]


def lacks_states(content: Content) -> bool:
    """Whether parts of tensors are saved, and some parameter of an optimizer has no state on this rank."""
    return bool(content.held) and any(len(node["state"]) < _params(node) for _, node in _optimizers(content))


def complete_states(meeting: Meeting, content: Content) -> None:
    """Give every rank's content an entry for each parameter of which another rank has state.

    What other ranks hold is Held without parts; plain values and tensors of no dimension are theirs.
    """
    optimizers = dict(_optimizers(content))
    told = [[list(keys), number, entry] for keys, node in optimizers.items() for number, entry in _first_held(node)]
    for row in meeting.gather(_packed(told)):
        for keys, number, entry in torch.load(io.BytesIO(row), weights_only=True):
            node = optimizers[tuple(keys)]
            if number not in node["state"]:
                node["state"][number] = _filled(content, (*keys, "state", number), entry)
    for node in optimizers.values():
        node["state"] = dict(sorted(node["state"].items()))


def _optimizers(content: Content) -> Iterator[tuple[Keys, dict[str, Any]]]:
    """Key path -> state dict of each optimizer whose state goes by number."""
    for role in content.roles.values():
        node: Any = content.tree
        for key in role["keys"] if "names" in role else ():
            node = node[key]
        state = node.get("state") if "names" in role and isinstance(node, Mapping) else None
        if isinstance(state, dict) and all(type(number) is int for number in state):
            yield tuple(role["keys"]), node


def _params(node: Mapping[str, Any]) -> int:
    return sum(len(group["params"]) for group in node["param_groups"])


def _first_held(node: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The entries that this rank tells of: it has the first element, or nobody's elements are in it."""
    for number, entry in node["state"].items():
        held = [value for value in entry.values() if isinstance(value, Held)]
        if not held or any(not any(box.start) for value in held for box in value.boxes):
            yield number, {key: _told(value) for key, value in entry.items()}


def _told(value: Any) -> Any:
    if isinstance(value, Held):
        return ["held", list(value.shape), value.dtype]
    return ["value", value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value]


def _packed(told: Any) -> bytes:
    sink = io.BytesIO()
    torch.save(told, sink)
    return sink.getvalue()


def _filled(content: Content, keys: Keys, entry: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, (kind, *said) in entry.items():
        if kind == "held":
            made[key] = content.held[(*keys, key)] = Held(torch.Size(said[0]), said[1], torch.device("cpu"), ())
        else:
            made[key] = said[0]
            if isinstance(said[0], torch.Tensor):
                content.tensors[(*keys, key)] = said[0]
    return made
