"""The objects a caller passed, sorted and described: keyword arguments -> Target and the handles behind it.

Nothing is changed here. A role takes one object, or a dict or list of them; labels are `model`, `model[gen]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from unmoor.errors import DeviceError, MismatchError, UsageError
from unmoor.values.roles import ROLES
from unmoor.values.target import Slot, Target, TargetModule, TargetObject

from . import devices, rng
from .modules import ModuleView, is_plain_module, slot_of, state_tensors, target_module
from .optimizers import find_optimizer, live_params, target_optimizer

__all__ = ["MOVED_ROLES", "Handles", "members", "refuse_swapped", "survey"]

MOVED_ROLES: Final = tuple(role.name for role in ROLES.values() if role.placement == "device")


@dataclass(slots=True)
class Handles:
    """The live objects behind a Target, by label, and the live tensors behind its slots, by slot id."""

    modules: dict[str, Any] = field(default_factory=dict)
    views: dict[str, ModuleView] = field(default_factory=dict)
    optimizers: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Slot id -> live tensor as it is now, for all that exists already."""
        found = {f"{label}/{name}": t for label, view in self.views.items() for name, t in view.tensors.items()}
        for label, optimizer in self.optimizers.items():
            for g, group in enumerate(optimizer.param_groups):
                for i, param in enumerate(group["params"]):
                    for key, value in optimizer.state.get(param, {}).items():
                        if isinstance(value, torch.Tensor):
                            found[f"{label}/{g}/{i}/{key}"] = value
        return found

    def refresh(self) -> None:
        """Look at the modules again, after they were moved."""
        for label, module in self.modules.items():
            if isinstance(module, nn.Module):
                self.views[label] = state_tensors(module)


