"""JSON beside checkpoints: plain values, and the index of a state dict that lies in several files.

An index is what transformers and accelerate write: `{"weight_map": {name: file}}`, the files beside it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor import places
from unmoor.errors import CorruptFile, FileError, HostileFile, UnsupportedFile
from unmoor.filing import open_reader, read, why_absent
from unmoor.values.catalog import Catalog, Part
from unmoor.values.finding import Finding
from unmoor.values.nodes import CompositeTensor, TensorNode
from unmoor.values.text import count, format_bytes, listing

from .file import describe_file
from .folder_merge import joined

__all__ = ["NUMBERED", "describe_index", "describe_numbered", "describe_values", "read_weight_map"]

NUMBERED: Final = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
"""How the names of files end that are one state dict together."""

_MAX_JSON: Final = 64 << 20
_MAX_SHARDS: Final = 10_000
_SHOWN: Final = 8


def describe_values(path: str) -> Catalog:
    """A JSON file of plain values as a catalog without tensors."""
    value, size = _read_json(path)
    kind = "mapping" if type(value) is dict else "sequence" if type(value) is list else "value"
    part = Part("extra", kind, (), 0, 0, {}, node=value)
    return Catalog(path, "json", "plain", (), (part,), (), (), size=size, tree=value)


def describe_index(path: str) -> Catalog:
    """One state dict out of all files that an index names. Raises CorruptFile where one is absent or lacks a tensor."""
    value, size = _read_json(path)
    wanted = _weight_map(path, value)
    folder = places.parent(path)
    files = list(dict.fromkeys(wanted.values()))
    absent = [_absent(folder, file) for file in files if not places.is_file(places.join(folder, file))]
    if absent:
        raise CorruptFile(
            f"{path} names {count(len(files), 'file')}, and {len(absent)} of them "
            f"{'is' if len(absent) == 1 else 'are'} not beside it: {listing(absent, _SHOWN)}",
            remedy="The copy of the folder, or the save, is not complete. Copy it again.",
            path=path,
        )
    shards = {file: _shard(places.join(folder, file), file) for file in files}
    tree = _merged(path, shards, wanted)
    stray = [name for name in tree if name not in wanted]
    findings = []
    if stray:
        message = f"{count(len(stray), 'tensor')} that the index does not name: {listing(stray)}"
        findings.append(Finding("not-in-index", "warning", "", message))
    return joined(path, size, shards, tree, findings)


def describe_numbered(path: str, files: Sequence[str], number: int) -> Catalog:
    """One state dict out of `files` of a folder, whose names count to `number`, where no index says what is in which.

    Raises CorruptFile where one of that many is absent, or two hold a tensor of the same name.
    """
    if len(files) != number:
        raise CorruptFile(
            f"{path} holds {len(files)} of the {number} files of one state dict",
            details=[f"absent: {listing(_gaps(files), _SHOWN)}"],
            remedy="The copy of the folder, or the save, is not complete. Copy it again.",
            path=path,
        )
    shards = {file: _shard(places.join(path, file), file) for file in files}
    message = f"no index beside {count(number, 'numbered file')}: they were taken together by their names"
    return joined(path, 0, shards, _merged(path, shards, {}), [Finding("no-index", "info", "", message)])


def _gaps(files: Sequence[str]) -> list[str]:
    """The numbers that are in no name, of names that count from 00000 or 00001."""
    there = {match[1]: match[2] for file in files if (match := NUMBERED.search(file))}
    first, number = 0 if "00000" in there else 1, int(next(iter(there.values())))
    last = min(number + first, first + _MAX_SHARDS)
    return [f"{i:05d}-of-{number:05d}" for i in range(first, last) if f"{i:05d}" not in there]


def _absent(folder: str, file: str) -> str:
    return f"{file} ({why_absent(os.path.join(folder, file))})" if os.path.islink(os.path.join(folder, file)) else file


def _shard(path: str, file: str) -> Catalog:
    """One of the files, without the finding that it is one."""
    found = describe_file(path, file=file)
    return replace(found, findings=tuple(f for f in found.findings if f.code != "shard-of-index"))


def _read_json(path: str) -> tuple[Any, int]:
    with open_reader(path) as reader:
        if reader.size > _MAX_JSON:
            raise HostileFile(f"{path} is JSON of {format_bytes(reader.size)}", path=path)
        data = read(reader, 0, reader.size)
    try:
        return json.loads(data.decode("utf-8")), len(data)
    except (ValueError, RecursionError) as fault:
        raise CorruptFile(
            f"{path} is no JSON: {fault}",
            remedy="The save or the copy was cut short. Copy it again, or use the checkpoint before it.",
            path=path,
        ) from None


def read_weight_map(path: str) -> dict[str, str]:
    """Name of a tensor -> the file beside the index `path` that holds it. Raises CorruptFile where it is no index."""
    return _weight_map(path, _read_json(path)[0])


def _weight_map(path: str, value: Any) -> dict[str, str]:
    found = value.get("weight_map") if type(value) is dict else None
    if type(found) is not dict or not found or not all(type(file) is str for file in found.values()):
        raise CorruptFile(f"{path} is no index of a checkpoint: it has no weight_map of names and files", path=path)
    outside = [file for file in found.values() if not file or file != os.path.basename(file) or "\\" in file]
    if outside:
        raise HostileFile(f"{path} names files that do not lie beside it: {listing(outside, 2)}", path=path)
    if len(set(found.values())) > _MAX_SHARDS:
        raise HostileFile(f"{path} names more than {_MAX_SHARDS:,} files", path=path)
    return found


def _merged(path: str, shards: Mapping[str, Catalog], wanted: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for file, shard in shards.items():
        if not _is_state_dict(shard.tree):
            raise UnsupportedFile(f"{shard.path}, which {path} names, is no state dict", path=shard.path)
        twice = [name for name in shard.tree if name in tree]
        if twice:
            raise CorruptFile(f"{path}: {listing(twice)} is in {file} and in another of its files", path=path)
        tree.update(shard.tree)
    lacking = [f"{name} is not in {file}" for name, file in wanted.items() if name not in shards[file].tree]
    if lacking:
        raise _lacking(path, lacking)
    return tree


def _is_state_dict(tree: Any) -> bool:
    return isinstance(tree, Mapping) and all(
        type(name) is str and isinstance(value, TensorNode | CompositeTensor) for name, value in tree.items()
    )


def _lacking(path: str, lacking: list[str]) -> FileError:
    more = [f"and {len(lacking) - _SHOWN:,} more"] if len(lacking) > _SHOWN else []
    return CorruptFile(
        f"{path} and its files contradict each other: {count(len(lacking), 'tensor')} are not where it says",
        details=[*lacking[:_SHOWN], *more],
        remedy="Files of two checkpoints lie in one folder, or the copy is not complete.",
        path=path,
    )
