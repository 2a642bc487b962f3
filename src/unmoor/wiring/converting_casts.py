"""What casting lost, storage by storage, told by role and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from unmoor.values.conversion import Cast
from unmoor.values.finding import Finding
from unmoor.values.text import count, listing

if TYPE_CHECKING:
    from unmoor.live.casting import Loss
    from unmoor.plan.taken import Taken
    from unmoor.values.plan import Change

__all__ = ["cast_findings", "casts_told"]


def casts_told(changes: Sequence[Change], taken: Taken, losses: Mapping[str, Loss]) -> tuple[Cast, ...]:
    """One row for each role and pair of dtypes. A storage under several names counts once."""
    keys = {entry.path: entry.storage for entry in taken.tensors}
    made: dict[tuple[str, str, str], Cast] = {}
    counted: set[str] = set()
    for change in changes:
        place = (change.label, change.before, change.after)
        row = made.get(place, Cast(*place, names=()))
        loss = losses.get(keys.get(change.name, ""))
        row = replace(row, names=(*row.names, change.name))
        if loss is not None and loss.beyond:
            row = replace(row, lost=(*row.lost, change.name))
        if loss is not None and keys[change.name] not in counted:
            counted.add(keys[change.name])
            row = replace(
                row,
                elements=row.elements + loss.elements,
                changed=row.changed + loss.changed,
                largest=max(row.largest, loss.largest),
                beyond=row.beyond + loss.beyond,
                zeroed=row.zeroed + loss.zeroed,
            )
        made[place] = row
    return tuple(made.values())


def cast_findings(casts: Sequence[Cast]) -> Iterator[Finding]:
    """What a reader must know of casts: values that the new dtype has no number for."""
    for cast in casts:
        if cast.beyond:
            yield Finding(
                "cast-overflow",
                "error",
                cast.role,
                f"{count(cast.beyond, 'value')} of {cast.elements:,} beyond the range of {cast.after} became infinite "
                f"or no number, in {listing(cast.lost)}",
                "bfloat16 has the range of float32; the source is as it was",
            )
        if cast.zeroed:
            yield Finding(
                "cast-underflow",
                "info",
                cast.role,
                f"{count(cast.zeroed, 'value')} of {cast.elements:,} too small for {cast.after} became zero",
                "",
            )
