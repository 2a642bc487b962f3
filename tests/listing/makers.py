"""Folders of several checkpoints as each program lays them out, of one tiny run: two whole ones, at steps 10 and 20."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp

import unmoor
from tests.cases.files import tiny, trained
from tests.describe.folders import Run, accelerate, guided_diffusion, hf_trainer
from tests.describe.zero_maker import Shape, ZeroMaker
from tests.docs.made import foreign

STEPS: Final = (10, 20)


def own(folder: Path, step: int = 20, number: int = 2, **more: Any) -> Path:
    """A checkpoint as unmoor.Run writes it."""
    model, optimizer = trained()
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:09d}.pt"
    run = {"version": 1, "step": step, "number": number, "metrics": {}, "finished": False, **more}
    unmoor.save(path, model=model, optimizer=optimizer, run=run)
    return path


def unmoor_run(folder: Path) -> None:
    for number, step in enumerate(STEPS, 1):
        own(folder, step, number, metrics={"val_loss": 1.0 / step})


def lightning(folder: Path) -> None:
    model, optimizer = trained()
    for epoch, step in enumerate(STEPS):
        torch.save(lightning_tree(model, optimizer, step, epoch), folder / f"epoch={epoch}-step={step}.ckpt")
    (folder / "last.ckpt").symlink_to(f"epoch=1-step={STEPS[-1]}.ckpt")


def lightning_tree(model: Any, optimizer: Any, step: int, epoch: int) -> dict[str, Any]:
    monitor = {"monitor": "val_loss", "current_score": torch.tensor(0.25), "best_model_score": torch.tensor(0.25)}
    return {
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"net.{name}": tensor for name, tensor in model.state_dict().items()},
        "loops": {},
        "callbacks": {"ModelCheckpoint{'monitor': 'val_loss'}": monitor},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
    }


def trainer(folder: Path) -> None:
    for step in STEPS:
        inner = folder / f"checkpoint-{step}"
        inner.mkdir()
        hf_trainer(inner, Run().trained())
        history = [{"loss": 0.9, "step": 5}, {"eval_loss": 1.0 / step, "eval_runtime": 3.0, "step": step}]
        best = {"best_metric": 1.0 / step, "best_model_checkpoint": f"out/checkpoint-{step}"}
        (inner / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history, **best}))


def accelerated(folder: Path) -> None:
    for step in STEPS:
        (folder / f"checkpoint_{step}").mkdir()
        accelerate(folder / f"checkpoint_{step}", Run().trained(), ranks=2)


def deepspeed(folder: Path) -> None:
    model, optimizer = trained()
    for step in STEPS:
        maker = ZeroMaker(model, optimizer, Shape(stage=2, world=2))
        maker.models[0] |= {"dp_world_size": 2, "global_steps": step}
        maker.write(folder, f"global_step{step}")


def torchtitan(folder: Path) -> None:
    _dcp(folder, "step-{}")


def plain_dcp(folder: Path) -> None:
    _dcp(folder, "ckpt_{}", step=True)


def _dcp(folder: Path, form: str, *, step: bool = False) -> None:
    for each in STEPS:
        state = {"model": tiny().state_dict(), **({"step": each} if step else {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            dcp.save(state, checkpoint_id=str(folder / form.format(each)), no_dist=True)


def diffusion(folder: Path) -> None:
    """The loop saves after its step and before it counts: Adam has done one more than the names say."""
    for step in STEPS:
        run = Run().trained()
        for state in run.optimizer.state.values():
            state["step"] = torch.tensor(float(step + 1))
        guided_diffusion(folder, run, steps=(step,))


def hippynn(folder: Path) -> None:
    model, optimizer = trained()
    torch.save({"training_modules": 1}, folder / "experiment_structure.pt")
    with foreign("hippynn.experiment.metric_tracker", "MetricTracker") as tracker:
        for step in STEPS:
            controller = {"optimizer": optimizer.state_dict(), "scheduler": [], "current_epoch": step}
            state = {"model": model.state_dict(), "controller": controller, "metric_tracker": tracker()}
            torch.save({**state, "torch_rng_state": torch.get_rng_state()}, folder / f"checkpoint_epoch_{step}.pt")
    torch.save(model.state_dict(), folder / "best_model.pt")


def megatron(folder: Path) -> None:
    model, optimizer = trained()
    for step in STEPS:
        inner = folder / f"iter_{step:07d}" / "mp_rank_00"
        inner.mkdir(parents=True)
        tree = {"iteration": step, "checkpoint_version": 3.0, "args": None, "model": model.state_dict()}
        torch.save({**tree, "optimizer": optimizer.state_dict()}, inner / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))


def plain(folder: Path) -> None:
    model, optimizer = trained()
    for step in STEPS:
        state = {"net": model.state_dict(), "optim": optimizer.state_dict(), "iter_num": step, "val_loss": 1 / step}
        torch.save(state, folder / ("newest.pt" if step == STEPS[-1] else "older.pth"))


FOLDERS: Final[dict[str, Callable[[Path], None]]] = {
    "unmoor": unmoor_run,
    "lightning": lightning,
    "hf-trainer": trainer,
    "accelerate": accelerated,
    "deepspeed": deepspeed,
    "torchtitan": torchtitan,
    "dcp": plain_dcp,
    "guided-diffusion": diffusion,
    "hippynn": hippynn,
    "megatron": megatron,
    "plain": plain,
}
"""Dialect -> what writes such a folder."""


@cache
def _template(dialect: str) -> Path:
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)
    FOLDERS[dialect](Path(scratch.name))
    return Path(scratch.name)


def made(dialect: str, folder: Path) -> Path:
    """`folder`, made, with the checkpoints of one program in it."""
    return Path(shutil.copytree(_template(dialect), folder, symlinks=True))
