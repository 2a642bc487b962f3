"""What of a checkpoint can be read at all, and the readers of its files."""

from __future__ import annotations

from unmoor.errors import UnsupportedFile
from unmoor.execute.opening import open_spans
from unmoor.values.catalog import Catalog
from unmoor.values.text import count, listing

__all__ = ["open_spans", "refuse_without_data"]


def refuse_without_data(catalog: Catalog) -> None:
    """Raise UnsupportedFile for tensors that were saved on the meta device: they would be there again, in silence."""
    names = [f"{e.path} (meta)" for e in catalog.tensors if e.device == "meta" and e.span is None and e.nbytes]
    if names:
        raise UnsupportedFile(
            f"{catalog.path} holds no data for {count(len(names), 'tensor')}: {listing(names)}",
            remedy='Save it again once it has memory. unmoor.load(path, map_location="meta") gives the shapes alone.',
            path=catalog.path,
        )
