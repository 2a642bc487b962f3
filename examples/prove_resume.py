"""A small training run that proves that it can be resumed, and one that cannot because its sampler is forgotten.

    python examples/prove_resume.py                                    # both proofs
    unmoor prove examples/prove_resume.py:build                        # the same from a shell: equal
    unmoor prove examples/prove_resume.py:forgetful                    # differs: says what, why and what to do

A build function makes the objects of the run and tells how a step is taken. unmoor calls it in fresh processes: one
trains without a break, one stops and saves, one resumes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unmoor


def build(device: str | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    inputs = torch.randn(320, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    shuffled = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1))
    loader = unmoor.resumable(shuffled)

    def train_step(batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = (part.to(device) for part in batch)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loader": loader,
        "train_step": train_step,
    }


def forgetful(device: str | None = None) -> dict[str, Any]:
    """The same with a plain DataLoader: nothing saves where its sampler's generator is."""
    run = build(device)
    return {**run, "loader": run["loader"].loader}


if __name__ == "__main__":
    print(unmoor.prove(build, steps=20, cut=10), end="\n\n")
    print(unmoor.prove(forgetful, steps=20, cut=10))
