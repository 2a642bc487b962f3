"""The batch and the loss against the model: where they are, and in which dtype."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from unmoor.values.finding import Finding
from unmoor.values.run_facts import BatchFacts, LeafFact, LossFacts, ModelFacts, RunFacts
from unmoor.values.text import format_shape, listing

from .places import assignment, full_name, home_of, kind_of, others, placed
from .run_losses import TAKES, WEIGHTED, takes
from .run_tree import fed_from

__all__ = ["batch_findings"]

_LENGTHS: Final = re.compile(r"(^|_)(len|lens|length|lengths)$")
_FLOATING: Final = ("float64", "float32", "bfloat16", "float16")
_CAST: Final = {"int64": ".long()", "float32": ".float()", "float64": ".double()", "float16": ".half()"}


def batch_findings(facts: RunFacts) -> Iterator[Finding]:
    """All findings about what meets the model in a step."""
    if not facts.models:
        return
    model = facts.models[0]
    places = {home_of(m) for m in facts.models} - {""}
    if len(places) == 1:  # several models on devices of their own: nobody knows which of them meets what
        around = {device for m in facts.models for device in fed_from(m)}
        home = model.compute or next(iter(places))
        if facts.batch is not None:
            yield from _misplaced(model, facts.batch, home, around)
        for loss in facts.losses:
            yield from _weights(loss, home, around)
    if facts.batch is not None:
        yield from _arrays(facts.batch)
        yield from _input_dtypes(model, facts.batch)
        for loss in facts.losses:
            yield from _target_dtypes(model, loss, facts.batch)
    for loss in facts.losses:
        yield from _weight_dtypes(model, loss)


def _stays(leaf: LeafFact) -> bool:
    """Whether a tensor may be on the CPU whatever the model's device is: a number, or lengths of sequences."""
    tensor = leaf.tensor
    named = bool(leaf.path) and isinstance(leaf.path[-1][1], str) and _LENGTHS.search(leaf.path[-1][1])
    return tensor.device == "cpu" and (tensor.scalar or bool(named and tensor.dtype.startswith("int")))


def _misplaced(model: ModelFacts, batch: BatchFacts, home: str, around: set[str]) -> Iterator[Finding]:
    """Inputs and targets on another device than the model; one finding where one line moves them all."""
    inputs = [leaf for leaf in batch.leaves if not leaf.target and not _stays(leaf)]
    targets = [leaf for leaf in batch.leaves if leaf.target and not _stays(leaf)]
    lost = [leaf for leaf in targets if leaf.tensor.device not in {*around, home}]
    away = [leaf for leaf in inputs if leaf.tensor.device not in around and leaf.argument not in model.moved]
    if model.brings or "*" in model.moved:
        away = []
    sure = len(away) == len(inputs) or any(leaf.sure for leaf in away)
    for device in dict.fromkeys(leaf.tensor.device for leaf in away):
        here = [leaf for leaf in away if leaf.tensor.device == device]
        along = [leaf for leaf in lost if leaf.tensor.device == device]
        lost = [leaf for leaf in lost if leaf not in along]
        text = _both_sides([*here, *along], home) + ("" if sure else ": it fails if the model reads it")
        names = listing([leaf.tensor.name for leaf in (*here, *along)], 3)
        line = _mover(model, batch, device, home, around)
        yield Finding("batch-elsewhere", "error" if sure else "warning", names, text, line)
    if lost:
        names = listing([leaf.tensor.name for leaf in lost], 3)
        line = _mover(model, batch, "", home, around)
        yield Finding("labels-elsewhere", "error", names, _both_sides(lost, home), line)


def _both_sides(leaves: list[LeafFact], home: str) -> str:
    first = leaves[0].tensor
    shape = "" if -1 in first.shape else f"[{format_shape(first.shape)}]"  # a nested tensor has no one shape
    what = f"{first.dtype}{shape} on" if len(leaves) == 1 else "on"
    return f"{what} {first.device}, the model is on {home}"


def _mover(model: ModelFacts, batch: BatchFacts, device: str, home: str, around: set[str]) -> str:
    """Move the batch; or the model, where it was forgotten on the CPU and the whole batch is on one accelerator."""
    everywhere = {leaf.tensor.device for leaf in batch.leaves if not _stays(leaf)}
    if kind_of(home) == "cpu" and everywhere == {device}:
        return f'{model.at}.to("{device}")'
    goal = f"like={model.at}" if len(around) == 1 else f'device="{home}"'
    return f"{batch.at} = unmoor.to_device({batch.at}, {goal})"


