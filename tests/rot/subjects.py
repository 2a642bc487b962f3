"""Small checkpoints in every form, each with a way to restore it and what must come out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

import unmoor

WIDTH: Final = 3


def parts(seed: int = 0, width: int = WIDTH) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of two layers and its optimizer after a step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(width, 2), torch.nn.Linear(2, 1, bias=False))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def own(folder: Path) -> Path:
    """One file of unmoor.save."""
    model, optimizer = parts()
    unmoor.save(folder / "own.pt", model=model, optimizer=optimizer, step=3, rng=False)
    return folder / "own.pt"


def plain(folder: Path) -> Path:
    """One file of torch.save."""
    model, optimizer = parts()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, folder / "plain.pt")
    return folder / "plain.pt"


def legacy(folder: Path) -> Path:
    """A stream of before torch 1.6."""
    model, optimizer = parts()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    torch.save(tree, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    return folder / "legacy.pt"


def relocated(folder: Path) -> Path:
    """A file whose device tags `unmoor relocate` changed."""
    unmoor.relocate(own(folder), map_location={"cpu": "cuda:0"})
    unmoor.relocate(folder / "own.pt", map_location={"cuda:0": "cpu"})
    return folder / "own.pt"


def flat(folder: Path) -> Path:
    """A safetensors file of unmoor.save."""
    unmoor.save(folder / "flat.safetensors", model=parts()[0], rng=False)
    return folder / "flat.safetensors"


def theirs(folder: Path) -> Path:
    """A safetensors file of the format's own library."""
    save_file(parts()[0].state_dict(), folder / "theirs.safetensors")
    return folder / "theirs.safetensors"


def sharded(folder: Path) -> Path:
    """A folder as ranks save it."""
    unmoor.convert(own(folder), folder / "sharded")
    return folder / "sharded"


def bare(folder: Path) -> Path:
    """The same without what unmoor adds: a folder of torch.distributed.checkpoint."""
    unmoor.convert(own(folder), folder / "bare")
    (folder / "bare" / "unmoor-manifest.json").unlink()
    return folder / "bare"


@dataclass(frozen=True)
class Subject:
    """How a form is made, whether checksums cover all its data, whether it has an optimizer, how wide the model is."""

    make: Callable[[Path], Path]
    summed: bool
    optimizer: bool = True
    width: int = WIDTH


SUBJECTS: Final = {
    "unmoor.save": Subject(own, summed=True),
    "torch.save": Subject(plain, summed=True),
    "relocated": Subject(relocated, summed=True),
    "sharded": Subject(sharded, summed=True),
    "torch.distributed.checkpoint": Subject(bare, summed=False),
    "safetensors of unmoor.save": Subject(flat, summed=True, optimizer=False),
    "safetensors": Subject(theirs, summed=False, optimizer=False),
    "legacy": Subject(legacy, summed=False),
}


def files_of(path: Path) -> Iterator[Path]:
    """The files of a checkpoint."""
    yield from sorted(path.iterdir()) if path.is_dir() else [path]


def content(*trees: Any) -> tuple[Any, ...]:
    """Every value of some trees, tensors as their bytes: equal where nothing differs."""
    made: list[Any] = []
    for tree in trees:
        if isinstance(tree, torch.Tensor):
            flat = tree.detach().contiguous().reshape(-1)
            made.append((str(tree.dtype), tuple(tree.shape), flat.view(torch.uint8).numpy().tobytes()))
        elif isinstance(tree, dict):
            made += [(key, *content(value)) for key, value in tree.items()]
        elif isinstance(tree, list | tuple):
            made.append((type(tree).__name__, *content(*tree)))
        else:
            made.append(repr(tree))
    return tuple(made)


class Live:
    """Live objects that are blanked before every restore, so that what is in them afterwards came from the file."""

    def __init__(self, subject: Subject) -> None:
        self.model, self.optimizer = parts(5, subject.width)
        self.roles: dict[str, Any] = {"model": self.model}
        if subject.optimizer:
            self.roles["optimizer"] = self.optimizer

    def blank(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def restore(self, path: Path) -> tuple[Any, ...]:
        """What the live objects hold after a restore, with the extra values."""
        self.blank()
        report = unmoor.restore(path, **self.roles, rng=False)
        return content(*(live.state_dict() for live in self.roles.values()), dict(report.extra))


def copied(path: Path, folder: Path) -> Path:
    """A copy of a file or folder, to be damaged."""
    target = folder / path.name
    return Path(shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target))
