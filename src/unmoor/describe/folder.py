"""The way in for a path of any kind: a file, an index, or a folder that is one checkpoint.

A folder is a torch.distributed.checkpoint or a DeepSpeed one, or matches a table of names, or holds files whose
contents go together; anything else is an error that says what lies there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from unmoor import places
from unmoor.errors import CorruptFile, FileError, NotACheckpoint, UnsupportedFile
from unmoor.filing import open_reader, path_text, read
from unmoor.steady import one_reading, refuse_changed
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog
from unmoor.values.text import count, listing

from .complete import METADATA, SHARD, cut_off, newest_complete, real_name, unfinished
from .file import describe_file
from .folder_index import describe_index, describe_numbered, describe_values
from .folder_members import Member, find_table, members_of, natural
from .folder_merge import together
from .folder_plain import CHECKPOINTS, describe_plain, numbered_of, without_indexed
from .folder_tables import INDEX, Table

__all__ = ["describe_path"]

_MAX_NAMES: Final = 100_000
_SHOWN: Final = 8
_MAX_REF: Final = 256
_RANKS: Final = re.compile(r"mp_rank_\d+(?:_\d+)*")
_MEGATRON: Final = "model_optim_rng.pt"
_ITERATION: Final = "latest_checkpointed_iteration.txt"
_STATES: Final = ("_optim_states.pt", "_model_states.pt")
_SHARDED: Final = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")
"""Subfolders that accelerate and transformers write for sharded FSDP state."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """The names in a folder, sorted as people count."""

    path: str
    files: tuple[str, ...]
    folders: tuple[str, ...]


@one_reading()
def describe_path(path: str | os.PathLike[str]) -> Catalog:
    """What is inside a checkpoint: a file (see `describe_file`), an index with its files, or a folder.

    Raises a FileError that names the file at fault; NotACheckpoint, listing what lies there, for a folder that holds
    no checkpoint or several.
    """
    text = path_text(path)
    if older := cut_off(text):
        raise NotACheckpoint(
            f"{text} is not there: a save was killed after it had put the older checkpoint aside",
            details=[f"the older one is whole, in {older}"],
            remedy=f"Rename it to {text}; the next save there does that too.",
            path=text,
        )
    if places.is_folder(text):
        with _same_folder(text):
            return _describe_folder(_listed(text))
    if step := _one_step(text):
        return step
    return describe_index(text) if text.endswith(INDEX) else describe_file(text)


def _one_step(path: str) -> Catalog | None:
    """The files of one step, where a path ends in `*` and what their names end in; None for any other path."""
    name, folder = places.name_of(path), places.parent(path) or os.curdir
    if not name.startswith("*") or places.exists(path) or not places.is_folder(folder):
        return None
    listed = _listed(folder)
    files = tuple(file for file in listed.files if file.endswith(name[1:]))
    table = find_table(files)
    if table is None or not table.step_key:
        return None
    return replace(_describe_table(replace(listed, files=files), table), path=path)


@contextmanager
def _same_folder(path: str) -> Iterator[None]:
    """Raise CorruptFile where a save to `path` puts another folder there: some files would be of the older one."""
    if is_url(path):
        yield
        return
    before, replaced = os.stat(path), f"{path} was replaced by another folder, or removed, while it was read"
    try:
        yield
    except FileError as error:
        if _is_still(before, path) is not True:
            raise CorruptFile(replaced, remedy="Read it again.", path=path) from error
        raise
    if _is_still(before, path) is False:
        raise CorruptFile(replaced, remedy="Read it again.", path=path)
    refuse_changed()


def _is_still(before: os.stat_result, path: str) -> bool | None:
    """Whether a path leads to the same folder; None where it leads nowhere."""
    try:
        return os.path.samestat(before, os.stat(path))
    except OSError:
        return None


def _listed(path: str) -> _Folder:
    files: list[str] = []
    folders: list[str] = []
    for name, is_folder in places.kinds(path):
        (folders if is_folder else files).append(name)
        if len(files) + len(folders) > _MAX_NAMES:
            raise UnsupportedFile(f"{path} holds more than {_MAX_NAMES:,} names: give one file of it", path=path)
    return _Folder(path, tuple(sorted(files, key=natural)), tuple(sorted(folders, key=natural)))


def _text(path: str, most: int) -> str:
    """The beginning of a small text file."""
    with open_reader(path) as reader:
        return read(reader, 0, most).decode(errors="replace").strip()


def _describe_folder(folder: _Folder) -> Catalog:
    table = find_table(folder.files)
    if table is not None:
        return _describe_table(folder, table)
    whole = next((read for fits, read in _WHOLE if fits(folder)), None)
    if whole is not None:
        return whole(folder)
    if any(name.endswith((*CHECKPOINTS, INDEX)) for name in folder.files):
        made = describe_plain(folder.path, folder.files)
        if made is not None:
            return made
    return _below(folder)


def _describe_table(folder: _Folder, table: Table) -> Catalog:
    numbered = numbered_of(without_indexed(folder.files))
    members, step, findings = members_of(table, (*folder.files, *numbered))
    described = [(member, _describe_member(folder.path, member, numbered)) for member in members]
    if _is_deepspeed(folder):
        described.append((Member(key="deepspeed", file="deepspeed"), _deepspeed(folder)))
    elif _is_sharded(folder):
        from .folder_sharded import sharded_members

        described += sharded_members(folder.path, folder.folders)
    values = {table.step_key: step} if table.step_key and step is not None else {}
    return together(folder.path, table.dialect, described, values, findings)


def _describe_member(path: str, member: Member, numbered: Mapping[str, tuple[list[str], int]]) -> Catalog:
    """One member; `numbered` are files that count to a number and have no index, under the name that one would have."""
    place = places.join(path, member.file)
    if member.file in numbered and not places.exists(place):
        return describe_numbered(path, *numbered[member.file])
    if member.file.endswith(INDEX):
        return describe_index(place)
    if member.file.endswith(".json"):
        return describe_values(place)
    return describe_file(place, file=member.file)


def _is_dcp(folder: _Folder) -> bool:
    return METADATA in folder.files or any(name.endswith(SHARD) for name in folder.files)


def _dcp(folder: _Folder) -> Catalog:
    if METADATA not in folder.files:
        newest = newest_complete(folder.path, describe_path)
        instead = f"The newest complete one beside it is {newest}" if newest else "Use the checkpoint before it."
        raise CorruptFile(
            f"{real_name(folder.path)} holds the shards of a distributed checkpoint and no {METADATA}, "
            "which is written last",
            remedy=f"The save was interrupted. {instead}",
            path=folder.path,
        )
    from .dcp import describe_dcp
    from .folder_sharded import META, with_meta

    shards = describe_dcp(folder.path)
    return with_meta(folder.path, shards) if META in folder.files else shards


def _is_sharded(folder: _Folder) -> bool:
    return any(map(_SHARDED.fullmatch, folder.folders))


def _sharded(folder: _Folder) -> Catalog:
    from .folder_sharded import describe_beside_shards, sharded_members

    return describe_beside_shards(folder.path, folder.files, sharded_members(folder.path, folder.folders))


def _is_deepspeed(folder: _Folder) -> bool:
    inside = [name for name in folder.folders if name.startswith("global_step")]
    named = "latest" in folder.files and (bool(inside) or any(_has_states(folder.path, n) for n in folder.folders))
    return named or any(name.endswith(_STATES) for name in folder.files)


def _has_states(path: str, name: str) -> bool:
    return any(inner.endswith(_STATES) for inner in places.names(places.join(path, name)))


def _deepspeed(folder: _Folder) -> Catalog:
    from .zero import describe_zero

    return describe_zero(folder.path)


def _is_megatron(folder: _Folder) -> bool:
    named = _ITERATION in folder.files and any(name.startswith(("iter_", "release")) for name in folder.folders)
    return named or any(_RANKS.fullmatch(name) for name in folder.folders)


def _megatron(folder: _Folder) -> Catalog:
    """One rank is one file; shards of several ranks have to be joined along dimensions that only Megatron knows."""
    if _ITERATION in folder.files:
        word = _text(places.join(folder.path, _ITERATION), 64)
        name = f"iter_{int(word):07d}" if word.isdigit() else word
        if name not in folder.folders:
            raise CorruptFile(
                f"{places.join(folder.path, _ITERATION)} names {word!r}, and there is no folder {name}",
                path=folder.path,
            )
        return describe_path(places.join(folder.path, name))
    ranks = [name for name in folder.folders if _RANKS.fullmatch(name)]
    if len(ranks) > 1:
        raise UnsupportedFile(
            f"{folder.path} holds the shards of {len(ranks)} tensor- or pipeline-parallel ranks of Megatron "
            f"({listing(ranks)}): joining them is not supported yet",
            remedy="Convert it with Megatron's own tools to one rank, or give the file of one rank to look at it.",
            path=folder.path,
        )
    found = describe_file(places.join(folder.path, ranks[0], _MEGATRON))
    return replace(found, dialect="megatron")


def _is_hub(folder: _Folder) -> bool:
    return "blobs" in folder.folders and "snapshots" in folder.folders


def _hub(folder: _Folder) -> Catalog:
    """A repository in the cache of huggingface_hub: the snapshot that `refs/main` names, else the only one."""
    snapshots, main = places.join(folder.path, "snapshots"), places.join(folder.path, "refs", "main")
    if places.is_file(main):
        name = _text(main, _MAX_REF)
        if name in _listed(snapshots).folders:
            return describe_path(places.join(snapshots, name))
    return _below(_listed(snapshots))


def _is_unpacked(folder: _Folder) -> bool:
    return "data.pkl" in folder.files and "version" in folder.files


def _unpacked(folder: _Folder) -> Catalog:
    where, name = os.path.split(os.path.abspath(folder.path))
    raise UnsupportedFile(
        f"{folder.path} is a torch file that was unpacked: its pickle and its storages lie in files of their own",
        remedy=f"Give the file that it was, or pack it again, without compression: "
        f"cd {where} && zip -0 -r {name}.pt {name}",
        path=folder.path,
    )


_WHOLE: Final[tuple[tuple[Callable[[_Folder], bool], Callable[[_Folder], Catalog]], ...]] = (
    (_is_dcp, _dcp),
    (_is_deepspeed, _deepspeed),
    (_is_megatron, _megatron),
    (_is_sharded, _sharded),
    (_is_hub, _hub),
    (_is_unpacked, _unpacked),
)
"""Folders that one reader takes whole."""


_UNFINISHED: Final = f"unfinished: no {METADATA}"


def _below(folder: _Folder) -> Catalog:
    """The one checkpoint that a subfolder is. Raises NotACheckpoint for none and for several."""
    found = dict(_checkpoints_below(folder))
    if len(found) == 1:
        return describe_path(places.join(folder.path, next(iter(found))))
    if not found:
        names = listing([*folder.files, *(f"{name}/" for name in folder.folders)], _SHOWN)
        raise NotACheckpoint(
            f"{folder.path} is a folder that holds no checkpoint",
            details=[f"it holds {names}" if names else "it is empty"],
            path=folder.path,
        )
    whole = [name for name, what in found.items() if what != _UNFINISHED]
    newest = max(whole or found, key=natural)
    more = [f"and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    raise NotACheckpoint(
        f"{folder.path} holds {count(len(found), 'checkpoint')}, each in a folder of its own",
        details=[*(f"{name}: {what}" for name, what in list(found.items())[:_SHOWN]), *more],
        remedy=f"Give one of them. The last by name{' that is complete' if len(whole) < len(found) else ''} is "
        f"{places.join(folder.path, newest)}",
        path=folder.path,
    )


def _checkpoints_below(folder: _Folder) -> Iterator[tuple[str, str]]:
    for name in folder.folders:
        if name.startswith("."):  # what a save that was cut off has left
            continue
        inner = _listed(places.join(folder.path, name))
        table = find_table(inner.files)
        if table is not None:
            yield name, table.dialect
        elif unfinished(inner.path):
            yield name, _UNFINISHED
        elif any(fits(inner) for fits, _ in _WHOLE):
            yield name, "sharded"
        elif any(file.endswith(CHECKPOINTS) for file in inner.files):
            yield name, listing([file for file in inner.files if file.endswith(CHECKPOINTS)], 3)
