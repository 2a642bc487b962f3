"""The matrix of schedulers: every class of torch x optimizer x parameter groups x when it is built, for any carrier.

A cell is equal where the restored run is, bit for bit, the run that was never interrupted, right after the restore and
after three more steps: the options of every parameter group (lr, momentum, betas, initial_lr), the scheduler's own
state, the weights and the optimizer's state.

Columns: built before or after the restore / number of parameter groups; in each field the optimizers.

    python -m tests.matrix.schedulers            the table for unmoor
    python -m tests.matrix.schedulers torch      the same for torch.load and load_state_dict
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler, swa_utils

from tests.runs.training import equal, on_cpu

from . import command
from .carriers import Carrier
from .report import Outcome

__all__ = ["OPTIMIZERS", "SCHEDULERS", "WAYS", "Case", "Run", "cases", "classes", "judge"]

STEPS: Final = 7
MORE: Final = 3


class Warmup:
    """A callable object, whose state a LambdaLR saves: it has learned what it returns."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return (1 + self.calls % 5) / 5


class Decay:
    """A callable object without state of its own."""

    rate = 0.9

    def __call__(self, x: float) -> float:
        return float(self.rate**x)


def halved(epoch: int) -> float:
    return 0.5**epoch


def _sequence(o: Optimizer) -> Any:
    warm, cool = lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 12, 1e-5)
    return lr_scheduler.SequentialLR(o, [warm, cool], [4])


def _chain(o: Optimizer) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, total_iters=5), lr_scheduler.ExponentialLR(o, 0.9)]
    )


def _nested(o: Optimizer) -> Any:
    rest = lr_scheduler.MultiStepLR(o, [3, 8], 0.5)
    return lr_scheduler.ChainedScheduler([_sequence(o), rest])


L = lr_scheduler
SCHEDULERS: Final[dict[str, Callable[[Optimizer], Any]]] = {
    "LambdaLR, function": lambda o: L.LambdaLR(o, halved),
    "LambdaLR, object": lambda o: L.LambdaLR(o, [Warmup() for _ in o.param_groups]),
    "MultiplicativeLR, function": lambda o: L.MultiplicativeLR(o, lambda epoch: 0.9),
    "MultiplicativeLR, object": lambda o: L.MultiplicativeLR(o, [Warmup() for _ in o.param_groups]),
    "StepLR": lambda o: L.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: L.MultiStepLR(o, [2, 2, 6, 9], 0.5),
    "ConstantLR": lambda o: L.ConstantLR(o, 0.3, total_iters=9),
    "LinearLR": lambda o: L.LinearLR(o, 0.1, total_iters=9),
    "ExponentialLR": lambda o: L.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: L.PolynomialLR(o, total_iters=20, power=2.0),
    "CosineAnnealingLR": lambda o: L.CosineAnnealingLR(o, 8, 1e-4),
    "CosineAnnealingWarmRestarts": lambda o: L.CosineAnnealingWarmRestarts(o, 3, 2, 1e-4),
    "CyclicLR, triangular": lambda o: L.CyclicLR(o, 0.01, 0.2, step_size_up=4),
    "CyclicLR, own scale": lambda o: L.CyclicLR(
        o, 0.01, 0.2, step_size_up=3, scale_fn=Decay(), scale_mode="iterations"
    ),
    "OneCycleLR": lambda o: L.OneCycleLR(o, 0.5, total_steps=20),
    "OneCycleLR, three phases": lambda o: L.OneCycleLR(
        o, 0.5, total_steps=20, three_phase=True, anneal_strategy="linear"
    ),
    "ReduceLROnPlateau": lambda o: L.ReduceLROnPlateau(o, factor=0.5, patience=1, cooldown=1),
    "SequentialLR": _sequence,
    "ChainedScheduler": _chain,
    "ChainedScheduler of SequentialLR": _nested,
    "SWALR": lambda o: swa_utils.SWALR(o, 0.02, anneal_epochs=9),
    "SWALR, linear": lambda o: swa_utils.SWALR(o, 0.02, anneal_epochs=5, anneal_strategy="linear"),
}
"""Subject -> how it is built. The name up to the comma is the class."""

