"""Every scheduler of torch, carried: the lr, what else it cycles, its own state are those of the run that went on."""

from __future__ import annotations

import pytest

from unmoor.values.schedulers import SCHEDULERS as FAMILIES
from unmoor.values.schedulers import guess_scheduler

from .carriers import CARRIERS
from .schedulers import SCHEDULERS, Case, Run, cases, classes, judge


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_restored_schedule_is_the_uninterrupted_one(tmp_path, scheduler):
    """Law 5: with any optimizer, any groups and any order of building, nothing differs after three further steps."""
    outcomes = [judge(case, CARRIERS["unmoor"], tmp_path) for case in cases() if case.scheduler == scheduler]
    assert len(outcomes) == 12
    assert [f"{o.cell}: {o.reason}" for o in outcomes if o.verdict != "equal"] == []


def test_every_class_of_torch_has_a_row():
    """A scheduler that a newer torch brings is missed here until it has a row and a place in the table of marks."""
    assert {name.partition(",")[0].partition(" of")[0] for name in SCHEDULERS} == classes()
    assert {name for family in FAMILIES for name in (family.name, *family.also)} == classes()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_state_is_told_by_its_marks(scheduler):
    """The marks of the table are in the states that torch really gives, and tell the classes apart."""
    run = Run(Case(scheduler, "SGD momentum", "one group", "built before"), 0).schedule()
    family = guess_scheduler(run.scheduler.state_dict().keys())
    assert family is not None
    assert type(run.scheduler).__name__ in (family.name, *family.also)
