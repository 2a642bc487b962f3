"""Planning takes steps in proportion to the number of tensors: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from benchmarks.plan import WAYS, catalog, target

from unmoor.plan.policy import Policy
from unmoor.plan.restore import plan_restore
from unmoor.values.catalog import Catalog
from unmoor.values.target import Target, TargetGroup

SMALL, LARGE = 96, 192


def opcodes(call: Callable[[], Any]) -> int:
    """How many instructions of Python a call takes, those of all functions that it calls among them."""
    number = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal number
        frame.f_trace_opcodes = True
        number += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return number


def _made(params: int, way: str) -> tuple[Catalog, Target]:
    return catalog(params, **WAYS[way]), target(params, adam=WAYS[way]["adam"])


def _one_group_each(params: int) -> tuple[Catalog, Target]:
    """A live optimizer with as many groups as parameters, out of one saved group."""
    file, live = _made(params, "model and Adam, by name")
    (optimizer,) = live.optimizers
    (group,) = optimizer.groups
    groups = tuple(TargetGroup(dict(group.options), (param,)) for param in group.params)
    return file, replace(live, optimizers=(replace(optimizer, groups=groups),))


def _half_gone(params: int) -> tuple[Catalog, Target]:
    """Half of the live names are not in the file, and half of the file's not in the live run."""
    file, live = _made(params, "model and Adam, by name")
    (module,) = live.modules
    (optimizer,) = live.optimizers
    new = {name: (name if i % 2 else f"new.{name}") for i, name in enumerate(module.slots)}
    slots = {new[name]: slot for name, slot in module.slots.items()}
    held = tuple(replace(param, name=new[param.name]) for param in optimizer.groups[0].params)
    groups = (TargetGroup(dict(optimizer.groups[0].options), held),)
    changed = replace(module, slots=slots, parameters=frozenset(slots))
    return file, replace(live, modules=(changed,), optimizers=(replace(optimizer, groups=groups),))


def _extra_states(params: int) -> tuple[Catalog, Target]:
    """Every other tensor stands beside an extra state, under a prefix."""
    file, live = _made(params, "model under 'module.'")
    (module,) = live.modules
    extra = frozenset(f"{name.rpartition('.')[0]}._extra_state" for name in module.slots)
    (part,) = file.parts
    part.node.update({f"module.{name}": 1 for name in extra})
    return file, replace(live, modules=(replace(module, extra_state=extra),))


CASES: dict[str, tuple[Callable[[int], tuple[Catalog, Target]], Policy]] = {
    **{way: (lambda n, way=way: _made(n, way), Policy()) for way in WAYS},
    "a group for each parameter": (_one_group_each, Policy()),
    "half of the names gone": (_half_gone, Policy(missing="fresh", unexpected="ignore")),
    "an extra state for each pair": (_extra_states, Policy()),
    "only and skip": (lambda n: _made(n, "model and Adam, by name"), Policy(only=("layers.*",), skip=("*.bias",))),
    "all renamed": (lambda n: _made(n, "model and Adam under 'module.'"), Policy(rename={"module.*": "*"})),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_grow_with_the_number_of_tensors(case: str) -> None:
    """Twice the tensors take about twice the steps: nothing is searched once for every other thing."""
    make, policy = CASES[case]
    counts = []
    for params in (SMALL, LARGE):
        file, live = make(params)
        plan_restore(file, live, policy)
        counts.append(opcodes(lambda file=file, live=live: plan_restore(file, live, policy)))  # type: ignore[misc]
    assert counts[1] < 2.2 * counts[0], counts
