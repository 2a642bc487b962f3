"""The Trainer: a run killed within its second save goes on from the first, bit for bit; broken folders are never taken.

python -m tests.integrations.scripts.transformers OUT
"""

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401 - the Trainer imports it: once, before the processes that are killed fork
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.dialects.training import SIZE, Net, batch, outcome, seed
from unmoor.integrations import sealing
from unmoor.integrations.transformers import UnmoorCallback, latest

from .scenes import damage, dies_at_the_next, killed, require, same, warned

STEPS, EVERY = 6, 2


class Dies(TrainerCallback):
    """Kills the process within the save of the fourth step: in the Trainer's own part of it, or before the seal."""

    def __init__(self, module: Any, name: str) -> None:
        self.where = module, name

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2 * EVERY:
            dies_at_the_next(*self.where)


def train(out: Path, start: str | None = None, *others: TrainerCallback, limit: int | None = None) -> dict[str, Any]:
    """Train to the end, from a checkpoint if one is named, and give what it came to."""
    seed(1 if start is None else 2)
    model = Net()
    words = [batch(step) for step in range(STEPS)]
    items = [{"input_ids": w["input_ids"][i], "labels": w["labels"][i]} for w in words for i in range(SIZE)]
    arguments = TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=SIZE, max_steps=STEPS, save_steps=EVERY, save_strategy="steps",
        learning_rate=0.01, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", seed=7,
        save_total_limit=limit,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=items, callbacks=[UnmoorCallback(), *others])
    trainer.train(resume_from_checkpoint=start)
    require(arguments.save_total_limit == limit, "the limit is given back")
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return outcome(model, optimizer, losses=[], rates=[], rng=True)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def main(out: Path) -> None:
    half, unsealed, cut = out / "half", out / "unsealed", out / "cut"
    killed(lambda: train(half, None, Dies(Trainer, "_save_rng_state")))
    killed(lambda: train(unsealed, None, Dies(sealing, "_digest")))
    for folder in (half, unsealed):
        require(str(get_last_checkpoint(folder)).endswith("checkpoint-4"), "the Trainer takes what was never finished")
    require(latest(out / "none") is None, "nothing there is a fresh start")

    whole = train(out / "whole", limit=2)
    require(names(out / "whole") == ["checkpoint-4", "checkpoint-6"], f"two are kept: {names(out / 'whole')}")
    for folder in (half, unsealed):
        with warned("checkpoint-4"):
            start = latest(folder)
        require(start == str(folder / "checkpoint-2"), f"{start} is taken")
        same(whole, train(folder, start))
        require(latest(folder) == str(folder / "checkpoint-6"), "what was killed is written over, and sealed")

    shutil.copytree(half, cut)
    damage(cut / "checkpoint-6" / "model.safetensors")  # which has no checksum of its own
    (cut / "checkpoint-4" / "scheduler.pt").unlink()
    with warned("model.safetensors", "scheduler.pt"):
        start = latest(cut)
    require(start == str(cut / "checkpoint-2"), f"{start} is taken")
    damage(cut / "checkpoint-2" / "model.safetensors")
    with warned("fresh start"):
        require(latest(cut) is None, "nothing holds")

    for path in half.glob("*/unmoor.sha256"):
        path.unlink()
    damage(half / "checkpoint-6" / "optimizer.pt")
    with warned("checkpoint-6"):
        require(latest(half) == str(half / "checkpoint-4"), "checkpoints of before the callback are taken if they hold")

    whole_again, callback = out / "whole", UnmoorCallback()
    train(whole_again)
    callback.on_train_begin(TrainingArguments(output_dir=str(whole_again), save_total_limit=1))
    os.chdir(out)
    callback._delete(str(whole_again), TrainerState(global_step=6, best_model_checkpoint="whole/checkpoint-2"))
    require(names(whole_again) == ["checkpoint-2", "checkpoint-6"], f"the best stays: {names(whole_again)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
