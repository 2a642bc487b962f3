"""save to a name that ends in .safetensors: tensors of a module -> head and data -> described again -> published."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from unmoor.describe import describe_file
from unmoor.errors import SaveError, UsageError
from unmoor.execute.commit import publish
from unmoor.execute.flat_file import write_flat
from unmoor.live.content import Content
from unmoor.live.flat import DenseBlob, Flat, flatten
from unmoor.report.restore import receipt_text
from unmoor.values.dtypes import DTYPES
from unmoor.values.report import Receipt

__all__ = ["SUFFIX", "write_safetensors"]

SUFFIX: Final = ".safetensors"
_ALIGN: Final = 8
_MAX_HEADER: Final = 100_000_000


def write_safetensors(
    path: str, content: Content, *, buffer_bytes: int, progress: Callable[[int], None] | None
) -> Receipt:
    """Write the tensors of `content` to `path` in the safetensors format, whole and durable.

    Names of one tensor are written once, under the first; the others stand in the metadata, as
    safetensors.torch.save_model has them. Raises UsageError, before anything is written, for all that the format lacks.
    """
    begin = time.perf_counter()
    flat = flatten(content, path)
    order = sorted(flat.tensors, key=lambda name: -flat.tensors[name].itemsize)
    blobs = {name: DenseBlob(flat.tensors[name]) for name in order}
    head = _head(flat, blobs)
    if len(head) > _MAX_HEADER:
        raise UsageError(
            f"the names and shapes for {path} take {len(head):,} bytes; safetensors allows 100 MB",
            remedy="Save it as .pt, or cut it into several files.",
        )

    def check(temporary: str) -> None:
        _hold_against(temporary, flat, path)

    needed = len(head) + sum(blob.nbytes for blob in blobs.values())
    with publish(path, needed=needed, durability="disk", check=check) as temporary:
        rows = [(blob.nbytes, blob) for blob in blobs.values()]
        write_flat(temporary, head, rows, buffer_bytes=buffer_bytes, progress=progress)
    receipt = Receipt(
        path=path,
        nbytes=os.stat(path).st_size,
        seconds=time.perf_counter() - begin,
        counts={flat.role: (len(blobs), sum(blob.nbytes for blob in blobs.values()))},
        converted=tuple(flat.converted),
    )
    return replace(receipt, text=receipt_text(receipt))


def _head(flat: Flat, blobs: Mapping[str, DenseBlob]) -> bytes:
    """The length and the JSON, padded so that the data begins at a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **flat.aliases}}
    starts, end = {}, 0
    for name, blob in blobs.items():
        starts[name], end = end, end + blob.nbytes
    for name, tensor in flat.tensors.items():
        row = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        shape = [*tensor.shape[:-1], 2 * tensor.shape[-1]] if row.family == "packed" else list(tensor.shape)
        offsets = [starts[name], starts[name] + blobs[name].nbytes]
        header[name] = {"dtype": row.safetensors, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _hold_against(temporary: str, flat: Flat, path: str) -> None:
    """Every tensor must be described as it was meant; the reader is the writer's checker."""
    found = {entry.path: (entry.shape, entry.dtype) for entry in describe_file(temporary).tensors}
    meant = {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in flat.tensors.items()}
    wrong = [name for name, want in meant.items() if found.get(name) != want]
    faults = [f"{name}: meant {meant[name]}, found {found.get(name)}" for name in wrong]
    if faults:
        raise SaveError(
            f"what was written for {path} does not read back as it was meant; the older file is intact",
            details=faults[:10],
            remedy="This is a defect of unmoor: please report it with the tensor's dtype and shape.",
            path=path,
        )
