"""Small live runs on the simulated accelerator: what one consists of, and how one step of it is really taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import unmoor
from unmoor.values.diagnosis import Diagnosis

HOME = "sim:0"


class Net(nn.Module):
    """Two layers with a normalisation between them, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x))


@dataclass
class Run:
    """A run: a step is forward, loss, backward, the optimizers, the schedulers, the metrics."""

    model: Any
    optimizer: Any = None
    batch: Any = None
    loss: Any = None
    scheduler: Any = None
    scaler: Any = None
    metrics: Any = None
    ema: Any = None
    loader: Any = None
    rng: Any = None
    forward: Any = None
    values: bool = False
    before: Any = None
    told: dict[str, Any] = field(default_factory=dict)

    def diagnose(self) -> Diagnosis:
        """What unmoor says of it."""
        return unmoor.diagnose(
            self.model,
            self.optimizer,
            self.batch if self.batch is not None else ...,
            loss=self.loss,
            scheduler=self.scheduler,
            scaler=self.scaler,
            metrics=self.metrics,
            ema=self.ema,
            loader=self.loader,
            rng=self.rng,
            values=self.values,
        )

    def step(self) -> None:
        """Take one step, as a training script does."""
        if self.forward is not None:
            output, loss = None, self.forward(self)
        else:
            inputs, targets = self.parts()
            output = self.model(inputs)
            loss = self.loss(output, targets) if self.loss is not None else output.square().mean()
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        (self.scaler.scale(loss) if self.scaler is not None else loss).backward()
        for optimizer in self.optimizers():
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(lambda: loss)
            elif self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        if self.metrics is not None and output is not None:
            self.metrics.update(output.detach(), targets)
        if self.ema is not None and hasattr(self.ema, "update_parameters"):
            self.ema.update_parameters(self.model)

    def parts(self) -> tuple[Any, Any]:
        if isinstance(self.batch, dict):
            key = next((k for k in ("labels", "y") if k in self.batch), None)
            inputs = [v for k, v in self.batch.items() if k != key]
            return inputs[0], self.batch.get(key)
        return self.batch if isinstance(self.batch, tuple | list) else (self.batch, None)

    def optimizers(self) -> list[Any]:
        if self.optimizer is None:
            return []
        return list(self.optimizer.values()) if isinstance(self.optimizer, dict) else [self.optimizer]

    def apply(self, line: str) -> None:
        """Run a line of Python as a person would who has the run's objects as variables of these names."""
        from torch.optim.lr_scheduler import StepLR

        names = ("model", "optimizer", "batch", "loss", "scheduler", "scaler", "metrics", "ema", "loader")
        space = {
            "torch": torch,
            "unmoor": unmoor,
            "StepLR": StepLR,
            **{n: getattr(self, n) for n in names},
            **self.told,
        }
        exec(line, space)
        for name in names:
            setattr(self, name, space[name])


def batch(device: str = HOME, labels: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Four samples of three numbers, and their classes."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 3, generator=generator)
    return inputs.to(device), torch.tensor([0, 1, 2, 0]).to(labels or device)


def run(device: str = HOME, optimizer: str = "Adam", steps: int = 0, **options: Any) -> Run:
    """A healthy run on a device, after some steps."""
    torch.manual_seed(0)
    model = Net().to(device)
    made = Run(model, OPTIMIZERS[optimizer](model.parameters(), **options), batch(device), nn.CrossEntropyLoss())
    for _ in range(steps):
        made.step()
    return made


OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, momentum=0.9, centered=True, **k),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": lambda p, **k: torch.optim.LBFGS(p, max_iter=1, **k),
}
