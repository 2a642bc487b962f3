"""A save's file from what is known of it: archive -> described again and held against the promise -> published.

Knows no live objects and starts without torch, so that a process of its own can do it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unmoor import places
from unmoor.describe import describe_file
from unmoor.errors import SaveError
from unmoor.execute.archive import Record, torch_records, torch_trailer, write_archive
from unmoor.execute.commit import publish
from unmoor.execute.sinks import Blob, Buffers
from unmoor.values.catalog import Catalog
from unmoor.values.text import key_text

__all__ = ["MANIFEST", "Crcs", "Draft", "archive_name", "storage_spans", "write_draft"]

MANIFEST = "unmoor/manifest.json"

Crcs = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that is to be written to `path`.

    `pickled` is its pickle, `storages` are (key, bytes, data) of what that refers to, `manifest` is our record but for
    the checksums, and `promise` what must be found in the file: shape and dtype of every strided tensor by key path.
    """

    path: str
    pickled: bytes
    storages: Sequence[tuple[str, int, Blob]]
    manifest: Mapping[str, Any]
    promise: Mapping[tuple[Any, ...], tuple[tuple[int, ...], str]]


def write_draft(
    draft: Draft,
    *,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None = None,
    agree: Callable[[Catalog], None] = lambda _: None,
    begun: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the file, whole and durable; its size in bytes.

    `buffers` are what the storages' devices copy best into. `begun` is called with the path of the hidden file in which
    it grows, `agree` with what was written before it is published; what it raises leaves the older file in place.
    """
    records = torch_records(draft.pickled, draft.storages)
    sizes: list[int] = []

    def check(temporary: str) -> None:
        sizes.append(places.tree_bytes(temporary))  # fails as the system does where the folder has gone meanwhile
        found = describe_file(temporary)
        _hold_against(found, draft)
        agree(found)

    needed = sum(record.nbytes for record in records)
    with publish(draft.path, needed=needed, durability="disk", check=check) as temporary:
        begun(temporary)
        write_archive(
            temporary,
            records,
            name=archive_name(draft.path),
            finish=partial(_finish, draft.manifest),
            threads=threads,
            buffer_bytes=buffer_bytes,
            progress=progress,
            buffers=buffers,
        )
    return sizes[0]


def archive_name(path: str) -> str:
    """The folder inside the archive, which torch names after the file."""
    stem = os.path.splitext(places.name_of(path))[0]
    return stem if stem.isascii() and stem.isprintable() and 0 < len(stem) < 128 else "archive"


def storage_spans(crcs: Crcs) -> dict[str, tuple[int, int, int]]:
    """Storage key -> offset, bytes and CRC-32 of its data."""
    return {name.removeprefix("data/"): span for name, span in crcs.items() if name.startswith("data/")}


def _finish(manifest: Mapping[str, Any], crcs: Crcs) -> list[Record]:
    text = json.dumps({**manifest, "storages": storage_spans(crcs)}, separators=(",", ":")).encode()
    return [*torch_trailer(crcs), Record(MANIFEST, len(text), text)]


def _hold_against(catalog: Catalog, draft: Draft) -> None:
    """Every tensor that was to be written must be described as it was; the reader is the writer's checker."""
    found = {entry.keys: entry for entry in catalog.tensors}
    faults = []
    for keys, want in draft.promise.items():
        entry = found.get(keys)
        if entry is None or (entry.shape, entry.dtype) != want:
            faults.append(f"{key_text(keys)}: meant {want}, found {entry and (entry.shape, entry.dtype)}")
    if faults:
        raise SaveError(
            f"what was written for {draft.path} does not read back as it was meant; the older file is intact",
            details=faults[:10],
            remedy="This is a defect of unmoor: please report it with the tensor's class and layout.",
            path=draft.path,
        )
