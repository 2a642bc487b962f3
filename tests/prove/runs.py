"""Small runs whose every part decides what a step does: leave one out, and the resumed run is another one.

Functions named `save_...` and `resume_...` are a user's own ways of saving, most of them with a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import unmoor

SAMPLES, BATCH = 48, 6


class Loss(nn.Module):
    """A loss that weighs by a running mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = (output - target).pow(2).mean()
        self.mean.mul_(0.9).add_(0.1 * loss.detach())
        return loss / self.mean.detach().clamp(min=1e-3)


class Meter:
    """Metrics of a plain class with a state."""

    def __init__(self) -> None:
        self.total, self.seen = 0.0, 0

    def update(self, loss: float) -> None:
        self.total, self.seen = self.total + loss, self.seen + 1

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.seen = state["total"], state["seen"]


def data() -> TensorDataset:
    inputs = torch.linspace(-1, 1, SAMPLES * 4).view(SAMPLES, 4)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def build(device: str | None = None) -> dict[str, Any]:
    """Every kind of state, and a step to which each of them matters."""
    seed_all(0)
    if str(device).startswith("sim"):
        from tests.accelerator import install

        install()
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    loss_of, meter = Loss().to(device), Meter()
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    noise = torch.Generator().manual_seed(7)
    shuffled = DataLoader(data(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(3))

    def train_step(batch: Any) -> torch.Tensor:
        inputs, targets = (part.to(device) for part in batch)
        jitter = torch.rand(1).item() + random.random() + float(np.random.rand())
        jitter += torch.rand(1, generator=noise).item() + 1e-3 * scaler.get_scale()
        optimizer.zero_grad()
        loss = loss_of(model(inputs + 0.01 * jitter), targets)
        (loss * scaler.get_scale()).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scaler.get_scale())
        optimizer.step()
        scaler._growth_tracker_value = None
        scheduler.step()
        ema.update_parameters(model)
        meter.update(float(loss.detach()))
        return loss

    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loss": loss_of,
        "metrics": meter,
        "ema": ema,
        "loader": unmoor.resumable(shuffled),
        "rng": {"noise": noise},
        "train_step": train_step,
    }


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def scaled() -> dict[str, Any]:
    """A run whose GradScaler grows: in float64 on the CPU, with the usual step written out."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "loss": nn.functional.mse_loss,
        "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH)),
    }


def plain() -> dict[str, Any]:
    """Model, optimizer and a loader that shuffles by its own generator and has no position."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    shuffled = DataLoader(data(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(3))
    return {"model": model, "optimizer": optimizer, "loss": nn.functional.mse_loss, "loader": shuffled}


def in_order() -> dict[str, Any]:
    """The same without a shuffle: an epoch that begins again gives the first batch again."""
    run = plain()
    return {**run, "loader": DataLoader(data(), batch_size=BATCH)}


def with_sampler_generator() -> dict[str, Any]:
    """The loader without a position whose generator is saved: enough where the cut is between two epochs."""
    run = plain()
    return {**run, "rng": {"sampler": run["loader"].generator}}


def counting() -> dict[str, Any]:
    """A step that warms up by a counter of its own, which no object holds."""
    run = {**plain(), "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH))}
    model, optimizer, count = run["model"], run["optimizer"], 0

    def train_step(batch: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1]) * min(1.0, count / 10)
        loss.backward()
        optimizer.step()
        return loss

    return {**run, "train_step": train_step}


def counting_saved() -> dict[str, Any]:
    """The same counter in a dict that is part of the run."""
    run = {**plain(), "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH))}
    model, optimizer, counts = run["model"], run["optimizer"], {"steps": 0}

    def train_step(batch: Any) -> torch.Tensor:
        counts["steps"] += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1]) * min(1.0, counts["steps"] / 10)
        loss.backward()
        optimizer.step()
        return loss

    return {**run, "counts": counts, "train_step": train_step}


def accumulating() -> dict[str, Any]:
    """Gradients of two batches for one step of the optimizer; the cut falls between them."""
    run = {**plain(), "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH))}
    model, optimizer, counts = run["model"], run["optimizer"], {"batches": 0}

    def train_step(batch: Any) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1]) / 2
        loss.backward()
        counts["batches"] += 1
        if counts["batches"] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return {**run, "counts": counts, "train_step": train_step}


