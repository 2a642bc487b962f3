"""load: describe -> place -> stream into storages -> the tree, inert or with the classes that were trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.describe.machine import Machine
from unmoor.describe.reading import read_pickle
from unmoor.describe.rebuild import storage_parts
from unmoor.errors import HostileFile, TrustError, UnsupportedFile
from unmoor.execute.streaming import Verify, stream
from unmoor.filing import open_reader, path_text, read
from unmoor.live import devices
from unmoor.live.loading import LiveStorages, refuse_other_order
from unmoor.live.rings import rings_for
from unmoor.live.trees import Realizer
from unmoor.live.trusted import BUILT, Unpickler, trusted_names
from unmoor.plan.byteorder import swap_units
from unmoor.plan.choose import array_nodes
from unmoor.plan.placement import Wish, place_storages
from unmoor.steady import one_reading
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import DTYPES
from unmoor.values.nodes import Storage
from unmoor.values.pausing import collector_paused

from .spans import open_spans, refuse_without_data

__all__ = ["load_tree"]

_MODULE_FIELDS: Final = 4
_EMPTY: Final = ((0,),)
"""The shape with which numpy's own pickles begin an array of any class."""


@one_reading()
def load_tree(
    path: str | os.PathLike[str],
    *,
    model_device: Any,
    map_location: Any,
    trust: Any,
    verify: Verify,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Any:
    """The tree of a file, placed by role."""
    device = devices.resolve(model_device)
    mapping, call = devices.read_map_location(map_location)
    path = path_text(path)
    catalog = describe_path(path)
    refuse_other_order(catalog)
    if mapping is None and call is None and (device is None or device.type != "meta"):
        refuse_without_data(catalog)
    trusted = None if trust is None else trusted_names(trust, catalog.globals)
    wish = Wish(None if device is None else devices.tag(device), mapping, by_call=call is not None)
    placed = place_storages(catalog, wish, devices.available(), devices.of_other_ranks())
    storages = LiveStorages(catalog.storages, placed, swap_units(catalog))
    copies = storages.copies(_names(catalog))
    with open_spans(catalog.path) as open_span:
        sinks = storages.sinks()
        stream(
            copies,
            sinks,
            buffers=rings_for(sink.device for sink in sinks.values()),
            open_span=open_span,
            buffer_bytes=buffer_bytes,
            threads=threads,
            verify=verify,
            progress=progress,
        )
    if call is not None:
        storages.remap(call, _pinned(catalog))
    if trusted is not None:
        return _unpickle(catalog, storages, trusted)
    with collector_paused():  # a tree of very many containers would be gone through again and again
        return Realizer(tensor=storages.tensor, arrays=array_nodes(catalog))(catalog.tree)


def _names(catalog: Catalog) -> dict[str, str]:
    names: dict[str, str] = {}
    for entry in catalog.tensors:
        names.setdefault(entry.storage, entry.path)
    return names


def _pinned(catalog: Catalog) -> frozenset[str]:
    """Storages that stay on the CPU whatever a callable says: random number states."""
    return frozenset(entry.storage for entry in catalog.tensors if entry.role == "rng")


def _refuse_odd_calls(data: bytes, path: str) -> None:
    """Raise HostileFile for containers that are made in ways that no pickler writes: they may be of any size."""
    reading = read_pickle(data, path=path, where=f"{path}: its pickle", persistent=_storage)
    odd = sorted({call.name for call in reading.calls if _is_sized(call.name) and call.args[1:2] != _EMPTY})
    if odd:
        raise HostileFile(
            f"{path} calls {', '.join(odd)} with what no pickler gives it: that could take any amount of memory",
            remedy="Load it without trust=: nothing is called then.",
            path=path,
        )


def _is_sized(name: str) -> bool:
    return name in BUILT or (name.startswith("torch.") and name.endswith("Storage"))


def _storage(machine: Machine, pid: Any) -> Any:
    """What stands for a storage where only the calls of a pickle are looked at."""
    if type(pid) is not tuple or len(pid) == _MODULE_FIELDS:
        return pid
    dtype, key, tag, numel = storage_parts(machine, pid, len(pid))
    machine.charge(6)
    return Storage(key, dtype, numel * DTYPES[dtype].itemsize, tag, None, None)


def _unpickle(catalog: Catalog, storages: LiveStorages, trusted: Mapping[str, Any]) -> Any:
    span = catalog.facts.get("data_pkl")
    if span is None:
        several = "Give one file of it: trust= lets in the classes of one pickle." if catalog.format == "folder" else ""
        raise UnsupportedFile(
            f"{catalog.path} is {catalog.format}: trust= can let no object of such a file in",
            remedy=several,
            path=catalog.path,
        )
    with open_reader(catalog.path) as reader:
        data = read(reader, *span)
    _refuse_odd_calls(data, catalog.path)
    unpickler = Unpickler(data, trusted=trusted, storage=storages.persistent, encoding="utf-8")
    try:
        return unpickler.load()
    except TrustError:
        raise
    except Exception as error:
        raise TrustError(
            f"building the trusted objects of {catalog.path} failed: {type(error).__name__}: {error}",
            details=tuple(f"not trusted: {name}" for name in catalog.globals if name not in trusted and "." in name)[
                :12
            ],
            remedy="Trust the classes that the object is made of as well, or load without trust= to get inert values.",
            path=catalog.path,
        ) from error
