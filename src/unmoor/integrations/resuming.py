"""Which checkpoint of a folder a training loop is told to go on from: the newest that holds, or none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from unmoor.api_files import PathLike
from unmoor.api_folders import latest as newest
from unmoor.api_folders import runs
from unmoor.api_looks import verify
from unmoor.errors import CorruptFile, FileError, NotACheckpoint
from unmoor.filing import path_text
from unmoor.places import entries, is_folder
from unmoor.values.listing import Saved

from .sealing import SEAL, broken, is_sealed, seal

__all__ = ["damage_of", "latest", "latest_sealed", "numbered", "sealed", "told"]


def latest(folder: PathLike) -> str | None:
    """The path of the newest checkpoint of a folder that holds; None where there is none, which is a fresh start.

    Every byte that has a checksum is read. A newer one that is broken is passed over, with a warning that says why.
    Where all are broken that is a warning too, and None.

    Raises what `unmoor.latest` raises for a folder that cannot be read.
    """
    place = path_text(folder)
    if not is_folder(place) or not entries(place):
        return None
    try:
        found = newest(place, verify=True)
    except NotACheckpoint as error:
        told(f"a fresh start: {error}")
        return None
    for row in found.passed:
        told(f"passed over {row.path}: {row.why}")
    return found.path


def latest_sealed(folder: str, prefix: str) -> str | None:
    """As `latest`, of checkpoints that are folders with a number behind `prefix`, and sealed once they are finished.

    One without a seal is passed over where an older one has a seal: it was never finished.
    """
    rows = numbered(folder, prefix)
    for place, (_, row) in enumerate(rows):
        older = [other.path for _, other in rows[place + 1 :]]
        if not (why := _fault(row, older)):
            return row.path
        told(f"passed over {row.path}: {why}")
    if rows:
        told(f"a fresh start: no checkpoint of {folder} holds")
    return None


def numbered(folder: str, prefix: str) -> list[tuple[int, Saved]]:
    """The folders of a folder whose names are `prefix` and a number, the greatest first."""
    if not is_folder(folder) or not any(entry.name.startswith(prefix) for entry in entries(folder)):
        return []
    found = [(row.name.removeprefix(prefix), row) for row in runs(folder) if row.name.startswith(prefix)]
    rows = [(int(number), row) for number, row in found if number.isdecimal() and is_folder(row.path)]
    return sorted(rows, key=lambda pair: pair[0], reverse=True)


def _fault(row: Saved, older: Sequence[str]) -> str:
    """Why a checkpoint is not taken; "" where it is."""
    if not row.complete:
        return row.why
    if is_sealed(row.path):
        return broken(row.path)
    if any(map(is_sealed, older)):
        return f"it was never finished: it has no {SEAL}, as older ones have"
    return damage_of(row.path)


def damage_of(path: str) -> str:
    """What is wrong with a checkpoint by its own checksums, in words; "" where nothing is, or nothing can tell."""
    try:
        found = verify(path)
    except CorruptFile as error:
        return error.headline
    except FileError:
        return ""
    return "" if found.ok else str(found).partition("\n")[0]


def sealed(folder: str) -> bool:
    """Verify, bring to the disk and seal what was just written; where that fails it is a warning, and False."""
    why = damage_of(folder)
    try:
        if not why:
            seal(folder)
    except OSError as error:
        why = str(error)
    if why:
        told(f"{folder} is not sealed, and a resume passes it over: {why}")
    return not why


def told(text: str) -> None:
    """Warn."""
    warnings.warn(text, stacklevel=3)
