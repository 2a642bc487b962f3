"""The way in: one file to its Catalog."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from unmoor.filing import Reader, open_reader
from unmoor.steady import one_reading, refuse_changed
from unmoor.values.catalog import Catalog
from unmoor.values.pausing import collector_paused

from .detect import detect, name_finding
from .flat_ranks import shard_finding
from .safetensors import describe_safetensors
from .torch_legacy import describe_legacy
from .torch_tar import describe_tar
from .torch_zip import describe_zip

__all__ = ["describe_file"]

_READERS: Final[dict[str, Callable[[Reader, str], Catalog]]] = {
    "zip": describe_zip,
    "legacy": describe_legacy,
    "tar": describe_tar,
    "safetensors": describe_safetensors,
}


@one_reading()
def describe_file(path: str | os.PathLike[str], *, file: str = "") -> Catalog:
    """What is inside one checkpoint file: every tensor, the parts of the run, the devices, what is odd about it.

    Reads headers and the pickled structure, never tensor data, and runs nothing that the file names. `path` is a torch
    zip, a torch legacy stream or tar, a TorchScript archive or a safetensors file, whatever its extension. `file` is
    its name among the files of a larger catalog: spans and storage keys bear it.

    Raises a FileError: NotACheckpoint for anything else (named as what it is), CorruptFile for damage (each fault
    named), HostileFile for files that ask for more than any checkpoint needs, UnsupportedFile for sound files that this
    version cannot read.
    """
    with open_reader(path) as reader, collector_paused():
        catalog = _READERS[detect(reader)](reader, file)
        refuse_changed()
    names = [*name_finding(catalog.path, catalog.format), *shard_finding(catalog)]
    return replace(catalog, findings=(*catalog.findings, *names)) if names else catalog
