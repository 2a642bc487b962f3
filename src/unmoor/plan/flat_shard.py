"""What to say where the file of one rank was given, and the shards of the others are needed."""

from __future__ import annotations

from unmoor.values.rank_names import rank_of
from unmoor.values.text import count, listing

from .policy import Fault

__all__ = ["shard_fault"]


def shard_fault(path: str, label: str, what: str, held: int, total: int) -> Fault:
    """`held` of `total` elements of `what` are in the file at `path`, whose name may tell the rank.

    All ranks but the last have equal shares, so the share of the first tells how many there are.
    """
    told = rank_of(path.replace("\\", "/").rpartition("/")[2])
    world = (told[2] or (-(-total // held) if not told[1] and held else 0)) if told else 0
    others = [str(rank) for rank in range(world) if told is None or rank != told[1]]
    needed = f"rank {listing(others)} needed" if others else "those of the other ranks needed"
    text = f"FSDP1 flat shard {held:,} of {count(total, 'element')}{f' of {what}' if what else ''}, {needed}"
    return Fault("mismatch", label, text, "give the folder that holds the files of all ranks")
