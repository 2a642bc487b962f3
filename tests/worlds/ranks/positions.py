"""A part of an epoch in one world: restored from what another saved, gone on for some batches, saved again."""

from __future__ import annotations

from typing import Any

from tests.worlds.ranks import main

SIZE, EPOCH = 96, 5


def run(rank: int, world: int, folder: str, source: str, target: str, number: str) -> Any:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    import unmoor

    def sampler() -> Any:
        return DistributedSampler(range(SIZE), seed=2)

    def batches(loader: Any) -> list[list[int]]:
        given: list[list[int]] = []
        for batch in loader:
            given.append(batch.tolist())
            if len(given) == int(number):
                break
        return given

    torch.manual_seed(rank)
    stock = DataLoader(range(SIZE), batch_size=4, sampler=sampler(), num_workers=2 if world == 3 else 0)
    loader = {
        "stock": unmoor.resumable(stock),
        "torchdata": StatefulDataLoader(range(SIZE), batch_size=4, sampler=sampler()),
    }
    other = unmoor.resumable(DataLoader(range(SIZE), batch_size=2, sampler=sampler()))
    model = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    notes: dict[str, str] = {}
    if source:
        report = unmoor.restore(source, model=model, loader=loader, other=other)
        notes = dict(report.plan.notes)
    else:
        for each in (*loader.values(), other):
            each.sampler.set_epoch(EPOCH)
    given = {name: batches(each) for name, each in {**loader, "other": other}.items()}
    if target:
        unmoor.save(target, model=model, loader=loader, other=other)
    return {"given": given, "notes": notes, "epochs": [each.sampler.epoch for each in loader.values()]}


if __name__ == "__main__":
    main(run)
