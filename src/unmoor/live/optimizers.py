"""Live optimizers as values, and the one place where their state is set.

Groups and their dictionaries stay the same objects: schedulers and wrappers that hold them keep working.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import Optimizer

from unmoor.values.finding import Finding
from unmoor.values.optimizers import COUNTERS, FAMILIES, RUNNING_OPTIONS, counts_on_device, keeps_state
from unmoor.values.target import TargetGroup, TargetOptimizer, TargetParam
from unmoor.values.text import count

from .devices import tag
from .modules import slot_of
from .redundancy import present_state, stepping
from .shards import Key, Seat, gather, group_seats, is_flat, keys_of, local_of, state_of

__all__ = [
    "apply_state",
    "find_optimizer",
    "is_direct",
    "keep_precise",
    "left_over",
    "live_params",
    "never_stepped",
    "same_groups",
    "set_options",
    "target_optimizer",
]


_STRIDED: Final = torch.strided

_NUMBERS: Final = ("lr", "initial_lr", "weight_decay", "betas")
"""Options that torch's classes take as a number or as a tensor: the live optimizer has chosen which."""


def find_optimizer(value: Any) -> Optimizer | None:
    """The torch optimizer that `value` is or wraps as its `optimizer` attribute, else None."""
    seen: set[int] = set()
    while not isinstance(value, Optimizer):
        if value is None or id(value) in seen:
            return None
        seen.add(id(value))
        value = getattr(value, "optimizer", None)
    return value


def is_direct(optimizer: Optimizer) -> bool:
    """Whether state can be placed without the class's own load_state_dict: it has none, and no hooks are registered."""
    return (
        type(optimizer).load_state_dict is Optimizer.load_state_dict
        and not optimizer._optimizer_load_state_dict_pre_hooks
        and not optimizer._optimizer_load_state_dict_post_hooks
    )


