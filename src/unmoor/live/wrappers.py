"""Wrappers of live modules: which classes wrap, what they hold, and the walk that leaves their segments out of names.

A wrapper is known by its class and the package it comes from, never by the text of a name: a submodule that a user
calls `module` keeps its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from torch import nn

__all__ = ["Names", "Place", "names_of", "unwrap", "walk"]

_WRAPPERS: Final = (
    ("torch", "DataParallel", "module"),
    ("torch", "DistributedDataParallel", "module"),
    ("torch", "OptimizedModule", "_orig_mod"),
    ("torch", "ActivationWrapper", "_checkpoint_wrapped_module"),
    ("torch", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("lightning", "_FabricModule", "_forward_module"),
    ("lightning_fabric", "_FabricModule", "_forward_module"),
)
"""Package, class, and the attribute that holds the wrapped module. Classes derived from these wrap as they do."""


class Place(NamedTuple):
    """A module where it stands: canonical prefix (with its dot), the module, and the wrappers around it, outer first.

    `raw` is the prefix with the segments of all wrappers, `shown` with those that a state dict shows.
    """

    prefix: str
    module: nn.Module
    wrappers: tuple[nn.Module, ...]
    raw: str
    shown: str


def unwrap(module: nn.Module) -> tuple[nn.Module, tuple[nn.Module, ...]]:
    """The module inside known wrappers, and the wrappers from the outside in."""
    wrappers: list[nn.Module] = []
    while (attribute := _held_attribute(type(module))) is not None:  # type: ignore[arg-type]
        wrappers.append(module)
        module = getattr(module, attribute)
    return module, tuple(wrappers)


@lru_cache(maxsize=512)
def _held_attribute(kind: type) -> str | None:
    """Where a class holds the module that it wraps; None for one that wraps none."""
    for cls in kind.__mro__:
        package = cls.__module__.partition(".")[0]
        for origin, name, attribute in _WRAPPERS:
            if cls.__name__ == name and package == origin:
                return attribute
    return None


def walk(module: nn.Module) -> list[Place]:
    """Every module that is no wrapper, parents first; one that is registered twice comes twice, as in a state dict."""
    places: list[Place] = []
    _walk(module, "", "", "", places)
    return places


def _walk(module: nn.Module, prefix: str, raw: str, shown: str, places: list[Place]) -> None:
    inner, wrappers = unwrap(module)
    for wrapper in wrappers:
        segment = f"{_held_attribute(type(wrapper))}."  # type: ignore[arg-type]
        raw += segment
        shown += "" if wrapper._state_dict_hooks else segment
    places.append(Place(prefix, inner, wrappers, raw, shown))
    for name, child in inner._modules.items():
        if child is not None:
            own = f"{prefix}{name}."
            other = own if raw == prefix else f"{raw}{name}."
            _walk(child, own, other, own if shown == prefix else f"{shown}{name}.", places)


@dataclass(frozen=True, slots=True)
class Names:
    """Between canonical names and those that a module's own state dict has, by the prefixes of its modules.

    `shown` is prefix in the state dict -> canonical prefix; `raw` the same with every wrapper's segment, as `_metadata`
    has it. Hooks of some wrappers hide their segment.
    """

    shown: Mapping[str, str]
    raw: Mapping[str, str]

    def canonical(self, name: str) -> str:
        """A name of the state dict without wrappers' segments."""
        return _exchanged(name, {**self.raw, **self.shown})

    def own(self, name: str) -> str:
        """A canonical name as the module's own methods have it."""
        return _exchanged(name, {outer: shown for shown, outer in self.shown.items()})


def names_of(module: nn.Module) -> Names:
    """The names of a module that saves and loads in its own way."""
    places = walk(module)
    return Names(
        {place.shown: place.prefix for place in places},
        {place.raw: place.prefix for place in places},
    )


def _exchanged(name: str, prefixes: Mapping[str, str]) -> str:
    """The name with its longest prefix of the table exchanged."""
    parts = name.split(".")
    for i in range(len(parts) - 1, -1, -1):
        head = "".join(f"{part}." for part in parts[:i])
        if head in prefixes:
            return prefixes[head] + name[len(head) :]
    return name
