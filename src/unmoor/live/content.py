"""What a save writes: live objects as a tree that any torch can read back without running code.

Names are canonical, optimizers carry those of their parameters, numpy data becomes tensors and numbers (noted, so that
it comes back as numpy), and anything that would need code to exist is refused, all of it at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from unmoor.errors import UsageError
from unmoor.values.beside import FROZEN, NAMES
from unmoor.values.finding import Finding
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.pausing import collector_paused
from unmoor.values.plan import Change
from unmoor.values.ranks import RANKS

from . import aside
from . import rng as rng_streams
from .cleaning import Cleaner, depth_refused
from .devices import tag
from .held import Held
from .layouts import dtype_name, strided_parts
from .loaders import loader_setting, refuse_stock, saved_loader, with_loader_generators
from .metrics import with_metric_state
from .modules import is_plain_module, own_state_dict, refuse_flat, state_tensors
from .optimizers import find_optimizer, never_stepped
from .schedulers import find_scheduler, saved_state
from .shards import Key, group_seats, state_dict
from .survey import members, refuse_swapped

__all__ = ["TORCH_VERSION", "Content", "collect", "plain_tree"]

TORCH_VERSION: Final = str(torch.__version__)


@dataclass(slots=True)
class Content:
    """The tree to write, and the facts that the manifest adds.

    `roles` is label -> what it is and where it stands. `arrays` are key paths of tensors that were numpy arrays.
    `tensors` are all tensors met, by key path; `held` those of which other ranks have parts too; `stored` those that
    lie in another file still. `copied` tells that nothing in it is the run's own memory.
    """

    tree: Any
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: list[tuple[Any, ...]] = field(default_factory=list)
    converted: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tensors: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)
    held: dict[tuple[Any, ...], Held] = field(default_factory=dict)
    stored: dict[tuple[Any, ...], TensorNode | CompositeTensor] = field(default_factory=dict)
    parameters: frozenset[tuple[Any, ...]] = frozenset()
    world_size: int = 1
    ranks: dict[str, dict[str, Any]] = field(default_factory=dict)
    copied: bool = False

    def promise(self) -> dict[tuple[Any, ...], tuple[tuple[int, ...], str]]:
        """Shape and dtype of every strided tensor by key path: what must be found in the file."""
        return {
            (*keys, name) if name else keys: (tuple(part.shape), dtype_name(part.dtype))
            for keys, tensor in self.tensors.items()
            for name, part in strided_parts(tensor).items()
        }

    def counts(self) -> dict[str, tuple[int, int]]:
        """Role -> tensors and bytes."""
        counts: dict[str, tuple[int, int]] = {}
        roles = {role["role"] for role in self.roles.values()}
        ranked = self.world_size > 1

        def add(keys: tuple[Any, ...], nbytes: int) -> None:
            place = keys[2:] if ranked and keys[:1] == (RANKS,) else keys
            role = str(place[0]) if place and place[0] in roles else "extra"
            number, total = counts.get(role, (0, 0))
            counts[role] = (number + 1, total + nbytes)

        for keys, tensor in self.tensors.items():
            add(keys, sum(part.numel() * part.itemsize for part in strided_parts(tensor).values()))
        for keys, held in self.held.items():
            add(keys, held.shape.numel() * held.dtype.itemsize)
        return counts


@collector_paused()
def plain_tree(tree: Any) -> Content:
    """A tree as given to torch.save, ready to write. Raises UsageError naming every value that would need code."""
    content = Content(tree=None)
    cleaner = Cleaner(content)
    with depth_refused():
        content.tree = cleaner.clean(tree, ())
    cleaner.complain()
    return content


@collector_paused()
def collect(roles: Mapping[str, Any], extra: Mapping[str, Any], *, rng: bool, generators: Mapping[str, Any]) -> Content:
    """The state of all objects that were passed, and of the random number streams.

    Raises UsageError for keys used twice and for values that no checkpoint without code can hold.
    """
    tree: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    names = _names(roles)
    findings: list[Finding] = []
    parameters: list[tuple[Any, ...]] = []
    for role, value in roles.items():
        for label, key, item in members(role, value):
            refuse_swapped(role, label, item)
            state, facts = _state(role, label, item, names)
            findings += never_stepped(role, label, item)
            if key is None:
                tree[role] = state
            else:
                tree.setdefault(role, {} if isinstance(value, Mapping) else [])
                _put(tree[role], key, state)
            keys = [role] if key is None else [role, key]
            parameters += [(*keys, name) for name in facts.pop("parameters", ())]
            found[label] = {"role": role, "keys": keys, **facts}
    if rng:
        passed = {label: item for role, value in roles.items() for label, _, item in members(role, value)}
        tree["rng"] = rng_streams.capture(with_loader_generators(passed, generators))
        found["rng"] = {"role": "rng", "keys": ["rng"], "streams": _owners(tree["rng"])}
    for key, value in extra.items():
        refuse_stock(key, value)
    tree.update(extra)
    content = plain_tree(tree)
    content.roles, content.findings = found, findings
    content.parameters = frozenset(keys for keys in parameters if keys in content.tensors)
    return content


def _put(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, list):
        container.append(value)
    else:
        container[key] = value


def _owners(states: Mapping[str, Any]) -> list[str]:
    devices = [f"{kind}:{i}" for kind, found in states.get("devices", {}).items() for i in range(len(found))]
    return [*(k for k in ("torch", "numpy", "python") if k in states), *devices, *states.get("generators", {})]


def _names(roles: Mapping[str, Any]) -> dict[Key, str]:
    """Canonical name of every parameter by its key; prefixed by its label unless it is the only model's."""
    modules = [
        (role, label, m) for role, v in roles.items() for label, _, m in members(role, v) if isinstance(m, nn.Module)
    ]
    many = sum(role == "model" for role, _, _ in modules) > 1
    names: dict[Key, str] = {}
    for role, label, module in modules:
        prefix = "" if role == "model" and not many else f"{label}:"
        view = state_tensors(module)
        for name in view.tensors:
            names.setdefault(view.key(name), prefix + name)
    return names


