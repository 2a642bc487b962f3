"""A checkpoint of several files of which some are relocated and some are not: said when it happens, and met again.

Each file alone is the old one or the new one. Several are made ready together and changed one after the other: a
process that is killed between two of these steps, or a disk that fails there, leaves some of each.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from unmoor.errors import UnmoorError, UsageError
from unmoor.report.relocation import shell_word
from unmoor.values.catalog import Catalog
from unmoor.values.text import listing

__all__ = ["File", "half_told", "refuse_half"]


@dataclass(frozen=True, slots=True)
class File:
    """One file to relocate: what it holds, what the system said of it before it was described."""

    path: str
    catalog: Catalog
    seen: os.stat_result


def refuse_half(
    path: str,
    files: Sequence[File],
    cut_off: Collection[str],
    tags: Sequence[str],
    mapping: Mapping[str, str] | None,
) -> None:
    """Raise UsageError where a relocation was cut off between its files, and the new one would not complete it.

    `cut_off` are the paths of the files in which it left bytes.

    What one device for all, or a map from tags that are there to others, gives is the same for a file that has been
    through it. A map whose new tags are old ones too would move that file on.
    """
    left = [file for file in files if file.path in cut_off]
    done = [file for file in files if "relocated" in file.catalog.facts and file.path not in cut_off]
    safe = mapping is None or (set(mapping).isdisjoint(mapping.values()) and set(mapping) <= set(tags))
    if left and done and not safe:
        raise UsageError(
            f"a relocation of {path} was cut off between its files, and this map does not complete it",
            details=[f"relocated: {_names(done)}", f"as they were: {_names(left)}"],
            remedy=f"Take it back first: unmoor relocate --undo {shell_word(path)}",
            path=path,
        )


def _names(files: Sequence[File]) -> str:
    return listing([os.path.basename(file.path) for file in files])


@contextmanager
def half_told(path: str, changed: Sequence[str]) -> Iterator[None]:
    """Have an error say which files had been `changed` by then."""
    try:
        yield
    except UnmoorError as error:
        if changed:
            error.add_details(
                f"already changed: {listing([os.path.basename(one) for one in changed])}",
                f"unmoor relocate --undo {shell_word(path)} takes that back; the same call again completes it",
            )
        raise
