"""What an optimizer holds: whether its parameters are the model's, and whether its switches suit their devices."""

from __future__ import annotations

from collections.abc import Iterator

from unmoor.values.finding import Finding
from unmoor.values.run_facts import GroupFacts, ModelFacts, OptimizerFacts, ParamFacts, RunFacts, TensorFact
from unmoor.values.text import count, format_shape

from .places import full_name, others, param_place

__all__ = ["names_of", "optimizer_findings", "replaced"]

_HALF = ("float16", "bfloat16")
Seat = tuple[int, int, ParamFacts]
"""Number of the group, position in it, and the parameter."""


def names_of(facts: RunFacts) -> dict[int, str]:
    """Key of a parameter -> its name; those of a second model and of a loss begin with their label."""
    names: dict[int, str] = {}
    for model in facts.models:
        prefix = model.label if len(facts.models) > 1 else ""
        for module in model.modules:
            for tensor in module.tensors:
                names.setdefault(tensor.key, full_name(prefix, module.name, tensor.name))
    for loss in facts.losses:
        for tensor in loss.tensors:
            names.setdefault(tensor.key, full_name(loss.label, tensor.name))
    return names


def optimizer_findings(facts: RunFacts) -> Iterator[Finding]:
    """All findings about which parameters are stepped, and how."""
    names = names_of(facts)
    held = {p.tensor.key for o in facts.optimizers for group in o.groups for p in group.params}
    orphans = _orphans(facts, held)
    matched: set[int] = set()
    for optimizer in facts.optimizers:
        yield from _holding(facts, optimizer, names, orphans, matched)
        yield from _frozen(optimizer, names)
        yield from _switches(optimizer)
        yield from _one_device(optimizer, names)
        if optimizer.stale:
            text = (
                f"{optimizer.stale} shows parameter groups that its optimizer has replaced since (load_state_dict "
                "makes new ones): a rate that is set there has no effect"
            )
            line = f"{optimizer.at}.param_groups = {optimizer.at}.optimizer.param_groups"
            yield Finding("stale-groups", "error", optimizer.label, text, line)
    yield from _twice(facts, names)
    left = [tensor for tensor in orphans if tensor.key not in matched]
    if facts.optimizers and not facts.unseen and left and not any(o.copies for o in facts.optimizers):
        named = [full_name(facts.models[0].label if len(facts.models) == 1 else "", names[t.key]) for t in left]
        text = "in no optimizer that was passed, though a gradient is computed"
        first = facts.optimizers[0]
        at = facts.models[0].at
        remedy = f"{first.at} = {_made(first, at)}  # or freeze what is not to be trained: .requires_grad_(False)"
        yield Finding("parameters-not-optimized", "warning", others(named), text, remedy)


def _made(optimizer: OptimizerFacts, at: str) -> str:
    return optimizer.made.format(f"{at}.parameters()")


def _orphans(facts: RunFacts, held: set[int]) -> list[TensorFact]:
    """Parameters that want a gradient and that no optimizer has, each once."""
    found = {t.key: t for model in facts.models for t in model.tensors("parameter") if t.trains}
    return [tensor for key, tensor in found.items() if key not in held]


def _seats(optimizer: OptimizerFacts) -> Iterator[Seat]:
    for g, group in enumerate(optimizer.groups):
        for i, param in enumerate(group.params):
            yield g, i, param


def _holding(
    facts: RunFacts, optimizer: OptimizerFacts, names: dict[int, str], orphans: list[TensorFact], matched: set[int]
) -> Iterator[Finding]:
    """Parameters of an optimizer that no module has; the orphans that they stand for are put into `matched`."""
    seats = list(_seats(optimizer))
    strangers = [seat for seat in seats if seat[2].tensor.key not in names]
    if not strangers or not facts.models:
        return
    pairs = _twins(strangers, orphans, names, matched)
    masters = pairs and all(s.tensor.dtype == "float32" and t.dtype in _HALF for (_, _, s), t in pairs)
    if optimizer.copies or masters:
        text = f"{optimizer.class_name} steps copies of the parameters (master weights), of which nothing can be told"
        yield Finding("master-weights", "info", optimizer.label, text)
    elif pairs:
        (g, i, stranger), twin = pairs[0]
        name = names[twin.key]
        where = others([param_place(optimizer, g, i, name), *("" for _ in strangers[1:])])
        text = (
            f"a tensor {format_shape(stranger.tensor.shape)} on {stranger.tensor.device}, not the model's {name} "
            f"on {twin.device}: the optimizer was built before the model was {_how(facts.models)}, "
            "and its steps change nothing in the model"
        )
        yield Finding("optimizer-holds-other-parameters", "error", where, text, _rebuilt(facts, optimizer))
    elif len(strangers) == len(seats) and orphans:
        text = f"none of its {count(len(seats), 'parameter')} is in the model that was passed: it trains another one"
        yield Finding("optimizer-holds-other-parameters", "error", optimizer.label, text, _rebuilt(facts, optimizer))
    else:
        where = others([param_place(optimizer, *strangers[0][:2], ""), *("" for _ in strangers[1:])])
        yield Finding("foreign-parameters", "info", where, "in no module that was passed; it is stepped all the same")


