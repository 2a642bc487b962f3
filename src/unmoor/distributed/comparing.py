"""What the ranks of one save hold against each other before it is published, through a meeting.

Each compares itself with rank 0: one digest for each role first, places only in roles that differ. Leaves that may
differ become the rank's own; parameters and optimizers that differ are one error, the same on every rank.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unmoor.errors import RanksDiffer
from unmoor.execute.checksums import crc32
from unmoor.live.content import Content
from unmoor.live.differing import Fingerprint, Own, fingerprint, own_leaves, strict_sums, value_digests
from unmoor.values.catalog import Catalog
from unmoor.values.ranks import Keys, ranks_text
from unmoor.values.text import columns, count, key_text, listing

from .completing import complete_states, lacks_states
from .meeting import Meeting

__all__ = ["Compared", "compare", "described_sums", "hold_equal", "live_sums"]

_SHOWN: Final = 20
_LINE: Final = 60
_REPLICAS: Final = (
    "Replicas have the same parameters and optimizer state: wrap the model (DistributedDataParallel copies rank 0's "
    "when it is built) and make the same optimizer on every rank. Where each rank has a model of its own, save each "
    'under a path of its own: unmoor.save(f"run/rank_{rank}.pt", ..., group=None).'
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a rank knows after the comparison.

    `spread` tells that some rank holds parts of tensors. `own` are this rank's own leaves (none on rank 0). `recorded`
    is, on rank 0, what the manifest says of every rank's own leaves, and `arrays` where numpy arrays are among them.
    `strict` are the places of tensors that must be the same on all ranks.
    """

    spread: bool
    own: Own
    strict: tuple[Keys, ...]
    recorded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    arrays: tuple[Keys, ...] = ()


def compare(meeting: Meeting, content: Content, path: str, *, completed: bool = False) -> Compared:
    """Meet the other ranks and find in what they differ.

    A rank that lacks optimizer state because it holds nothing of a parameter is given it first (`completed`: it was).

    Raises RanksDiffer on every rank for what replicas must share: names, shapes and dtypes of modules, everything of
    optimizers but the values of tensors, for which see `hold_equal`.
    """
    prints = fingerprint(content)
    mine = {"heads": prints.heads(), "spread": bool(content.held), "lacks": not completed and lacks_states(content)}
    found = meeting.to_first(json.dumps(mine).encode())
    answer = None if found is None else json.dumps(_first_rows(prints, [json.loads(one) for one in found])).encode()
    first = json.loads(meeting.from_first(answer))
    if first["lacks"]:
        complete_states(meeting, content)
        return compare(meeting, content, path, completed=True)
    own, faults = Own({}), []
    if meeting.rank:
        rows = {key: [(tuple(keys), digest) for keys, digest in row] for key, row in first["rows"].items()}
        free, strict = prints.compare(rows, first["root"])
        faults = [[list(keys), _said(content, keys)] for keys in strict]
        own = own_leaves(content, free, first["root"])
    told = {"faults": faults, "own": own.recorded(), "arrays": [list(keys) for keys in own.arrays]}
    everyone = meeting.to_first(json.dumps(told).encode())
    heard = None if everyone is None else [json.loads(one) for one in everyone]
    lines = None if heard is None else json.dumps(_faults(content, [one["faults"] for one in heard])).encode()
    differ = json.loads(meeting.from_first(lines))
    if differ:
        raise _refusal(differ, path)
    tensors = tuple(sorted((keys for keys in prints.strict if keys in content.tensors), key=key_text))
    return Compared(first["spread"], own, tensors, *_records(heard or []))


def live_sums(meeting: Meeting, content: Content, strict: Sequence[Keys]) -> dict[Keys, str]:
    """What identifies the values of the tensors at `strict`, from the live memory."""
    return _with_rest(strict_sums(content, strict, crc32, meeting.alive), content, strict)


def described_sums(catalog: Catalog, content: Content, strict: Sequence[Keys]) -> dict[Keys, str]:
    """The same from the checksums of a file in which they were written; from live memory where it has none."""
    wanted = set(strict)
    found: dict[Keys, str] = {}
    for entry in catalog.tensors:
        node = entry.node
        if entry.keys in wanted and node is not None and node.storage is not None and node.storage.crc32 is not None:
            offset = entry.offset if node.numel else 0
            found[entry.keys] = (
                f"{offset} {entry.stride} {sorted(node.bits)} {node.storage.nbytes} {node.storage.crc32}"
            )
    return _with_rest(found, content, strict)


def _with_rest(found: Mapping[Keys, str], content: Content, strict: Sequence[Keys]) -> dict[Keys, str]:
    """With the digests of those that are none of plain strides, or of which the file has no checksum."""
    return {**found, **value_digests(content, [keys for keys in strict if keys not in found])}


