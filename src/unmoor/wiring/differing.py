"""diff: two described checkpoints -> what is compared with what -> both read side by side -> one value."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.errors import UsageError
from unmoor.filing import path_text
from unmoor.plan.pairing import TensorPair, pair
from unmoor.report.difference import difference_text, form_text
from unmoor.steady import one_reading, refuse_changed
from unmoor.values.catalog import Catalog
from unmoor.values.difference import Difference, Distance, Retagged, TensorDifference
from unmoor.values.nodes import TensorNode
from unmoor.values.text import count, listing

from .differing_data import Outcome, compare_data, has_data

__all__ = ["diff_paths"]

_UNTAGGED: Final = frozenset({"safetensors", "dcp", "deepspeed"})
"""Formats that keep no device tags."""


@one_reading()
def diff_paths(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    only: str | Sequence[str] | None,
    atol: float,
    rtol: float,
    structure: bool,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Difference:
    """Compare two checkpoints: their structure, their plain values, and, unless `structure`, every element."""
    begin = time.perf_counter()
    _check_tolerances(atol, rtol)
    path_a, path_b = path_text(a), path_text(b)
    one, other = describe_path(path_a), describe_path(path_b)
    found = pair(one, other, only)
    held = [each for each in found.pairs if has_data(each)]
    outcome = Outcome()
    if not structure:
        outcome = compare_data(
            one, other, held, atol=atol, rtol=rtol, buffer_bytes=buffer_bytes, threads=threads, progress=progress
        )
        refuse_changed()
    distances = {id(held[number]): distance for number, distance in outcome.distances.items()}
    changed = tuple(_changed(found.pairs, distances, within=bool(atol or rtol) and not structure))
    made = Difference(
        a=path_a,
        b=path_b,
        forms=(form_text(one), form_text(other)),
        compared=len(found.pairs),
        identical=len(found.pairs) - len(changed),
        changed=changed,
        only_a=tuple(found.only_a),
        only_b=tuple(found.only_b),
        values=tuple(found.values),
        retagged=tuple(_retagged(found.pairs, one, other)),
        matched=tuple(found.notes),
        notes=tuple(_notes(found.pairs, held, outcome, structure=structure)),
        damaged=tuple(outcome.damaged),
        structure_only=structure,
        tolerances={"atol": float(atol), "rtol": float(rtol)} if atol or rtol else {},
        nbytes=outcome.nbytes,
        seconds=time.perf_counter() - begin,
    )
    return replace(made, text=difference_text(made))


def _check_tolerances(atol: Any, rtol: Any) -> None:
    for name, value in (("atol", atol), ("rtol", rtol)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"{name}={value!r} is no tolerance", remedy="Pass a number, 0 or more.")


def _changed(
    pairs: Iterable[TensorPair], distances: dict[int, Distance], *, within: bool
) -> Iterator[TensorDifference]:
    """The pairs that are not the same; `within` tells that another dtype with the same values is near enough."""
    for each in pairs:
        distance = distances.get(id(each))
        if each.a.dtype != each.b.dtype and each.a.shape == each.b.shape and distance is None:
            distance = Distance(0, within=within)
        if distance is not None or each.a.shape != each.b.shape:
            yield TensorDifference(each.name, each.a, each.b, distance)


def _retagged(pairs: Iterable[TensorPair], a: Catalog, b: Catalog) -> list[Retagged]:
    """Changes of device tags, most tensors first; of formats that have tags."""
    if _UNTAGGED & {a.format, b.format}:
        return []
    found: dict[tuple[str, str], list[int]] = {}
    for each in pairs:
        stored = all(isinstance(leaf.node, TensorNode) for leaf in (each.a, each.b))
        if stored and each.a.device != each.b.device:
            found.setdefault((each.a.device, each.b.device), []).append(each.a.nbytes)
    rows = [Retagged(*tags, len(sizes), sum(sizes)) for tags, sizes in found.items()]
    return sorted(rows, key=lambda row: -row.tensors)


def _notes(pairs: Sequence[TensorPair], held: Sequence[TensorPair], outcome: Outcome, *, structure: bool) -> list[str]:
    notes = []
    if structure:
        notes.append("structure and values alone were compared, no tensor data was read")
    elif not outcome.measured and outcome.distances:
        notes.append("PyTorch is not installed: which tensors differ is told, by how much is not")
    readable = {id(each) for each in held}
    bare = [each.name for each in pairs if id(each) not in readable and each.a.shape == each.b.shape]
    if bare and not structure:
        notes.append(f"{count(len(bare), 'tensor')} without data in a file, compared by shape alone: {listing(bare)}")
    return notes
