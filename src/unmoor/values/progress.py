"""How far a run was, told by the plain values of a checkpoint, or else by its name: one table for all. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from .nodes import NumpyScalar

__all__ = [
    "MISSING",
    "PATHS",
    "RUN",
    "VALUES",
    "Progress",
    "at",
    "is_name_of_run",
    "measured",
    "number",
    "progress",
    "step_in",
    "told",
]

RUN: Final = "run"
"""The key under which unmoor.Run keeps what it knows of itself in a checkpoint."""

VALUES: Final = "values"
"""The key of a manifest under which the values of this table stand again, so that a listing needs no pickle."""

_STEPS: Final[tuple[tuple[str, ...], ...]] = (
    ("step",), ("global_step",), ("global_steps",), ("iteration",), ("iterations",), ("iter",), ("iter_num",),
    ("num_iterations",), ("num_updates",), ("n_iter",), ("current_step",), ("train_step",), ("train_state", "step"),
    ("trainer_state", "global_step"), ("state", "step"), ("meta", "iter"), ("meta", "step"),
)  # fmt: skip
"""Where steps done stand, by key path; the first that is there decides."""

_EPOCHS: Final[tuple[tuple[str, ...], ...]] = (
    ("epoch",), ("current_epoch",), ("epochs",), ("epoch_num",), ("meta", "epoch"), ("controller", "current_epoch"),
)  # fmt: skip
"""Where epochs stand; they count where no steps do."""

PATHS: Final = (*_STEPS, *_EPOCHS)
"""All of them, those of steps first."""

_METRICS: Final = (
    "loss", "val_loss", "best_loss", "best_val_loss", "acc", "accuracy", "best_acc", "best_acc1", "best_metric",
    "metric", "best_fitness", "score", "best_score",
)  # fmt: skip
"""Keys of numbers that say how good a checkpoint is; `metrics` holds several by name."""

_MOST_TEXT: Final = 32 << 10
_MOST_METRICS: Final = 64
_LARGEST: Final = 1 << 53
_DEEPEST: Final = 8
_ODD: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

MISSING: Final = object()
"""Stands for what is not there."""

_RUN_NAME: Final = re.compile(r"step_(\d{9,18})(?:-\d+)?(?:\.interrupted)?(?:\.pt)?")
_SUFFIXES: Final = re.compile(r"(?:\.(?:pt|pth|ckpt|safetensors|bin|tar|pkl|model|index|json))+$", re.IGNORECASE)
_STEP_WORDS: Final = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:steps?|iters?|iterations?|updates?)[=_-]*(\d{1,18})(?!\d)"
)
_EPOCH_WORDS: Final = re.compile(r"(?:^|[^a-z])(?:epochs?|ep)[=_-]*(\d{1,18})(?!\d)")
_WORDS: Final = (
    "model", "net", "network", "weights", "state", "states", "ckpt", "checkpoint", "checkpoints", "chkpt", "cp", "ema",
    "opt", "optim", "optimizer", "snapshot", "save", "saved", "params", "generator", "discriminator", "gen", "disc",
    "it",
)  # fmt: skip
"""Words that a number of steps may follow without anything between, as no name of an architecture is."""
_LAST: Final = re.compile(
    r"(?:^|[^a-z0-9]|(?<![a-z])(?:" + "|".join(_WORDS) + r"))(\d{1,18})(?![0-9a-z])"
)  # fmt: skip
_DECIMAL: Final = re.compile(r"\d+(?:\.\d+)?e-?\d+|\d+\.\d+")
_MOMENT: Final = re.compile(r"(?:19|20)\d{2}-?\d{2}-?\d{2}(?:[t_-]?\d{2}[-:]?\d{2}(?:[-:]?\d{2})?)?(?!\d)")
_OTHER_COUNTS: Final = re.compile(r"(?:^|[^a-z])(?:rank|part|shard|seed|fold|version|v|gpu|run|exp|stage)[=_-]*\d+")


class Progress(NamedTuple):
    """How far a run was: a number of steps, or of epochs, as `unit` says."""

    step: int
    unit: str


def progress(values: Mapping[Any, Any]) -> Progress | None:
    """How far a run was by the values of its checkpoint; None where they do not tell.

    >>> progress({"epoch": 2, "global_step": 300}), progress({"epoch": 2}), progress({"model": {}})
    (Progress(step=300, unit='step'), Progress(step=2, unit='epoch'), None)
    """
    for unit, paths in (("step", ((RUN, "step"), *_STEPS)), ("epoch", _EPOCHS)):
        for keys in paths:
            found = number(at(values, keys))
            if found is not None and found >= 0:
                return Progress(found, unit)
    return None


def number(value: Any) -> int | None:
    """A whole number that may be a count; None for anything else."""
    value = value.value if type(value) is NumpyScalar else value
    if type(value) is float and value.is_integer():
        value = int(value) if abs(value) < _LARGEST else None
    return value if type(value) is int and abs(value) < _LARGEST else None


def measured(values: Mapping[Any, Any]) -> dict[str, float | int]:
    """The metrics among the values of a checkpoint, by name."""
    run = values.get(RUN)
    rows = run.get("metrics") if isinstance(run, Mapping) else values.get("metrics")
    named = list(rows.items())[:_MOST_METRICS] if isinstance(rows, Mapping) else []
    named += [] if isinstance(run, Mapping) else [(key, values[key]) for key in _METRICS if key in values]
    made = ((key, _measure(value)) for key, value in named if type(key) is str)
    return {key: value for key, value in made if value is not None}


def _measure(value: Any) -> float | int | None:
    value = value.value if type(value) is NumpyScalar else value
    if type(value) is str:
        return _ODD.get(value)
    return value if type(value) is float or (type(value) is int and abs(value) < _LARGEST) else None


def told(tree: Any) -> dict[str, Any] | None:
    """The values of this table in a tree that is to be saved, as JSON has them; None where one is no plain value."""
    if not isinstance(tree, Mapping):
        return {}
    run = _form(tree.get(RUN), _DEEPEST)
    made: dict[str, Any] = {} if run is None else {RUN: run}
    for keys in PATHS:
        value = at(tree, keys)
        found = number(value)
        if found is not None:
            inner = made if len(keys) == 1 else made.setdefault(keys[0], {})
            inner[keys[-1]] = found
        elif value is not MISSING and _form(value, _DEEPEST) is MISSING:
            return None
    rows = tree.get("metrics")
    metrics = {key: _measured(item) for key, item in rows.items()} if isinstance(rows, Mapping) else {}
    if any(value is not MISSING for value in metrics.values()):
        made["metrics"] = {key: value for key, value in metrics.items() if value is not MISSING}
    made |= {key: value for key in _METRICS if (value := _measured(tree.get(key))) is not MISSING}
    return made if run is not MISSING and len(json.dumps(made)) <= _MOST_TEXT else None


def _measured(value: Any) -> Any:
    return _form(value, 0) if type(value) in (int, float) else MISSING


def at(values: Any, keys: tuple[str, ...]) -> Any:
    """What stands at a key path, `MISSING` where nothing does."""
    for key in keys:
        if not isinstance(values, Mapping) or key not in values:
            return MISSING
        values = values[key]
    return values


def _form(value: Any, deep: int) -> Any:
    """A plain value in the forms of JSON, numbers that it lacks by name; `MISSING` for any other."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if abs(value) < _LARGEST else MISSING
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if deep and isinstance(value, Mapping) and all(type(key) is str for key in value):
        made = {key: _form(item, deep - 1) for key, item in value.items()}
        return MISSING if any(item is MISSING for item in made.values()) else made
    if deep and type(value) in (list, tuple):
        items = [_form(item, deep - 1) for item in value]
        return MISSING if any(item is MISSING for item in items) else items
    return MISSING


