"""Storages of which every rank has read a part, held against their checksums: the ranks put their sums together."""

from __future__ import annotations

import json
from typing import Final

from unmoor.distributed.meeting import Meeting
from unmoor.errors import CorruptFile
from unmoor.execute.together import mark_of, packed, put_together
from unmoor.values.text import count, listing

from .carrying import Carrying

__all__ = ["prove_parts"]

_MOST: Final = 64 << 20
"""Bytes of sums that rank 0 takes from all ranks together: enough for some 200,000 tensors on eight of them."""


def prove_parts(meeting: Meeting, carrying: Carrying, path: str) -> CorruptFile | None:
    """Hold what all ranks have read against the checksums; the error where one does not hold, the same on all ranks.

    Each rank reads nothing again. What the ranks have not read wholly between them stays as it was: not checked.
    """
    parts = carrying.parts
    rows = meeting.to_first(packed(parts, most=_MOST // meeting.size))
    answer = None if rows is None else json.dumps([[m.hex() for m in marks] for marks in put_together(rows)]).encode()
    good, bad = json.loads(meeting.from_first(answer))
    keys = {mark_of(part.storage).hex(): part.storage.key for part in parts}
    carrying.vouch(keys[mark] for mark in good if mark in keys)
    if not bad:
        return None
    names = carrying.paths_on({keys[mark] for mark in bad if mark in keys})
    whose = listing(names) if names else f"{count(len(bad), 'storage')} that other ranks hold"
    return CorruptFile(
        f"{path}: the data of {whose} does not match its checksum",
        details=["each rank read a part; the sums of all of them together are not what was saved"],
        remedy="The live objects hold damaged values: restore another checkpoint before training on.",
        path=path,
    )
