"""Files of which every rank wrote one, told by their names. Pure: names in, groups of names out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["rank_of", "ranked"]

_WORD: Final = re.compile(r"rank[_-]?(\d{1,9})")
_LAST: Final = re.compile(r"[._-](\d{1,9})(?=\.[A-Za-z]+$)")
_WORLD: Final = re.compile(r"world[_-]?size[_-]?(\d{1,9})|(?<=[._-])of[_-]?(\d{1,9})")


def rank_of(name: str) -> tuple[str, int, int | None] | None:
    """What the files of all ranks are called with `*` for the rank, the rank, and the number of ranks if named.

    >>> rank_of("optim_rank0.pt"), rank_of("model_world_size_4_rank_3.pt"), rank_of("model.pt")
    (('optim_rank*.pt', 0, None), ('model_world_size_4_rank_*.pt', 3, 4), None)
    """
    match = next(reversed(list(_WORD.finditer(name))), None) or _LAST.search(name)
    if match is None:
        return None
    stem = f"{name[: match.start(1)]}*{name[match.end(1) :]}"
    world = _WORLD.search(stem)
    return stem, int(match[1]), int(world[1] or world[2]) if world else None


def ranked(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Name with `*` for the rank -> file by rank, for names of which two or more ranks wrote one."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        told = rank_of(name)
        if told is not None:
            found.setdefault(told[0], {})[told[1]] = name
    return {stem: dict(sorted(files.items())) for stem, files in found.items() if len(files) > 1}
