"""The runs of other programs, resumed through unmoor and gone on with in plain PyTorch: one row of `CASES` each.

A row names a program, one of its formats, and a function that builds the same run from nothing, restores it and takes
the next steps. What the program does beside PyTorch's own arithmetic (clipping, scaling, averaging over ranks) stands
in these loops in plain code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unmoor
from unmoor.values.report import Report

from .made import made
from .training import (
    AFTER,
    BEFORE,
    Counter,
    Denoiser,
    Net,
    Noising,
    Run,
    Tied,
    adamw,
    batch,
    halving,
    kept,
    on_cpu,
    outcome,
    pictures,
    seed,
    start,
    unbuffered,
)

OTHER = 99
"""The seed of the runs that are restored into: nothing of theirs may be left."""


@dataclass(frozen=True)
class Resumed:
    """What was restored, what the run came to, and what it had to come to."""

    report: Report
    got: dict[str, Any]
    wanted: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One format of one program. `path` is what unmoor is given, inside the folder that the writer filled."""

    program: str
    variant: str
    what: str
    dialect: str
    path: str
    resume: Callable[[Path, Path, Any], Resumed]
    restored: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.program}-{self.variant}"

    @property
    def folder(self) -> Path:
        return made(self.program, self.variant)

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.path

    def run(self, device: Any = "cpu") -> Resumed:
        """Restore the run onto a device and take its next steps there.

        On one thread, as the writers: the gradients of norms are sums that PyTorch divides among its threads.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.resume(self.checkpoint, self.folder, device)
        finally:
            torch.set_num_threads(threads)


def end(run: Run, *, rng: bool) -> dict[str, Any]:
    return outcome(run.model, run.optimizer, losses=run.losses, rates=run.rates, rng=rng)


def other(dropout: float, device: Any) -> Run:
    """A run with other weights on a device, as far as the checkpoint had come."""
    return placed(start(dropout, OTHER), device)


def placed(run: Run, device: Any) -> Run:
    """The same kind of run with its model on a device: the optimizer is built there."""
    model = run.model.to(device)
    optimizer = adamw(model)
    return replace(run, model=model, optimizer=optimizer, scheduler=halving(optimizer), step=BEFORE)


def accelerate(path: Path, folder: Path, device: Any) -> Resumed:
    run, counter = other(0.1, device), Counter()
    report = unmoor.restore(
        path, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, custom=counter, rng=True
    )
    run.train(AFTER, clip=1.0)
    words = counter.words + AFTER * batch(0)["input_ids"].numel()
    return Resumed(report, {**end(run, rng=True), "words": words}, kept(folder))


def accelerate_two(path: Path, folder: Path, device: Any) -> Resumed:
    runs, counter = [other(0.1, device) for _ in range(2)], Counter()
    report = unmoor.restore(
        path,
        model=[run.model for run in runs],
        optimizer=[run.optimizer for run in runs],
        scheduler=[run.scheduler for run in runs],
        custom=counter,
    )
    for run in runs:
        run.train(AFTER, clip=1.0)
    models, optimizers = [run.model for run in runs], [run.optimizer for run in runs]
    got = outcome(models, optimizers, losses=runs[1].losses, rates=runs[1].rates, rng=True)
    words = counter.words + 2 * AFTER * batch(0)["input_ids"].numel()
    return Resumed(report, {**got, "words": words}, kept(folder))


def trainer_optimizer(model: nn.Module, *, fused: bool) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of the HF Trainer: decay for the weights of matrices, none for biases and norms; its scheduler."""
    plain = [name for name, _ in model.named_parameters() if "bias" in name or "norm" in name]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in plain], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if n in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=fused)
    warm, last = 2, BEFORE + AFTER
    rule = lambda step: step / warm if step < warm else max(0.0, (last - step) / (last - warm))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rule)