OPTIMIZERS: Final[dict[str, Callable[[Any], Optimizer]]] = {
    "SGD momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
    "AdamW, lr a tensor": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.1)),
}

GROUPS: Final = {"one group": 1, "two groups": 2}
WAYS: Final = ("built before", "built after")
"""The scheduler exists before the restore; or it is built on the restored optimizer, then restored by itself."""


def classes() -> set[str]:
    """Every scheduler class that torch has, found by walking its modules."""
    found = {**vars(lr_scheduler), **vars(swa_utils)}
    bases = {"LRScheduler", "_LRScheduler"}
    return {
        name
        for name, cls in found.items()
        if isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler) and name not in bases
    }


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    scheduler: str
    optimizer: str
    groups: str
    way: str

    def __str__(self) -> str:
        return f"{self.scheduler}, {self.optimizer}, {self.groups}, {self.way}"

    @property
    def column(self) -> str:
        return f"{self.way.removeprefix('built ')}/{GROUPS[self.groups]}"


def cases() -> list[Case]:
    return [Case(*product) for product in itertools.product(SCHEDULERS, OPTIMIZERS, GROUPS, WAYS)]


class Run:
    """A model, its optimizer, and later a scheduler; its data depends on the number of the step alone."""

    def __init__(self, case: Case, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        params = [{"params": part.parameters()} for part in (self.model[0], self.model[2])]
        if GROUPS[case.groups] == 1:
            params = [{"params": self.model.parameters()}]
        else:
            params[1]["lr"] = torch.tensor(0.3) if case.optimizer.endswith("tensor") else 0.3
        self.case, self.step = case, 0
        self.optimizer = OPTIMIZERS[case.optimizer](params)
        self.scheduler: Any = None

    def schedule(self) -> Run:
        self.scheduler = SCHEDULERS[self.case.scheduler](self.optimizer)
        return self

    def train(self, steps: int) -> Run:
        measured = self.case.scheduler == "ReduceLROnPlateau"
        for _ in range(steps):
            data = torch.randn(8, 3, generator=torch.Generator().manual_seed(self.step))
            self.optimizer.zero_grad()
            self.model(data).pow(2).mean().backward()
            self.optimizer.step()
            self.step += 1
            self.scheduler.step(*([1.0 + self.step % 2] if measured else []))
        return self

    def roles(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def state(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        groups = [
            {k: v for k, v in group.items() if k not in ("params", "param_names")}
            for group in self.optimizer.param_groups
        ]
        return {
            "groups": on_cpu(groups),
            "scheduler": on_cpu(self.scheduler.state_dict()),
            "model": on_cpu(dict(self.model.state_dict())),
            "optimizer": on_cpu(optimizer["state"]),
        }


def judge(case: Case, carrier: Carrier, folder: Path) -> Outcome:
    """Carry one run and compare it with itself, uninterrupted."""
    path = folder / "run.pt"
    run = Run(case, 0).schedule().train(STEPS)
    try:
        carrier.save(path, **run.roles())
        other = _restored(case, carrier, path)
    except Exception as error:  # noqa: BLE001 - whatever the carrier raises is the cell's reason
        return Outcome(case.scheduler, case.column, "refused", str(case), f"{type(error).__name__}: {error}"[:200])
    other.step = run.step
    for when in ("at the restore", f"{MORE} steps later"):
        wrong = [part for part, value in run.state().items() if not equal(value, other.state()[part])]
        if wrong:
            return Outcome(case.scheduler, case.column, "differs", str(case), f"{', '.join(wrong)} {when}")
        run.train(MORE)
        other.train(MORE)
    return Outcome(case.scheduler, case.column, "equal", str(case))


def _restored(case: Case, carrier: Carrier, path: Path) -> Run:
    other = Run(case, 1)
    if case.way == "built before":
        other.schedule()
        carrier.restore(path, **other.roles())
    else:
        carrier.restore(path, model=other.model, optimizer=other.optimizer)
        other.schedule()
        carrier.restore(path, model=other.model, scheduler=other.scheduler)
    return other


if __name__ == "__main__":
    sys.exit(command.run(sys.argv[1:], cases(), judge))
