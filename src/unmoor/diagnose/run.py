"""Facts of a run -> what stands in the way of its next step: every rule, and the findings worst first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from unmoor.values.finding import SEVERITIES, Finding
from unmoor.values.run_facts import RunFacts, TensorFact

from .run_batch import batch_findings
from .run_modules import module_findings
from .run_optimizers import optimizer_findings
from .run_others import other_findings
from .run_state import state_findings

__all__ = ["devices_of", "judge_run", "looked_at"]

_RULES: Final[tuple[Callable[[RunFacts], Iterator[Finding]], ...]] = (
    module_findings,
    batch_findings,
    optimizer_findings,
    state_findings,
    other_findings,
)


def judge_run(facts: RunFacts) -> tuple[Finding, ...]:
    """All findings about a run, worst first, each once; of one severity in the order of the step."""
    found = dict.fromkeys(finding for rule in _RULES for finding in rule(facts))
    return tuple(sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity)))


def looked_at(facts: RunFacts) -> dict[str, int]:
    """How many tensors of each kind were looked at, one that has several names once."""
    modules = [t for model in facts.models for t in model.tensors("parameter", "buffer")]
    return {
        "parameters": len({t.key for t in modules if t.kind == "parameter"}),
        "buffers": len({t.key for t in modules if t.kind == "buffer"}),
        "state": sum(len(p.state) for o in facts.optimizers for group in o.groups for p in group.params),
        "batch": len(facts.batch.leaves) if facts.batch is not None else 0,
        "others": sum(len(loss.tensors) for loss in facts.losses) + len(facts.metrics) + len(facts.averages),
    }


def devices_of(facts: RunFacts) -> dict[str, int]:
    """Device tag -> tensors of models and batch there, most first."""
    tensors: dict[int, TensorFact] = {t.key: t for model in facts.models for t in model.tensors("parameter", "buffer")}
    fed = [leaf.tensor for leaf in facts.batch.leaves] if facts.batch is not None else []
    devices: dict[str, int] = {}
    for tensor in (*tensors.values(), *fed):
        devices[tensor.device] = devices.get(tensor.device, 0) + 1
    return dict(sorted(devices.items(), key=lambda pair: -pair[1]))
