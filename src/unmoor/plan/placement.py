"""Where a bare load puts each storage: the role table, applied to a file without a live run.

RNG state is on the CPU whatever is asked. A stored device that is absent here, with none asked for, is an error that
names the tags and the call that would work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unmoor.errors import DeviceError
from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.nodes import Opaque
from unmoor.values.optimizers import COUNTERS, counts_on_device
from unmoor.values.roles import ROLES
from unmoor.values.tags import normalize_tag, split_tag
from unmoor.values.text import columns, count

from .pickled import STEP, pickled_roles

__all__ = ["Wish", "is_present", "place_storages", "wished"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for: one device for what a model_device moves, or a map_location in torch's meaning.

    `mapping` is a tag for everything, a mapping from tag to tag, or None. `by_call` tells that a callable decides.
    """

    device: str | None = None
    mapping: str | Mapping[str, str] | None = None
    by_call: bool = False


def place_storages(
    catalog: Catalog, wish: Wish, present: Mapping[str, int], others: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Storage key -> device. `present` is device type -> number of devices here.

    `others` are the devices that are those of other ranks on this machine, and their local ranks. Raises DeviceError,
    naming every absent device with its tensors and roles, and those of other ranks where nothing was asked for.
    """
    placed = wished(catalog, wish)
    _refuse_absent(catalog, placed, wish, present)
    if wish == Wish():
        _refuse_of_others(catalog, placed, others or {})
    return placed


def wished(catalog: Catalog, wish: Wish) -> dict[str, str]:
    """Storage key -> device, whether this machine has it or not."""
    roles = {**_entry_roles(catalog), **pickled_roles(catalog)}
    return {s.key: _place(roles.get(s.key, frozenset()), s.device, wish) for s in catalog.storages}


def is_present(tag: str, present: Mapping[str, int]) -> bool:
    """Whether the device that a tag names is among `present`."""
    kind, index = split_tag(tag)
    return (index or 0) < present.get(kind, 0)


def _place(roles: frozenset[str], stored: str, wish: Wish) -> str:
    if roles == {"rng"} or wish.by_call:
        return "cpu"
    if wish.device is not None:
        return _beside(roles, stored, wish.device)
    if isinstance(wish.mapping, str):
        return wish.mapping
    tag = _normal(stored)
    return tag if wish.mapping is None else wish.mapping.get(tag, tag)


def _beside(roles: frozenset[str], stored: str, device: str) -> str:
    placements = {"cpu" if role == STEP else ROLES[role].placement for role in roles if role in ROLES or role == STEP}
    if placements & {"device", "parameter"}:
        return device
    if placements & {"cpu", "live"}:
        return "cpu"
    return "cpu" if _normal(stored) == "cpu" else device


def _entry_roles(catalog: Catalog) -> dict[str, frozenset[str]]:
    """Storage key -> roles of the tensors in it, as the catalog has them."""
    flags = _device_steps(catalog)
    owners: dict[str, set[str]] = {}
    for entry in catalog.tensors:
        host = entry.role == "optimizer" and _is_host_scalar(entry, flags)
        owners.setdefault(entry.storage, set()).add(STEP if host else entry.role)
    return {key: frozenset(roles) for key, roles in owners.items()}


def _is_host_scalar(entry: TensorEntry, flags: Mapping[tuple[Any, ...], frozenset[Any]]) -> bool:
    if not entry.keys or entry.keys[-1] not in COUNTERS:
        return False
    on_device = flags.get(entry.keys[:-3], frozenset())
    return len(entry.keys) < 2 or entry.keys[-2] not in on_device


def _device_steps(catalog: Catalog) -> dict[tuple[Any, ...], frozenset[Any]]:
    """Key path of an optimizer -> ids of parameters whose group keeps counters on the device."""
    found = {}
    for part in catalog.part("optimizer"):
        node = part.node.state if isinstance(part.node, Opaque) else part.node
        groups = node.get("param_groups") if isinstance(node, Mapping) else ()
        groups = [group for group in groups if isinstance(group, Mapping)] if isinstance(groups, list) else []
        family = str(part.detail.get("family", ""))
        ids = [i for group in groups if counts_on_device(family, group) for i in group.get("params", ())]
        found[part.keys] = frozenset(ids)
    return found


def _normal(tag: str) -> str:
    try:
        return normalize_tag(tag)
    except ValueError:
        return tag


_REMEDY: Final = 'Say where it should go: unmoor.load({path!r}, model_device="auto"), or map_location={mapping}.'


def _refuse_absent(catalog: Catalog, placed: Mapping[str, str], wish: Wish, present: Mapping[str, int]) -> None:
    absent = sorted({device for device in placed.values() if device != "meta" and not _is_here(device, present)})
    if not absent:
        return
    here = _devices_here(present)
    asked = [device for device in absent if device in _asked(wish)]
    if asked:
        raise DeviceError(
            f"{' and '.join(asked)} was asked for, and this machine does not have it",
            details=(f"present here: {', '.join(here)}",),
            remedy='Pass model_device="auto" for the accelerator if there is one and the CPU if not.',
            path=catalog.path,
        )
    kinds = sorted({device.partition(":")[0] for device in absent})
    lacks = f"only {', '.join(here)}"
    if not any(kind in present for kind in kinds):
        lacks = f"no {' or '.join(map(_spelled, kinds))} device"
    mapping = {**(wish.mapping if isinstance(wish.mapping, Mapping) else {}), **dict.fromkeys(absent, "cpu")}
    raise DeviceError(
        f"{catalog.path} was saved on {' and '.join(absent)}, and this machine has {lacks}",
        details=columns([_row(catalog, placed, device) for device in absent], indent=0, gap=3),
        remedy=_REMEDY.format(path=catalog.path, mapping=str(mapping).replace("'", '"')),
        path=catalog.path,
    )


def _refuse_of_others(catalog: Catalog, placed: Mapping[str, str], others: Mapping[str, int]) -> None:
    """Refuse to put a file where it was stored if all of that is another rank's, as every rank would then do."""
    devices = sorted({device for device in placed.values() if device not in ("cpu", "meta")})
    if not devices or not all(device in others for device in devices):
        return
    ranks = " and ".join(f"{device}, the device of local rank {others[device]}" for device in devices)
    same = str({device: device for device in devices}).replace("'", '"')
    raise DeviceError(
        f"{catalog.path} was saved on {ranks}, and this rank would put it there too",
        details=columns([_row(catalog, placed, device) for device in devices], indent=0, gap=3),
        remedy=f'Each rank to its own device: unmoor.load({catalog.path!r}, model_device="auto"). There all the same: '
        f"map_location={same}.",
        path=catalog.path,
    )


def _asked(wish: Wish) -> tuple[str, ...]:
    """The devices that the caller named as a place to go to."""
    named = wish.mapping.values() if isinstance(wish.mapping, Mapping) else (wish.mapping,)
    return tuple(device for device in (wish.device, *named) if device is not None)


def _devices_here(present: Mapping[str, int]) -> list[str]:
    kinds = [(kind, number) for kind, number in present.items() if kind != "meta"]
    return [kind if kind in ("cpu", "mps") else f"{kind}:{i}" for kind, number in kinds for i in range(number)]


def _spelled(kind: str) -> str:
    return kind.upper() if kind in ("cuda", "mps", "xpu", "hpu", "xla", "npu", "mtia") else kind


def _is_here(device: str, present: Mapping[str, int]) -> bool:
    try:
        return is_present(device, present)
    except ValueError:
        return False


def _row(catalog: Catalog, placed: Mapping[str, str], device: str) -> tuple[str, str, str]:
    entries = [entry for entry in catalog.tensors if entry.storage and placed.get(entry.storage) == device]
    roles = ", ".join(dict.fromkeys(entry.role for entry in entries))
    return device, count(len(entries), "tensor"), roles
