"""The readers of a checkpoint's files, opened once and closed together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from unmoor.filing import Reader, open_reader

__all__ = ["open_spans"]


@contextmanager
def open_spans(path: str | os.PathLike[str]) -> Iterator[Callable[[str], Reader]]:
    """A function from `Span.file` to its reader: "" is the file itself, anything else lies beside it."""
    with ExitStack() as stack:
        readers: dict[str, Reader] = {}
        lock = threading.Lock()

        def reader(file: str) -> Reader:
            with lock:
                if file not in readers:
                    place = os.path.join(os.path.dirname(os.fspath(path)), file) if file else os.fspath(path)
                    readers[file] = stack.enter_context(open_reader(place))
                return readers[file]

        yield reader
