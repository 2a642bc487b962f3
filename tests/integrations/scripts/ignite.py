"""Ignite: a run killed within its second save goes on from the first, bit for bit; broken files are passed over.

python -m tests.integrations.scripts.ignite OUT
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint

from tests.dialects.training import Run, outcome, start
from unmoor.errors import CorruptFile
from unmoor.integrations.ignite import UnmoorSaver, latest, load_objects

from .scenes import damage, dies_at_the_next, killed, refused, require, same, warned

STEPS, EVERY = 6, 2


def train(folder: Path, begin: Any = None, *, number: int = 1, kept: int = 1, dies: bool = False) -> dict[str, Any]:
    """Train to the end, from a checkpoint if one is named, and give what it came to."""
    run: Run = start(dropout=0.0, number=number)

    def step(engine: Engine, _: Any) -> float:
        if dies and engine.state.iteration == 2 * EVERY:
            dies_at_the_next(os, "fsync")
        run.step = engine.state.iteration - 1
        return run.train(1).losses[-1]

    trainer = Engine(step)
    parts = {"trainer": trainer, "model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler}
    handler = Checkpoint(parts, UnmoorSaver(folder), n_saved=kept)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=EVERY), handler)
    if begin:
        load_objects(parts, begin)
    trainer.run(torch.zeros(STEPS), max_epochs=1, epoch_length=STEPS)
    return outcome(run.model, run.optimizer, losses=run.losses[-EVERY:], rates=run.rates[-EVERY:], rng=False)


def main(out: Path) -> None:
    cut = out / "cut"
    killed(lambda: train(cut, dies=True))
    require([path.name for path in cut.glob("*.pt")] == ["checkpoint_2.pt"], f"the older one stays: {os.listdir(cut)}")
    require(latest(out / "none") is None, "nothing there is a fresh start")

    whole = train(out / "whole")
    require(os.listdir(out / "whole") == ["checkpoint_6.pt"], f"one is kept: {os.listdir(out / 'whole')}")
    same(whole, train(cut, latest(cut), number=2, kept=2))
    require(sorted(os.listdir(cut)) == [f"checkpoint_{n}.pt" for n in (2, 4, 6)], f"all is clean: {os.listdir(cut)}")
    plain = torch.load(cut / "checkpoint_4.pt", weights_only=True)
    require(list(plain) == ["trainer", "model", "optimizer", "scheduler"], "plain torch.load reads it")

    damage(cut / "checkpoint_6.pt")
    with refused(CorruptFile, "checkpoint_6.pt"):
        load_objects({}, cut / "checkpoint_6.pt")
    with warned("checkpoint_6.pt"):
        begin = latest(cut)
    same(whole, train(cut, begin, number=3))

    one = torch.nn.Linear(2, 2)
    handler = Checkpoint({"model": one}, UnmoorSaver(out / "one"), global_step_transform=lambda *_: 1)
    handler(Engine(lambda *_: None))
    other = torch.nn.Linear(2, 2)
    load_objects({"model": other}, out / "one" / "model_1.pt")
    same(dict(one.state_dict()), dict(other.state_dict()))
    UnmoorSaver(cut, save_on_rank=1)({"a": 1}, "elsewhere.pt")
    require(not (cut / "elsewhere.pt").exists(), "one rank writes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
