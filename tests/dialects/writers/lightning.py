"""Lightning: checkpoints of Trainer and ModelCheckpoint, also in mixed precision and with two optimizers, and Fabric's.

    python -m tests.dialects.writers.lightning OUT VARIANT

Lightning saves no random streams, so the models here have no dropout.
"""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

from tests.dialects.training import AFTER, BEFORE, Net, adamw, batch, halving, keep, outcome, seed, start

CLIP = 1.0


class Automatic(LightningModule):
    """One model, one optimizer, one scheduler that steps with every batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net(dropout=0.0, width=width)
        self.losses: list[float] = []
        self.rates: list[float] = []

    def training_step(self, words: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        loss = self.net(**words)["loss"]
        self.losses.append(loss.item())
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = adamw(self.net)
        scheduler = {"scheduler": halving(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def outcome(self) -> dict[str, Any]:
        return outcome(self.net, self.optimizers().optimizer, losses=self.losses, rates=self.rates, rng=False)


class Manual(LightningModule):
    """Two models with an optimizer and a scheduler each, stepped by hand in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = Net(dropout=0.0), Net(dropout=0.0)
        self.losses: list[float] = []
        self.rates: list[float] = []

    def training_step(self, words: dict[str, torch.Tensor], _: int) -> None:
        for net, optimizer, scheduler in zip(
            (self.first, self.second), self.optimizers(), self.lr_schedulers(), strict=True
        ):
            optimizer.zero_grad()
            loss = net(**words)["loss"]
            self.manual_backward(loss)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
        self.losses.append(loss.item())
        self.rates.append(rate)

    def configure_optimizers(self) -> Any:
        optimizers = [adamw(self.first), torch.optim.SGD(self.second.parameters(), lr=0.1, momentum=0.9)]
        return optimizers, [halving(optimizer) for optimizer in optimizers]

    def outcome(self) -> dict[str, Any]:
        optimizers = [wrapped.optimizer for wrapped in self.optimizers()]
        return outcome([self.first, self.second], optimizers, losses=self.losses, rates=self.rates, rng=False)


def fit(folder: Path, variant: str) -> None:
    """Let the Trainer train to the end; it leaves a checkpoint on the way."""
    module = Manual() if variant == "manual" else Automatic()
    options: dict[str, Any] = {} if variant == "manual" else {"gradient_clip_val": CLIP}
    if variant == "bf16":
        options["precision"] = "bf16-mixed"
    if variant == "fp16":
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2)
        options["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
    per_step = 2 if variant == "manual" else 1  # Lightning counts the steps of all optimizers
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=(BEFORE + AFTER) * per_step,
        callbacks=[ModelCheckpoint(str(folder), "{step}", save_top_k=-1, every_n_train_steps=BEFORE * per_step)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    words = [batch(step) for step in range(BEFORE + AFTER)]
    trainer.fit(module, DataLoader(words, batch_size=None))
    keep(folder, module.outcome())


def fabric(folder: Path) -> None:
    """Fabric: the loop is the user's, the file is Fabric.save's."""
    fabric = Fabric(accelerator="cpu", devices=1)
    run = start(dropout=0.0)
    run.model, run.optimizer = fabric.setup(run.model, run.optimizer)
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            state = {"model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler, "step": run.step}
            fabric.save(str(folder / "state.ckpt"), state)
        loss = run.model(**batch(step))["loss"]
        run.optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(run.model, run.optimizer, max_norm=CLIP)
        run.rates.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.step()
        run.scheduler.step()
        run.step += 1
        run.losses.append(loss.item())
    keep(folder, outcome(run.model.module, run.optimizer.optimizer, losses=run.losses, rates=run.rates, rng=False))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed(1)
    out, asked = Path(sys.argv[1]), sys.argv[2]
    fabric(out) if asked == "fabric" else fit(out, asked)
