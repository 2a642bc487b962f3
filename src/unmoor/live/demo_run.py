"""The run of the demo: CHGNet as its own Trainer builds it, trained on one small crystal.

Needs torch, chgnet and pymatgen; knows nothing of files but how to hand an outcome from one process to another.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch

__all__ = ["Run", "build", "differences", "quiet", "read_outcome", "refusal", "write_outcome"]

_EDGE: Final = 5.64 / 2**0.5
"""Edge of the primitive cell of rock salt, in angstrom."""


@dataclass(frozen=True, slots=True)
class Run:
    """The live objects of a training run, and the crystal that it trains on."""

    model: Any
    optimizer: Any
    scheduler: Any
    criterion: Any
    crystal: Any

    def objects(self) -> dict[str, Any]:
        """What is saved and restored, by role."""
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def device(self) -> torch.device:
        """Where the model is now."""
        found: torch.device = next(self.model.parameters()).device
        return found

    def train(self, steps: int) -> list[float]:
        """Take steps on energy and forces, as chgnet's Trainer does; the loss of each."""
        return [self._step() for _ in range(steps)]

    def _step(self) -> float:
        device = self.device()
        self.model.train()
        self.crystal.atom_frac_coord.requires_grad = True
        forces = torch.tensor([[0.3, -0.1, 0.0], [-0.3, 0.1, 0.0]], device=device)
        targets = {"e": torch.tensor([-3.7], device=device), "f": [forces]}
        loss = self.criterion(targets, self.model([self.crystal.to(str(device))], task="ef"))["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss)

    def outcome(self, steps: int) -> dict[str, Any]:
        """Where so many further steps lead: their losses, and the state of every object on the CPU."""
        losses = self.train(steps)
        return {"loss": losses, **{name: _on_cpu(item.state_dict()) for name, item in self.objects().items()}}


def build(model_args: Mapping[str, Any], trainer_args: Mapping[str, Any]) -> Run:
    """A run with fresh weights on the CPU. The arguments are those that a checkpoint of chgnet records."""
    pymatgen, chgnet = import_module("pymatgen.core"), import_module("chgnet.model")
    model = chgnet.CHGNet(**model_args)
    settings = {**trainer_args, "targets": "ef", "use_device": "cpu"}
    trainer = import_module("chgnet.trainer").Trainer(model=model, **settings)
    lattice = pymatgen.Lattice.rhombohedral(_EDGE, 60)
    # The chlorine stands off its place: in the perfect crystal all forces are zero.
    salt = pymatgen.Structure(lattice, ["Na", "Cl"], [[0, 0, 0], [0.51, 0.5, 0.5]])
    return Run(model, trainer.optimizer, trainer.scheduler, trainer.criterion, model.graph_converter(salt))


def refusal(path: str) -> str:
    """What plain torch.load says where it refuses the file on this machine; "" where it loads it."""
    try:
        torch.load(path, weights_only=True)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition('. ')[0]}."
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, deterministic kernels, and no words from other libraries, while the block lasts."""
    threads, exact = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(exact)


def write_outcome(outcome: Mapping[str, Any], path: str) -> None:
    """Hand an outcome to another process."""
    torch.save(dict(outcome), path)


def read_outcome(path: str) -> dict[str, Any]:
    """The outcome that another process handed over."""
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Every place where two outcomes differ in a bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(_bits(one), _bits(other)):
            yield place
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{place}.{key}" if place else str(key))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}.{index}")
    elif one != other:
        yield place


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _on_cpu(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: _on_cpu(item) for key, item in tree.items()}
    return type(tree)(map(_on_cpu, tree)) if isinstance(tree, list | tuple) else tree
