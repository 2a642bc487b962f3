"""convert to a folder of safetensors files and their index, as the hub of Hugging Face wants large models.

No file is larger than asked, but for one tensor that alone is. The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

from unmoor.describe import describe_path
from unmoor.execute.folder_commit import publish_folder, staged
from unmoor.values.report import Receipt

from .converting_file import hold_against
from .converting_flat import Flat, bytes_of, check_flat, flat_of, head_of, write_file
from .converting_meter import Meter

if TYPE_CHECKING:
    from unmoor.distributed.stored_sources import Sources
    from unmoor.live.content import Content
    from unmoor.plan.taken import Taken

__all__ = ["write_shards"]

_INDEX: Final = "model.safetensors.index.json"
_OWN: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def write_shards(
    target: str, content: Content, taken: Taken, sources: Sources, meter: Meter, *, most: int
) -> tuple[Receipt, tuple[str, ...]]:
    """Write the tensors of the tree into files of at most `most` bytes in the folder `target`; their names too."""
    target = target.rstrip("/" + os.sep) or target
    flat = flat_of(target, content, taken)
    check_flat(flat, sources)
    total = sum(bytes_of(node) for node in flat.nodes.values())
    meter.total(total)
    shards = _shards(flat, most)
    with staged(target, total, own=lambda name: _OWN.fullmatch(name) is not None) as staging:
        folder = staging.beside(target)
        sizes = {}
        for name, held in shards.items():
            head, order = head_of(flat, held, target)
            sizes[name] = write_file(os.path.join(folder, name), flat, head, order, sources, meter)
            _sync(os.path.join(folder, name))
        whole = _index(folder, shards, total)
        sizes[os.path.basename(whole)] = os.stat(whole).st_size
        meant = [entry for entry in taken.tensors if entry.path in flat.nodes]
        hold_against(describe_path(whole).tensors, meant, target)
        publish_folder(staging, target)
    told = (*content.converted, *flat.converted)
    return Receipt(target, sum(sizes.values()), 0.0, {}, converted=told), tuple(sorted(sizes))


def _shards(flat: Flat, most: int) -> dict[str, list[str]]:
    """Name of a file -> names of the tensors in it, filled in the order of the model."""
    groups: list[list[str]] = []
    room = 0
    for name, node in flat.nodes.items():
        nbytes = bytes_of(node)
        if not groups or nbytes > room:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= nbytes
    if len(groups) < 2:
        return {"model.safetensors": groups[0] if groups else []}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def _index(folder: str, shards: dict[str, list[str]], total: int) -> str:
    """Write the index where there are several files; the path by which they are read as one."""
    if len(shards) == 1:
        return os.path.join(folder, next(iter(shards)))
    places = {name: file for file, held in shards.items() for name in held}
    path = os.path.join(folder, _INDEX)
    with open(path, "x", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, file, indent=2)
    _sync(path)
    return path


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
