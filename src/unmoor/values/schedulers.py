"""What the learning rate schedulers of torch keep: the keys that mark a class, and which of them are progress.

Read from torch.optim.lr_scheduler and torch.optim.swa_utils. A test walks both. Must not know torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = [
    "CHILDREN",
    "DERIVED",
    "GROUP_OPTIONS",
    "PLATEAU",
    "PROGRESS",
    "SCHEDULERS",
    "SchedulerFamily",
    "guess_scheduler",
]

CHILDREN: Final = "_schedulers"
"""Under which key a scheduler of schedulers keeps the states of its own."""

PLATEAU: Final = "ReduceLROnPlateau"
"""The class whose progress depends on what was measured, so that counting steps cannot repeat it."""

PROGRESS: Final = frozenset(
    {
        "last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "T_cur", "T_i",
        "best", "num_bad_epochs", "cooldown_counter",
    }
)  # fmt: skip
"""Keys of a state that say how far a schedule has come; all others say which schedule it is."""

GROUP_OPTIONS: Final = frozenset(
    {
        "lr", "initial_lr", "momentum", "betas", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr",
    }
)  # fmt: skip
"""Options of an optimizer's groups that some scheduler writes, when it is built or when it steps."""

DERIVED: Final = frozenset({"optimizer", "anneal_func", "_scale_fn_ref"})
"""Attributes that no state dict should hold: the class makes them anew (older torch kept SWALR's function)."""


@dataclass(frozen=True, slots=True)
class SchedulerFamily:
    """One class: the keys that mark its state, and the key that tells how many steps it runs, "" for none.

    `ends` tells that stepping on after the last of them raises. `also` are classes whose states look alike.
    """

    name: str
    marks: frozenset[str]
    length: str = ""
    ends: bool = False
    also: tuple[str, ...] = ()


def _family(name: str, marks: str, length: str = "", *, ends: bool = False, also: str = "") -> SchedulerFamily:
    return SchedulerFamily(name, frozenset(marks.split()), length, ends, tuple(also.split()))


SCHEDULERS: Final = (
    _family(PLATEAU, "factor patience cooldown num_bad_epochs"),
    _family("OneCycleLR", "total_steps _schedule_phases", "total_steps", ends=True),
    _family("OneCycleLR", "total_steps use_beta1", "total_steps", ends=True),
    _family("CosineAnnealingWarmRestarts", "T_0 T_mult T_cur", "T_0"),
    _family("CosineAnnealingLR", "T_max eta_min", "T_max"),
    _family("CyclicLR", "total_size step_ratio"),
    _family("SWALR", "anneal_epochs", "anneal_epochs"),
    _family("StepLR", "step_size gamma"),
    _family("MultiStepLR", "milestones gamma"),
    _family("LinearLR", "start_factor end_factor", "total_iters"),
    _family("PolynomialLR", "power total_iters", "total_iters"),
    _family("ConstantLR", "factor total_iters", "total_iters"),
    _family("LambdaLR", "lr_lambdas", also="MultiplicativeLR"),
    _family("SequentialLR", "_milestones _schedulers"),
    _family("ChainedScheduler", "_schedulers"),
    _family("ExponentialLR", "gamma"),
)
"""Every class of torch, the more particular first: the first whose marks a state has is the one that it looks like."""


def guess_scheduler(keys: Collection[object]) -> SchedulerFamily | None:
    """The class that a state with these keys looks like; None where it looks like none of torch's."""
    return next((family for family in SCHEDULERS if all(mark in keys for mark in family.marks)), None)
