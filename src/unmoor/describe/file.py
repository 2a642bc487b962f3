"""The way in: one file to its Catalog."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from unmoor.filing import Reader, open_reader
from unmoor.values.catalog import Catalog

from .detect import detect, name_finding
from .safetensors import describe_safetensors
from .torch_legacy import describe_legacy
from .torch_zip import describe_zip

__all__ = ["describe_file"]

_READERS: Final[dict[str, Callable[[Reader], Catalog]]] = {
    "zip": describe_zip,
    "legacy": describe_legacy,
    "safetensors": describe_safetensors,
}


def describe_file(path: str | os.PathLike[str]) -> Catalog:
    """What is inside one checkpoint file: every tensor, the parts of the run, the devices, what is odd about it.

    Reads headers and the pickled structure, never tensor data, and runs nothing that the file names. `path` is a torch
    zip, a torch legacy stream, a TorchScript archive or a safetensors file, whatever its extension.

    Raises a FileError: NotACheckpoint for anything else (named as what it is), CorruptFile for damage (each fault
    named), HostileFile for files that ask for more than any checkpoint needs, UnsupportedFile for sound files that this
    version cannot read.
    """
    with open_reader(path) as reader, _collector_paused():
        catalog = _READERS[detect(reader)](reader)
    names = name_finding(catalog.path, catalog.format)
    return replace(catalog, findings=(*catalog.findings, *names)) if names else catalog


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hold the garbage collector back while a tree is built, which else costs half the time.

    A tree of a million live values holds no garbage. The collector runs again afterwards where it ran before.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