def trainer(path: Path, folder: Path, device: Any, model: Any = Net, *, fused: bool = False) -> Resumed:
    seed(OTHER)
    live = model().to(device)
    optimizer, scheduler = trainer_optimizer(live, fused=fused)
    report = unmoor.restore(path, model=live, optimizer=optimizer, scheduler=scheduler)
    assert report.extra["trainer_state.json"]["global_step"] == BEFORE
    run = Run(live, optimizer, scheduler, step=BEFORE).train(AFTER, clip=1.0)
    return Resumed(report, end(run, rng=True), kept(folder))


def trainer_fused(path: Path, folder: Path, device: Any) -> Resumed:
    return trainer(path, folder, device, fused=True)


def trainer_tied(path: Path, folder: Path, device: Any) -> Resumed:
    return trainer(path, folder, device, Tied)


def pretrained(path: Path, folder: Path, device: Any) -> Resumed:
    seed(OTHER)
    model = Tied().to(device)
    report = unmoor.restore(path, model=model)
    return Resumed(report, {"model": [on_cpu(dict(model.state_dict()))]}, kept(folder))


def lightning(path: Path, folder: Path, device: Any, **how: Any) -> Resumed:
    run = other(0.0, device)
    scaler = {"scaler": how["scaler"]} if "scaler" in how else {}
    report = unmoor.restore(path, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, **scaler)
    run.train(AFTER, clip=1.0, **how)
    return Resumed(report, end(run, rng=False), kept(folder))


def lightning_bf16(path: Path, folder: Path, device: Any) -> Resumed:
    return lightning(path, folder, device, amp=torch.bfloat16)


def lightning_fp16(path: Path, folder: Path, device: Any) -> Resumed:
    scaler = torch.amp.GradScaler(torch.device(device).type, growth_interval=2)
    return lightning(path, folder, device, amp=torch.float16, scaler=scaler)


def lightning_manual(path: Path, folder: Path, device: Any) -> Resumed:
    first, second = (other(0.0, device) for _ in range(2))
    second.optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1, momentum=0.9)
    second.scheduler = halving(second.optimizer)
    runs = [first, second]
    report = unmoor.restore(
        path,
        model=nn.ModuleDict({"first": first.model, "second": second.model}),
        optimizer=[run.optimizer for run in runs],
        scheduler=[run.scheduler for run in runs],
    )
    for run in runs:
        run.train(AFTER)
    models, optimizers = [run.model for run in runs], [run.optimizer for run in runs]
    got = outcome(models, optimizers, losses=second.losses, rates=second.rates, rng=False)
    return Resumed(report, got, kept(folder))


def on_two_ranks(run: Run, *, half: nn.Module | None = None) -> Run:
    """The next steps of two ranks in one process: each has its own batch, and the gradients are averaged.

    With `half`, a copy of the model in a narrower dtype computes and the run's own parameters are the master ones.
    """
    worker = run.model if half is None else half
    for _ in range(AFTER):
        losses, gradients = [], []
        for one, master in zip(worker.parameters(), run.model.parameters(), strict=True):
            one.data.copy_(master.data)
        for rank in (0, 1):
            worker.zero_grad()
            loss = worker(**batch(run.step, rank, next(run.model.parameters()).device))["loss"]
            loss.backward()
            losses.append(loss.item())
            gradients.append([p.grad.clone() for p in worker.parameters() if p.requires_grad])
        free = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
        for parameter, one, two in zip(free, *gradients, strict=True):
            parameter.grad = (one / 2 + two / 2).to(parameter.dtype)
        run.rates.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.step()
        run.scheduler.step()
        run.losses.append(losses[0])
        run.step += 1
    return run


