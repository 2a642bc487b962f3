"""What pages need and no reader wants to see: tags of devices that are not here, files of other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.cases.files import save_tagged

__all__ = ["child", "foreign", "hippynn_pair", "lightning_file", "tag", "tag_parts"]


def tag(path: str, device: str) -> None:
    """Rewrite a torch file as if all of its tensors but Adam's step had been saved on `device`."""
    tag_parts(path, device, lambda keys: keys[-1] != "step" and "rng" not in keys)


def tag_parts(path: str, device: str, where: Any) -> None:
    """Rewrite a torch file as if what `where` chooses by its key path had been saved on `device`."""
    tree = torch.load(path, map_location="cpu", weights_only=False)
    save_tagged(tree, Path(path), lambda keys: device if where(keys) else None)


def child(code: str) -> int:
    """The exit code of a Python process that runs `code`; a negative one is the number of a signal."""
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=False).returncode


@contextmanager
def foreign(module: str, name: str) -> Iterator[type]:
    """A class that pickles under the name of one that this process does not have."""
    parts = module.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    before = {part: sys.modules.get(part) for part in names}
    sys.modules.update({part: ModuleType(part) for part in names})
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    try:
        yield made
    finally:
        for part, old in before.items():
            if old is None:
                del sys.modules[part]
            else:
                sys.modules[part] = old


def hippynn_pair(run: Any) -> None:
    """The file of hippynn that holds a run's state, as its create_state lays it out."""
    with foreign("hippynn.experiment.metric_tracker", "MetricTracker") as tracker:
        metrics = tracker()
        metrics.__dict__["stopping_key"] = "Loss"
        controller = {"optimizer": run.optimizer.state_dict(), "scheduler": [run.scheduler.state_dict()]}
        state = {"model": run.model.state_dict(), "controller": {**controller, "current_epoch": 3}}
        torch.save({**state, "metric_tracker": metrics, "torch_rng_state": torch.get_rng_state()}, "best_checkpoint.pt")


def lightning_file(run: Any) -> None:
    """A checkpoint as Lightning's Trainer writes it: the module of the user is the attribute `net`."""
    torch.save(
        {
            "epoch": 3,
            "global_step": 300,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {f"net.{name}": tensor for name, tensor in run.model.state_dict().items()},
            "loops": {},
            "callbacks": {},
            "optimizer_states": [run.optimizer.state_dict()],
            "lr_schedulers": [run.scheduler.state_dict()],
            "hyper_parameters": {"width": 4},
        },
        "last.ckpt",
    )