def accumulating_saved() -> dict[str, Any]:
    run = accumulating()
    return {**run, "gradients": unmoor.gradients(run["model"])}


class Augmented(TensorDataset):
    """A dataset that adds noise from a generator of its own."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.noise = np.random.default_rng(5)

    def __getitem__(self, index: Any) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs + 0.1 * float(self.noise.random()), target


def augmented() -> dict[str, Any]:
    """A loader that is in order, over a dataset with random noise; nothing of it is saved."""
    run = plain()
    return {**run, "loader": DataLoader(Augmented(*data().tensors), batch_size=BATCH)}


def unseeded_data() -> dict[str, Any]:
    """A run that makes its data of random numbers and does not seed them."""
    inputs = torch.randn(SAMPLES, 4)
    made = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return {**plain(), "loader": unmoor.resumable(DataLoader(made, batch_size=BATCH))}


def restless() -> dict[str, Any]:
    """A run that does not repeat itself: it adds what the operating system gives."""
    run = {**plain(), "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH))}
    model, optimizer, source = run["model"], run["optimizer"], random.SystemRandom()
    steps = {"done": 0}

    def train_step(batch: Any) -> torch.Tensor:
        steps["done"] += 1
        optimizer.zero_grad()
        noise = 0.01 * source.random() if steps["done"] > 3 else 0.0
        loss = nn.functional.mse_loss(model(batch[0] + noise), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return {**run, "train_step": train_step}


def restless_late() -> dict[str, Any]:
    """Such a run that is quiet before the cut, so that only a further run can tell."""
    run = {**plain(), "loader": unmoor.resumable(DataLoader(data(), batch_size=BATCH))}
    model, optimizer, source, steps = run["model"], run["optimizer"], random.SystemRandom(), {"done": 0}

    def train_step(batch: Any) -> torch.Tensor:
        steps["done"] += 1
        optimizer.zero_grad()
        noise = 0.01 * source.random() if steps["done"] > 5 else 0.0
        loss = nn.functional.mse_loss(model(batch[0] + noise), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return {**run, "steps": steps, "train_step": train_step}


def many(device: str | None = None, wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> dict[str, Any]:
    """A run for any number of ranks: the global batch is the same."""
    from torch import distributed as dist

    torch.manual_seed(0)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sampler = DistributedSampler(data(), world, rank, seed=0)
    loader = unmoor.resumable(DataLoader(data(), batch_size=12 // world, sampler=sampler))
    return {"model": model, "optimizer": optimizer, "loss": nn.functional.mse_loss, "loader": loader}


def many_with_norms() -> dict[str, Any]:
    """Such a run with BatchNorm, whose statistics are those of each rank's own batch."""
    return many(wrap=lambda _: nn.parallel.DistributedDataParallel(net()) if _grouped() else net())


def _grouped() -> bool:
    return bool(torch.distributed.is_initialized())


def fails_in_step_three() -> dict[str, Any]:
    run, steps = plain(), []

    def train_step(batch: Any) -> torch.Tensor:
        steps.append(batch)
        return torch.tensor(1 / (3 - len(steps)))

    return {**run, "train_step": train_step}


def hangs() -> dict[str, Any]:
    def train_step(batch: Any) -> float:
        while True:
            pass

    return {**plain(), "train_step": train_step}


def dies() -> dict[str, Any]:
    """A build function that reads a command line, of which there is none, and ends its process."""
    import argparse
    import os

    argparse.ArgumentParser().parse_args()
    os._exit(9)


def nothing() -> dict[str, Any]:
    return {"optimizer": None}


def _tree(run: dict[str, Any]) -> dict[str, Any]:
    own = {
        role: run[role].state_dict()
        for role in ("model", "optimizer", "scheduler", "loss", "metrics", "ema")
        if role in run
    }
    streams = {
        "torch_rng": torch.get_rng_state(),
        "numpy_rng": np.random.get_state(),
        "python_rng": random.getstate(),
    }
    noise = {"noise": run["rng"]["noise"].get_state()} if "rng" in run else {}
    loader = {"loader": run["loader"].state_dict()} if hasattr(run["loader"], "state_dict") else {}
    return {**own, **streams, **noise, **loader, "progress": dict(run["progress"])}


