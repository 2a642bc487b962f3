"""What lies beside a file of the wrong kind: the checkpoint that was probably meant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from unmoor.describe import describe_file
from unmoor.errors import KindError, UnmoorError
from unmoor.values.catalog import Catalog

__all__ = ["with_neighbours"]

_MOST: Final = 6
"""How many files of a folder are looked into."""

_KINDS: Final = {"loss": "model", "ema": "model"}
"""Roles whose state is of another role's kind."""


def with_neighbours(error: KindError, path: str) -> KindError:
    """The same error, with what the other checkpoints of the folder hold and which of them was probably meant."""
    if Path(path).is_dir() or not error.wanted:
        return error
    beside = list(_neighbours(Path(path)))
    wanted = _KINDS.get(error.wanted, error.wanted)
    if not beside:
        return error
    listed = ", ".join(f"{name} ({', '.join(roles)})" for name, roles in beside)
    rows = [f"nearby     {listed}"]
    fitting = [name for name, roles in beside if wanted in roles]
    told = [name for name in fitting if wanted[:3] in name.lower()]
    meant = next(iter(told or fitting), "") if told or len(fitting) == 1 else ""
    if not fitting:
        rows.append(f"           no {wanted} state is among them")
    hint = f" Its {wanted} is probably {meant}." if meant else ""
    made = KindError(error.headline, details=(*error.details, *rows), remedy=error.remedy + hint, path=path)
    made.wanted = error.wanted
    return made


def _neighbours(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and roles of the checkpoints beside `path`, those of the same step first."""
    others = [other for other in path.parent.iterdir() if other.suffix == path.suffix and other.name != path.name]
    for other in sorted(others, key=lambda other: (-_common_end(other.stem, path.stem), other.name))[:_MOST]:
        roles = _roles(other)
        if roles:
            yield other.name, roles


def _common_end(one: str, other: str) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _roles(path: Path) -> tuple[str, ...]:
    try:
        catalog: Catalog = describe_file(path)
    except (UnmoorError, OSError):
        return ()
    return tuple(dict.fromkeys(part.role for part in catalog.parts if part.role not in ("extra", "rng")))
