"""What a loader, its samplers and its dataset hold, by place: generators, and samplers that are told their epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch.utils.data import DataLoader

from . import rng

__all__ = ["counts_epochs", "held"]

_ROOTS: Final = ("generator", "batch_sampler", "sampler")
_DATA: Final = frozenset({"data_source", "dataset"})
_DEPTH: Final = 4
_MEMBERS: Final = 64
_PLAIN: Final = (int, str, float, bool, type(None))


def counts_epochs(value: Any) -> bool:
    """Whether a sampler is told its epoch, as DistributedSampler is."""
    return callable(getattr(value, "set_epoch", None)) and type(getattr(value, "epoch", None)) is int


def held(loader: DataLoader[Any], wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """What is wanted among what a loader and its samplers hold, and what its dataset holds itself, by place."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name in _ROOTS:
        _find(name, getattr(loader, name, None), _DEPTH, wanted, found, seen)
    _find("dataset", loader.dataset, 1, wanted, found, seen)
    return found


def _find(
    name: str, value: Any, depth: int, wanted: Callable[[Any], bool], found: dict[str, Any], seen: set[int]
) -> None:
    if value is None or isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if wanted(value):
        found[name] = value
    if depth > 0 and not rng.is_generator(value):
        for key, part in _parts(value):
            _find(f"{name}.{key}", part, depth - 1, wanted, found, seen)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """What an object holds by attribute, a short container by key; not the data that a sampler samples."""
    if isinstance(value, list | tuple | Mapping):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        return list(pairs) if len(value) <= _MEMBERS else []
    return [(key, part) for key, part in getattr(value, "__dict__", {}).items() if key not in _DATA]