def deepspeed(path: Path, folder: Path, device: Any, *, half: bool = False, groups: bool = False) -> Resumed:
    seed(OTHER)
    model = unbuffered()
    run = placed(Run(model, adamw(model)), device)
    if groups:
        run.optimizer = in_groups(run.model)
        run.scheduler = halving(run.optimizer)
    report = unmoor.restore(path, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler)
    assert report.extra["words"] == 8 * BEFORE
    on_two_ranks(run, half=copy.deepcopy(run.model).to(torch.bfloat16) if half else None)
    kinds = ("exp_avg", "exp_avg_sq")
    names = {name: parameter for name, parameter in run.model.named_parameters() if parameter.requires_grad}
    got = {
        "model": {name: on_cpu(parameter) for name, parameter in names.items()},
        "optimizer": {n: {k: on_cpu(run.optimizer.state[p][k]) for k in kinds} for n, p in names.items()},
        "losses": run.losses,
        "rates": run.rates,
    }
    return Resumed(report, got, kept(folder))


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups of parameters, and an embedding that is frozen."""
    model.embed.requires_grad_(False)
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in free if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in free if p.ndim < 2], "weight_decay": 0.0, "lr": 0.02},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def deepspeed_groups(path: Path, folder: Path, device: Any) -> Resumed:
    return deepspeed(path, folder, device, groups=True)


def deepspeed_bf16(path: Path, folder: Path, device: Any) -> Resumed:
    return deepspeed(path, folder, device, half=True)


def distributed(path: Path, folder: Path, device: Any, *, ranks: int = 1) -> Resumed:
    seed(OTHER)
    model = unbuffered()
    run = placed(Run(model, adamw(model)), device)
    report = unmoor.restore(path, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler)
    assert report.extra["step"] == BEFORE
    run = run.train(AFTER) if ranks == 1 else on_two_ranks(run)
    return Resumed(report, end(run, rng=False), kept(folder))


def distributed_ranks(path: Path, folder: Path, device: Any) -> Resumed:
    return distributed(path, folder, device, ranks=2)


def titan(path: Path, folder: Path, device: Any, *, ranks: int = 1) -> Resumed:
    seed(OTHER)
    model = unbuffered().to(device)
    plain = [name for name, _ in model.named_parameters() if name.endswith("bias") or "norm" in name]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in plain], "weight_decay": 0.0},
        {"params": [p for n, p in model.named_parameters() if n not in plain], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    warm, last = 2, BEFORE + AFTER
    rule = lambda step: (step + 1) / warm if step < warm else (last - step) / (last - warm)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rule)
    report = unmoor.restore(path, model=model, optimizer=optimizer, scheduler=scheduler)
    run = Run(model, optimizer, scheduler, step=BEFORE)
    run = run.train(AFTER) if ranks == 1 else on_two_ranks(run)
    return Resumed(report, end(run, rng=False), kept(folder))


def titan_ranks(path: Path, folder: Path, device: Any) -> Resumed:
    return titan(path, folder, device, ranks=2)


def timm(path: Path, folder: Path, device: Any) -> Resumed:
    seed(OTHER)
    model, average = Net(0.0).to(device), Net(0.0).to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    scaler = torch.amp.GradScaler(torch.device(device).type)
    report = unmoor.restore(path, model=model, ema=average, optimizer=optimizer, scaler=scaler)
    run = Run(model, optimizer, step=BEFORE)
    for _ in range(AFTER):
        run.train(1, clip=1.0, scaler=scaler)
        for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            mean.lerp_(value, weight=1 - 0.9) if mean.is_floating_point() else mean.copy_(value)
    got = {**end(run, rng=False), "ema": on_cpu(dict(average.state_dict())), "scaler": scaler.state_dict()}
    return Resumed(report, got, kept(folder))


def diffusion(path: Path, folder: Path, device: Any) -> Resumed:
    seed(OTHER)
    model, average = Denoiser().to(device), Denoiser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    report = unmoor.restore(path, model=model, ema=average, optimizer=optimizer)
    last = BEFORE + AFTER
    for step in range(report.extra["step"] + 1, last + 1):
        seed(step)
        import numpy as np

        times = torch.from_numpy(np.random.choice(Noising.num_timesteps, size=(8,), p=np.full(10, 0.1)))
        optimizer.zero_grad()
        Noising().training_losses(model, pictures(step).to(device), times.to(device), {})["loss"].mean().backward()
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / (last + 4))
        optimizer.step()
        for mean, value in zip(average.parameters(), model.parameters(), strict=True):
            mean.detach().mul_(0.9).add_(value.detach(), alpha=1 - 0.9)
    got = {
        "model": on_cpu(dict(model.state_dict())),
        "ema": on_cpu(dict(average.named_parameters())),
        "optimizer": {n: on_cpu(dict(optimizer.state[p])) for n, p in model.named_parameters()},
        "rate": optimizer.param_groups[0]["lr"],
    }
    return Resumed(report, got, kept(folder))


FULL = ("model", "optimizer", "scheduler")

CASES = (
    Case("accelerate", "safetensors", "save_state", "accelerate", "state", accelerate, (*FULL, "custom", "rng")),
    Case("accelerate", "bin", "save_state, .bin", "accelerate", "state", accelerate, (*FULL, "custom", "rng")),
    Case("accelerate", "two_models", "2 models", "accelerate", "state", accelerate_two, (*FULL, "custom", "rng")),
    Case(
        "transformers", "safetensors", "checkpoint-N", "hf-trainer", "run/checkpoint-3", trainer_fused, (*FULL, "rng")
    ),
    Case("transformers", "bin", "version 4, .bin", "hf-trainer", "run/checkpoint-3", trainer, (*FULL, "rng")),
    Case("transformers", "tied", "tied weights", "hf-trainer", "run/checkpoint-3", trainer_tied, (*FULL, "rng")),
    Case("transformers", "sharded", "index, safetensors", "plain", "model", pretrained, ("model",)),
    Case("transformers", "bin_sharded", "index, .bin", "plain", "model", pretrained, ("model",)),
    Case("lightning", "fit", ".ckpt", "lightning", "step=3.ckpt", lightning, FULL),
    Case("lightning", "bf16", ".ckpt, bf16-mixed", "lightning", "step=3.ckpt", lightning_bf16, FULL),
    Case("lightning", "fp16", ".ckpt, 16-mixed", "lightning", "step=3.ckpt", lightning_fp16, (*FULL, "scaler")),
    Case("lightning", "manual", ".ckpt, 2 optimizers", "lightning", "step=6.ckpt", lightning_manual, FULL),
    Case("lightning", "fabric", "Fabric.save", "plain", "state.ckpt", lightning, FULL),
    *(
        Case("deepspeed", f"zero{stage}", f"ZeRO-{stage}, 2 ranks", "deepspeed", "saved", deepspeed, FULL)
        for stage in range(4)
    ),
    *(
        Case("deepspeed", f"zero{n}_bf16", f"ZeRO-{n}, bf16", "deepspeed", "saved", deepspeed_bf16, FULL)
        for n in range(1, 4)
    ),
    *(
        Case("deepspeed", f"zero{n}_groups", f"ZeRO-{n}, groups", "deepspeed", "saved", deepspeed_groups, FULL)
        for n in range(1, 4)
    ),
    Case("dcp", "alone", "1 process", "plain", "saved", distributed, FULL),
    Case("dcp", "ranks", "2 ranks, sharded", "plain", "saved", distributed_ranks, FULL),
    Case("torchtitan", "alone", "1 process", "torchtitan", "saved/step-3", titan, FULL),
    Case("torchtitan", "ranks", "2 ranks, sharded", "torchtitan", "saved/step-3", titan_ranks, FULL),
    Case("timm", "ema", "last.pth.tar", "timm", "run/last.pth.tar", timm, ("model", "optimizer", "ema", "scaler")),
    Case("diffusion", "triple", "model, opt, ema", "guided-diffusion", "run", diffusion, ("model", "optimizer", "ema")),
)
"""Every format that is resumed here, and what of the run its files hold."""
