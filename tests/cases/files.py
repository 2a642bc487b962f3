"""Builders of the cases: tiny runs, files whose storages bear any device tag, and live objects held bit for bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, serialization
from torch.optim import Optimizer

SGD: dict[str, Any] = {"make": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}
"""What `trained` takes for an optimizer that keeps momentum."""

Tag = str | Callable[[tuple[Any, ...]], str | None]
"""One tag for every storage, or a function from the key path of a tensor to its tag (None: as it is)."""


def tiny(seed: int = 0, sizes: tuple[int, int, int] = (3, 4, 2), dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A model of four parameters: 0.weight, 0.bias, 2.weight, 2.bias."""
    inputs, hidden, outputs = sizes
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)).to(dtype)


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3, *, scheduler: Any = None, seed: int = 1) -> None:
    """Train on the same random batches in every call with the same seed, without touching global random numbers."""
    generator = torch.Generator().manual_seed(seed)
    first = next(model.parameters())
    for _ in range(steps):
        batch = torch.randn(8, first.shape[1], generator=generator).to(first.device, first.dtype)
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def trained(
    seed: int = 0, steps: int = 3, make: Callable[..., Optimizer] = torch.optim.Adam, **options: Any
) -> tuple[nn.Sequential, Optimizer]:
    """A tiny model and the optimizer that trained it."""
    model = tiny(seed)
    optimizer = make(model.parameters(), **options)
    train(model, optimizer, steps)
    return model, optimizer


def save_tagged(tree: Any, path: Path, tag: Tag, *, legacy: bool = False) -> Path:
    """What torch.save writes for `tree`, with the device tag of every storage as `tag` says."""
    tags: dict[int, str] = {}
    for keys, tensor in _tensors(tree, ()):
        chosen = tag(keys) if callable(tag) else tag
        if chosen is not None:
            tags[tensor.untyped_storage()._cdata] = chosen
    real = serialization.location_tag

    def chosen_tag(storage: Any) -> str:
        untyped = getattr(storage, "_untyped_storage", storage)
        return tags.get(untyped._cdata) or real(storage)

    serialization.location_tag = chosen_tag
    try:
        torch.save(tree, path, _use_new_zipfile_serialization=not legacy)
    finally:
        serialization.location_tag = real
    return path


def _tensors(tree: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield keys, tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _tensors(item, (*keys, key))
    elif isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from _tensors(item, (*keys, index))


def gpu(keys: tuple[Any, ...]) -> str | None:
    """The tags of a run on cuda:0: everything there but Adam's step."""
    return None if keys[-1] == "step" else "cuda:0"


def saved_run(path: Path, model: nn.Module, optimizer: Optimizer, tag: Tag = gpu, **extra: Any) -> Path:
    """The usual checkpoint of others: a dict of state dicts, as torch.save writes it."""
    return save_tagged({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **extra}, path, tag)


def saved_names(path: Path, model: nn.Module, rename: Callable[[str], str], **extra: Any) -> Path:
    """A model's state dict as others write it, each tensor under the name that `rename` gives it."""
    torch.save({"state_dict": {rename(name): tensor for name, tensor in model.state_dict().items()}, **extra}, path)
    return path


def bits(value: Any) -> Any:
    """A value such that == is equality bit for bit: tensors as their device, dtype, strides and bytes."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        data = flat.view(torch.uint8) if flat.dim() else flat.reshape(1).view(torch.uint8)
        return (str(value.device), value.dtype, tuple(value.shape), value.stride(), data.numpy().tobytes())
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return copy.deepcopy(value)


def snapshot(*live: Any) -> Any:
    """Everything that a restore may change: the state of the objects, their addresses, and every random stream."""
    states = [bits(item.state_dict() if hasattr(item, "state_dict") else item) for item in live]
    places = [[p.data_ptr() for p in item.parameters()] for item in live if isinstance(item, nn.Module)]
    groups = [[[id(p) for p in g["params"]] for g in o.param_groups] for o in live if isinstance(o, Optimizer)]
    devices = [torch.sim.get_rng_state_all()] if hasattr(torch, "sim") else []
    return states, places, groups, random.getstate(), bits([torch.get_rng_state(), np.random.get_state(), *devices])


@contextmanager
def nothing_changes(*live: Any) -> Iterator[None]:
    """Fail if anything of the live objects or of the random streams differs afterwards, by a single bit."""
    before = snapshot(*live)
    yield
    assert snapshot(*live) == before


@contextmanager
def refused(error: type[Exception], *live: Any) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect exactly this error, and that nothing of the live objects or of the random streams has changed."""
    with nothing_changes(*live), pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error


def same_bits(one: Any, other: Any) -> bool:
    """Whether two tensors or states agree in dtype, shape and every bit, wherever they are."""
    return bool(_moved(bits(one)) == _moved(bits(other)))


def _moved(value: Any) -> Any:
    """The bits without the device."""
    if isinstance(value, tuple) and len(value) == 5 and isinstance(value[1], torch.dtype):
        return (value[1], value[2], value[4])
    if isinstance(value, dict):
        return {key: _moved(item) for key, item in value.items()}
    return [_moved(item) for item in value] if isinstance(value, list) else value
