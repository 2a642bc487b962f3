"""What goes along with a step: schedulers, scalers, metrics, averages, generators."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unmoor.values.finding import Finding
from unmoor.values.run_facts import RunFacts, ScheduleFacts
from unmoor.values.text import count, listing

from .places import home_of, kind_of

__all__ = ["other_findings"]


def other_findings(facts: RunFacts) -> Iterator[Finding]:
    """All findings about what is neither model, optimizer, batch nor loss."""
    yield from _schedules(facts)
    homes = {home_of(model) for model in facts.models} - {""}
    home = next(iter(homes)) if len(homes) == 1 else ""
    yield from _scalers(facts, home)
    if home and not any(model.brings for model in facts.models):
        yield from _held(facts, home)
    for generator in facts.generators:
        if generator.wants and kind_of(generator.device) != generator.wants:
            loads = generator.wants == "cpu" and generator.place.split(".")[0].startswith("loader")
            what = "indices are drawn on the CPU" if loads else f"its module is on {generator.wants}"
            text = f"a generator on {generator.device}, and {what}: drawing from it there is refused"
            goal = f'torch.Generator("{generator.wants}").manual_seed({generator.at}.initial_seed())'
            remedy = f"{generator.at} = {goal}"
            yield Finding("generator-device", "error" if loads else "warning", generator.place, text, remedy)


def _schedules(facts: RunFacts) -> Iterator[Finding]:
    known = {key for optimizer in facts.optimizers for key in optimizer.keys}
    followers: dict[int, list[ScheduleFacts]] = {}
    for schedule in facts.schedules:
        if known and not facts.unseen and not _reaches(schedule, known):
            yield _bound(facts, schedule)
        elif schedule.last and "._schedulers[" not in schedule.label:
            followers.setdefault(schedule.follows, []).append(schedule)
    for several in followers.values():
        if len(several) == 1:
            yield from _rates(facts, several[0])


def _reaches(schedule: ScheduleFacts, known: set[int]) -> bool:
    """Whether the rates that a scheduler sets are those of an optimizer that was passed."""
    return schedule.follows in known or (bool(schedule.groups) and schedule.groups <= known)


def _bound(facts: RunFacts, schedule: ScheduleFacts) -> Finding:
    labels = listing([optimizer.label for optimizer in facts.optimizers])
    text = (
        f"{schedule.class_name} follows another optimizer ({schedule.optimizer}, {count(schedule.size, 'parameter')}) "
        f"than {labels}, whose rate it never changes"
    )
    first = facts.optimizers[0].at
    remedy = f"{schedule.at} = {schedule.class_name}({first}, ...)  # then .load_state_dict(old.state_dict())"
    return Finding("scheduler-of-another-optimizer", "error", schedule.label, text, remedy)


def _rates(facts: RunFacts, schedule: ScheduleFacts) -> Iterator[Finding]:
    """A rate that something has written since the schedule did: a scheduler built after the optimizer was loaded."""
    pairs = list(zip(schedule.last, schedule.rates, strict=False))
    differing = [pair for pair in pairs if not math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-30)]
    owner = next((o for o in facts.optimizers if _reaches(schedule, set(o.keys))), None)
    if owner is not None and len(schedule.last) == len(schedule.rates) and differing:
        last, rate = differing[0]
        text = f"set a rate of {last:.6g} last, and the optimizer has {rate:.6g}: something wrote it since"
        line = f"for group, lr in zip({owner.at}.param_groups, {schedule.at}.get_last_lr()): group['lr'] = lr"
        yield Finding("rate-off-schedule", "warning", schedule.label, text, line)


def _scalers(facts: RunFacts, home: str) -> Iterator[Finding]:
    half = [t for model in facts.models for t in model.tensors("parameter") if t.dtype == "float16" and t.trains]
    for scaler in facts.scalers:
        if not scaler.enabled:
            text = f"a disabled scaler (made for {scaler.device_type}): losses are not scaled"
            yield Finding("scaler-disabled", "info", scaler.label, text)
        elif half and facts.models:
            text = f"it refuses gradients in float16, and {count(len(half), 'parameter')} of the model are float16"
            remedy = f"{facts.models[0].at}.float()  # keep parameters in float32, and compute under torch.autocast"
            yield Finding("scaler-half", "error", scaler.label, text, remedy)
        elif home and kind_of(scaler.scale or scaler.device_type) != kind_of(home):
            text = f"made for {scaler.scale or scaler.device_type}, the model is on {home}: each step brings it over"
            yield Finding(
                "scaler-device", "info", scaler.label, text, f'scaler = torch.amp.GradScaler("{kind_of(home)}")'
            )


def _held(facts: RunFacts, home: str) -> Iterator[Finding]:
    for metric in facts.metrics:
        away = [device for device in metric.devices if device != home]
        if metric.strict and away:
            text = f"{metric.class_name} is on {away[0]}, the model's outputs are on {home}: update() refuses them"
            remedy = f'{metric.at} = {metric.at}.to("{home}")'
            yield Finding("metrics-elsewhere", "warning", metric.label, text, remedy)
    for average in facts.averages:
        away = [device for device in average.devices if device != home]
        if away:
            text = f"the averages are on {away[0]}, the model is on {home}: each update copies the model over"
            yield Finding("averages-elsewhere", "info", average.label, text)