def _state(role: str, label: str, item: Any, names: Mapping[Key, str]) -> tuple[Any, dict[str, Any]]:
    """The state of one object and what the manifest says of it, with the names of a module's parameters."""
    facts: dict[str, Any] = {"class": f"{type(item).__module__}.{type(item).__qualname__}"}
    item = with_metric_state(item)
    optimizer = find_optimizer(item) if role == "optimizer" or isinstance(item, torch.optim.Optimizer) else None
    if optimizer is not None:
        state, own = _optimizer_state(
            optimizer, names, state_dict(optimizer) if optimizer is item else item.state_dict()
        )
        return state, {**facts, "names": own}
    if isinstance(item, nn.Module) and is_plain_module(item):
        view = state_tensors(item)
        facts |= {"wrappers": list(view.wrappers), "devices": sorted({tag(t.device) for t in view.tensors.values()})}
        return _module_state(view), {**facts, "parameters": view.parameters}
    if isinstance(item, nn.Module):
        refuse_flat(label, item)
        view = state_tensors(item)
        return own_state_dict(item), {**facts, "wrappers": list(view.wrappers), "parameters": view.parameters}
    if loader_setting(item) is not None:
        return saved_loader(item), {**facts, "position": True}
    if callable(getattr(item, "state_dict", None)):
        return saved_state(item) if find_scheduler(item) is not None else item.state_dict(), facts
    if isinstance(item, Mapping | list | tuple):
        return item, facts
    refuse_stock(label, item)
    raise UsageError(
        f"{label}= was given a {type(item).__module__}.{type(item).__qualname__}, which has no state_dict",
        remedy="Pass an object with state_dict and load_state_dict, or plain values under another keyword.",
    )


def _module_state(view: Any) -> OrderedDict[str, Any]:
    """The state of a module; a tensor of several ranks that bears two names is one object under both."""
    state: OrderedDict[str, Any] = OrderedDict()
    held: dict[Key, Held] = {}
    for name, tensor in view.tensors.items():
        if isinstance(tensor, UninitializedTensorMixin):
            raise UsageError(
                f"{name} has no shape yet: a lazy module saves nothing", remedy="Run one forward pass first."
            )
        state[name] = held.setdefault(view.key(name), tensor) if isinstance(tensor, Held) else tensor.detach()
    for name, module in view.extra.items():
        state[name] = module.get_extra_state()
    state._metadata = OrderedDict(view.metadata)  # type: ignore[attr-defined]
    return state


def _optimizer_state(optimizer: Any, names: Mapping[Key, str], own: Any) -> tuple[Any, list[str] | None]:
    """An optimizer's own state dict, with the names of its parameters and what is kept for frozen ones beside it.

    The names stand beside the groups: in them, where torch has a place for names, they would end up in the groups of an
    optimizer that loads the file and keep it from taking another group without names.
    """
    known = [[names.get(seat.key, "") for seat in group_seats(group)] for group in optimizer.param_groups]
    flat = [name for group in known for name in group]
    groups = own.get("param_groups") if isinstance(own, Mapping) else None
    if not isinstance(groups, list) or [len(group["params"]) for group in groups] != list(map(len, known)):
        return own, None
    state = dict(own)
    frozen = aside.kept(optimizer, without=set(flat))
    if frozen:
        state[FROZEN] = frozen
    if not all(flat) or len(set(flat)) != len(flat):
        return state, None
    state[NAMES] = known
    return state, flat
