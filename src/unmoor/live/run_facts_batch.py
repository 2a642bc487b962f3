"""Facts of what meets the model in a step: the batch, the loss, and what is fed with its outputs. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from unmoor.values.run_facts import BatchFacts, GeneratorFact, HeldFacts, LeafFact, LossFacts, ModelFacts, TensorFact

from .built import TARGETS
from .devices import tag
from .loader_parts import held
from .moving import children, leaves, place_text
from .run_facts_code import tensors_of_function
from .run_facts_modules import held_tensors, model_facts, tensor_fact

__all__ = ["average_facts", "batch_facts", "loader_generators", "loss_facts", "metric_facts", "own_generators"]

Path = tuple[tuple[str, Any], ...]


def batch_facts(at: str, batch: Any, models: tuple[ModelFacts, ...], *, has_loss: bool) -> BatchFacts:
    """The tensors of a batch, which of them are targets, and which argument of the model's forward each belongs to."""
    model = models[0] if len(models) == 1 else None
    found, arrays = [], []
    for path, value in leaves(batch):
        if not isinstance(value, torch.Tensor):
            arrays.append(place_text(at, path))
            continue
        fact = tensor_fact(place_text(at, path), value, "batch")
        target = _is_target(batch, path, has_loss=has_loss)
        argument, sure = ("", True) if target else _argument(batch, path, model)
        found.append(LeafFact(fact, path, target=target, argument=argument, sure=sure))
    return BatchFacts(at, tuple(found), tuple(arrays), autocast=torch.is_autocast_enabled())


def _is_target(batch: Any, path: Path, *, has_loss: bool) -> bool:
    if not path:
        return False
    kind, key = path[0]
    if kind in ("list", "tuple"):
        return has_loss and len(batch) == 2 and key == 1
    return isinstance(key, str) and key.lower() in TARGETS


def _argument(batch: Any, path: Path, model: ModelFacts | None) -> tuple[str, bool]:
    """Which argument of forward a tensor belongs to, "" where that is not known; and whether it is surely used."""
    if model is None:
        return "", False
    if not path or path[0][0] in ("list", "tuple", "set"):
        position = path[0][1] if path else 0
        return (model.arguments[position] if position < len(model.arguments) else ""), position == 0
    key = path[0][1]
    if key in model.arguments:
        return str(key), True
    inputs = [step[1] for step, _ in children(batch) if str(step[1]).lower() not in TARGETS]
    return ((model.arguments or ("",))[0], True) if len(inputs) == 1 else ("", False)


def loss_facts(label: str, at: str, loss: Any, known: frozenset[int]) -> LossFacts:
    """A loss: a module with its weights, or a function with what it carries along. `known` are modules passed too."""
    if isinstance(loss, nn.Module):
        return LossFacts(label, at, type(loss).__name__, tuple(_used(model_facts(label, at, loss))))
    tensors: list[TensorFact] = []
    criteria: list[str] = []
    for name, value in tensors_of_function(loss):
        if isinstance(value, nn.Module) and id(value) not in known:
            tensors += [replace(t, name=f"{name}.{t.name}", at="") for t in _used(model_facts(name, "", value))]
            criteria.append(type(value).__name__)
        else:
            tensors += [tensor_fact(path, tensor, "carried") for path, tensor in held_tensors(name, value)]
    kind = criteria[0] if len(criteria) == 1 else _function_name(loss)
    return LossFacts(label, at, kind, tuple(tensors), module=False)


def _used(facts: ModelFacts) -> Iterator[TensorFact]:
    """The tensors of a module that its forward is sure to use, by full name."""
    for module in facts.modules:
        for tensor in module.tensors:
            if tensor.kind in ("parameter", "buffer") or (tensor.kind == "attribute" and tensor.grade == "used"):
                yield replace(tensor, name=".".join(filter(None, (module.name, tensor.name))))


def _function_name(loss: Any) -> str:
    while hasattr(loss, "func"):
        loss = loss.func
    return str(getattr(loss, "__name__", type(loss).__name__))


def metric_facts(label: str, at: str, metric: Any) -> HeldFacts:
    """Metrics: on which devices those of torchmetrics are, or what another object keeps."""
    inner = list(metric.modules()) if isinstance(metric, nn.Module) else []
    own: list[Any] = [m for m in inner if any(c.__module__.startswith("torchmetrics.metric") for c in type(m).__mro__)]
    if own:
        places = {tag(torch.device(m.device)) for m in own}
        return HeldFacts(label, at, type(metric).__name__, tuple(sorted(places)), strict=True)
    return _held(label, at, metric)


def average_facts(label: str, at: str, average: Any) -> HeldFacts:
    """Averaged copies of the model: on which devices they are."""
    return _held(label, at, average)


def _held(label: str, at: str, item: Any) -> HeldFacts:
    if isinstance(item, nn.Module):
        tensors = [t for t in (*item.parameters(), *item.buffers()) if t.dim()]
    else:
        plain = item if isinstance(item, dict | list | tuple) else getattr(item, "__dict__", {})
        tensors = [t for _, t in held_tensors("", plain)]
        modules = [m for m in (plain.values() if isinstance(plain, dict) else plain) if isinstance(m, nn.Module)]
        tensors += [p for module in modules for p in module.parameters()]
    return HeldFacts(label, at, type(item).__name__, tuple(sorted({tag(t.device) for t in tensors})))


def loader_generators(label: str, at: str, loader: Any) -> Iterator[GeneratorFact]:
    """The generators of a loader and its samplers, which draw indices on the CPU."""
    inner = loader if isinstance(loader, DataLoader) else getattr(loader, "loader", None)
    if isinstance(inner, DataLoader):
        for place, generator in held(inner, lambda value: isinstance(value, torch.Generator)).items():
            if not place.startswith("dataset"):
                yield GeneratorFact(f"{label}.{place}", tag(generator.device), "cpu", f"{at}.{place}")


def own_generators(rng: Any) -> Iterator[GeneratorFact]:
    """Generators of the caller's own, of which nobody knows what they draw."""
    for name, value in rng.items() if isinstance(rng, dict) else ():
        if isinstance(value, torch.Generator):
            yield GeneratorFact(f"rng[{name}]", tag(value.device), "", f"rng[{name!r}]")
