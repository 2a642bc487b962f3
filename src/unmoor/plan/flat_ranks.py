"""Models and optimizers of FSDP1 as their ranks saved them, cut into the parameters that the live model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from unmoor.values.catalog import Catalog, Part
from unmoor.values.flat import cut, joined
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.target import Target, TargetModule
from unmoor.values.text import listing

from .flat_optimizer import cut_optimizer
from .flat_shard import shard_fault
from .flat_units import Param, Unit, units_of
from .policy import Fault, Policy

__all__ = ["with_parameters"]

_FLAT: Final = "flat_param"
_SEGMENTS: Final = frozenset({"_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module", "_orig_mod"})


@dataclass(frozen=True, slots=True)
class _Model:
    """A model by parameter. `units` are the FlatParameters that it was cut from, `order` names its parameters."""

    part: Part
    units: list[Unit]
    order: list[str]


def with_parameters(catalog: Catalog, target: Target, policy: Policy) -> tuple[Catalog, list[Fault]]:
    """The same catalog with flat state cut into parameters, and why what is asked for cannot be cut."""
    parts, faults = list(catalog.parts), []
    units: list[Unit] = []
    order = [name for module in target.modules for name, _ in _params(module)]
    for number, part in enumerate(parts):
        if part.role == "model" and target.modules and any(map(_path, _names(part.node))):
            made = _model(catalog, part, target)
            if isinstance(made, Fault):
                faults.append(made)
            else:
                parts[number], units, order = made.part, made.units, made.order
    for number, part in enumerate(parts):
        live = target.optimizers if part.role == "optimizer" else ()
        cuts = [cut_optimizer(catalog.path, part, optimizer, units, order) for optimizer in live]
        if None in cuts and "flat_ranks" not in part.detail:  # it is one's as it stands, and no other's
            continue
        whole = next((state for state in cuts if isinstance(state, Part)), None)
        parts[number] = part if whole is None else whole
        faults += [] if whole is not None else [state for state in cuts if isinstance(state, Fault)]
    asked = [fault for fault in faults if fault.label not in policy.at]
    return replace(catalog, parts=tuple(parts)), asked


def _names(node: Any) -> Iterator[str]:
    return (name for name in node if type(name) is str and _FLAT in name) if isinstance(node, Mapping) else iter(())


def _path(name: str) -> list[str]:
    """The path of the wrapped module whose FlatParameter has this name, and "" at its end; [] for other names."""
    *path, last = name.split(".")
    return [*path, ""] if last.lstrip("_").startswith(_FLAT) else []


def _params(module: TargetModule) -> list[Param]:
    """Name and shape of the parameters of a live module, tied ones by their first name."""
    return [(n, slot.shape) for n, slot in module.slots.items() if n in module.parameters and not slot.alias]


def _model(catalog: Catalog, part: Part, target: Target) -> _Model | Fault:
    faults = []
    for module in target.modules:
        for prefix in _prefixes(part.node):
            entries = {_bare(name, prefix): node for name, node in part.node.items()}
            made = _cut_model(part, entries, module)
            if isinstance(made, _Model):
                return made
            faults.append(made)
    return faults[0] if "flat_ranks" in part.detail else _of_one_rank(catalog, part, target.modules[0], faults[0])


def _cut_model(part: Part, entries: Mapping[str, Any], module: TargetModule) -> _Model | Fault:
    params = _params(module)
    own = {name: node for name, shape in params if (node := _own(entries.get(name), shape)) is not None}
    made = {name: node for name, node in entries.items() if not _path(name)} | own
    if len(own) == len(params):
        return _Model(replace(part, node=made), [], [name for name in entries if name in own])
    flats = {name: node for name, value in entries.items() if _path(name) and (node := _flat(value)) is not None}
    totals = {".".join(_path(name)[:-1]): (name, node.shape[0]) for name, node in flats.items()}
    units = units_of(totals, params, frozenset(own), int(part.detail.get("flat_ranks", 1)))
    if isinstance(units, str):
        return Fault("mismatch", module.label, units, "restore into the model that was saved")
    for unit in units:
        for (name, shape), start in zip(unit.params, unit.starts, strict=True):
            made[name] = cut(f"{unit.name}/{name}", flats[unit.name], start, shape)
    return _Model(replace(part, node=made), units, [name for name, _ in params])


def _own(node: Any, shape: tuple[int, ...]) -> TensorNode | None:
    """What the file holds of a parameter by itself: in its shape, or flat with as many elements."""
    if type(node) is not TensorNode or node.storage is None or node.numel != prod(shape):
        return None
    if node.shape == shape:
        return node
    return cut(f"{node.storage.key}/whole", _end_to_end(node), 0, shape) if len(node.shape) == 1 else None


def _flat(node: Any) -> TensorNode | None:
    """A FlatParameter that can be cut: of all ranks, or of the one rank whose file it is."""
    node = next(iter(node.children.values()), None) if type(node) is CompositeTensor else node
    if type(node) is not TensorNode or node.storage is None or len(node.shape) != 1:
        return None
    return _end_to_end(node)


def _end_to_end(node: TensorNode) -> TensorNode:
    return node if node.storage is None or node.storage.chunks else joined(node.storage.key, [node])


def _bare(name: Any, prefix: str) -> str:
    """A saved name without wrappers' segments, and without what stands before all of them."""
    parts = (part for part in str(name).split(".") if part not in _SEGMENTS)
    return ".".join(parts).removeprefix(prefix)


def _prefixes(node: Any) -> Iterator[str]:
    """What may stand before all names: nothing, or leading segments that all wrapped modules share."""
    yield ""
    paths = [path for name in _names(node) if (path := _path(_bare(name, "")))]
    first = min(paths, key=len)
    for end in range(1, len(first)):
        if all(path[:end] == first[:end] for path in paths):
            yield ".".join(first[:end]) + "."


def _of_one_rank(catalog: Catalog, part: Part, module: TargetModule, fault: Fault) -> Fault:
    """What to say of the file of one rank: how many elements are there, of how many."""
    values = {name: part.node[name] for name in _names(part.node)}
    held = sum(node.shape[0] for value in values.values() if (node := _flat(value)) is not None)
    known = [prod(value.shape) for value in values.values() if type(value) is CompositeTensor]
    total = sum(known) if len(known) == len(values) else sum(prod(shape) for _, shape in _params(module))
    what = listing(list(values), 2)
    return shard_fault(catalog.path, fault.label, what, held, total) if held < total else fault
