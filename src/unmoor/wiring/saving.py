"""save: live objects -> content -> archive -> described again and held against the promise -> published."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from unmoor.describe import describe_file
from unmoor.errors import SaveError
from unmoor.execute.archive import Record, torch_records, torch_trailer, write_archive
from unmoor.execute.commit import publish
from unmoor.filing import path_text
from unmoor.live.content import TORCH_VERSION, Content
from unmoor.live.pickling import pickle_tree
from unmoor.report.restore import receipt_text
from unmoor.values.catalog import Catalog
from unmoor.values.ranks import RANKS
from unmoor.values.report import Receipt
from unmoor.values.text import key_text
from unmoor.version import __version__

from .saving_flat import SUFFIX, write_safetensors

__all__ = ["MANIFEST", "archive_name", "storage_spans", "world", "write_content", "writer"]

MANIFEST = "unmoor/manifest.json"

Crcs = Mapping[str, tuple[int, int, int]]


def write_content(
    path: str | os.PathLike[str],
    content: Content,
    *,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
    agree: Callable[[Catalog], None] = lambda _: None,
) -> Receipt:
    """Write `content` to `path`, whole and durable, and say what was written.

    `agree` is called with what was written before it is published; what it raises leaves the older file in place.
    """
    if path_text(path).lower().endswith(SUFFIX):
        return write_safetensors(path_text(path), content, buffer_bytes=buffer_bytes, progress=progress)
    begin = time.perf_counter()
    pickled, blobs = pickle_tree(content.tree, content.tensors.values())
    records = torch_records(pickled, [(key, blob.nbytes, blob) for key, blob in blobs.items()])
    target = path_text(path)

    def check(temporary: str) -> None:
        found = describe_file(temporary)
        _hold_against(found, content, target)
        agree(found)

    needed = sum(record.nbytes for record in records)
    with publish(target, needed=needed, durability="disk", check=check) as temporary:
        write_archive(
            temporary,
            records,
            name=archive_name(target),
            finish=partial(_finish, content),
            threads=threads,
            buffer_bytes=buffer_bytes,
            progress=progress,
        )
    receipt = Receipt(
        path=target,
        nbytes=os.stat(target).st_size,
        seconds=time.perf_counter() - begin,
        counts=content.counts(),
        converted=tuple(content.converted),
        findings=tuple(content.findings),
    )
    return replace(receipt, text=receipt_text(receipt))


def archive_name(path: str) -> str:
    """The folder inside the archive, which torch names after the file."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return stem if stem.isascii() and stem.isprintable() and 0 < len(stem) < 128 else "archive"


def _finish(content: Content, crcs: Crcs) -> list[Record]:
    manifest = json.dumps(_manifest(content, crcs), separators=(",", ":")).encode()
    return [*torch_trailer(crcs), Record(MANIFEST, len(manifest), manifest)]


def _manifest(content: Content, crcs: Crcs) -> dict[str, Any]:
    return {
        "manifest": 1,
        **writer(),
        **world(content),
        "roles": content.roles,
        "numpy": [list(keys) for keys in content.arrays],
        "storages": storage_spans(crcs),
    }


def world(content: Content) -> dict[str, Any]:
    """How many ranks saved, and what is to be known of the leaves that they have for themselves."""
    return {"world_size": content.world_size, **({RANKS: content.ranks} if content.ranks else {})}


def writer() -> dict[str, Any]:
    """Who writes, and when."""
    return {
        "writer": {"unmoor": __version__, "torch": TORCH_VERSION, "python": platform.python_version()},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def storage_spans(crcs: Crcs) -> dict[str, list[int]]:
    """Storage key -> offset, bytes and CRC-32 of its data."""
    return {name.removeprefix("data/"): list(span) for name, span in crcs.items() if name.startswith("data/")}


def _hold_against(catalog: Catalog, content: Content, path: str) -> None:
    """Every tensor that was to be written must be described as it was; the reader is the writer's checker."""
    found = {entry.keys: entry for entry in catalog.tensors}
    faults = []
    for keys, want in content.promise().items():
        entry = found.get(keys)
        if entry is None or (entry.shape, entry.dtype) != want:
            faults.append(f"{key_text(keys)}: meant {want}, found {entry and (entry.shape, entry.dtype)}")
    if faults:
        raise SaveError(
            f"what was written for {path} does not read back as it was meant; the older file is intact",
            details=faults[:10],
            remedy="This is a defect of unmoor: please report it with the tensor's class and layout.",
            path=path,
        )
