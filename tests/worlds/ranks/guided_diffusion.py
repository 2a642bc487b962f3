"""How the files of guided-diffusion are read by two ranks: with a loader that broadcasts, and through unmoor.

The first is the pattern of many training scripts: rank 0 reads, the others receive, and part of it is inside of
`if rank == 0`. Rank 1 then receives what rank 0 sent first, whatever it asked for.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worlds.ranks import main

FILES = Path(__file__).parents[1] / "files" / "guided_diffusion"
MODEL, OPTIMIZER, EMA = (str(FILES / name) for name in ("model000004.pt", "opt000004.pt", "ema_0.9_000004.pt"))


def run(rank: int, world: int, folder: str) -> Any:
    return {
        "broadcast": _broadcast(rank),
        "guarded": _guarded(rank),
        "guarded, given up": _given_up(rank),
        "folder": _whole(rank),
        "files": _one_by_one(rank),
        "wrong file": _attempt(lambda: _restore(MODEL, optimizer=_fresh(rank)[1])),
        "wrong file, with the model": _wrong_file(rank),
    }


def _fresh(rank: int) -> tuple[Any, Any, Any]:
    """A model, its optimizer and its average, different on every rank."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.bn, self.dec = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.dec(torch.relu(self.bn(self.enc(x))))

    torch.manual_seed(rank + 1)
    model = Net()
    model(torch.randn(4, 8))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), copy.deepcopy(model)


def _sent_by_rank_0(path: str) -> Any:
    """A loader that spares the disk: rank 0 reads the file and sends it to all."""
    import torch
    from torch import distributed as dist

    raw = bytearray(Path(path).read_bytes()) if dist.get_rank() == 0 else bytearray()
    length = torch.tensor(len(raw))
    dist.broadcast(length, 0)
    data = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)


def _broadcast(rank: int) -> str:
    """Rank 0 alone loads the model, then all ranks load the optimizer."""
    model, optimizer, _ = _fresh(rank)
    if rank == 0:
        model.load_state_dict(_sent_by_rank_0(MODEL))
    try:
        optimizer.load_state_dict(_sent_by_rank_0(OPTIMIZER))
    except KeyError as error:
        received = sorted(_sent_by_rank_0(OPTIMIZER))  # takes what rank 0 still sends, so that both go on
        return f"KeyError: {error}; the next call got {', '.join(received)}"
    return "loaded"


def _restore(path: str, **objects: Any) -> Any:
    import unmoor

    return unmoor.restore(path, timeout=30.0, **objects)


def _attempt(work: Callable[[], Any]) -> tuple[str, str]:
    import unmoor

    try:
        return "", str(work())
    except unmoor.UnmoorError as error:
        return type(error).__name__, str(error)


def _guarded(rank: int) -> tuple[str, str, bool]:
    """The same pattern through unmoor."""
    model, optimizer, _ = _fresh(rank)
    before = copy.deepcopy(model.state_dict())

    def load() -> None:
        if rank == 0:
            _restore(MODEL, model=model)
        _restore(OPTIMIZER, optimizer=optimizer)

    kind, text = _attempt(load)
    return kind, text, _equal(model.state_dict(), before) and not optimizer.state


def _given_up(rank: int) -> tuple[str, str]:
    """The same where rank 1 never comes to a call of its own."""
    from torch import distributed as dist

    import unmoor

    model, _, _ = _fresh(rank)
    found = _attempt(lambda: unmoor.restore(MODEL, model=model, timeout=1.0)) if rank == 0 else ("", "")
    dist.barrier()
    return found


def _whole(rank: int) -> dict[str, Any]:
    """The triple as one checkpoint, and two steps of training from it."""
    model, optimizer, ema = _fresh(rank)
    report = _restore(str(FILES), model=model, optimizer=optimizer, ema=ema)
    return {**_state(model, optimizer, ema), "step": report.extra["step"], "after": _trained(model, optimizer)}


def _one_by_one(rank: int) -> dict[str, Any]:
    """Each file by its own call, in place of the loads of the program."""
    model, optimizer, ema = _fresh(rank)
    _restore(MODEL, model=model)
    _restore(OPTIMIZER, optimizer=optimizer, order="live")
    _restore(EMA, ema=ema)
    return _state(model, optimizer, ema)


def _wrong_file(rank: int) -> tuple[str, str]:
    model, optimizer, _ = _fresh(rank)
    return _attempt(lambda: _restore(MODEL, model=model, optimizer=optimizer))


def _state(model: Any, optimizer: Any, ema: Any) -> dict[str, Any]:
    found = copy.deepcopy(optimizer.state_dict())
    parts = {name: dict(copy.deepcopy(part.state_dict())) for name, part in (("model", model), ("ema", ema))}
    return {**parts, "state": found["state"], "lr": found["param_groups"][0]["lr"]}


def _trained(model: Any, optimizer: Any) -> dict[str, Any]:
    """The model after two steps on the same data."""
    import torch

    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().sum().backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    import torch

    return all(torch.equal(value, other[name]) for name, value in one.items())


if __name__ == "__main__":
    main(run)
