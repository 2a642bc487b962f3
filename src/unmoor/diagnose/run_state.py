"""Optimizer state against its parameters: devices, shapes, dtypes, and the switches that say where counters belong.

What torch's classes do with state that is elsewhere was tried on each of them; for other classes a finding says what is
likely, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from unmoor.values.finding import Finding
from unmoor.values.optimizers import COUNTERS, FAMILIES, switched_on
from unmoor.values.run_facts import GroupFacts, OptimizerFacts, ParamFacts, RunFacts, TensorFact
from unmoor.values.text import format_shape, listing

from .places import kind_of, others, param_place, reload_line
from .run_optimizers import names_of, replaced

__all__ = ["state_findings"]

_STRICT: Final = frozenset({"Adam", "RMSprop", "Adamax", "NAdam", "RAdam", "Adafactor", "Muon"})
"""Classes whose step refuses state in another dtype than its parameter's; the others do so only when fused."""

_BITS: Final = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}

_CODES: Final = {"capturable": "capturable-device", "fused": "fused-device"}

Fault = tuple[str, str, str, str]
"""Code, severity, what is wrong, and the line that fixes it."""


def state_findings(facts: RunFacts) -> Iterator[Finding]:
    """All findings about the state that optimizers have already."""
    names = names_of(facts)
    for optimizer in facts.optimizers:
        if replaced(facts, optimizer):
            continue  # its state is beside tensors that the model no longer has
        faults: dict[Fault, list[str]] = {}
        for g, group in enumerate(optimizer.groups):
            for fault in _switches(optimizer, group, facts):
                faults.setdefault(fault, []).append(f"{optimizer.label} group {g}")
            for i, param in enumerate(group.params):
                place = param_place(optimizer, g, i, names.get(param.tensor.key, param.tensor.name))
                for fault in _faults(optimizer, group, param):
                    faults.setdefault(fault, []).append(place)
        for (code, severity, text, remedy), places in faults.items():
            yield Finding(code, severity, others(places), text, remedy)


def _switches(optimizer: OptimizerFacts, group: GroupFacts, facts: RunFacts) -> Iterator[Fault]:
    """Switches that are on for devices which have no kernels for them."""
    if not optimizer.family:
        return
    for flag, types in (("capturable", facts.capturable), ("fused", facts.fused)):
        places = sorted({p.tensor.device for p in group.params if kind_of(p.tensor.device) not in types | {"meta"}})
        if group.flags.get(flag) and places:
            text = f"{flag}=True, and its parameters are on {listing(places)}, which {flag} steps do not support"
            line = f'for group in {optimizer.at}.param_groups: group["{flag}"] = False'
            yield _CODES[flag], "error", text, line


def _faults(optimizer: OptimizerFacts, group: GroupFacts, param: ParamFacts) -> Iterator[Fault]:
    own = param.tensor
    if own.lazy or own.device == "meta" or optimizer.copies:
        return
    yield from _missing(optimizer, group, param)
    yield from _elsewhere(optimizer, group, param)
    yield from _counters(optimizer, group, param)
    yield from _shapes(optimizer, param)
    yield from _dtypes(optimizer, group, param)


def _missing(optimizer: OptimizerFacts, group: GroupFacts, param: ParamFacts) -> Iterator[Fault]:
    """State of another class, or of the same class before an option was switched on."""
    family = FAMILIES.get(optimizer.family)
    if family is None or not param.keys or family.name in ("SGD", "LBFGS"):
        return
    needed = {*family.state, *switched_on(family.name, group.flags).values()}
    lacking = sorted(needed - param.keys)
    if lacking:
        text = (
            f"its state has {listing(sorted(param.keys))} and lacks {listing(lacking)}, which {family.name} steps with"
        )
        yield "state-of-another-class", "error", text, f"{optimizer.at}.state.clear()  # starts it fresh"


def _elsewhere(optimizer: OptimizerFacts, group: GroupFacts, param: ParamFacts) -> Iterator[Fault]:
    """Tensors of state with dimensions, which every class combines with their parameter's gradient."""
    for device, names in _by_device(t for t in param.state if not t.scalar).items():
        if device in (param.tensor.device, "meta"):
            continue
        alike = any(t.shape == param.tensor.shape for t in param.state if t.name in names)
        sure = bool(optimizer.family) or alike
        if optimizer.family == "ASGD" and group.flags.get("foreach") is False:
            sure = False
        text = f"its {listing(names)} {_is(names)} on {device}, the parameter is on {param.tensor.device}"
        yield "state-elsewhere", "error" if sure else "warning", text, reload_line(optimizer)


