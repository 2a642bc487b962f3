"""The runs that other programs train and that plain PyTorch goes on with: models, batches, and what is compared.

Imported by the writers in their environment and by the tests in theirs, so it needs torch alone.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

BEFORE = 3
"""Steps before the checkpoint."""

AFTER = 3
"""Steps after it, in the uninterrupted run and in the resumed one."""

WORDS, LENGTH, SIZE = 12, 5, 8


class Drop(nn.Module):
    """Dropout that draws from the CPU's stream wherever the model is, so that a run can go on on another device."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.part:
            return values
        kept = torch.rand(values.shape) >= self.part
        return values * kept.to(values.device) / (1 - self.part)


class Net(nn.Module):
    """A classifier of word lists with an embedding, a norm that keeps buffers, and dropout. Gives its loss if asked."""

    def __init__(self, dropout: float = 0.1, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.norm = nn.BatchNorm1d(SIZE)
        self.hidden = nn.Linear(SIZE, width)
        self.drop = Drop(dropout)
        self.out = nn.Linear(width, WORDS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        inner = self.norm(self.embed(input_ids).mean(1))
        logits = self.out(self.drop(torch.tanh(self.hidden(inner))))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def unbuffered() -> Net:
    """A model without buffers and without dropout, for programs that carry neither between ranks."""
    model = Net(dropout=0.0)
    model.norm = nn.LayerNorm(SIZE)
    return model


def batch(step: int, rank: int = 0, device: Any = "cpu") -> dict[str, torch.Tensor]:
    """The words of one step, which depend on nothing but its number and the rank."""
    draws = torch.Generator().manual_seed(1000 + 100 * rank + step)
    words = torch.randint(WORDS, (SIZE, LENGTH), generator=draws)
    return {"input_ids": words.to(device), "labels": words[:, 0].to(device)}


def seed(number: int) -> None:
    """Seed torch, python and, where there is one, numpy."""
    torch.manual_seed(number)
    random.seed(number)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(number)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of most runs; its state has two moments and a step."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def halving(optimizer: torch.optim.Optimizer) -> Any:
    """The scheduler of most runs: it changes the learning rate within the steps that are compared."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


class Counter:
    """An object of the user's own that is saved with the run."""

    def __init__(self) -> None:
        self.words = 0

    def state_dict(self) -> dict[str, int]:
        return {"words": self.words}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.words = state["words"]


@dataclass
class Run:
    """One model with its optimizer and scheduler, in a loop of plain PyTorch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    step: int = 0
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def train(
        self, steps: int, *, clip: float | None = None, amp: torch.dtype | None = None, scaler: Any = None
    ) -> Run:
        """Take steps. `clip` is a largest norm of the gradients, `amp` the dtype of autocast."""
        device = next(self.model.parameters()).device
        self.model.train()
        for _ in range(steps):
            self.optimizer.zero_grad()
            with torch.autocast(device.type, amp, enabled=amp is not None):
                loss = self.model(**batch(self.step, device=device))["loss"]
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            if scaler is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)
                scaler.update()
            if self.scheduler is not None:
                self.scheduler.step()
            self.step += 1
            self.losses.append(loss.item())
        return self


def start(dropout: float = 0.1, number: int = 0) -> Run:
    """A run that has taken no step; another number gives other weights."""
    seed(number)
    model = Net(dropout)
    optimizer = adamw(model)
    return Run(model, optimizer, halving(optimizer))


def outcome(
    models: Any, optimizers: Any, *, losses: Sequence[float], rates: Sequence[float], rng: bool
) -> dict[str, Any]:
    """What two runs must agree on after their last step, on the CPU. Of one model and optimizer or of lists of both."""
    models = models if isinstance(models, list) else [models]
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    names = {id(p): f"{i}.{name}" for i, model in enumerate(models) for name, p in model.named_parameters()}
    return {
        "model": [on_cpu(dict(model.state_dict())) for model in models],
        "optimizer": [_by_name(optimizer, names) for optimizer in optimizers],
        "losses": [float(loss) for loss in losses][-AFTER:],
        "rates": [float(rate) for rate in rates][-AFTER:],
        "draws": draws() if rng else None,
    }


def _by_name(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    state = {names[id(p)]: on_cpu(dict(values)) for p, values in optimizer.state.items()}
    options = [{k: v for k, v in group.items() if k in ("lr", "momentum", "betas")} for group in optimizer.param_groups]
    members = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    return {"state": dict(sorted(state.items())), "groups": [*zip(options, members, strict=True)]}


def on_cpu(value: Any) -> Any:
    """A copy of a tree with every tensor on the CPU, densely laid out."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    return value


def draws() -> list[Any]:
    """The next numbers of the streams of this process."""
    import numpy as np

    return [torch.rand(3).tolist(), random.random(), np.random.rand(2).tolist()]


def keep(folder: Path, outcomes: dict[str, Any], rank: int = 0) -> None:
    """Write what the uninterrupted run came to on one rank, beside its checkpoint."""
    torch.save(outcomes, _expected(folder, rank))


def kept(folder: Path, rank: int = 0) -> dict[str, Any]:
    """What the uninterrupted run came to on one rank."""
    return torch.load(_expected(folder, rank), weights_only=True)


def _expected(folder: Path, rank: int) -> Path:
    return folder / (f"expected-{rank}.pt" if rank else "expected.pt")


class Tied(nn.Module):
    """A predictor of words whose output layer is its embedding: one tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, SIZE)
        self.hidden = nn.Linear(SIZE, SIZE)
        self.out = nn.Linear(SIZE, WORDS, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.out(torch.tanh(self.hidden(self.embed(input_ids).mean(1))))
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}


class Denoiser(nn.Module):
    """A model of diffusion, of points in place of pictures: called with noisy points and their times."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Embedding(10, SIZE)
        self.inner = nn.Linear(2, SIZE)
        self.out = nn.Linear(SIZE, 2)

    def forward(self, points: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.inner(points) + self.times(times)))


class Noising:
    """The diffusion of a training loop: as many times, and the loss of a model at given ones."""

    num_timesteps = 10

    def training_losses(self, model: Any, points: torch.Tensor, times: torch.Tensor, model_kwargs: Any) -> Any:
        draws = torch.Generator().manual_seed(int(times.sum()))
        noise = torch.randn(points.shape, generator=draws).to(points.device)
        noisy = points + noise * times[:, None] / self.num_timesteps
        return {"loss": (model(noisy, times, **model_kwargs) - noise).pow(2).mean(1)}


def pictures(step: int) -> torch.Tensor:
    """The points of one step."""
    return torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(3000 + step))


def leave() -> NoReturn:
    """End the process as it stands, its work being done.

    A thread of a process group may still run while the interpreter takes itself apart; C++ then aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