def replaced(facts: RunFacts, optimizer: OptimizerFacts) -> bool:
    """Whether an optimizer has none of the parameters of the models that were passed."""
    names = names_of(facts)
    return bool(facts.models) and all(p.tensor.key not in names for _, _, p in _seats(optimizer))


def _how(models: tuple[ModelFacts, ...]) -> str:
    wrapped = any("FSDP" in module.class_name for model in models for module in model.modules)
    return "sharded" if wrapped else "moved or made anew"


def _rebuilt(facts: RunFacts, optimizer: OptimizerFacts) -> str:
    return f"{optimizer.at} = {_made(optimizer, facts.models[0].at)}  # after the model is moved and wrapped"


def _twins(
    strangers: list[Seat], orphans: list[TensorFact], names: dict[int, str], matched: set[int]
) -> list[tuple[Seat, TensorFact]]:
    """Each stranger with the parameter that it most likely was: the one of its name, else the next of its shape."""
    left = [tensor for tensor in orphans if tensor.key not in matched]
    named = {names[tensor.key]: tensor for tensor in left}
    shapes: dict[tuple[int, ...], list[TensorFact]] = {}
    for tensor in reversed(left):
        shapes.setdefault(tensor.shape, []).append(tensor)
    pairs = []
    for seat in strangers:
        own = seat[2].tensor
        alike = shapes.get(own.shape, [])
        while alike and alike[-1].key in matched:
            alike.pop()
        twin = named.get(own.name) if own.name else None
        twin = twin if twin is not None and twin.shape == own.shape and twin.key not in matched else None
        twin = twin or (alike[-1] if alike else None)
        if twin is not None:
            matched.add(twin.key)
            pairs.append((seat, twin))
    return pairs


def _frozen(optimizer: OptimizerFacts, names: dict[int, str]) -> Iterator[Finding]:
    frozen = [(g, i, p) for g, i, p in _seats(optimizer) if not p.tensor.trains]
    if frozen:
        where = [param_place(optimizer, g, i, names.get(p.tensor.key, p.tensor.name)) for g, i, p in frozen]
        text = "no gradient is computed: a step passes over it"
        yield Finding("frozen-in-optimizer", "info", others(where), text)


def _switches(optimizer: OptimizerFacts) -> Iterator[Finding]:
    for g, group in enumerate(optimizer.groups):
        if optimizer.family and group.flags.get("fused") and group.flags.get("foreach"):
            text = "fused and foreach are both on: fused wins, and building this optimizer anew would be refused"
            yield Finding("fused-and-foreach", "info", f"{optimizer.label} group {g}", text)
        yield from _options(optimizer, g, group)


def _options(optimizer: OptimizerFacts, g: int, group: GroupFacts) -> Iterator[Finding]:
    """Options that are tensors: steps that are captured want them with their parameters, or on the CPU."""
    devices = {p.tensor.device for p in group.params}
    for option in group.options:
        if group.flags.get("capturable") and option.device != "cpu" and option.device not in devices and devices:
            goal = sorted(devices)[0]
            text = f"a tensor on {option.device}, the parameters of the group are on {goal}"
            line = f'for group in {optimizer.at}.param_groups: group["{option.name}"] = '
            line += f'group["{option.name}"].to("{goal}")'
            yield Finding("option-elsewhere", "error", f"{optimizer.label} group {g}, {option.name}", text, line)


def _one_device(optimizer: OptimizerFacts, names: dict[int, str]) -> Iterator[Finding]:
    """Classes that lay all gradients end to end cannot step a model that is on several devices."""
    if optimizer.family != "LBFGS":
        return
    devices: dict[str, str] = {}
    for g, i, param in _seats(optimizer):
        if param.tensor.trains:
            devices.setdefault(param.tensor.device, param_place(optimizer, g, i, names.get(param.tensor.key, "")))
    if len(devices) > 1:
        text = f"LBFGS lays all gradients end to end, and its parameters are on {', '.join(devices)}"
        line = (
            f"optimizer = torch.optim.AdamW({optimizer.at}.param_groups[0]['params'])  # any that steps each for itself"
        )
        yield Finding("one-device-optimizer", "error", list(devices.values())[1], text, line)


def _twice(facts: RunFacts, names: dict[int, str]) -> Iterator[Finding]:
    owners: dict[int, list[str]] = {}
    for optimizer in facts.optimizers:
        for _, _, param in _seats(optimizer):
            owners.setdefault(param.tensor.key, []).append(optimizer.label)
    twice = {key: labels for key, labels in owners.items() if len(set(labels)) > 1}
    if twice:
        labels = next(iter(twice.values()))
        text = f"stepped by {' and '.join(dict.fromkeys(labels))}: each of their steps moves it"
        yield Finding(
            "parameter-in-two-optimizers", "warning", others([names.get(k, "a parameter") for k in twice]), text
        )
