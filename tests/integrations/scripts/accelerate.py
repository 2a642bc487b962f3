"""accelerate: a run killed within its second save goes on from the first, bit for bit; broken folders are never loaded.

python -m tests.integrations.scripts.accelerate OUT
"""

import os
import sys
from pathlib import Path
from typing import Any

import accelerate.checkpointing
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from tests.dialects.training import Net, Run, adamw, batch, halving, outcome, seed
from unmoor.errors import CorruptFile
from unmoor.integrations import sealing
from unmoor.integrations.accelerate import attach, latest

from .scenes import damage, dies_at_the_next, killed, refused, require, same, warned

STEPS, EVERY = 6, 2


def made(project: Path, number: int, *, automatic: bool = True) -> tuple[Accelerator, Run]:
    """A run that has taken no step, with an Accelerator that saves into its project's folder."""
    how = ProjectConfiguration(str(project), automatic_checkpoint_naming=automatic)
    accelerator = attach(Accelerator(cpu=True, project_config=how))
    seed(number)
    model = Net()
    optimizer = adamw(model)
    return accelerator, Run(*accelerator.prepare(model, optimizer, halving(optimizer)))


def train(accelerator: Accelerator, run: Run, begin: int = 0, *, dies: tuple[Any, str] | None = None) -> dict[str, Any]:
    """Train to the end, saving on the way, and give what it came to."""
    run.model.train()
    for step in range(begin, STEPS):
        loss = run.model(**batch(step))["loss"]
        accelerator.backward(loss)
        run.optimizer.step()
        run.scheduler.step()
        run.optimizer.zero_grad()
        if step % EVERY == EVERY - 1:
            if dies and step > EVERY:
                dies_at_the_next(*dies)
            accelerator.save_state()
    model, optimizer = accelerator.unwrap_model(run.model), run.optimizer.optimizer
    return outcome(model, optimizer, losses=[], rates=[], rng=True)


def main(out: Path) -> None:
    half, unsealed = out / "half", out / "unsealed"
    killed(lambda: train(*made(half, 1), dies=(accelerate.checkpointing.random, "getstate")))
    killed(lambda: train(*made(unsealed, 1), dies=(sealing, "_digest")))
    require(latest(out / "none") is None, "nothing there is a fresh start")
    whole = train(*made(out / "whole", 1))
    for project in (half, unsealed):
        folder = project / "checkpoints"
        require(sorted(os.listdir(folder)) == ["checkpoint_0", "checkpoint_1"], f"half is there: {os.listdir(folder)}")
        accelerator, run = made(project, 2)
        with warned("checkpoint_1"):
            accelerator.load_state()
        same(whole, train(accelerator, run, EVERY))
        require(latest(folder) == str(folder / "checkpoint_3"), f"saves go on behind it: {os.listdir(folder)}")

    folder = half / "checkpoints"
    damage(folder / "checkpoint_3" / "model.safetensors")  # which has no checksum of its own
    accelerator, run = made(half, 3)
    before = [value.clone() for value in run.model.state_dict().values()]
    with refused(CorruptFile, "model.safetensors"):
        accelerator.load_state(str(folder / "checkpoint_3"))
    same(before, list(run.model.state_dict().values()))
    with warned("checkpoint_3"):
        accelerator.load_state()
    same(whole, train(accelerator, run, 2 * EVERY))

    accelerator, run = made(out / "named", 1, automatic=False)
    named = str(out / "named" / "state")
    for _ in range(2):
        accelerator.save_state(named)
    require(sealing.is_sealed(named) and not sealing.broken(named), "a name of one's own is sealed, again too")
    accelerator.load_state(named)
    with refused(FileNotFoundError, "holds"):
        made(out / "empty", 1)[0].load_state()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
