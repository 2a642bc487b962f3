"""The objects a caller passed, sorted and described: keyword arguments -> Target and the handles behind it.

Nothing is changed here. A role takes one object, or a dict or list of them; labels are `model`, `model[gen]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from unmoor.errors import DeviceError, MismatchError, UsageError
from unmoor.values.roles import ROLES
from unmoor.values.target import Slot, Target, TargetModule, TargetObject

from . import devices, rng
from .held import Held
from .hooks import are_plain
from .loaders import loader_setting, refuse_stock, with_loader_generators
from .materialise import check_swaps, meta_names, unsaved_meta
from .metrics import MetricState, with_metric_state
from .modules import ModuleView, is_plain_module, slot_of, state_tensors, target_module, whole_module
from .optimizers import find_optimizer, live_params, target_optimizer
from .schedulers import find_scheduler, target_schedule
from .shards import Key, group_seats, is_flat, is_shared_out, keys_of, refuse_move, state_of, whole
from .wrappers import walk

__all__ = ["MOVED_ROLES", "Handles", "members", "refuse_swapped", "survey"]

MOVED_ROLES: Final = tuple(role.name for role in ROLES.values() if role.placement == "device")


@dataclass(slots=True)
class Handles:
    """The live objects behind a Target, by label, and the live tensors behind its slots, by slot id."""

    modules: dict[str, Any] = field(default_factory=dict)
    views: dict[str, ModuleView] = field(default_factory=dict)
    optimizers: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    schedulers: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Any]:
        """Slot id -> live tensor, or Held, as it is now, for all that exists already."""
        found = {f"{label}/{name}": t for label, view in self.views.items() for name, t in view.tensors.items()}
        for label, optimizer in self.optimizers.items():
            for g, group in enumerate(optimizer.param_groups):
                for i, seat in enumerate(group_seats(group)):
                    for key, value in state_of(optimizer, seat).items():
                        if isinstance(value, torch.Tensor | Held):
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
    roles: Mapping[str, Any],
    generators: Mapping[str, Any],
    device: torch.device | None,
    place: tuple[int, int] | None = None,
) -> tuple[Target, Handles]:
    """Describe the live run. `device` is where model, loss and EMA will be moved before anything is filled.

    `place` is which rank of how many this process is in what is to be restored; None asks torch.distributed.

    Raises UsageError for an object that no role can take, and FitError for a run that cannot be restored into as it
    stands; all faults of one kind together.
    """
    passed = {label: item for role, value in roles.items() for label, _, item in members(role, value)}
    held = with_loader_generators(passed, generators)
    handles = Handles(generators=held)
    found: dict[str, list[Any]] = {"modules": [], "optimizers": [], "objects": []}
    pending: list[tuple[str, Any]] = []
    for role, value in roles.items():
        for label, _, passed in members(role, value):
            refuse_swapped(role, label, passed)
            item = with_metric_state(passed)
            optimizer = find_optimizer(item) if role == "optimizer" or isinstance(item, torch.optim.Optimizer) else None
            if optimizer is not None:
                pending.append((label, optimizer))
            elif _by_names(role, item):
                found["modules"].append(_take_module(handles, role, label, item, device))
            else:
                found["objects"].append(_take_object(handles, role, label, item, device))
    names, moves, shared = _parameters(handles, found["modules"], device)
    for label, optimizer in pending:
        _check_parameters(label, optimizer, handles, names)
        if device is not None and device.type != "meta":
            params = live_params(optimizer)
            check_swaps(label, params, [names.get((id(p), 0), f"parameter {i}") for i, p in enumerate(params)])
        _check_move(label, optimizer, moves)
        handles.optimizers[label] = optimizer
        found["optimizers"].append(target_optimizer(label, optimizer, names, moves))
    rank, world = place or _place()
    target = Target(
        modules=tuple(found["modules"]),
        optimizers=tuple(found["optimizers"]),
        objects=tuple(_with_optimizer(item, handles) for item in found["objects"]),
        streams=rng.streams(held, asked=generators),
        devices=devices.available(),
        rank=rank,
        world=world,
        shared=shared,
    )
    return target, handles


def _place() -> tuple[int, int]:
    """Which of how many processes this is: a question to this process alone, no collective."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if grouped else (0, 1)


def _with_optimizer(item: TargetObject, handles: Handles) -> TargetObject:
    """A scheduler with the label of its optimizer, where that was passed too."""
    if item.schedule is None:
        return item
    own = handles.schedulers[item.label].optimizer
    label = next((label for label, optimizer in handles.optimizers.items() if optimizer is own), "")
    return replace(item, schedule=replace(item.schedule, optimizer=label))


def _by_names(role: str, item: Any) -> bool:
    """Whether the tensors of an object are told by name: those of a module, unless a metric saves in its own way."""
    if isinstance(item, nn.Module):
        return role in MOVED_ROLES or is_plain_module(item)
    return isinstance(item, Mapping | list | tuple) and _is_tensor_bag(item)


def _take_module(handles: Handles, role: str, label: str, item: Any, device: torch.device | None) -> TargetModule:
    handles.modules[label] = item
    if isinstance(item, nn.Module):
        moved = device if role in MOVED_ROLES else None
        places = walk(item)
        if are_plain(places):
            target, handles.views[label] = target_module(role, label, item, moved, places)
        else:
            target, handles.views[label] = whole_module(role, label, item, moved, places)
            handles.objects[label] = item
        if moved is not None:
            refuse_move(label, item, moved)
        return replace(target, meta=meta_names(handles.views[label].tensors), unsaved_meta=unsaved_meta(item, places))
    pairs = item.items() if isinstance(item, Mapping) else enumerate(item)
    given = {str(name): tensor for name, tensor in pairs}
    tensors = {name: whole(tensor, name) for name, tensor in given.items()}
    handles.views[label] = ModuleView(tensors, keys={name: (id(tensor), 0) for name, tensor in given.items()})
    slots: dict[str, Slot] = {name: slot_of(f"{label}/{name}", t) for name, t in tensors.items()}
    return TargetModule(role, label, type(item).__name__, slots, frozenset())


