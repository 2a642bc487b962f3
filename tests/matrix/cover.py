"""A fixed rule that takes a part of a large product of axes and still meets every pair of values.

Cells are taken in the order of a checksum of their names, those with many pairs of values that no cell has shown yet
first. A cell that turns out illegal shows nothing: its pairs are tried again, `TRIES` times at most, then once more as
often where nothing else about the cell is in doubt. No choice depends on whether a cell is equal.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

__all__ = ["TRIES", "pairs_of", "pairwise"]

T = TypeVar("T")
R = TypeVar("R")
Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]

TRIES: Final = 6
ROUNDS: Final = (10, 6, 3, 2, 1)
"""How many new pairs a cell must show to be taken, round by round."""

LAST: Final = 0
"""The round of cells with one pair in doubt."""


def pairs_of(factors: Mapping[str, Hashable]) -> frozenset[Pair]:
    """Every pair of (axis, value) of one cell."""
    return frozenset(itertools.combinations(sorted(factors.items(), key=lambda item: item[0]), 2))


def pairwise(
    cells: Iterable[T],
    factors: Callable[[T], Mapping[str, Hashable]],
    run: Callable[[T], R],
    legal: Callable[[R], bool],
) -> Iterator[R]:
    """Run the cells that the rule takes, and yield what they give."""
    shown: set[Pair] = set()
    tries: Counter[Pair] = Counter()
    left = [(cell, pairs_of(factors(cell))) for cell in sorted(cells, key=lambda cell: zlib.crc32(str(cell).encode()))]
    for enough in (*ROUNDS, LAST):
        doubted = {pair for pair, number in tries.items() if number >= TRIES} - shown
        if enough == LAST:
            tries.clear()
        waiting = []
        for cell, pairs in left:
            fresh = {pair for pair in pairs - shown if tries[pair] < TRIES}
            wanted = len(fresh) >= enough if enough != LAST else len(fresh) == len(pairs & doubted) == 1
            if not wanted:
                waiting.append((cell, pairs))
                continue
            result = run(cell)
            if legal(result):
                shown |= pairs
            else:
                tries.update(fresh)
            yield result
        left = waiting
