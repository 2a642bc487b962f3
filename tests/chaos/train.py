"""A plain training script around `unmoor.Run`, which the referee kills and starts again with the same command.

    python tests/chaos/train.py --out FOLDER [--behind]

Dropout, a schedule and noise make the result depend on every random number and every counter. Checkpoints are at steps
4, 8 and 12; all are kept, so that the referee can tell if the newest was taken.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn

import unmoor

STEPS = 12
EVERY = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--behind", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with unmoor.Run(
        os.path.join(chosen.out, "run"),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        every=EVERY,
        keep_last=None,
        background=chosen.behind,
    ) as run:
        start = run.resume()
        print(f"resumed from step {start}", flush=True)
        for _ in run.steps(start, STEPS):
            batch = torch.randn(32, 8)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
    final = os.path.join(chosen.out, "final.pt")
    torch.save(model.state_dict(), f"{final}.tmp")
    os.replace(f"{final}.tmp", final)


if __name__ == "__main__":
    main()
