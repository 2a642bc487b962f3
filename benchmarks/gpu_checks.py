"""What must be right on a device before it is measured; the first thing that is not ends the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import unmoor
from benchmarks import gpu_ways
from unmoor.live.pinned import has_streams, pinned
from unmoor.values.dtypes import DTYPES

__all__ = ["Wrong", "checks"]

MIB = 1 << 20


class Wrong(SystemExit):
    """A value is not what it must be."""


def checks(device: torch.device, folder: str) -> Iterator[str]:
    """One line for each thing that was checked."""
    place = Path(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield _copies(device)
        yield _dtypes(device, place / "dtypes.pt")
        yield _next_steps(device, place / "run.pt")
        yield _no_second_state(device, place / "run.pt")
        yield _order(device, place / "order.pt")


def _copies(device: torch.device) -> str:
    if not has_streams(device):
        return f"{device} has no streams of its own: copies are done one by one"
    kind = "pinned" if pinned(MIB, device).is_pinned() else "plain, since none can be pinned"
    return f"buffers are {kind}, copies of {device} run on streams of their own"


def _dtypes(device: torch.device, path: Path) -> str:
    """Every dtype that the device can hold, an odd number of elements, views among them; out and back, bit by bit."""
    tree: dict[str, torch.Tensor] = {}
    lacking = []
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is None or name.startswith("q") or DTYPES[name].packing > 1:
            continue
        data = torch.randint(0, 2 if name == "bool" else 60, (123_457 * dtype.itemsize,)).to(torch.uint8).view(dtype)
        try:
            tree[name] = data.to(device)
        except (RuntimeError, TypeError):
            lacking.append(name)
    tree["turned"] = torch.rand(301, 203).to(device).t()
    tree["gaps"] = tree["turned"][3::7, 5:90:2]
    right = {name: _bits(tensor) for name, tensor in tree.items()}
    for buffer in (100_000, 32 * MIB):
        unmoor.save(path, tree, buffer_bytes=buffer)
        by_torch = torch.load(path, map_location="cpu")
        by_unmoor = unmoor.load(path, map_location=device, buffer_bytes=buffer)
        for name, bits in right.items():
            if _bits(by_torch[name]) != bits or _bits(by_unmoor[name]) != bits:
                raise Wrong(f"{name}: other bytes came back than were saved")
    missing = f"; it cannot hold {', '.join(lacking)}" if lacking else ""
    return f"{len(tree)} dtypes and views out and back, bit by bit{missing}"


def _next_steps(device: torch.device, path: Path) -> str:
    """Three steps after a restore are those of the run that went on, dropout and all, and take the same numbers."""
    torch.manual_seed(0)
    run = _run(device, seed=0)
    for _ in range(3):
        _train(run, device)
    unmoor.save(path, model=run[0], optimizer=run[1])
    right = [_train(run, device) for _ in range(3)]
    other = _run(device, seed=1)
    unmoor.restore(path, model=other[0], optimizer=other[1])
    losses = [_train(other, device) for _ in range(3)]
    _equal(run, other)
    if losses != right:
        raise Wrong(f"losses after the restore were {losses}, those of the run that went on {right}")
    return "three steps after a restore are bit-equal to those of the run that went on, dropout and all"


def _no_second_state(device: torch.device, path: Path) -> str:
    """A restore makes the optimizer's state and no more; a save makes nothing."""
    module = getattr(torch, device.type)
    if not hasattr(module, "max_memory_allocated"):
        return f"memory of {device} is not counted"
    run = _run(device, seed=1)
    peaks = []
    for call in (
        lambda: unmoor.restore(path, model=run[0], optimizer=run[1], rng=False),
        lambda: unmoor.save(path, model=run[0], optimizer=run[1], rng=False),
    ):
        gpu_ways.wait(device)
        module.reset_peak_memory_stats(device)
        call()
        gpu_ways.wait(device)
        peaks.append(module.max_memory_allocated(device) - module.memory_allocated(device))
    if any(peak > MIB for peak in peaks):
        raise Wrong(f"a restore took {peaks[0]} bytes of the device beyond the state, a save {peaks[1]}")
    return f"a restore took {peaks[0]} bytes of the device beyond the state, a save {peaks[1]}"


def _order(device: torch.device, path: Path) -> str:
    """Kernels that are queued on the caller's stream before a restore read the old values; a save has the new ones."""
    if not has_streams(device):
        return "no streams, so no order to keep"
    module = getattr(torch, device.type)
    value = torch.rand(2_000_001, device=device)
    unmoor.save(path, {"value": value})
    holder = nn.Module()
    holder.register_buffer("value", torch.full_like(value, -1))
    kept = torch.zeros(value.shape, pin_memory=True)
    newer = torch.rand(value.shape).pin_memory()
    stream = module.Stream(device=device)
    gpu_ways.wait(device)
    with module.stream(stream):
        if hasattr(module, "_sleep"):
            module._sleep(200_000_000)  # about a tenth of a second
        kept.copy_(holder.value, non_blocking=True)
        unmoor.restore(path, model=holder, rng=False)
        stream.synchronize()
        if not kept.eq(-1).all() or not holder.value.equal(value):
            raise Wrong("a restore did not wait for what was queued before it")
        if hasattr(module, "_sleep"):
            module._sleep(200_000_000)
        holder.value.copy_(newer, non_blocking=True)
        unmoor.save(path, model=holder, rng=False)
    if not torch.load(path, map_location="cpu")["model"]["value"].equal(newer):
        raise Wrong("a save did not wait for what was queued before it")
    return "work that is queued before a restore reads the old values; what is queued before a save is in the file"


def _run(device: torch.device, seed: int) -> gpu_ways.Run:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(515, 1031), nn.LayerNorm(1031), nn.GELU(), nn.Dropout(0.3), nn.Linear(1031, 517))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def _train(run: gpu_ways.Run, device: torch.device) -> float:
    loss = run[0](torch.linspace(-1, 1, 515, device=device).expand(64, 515)).square().mean()
    loss.backward()
    run[1].step()
    run[1].zero_grad()
    return loss.item()


def _equal(one: gpu_ways.Run, other: gpu_ways.Run) -> None:
    for (name, a), b in zip(one[0].named_parameters(), other[0].parameters(), strict=True):
        pairs = {name: (a, b)} | {f"{key} of {name}": (v, other[1].state[b][key]) for key, v in one[1].state[a].items()}
        for what, (left, right) in pairs.items():
            if _bits(left) != _bits(right):
                raise Wrong(f"{what} differs between the run that went on and the one that was restored")


def _bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy())
