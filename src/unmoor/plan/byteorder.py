"""Storages that a big-endian machine wrote: how many bytes of each are one number, to be turned round.

Pure: catalog in, numbers out. The class of a storage says it, or the tensors on it where it has none.
"""

from __future__ import annotations

from unmoor.errors import UnsupportedFile
from unmoor.values.catalog import Catalog
from unmoor.values.dtypes import DTYPES
from unmoor.values.text import listing

__all__ = ["swap_units"]


def swap_units(catalog: Catalog) -> dict[str, int]:
    """Storage key -> bytes of one number, of the storages in big-endian order.

    Raises UnsupportedFile where tensors of several sizes look into one storage: no one order is right for all.
    """
    big = {storage.key: storage for storage in catalog.storages if storage.byteorder == "big"}
    found: dict[str, dict[int, list[str]]] = {key: {} for key in big}
    for entry in catalog.tensors:
        if entry.storage in big:
            found[entry.storage].setdefault(_unit(entry.dtype), []).append(entry.path)
    mixed = [path for sizes in found.values() if len(sizes) > 1 for paths in sizes.values() for path in paths]
    if mixed:
        raise UnsupportedFile(
            f"{catalog.path} was written on a big-endian machine, and {listing(mixed)} look into one storage as "
            "numbers of several sizes",
            remedy="restore puts each into a live tensor of its own; load cannot keep them on one storage.",
            path=catalog.path,
        )
    return {key: next(iter(found[key]), _unit(storage.dtype)) for key, storage in big.items()}


def _unit(dtype: str) -> int:
    """Bytes of one number: a complex one is two."""
    row = DTYPES[dtype]
    return row.itemsize // 2 if row.family == "complex" else row.itemsize
