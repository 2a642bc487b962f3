"""A CHGNet training run as chgnet's own Trainer builds it, on one small crystal.

Run as a program it is the fresh process that resumes: `python chgnet_run.py FILE DEVICE STEPS OUT` restores FILE,
takes steps and writes where they led.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chgnet
import torch
from chgnet.graph import CrystalGraph
from chgnet.model import CHGNet
from chgnet.trainer import Trainer
from pymatgen.core import Lattice, Structure

import unmoor

PUBLISHED = os.path.join(os.path.dirname(chgnet.__file__), "pretrained/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar")

ROCK_SALT = Structure(Lattice.rhombohedral(5.64 / 2**0.5, 60), ["Na", "Cl"], [[0, 0, 0], [0.51, 0.5, 0.5]])
"""The primitive cell of rock salt, its chlorine moved off its place so that there are forces."""


@dataclass
class Run:
    """The live objects of one run, and the crystal that it trains on."""

    model: CHGNet
    optimizer: torch.optim.Adam
    scheduler: torch.optim.lr_scheduler.CosineAnnealingLR
    criterion: torch.nn.Module
    graph: CrystalGraph
    device: str

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> float:
        """One step on energy and forces, as in Trainer._train."""
        self.model.train()
        self.graph.atom_frac_coord.requires_grad = True
        targets = {
            "e": torch.tensor([-3.7], device=self.device),
            "f": [torch.tensor([[0.3, -0.1, 0.0], [-0.3, 0.1, 0.0]], device=self.device)],
        }
        loss = self.criterion(targets, self.model([self.graph.to(self.device)], task="ef"))["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def outcome(self, steps: int) -> dict[str, Any]:
        """Where so many steps lead: losses, and the states of all objects on the CPU."""
        losses = [self.step() for _ in range(steps)]
        states = {name: item.state_dict() for name, item in self.objects().items()}
        return {"losses": losses, "rng": torch.get_rng_state(), **on_cpu(states)}


def on_cpu(tree: Any) -> Any:
    """A tree of plain containers with its tensors copied to the CPU."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {key: on_cpu(item) for key, item in tree.items()}
    return type(tree)(map(on_cpu, tree)) if isinstance(tree, list | tuple) else tree


def build(device: str) -> Run:
    """A run with fresh weights on a device, with the arguments that the published file records."""
    tree: Any = unmoor.describe(PUBLISHED).tree
    torch.manual_seed(7)
    model = CHGNet(**tree["model"]["model_args"]).to(device)
    trainer = Trainer(model=model, **{**tree["trainer_args"], "targets": "ef", "use_device": device})
    graph = model.graph_converter(ROCK_SALT)
    return Run(model, trainer.optimizer, trainer.scheduler, trainer.criterion, graph, device)


def main(file: str, device: str, steps: str, out: str) -> None:
    torch.set_num_threads(1)
    if device.startswith("sim"):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests.accelerator import install

        install()
    run = build(device)
    unmoor.restore(file, **run.objects())
    torch.save(run.outcome(int(steps)), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
