"""The readers of a checkpoint's files, opened once and closed together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from unmoor.errors import UnsupportedFile
from unmoor.filing import Reader, open_reader
from unmoor.values.nodes import TensorNode
from unmoor.values.text import count, listing

__all__ = ["open_spans", "refuse_compressed"]


def refuse_compressed(path: str, tensors: Iterable[tuple[str, TensorNode | None]]) -> None:
    """Raise UnsupportedFile for tensors, by path, whose bytes do not lie in the file as they are."""
    stored = [(name, node.storage) for name, node in tensors if node is not None and node.storage is not None]
    names = [name for name, storage in stored if storage.span is None and storage.nbytes]
    if names:
        raise UnsupportedFile(
            f"{path} holds the data of {count(len(names), 'tensor')} compressed: {listing(names)}",
            remedy="Unpack the archive and zip it again without compression (zip -0 -r).",
            path=path,
        )


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
