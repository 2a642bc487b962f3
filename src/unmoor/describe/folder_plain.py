"""A folder that no table knows: the one checkpoint in it, or files whose contents go together.

Judged by what the files hold. Files that hold the same role are one checkpoint only where each holds nothing else and
its name is not another's with a different number: steps of a run are told apart, and the caller picks one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from unmoor import places
from unmoor.errors import NotACheckpoint, UnsupportedFile
from unmoor.values.catalog import Catalog
from unmoor.values.text import columns, count

from .file import describe_file
from .flat_ranks import describe_ranks, flat_stems
from .folder_index import NUMBERED, describe_index, describe_numbered
from .folder_members import Member, natural
from .folder_merge import together
from .folder_tables import INDEX

__all__ = ["CHECKPOINTS", "describe_plain", "numbered_of", "without_indexed"]

_SURE: Final = (".pt", ".pth", ".ckpt", ".safetensors")
CHECKPOINTS: Final = (*_SURE, ".bin", ".tar", ".pkl")
"""How the names of checkpoints end; other programs use the last three as well, and what is none is passed over."""

_MOST: Final = 64
_AVERAGES: Final = frozenset({"ema", "avg", "average", "averaged", "swa", "shadow"})


def describe_plain(path: str, files: Iterable[str]) -> Catalog | None:
    """The catalog of the checkpoint files of a folder; None where none of them is one.

    Raises NotACheckpoint, with what each file is, where they are several checkpoints.
    """
    names = sorted(without_indexed(name for name in files if name.endswith((*CHECKPOINTS, INDEX))), key=natural)
    of_ranks = _of_ranks(path, names)
    if of_ranks is not None:
        return of_ranks
    numbered = numbered_of(names)
    taken = {name for files, _ in numbered.values() for name in files}
    if len(names) - len(taken) + len(numbered) > _MOST:
        raise NotACheckpoint(
            f"{path} holds {count(len(names), 'file')} that may be checkpoints, of {names[0]} to {names[-1]}",
            remedy="Give one of them.",
            path=path,
        )
    if len(names) == 1 and names[0].endswith(_SURE):
        return _alone(path, names[0])
    found = {name: describe_numbered(path, *group) for name, group in numbered.items()}
    found |= {n: made for n in names if n not in taken and (made := _describe(path, n)) is not None}
    roles = {name: _roles(name, catalog) for name, catalog in found.items()}
    holding = [name for name, held in roles.items() if held]
    if len(holding) == 1 or len(found) == 1:
        only = (holding or list(found))[0]
        return found[only] if only.endswith(INDEX) or only in numbered else _alone(path, only)
    if not found:
        return None
    if not _go_together(roles):
        raise _several(path, found)
    members = [_member(name, roles[name]) for name in found]
    return together(path, "plain", [(member, found[member.file]) for member in members], {}, [])


def _of_ranks(path: str, names: Sequence[str]) -> Catalog | None:
    """The catalog of files that each rank of an FSDP1 run wrote, with the files that lie beside them."""
    stems = flat_stems(names)
    if not stems:
        return None
    taken = {name for files in stems.values() for name in files.values()}
    found = {name: _describe(path, name) for name in names if name not in taken} if len(names) < _MOST else {}
    others = [(_member(name, _roles(name, made)), made) for name, made in found.items() if made is not None]
    return describe_ranks(path, stems, others)


def without_indexed(files: Iterable[str]) -> list[str]:
    """Names of files, without those that an index stands for."""
    names = list(files)
    indexed = tuple(name.removesuffix(INDEX).rpartition(".")[0] for name in names if name.endswith(INDEX))
    return [name for name in names if not (NUMBERED.search(name) and name.startswith(indexed or ("\0",)))]


def numbered_of(names: Iterable[str]) -> dict[str, tuple[list[str], int]]:
    """Files that are one state dict by their names, under what those have alike, with how many there should be."""
    found: dict[str, tuple[list[str], int]] = {}
    for name in names:
        match = NUMBERED.search(name)
        if match:
            files, _ = found.setdefault(f"{name[: match.start()]}.{match[3]}", ([], int(match[2])))
            files.append(name)
    return found


def _describe(path: str, name: str) -> Catalog | None:
    place = places.join(path, name)
    if name.endswith(INDEX):
        return describe_index(place)
    try:
        return describe_file(place, file=name)
    except (NotACheckpoint, UnsupportedFile):
        if name.endswith(_SURE):
            raise
        return None


def _alone(path: str, name: str) -> Catalog:
    return describe_file(places.join(path, name))


def _roles(name: str, catalog: Catalog) -> tuple[str, ...]:
    """The roles that a file holds; one model under an average's name is an average."""
    held = tuple(dict.fromkeys(part.role for part in catalog.parts if part.role != "extra"))
    words = set(re.split(r"[^a-z]+", name.lower()))
    return ("ema",) if held == ("model",) and words & _AVERAGES else held


def _go_together(roles: Mapping[str, Sequence[str]]) -> bool:
    owners: dict[str, list[str]] = {}
    for name, held in roles.items():
        for role in held:
            owners.setdefault(role, []).append(name)
    return not any(_are_rivals(own, roles) for own in owners.values() if len(own) > 1)


def _are_rivals(names: Sequence[str], roles: Mapping[str, Sequence[str]]) -> bool:
    """Whether files that hold the same role are each a checkpoint of its own, or one thing at several steps."""
    stems = {re.sub(r"\d+", "", name) for name in names}
    return len(stems) < len(names) or any(len(roles[name]) > 1 for name in names)


def _member(name: str, held: Sequence[str]) -> Member:
    key = name.removesuffix(INDEX)
    return Member(key=key, file=name, role="ema" if tuple(held) == ("ema",) else "")


def _several(path: str, found: Mapping[str, Catalog]) -> NotACheckpoint:
    rows = [(name, _told(catalog)) for name, catalog in found.items()]
    return NotACheckpoint(
        f"{path} holds {count(len(found), 'checkpoint')} that do not belong together",
        details=columns(rows, indent=0),
        remedy=f"Give one of them: {places.join(path, max(found, key=natural))}",
        path=path,
    )


def _told(catalog: Catalog) -> str:
    roles = dict.fromkeys(part.role for part in catalog.parts if part.role != "extra")
    return ", ".join(roles) or ("plain values" if not catalog.tensors else "tensors of no known role")