def _fill(run: dict[str, Any], tree: dict[str, Any]) -> None:
    for role in ("model", "optimizer", "scheduler", "loss", "metrics", "ema", "loader"):
        if role in tree:
            run[role].load_state_dict(tree[role], **({"strict": False} if role == "model" else {}))
    if "noise" in tree:
        run["rng"]["noise"].set_state(tree["noise"])
    if "numpy_rng" in tree:
        np.random.set_state(tree["numpy_rng"])
    if "python_rng" in tree:
        random.setstate(tree["python_rng"])
    if "torch_rng" in tree:
        torch.set_rng_state(tree["torch_rng"])
    run["progress"].update(tree.get("progress", {}))


def save_all(path: str, run: dict[str, Any]) -> None:
    """A user's own way, with everything."""
    torch.save(_tree(run), path)


def resume_all(path: str, run: dict[str, Any]) -> None:
    _fill(run, torch.load(path, weights_only=False))


def _saves_without(*keys: str) -> Callable[[str, dict[str, Any]], None]:
    def save(path: str, run: dict[str, Any]) -> None:
        tree = _tree(run)
        for key in keys:
            role, _, name = key.partition(".")
            if name:
                tree[role] = {k: v for k, v in tree[role].items() if k != name}
            else:
                tree.pop(role, None)
        torch.save(tree, path)

    return save


save_model_alone = _saves_without(
    "optimizer", "scheduler", "loss", "metrics", "ema", "torch_rng", "numpy_rng", "python_rng", "noise", "loader"
)
save_without_buffer = _saves_without("model.1.running_mean")
save_without_torch = _saves_without("torch_rng")
save_without_numpy = _saves_without("numpy_rng")
save_without_python = _saves_without("python_rng")
save_without_noise = _saves_without("noise")
save_without_optimizer = _saves_without("optimizer")


def resume_with_live_lr(path: str, run: dict[str, Any]) -> None:
    """A resume that puts the learning rate of the command line back."""
    lr = run["optimizer"].param_groups[0]["lr"]
    resume_all(path, run)
    for group in run["optimizer"].param_groups:
        group["lr"] = lr


def resume_forgetting_optimizer(path: str, run: dict[str, Any]) -> None:
    """A resume that does not load what the checkpoint holds."""
    tree = torch.load(path, weights_only=False)
    del tree["optimizer"]
    _fill(run, tree)


def resume_in_eval(path: str, run: dict[str, Any]) -> None:
    """A resume that leaves the model in eval mode."""
    resume_all(path, run)
    run["model"].eval()


def resume_raising(path: str, run: dict[str, Any]) -> None:
    raise KeyError("epoch")


def save_changing(path: str, run: dict[str, Any]) -> None:
    """A save that draws a random number on its way."""
    save_all(path, run)
    torch.rand(1)


def drawing() -> dict[str, Any]:
    """A step without arguments that draws its own batches, two of them, from a loader with a position."""
    run = {**plain(), "loader": unmoor.resumable(plain()["loader"])}
    model, optimizer, loader, under_way = run["model"], run["optimizer"], run["loader"], []

    def batches() -> Any:
        while True:
            yield from loader

    def train_step() -> dict[str, torch.Tensor]:
        if not under_way:
            under_way.append(batches())
        optimizer.zero_grad()
        for _ in range(2):
            inputs, targets = next(under_way[0])
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    return {**run, "train_step": train_step}


