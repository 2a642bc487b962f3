"""Lightning: a fit killed within its second save goes on from the first, bit for bit; broken files are passed over.

python -m tests.integrations.scripts.lightning OUT lightning.pytorch|pytorch_lightning
"""

import importlib
import logging
import os
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.dialects.training import Net, adamw, batch, halving, outcome, seed
from unmoor.errors import CorruptFile, TrustError, UsageError
from unmoor.integrations.lightning import UnmoorCheckpointIO, latest

from .scenes import damage, dies_at_the_next, killed, refused, require, same, warned

FAMILY = sys.argv[2]
pl = importlib.import_module(FAMILY)
STEPS, EVERY = 6, 2


class Module(pl.LightningModule):
    """A classifier with a scheduler; what its hyperparameters hold goes into the checkpoint."""

    def __init__(self, option: Any = "plain") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net(dropout=0.0)
        self.losses: list[float] = []

    def training_step(self, *_: Any) -> torch.Tensor:
        loss = self.net(**batch(self.trainer.global_step))["loss"]  # Lightning begins a loader again from its start
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = adamw(self.net)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halving(optimizer), "interval": "step"}}


class SecondDies(UnmoorCheckpointIO):
    """The second save is killed when all bytes are written and none are on the disk."""

    saves = 0

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.saves += 1
        if self.saves == 2:
            dies_at_the_next(os, "fsync")
        super().save_checkpoint(*args, **kwargs)


def fit(folder: Path, plugin: Any, start: Any = None, *, option: Any = "plain", number: int = 1, **how: Any) -> Any:
    """Train to the end, from a checkpoint if one is named, and give what it came to."""
    seed(number)
    module = Module(option)
    name = f"{FAMILY}.callbacks"
    saving = importlib.import_module(name).ModelCheckpoint(str(folder), "{step}", save_top_k=2, monitor="step",
                                                           mode="max", every_n_train_steps=EVERY)  # fmt: skip
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=STEPS, callbacks=[saving], logger=False,
                         enable_progress_bar=False, enable_model_summary=False, plugins=[plugin])  # fmt: skip
    trainer.fit(module, DataLoader(torch.zeros(STEPS)), ckpt_path=start, **how)
    return outcome(module.net, module.optimizers().optimizer, losses=module.losses[-EVERY:], rates=[], rng=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt"))


def main(out: Path) -> None:
    cut = out / "cut"
    killed(lambda: fit(cut, SecondDies()))
    require(names(cut) == ["step=2.ckpt"], f"after the kill: {names(cut)}")
    require(latest(out / "none") is None, "nothing there is a fresh start")

    whole = fit(out / "whole", UnmoorCheckpointIO())
    same(whole, fit(cut, UnmoorCheckpointIO(), latest(cut), number=2))
    require(names(out / "whole") == ["step=4.ckpt", "step=6.ckpt"], f"two are kept: {names(out / 'whole')}")
    require(len(os.listdir(cut)) == len(names(cut)), f"what was killed is gone: {os.listdir(cut)}")
    plain = torch.load(cut / "step=4.ckpt", weights_only=True)
    require(plain["global_step"] == 4 and plain["hyper_parameters"] == {"option": "plain"}, "plain torch.load reads it")

    damage(cut / "step=6.ckpt")
    with refused(CorruptFile, "step=6.ckpt"):
        fit(cut, UnmoorCheckpointIO(), str(cut / "step=6.ckpt"))
    with warned("step=6.ckpt"):
        start = latest(cut)
    same(whole, fit(cut, UnmoorCheckpointIO(), start, number=3))

    with refused(UsageError, "option"):
        fit(out / "object", UnmoorCheckpointIO(), option=Fraction(1, 2))
    require(not names(out / "object"), "what is refused leaves nothing")
    theirs = importlib.import_module(f"{FAMILY}.plugins.io").TorchCheckpointIO()
    same(whole, fit(out / "theirs", theirs, option=Fraction(1, 2)))
    with refused(TrustError, "option"):
        fit(out / "other", UnmoorCheckpointIO(), str(out / "theirs" / "step=4.ckpt"))
    same(whole, fit(out / "other", UnmoorCheckpointIO(), str(out / "theirs" / "step=4.ckpt"), weights_only=False))
    with refused(FileNotFoundError, "gone.ckpt"):
        UnmoorCheckpointIO().load_checkpoint(out / "gone.ckpt")
    with refused(UsageError, "storage_options"):
        UnmoorCheckpointIO().save_checkpoint({}, out / "x.ckpt", {})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger(FAMILY).setLevel(logging.ERROR)
    main(Path(sys.argv[1]))
