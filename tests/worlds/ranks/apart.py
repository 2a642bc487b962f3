"""Two ranks with one model save together; what each has for itself is another on each."""

from __future__ import annotations

from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, path: str) -> Any:
    import torch

    import unmoor

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    torch.manual_seed(rank)
    unmoor.save(path, model=model, note=f"rank {rank}", same=[1, 2])
    return rank


if __name__ == "__main__":
    main(run)
