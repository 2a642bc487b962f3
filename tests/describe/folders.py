"""Small folders as accelerate, the HF Trainer, guided-diffusion and plain scripts lay them out, of one tiny run."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file

from tests.cases.files import tiny, train


class Run:
    """A tiny model after three steps, its average, its optimizer and its scheduler."""

    def __init__(self, seed: int = 0) -> None:
        self.model = tiny(seed)
        self.ema = tiny(seed + 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def trained(self) -> Run:
        train(self.model, self.optimizer, 3, scheduler=self.scheduler)
        return self

    @property
    def roles(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}


def streams() -> dict[str, Any]:
    """The streams of this process, under the keys of the HF Trainer."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}


def seeds(step: int = 3) -> dict[str, Any]:
    """The streams of this process, under the keys of accelerate."""
    own = streams()
    return {
        "step": step,
        "random_state": own["python"],
        "numpy_random_seed": own["numpy"],
        "torch_manual_seed": own["cpu"],
        "torch_cuda_manual_seed": [],
    }


def accelerate(folder: Path, run: Run, ranks: int = 1) -> None:
    save_file(run.model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(run.optimizer.state_dict(), folder / "optimizer.bin")
    torch.save(run.scheduler.state_dict(), folder / "scheduler.bin")
    torch.save({"words": 120}, folder / "custom_checkpoint_0.pkl")
    for rank in range(ranks):
        torch.rand(rank)
        torch.save(seeds(), folder / f"random_states_{rank}.pkl")


def hf_trainer(folder: Path, run: Run) -> None:
    shards(folder, run.model.state_dict())
    torch.save(run.optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(run.scheduler.state_dict(), folder / "scheduler.pt")
    torch.save(streams(), folder / "rng_state.pth")
    torch.save(argparse.Namespace(learning_rate=0.01), folder / "training_args.bin")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": [{"loss": 0.5}]}))
    (folder / "config.json").write_text("{}")


def shards(folder: Path, state: Mapping[str, torch.Tensor], stem: str = "model", number: int = 2) -> None:
    """A state dict in several files of safetensors and the index that names them."""
    names = sorted(state)
    files = [f"{stem}-{i + 1:05d}-of-{number:05d}.safetensors" for i in range(number)]
    for i, file in enumerate(files):
        save_file({name: state[name] for name in names[i::number]}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 104}, "weight_map": {n: files[i % number] for i, n in enumerate(names)}}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2))


def guided_diffusion(folder: Path, run: Run, steps: tuple[int, ...] = (0, 100)) -> None:
    for step in steps:
        torch.save(run.model.state_dict(), folder / f"model{step:06d}.pt")
        torch.save(run.ema.state_dict(), folder / f"ema_0.9999_{step:06d}.pt")
        torch.save(run.optimizer.state_dict(), folder / f"opt{step:06d}.pt")
    (folder / "progress.csv").write_text("loss,step\n")


def plain(folder: Path, run: Run) -> None:
    torch.save(run.model.state_dict(), folder / "net.pt")
    torch.save(run.ema.state_dict(), folder / "net_ema.pt")
    torch.save(run.optimizer.state_dict(), folder / "optim.pt")
    torch.save(run.scheduler.state_dict(), folder / "sched.pt")
    torch.save({"epoch": 3, "rng": streams()}, folder / "rest.pt")


FOLDERS: Final[dict[str, Callable[[Path, Run], None]]] = {
    "accelerate": accelerate,
    "hf-trainer": hf_trainer,
    "guided-diffusion": guided_diffusion,
    "plain": plain,
}
"""Dialect -> what writes such a folder."""


def written(dialect: str, folder: Path, run: Run | None = None) -> Path:
    """`folder`, made, with the files of one dialect in it."""
    folder.mkdir()
    FOLDERS[dialect](folder, run or Run().trained())
    return folder
