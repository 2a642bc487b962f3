"""A live run as facts: every tensor that takes part in a step, where it is, and who holds it.

Looks and changes nothing: no module is called, no value is read, no device is waited for, unless values are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from unmoor.errors import UsageError
from unmoor.values.run_facts import GeneratorFact, ModelFacts, RunFacts, ScheduleFacts

from . import devices
from .moving import gives_batches
from .run_facts_batch import average_facts, batch_facts, loader_generators, loss_facts, metric_facts, own_generators
from .run_facts_modules import attribute_generators, model_facts
from .run_facts_optimizers import (
    capturable_types,
    fused_types,
    optimizer_facts,
    scaler_facts,
    schedule_facts,
)
from .shards import local_of
from .survey import members, refuse_swapped

__all__ = ["NOTHING", "collect_run"]

NOTHING = object()
"""Stands for a batch that was not passed."""

Member = tuple[str, str, Any]

_PLAIN: Final = (str, bytes, int, float, complex)
_TAKES: Final = {
    "loss": "the module or function that computes it",
    "optimizer": "an optimizer",
    "scheduler": "a scheduler",
    "scaler": "a gradient scaler",
}


def collect_run(roles: Mapping[str, Any], batch: Any, *, rng: Any, values: bool) -> RunFacts:
    """The facts of the objects by role, and of a batch. `values` also looks for numbers that are not finite.

    Raises UsageError for an object that is none of its role's.
    """
    found = {role: list(_members(role, value)) for role, value in roles.items()}
    modules = found.get("model", [])
    _refuse(found)
    _refuse_rest(modules, batch, rng)
    models = tuple(model_facts(*member) for member in modules)
    known = frozenset(id(module) for _, _, module in modules)
    losses = tuple(loss_facts(*member, known) for member in found.get("loss", ()))
    no_optimizer = "no optimizer of torch, nor a wrapper with one as its .optimizer"
    optimizers, unseen = _each(optimizer_facts, found.get("optimizer", ()), no_optimizer)
    schedules, strange = _schedules(found.get("scheduler", ()))
    scalers, others = _each(scaler_facts, found.get("scaler", ()), "no gradient scaler of torch")
    return RunFacts(
        models=models,
        losses=losses,
        averages=tuple(average_facts(*member) for member in found.get("ema", ())),
        metrics=tuple(metric_facts(*member) for member in found.get("metrics", ())),
        optimizers=optimizers,
        schedules=schedules,
        scalers=scalers,
        batch=None if batch is NOTHING else batch_facts("batch", batch, models, has_loss="loss" in roles),
        generators=(*_generators(models, found), *own_generators(rng)),
        capturable=capturable_types(),
        fused=fused_types(),
        others=devices.of_other_ranks(),
        bad=tuple(_not_finite(found, batch)) if values else (),
        unseen=(*unseen, *strange, *others),
    )


def _members(role: str, value: Any) -> Iterator[Member]:
    """Label, Python that reaches it, and object, of each member of a role."""
    for label, key, item in members(role, value):
        yield label, role if key is None else f"{role}[{key!r}]", item


def _refuse(found: Mapping[str, list[Member]]) -> None:
    for role, several in found.items():
        for label, _, item in several:
            refuse_swapped(role, label, item)
            if isinstance(item, type):
                raise UsageError(
                    f"{label}= was given the class {item.__qualname__} itself, and takes an object of it",
                    remedy=f"Make one: {label}={item.__qualname__}(...).",
                )
            if role == "model" and not isinstance(item, nn.Module):
                raise UsageError(
                    f"{label}= was given a {type(item).__module__}.{type(item).__qualname__}, and takes a module",
                    remedy="Pass the live torch.nn.Module: unmoor.diagnose(model, optimizer, batch, loss=loss).",
                )
            if role in _TAKES and (isinstance(item, _PLAIN) or (role == "loss" and not callable(item))):
                shown = f"a tensor {tuple(item.shape)}" if isinstance(item, torch.Tensor) else repr(item)[:60]
                raise UsageError(
                    f"{label}= was given {shown}, and takes {_TAKES[role]}", remedy="Pass the live object."
                )


def _refuse_rest(modules: list[Member], batch: Any, rng: Any) -> None:
    if not modules:
        raise UsageError(
            "model= holds no module, so there is nothing to look at",
            remedy="Pass the live torch.nn.Module: unmoor.diagnose(model, optimizer, batch, loss=loss).",
        )
    if gives_batches(batch):
        raise UsageError(
            f"batch= was given a {type(batch).__qualname__}, which gives batches and is none",
            remedy="Pass the loader itself as loader=, and one batch as it gives it: batch = next(iter(loader)).",
        )
    if rng is not None and not isinstance(rng, bool | Mapping):
        raise UsageError(
            f"rng= was given a {type(rng).__qualname__}, and takes generators by name",
            remedy='Name it: rng={"sampler": generator}.',
        )


def _schedules(several: Any) -> tuple[tuple[ScheduleFacts, ...], list[tuple[str, str]]]:
    found: list[ScheduleFacts] = []
    unseen = []
    for label, at, item in several:
        facts = list(schedule_facts(label, at, item))
        found += facts
        if not facts:
            unseen.append((label, f"{type(item).__name__} is no scheduler of torch"))
    return tuple(found), unseen


def _each(collect: Any, several: Any, reason: str) -> Any:
    """The facts of each object, and those of which nothing can be told."""
    found, unseen = [], []
    for label, at, item in several:
        fact = collect(label, at, item)
        if fact is None:
            unseen.append((label, f"{type(item).__name__} is {reason}"))
        else:
            found.append(fact)
    return tuple(found), unseen


def _generators(models: tuple[ModelFacts, ...], found: Mapping[str, list[Member]]) -> Iterator[GeneratorFact]:
    for model, (_, _, module) in zip(models, found.get("model", ()), strict=True):
        places = {t.device for t in model.tensors("parameter", "buffer") if t.shape and t.device != "meta"}
        if len(places) == 1:
            yield from attribute_generators(model, module, next(iter(places)))
    for member in found.get("loader", ()):
        yield from loader_generators(*member)


def _not_finite(found: Mapping[str, list[Member]], batch: Any) -> Iterator[tuple[str, str]]:
    """Places of values that are infinite or no number. One question to each device, for all its tensors together.

    Of what ranks share out each looks at its own part: no rank waits for another.
    """
    from .moving import leaves, place_text

    places = [(place_text("batch", p), t) for p, t in leaves(batch)] if batch is not NOTHING else []
    for label, _, module in found.get("model", ()):
        named = (*module.named_parameters(), *module.named_buffers())
        places += [(f"{label}.{name}", tensor) for name, tensor in named]
    by_device: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for place, tensor in places:
        if isinstance(tensor, torch.Tensor) and _has_values(tensor):
            by_device.setdefault(tensor.device, []).append((place, tensor))
    for device, tensors in by_device.items():
        flags = torch.stack([torch.isfinite(local_of(tensor).detach()).all() for _, tensor in tensors]).tolist()
        yield from ((place, devices.tag(device)) for (place, _), fine in zip(tensors, flags, strict=True) if not fine)


def _has_values(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):  # type: ignore[attr-defined]
        return False
    floating = tensor.is_floating_point() or tensor.is_complex()
    return floating and tensor.device.type != "meta" and tensor.layout == torch.strided and tensor.numel() > 0
