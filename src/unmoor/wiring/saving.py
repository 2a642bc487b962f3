"""save: live objects -> content -> a draft of the file -> written (`writing.py`)."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

from unmoor.filing import path_text
from unmoor.live.content import TORCH_VERSION, Content
from unmoor.live.pickling import StorageBlob, pickle_tree
from unmoor.live.rings import rings_for
from unmoor.report.restore import receipt_text
from unmoor.urls import is_url
from unmoor.values.catalog import Catalog
from unmoor.values.progress import VALUES, told
from unmoor.values.ranks import RANKS
from unmoor.values.report import Receipt
from unmoor.version import __version__

from .saving_flat import SUFFIX, write_safetensors
from .writing import Draft, write_draft

__all__ = ["draft_of", "head", "receipt_of", "world", "write_content", "writer"]


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
    draft, blobs = draft_of(path_text(path), content)
    buffers = rings_for(blob.device for blob in blobs.values())
    nbytes = write_draft(
        draft, buffer_bytes=buffer_bytes, threads=threads, progress=progress, buffers=buffers, agree=agree
    )
    return receipt_of(draft.path, content, nbytes, time.perf_counter() - begin)


def draft_of(path: str, content: Content) -> tuple[Draft, dict[str, StorageBlob]]:
    """The file that `content` makes, with its data where it is now, and that data by storage key."""
    pickled, blobs = pickle_tree(content.tree, content.tensors.values())
    storages = [(key, blob.nbytes, blob) for key, blob in blobs.items()]
    return Draft(path, pickled, storages, _manifest(content), content.promise()), blobs


def receipt_of(path: str, content: Content, nbytes: int, seconds: float) -> Receipt:
    """What is said of a file that was written."""
    receipt = Receipt(
        path=path,
        nbytes=nbytes,
        seconds=seconds,
        counts=content.counts(),
        converted=tuple(content.converted),
        findings=tuple(content.findings),
        notes=_notes(path),
    )
    return replace(receipt, text=receipt_text(receipt))


def _notes(path: str) -> tuple[tuple[str, str], ...]:
    """What is to be known of the place."""
    if not is_url(path):
        return ()
    from unmoor.remote.drafts import is_atomic

    return () if is_atomic(path) else (("place", _COPIES),)


_COPIES: Final = "this store copies and then deletes where others rename: a save cut off there may leave half an object"


def _manifest(content: Content) -> dict[str, Any]:
    return {
        **head(content),
        **world(content),
        "roles": content.roles,
        "numpy": [list(keys) for keys in content.arrays],
    }


def head(content: Content) -> dict[str, Any]:
    """What a manifest begins with: the few values of the tree that tell how far the run is, once more, and who writes.

    A listing of many checkpoints reads them there; where they are not plain they are left to the tree.
    """
    values = told(content.tree)
    return {"manifest": 1, **({} if values is None else {VALUES: values}), **writer()}


def world(content: Content) -> dict[str, Any]:
    """How many ranks saved, and what is to be known of the leaves that they have for themselves."""
    return {"world_size": content.world_size, **({RANKS: content.ranks} if content.ranks else {})}


def writer() -> dict[str, Any]:
    """Who writes, and when."""
    return {
        "writer": {"unmoor": __version__, "torch": TORCH_VERSION, "python": platform.python_version()},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
