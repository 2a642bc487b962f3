"""Optimizer state of frozen parameters: kept beside the live optimizer that does not hold them, until the next save.

Kept for as long as the optimizer lives, on the CPU, and by name: the parameter itself may be made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

__all__ = ["keep", "kept"]

_KEPT: WeakKeyDictionary[Optimizer, Mapping[str, Any]] = WeakKeyDictionary()


def keep(optimizer: Optimizer, state: Mapping[str, Any], *, more: bool) -> None:
    """Keep a state dict whose ids are names in the place of what was kept, or with `more` in addition to it."""
    before = kept(optimizer, without=state.get("state", {})) if more else {}
    merged = {
        "state": {**before.get("state", {}), **state.get("state", {})},
        "param_groups": [*before.get("param_groups", ()), *state.get("param_groups", ())],
    }
    if merged["state"]:
        _KEPT[optimizer] = merged
    else:
        _KEPT.pop(optimizer, None)


def kept(optimizer: Optimizer, *, without: Collection[str]) -> Mapping[str, Any]:
    """What is kept for an optimizer but for some names, as a state dict whose ids are names; {} for nothing."""
    held = _KEPT.get(optimizer)
    if held is None:
        return {}
    state = {name: entry for name, entry in held["state"].items() if name not in without}
    groups = [{**group, "params": [n for n in group["params"] if n in state]} for group in held["param_groups"]]
    return {"state": state, "param_groups": [group for group in groups if group["params"]]} if state else {}
