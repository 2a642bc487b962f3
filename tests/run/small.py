"""A small training with every kind of state, whose steps can be told apart to the bit, and the Run around it."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unmoor

__all__ = ["Training", "damage", "kinds", "names", "the_run", "trained"]


class Training:
    """A model with dropout, an optimizer, a schedule and a shuffled loader of six batches an epoch."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.7)
        data = TensorDataset(torch.linspace(-1, 1, 24 * 4).view(24, 4))
        self.loader = unmoor.resumable(DataLoader(data, batch_size=4, shuffle=True))
        self.taken: list[int] = []
        self._batches = self._forever()

    @property
    def roles(self) -> dict[str, Any]:
        """What Run takes."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
        }

    def step(self, number: int) -> float:
        """One step of training."""
        (batch,) = next(self._batches)
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch.sum(1, keepdim=True) * random.random() * np.random.rand()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.taken.append(number)
        return loss.item()

    def digest(self) -> str:
        """All of the state, and the next random numbers."""
        tensors = [*self.model.state_dict().values()]
        tensors += [entry[key] for entry in self.optimizer.state.values() for key in sorted(entry)]
        found = hashlib.sha256()
        for tensor in tensors:
            found.update(tensor.detach().numpy().tobytes())
        found.update(pickle.dumps([self.scheduler.last_epoch, [g["lr"] for g in self.optimizer.param_groups]]))
        found.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
        found.update(repr(np.random.get_state()).encode())
        return found.hexdigest()[:12]

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader


def the_run(folder: Path | str, training: Training, **policy: Any) -> unmoor.Run:
    """A run that writes while it waits and saves every two steps, unless told otherwise."""
    return unmoor.Run(folder, **training.roles, **{"background": False, "every": 2, **policy})


def trained(
    folder: Path | str, total: int, body: Callable[[unmoor.Run, Training, int], None] | None = None, **policy: Any
) -> tuple[Training, unmoor.Run]:
    """A whole run of a process: it resumes and takes its steps; `body` is called at the end of each."""
    training = Training()
    with the_run(folder, training, **policy) as run:
        start = run.resume()
        for step in run.steps(start, total):
            training.step(step)
            if body is not None:
                body(run, training, step)
    return training, run


def names(folder: Path | str) -> list[str]:
    """The names in a folder that a user sees, without the notes."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".") and name != "run.json")


def kinds(run: unmoor.Run) -> list[str]:
    """What happened, in one word each."""
    return [event.kind for event in run.events]


def damage(path: Path | str, nbytes: int = 128) -> None:
    """Flip one bit of a tensor's data: in the last record of so many bytes, which is an optimizer's or a weight's."""
    with zipfile.ZipFile(path) as archive:
        row = [info for info in archive.infolist() if "/data/" in info.filename and info.file_size == nbytes][-1]
    with open(path, "r+b") as file:
        file.seek(row.header_offset + 26)
        head = file.read(4)
        lengths = int.from_bytes(head[:2], "little") + int.from_bytes(head[2:], "little")
        place = row.header_offset + 30 + lengths + nbytes // 2
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
