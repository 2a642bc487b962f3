"""Which modules save and load as nn.Module does, so that their tensors can be filled in place.

Hooks that torch itself registers and that change no tensor of a state dict are in one table. Any other hook, and any
class that overrides saving or loading, makes a module go through its own methods as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch import nn

from .layouts import copies_by_itself
from .wrappers import Place, walk

__all__ = ["are_plain", "is_plain_module", "local_metadata"]

_UPGRADES_ONLY: Final = frozenset({"_NormBase", "_BatchNorm", "_InstanceNorm"})
"""Classes of torch.nn whose own loading only upgrades files of torch before 0.4.1."""

_HARMLESS: Final = frozenset(
    {
        "weight_norm.<locals>._weight_norm_compat_hook",
        "SpectralNormStateDictHook",
        "SpectralNormLoadStateDictPreHook",
        "LazyModuleMixin._lazy_load_hook",
        "FSDPParamGroup._register_state_dict_hooks.<locals>.to_sharded_hook",
        "FSDPParam.__init__.<locals>.<lambda>",
    }
)
"""Hooks of torch: renames of older files (the plan knows them), marks in `_metadata`, and FSDP's own housekeeping."""

_HOOKS: Final = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def is_plain_module(module: nn.Module) -> bool:
    """Whether every submodule saves and loads the way nn.Module does, wrappers left out."""
    return are_plain(walk(module))


def are_plain(places: Iterable[Place]) -> bool:
    """The same of all places of a module."""
    classes: dict[type[nn.Module], bool] = {}
    for place in places:
        module = place.module
        cls = type(module)
        if cls not in classes:
            classes[cls] = _is_plain_class(cls)
        if not (classes[cls] and _is_plain(module)):
            return False
    return True


def _is_plain_class(cls: type[nn.Module]) -> bool:
    return (
        _loads_plainly(cls)
        and _saves_plainly(cls)
        and cls.state_dict is nn.Module.state_dict
        and cls.load_state_dict is nn.Module.load_state_dict
    )


def _is_plain(module: nn.Module) -> bool:
    """Whether neither hooks nor tensors of one module ask for a way of their own."""
    if not all(map(_is_harmless, _hooks(module))):
        return False
    for held in (module._parameters, module._buffers):
        if held and any(map(copies_by_itself, held.values())):
            return False
    return True


def _loads_plainly(cls: type[nn.Module]) -> bool:
    if not any(c.__name__ in _UPGRADES_ONLY and c.__module__.startswith("torch.nn.modules.") for c in cls.__mro__):
        return cls._load_from_state_dict is nn.Module._load_from_state_dict
    own = next(c for c in cls.__mro__ if "_load_from_state_dict" in c.__dict__)
    return own.__module__.startswith("torch.nn.modules.")


def _saves_plainly(cls: type[nn.Module]) -> bool:
    """Lazy modules of torch only let parameters through that have no shape yet."""
    own = next(c for c in cls.__mro__ if "_save_to_state_dict" in c.__dict__)
    return own is nn.Module or own.__module__ == "torch.nn.modules.lazy"


def _hooks(module: nn.Module) -> list[Any]:
    return [hook for attribute in _HOOKS if (own := getattr(module, attribute)) for hook in own.values()]


def _is_harmless(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)
    named = function if hasattr(function, "__qualname__") else type(function)
    return named.__qualname__ in _HARMLESS and named.__module__.startswith("torch.")


def local_metadata(place: Place) -> dict[str, Any]:
    """What torch notes of one module in `_metadata` of a state dict: its version, and what hooks of the table add."""
    found: dict[str, Any] = {"version": place.module._version}
    for hook in place.module._state_dict_hooks.values():
        if type(hook).__name__ == "SpectralNormStateDictHook" and _is_harmless(hook):
            hook(place.module, {}, place.prefix, found)
    return found