def is_name_of_run(name: str) -> bool:
    """Whether unmoor.Run gives such names to its checkpoints."""
    return _RUN_NAME.fullmatch(name) is not None


def step_in(name: str) -> Progress | None:
    """How far a run was by the name of a checkpoint; None where the name holds no such number.

    >>> step_in("ema_0.9999_200000.pt"), step_in("model-5.pt"), step_in("epoch=3-val_loss=0.25.ckpt")
    (Progress(step=200000, unit='step'), Progress(step=5, unit='step'), Progress(step=3, unit='epoch'))
    >>> step_in("resnet50.pt"), step_in("model-best.pt"), step_in("model1_0.pt")
    (None, None, Progress(step=0, unit='step'))
    """
    stem = _MOMENT.sub("", _SUFFIXES.sub("", name).lower())
    for unit, words in (("step", _STEP_WORDS), ("epoch", _EPOCH_WORDS)):
        found = words.findall(stem)
        if found:
            return Progress(int(found[-1]), unit)
    stem = _OTHER_COUNTS.sub("", _DECIMAL.sub("", stem))
    found = list(_numbers(stem))
    return Progress(found[-1], "step") if found else None


def _numbers(stem: str) -> Iterator[int]:
    for match in _LAST.finditer(stem):
        yield int(match[1])
