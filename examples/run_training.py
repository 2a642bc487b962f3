"""A training run that goes on where it was, however it ended: press Ctrl-C, kill it, pull the plug, start it again.

    python examples/run_training.py runs/exp1                          # starts; Ctrl-C saves, and exits with 75
    python examples/run_training.py runs/exp1                          # goes on; once finished it does nothing more
    unmoor runs runs/exp1                                              # what lies there

The last line is a digest of weights and optimizer state: it is the same however often the run was interrupted.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unmoor

STEPS = 2000


def main(folder: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    inputs = torch.randn(640, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    loader = unmoor.resumable(DataLoader(data, batch_size=32, shuffle=True))

    run = unmoor.Run(
        folder,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
        every=("500 steps", "15min"),
        keep_best=("loss", "min", 1),
    )
    start = run.resume(model_device="auto")
    print(run.events[-1].message, flush=True)

    batches = forever(loader)
    for step in run.steps(start, STEPS):
        x, y = unmoor.to_device(next(batches), like=model)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % 100 == 0:
            run.log(loss=loss)
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

    print(run)
    print(f"done: {digest(model, optimizer)}")


def forever(loader: Iterable[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = 0
    for param in model.parameters():
        for tensor in (param.detach(), optimizer.state[param]["exp_avg"]):
            found = zlib.crc32(tensor.cpu().numpy().tobytes(), found)
    return f"{found:08x}"


if __name__ == "__main__":
    main(sys.argv[1])
