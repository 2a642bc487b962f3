"""Where parameters lie in the FlatParameters of FSDP1: told by the live parameters and the number of elements.

A FlatParameter holds the parameters of one wrapped module, without those of modules wrapped within it, in the order of
the module (torch/distributed/fsdp/_flat_param.py). With use_orig_params each begins at a multiple of 16 bytes of the
dtype that it is computed in, and the whole is padded to a multiple of the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from unmoor.values.text import count, listing

__all__ = ["Param", "Unit", "fits", "single_unit", "units_of"]

_ALIGNMENTS: Final = (1, 4, 8, 2, 16)
"""Elements at whose multiples parameters may begin: 1 without use_orig_params, else 16 bytes of some dtype."""

Param = tuple[Any, tuple[int, ...]]
"""Name and shape of a live parameter."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One FlatParameter: its name in the file, its elements, the parameters in it and where each of them begins."""

    name: str
    total: int
    params: tuple[Param, ...]
    starts: tuple[int, ...]


def fits(unit: Unit, total: int, ranks: int) -> bool:
    """Whether `total` elements of `ranks` shards are those of the unit: as many, or padded to even shares."""
    return total in (unit.total, _padded(unit.total, ranks))


def units_of(
    flats: Mapping[str, tuple[str, int]], params: Sequence[Param], own: frozenset[str], ranks: int
) -> list[Unit] | str:
    """The units of a file, or why they are not those of the live parameters.

    `flats` is path of a wrapped module -> name in the file and number of elements of its FlatParameter. `own` are
    parameters that the file holds by themselves as well: those that FSDP1 was told to ignore are not in a unit.
    """
    members: dict[str, list[Param]] = {path: [] for path in flats}
    for param in params:
        owner = _owner(param[0], flats)
        if owner is not None:
            members[owner].append(param)
    made = []
    for path, (name, total) in flats.items():
        rest = [param for param in members[path] if param[0] not in own]
        unit = _unit(name, total, rest, ranks)
        if isinstance(unit, str) and len(rest) < len(members[path]):
            every = _unit(name, total, members[path], ranks)
            unit = every if isinstance(every, Unit) else unit
        if isinstance(unit, str):
            return unit
        made.append(unit)
    return made


def single_unit(name: str, total: int, params: Sequence[Param], ranks: int) -> Unit | str:
    """One FlatParameter of all the parameters, or why it is none."""
    return _unit(name, total, params, ranks)


def _owner(name: str, paths: Mapping[str, object]) -> str | None:
    """The innermost wrapped module that a parameter lies in."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        path = ".".join(parts[:end])
        if path in paths:
            return path
    return None


def _unit(name: str, total: int, params: Sequence[Param], ranks: int) -> Unit | str:
    sizes = [prod(shape) for _, shape in params]
    layouts: dict[tuple[int, ...], Unit] = {}
    for alignment in _ALIGNMENTS:
        starts, end = _aligned(sizes, alignment)
        whole = end if alignment == 1 else -(-end // ranks) * ranks
        if total in (whole, _padded(whole, ranks)):
            layouts.setdefault(starts, Unit(name, whole, tuple(params), starts))
    if len(layouts) == 1:
        return next(iter(layouts.values()))
    names = listing([str(param) for param, _ in params])
    if layouts:
        return f"{name} has {count(total, 'element')}, which {names} fill in {len(layouts)} ways, aligned differently"
    text = f"{name} has {count(total, 'element')} in the files of {count(ranks, 'rank')}, the live parameters in it"
    return f"{text} ({names or 'none'}) have {sum(sizes):,}"


def _aligned(sizes: Sequence[int], alignment: int) -> tuple[tuple[int, ...], int]:
    """Where each parameter begins, and where the last one ends."""
    starts, end = [], 0
    for size in sizes:
        starts.append(-(-end // alignment) * alignment)
        end = starts[-1] + size
    return tuple(starts), end


def _padded(total: int, ranks: int) -> int:
    """As many elements as even shares of all ranks have."""
    return -(-total // ranks) * ranks
