"""How DeepSpeed cuts parameters into flat shares, one on each rank, for any number of ranks. Pure arithmetic.

Stages 1 and 2 flatten a parameter group, pad it to a multiple of two elements a rank and give each rank an even part
(`FlatCut`, after deepspeed/runtime/zero/stage_1_and_2.py and bf16_optimizer.py). Stage 3 gives each rank an even part
of each parameter, those of a sub-group one behind the other (`ShareCut`, after stage3.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

__all__ = ["Cut", "FlatCut", "Run", "ShareCut", "round_robin", "sub_groups", "unmixed"]

_ALIGNMENT: Final = 2
"""nccl_start_alignment_factor: elements of which each rank has a multiple, so that 16-bit shares begin at 4 bytes."""


class Run(NamedTuple):
    """Elements `first` to `last` of a parameter, from element `start` of a share on."""

    name: str
    start: int
    first: int
    last: int


class Cut(Protocol):
    """Where parameters lie in the shares of all ranks. A unit is what one flat tensor of each rank holds a share of."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    @property
    def units(self) -> Sequence[Sequence[str]]:
        """The parameters of each unit in order."""

    def size(self, unit: int) -> int:
        """Elements of a share, with its padding."""

    def padding(self, unit: int, rank: int) -> int:
        """Elements at the end of a share that are no parameter's, where only the end is padded."""

    def runs(self, unit: int, rank: int) -> Iterator[Run]:
        """What a share holds, in its order."""


@dataclass(frozen=True)
class FlatCut:
    """Stages 1 and 2: `units` are the parameters of each group in order, `sizes` their elements.

    `paddings` are the elements behind each parameter of each group, all 0 unless parameters are aligned.
    """

    ranks: int
    units: Sequence[Sequence[str]]
    sizes: Mapping[str, int]
    paddings: Sequence[Sequence[int]]

    def total(self, unit: int) -> int:
        """Elements of a group with what stands between its parameters."""
        return sum(self.sizes[name] for name in self.units[unit]) + sum(self.paddings[unit])

    def size(self, unit: int) -> int:
        """Elements of a share."""
        return -(-self.total(unit) // (_ALIGNMENT * self.ranks)) * _ALIGNMENT

    def padding(self, unit: int, rank: int) -> int:
        """Elements of a share that lie behind the last parameter."""
        size = self.size(unit)
        return min(size, max(0, (rank + 1) * size - self.total(unit)))

    def runs(self, unit: int, rank: int) -> Iterator[Run]:
        """Parameters end to end, as far as they lie in the share of this rank."""
        low = rank * self.size(unit)
        high = low + self.size(unit)
        position = 0
        for name, padding in zip(self.units[unit], self.paddings[unit], strict=True):
            first, last = max(low, position), min(high, position + self.sizes[name])
            if first < last:
                yield Run(name, first - low, first - position, last - position)
            position += self.sizes[name] + padding


@dataclass(frozen=True)
class ShareCut:
    """Stage 3: `units` are the parameters of each sub-group in order, `sizes` their elements."""

    ranks: int
    units: Sequence[Sequence[str]]
    sizes: Mapping[str, int]

    def share(self, name: str) -> int:
        """Elements of a parameter on each rank, with the padding of the last."""
        return -(-self.sizes[name] // self.ranks)

    def size(self, unit: int) -> int:
        """Elements of all shares of a sub-group on one rank."""
        return sum(map(self.share, self.units[unit]))

    def padding(self, unit: int, rank: int) -> int:  # noqa: ARG002 - a Cut has this form
        """None at the end alone: each parameter is padded for itself, and the padding is saved."""
        return 0

    def runs(self, unit: int, rank: int) -> Iterator[Run]:
        """The share of each parameter; ranks at the end may have less of one, or nothing."""
        position = 0
        for name in self.units[unit]:
            share = self.share(name)
            first, last = min(self.sizes[name], rank * share), min(self.sizes[name], (rank + 1) * share)
            if first < last:
                yield Run(name, position, first, last)
            position += share


def round_robin(names: Sequence[str], ranks: int) -> list[str]:
    """The order of parameters with round_robin_gradients: neighbours go to different ranks.

    >>> round_robin(["a", "b", "c", "d", "e"], 2)
    ['a', 'c', 'e', 'b', 'd']
    """
    return [name for first in range(ranks) for name in names[first::ranks]]


def unmixed(names: Sequence[str], ranks: int) -> list[str]:
    """The order that `round_robin` mixed.

    >>> unmixed(["a", "c", "e", "b", "d"], 2)
    ['a', 'b', 'c', 'd', 'e']
    """
    places = round_robin([str(place) for place in range(len(names))], ranks)
    return [name for _, name in sorted(zip(map(int, places), names, strict=True))]


def sub_groups(names: Sequence[str], sizes: Mapping[str, int], ranks: int, most: int) -> list[list[str]]:
    """The sub-groups of a group in stage 3: each is closed when a rank's shares in it reach `most` elements."""
    shares = {name: -(-sizes[name] // ranks) for name in names}
    if most >= sum(shares.values()):
        return [list(names)]
    made: list[list[str]] = []
    held = most
    for name in names:
        if held >= most:
            made.append([])
            held = 0
        made[-1].append(name)
        held += shares[name]
    return made
