"""Live modules as values: their tensors by canonical name.

A canonical name is the fully qualified name with the segments of known wrappers left out, wherever they stand (see
`wrappers`). Parameters that are kept in another form are seen whole, or as Held where ranks share them (see `shards`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from unmoor.errors import UsageError
from unmoor.values.strides import contiguous
from unmoor.values.target import Slot, TargetModule

from .devices import tag
from .held import Held
from .hooks import is_plain_module, local_metadata
from .layouts import dtype_name, layout_of
from .parametrized import parametrizations
from .shards import Key, Piece, in_form_of, is_flat, is_ordinary, is_shared_out, memory_of, pieces, prepare, whole
from .wrappers import Place, names_of, unwrap, walk

__all__ = [
    "ModuleView",
    "is_dense",
    "is_plain_module",
    "own_state",
    "own_state_dict",
    "refuse_flat",
    "slot_of",
    "state_tensors",
    "target_module",
    "unwrap",
    "whole_module",
]


@dataclass(frozen=True, slots=True)
class ModuleView:
    """A live module's own tensors: canonical name -> tensor or Held, in the order of its state dict.

    `parameters` are the names of parameters, `trained` those that want gradients. `extra` maps a canonical name to the
    submodule whose extra state it is. `metadata` is what torch keeps as `_metadata` of a state dict. `wrappers` are the
    wrapper classes met. `keys` is how an optimizer knows a parameter whose tensor here is not the live object itself.
    """

    tensors: dict[str, Any]
    parameters: frozenset[str] = frozenset()
    extra: dict[str, nn.Module] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    trained: frozenset[str] = frozenset()
    keys: Mapping[str, Key] = field(default_factory=dict)

    def key(self, name: str) -> Key:
        """How an optimizer knows this tensor."""
        return self.keys.get(name) or (id(self.tensors[name]), 0)


def state_tensors(module: nn.Module) -> ModuleView:
    """All parameters, persistent buffers and extra states of a module by canonical name.

    Raises UsageError for a DTensor that no one place of the whole belongs to.
    """
    return _view(walk(module))


def _view(places: list[Place]) -> ModuleView:
    for place in places:
        prepare(place)
    found = _Found()
    flats = _flat_pieces(places)
    for place in places:
        prefix, inner = place.prefix, place.module
        if place.wrappers:
            found.wrappers |= dict.fromkeys(type(w).__name__ for w in place.wrappers)
        found.metadata[prefix.rstrip(".")] = local_metadata(place)
        for name, flat, piece in flats.get(id(inner), ()):
            found.add(prefix + name, flat, piece.cut(memory_of(flat)), (id(flat), piece.number))
        for name, parameter in inner._parameters.items():
            if parameter is not None and (is_ordinary(parameter) or not is_flat(parameter)):
                found.add(prefix + name, parameter, whole(parameter, prefix + name), (id(parameter), 0))
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                found.tensors[prefix + name] = whole(buffer, prefix + name)
        if type(inner).get_extra_state is not nn.Module.get_extra_state:
            found.extra[prefix + "_extra_state"] = inner
    return found.view()


def _flat_pieces(places: list[Place]) -> dict[int, list[tuple[str, torch.Tensor, Piece]]]:
    """Id of a module -> its own parameters that stand in a FlatParameter somewhere above it."""
    flats: dict[int, list[tuple[str, torch.Tensor, Piece]]] = {}
    own = (place.module._parameters for place in places)
    found = {id(p): p for held in own if held for p in held.values() if p is not None and is_flat(p)}
    for flat in found.values():
        for piece in pieces(flat):
            flats.setdefault(id(piece.module), []).append((piece.name, flat, piece))
    return flats


@dataclass(slots=True)
class _Found:
    """A view in the making."""

    tensors: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, bool] = field(default_factory=dict)
    extra: dict[str, nn.Module] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrappers: dict[str, None] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)

    def add(self, name: str, live: torch.Tensor, tensor: torch.Tensor | Held, key: Key) -> None:
        self.tensors[name] = tensor
        self.parameters[name] = live.requires_grad
        self.keys[name] = key

    def view(self) -> ModuleView:
        trained = frozenset(name for name, wants in self.parameters.items() if wants)
        return ModuleView(
            self.tensors,
            frozenset(self.parameters),
            self.extra,
            self.metadata,
            tuple(self.wrappers),
            trained,
            self.keys,
        )


def own_state_dict(module: nn.Module) -> OrderedDict[str, Any]:
    """What a module that has its own way of saving gives, by canonical name; tensors whole."""
    raw = module.state_dict()
    names = names_of(module)
    state: OrderedDict[str, Any] = OrderedDict((names.canonical(name), whole(value)) for name, value in raw.items())
    metadata = getattr(raw, "_metadata", {})
    state._metadata = OrderedDict(  # type: ignore[attr-defined]
        (names.raw[key].rstrip("."), value)
        for name, value in metadata.items()
        if (key := f"{name}." if name else "") in names.raw
    )
    return state


def own_state(module: nn.Module, state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A state by canonical name as the module's own load_state_dict wants it: its names, and DTensors for parts."""
    names = names_of(module)
    spread = any(isinstance(value, Held) for value in state.values())
    live = {names.canonical(name): value for name, value in (module.state_dict() if spread else {}).items()}
    made: OrderedDict[str, Any] = OrderedDict(
        (names.own(name), in_form_of(live[name], value) if isinstance(value, Held) else value)
        for name, value in state.items()
    )
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        raw = {outer.rstrip("."): raw.rstrip(".") for raw, outer in names.raw.items()}
        made._metadata = OrderedDict((raw.get(k, k), v) for k, v in metadata.items())  # type: ignore[attr-defined]
    return made


