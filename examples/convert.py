"""One file into a folder for many ranks, the folder into one file again, within a bound of memory.

    python examples/convert.py scratch

What each of the files it makes holds is restored and held against the run, bit for bit.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

import unmoor


def main(scratch: str) -> None:
    os.makedirs(scratch, exist_ok=True)
    source, folder, back, weights = (
        os.path.join(scratch, name) for name in ("run.pt", "run", "back.pt", "model.safetensors")
    )
    model = nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 300)).sum().backward()
    optimizer.step()
    unmoor.save(source, model=model, optimizer=optimizer, step=1)

    print(unmoor.convert(source, folder))  # torch.distributed.checkpoint, readable by any number of ranks
    print(unmoor.convert(folder, back))  # one file that torch.load opens
    print(unmoor.convert(folder, weights, only="model"))  # the weights alone

    live = nn.Linear(300, 200)
    fresh = torch.optim.AdamW(live.parameters())
    for path in (folder, back):
        report = unmoor.restore(path, model=live, optimizer=fresh)
        assert torch.equal(live.weight, model.weight)
        assert torch.equal(fresh.state[live.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
        print(f"{path}: step {report.extra['step']}, equal bit for bit")
    unmoor.restore(weights, model=live)
    assert torch.equal(live.weight, model.weight)
    print(f"{weights}: equal bit for bit")


if __name__ == "__main__":
    main(sys.argv[1])
