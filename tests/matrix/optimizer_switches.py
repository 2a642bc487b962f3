"""The optimizer classes of the installed torch, and the switches of each, read from its constructor.

A class or a switch that torch adds joins by itself, or runs with its default.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.optim import Optimizer

__all__ = ["CLASSES", "combinations", "describe", "execution_ways"]


def _classes() -> dict[str, type[Optimizer]]:
    found = {name: item for name, item in vars(torch.optim).items() if isinstance(item, type)}
    return {n: c for n, c in sorted(found.items()) if issubclass(c, Optimizer) and c is not Optimizer}


CLASSES: Final = _classes()
"""Every optimizer class that torch.optim exports."""

BRIEF: Final[Mapping[str, dict[str, Any]]] = {"LBFGS": {"max_iter": 4, "history_size": 2}}
"""Options that keep a run short without taking anything from its state."""

TENSOR_LR: Final = 0.015625
"""A learning rate that float32 holds exactly."""

FLAGS: Final = ("capturable", "amsgrad", "maximize", "centered", "nesterov", "decoupled_weight_decay")
"""Switches that are on or off: each class runs with its default and with the other."""

VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "momentum": (0.9,),
    "line_search_fn": ("strong_wolfe",),
    "initial_accumulator_value": (0.25,),
}
"""Options that bring other state where they are not at their default."""

WAYS: Final = ({"foreach": False}, {"foreach": True}, {"fused": True}, {"differentiable": True})
"""How a step is computed; they exclude one another."""


def execution_ways(cls: type[Optimizer]) -> list[dict[str, Any]]:
    """The class's own choice, then each way that its constructor can be told."""
    known = inspect.signature(cls).parameters
    return [{}, *(way for way in WAYS if set(way) <= set(known))]


def combinations(cls: type[Optimizer]) -> list[dict[str, Any]]:
    """Every combination of switches, legal or not: torch itself refuses what is not."""
    axes = [execution_ways(cls), *_flags(cls), *_values(cls), _tensors(cls)]
    return [_merged(BRIEF.get(cls.__name__, {}), *chosen) for chosen in itertools.product(*axes)]


def _flags(cls: type[Optimizer]) -> list[list[dict[str, Any]]]:
    known = inspect.signature(cls).parameters
    return [[{}, {flag: not known[flag].default}] for flag in FLAGS if flag in known]


def _values(cls: type[Optimizer]) -> list[list[dict[str, Any]]]:
    known = inspect.signature(cls).parameters
    present = {name: values for name, values in VALUES.items() if name in known and not known[name].default}
    return [[{}, *({name: value} for value in values)] for name, values in present.items()]


def _tensors(cls: type[Optimizer]) -> list[dict[str, Any]]:
    """Numbers, a tensor learning rate, and tensors for both betas, where the signature speaks of tensors."""
    known = inspect.signature(cls).parameters
    takes = [name for name in ("lr", "betas") if name in known and "Tensor" in str(known[name].annotation)]
    made: list[dict[str, Any]] = [{}]
    if "lr" in takes:
        made.append({"lr": torch.tensor(TENSOR_LR)})
    if "betas" in takes:
        betas = tuple(torch.tensor(beta) for beta in known["betas"].default)
        made.append({"lr": torch.tensor(TENSOR_LR), "betas": betas})
    return made


def _merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def describe(switches: Mapping[str, Any]) -> str:
    """Switches as one short text."""
    return " ".join(f"{key}={_text(value)}" for key, value in switches.items()) or "defaults"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    return "tensor" if isinstance(value, torch.Tensor) else str(value)
