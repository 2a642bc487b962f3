"""timm: the files of `CheckpointSaver`, with the scaler, the averaged model and the arguments of its training script.

    python -m tests.dialects.writers.timm OUT VARIANT

timm saves no random streams, so the model has no dropout. Its script sets the learning rate anew from the number of
the step and saves no scheduler; here the rate stays.
"""

import argparse
import sys
from pathlib import Path

import torch

# timm imports torchvision, whose binary package is built for CUDA and then lacks its operators. None of them is used.
LACKING = torch.library.Library("torchvision", "DEF")
LACKING.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
LACKING.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import CheckpointSaver, ModelEmaV3, NativeScaler  # noqa: E402

from tests.dialects.training import AFTER, BEFORE, Net, batch, keep, on_cpu, outcome, seed  # noqa: E402


def main(folder: Path) -> None:
    seed(1)
    model = Net(dropout=0.0)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=0.01, weight_decay=0.1)
    scaler, ema = NativeScaler(device="cpu"), ModelEmaV3(model, decay=0.9)
    arguments = argparse.Namespace(model="words", opt="adamw", lr=0.01, weight_decay=0.1, model_ema=True)
    (folder / "run").mkdir()
    saver = CheckpointSaver(
        model, optimizer, arguments, ema, scaler, checkpoint_dir=str(folder / "run"), recovery_dir=str(folder / "run")
    )
    losses, rates = [], []
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            saver.save_checkpoint(epoch=0, metric=losses[-1])
        optimizer.zero_grad()
        loss = model(**batch(step))["loss"]
        rates.append(optimizer.param_groups[0]["lr"])
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model, step=step + 10)
        losses.append(loss.item())
    result = outcome(model, optimizer, losses=losses, rates=rates, rng=False)
    keep(folder, {**result, "ema": on_cpu(dict(ema.module.state_dict())), "scaler": scaler.state_dict()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