def hold_equal(meeting: Meeting, content: Content, sums: Mapping[Keys, str], path: str) -> None:
    """Hold the values of replicated tensors against rank 0's.

    `sums` is what `live_sums` or `described_sums` gave. Tensors that lie otherwise in memory are compared by value.

    Raises RanksDiffer on every rank, naming those that differ.
    """
    order = sorted(sums, key=key_text)
    row = [sums[keys] for keys in order]
    found = meeting.to_first(hashlib.sha256(json.dumps(row).encode()).digest())
    odd = None if found is None else b"odd" * (len(set(found)) > 1)
    if not meeting.from_first(odd):
        return
    rows = meeting.to_first(json.dumps(row).encode())
    suspects = None if rows is None else json.dumps(_unequal([json.loads(one) for one in rows])).encode()
    places = [order[index] for index in json.loads(meeting.from_first(suspects))]
    digests = value_digests(content, places)
    values = meeting.to_first(json.dumps([digests[keys] for keys in places]).encode())
    lines = None if values is None else json.dumps(_unlike(places, [json.loads(one) for one in values])).encode()
    differ = json.loads(meeting.from_first(lines))
    if differ:
        raise _refusal(differ, path)


def _first_rows(prints: Fingerprint, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the others need to know of rank 0: its keys, and the places in those that are not the same on all."""
    heads = prints.heads()
    odd = [key for key in heads if any(one["heads"].get(key) != heads[key] for one in found)]
    return {
        "spread": any(one["spread"] for one in found),
        "lacks": any(one["lacks"] for one in found),
        "root": list(heads),
        "rows": {key: [[list(keys), digest] for keys, digest in prints.rows[key]] for key in odd},
    }


def _records(heard: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Mapping[str, Any]], tuple[Keys, ...]]:
    recorded = {str(rank): one["own"] for rank, one in enumerate(heard) if one["own"] is not None}
    arrays = tuple((str(rank), *keys) for rank, one in enumerate(heard) for keys in one["arrays"])
    return recorded, arrays


def _said(content: Content, keys: Keys) -> Any:
    """What stands at a place, in words; for a container the text of its keys."""
    at: Any = content.tree
    for key in keys:
        at = at[key]
    if hasattr(at, "dtype"):
        return f"{'x'.join(map(str, at.shape)) or 'scalar'} {str(at.dtype).removeprefix('torch.')}"
    if isinstance(at, Mapping):
        return [str(key) for key in at]
    text = repr(at)
    return text if len(text) <= _LINE else text[:_LINE] + "..."


def _faults(content: Content, found: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Place and what is wrong there, for each place at which a rank is unlike rank 0."""
    ranks: dict[Keys, dict[int, Any]] = {}
    for rank, faults in enumerate(found):
        for keys, said in faults:
            ranks.setdefault(tuple(keys), {})[rank] = said
    lines = []
    for keys, said in ranks.items():
        mine = _said(content, keys)
        ways = {json.dumps(one): one for one in said.values()}
        for way, theirs in ways.items():
            those = ranks_text([rank for rank, one in said.items() if json.dumps(one) == way])
            lines.append([key_text(keys), _difference(mine, theirs, those)])
    return lines


def _difference(mine: Any, theirs: Any, those: str) -> str:
    if not isinstance(mine, list) or not isinstance(theirs, list):
        here, there = (said if isinstance(said, str) else "a dict" for said in (mine, theirs))
        return f"{here} on rank 0, {there} on {those}"
    gone, more = [key for key in mine if key not in theirs], [key for key in theirs if key not in mine]
    rows = [f"on rank 0 alone {listing(gone)}"] if gone else []
    rows += [f"on {those} alone {listing(more)}"] if more else []
    return "; ".join(rows) or f"in another order on {those}"


def _unequal(rows: Sequence[Sequence[str]]) -> list[int]:
    """The positions at which not all ranks say the same."""
    return [index for index, said in enumerate(zip(*rows, strict=True)) if len(set(said)) > 1]


def _unlike(places: Sequence[Keys], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Place and whose values there are not rank 0's."""
    lines = []
    for keys, said in zip(places, zip(*rows, strict=True), strict=True):
        ranks = [rank for rank, digest in enumerate(said) if digest != said[0]]
        if ranks:
            lines.append([key_text(keys), f"other values on {ranks_text(ranks)} than on rank 0"])
    return lines


def _refusal(lines: Sequence[Sequence[str]], path: str) -> RanksDiffer:
    shown = columns(lines[:_SHOWN], indent=0, gap=3)
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return RanksDiffer(
        f"{path} was not saved: parameters or optimizers differ between the ranks in {count(len(lines), 'place')}; "
        "what was there before is untouched",
        details=[*shown, *more],
        remedy=_REPLICAS,
        path=path,
    )
