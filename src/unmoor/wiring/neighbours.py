"""What lies beside a file of the wrong kind: the checkpoint that was probably meant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from unmoor.describe import describe_path
from unmoor.errors import KindError, UnmoorError
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog

__all__ = ["newest_beside", "with_neighbours"]

_MOST: Final = 6
"""How many files of a folder are looked into."""

_KINDS: Final = {"loss": "model", "ema": "model"}
"""Roles whose state is of another role's kind."""


_MANUAL: Final = {"optimizer": " See docs/errors.md#param-groups."}
"""Where the documentation has more to say of a part of the wrong kind, by role."""


def with_neighbours(error: KindError, path: str) -> KindError:
    """The same error, with what the other checkpoints of the folder hold and which of them was probably meant."""
    alone = is_url(path) or Path(path).is_dir() or not error.wanted
    beside = [] if alone else list(_neighbours(Path(path)))
    rows, hint = _told(beside, error.wanted) if beside else ([], "")
    remedy = error.remedy + hint + _MANUAL.get(error.wanted, "")
    made = KindError(error.headline, details=(*error.details, *rows), remedy=remedy, path=path)
    made.wanted = error.wanted
    return made


def _told(beside: list[tuple[str, tuple[str, ...]]], role: str) -> tuple[list[str], str]:
    wanted = _KINDS.get(role, role)
    listed = ", ".join(f"{name} ({', '.join(roles)})" for name, roles in beside)
    rows = [f"nearby     {listed}"]
    fitting = [name for name, roles in beside if wanted in roles]
    told = [name for name in fitting if wanted[:3] in name.lower()]
    meant = next(iter(told or fitting), "") if told or len(fitting) == 1 else ""
    if not fitting:
        rows.append(f"           no {wanted} state is among them")
    return rows, f" Its {wanted} is probably {meant}." if meant else ""


def newest_beside(path: str) -> list[tuple[str, int]]:
    """The checkpoints beside a damaged one that are whole in structure, newest first, each with its size in bytes.

    By the time of their last change. Their data is not read. Paths are relative where `path` is.
    """
    here = Path(path)
    try:
        others = [other for other in here.parent.iterdir() if other.name != here.name and _is_alike(other, here)]
        newest = sorted(others, key=lambda other: -other.stat().st_mtime_ns)
    except OSError:
        return []
    found = ((other, _catalog(other)) for other in newest[:_MOST])
    return [(str(other), catalog.size) for other, catalog in found if catalog is not None and _roles_of(catalog)]


def _is_alike(other: Path, here: Path) -> bool:
    if other.name.startswith("."):
        return False
    return other.suffix == here.suffix and other.is_dir() == here.is_dir()


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
    catalog = _catalog(path)
    return () if catalog is None else _roles_of(catalog)


def _catalog(path: Path) -> Catalog | None:
    try:
        return describe_path(path)
    except (UnmoorError, OSError):
        return None


def _roles_of(catalog: Catalog) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.role for part in catalog.parts if part.role not in ("extra", "rng")))