def live_params(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer, group by group."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def family_of(optimizer: Optimizer) -> str:
    """The row of the table of torch's classes that the class, or one it derives from, stands in; "" for none.

    Other packages have classes of the same names, which keep other state.
    """
    for cls in type(stepping(optimizer)).__mro__:
        for family in FAMILIES.values() if f"{cls.__module__}.".startswith("torch.optim.") else ():
            if cls.__name__ in (family.name, *family.also):
                return family.name
    return ""


def never_stepped(role: str, label: str, item: Any) -> list[Finding]:
    """A warning about an optimizer that has none of the state which one step would give it."""
    optimizer = find_optimizer(item) if role == "optimizer" or isinstance(item, Optimizer) else None
    own = None if optimizer is None else stepping(optimizer)
    if own is None or any(own.state.values()):
        return []
    groups = [group for group in own.param_groups if keeps_state(family_of(own), group)]
    number = sum(param.requires_grad for group in groups for param in group["params"])
    if not number:
        return []
    text = f"{label} has no state for {count(number, 'trainable parameter')} (never stepped)"
    return [Finding("no-optimizer-state", "warning", "", text)]


def target_optimizer(
    label: str,
    optimizer: Optimizer,
    names: Mapping[Key, str],
    moves: Mapping[Key, torch.device],
) -> TargetOptimizer:
    """A live optimizer as a target. `names` and `moves` go by key of the parameter: canonical name, new device."""
    groups = []
    own_keys, whole = _own_form(optimizer)
    live = _Live(stepping(optimizer), _shared_storages(optimizer), moves)
    for g, group in enumerate(optimizer.param_groups):
        seats = group_seats(group)
        given = group.get("param_names") or ()
        given = given if len(given) == len(seats) else [""] * len(seats)
        params = tuple(
            _target_param(f"{label}/{g}/{i}", live, s, names.get(s.key) or given[i]) for i, s in enumerate(seats)
        )
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        groups.append(TargetGroup(options=options, params=params))
    return TargetOptimizer(
        role="optimizer",
        label=label,
        class_name=type(optimizer).__name__,
        family=family_of(optimizer),
        groups=tuple(groups),
        direct=is_direct(optimizer),
        joined=_joined(optimizer),
        own_keys=own_keys,
        whole=whole,
    )


def _own_form(optimizer: Optimizer) -> tuple[frozenset[str], bool]:
    """Keys of the class's state dict that torch's has not, and whether it lacks torch's own."""
    if type(optimizer).state_dict is Optimizer.state_dict:
        return frozenset(), False
    keys = frozenset(map(str, present_state(optimizer)))
    return keys - {"state", "param_groups"}, not keys >= {"state", "param_groups"}


def _joined(optimizer: Optimizer) -> tuple[tuple[int, ...], ...]:
    """The positions that each FlatParameter stands for."""
    runs: dict[int, tuple[int, ...]] = {}
    first = 0
    for param in live_params(optimizer):
        flat = is_flat(param)
        number = len(keys_of(param)) if flat else 1
        if flat:
            runs[id(param)] = tuple(range(first, first + number))
        first += number
    return tuple(runs.values())


def _shared_storages(optimizer: Optimizer) -> frozenset[int]:
    """Storages that more than one state tensor looks into: those are never filled where they are."""
    seen: set[int] = set()
    twice: set[int] = set()
    for state in optimizer.state.values():
        for value in map(local_of, state.values() if isinstance(state, dict) else ()):
            if isinstance(value, torch.Tensor) and value.layout == _STRIDED:
                storage = value.untyped_storage()._cdata
                (twice if storage in seen else seen).add(storage)
    return frozenset(twice)


class _Live(NamedTuple):
    """What the parameters of one optimizer are looked at with: `stepping` has the state."""

    stepping: Optimizer
    shared: frozenset[int]
    moves: Mapping[Key, torch.device]


def _target_param(identity: str, live: _Live, seat: Seat, name: str) -> TargetParam:
    param, device = seat.tensor, live.moves.get(seat.key)
    if isinstance(param, UninitializedTensorMixin):
        return TargetParam(name, (-1,), "", tag(device or param.device), (1,), dense=False)
    stays = device is None or device == param.device
    slots = {
        k: slot_of(f"{identity}/{k}", v)
        for k, v in (state_of(live.stepping, seat).items() if stays else ())
        if _can_be_filled(v, live.shared)
    }
    own = slot_of(identity, param, device=device)
    return TargetParam(name, own.shape, own.dtype, own.device, own.stride, own.dense, slots, own.boxes)


def _can_be_filled(value: Any, shared: frozenset[int]) -> bool:
    local = local_of(value)
    plain = isinstance(local, torch.Tensor) and local.layout == _STRIDED and not value.requires_grad
    return plain and (not shared or local.untyped_storage()._cdata not in shared)


def apply_state(
    optimizer: Optimizer,
    options: tuple[Mapping[str, Any], ...],
    state: Mapping[int, Mapping[str, Any]],
    build: Callable[[Any], Any],
    left: Collection[int] = (),
    unassigned: Mapping[Any, Any] | None = None,
) -> None:
    """Set options and state in place. `build` turns the plan's values (slots among them) into live ones.

    Parameters at the positions `left` keep the state that they have. `unassigned` is state of no parameter.

    The class's own __setstate__ runs last, so that it adds the options and converts the counters that it wants.
    """
    built = {position: {key: build(value) for key, value in entry.items()} for position, entry in state.items()}
    fresh = {**_left_alone(optimizer, left), **gather(optimizer, built)}
    settings = [{key: build(value) for key, value in group.items()} for group in options]
    _part(optimizer.param_groups, settings)
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        for key in left_over(optimizer, group, values):
            del group[key]
        set_options(group, values)
    _begin_again(optimizer, fresh)
    optimizer.state.clear()
    optimizer.state.update({**fresh, **build(dict(unassigned or {}))})
    optimizer.__setstate__({})


@contextmanager
def same_groups(optimizer: Optimizer) -> Iterator[None]:
    """Keep the list of groups and the groups the objects that they are, whatever a class's own loading puts there."""
    own = vars(optimizer).get("param_groups")
    groups = list(own) if isinstance(own, list) else []
    yield
    loaded = vars(optimizer).get("param_groups")
    if not isinstance(own, list) or not isinstance(loaded, list) or len(loaded) != len(groups):
        return
    for group, new in zip(groups, map(dict, loaded), strict=True):
        group.clear()
        group.update(new)
    own[:] = groups
    optimizer.param_groups = own


def _left_alone(optimizer: Optimizer, positions: Collection[int]) -> dict[torch.Tensor, Any]:
    """The state that some parameters have, as it is."""
    seats = [seat for group in optimizer.param_groups for seat in group_seats(group)] if positions else []
    owners = (seats[position].owner for position in positions)
    return {owner: optimizer.state[owner] for owner in owners if owner in optimizer.state}


def _begin_again(optimizer: Optimizer, kept: dict[torch.Tensor, Any]) -> None:
    """State that the class makes in its constructor, as it makes it, for parameters that have none in `kept`.

    An Adagrad that has lost its accumulators cannot step on every torch; one that kept those of other steps is wrong.
    """
    family = FAMILIES.get(family_of(optimizer))
    for group in optimizer.param_groups if family is not None else ():
        for param in group["params"]:
            entry = optimizer.state.get(param)
            if family is not None and family.begins and entry and param not in kept:
                beside = param.device if counts_on_device(family.name, group) else torch.device("cpu")
                begins = {key: group[value] if isinstance(value, str) else value for key, value in family.begins}
                kept[param] = {key: _begun(entry[key], key, value, param, beside) for key, value in begins.items()}


def _begun(live: torch.Tensor, key: str, value: float, param: torch.Tensor, beside: torch.device) -> torch.Tensor:
    if key in COUNTERS:
        return torch.full_like(live, value, device=beside)
    whole = complex(value, value) if param.is_complex() else value
    return torch.full_like(param, whole, memory_format=torch.preserve_format, requires_grad=False)


def left_over(optimizer: Optimizer, group: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Sums and counters that the class put into its group by stepping, where the saved group had not come to that."""
    gone = group.keys() & RUNNING_OPTIONS - values.keys() - optimizer.defaults.keys() if values else ()
    return list(gone)


def keep_precise(optimizer: Optimizer, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
    """State in the dtype it was saved in where the class's loading, as torch's does, has put it in its parameter's."""
    for param, entry in state.items():
        live = optimizer.state.get(param)
        if isinstance(live, dict):
            live.update({key: _precise(live[key], saved) for key, saved in entry.items() if key in live})


def _precise(live: Any, saved: Any) -> Any:
    if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
        changed = live.dtype != saved.dtype and live.shape == saved.shape and saved.is_floating_point()
        return saved.to(live.device) if changed and live.is_floating_point() else live
    if isinstance(live, list | tuple) and isinstance(saved, list | tuple) and len(live) == len(saved):
        pairs = [_precise(a, b) for a, b in zip(live, saved, strict=True)]
        return pairs if type(live) is list else tuple(pairs) if type(live) is tuple else live
    return live


def _part(groups: Sequence[dict[str, Any]], settings: Sequence[Mapping[str, Any]]) -> None:
    """Give groups that share one tensor option a tensor each where the file has different values for them."""
    first: dict[int, Any] = {}
    for group, values in zip(groups, settings, strict=True):
        for key, value in values.items():
            live = group.get(key)
            if isinstance(live, torch.Tensor) and first.setdefault(id(live), value) is not value:
                other = torch.as_tensor(first[id(live)])
                if not torch.equal(other.cpu(), torch.as_tensor(value, dtype=other.dtype).cpu()):
                    group[key] = live.clone()


def set_options(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set options, writing into a tensor learning rate rather than replacing it: compiled steps hold that tensor."""
    for key, value in values.items():
        group[key] = _fitted(key, group.get(key), value)


def _fitted(key: str, live: Any, value: Any) -> Any:
    """A saved option in the form that the live one has: in its tensor, as a number, as a tuple."""
    if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor | int | float):
        saved = torch.as_tensor(value)
        with torch.no_grad():
            return live.copy_(saved.reshape(live.shape)) if saved.numel() == live.numel() else saved
    if isinstance(live, list | tuple) and isinstance(value, list | tuple):
        kept = live if len(live) == len(value) else [None] * len(value)
        made = [_fitted(key, old, new) for old, new in zip(kept, value, strict=True)]
        return tuple(made) if isinstance(live, tuple) else made
    if key in _NUMBERS and type(live) in (int, float) and isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value
