"""Copies of one box on several ranks (a mesh with a replicated dimension), held against each other before a save.

Torch's engine writes one of them, whichever rank has least to write: where they differ, the folder would be a mixture.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from unmoor.errors import RanksDiffer
from unmoor.execute.checksums import crc32
from unmoor.live.content import Content
from unmoor.live.pickling import StorageBlob
from unmoor.values.ranks import ranks_text
from unmoor.values.text import columns, count, key_text

from .meeting import Meeting

__all__ = ["Copies", "copies_of", "packed", "refuse_unequal", "unequal"]

_ROW: Final = Struct("<8sI")
_SHOWN: Final = 20

Copies = dict[bytes, tuple[str, int]]
"""Mark of a box that other ranks may have too -> the path of its tensor, the CRC-32 of its values here."""


def copies_of(content: Content, alive: Callable[[], None]) -> Copies:
    """The boxes of this rank that others may have too. Reads their values once."""
    found: Copies = {}
    for keys, held in content.held.items():
        for box, part in held.parts if held.replicated else ():
            path = key_text(keys)
            values = part.detach().contiguous()
            start = int(values.storage_offset()) * values.itemsize
            blob = StorageBlob(values.untyped_storage(), start, values.numel() * values.itemsize)
            found[hashlib.sha256(f"{path} {box.start}".encode()).digest()[:8]] = path, blob.checksum(crc32, alive)
    return found


def packed(copies: Copies) -> bytes:
    """As they are sent to rank 0."""
    return b"".join(_ROW.pack(mark, crc) for mark, (_, crc) in copies.items())


def unequal(rows: Sequence[bytes]) -> list[str]:
    """The marks, as text, of boxes that are not the same on all ranks that have them, by what every rank sent."""
    first: dict[bytes, int] = {}
    differ: dict[bytes, None] = {}
    for row in rows:
        for mark, crc in _ROW.iter_unpack(row):
            if first.setdefault(mark, crc) != crc:
                differ[mark] = None
    return [mark.hex() for mark in differ]


def refuse_unequal(meeting: Meeting, copies: Copies, marks: Sequence[str], path: str) -> None:
    """Raise RanksDiffer on every rank, naming the tensors whose copies differ and the ranks that have them."""
    here = [bytes.fromhex(mark) for mark in marks if bytes.fromhex(mark) in copies]
    mine = [[copies[mark][0], mark.hex(), copies[mark][1]] for mark in here]
    groups: dict[tuple[str, str], dict[int, list[int]]] = {}
    for rank, row in enumerate(meeting.gather(json.dumps(mine).encode())):
        for name, mark, crc in json.loads(row):
            groups.setdefault((name, mark), {}).setdefault(crc, []).append(rank)
    rows = [(name, _unlike(list(ranks.values()))) for (name, _), ranks in groups.items()]
    more = [f"and {len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else []
    raise RanksDiffer(
        f"{path} was not saved: {count(len(rows), 'part')} of tensors differ between the ranks that have copies; what "
        "was there before is untouched",
        details=[*columns(rows[:_SHOWN], indent=0, gap=3), *more],
        remedy="Ranks along a replicated dimension of a mesh have the same values: these were not kept in step. "
        "Broadcast along it before saving. Models of separate groups of ranks are saved each under a path of its own: "
        "unmoor.save(path, ..., group=group).",
        path=path,
    )


def _unlike(groups: list[list[int]]) -> str:
    return " unlike ".join(map(ranks_text, sorted(groups)))
