"""The readers of a checkpoint's files, opened once and closed together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from unmoor.errors import UnsupportedFile
from unmoor.filing import InflatingReader, Reader, open_reader
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import deflated
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


@contextmanager
def open_spans(path: str | os.PathLike[str]) -> Iterator[Callable[[str], Reader]]:
    """A function from `Span.file` to its reader: "" is the file itself, others lie beside it, or in the folder."""
    text = os.fspath(path)
    folder = text if os.path.isdir(text) else os.path.dirname(text)
    with ExitStack() as stack:
        readers: dict[str, Reader] = {}
        lock = threading.Lock()

        def reader(file: str) -> Reader:
            with lock:
                return readers[file] if file in readers else opened(file)

        def opened(file: str) -> Reader:
            packed = deflated(file)
            if packed is not None:
                name, *place = packed
                readers[file] = InflatingReader(readers.get(name) or opened(name), *place)
            else:
                readers[file] = stack.enter_context(open_reader(os.path.join(folder, file) if file else text))
            return readers[file]

        yield reader