def slot_of(identity: str, tensor: torch.Tensor | Held, *, device: torch.device | None = None, alias: str = "") -> Slot:
    """The slot that a live strided tensor is, or the parts of one, on `device` once it has been moved there."""
    shape = tuple(tensor.shape)
    return Slot(
        identity,
        shape,
        dtype_name(tensor.dtype),
        contiguous(shape) if isinstance(tensor, Held) else tuple(tensor.stride()),
        tag(device or tensor.device),
        isinstance(tensor, Held) or is_dense(tensor),
        False,
        alias,
        False,
        "strided",
        tensor.boxes if isinstance(tensor, Held) else None,
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory without gaps or overlap."""
    if not tensor.is_contiguous():
        expected = 1
        for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size == 1:
                continue
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return not (tensor.is_conj() or tensor.is_neg())


def target_module(
    role: str, label: str, module: nn.Module, device: torch.device | None, places: list[Place]
) -> tuple[TargetModule, ModuleView]:
    """A live module as a target, and the view whose tensors its slots stand for. `device` is where it will be moved.

    `places` is the walk over the module.
    """
    view = _view(places)
    slots: dict[str, Slot] = {}
    owners: dict[tuple[Any, ...], str] = {}
    for name, tensor in view.tensors.items():
        identity = f"{label}/{name}"
        layout = _layout(tensor)
        if layout != "strided":
            slots[name] = Slot(identity, (-1,), "", (1,), tag(tensor.device), dense=False, layout=layout or "strided")
            continue
        slot = slot_of(identity, tensor, device=device)
        owner = owners.setdefault(view.key(name) if isinstance(tensor, Held) else _window(tensor, slot), identity)
        slots[name] = slot if owner == identity else replace(slot, alias=owner)
    return _target(role, label, module, view, slots, frozenset(view.extra), device, places), view


def _layout(tensor: torch.Tensor | Held) -> str:
    """The layout of a tensor of a module; "" for one that has no shape yet."""
    if isinstance(tensor, Held):
        return "strided"
    return "" if isinstance(tensor, UninitializedTensorMixin) else layout_of(tensor)


def _window(tensor: torch.Tensor, slot: Slot) -> tuple[Any, ...]:
    """What two tensors that are the same elements of one storage have in common."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), slot.shape, slot.stride)


def whole_module(
    role: str, label: str, module: nn.Module, device: torch.device | None, places: list[Place]
) -> tuple[TargetModule, ModuleView]:
    """A live module that saves and loads in its own way as a target: what its state dict has, to be made anew.

    `places` is the walk over the module. Raises UsageError where FullyShardedDataParallel spreads its parameters over
    ranks.
    """
    view = _view(places)
    refuse_flat(label, module)
    state = own_state_dict(module)
    slots: dict[str, Slot] = {}
    for name, value in state.items():
        if isinstance(value, Held) or (isinstance(value, torch.Tensor) and layout_of(value) == "strided"):
            slots[name] = replace(slot_of(f"{label}/state/{name}", value, device=device), make=True)
    target = _target(role, label, module, view, slots, state.keys() - slots.keys(), device, places)
    return replace(target, through=True), view


def refuse_flat(label: str, module: nn.Module) -> None:
    """Raise UsageError for a module that saves or loads in its own way, and whose parameters FSDP keeps flat.

    Its methods get and give whole tensors there, through collectives of FSDP's own.
    """
    if any(is_flat(p) or (not is_shared_out(p) and isinstance(whole(p), Held)) for p in module.parameters()):
        raise UsageError(
            f"{label}: {type(module).__name__} saves or loads in a way of its own (a hook, or a method of a class), "
            "and FullyShardedDataParallel keeps its parameters flat: the two cannot be told apart",
            remedy="Wrap it with fully_shard, or save and restore it without that hook.",
        )


def _target(
    role: str,
    label: str,
    module: nn.Module,
    view: ModuleView,
    slots: Mapping[str, Slot],
    extra: Iterable[str],
    device: torch.device | None,
    places: list[Place],
) -> TargetModule:
    first = next(iter(view.tensors.values()), None)
    live = tag(first.device) if first is not None else "cpu"
    return TargetModule(
        role=role,
        label=label,
        class_name=type(unwrap(module)[0]).__name__,
        slots=slots,
        parameters=view.parameters,
        extra_state=frozenset(extra),
        wrappers=view.wrappers,
        device=live if device is None else tag(device),
        ways=parametrizations(places),
    )
