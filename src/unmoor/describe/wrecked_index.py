"""The index of a state dict that lies in several files, some of which may be missing or cut short."""

from __future__ import annotations

from unmoor import places

from .folder_tables import INDEX

__all__ = ["index_of"]


def index_of(path: str) -> str:
    """The name of the index that a path is, or that lies in a folder; "" where there is none, or several."""
    if not places.is_folder(path):
        return places.name_of(path) if path.endswith(INDEX) else ""
    found = [entry.name for entry in places.entries(path) if entry.name.endswith(INDEX)]
    return found[0] if len(found) == 1 else ""
