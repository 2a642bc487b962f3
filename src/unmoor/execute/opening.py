"""The readers of a checkpoint's files, opened once and closed together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from unmoor import places
from unmoor.filing import BriefReader, InflatingReader, Reader, grain_of, open_reader
from unmoor.steady import current
from unmoor.urls import is_url
from unmoor.values.nodes import deflated

from .takers import Block

__all__ = ["grain_among", "open_spans"]

_MOST_OPEN: Final = 64
"""Files that are kept open at once; a system may allow a process as few as 256, and the run has files of its own."""


def grain_among(open_span: Callable[[str], Reader], blocks: Iterable[Block]) -> int:
    """How many bytes a read of these blocks should have: 0 where all are in files of this machine."""
    return max((grain_of(open_span(file)) for file in {block.span.file for block in blocks}), default=0)


@contextmanager
def open_spans(path: str | os.PathLike[str]) -> Iterator[Callable[[str], Reader]]:
    """A function from `Span.file` to its reader: "" is the file itself, others lie beside it, or in the folder.

    It may be called from several threads. The first files stay open until the end, the others while they are read.
    """
    text, reading = os.fspath(path), current()
    folder = text if places.is_folder(text) else places.parent(text)
    with ExitStack() as stack:
        readers: dict[str, Reader] = {}
        kept: list[Reader] = []
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
                readers[file] = plain(places.join(folder, file) if file else text)
            return readers[file]

        def plain(place: str) -> Reader:
            if len(kept) == _MOST_OPEN and not is_url(place):
                return BriefReader(place, None if reading is None else reading.first(place))
            kept.append(stack.enter_context(open_reader(place, reading=reading)))
            return kept[-1]

        yield reader
