"""Live modules as values: their tensors by canonical name.

A canonical name is the fully qualified name with the segments of known wrappers left out, wherever they stand. A
wrapper is known by its class, never by the text of a name: a submodule that a user calls `module` keeps its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from unmoor.values.target import Slot, TargetModule

from .devices import tag

__all__ = ["ModuleView", "is_plain_module", "slot_of", "state_tensors", "target_module", "unwrap"]

_WRAPPERS: Final = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}
"""Wrapper class -> the attribute that holds the wrapped module. Classes are matched by name and torch origin."""

_UPGRADES_ONLY: Final = frozenset({"_NormBase", "_BatchNorm", "_InstanceNorm"})
"""Classes of torch.nn whose own loading only upgrades files of torch before 0.4.1."""


@dataclass(frozen=True, slots=True)
class ModuleView:
    """A live module's own tensors: canonical name -> tensor, in the order of its state dict.

    `parameters` are the names of parameters. `extra` maps a canonical name to the submodule whose extra state it is.
    `metadata` is what torch keeps as `_metadata` of a state dict. `wrappers` are the wrapper classes met.
    """

    tensors: dict[str, torch.Tensor]
    parameters: frozenset[str]
    extra: dict[str, nn.Module]
    metadata: dict[str, dict[str, Any]]
    wrappers: tuple[str, ...]


def unwrap(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module inside known wrappers, and the names of the wrappers' classes from the outside in."""
    names: list[str] = []
    while (attribute := _wrapped_attribute(module)) is not None:
        names.append(type(module).__name__)
        module = getattr(module, attribute)
    return module, tuple(names)


def _wrapped_attribute(module: nn.Module) -> str | None:
    for cls in type(module).__mro__:
        if cls.__name__ in _WRAPPERS and cls.__module__.partition(".")[0] == "torch":
            return _WRAPPERS[cls.__name__]
    return None


def state_tensors(module: nn.Module) -> ModuleView:
    """All parameters, persistent buffers and extra states of a module by canonical name."""
    view = ModuleView({}, frozenset(), {}, {}, ())
    parameters: set[str] = set()
    wrappers: list[str] = []
    for prefix, inner, met in _walk(module, ""):
        wrappers += [name for name in met if name not in wrappers]
        view.metadata[prefix.rstrip(".")] = {"version": inner._version}
        for name, parameter in inner._parameters.items():
            if parameter is not None:
                view.tensors[prefix + name] = parameter
                parameters.add(prefix + name)
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                view.tensors[prefix + name] = buffer
        if type(inner).get_extra_state is not nn.Module.get_extra_state:
            view.extra[prefix + "_extra_state"] = inner
    return ModuleView(view.tensors, frozenset(parameters), view.extra, view.metadata, tuple(wrappers))


def _walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, tuple[str, ...]]]:
    inner, wrappers = unwrap(module)
    yield prefix, inner, wrappers
    for name, child in inner._modules.items():
        if child is not None:
            yield from _walk(child, f"{prefix}{name}.")


def is_plain_module(module: nn.Module) -> bool:
    """Whether every submodule saves and loads the way nn.Module does, so that its tensors can be filled in place."""
    return all(_is_plain(inner) for _, inner, _ in _walk(module, ""))


def _is_plain(module: nn.Module) -> bool:
    cls = type(module)
    if any(c.__name__ in _UPGRADES_ONLY and c.__module__.startswith("torch.nn.modules.") for c in cls.__mro__):
        own = next(c for c in cls.__mro__ if "_load_from_state_dict" in c.__dict__)
        loads_plainly = own.__module__.startswith("torch.nn.modules.")
    else:
        loads_plainly = cls._load_from_state_dict is nn.Module._load_from_state_dict
    return (
        loads_plainly
        and cls._save_to_state_dict is nn.Module._save_to_state_dict
        and cls.state_dict is nn.Module.state_dict
        and cls.load_state_dict is nn.Module.load_state_dict
        and not (module._state_dict_hooks or module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks)
        and not module._state_dict_pre_hooks
    )


def slot_of(identity: str, tensor: torch.Tensor, *, device: torch.device | None = None, alias: str = "") -> Slot:
    """The slot that a live strided tensor is, on `device` once it has been moved there."""
    return Slot(
        id=identity,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
        device=tag(device or tensor.device),
        dense=is_dense(tensor),
        alias=alias,
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return not (tensor.is_conj() or tensor.is_neg())


def target_module(
    role: str, label: str, module: nn.Module, device: torch.device | None
) -> tuple[TargetModule, ModuleView]:
    """A live module as a target, and the view whose tensors its slots stand for. `device` is where it will be moved."""
    view = state_tensors(module)
    slots: OrderedDict[str, Slot] = OrderedDict()
    owners: dict[tuple[Any, ...], str] = {}
    for name, tensor in view.tensors.items():
        identity = f"{label}/{name}"
        if isinstance(tensor, UninitializedTensorMixin):
            slots[name] = Slot(identity, (-1,), "", (1,), tag(tensor.device), dense=False)
            continue
        same = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        owner = owners.setdefault(same, identity)
        slots[name] = slot_of(identity, tensor, device=device, alias="" if owner == identity else owner)
    first = next(iter(view.tensors.values()), None)
    live = tag(first.device) if first is not None else "cpu"
    target = TargetModule(
        role=role,
        label=label,
        class_name=type(unwrap(module)[0]).__name__,
        slots=slots,
        parameters=view.parameters,
        extra_state=frozenset(view.extra),
        wrappers=view.wrappers,
        device=live if device is None else tag(device),
    )
    return target, view
