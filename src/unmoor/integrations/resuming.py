"""Which checkpoint of a folder a training loop is told to go on from: the newest that holds, or none."""

from __future__ import annotations

import warnings

from ..api_files import PathLike
from ..api_folders import latest as newest
from ..errors import NotACheckpoint
from ..filing import path_text
from ..places import entries, is_folder

__all__ = ["latest", "told"]


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


def told(text: str) -> None:
    """Warn, at the line of who called the integration."""
    warnings.warn(text, stacklevel=3)
