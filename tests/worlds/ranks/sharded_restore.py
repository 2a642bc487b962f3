"""Restores files and folders into sharded runs, and holds them against the same runs filled by torch's own calls."""

from __future__ import annotations

import json
from typing import Any

from tests.worlds.ranks import main


def run(rank: int, world: int, folder: str, cases: str) -> Any:
    """`cases` are (layout, optimizer, path, path of the whole state) as JSON: what is not equal, "" where all is."""
    found = {}
    for layout, optimizer, path, whole in json.loads(cases):
        found[f"{layout}, {optimizer}, {path.rsplit('/', 1)[-1]}"] = _difference(layout, optimizer, path, whole)
    return found


def _difference(layout: str, optimizer: str, path: str, whole_path: str) -> str:
    """Every rank goes through all stages, whatever it finds: the others would wait for it."""
    import torch

    import unmoor
    from tests.worlds import sharded

    runs = []
    for seed in (5, 5):
        model = sharded.LAYOUTS[layout](sharded.Uneven(seed))
        runs.append((model, sharded.OPTIMIZERS[optimizer](model.parameters())))
    (ours, own), (theirs, other) = runs
    unmoor.restore(path, model=ours, optimizer=own, rng=False)
    sharded.fill(layout, theirs, other, torch.load(whole_path, weights_only=True))
    found = [_compared(runs, "as restored")]
    for number in (10, 11):
        for one in runs:
            sharded.step(*one, number)
    return "; ".join(filter(None, [*found, _compared(runs, "after two steps"), _again(path, runs)]))


def _again(path: str, runs: Any) -> str:
    """The same into a run that has state already: it is filled where it is."""
    import unmoor

    (ours, own), _ = runs
    if any(hasattr(param, "_is_flat_param") for param in own.state):
        return ""
    before = _identities(own)
    unmoor.restore(path, model=ours, optimizer=own, rng=False)
    return "" if before == _identities(own) else "state that was there was replaced"


def _identities(optimizer: Any) -> set[int]:
    return {id(value) for param, state in optimizer.state.items() if param.numel() for value in state.values()}


def _compared(runs: Any, when: str) -> str:
    import torch

    from tests.worlds import sharded

    (ours, own), (theirs, other) = runs
    for name, one in _tensors(ours, own, sharded).items():
        two = _tensors(theirs, other, sharded).get(name)
        if two is None or _form(one) != _form(two):
            return f"{when}: {name} is {_form(one)}, by torch {None if two is None else _form(two)}"
        if not torch.equal(_local(one), _local(two)):
            return f"{when}: {name} differs by {(_local(one) - _local(two)).abs().max():g}"
    return "" if _tensors(ours, own, sharded).keys() == _tensors(theirs, other, sharded).keys() else f"{when}: state"


def _tensors(model: Any, optimizer: Any, sharded: Any) -> dict[str, Any]:
    names = {id(param): name for name, param in sharded.named(model).items()}
    found = dict(sharded.named(model)) | dict(model.named_buffers())
    for param, state in optimizer.state.items():
        if _local(param).numel() or hasattr(param, "placements"):  # FSDP steps no window without elements
            found |= {f"{names[id(param)]}/{key}": value for key, value in state.items()}
    return found


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _form(tensor: Any) -> Any:
    placed = str(getattr(tensor, "placements", "plain"))
    return placed, tuple(tensor.shape), tuple(_local(tensor).shape), str(tensor.dtype), str(tensor.device)


if __name__ == "__main__":
    main(run)