def _by_device(tensors: Iterable[TensorFact]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor.name)
    return found


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _counters(optimizer: OptimizerFacts, group: GroupFacts, param: ParamFacts) -> Iterator[Fault]:
    """Numbers such as `step`: on the CPU, or beside the parameter where a switch or the class wants them there."""
    home = param.tensor.device
    for device, names in _by_device(t for t in param.state if t.scalar and t.kind == "state").items():
        verdict = _judge_counter(optimizer, group, home, device, names)
        if verdict is None:
            continue
        severity, why, reload = verdict
        line = reload_line(optimizer) if reload else _host_line(optimizer, names)
        where = f"on {device}" if device == home else f"on {device}, the parameter is on {home}"
        text = f"its {listing(names)} {_is(names)} {where}: {why}"
        yield "counter-elsewhere", severity, text, line


def _judge_counter(
    optimizer: OptimizerFacts, group: GroupFacts, home: str, device: str, names: list[str]
) -> tuple[str, str, bool] | None:
    """Severity, reason, and whether loading its own state cures it; None where all is well."""
    flags = group.flags
    if not optimizer.family:
        if device in ("cpu", home):
            return None
        return "warning", "a number on the CPU meets any device, this one only its own", False
    switches = [s for s in _beside(optimizer.family) if flags.get(s)]
    if switches:
        return ("error", f"{switches[0]}=True wants it beside the parameter", True) if device != home else None
    if device == "cpu" or "step" not in names:
        return None
    if "always" in FAMILIES[optimizer.family].beside:
        return None if device == home or home == "cpu" else ("error", "it belongs beside the parameter", False)
    many = flags.get("foreach") is not False and optimizer.family != "Adafactor" and home != "cpu"
    if device != home and many:
        return "error", "steps of many tensors at once take it on the CPU or beside the parameter", False
    return (
        "warning",
        "without capturable or fused it belongs on the CPU, and every step waits for its device",
        False,
    )


def _beside(family: str) -> tuple[str, ...]:
    return tuple(switch for switch in ("capturable", *FAMILIES[family].beside) if switch in ("capturable", "fused"))


def _host_line(optimizer: OptimizerFacts, names: list[str]) -> str:
    if len(names) == 1:
        return f'for state in {optimizer.at}.state.values(): state["{names[0]}"] = state["{names[0]}"].cpu()'
    moved = ", ".join(f'"{name}": state["{name}"].cpu()' for name in names)
    return f"for state in {optimizer.at}.state.values(): state.update({{{moved}}})"


def _shapes(optimizer: OptimizerFacts, param: ParamFacts) -> Iterator[Fault]:
    family = FAMILIES.get(optimizer.family)
    for tensor in param.state if family is not None else ():
        if family is None or tensor.name not in family.elementwise or tensor.kind != "state":
            continue
        if tensor.shape != param.tensor.shape:
            text = (
                f"its {tensor.name} is {format_shape(tensor.shape)}, the parameter is "
                f"{format_shape(param.tensor.shape)}: it came from a file that has them in another order"
            )
            yield "state-shape", "error", text, "unmoor.restore(path, model=model, optimizer=optimizer)  # by name"


def _dtypes(optimizer: OptimizerFacts, group: GroupFacts, param: ParamFacts) -> Iterator[Fault]:
    own = param.tensor.dtype
    tensors = [t for t in param.state if t.dtype in _BITS and not t.scalar and t.name not in COUNTERS]
    other = {t.dtype: [x.name for x in tensors if x.dtype == t.dtype] for t in tensors if t.dtype != own}
    for dtype, names in other.items() if optimizer.family and own in _BITS else ():
        strict = optimizer.family in _STRICT or bool(group.flags.get("fused"))
        text = f"its {listing(names)} {_is(names)} {dtype}, the parameter is {own}"
        if strict:
            yield "state-dtype", "error", f"{text}: {optimizer.class_name} refuses to step", reload_line(optimizer)
        elif _BITS[dtype] < _BITS[own]:
            yield "state-dtype", "warning", f"{text}: it is kept coarser than what it sums up", reload_line(optimizer)
        else:
            yield "state-dtype", "info", f"{text}: kept finer than the parameter", ""
