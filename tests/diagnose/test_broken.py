"""Every finding is true: the run that it is about really fails or is wrong, and the line that it gives cures it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from .broken import BROKEN, Broken
from .runs import Run

pytestmark = pytest.mark.usefixtures("sim")


def _grave(made: Run) -> list[tuple[str, str]]:
    return [(f.severity, f.code) for f in made.diagnose() if f.severity in ("error", "warning")]


def _outcome(made: Run) -> str:
    """What a step does: the class that it raises, nan, or "" where it runs."""
    losses: list[Any] = []
    own = made.loss
    if own is not None and made.forward is None:
        made.loss = lambda *given: losses.append(own(*given)) or losses[-1]
    try:
        made.step()
    except Exception as error:  # noqa: BLE001 - whichever it is
        return type(error).__name__
    finally:
        made.loss = own
    return "nan" if losses and not math.isfinite(float(losses[-1].detach())) else ""


def _silently_wrong(made: Run, how: str) -> bool:
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    rates = [group["lr"] for group in made.optimizers()[0].param_groups]
    assert _outcome(made) == ""
    if how == "silent":
        return all(torch.equal(before[name], p) for name, p in made.model.named_parameters())
    if how == "silent-rate":
        return rates == [group["lr"] for group in made.optimizers()[0].param_groups]
    made.optimizer.param_groups[0]["lr"] = 17.0
    return made.optimizer.optimizer.param_groups[0]["lr"] != 17.0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_told_with_its_code_and_its_step_is_what_the_finding_says(name: str) -> None:
    """The finding of that code is the only grave one, and the step fails exactly where the finding is an error."""
    case: Broken = BROKEN[name]
    made = case.make()
    assert set(_grave(made)) == {(case.severity, case.code)}, str(made.diagnose())
    (finding, *_) = [f for f in made.diagnose() if f.code == case.code]
    assert not case.place or finding.place == case.place
    assert finding.message
    assert finding.page == f"docs/findings.md#{case.code}"
    if case.fails.startswith("silent"):
        assert _silently_wrong(made, case.fails)
    else:
        assert _outcome(made) in (case.fails.split() or [""])


@pytest.mark.parametrize("name", BROKEN)
def test_the_line_that_a_finding_gives_cures_the_run(name: str) -> None:
    """After its line of code nothing grave is found any more, and a step runs."""
    case: Broken = BROKEN[name]
    made = case.make()
    for _ in range(4):
        grave = [f for f in made.diagnose() if f.severity in ("error", "warning")]
        if not grave:
            break
        if case.fix is not None:
            case.fix(made)
        else:
            made.apply(grave[0].remedy)
    assert _grave(made) == [], str(made.diagnose())
    assert _outcome(made) == ""
    assert made.diagnose().ok


def test_a_diagnosis_changes_nothing() -> None:
    """Objects, tensors, versions of tensors and random numbers are what they were before."""
    for case in list(BROKEN.values())[:60]:
        made = case.make()
        before = [(id(t), t._version, str(t.device)) for t in _tensors(made)]
        states = torch.get_rng_state(), torch.sim.get_rng_state("sim:0")
        made.diagnose()
        assert [(id(t), t._version, str(t.device)) for t in _tensors(made)] == before
        assert torch.equal(states[0], torch.get_rng_state())
        assert torch.equal(states[1], torch.sim.get_rng_state("sim:0"))


def _tensors(made: Run) -> list[torch.Tensor]:
    found = [*made.model.parameters(), *made.model.buffers()]
    for optimizer in made.optimizers():
        inner = getattr(optimizer, "optimizer", optimizer)
        for state in inner.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return found