def one_batch() -> dict[str, Any]:
    """A run over one batch, with the usual step and a schedule; the loss is the model's own."""

    class Own(nn.Linear):
        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (super().forward(inputs) - labels).pow(2).mean()}

    torch.manual_seed(0)
    model = Own(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = data()[:8]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batch = {"inputs": inputs, "labels": labels}
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batch": batch}


def two_loaders() -> dict[str, Any]:
    """Loaders for training and for validation by name."""
    run = plain()
    return {**run, "loader": {"train": unmoor.resumable(run["loader"]), "val": unmoor.resumable(run["loader"])}}


def untold_loaders() -> dict[str, Any]:
    """Two loaders, and nothing says which of them the steps take."""
    run = plain()
    return {**run, "loader": [unmoor.resumable(run["loader"]), unmoor.resumable(run["loader"])]}


def usual(kind: Any, scheduler: Any = None, **more: Any) -> dict[str, Any]:
    """A run with the usual step, over one batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    made = {"model": model, "optimizer": optimizer, "loss": nn.MSELoss(), "batch": data()[:8], **more}
    return {**made, "scheduler": scheduler(optimizer)} if scheduler else made


def closing() -> dict[str, Any]:
    """An optimizer that computes the loss itself."""
    return usual(torch.optim.LBFGS)


def on_plateau() -> dict[str, Any]:
    """A scheduler that follows the loss."""
    return usual(torch.optim.SGD, lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0))


class Unsized(IterableDataset[Any]):
    """A dataset that does not know how long it is."""

    def __iter__(self) -> Any:
        return iter(list(zip(*data().tensors, strict=True)))


def unsized() -> dict[str, Any]:
    """A loader without a length."""
    run = plain()
    return {**run, "loader": unmoor.resumable(DataLoader(Unsized(), batch_size=BATCH))}


def growing() -> dict[str, Any]:
    """A list and a dict that are empty when the run is built, and fill up; losses as numbers of numpy."""
    run, history, best = {**plain(), "loader": unmoor.resumable(plain()["loader"])}, [], {}
    model, optimizer = run["model"], run["optimizer"]

    def train_step(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1]) * (1 + len(history) / 100)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        best["loss"] = min(history)
        return np.float32(loss.item())

    return {**run, "history": history, "best": best, "train_step": train_step}


class TwoSteps(torch.optim.Optimizer):
    """As SAM: an optimizer that another one takes the steps for, whose state its own state dict leaves out."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> None:
        self.base.step()


def two_steps() -> dict[str, Any]:
    return usual(TwoSteps)


def two_steps_saved() -> dict[str, Any]:
    run = two_steps()
    return {**run, "optimizer": {"outer": run["optimizer"], "base": run["optimizer"].base}}


def forgotten(what: str) -> dict[str, Any]:
    """A run whose train_step has more with a state than the run tells."""
    run = {**plain(), "loader": unmoor.resumable(plain()["loader"])}
    model, optimizer, head = run["model"], run["optimizer"], nn.Linear(1, 1)
    second = torch.optim.Adam(head.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def train_step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        second.zero_grad()
        loss = nn.functional.mse_loss(head(model(batch[0])), batch[1])
        loss.backward()
        optimizer.step()
        second.step()
        schedule.step()
        return loss

    made: dict[str, Any] = {"head": head, "second": second, "schedule": schedule}
    return {**run, **{name: value for name, value in made.items() if name != what}, "train_step": train_step}


def forgotten_module() -> dict[str, Any]:
    return forgotten("head")


def forgotten_optimizer() -> dict[str, Any]:
    return forgotten("second")


def forgotten_scheduler() -> dict[str, Any]:
    return forgotten("schedule")


class Noisy(TensorDataset):
    """A dataset that adds noise from the stream of the process it is in."""

    def __getitem__(self, index: Any) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs + torch.rand(()), target


def noisy_workers() -> dict[str, Any]:
    """Noise of a dataset that is drawn in a worker."""
    loader = DataLoader(Noisy(*data().tensors), batch_size=BATCH, num_workers=1)
    return {**plain(), "loader": unmoor.resumable(loader)}


def batches() -> dict[str, Any]:
    """A plain list of batches for a loader."""
    return {**plain(), "loader": [data()[at : at + 8] for at in range(0, 24, 8)]}


def exits() -> dict[str, Any]:
    """A build function that parses a command line and does not like it."""
    raise SystemExit(3)


def exits_in_step() -> dict[str, Any]:
    def train_step(batch: Any) -> Any:
        raise SystemExit(4)

    return {**plain(), "train_step": train_step}


def strange_loss() -> dict[str, Any]:
    return {**plain(), "train_step": lambda batch: "low"}


def in_parallel(model: nn.Module) -> nn.Module:
    """A wrapper of the user's own."""
    made = nn.DataParallel(model)
    made.device_ids = []
    return made


def save_nothing(path: str, run: dict[str, Any]) -> None:
    """A way of saving that forgets to."""
