"""Tensors that live modules keep in another form than themselves, told by the class of what does so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from .wrappers import Place

__all__ = ["parametrizations"]


def parametrizations(places: Iterable[Place]) -> dict[str, str]:
    """Canonical name of the tensor -> name of the way in the table of parametrizations."""
    return {place.prefix + tensor: name for place in places for tensor, name in _ways(place.module)}


def _ways(module: nn.Module) -> Iterator[tuple[str, str]]:
    for hook in module._forward_pre_hooks.values():
        name, tensor = _old_way(hook)
        if name:
            yield tensor, name
    children = module._modules
    held = children["parametrizations"] if "parametrizations" in children else None  # noqa: SIM401 - TorchScript's has no get
    for tensor, chain in held.items() if isinstance(held, nn.ModuleDict) else ():
        yield tensor, _new_way(chain)


def _old_way(hook: Any) -> tuple[str, str]:
    """The way and the tensor of a forward hook, by its class; ("", "") for any other hook."""
    for cls in type(hook).__mro__:
        place = f"{cls.__module__}.{cls.__qualname__}"
        if place in ("torch.nn.utils.weight_norm.WeightNorm", "torch.nn.utils.spectral_norm.SpectralNorm"):
            return cls.__module__, str(hook.name)
        if place == "torch.nn.utils.prune.BasePruningMethod":
            return cls.__module__, str(hook._tensor_name)
    return "", ""


def _new_way(chain: Any) -> str:
    """The way of a ParametrizationList: torch's own norms alone by their class, anything else as parametrized."""
    first = type(chain[0])
    if len(chain) == 1 and first.__module__ == "torch.nn.utils.parametrizations":
        found = {"_WeightNorm": "weight_norm", "_SpectralNorm": "spectral_norm"}.get(first.__name__)
        if found is not None:
            return f"{first.__module__}.{found}"
    return "torch.nn.utils.parametrize"
