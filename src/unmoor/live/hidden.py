"""State of a run that no keyword of save reaches: what explains why a resumed run differs.

Looked for where programs keep it: in the variables of `train_step`, in plain attributes of the run's own objects, and
as generators that anything of it holds. Bounded: a few levels deep, short containers only; data is not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader

from unmoor.values.recording import CLUES, Mark

from . import rng
from .batches import comparable
from .loader_parts import held
from .loaders import ResumableLoader
from .optimizers import find_optimizer
from .survey import members
from .wrappers import walk

__all__ = ["clues"]

_DEPTH: Final = 3
_MEMBERS: Final = 32
_MOST: Final = 400
_NUMBERS: Final = (bool, int, float, str, type(None))

_ELSEWHERE: Final = (nn.Module, torch.optim.Optimizer, torch.utils.data.Dataset, type)
"""What is seen as itself, or is data."""

Marks = Callable[..., Mark | None]


def clues(objects: Mapping[str, Any], train_step: Any, mark: Marks) -> dict[str, dict[str, Mark]]:
    """Generators, plain values, modes of modules, optimizers within optimizers, each by the place that keeps it."""
    found: dict[str, dict[str, Mark]] = {f"{CLUES}{kind}": {} for kind in ("generator", "object", "value", "mode")}
    named = objects.get("rng")
    known = {id(generator) for generator in (named.values() if isinstance(named, Mapping) else ())}
    for place, value in _places(objects, train_step):
        if rng.is_generator(value):
            if id(value) in known:
                continue
            known.add(id(value))
        kind, at, made = _clue(place, value, mark)
        if made is not None:
            found[f"{CLUES}{kind}"].setdefault(at, made)
    inner = {place: mark(state, digest_only=True) for place, state in _inner_optimizers(objects)}
    found[f"{CLUES}optimizer"] = {place: made for place, made in inner.items() if made is not None}
    for role, value in objects.items():
        for label, _, item in members(role, value) if role != "rng" else ():
            if isinstance(item, nn.Module):
                found[f"{CLUES}mode"][label] = _mode([place.module.training for place in walk(item)])
    return {component: rows for component, rows in found.items() if rows}


def _has_state(value: Any) -> bool:
    """Whether an object has a state that a save would take, were it passed."""
    loaders = (DataLoader, ResumableLoader, type)
    return not isinstance(value, loaders) and callable(getattr(type(value), "state_dict", None))


def _of_object(value: Any, mark: Marks) -> Mark | None:
    """The mark of an object that train_step has and the run has not; None where its state cannot be asked for."""
    try:
        return mark(comparable(value.state_dict()), digest_only=True)
    except Exception:  # noqa: BLE001 (an object of the user's own, which nobody asked to be looked at)
        return None


def _inner_optimizers(objects: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The state of optimizers that an optimizer keeps beside its own, which its state dict leaves out (SAM's base)."""
    passed = [(label, item) for label, _, item in members("optimizer", objects.get("optimizer"))]
    known = {id(find_optimizer(item)) for _, item in passed if item is not None}
    for label, item in passed:
        optimizer = find_optimizer(item)
        for name, inner in vars(optimizer).items() if optimizer is not None else ():
            if isinstance(inner, torch.optim.Optimizer) and id(inner) not in known and inner.state:
                yield f"{label}.{name}", [dict(entry) for entry in inner.state.values()]


def _clue(place: str, value: Any, mark: Marks) -> tuple[str, str, Mark | None]:
    """The kind of a value that was found, how its place is called, and its mark; None where it has none."""
    if rng.is_generator(value):
        return "generator", place, _of_generator(value, mark)
    if isinstance(value, (*_NUMBERS, torch.Tensor)):
        small = not isinstance(value, torch.Tensor) or value.numel() <= _MOST
        return "value", place, mark(value) if small else None
    if _has_state(value):
        return "object", f"{place} ({type(value).__name__})", _of_object(value, mark)
    return "value", place, None


def _of_generator(generator: Any, mark: Marks) -> Mark | None:
    """The mark of a generator; None for one that has no state, such as random.SystemRandom."""
    try:
        return mark(rng.generator_state(generator)["state"], digest_only=True)
    except NotImplementedError:
        return None


def _mode(training: list[bool]) -> Mark:
    """In which mode the modules of an object are."""
    words = {len(training): "in training mode", 0: "in eval mode"}
    some = f"in eval mode in {training.count(False)} of {len(training)} modules"
    return Mark(repr(training), words.get(sum(training), some))


def _places(objects: Mapping[str, Any], train_step: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for role, value in objects.items():
        if role == "rng":
            continue
        for label, _, item in members(role, value):
            if isinstance(item, nn.Module):
                for place in walk(item):
                    yield from _attributes(f"{label}.{place.prefix}", place.module)
            elif isinstance(item, DataLoader | ResumableLoader):
                loader = item.loader if isinstance(item, ResumableLoader) else item
                yield from ((f"{label}.{place}", g) for place, g in held(loader, rng.is_generator).items())
            elif role == "loader":
                yield from _inside(label, item, _DEPTH, seen)
    yield from _of_function("train_step", train_step, objects, seen)


def _attributes(prefix: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Plain attributes and generators of a module itself; what torch keeps there for itself is left out."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and (isinstance(value, _NUMBERS) or rng.is_generator(value)):
            yield prefix + name, value


def _of_function(name: str, function: Any, objects: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The variables that a function closes over, those of its module that it uses, the object that it belongs to."""
    passed = [item for role, value in objects.items() for _, _, item in members(role, value)]
    known = {id(inner) for item in passed for inner in (item.modules() if isinstance(item, nn.Module) else (item,))}
    if isinstance(function, functools.partial):
        for key, value in (*enumerate(function.args), *function.keywords.items()):
            yield from _inside(f"{name}({key})", value, _DEPTH, seen | known)
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, nn.Module):
        yield from _inside(f"{name}.__self__", owner, _DEPTH, seen | known)
    code = getattr(function, "__code__", None)
    if code is None:
        if callable(function) and hasattr(function, "__dict__"):
            yield from _inside(name, function, _DEPTH, seen | known)
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for variable, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield from _inside(f"{name}'s {variable}", value, _DEPTH, seen | known)
    for variable in code.co_names:
        value = function.__globals__.get(variable)
        if isinstance(value, int | float) or rng.is_generator(value):
            yield f"{name}'s {variable}", value


def _inside(place: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """A value, and what it holds by attribute or key; modules, optimizers, loaders and data are seen elsewhere."""
    if isinstance(value, (*_NUMBERS, torch.Tensor)) or rng.is_generator(value):
        yield place, value
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if _has_state(value):
        yield place, value
        return
    if isinstance(value, _ELSEWHERE):
        return
    if isinstance(value, DataLoader | ResumableLoader):
        loader = value.loader if isinstance(value, ResumableLoader) else value
        yield from ((f"{place}.{name}", g) for name, g in held(loader, rng.is_generator).items())
    elif isinstance(value, Mapping | list | tuple | set):
        pairs = list(value.items() if isinstance(value, Mapping) else enumerate(value))
        for key, item in pairs if len(pairs) <= _MEMBERS else ():
            yield from _inside(f"{place}[{key!r}]", item, depth - 1, seen)
    elif hasattr(value, "__dict__"):
        for key, item in list(vars(value).items())[:_MEMBERS]:
            yield from _inside(f"{place}.{key}", item, depth - 1, seen)