def _take_object(handles: Handles, role: str, label: str, item: Any, device: torch.device | None) -> TargetObject:
    refuse_stock(label, item)
    if not callable(getattr(item, "load_state_dict", None)):
        raise UsageError(
            f"{label}= was given a {type(item).__module__}.{type(item).__qualname__}, which has no load_state_dict",
            remedy="Pass the live object whose state is to be restored; plain values of the file are in report.extra.",
        )
    handles.objects[label] = item
    placement = ROLES[role].placement if role in ROLES else "cpu"
    scheduler = find_scheduler(item)
    if scheduler is not None:
        handles.schedulers[label] = scheduler
    moves = placement == "device" and device is not None
    places = {} if moves or placement == "user" else _state_devices(item)
    return TargetObject(
        role,
        label,
        type(item.metric if isinstance(item, MetricState) else item).__name__,
        placement,
        _object_device(item, placement, device, set(places.values())),
        devices=places,
        schedule=None if scheduler is None else target_schedule(scheduler),
        position=loader_setting(item),
        enabled=not isinstance(item, torch.amp.GradScaler) or item.is_enabled(),
        summed=isinstance(item, MetricState),
    )


def _state_devices(item: Any) -> dict[str, str]:
    """Where the tensors of an object's present state are; nothing where it cannot be asked."""
    try:
        state = item.state_dict()
    except Exception:  # noqa: BLE001 - the caller's own code may raise anything; then its state goes by its role
        return {}
    return {place: devices.tag(tensor.device) for place, tensor in _tensors(state, "", frozenset())}


def _tensors(value: Any, place: str, above: frozenset[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tree of plain containers, by the keys that lead there."""
    if isinstance(value, torch.Tensor):
        yield place, value
    if not isinstance(value, Mapping | list | tuple) or id(value) in above:
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _tensors(item, f"{place}.{key}", above | {id(value)})


def _object_device(item: Any, placement: str, device: torch.device | None, places: set[str]) -> str:
    """Where tensors go that the object's present state has no place for."""
    if placement in ("cpu", "user"):
        return "cpu"
    if isinstance(item, nn.Module):
        first = next((t for t in (*item.parameters(), *item.buffers())), None)
        return devices.tag(device or (first.device if first is not None else torch.device("cpu")))
    if placement == "device" and device is not None:
        return devices.tag(device)
    return next(iter(places)) if len(places) == 1 else "cpu"


def _parameters(
    handles: Handles, targets: list[TargetModule], device: torch.device | None
) -> tuple[dict[Key, str], dict[Key, torch.device], dict[str, str]]:
    """Canonical name and coming device of every parameter, by its key; several models put their label before it.

    And for a parameter that several modules hold its other names -> the canonical one.
    """
    many = sum(t.role == "model" for t in targets) > 1
    names: dict[Key, str] = {}
    moves: dict[Key, torch.device] = {}
    shared: dict[str, str] = {}
    for target in targets:
        view = handles.views[target.label]
        for name in view.tensors:
            prefix = "" if target.role == "model" and not many else f"{target.label}:"
            known = names.setdefault(view.key(name), prefix + name)
            if known != prefix + name and prefix:
                shared[prefix + name] = known
            if device is not None and target.role in MOVED_ROLES:
                moves[view.key(name)] = device
    for label, item in handles.objects.items():
        if isinstance(item, nn.Module) and label not in handles.views:
            view = state_tensors(item)
            for name in view.tensors:
                names.setdefault(view.key(name), f"{label}:{name}")
    return names, moves, shared


def _check_parameters(label: str, optimizer: Any, handles: Handles, names: Mapping[Key, str]) -> None:
    """Refuse an optimizer that holds tensors which the passed modules have replaced."""
    params = live_params(optimizer)
    strangers = [p for p in params if not any(key in names for key in keys_of(p))]
    if not strangers or not names:
        return
    everyone = [p for other in (optimizer, *handles.optimizers.values()) for p in live_params(other)]
    held = {key for param in everyone for key in keys_of(param)}
    orphans = [
        (name, view.tensors[name])
        for view in handles.views.values()
        for name in view.tensors
        if name in view.trained and view.key(name) not in held
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


def _check_move(label: str, optimizer: Any, moves: Mapping[Key, torch.device]) -> None:
    """Refuse a move that would make new Parameter objects, which this optimizer would not hold."""
    if not moves:
        return
    swap = getattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: False)()
    for param in live_params(optimizer):
        device = next((moves[key] for key in keys_of(param) if key in moves), None)
        if device is None or device == param.device:
            continue
        if is_flat(param) or (is_shared_out(param) and param.device.type != "meta"):
            raise DeviceError(
                f"model_device={device} would move sharded parameters, which stay on the device of their mesh",
                remedy="Leave model_device out: restore fills them where they are.",
            )
        if swap or param.device.type == "meta":
            continue
        replaced = torch.__future__.get_overwrite_module_params_on_conversion()
        if replaced or not torch._has_compatible_shallow_copy_type(param, torch.empty(0, device=device)):
            raise DeviceError(
                f"moving the model from {param.device} to {device} makes new parameters, and {label} would go on "
                "training the old ones; nothing was changed",
                remedy=f"Move the model first, then build the optimizer: model.to({str(device)!r}); optimizer = ...; "
                "unmoor.restore(path, model=model, optimizer=optimizer).",
            )
