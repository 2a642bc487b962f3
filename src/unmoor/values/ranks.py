"""How a checkpoint of several ranks keeps what is not the same on all of them.

The tree is that of rank 0. Beside it, under `RANKS`, stand for each other rank that differs (by its number as text) the
leaves in which it does, at the same key paths; an element of a list by its index as text. The manifest says how many
ranks there were (`world_size`), and for each rank under `ranks` which of its leaves replace a whole container
(`whole`) and which keys of the root it lacks (`absent`). Must not know torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["DEEPEST", "RANKS", "Keys", "is_index", "is_rank", "ranks_recorded", "ranks_text", "saved_world"]

Keys = tuple[Any, ...]

RANKS: Final = "ranks"

DEEPEST: Final = 32
"""How many levels of containers are compared leaf by leaf; what lies deeper is one leaf."""

_MOST: Final = 1 << 20
_DIGITS: Final = 18
"""Digits of the largest index that counts as one."""


def saved_world(manifest: Mapping[str, Any] | None) -> int:
    """How many ranks saved a checkpoint, by its manifest; 1 where it does not say."""
    world = (manifest or {}).get("world_size", 1)
    return world if type(world) is int and 1 <= world <= _MOST else 1


def ranks_recorded(manifest: Mapping[str, Any] | None) -> dict[int, Mapping[str, Any]]:
    """Rank -> what the manifest says of its own leaves; anything malformed counts for nothing."""
    recorded = (manifest or {}).get(RANKS)
    rows = recorded.items() if isinstance(recorded, Mapping) else ()
    world = saved_world(manifest)
    found = {int(rank): row for rank, row in rows if is_rank(rank) and isinstance(row, Mapping)}
    return {rank: row for rank, row in found.items() if 0 < rank < world}


def is_index(key: Any) -> bool:
    """Whether a key of a rank's own leaves is the index of an element of a list, as a number or as its text.

    >>> [is_index(key) for key in ("0", "12", 3, "01", "-1", "1" * 5000)]
    [True, True, True, False, False, False]
    """
    if type(key) is int:
        return key >= 0
    plain = isinstance(key, str) and len(key) <= _DIGITS and key.isascii() and key.isdecimal()
    return plain and (key == "0" or key[0] != "0")


def is_rank(key: Any) -> bool:
    """Whether a key is the number of a rank other than 0, as text."""
    return isinstance(key, str) and key != "0" and is_index(key)


def ranks_text(ranks: list[int]) -> str:
    """Ranks as a person lists them.

    >>> ranks_text([2]), ranks_text([1, 2]), ranks_text([0, 2, 3, 4, 7])
    ('rank 2', 'ranks 1 and 2', 'ranks 0, 2 to 4 and 7')
    """
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    words = []
    for first, last in runs:
        words += [f"{first} to {last}"] if last > first + 1 else [str(rank) for rank in range(first, last + 1)]
    head = ", ".join(words[:-1])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {head}{' and ' if head else ''}{words[-1]}"