def _weights(loss: LossFacts, home: str, around: set[str]) -> Iterator[Finding]:
    """Weights of the loss, and what its function carries along."""
    away = [tensor for tensor in placed(loss.tensors) if tensor.device not in {*around, home}]
    if not away:
        return
    names = [full_name(loss.label, tensor.name) for tensor in away]
    text = f"on {away[0].device}, the model's output is on {home}"
    plain = any(tensor.kind == "attribute" for tensor in away)
    if loss.module and not plain:
        remedy = f'{loss.at}.to("{home}")'
    elif loss.module:
        remedy = "; ".join(f'{tensor.at} = {tensor.at}.to("{home}")' for tensor in away)
    else:
        names_only = listing([tensor.name for tensor in away])
        remedy = f'move {names_only} before the function is made: {away[0].name} = {away[0].name}.to("{home}")'
    yield Finding("loss-elsewhere", "error", others(names), text, remedy)


def _arrays(batch: BatchFacts) -> Iterator[Finding]:
    if batch.arrays:
        text = "a numpy array: no layer takes it, and nothing moves it to a device"
        place = batch.arrays[0]
        yield Finding("numpy-in-batch", "warning", others(batch.arrays), text, f"{place} = torch.from_numpy({place})")


def _floating(model: ModelFacts) -> set[str]:
    return {t.dtype for t in model.tensors("parameter") if t.dtype in _FLOATING and not t.lazy}


def _input_dtypes(model: ModelFacts, batch: BatchFacts) -> Iterator[Finding]:
    """Floating inputs in another dtype than the weights. autocast brings half and single together, never double."""
    weights = _floating(model)
    if not weights or model.casts:
        return
    for leaf in batch.leaves:
        dtype = leaf.tensor.dtype
        if leaf.target or not leaf.sure or dtype not in _FLOATING or dtype in weights:
            continue
        wanted = "float32" if "float32" in weights else sorted(weights)[0]
        never = "float64" in (dtype, wanted)
        if batch.autocast and not never:
            continue
        text = f"{dtype}, the model's parameters are {listing(sorted(weights))}"
        if not never:
            text += ": it fails outside of torch.autocast"
        line = assignment(batch.at, leaf, _CAST.get(wanted, f".to(torch.{wanted})"))
        yield Finding("batch-dtype", "error" if never else "warning", leaf.tensor.name, text, line)


def _target_dtypes(model: ModelFacts, loss: LossFacts, batch: BatchFacts) -> Iterator[Finding]:
    weights = _floating(model)
    output = next(iter(weights)) if len(weights) == 1 else ""
    samples = {leaf.tensor.shape[0] for leaf in batch.leaves if not leaf.target and len(leaf.tensor.shape) > 1}
    targets = [leaf for leaf in batch.leaves if leaf.target]
    for leaf in targets if len(targets) == 1 else ():
        tensor = leaf.tensor
        wanted = takes(
            loss.class_name, tensor.dtype, output, flat=len(tensor.shape) == 1 and tensor.shape[0] in samples
        )
        if wanted:
            text = f"{tensor.dtype}, and {loss.class_name} takes {wanted}"
            cast = _CAST.get(
                "int64" if TAKES[loss.class_name] in ("classes", "indices", "long") else output or "float32"
            )
            line = assignment(batch.at, leaf, cast or f".to(torch.{output})")
            yield Finding("label-dtype", "error", tensor.name, text, line)


def _weight_dtypes(model: ModelFacts, loss: LossFacts) -> Iterator[Finding]:
    weights = _floating(model)
    if loss.class_name not in WEIGHTED or len(weights) != 1:
        return
    output = next(iter(weights))
    for tensor in loss.tensors:
        if tensor.name.rpartition(".")[2] == "weight" and tensor.dtype in _FLOATING and tensor.dtype != output:
            sure = "float64" in (tensor.dtype, output)
            text = f"{tensor.dtype}, the model's output is {output}" + ("" if sure else " outside of torch.autocast")
            line = f"{loss.at}.to(torch.{output})" if loss.module else ""
            place = full_name(loss.label, tensor.name)
            yield Finding("loss-dtype", "error" if sure else "warning", place, text, line)