def members(role: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Label, key and object of each member of a role: one object, or a dict or list of them."""
    if isinstance(value, Mapping) and not _is_tensor_bag(value) and not hasattr(value, "load_state_dict"):
        for key, item in value.items():
            yield f"{role}[{key}]", key, item
    elif isinstance(value, list | tuple) and not _is_tensor_bag(value):
        for index, item in enumerate(value):
            yield f"{role}[{index}]", index, item
    else:
        yield role, None, value


def refuse_swapped(role: str, label: str, item: Any) -> None:
    """Raise UsageError for an optimizer in a module's role, and for a module in the optimizer's."""
    is_optimizer = isinstance(item, torch.optim.Optimizer)
    if (is_optimizer and role in MOVED_ROLES) or (isinstance(item, nn.Module) and role == "optimizer"):
        wanted = "an optimizer" if role == "optimizer" else "a module"
        raise UsageError(
            f"{label}= was given a {type(item).__module__}.{type(item).__qualname__}, and takes {wanted}",
            remedy="Were two arguments swapped? Nothing was read and nothing was changed.",
        )


def _is_tensor_bag(value: Any) -> bool:
    items = value.values() if isinstance(value, Mapping) else value
    return len(value) > 0 and all(isinstance(item, torch.Tensor) for item in items)


def survey(
    roles: Mapping[str, Any], generators: Mapping[str, Any], device: torch.device | None
) -> tuple[Target, Handles]:
    """Describe the live run. `device` is where model, loss and EMA will be moved before anything is filled.

    Raises UsageError for an object that no role can take, and FitError for a run that cannot be restored into as it
    stands; all faults of one kind together.
    """
    handles = Handles(generators=dict(generators))
    found: dict[str, list[Any]] = {"modules": [], "optimizers": [], "objects": []}
    pending: list[tuple[str, Any]] = []
    for role, value in roles.items():
        for label, _, item in members(role, value):
            refuse_swapped(role, label, item)
            optimizer = find_optimizer(item) if role == "optimizer" or isinstance(item, torch.optim.Optimizer) else None
            if optimizer is not None:
                pending.append((label, optimizer))
            elif _fills_in_place(item):
                found["modules"].append(_take_module(handles, role, label, item, device))
            else:
                found["objects"].append(_take_object(handles, role, label, item, device))
    names, moves = _parameters(handles, found["modules"], device)
    for label, optimizer in pending:
        _check_parameters(label, optimizer, handles, names)
        _check_move(label, optimizer, moves)
        handles.optimizers[label] = optimizer
        found["optimizers"].append(target_optimizer(label, optimizer, names, moves))
    target = Target(
        modules=tuple(found["modules"]),
        optimizers=tuple(found["optimizers"]),
        objects=tuple(found["objects"]),
        streams=rng.streams(generators),
        devices=devices.available(),
    )
    return target, handles


def _fills_in_place(item: Any) -> bool:
    if isinstance(item, nn.Module):
        return is_plain_module(item)
    return isinstance(item, Mapping | list | tuple) and _is_tensor_bag(item)


def _take_module(handles: Handles, role: str, label: str, item: Any, device: torch.device | None) -> TargetModule:
    handles.modules[label] = item
    if isinstance(item, nn.Module):
        moved = device if role in MOVED_ROLES else None
        target, handles.views[label] = target_module(role, label, item, moved)
        return target
    pairs = item.items() if isinstance(item, Mapping) else enumerate(item)
    tensors = {str(name): tensor for name, tensor in pairs}
    handles.views[label] = ModuleView(tensors, frozenset(), {}, {}, ())
    slots: dict[str, Slot] = {name: slot_of(f"{label}/{name}", t) for name, t in tensors.items()}
    return TargetModule(role, label, type(item).__name__, slots, frozenset())


def _take_object(handles: Handles, role: str, label: str, item: Any, device: torch.device | None) -> TargetObject:
    if not callable(getattr(item, "load_state_dict", None)):
        raise UsageError(
            f"{label}= was given a {type(item).__module__}.{type(item).__qualname__}, which has no load_state_dict",
            remedy="Pass the live object whose state is to be restored; plain values of the file are in report.extra.",
        )
    handles.objects[label] = item
    placement = ROLES[role].placement if role in ROLES else "cpu"
    return TargetObject(role, label, type(item).__name__, placement, _object_device(item, placement, device))


def _object_device(item: Any, placement: str, device: torch.device | None) -> str:
    if placement == "cpu" or placement == "user":
        return "cpu"
    if isinstance(item, nn.Module):
        first = next((t for t in (*item.parameters(), *item.buffers())), None)
        return devices.tag(device or (first.device if first is not None else torch.device("cpu")))
    return "cpu"


def _parameters(
    handles: Handles, targets: list[TargetModule], device: torch.device | None
) -> tuple[dict[int, str], dict[int, torch.device]]:
    """Canonical name and coming device of every parameter, by its id; several models put their label before it."""
    many = sum(t.role == "model" for t in targets) > 1
    names: dict[int, str] = {}
    moves: dict[int, torch.device] = {}
    for target in targets:
        for name, tensor in handles.views[target.label].tensors.items():
            prefix = "" if target.role == "model" and not many else f"{target.label}:"
            names.setdefault(id(tensor), prefix + name)
            if device is not None and target.role in MOVED_ROLES:
                moves[id(tensor)] = device
    for label, item in handles.objects.items():
        if isinstance(item, nn.Module):
            for name, tensor in state_tensors(item).tensors.items():
                names.setdefault(id(tensor), name if label == "model" else f"{label}:{name}")
                if device is not None and label.partition("[")[0] in MOVED_ROLES:
                    moves[id(tensor)] = device
    return names, moves


def _check_parameters(label: str, optimizer: Any, handles: Handles, names: Mapping[int, str]) -> None:
    """Refuse an optimizer that holds tensors which the passed modules have replaced."""
    params = live_params(optimizer)
    strangers = [p for p in params if id(p) not in names]
    if not strangers or not names:
        return
    held = {id(p) for other in (optimizer, *handles.optimizers.values()) for p in live_params(other)}
    orphans = [
        (name, t)
        for view in handles.views.values()
        for name, t in view.tensors.items()
        if name in view.parameters and t.requires_grad and id(t) not in held
    ]
    twins = [name for name, t in orphans if any(s.shape == t.shape for s in strangers)]
    if twins:
        raise MismatchError(
            f"{label} holds {len(strangers)} tensors that are not in the model, and {len(twins)} parameters of the "
            "model are in no optimizer; nothing was changed",
            details=(f"not in the optimizer: {', '.join(twins[:4])}{' ...' if len(twins) > 4 else ''}",),
            remedy="The optimizer was built before the model was moved or re-created: build the model, then "
            ".to(device), then the optimizer.",
        )


def _check_move(label: str, optimizer: Any, moves: Mapping[int, torch.device]) -> None:
    """Refuse a move that would make new Parameter objects, which this optimizer would not hold."""
    swap = getattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: False)()
    for param in live_params(optimizer):
        device = moves.get(id(param))
        if device is None or device == param.device or swap:
            continue
        replaced = torch.__future__.get_overwrite_module_params_on_conversion()
        if replaced or not torch._has_compatible_shallow_copy_type(param, torch.empty(0, device=device)):
            raise DeviceError(
                f"moving the model from {param.device} to {device} makes new parameters, and {label} would go on "
                "training the old ones; nothing was changed",
                remedy=f"Move the model first, then build the optimizer: model.to({str(device)!r}); optimizer = ...; "
                "unmoor.restore(path, model=model, optimizer=optimizer).",
            )
