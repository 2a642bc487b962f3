"""save to a name that ends in .safetensors: tensors of a module -> head and data -> described again -> published."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from unmoor.describe import describe_file
from unmoor.errors import SaveError, UsageError
from unmoor.execute.commit import publish
from unmoor.execute.flat_file import write_flat
from unmoor.live.content import Content
from unmoor.live.flat import DenseBlob, Flat, flatten
from unmoor.live.rings import rings_for
from unmoor.report.restore import receipt_text
from unmoor.values.dtypes import DTYPES
from unmoor.values.flat_sums import SUMS, blank_sums, filled, row
from unmoor.values.report import Receipt

__all__ = ["SUFFIX", "Row", "flat_head", "write_safetensors"]

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
    rows = {
        name: Row(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), blobs[name].nbytes)
        for name, tensor in flat.tensors.items()
    }
    head = flat_head(rows, order, flat.aliases, path)

    def check(temporary: str) -> None:
        _hold_against(temporary, flat, path)

    needed = len(head) + sum(blob.nbytes for blob in blobs.values())
    with publish(path, needed=needed, durability="disk", check=check) as temporary:
        data = [(blob.nbytes, blob) for blob in blobs.values()]
        buffers = rings_for(blob.device for blob in blobs.values())
        nbytes = write_flat(
            temporary, head, data, finish=filled, buffer_bytes=buffer_bytes, progress=progress, buffers=buffers
        )
    receipt = Receipt(
        path=path,
        nbytes=nbytes,
        seconds=time.perf_counter() - begin,
        counts={flat.role: (len(blobs), sum(blob.nbytes for blob in blobs.values()))},
        converted=tuple(flat.converted),
    )
    return replace(receipt, text=receipt_text(receipt))


class Row(NamedTuple):
    """One tensor of a head."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def flat_head(rows: Mapping[str, Row], order: Sequence[str], aliases: Mapping[str, str], path: str) -> bytes:
    """The length and the JSON, padded so that the data begins at a multiple of 8 bytes; data lies in `order`.

    It has room for checksums (`values.flat_sums.filled`). Raises UsageError for more names than the format allows.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **aliases, SUMS: blank_sums(len(order))}}
    starts, end = {}, 0
    for name in order:
        starts[name], end = end, end + rows[name].nbytes
    for name, (dtype, sizes, nbytes) in rows.items():
        known = DTYPES[dtype]
        shape = [*sizes[:-1], 2 * sizes[-1]] if known.family == "packed" else list(sizes)
        header[name] = row(known.safetensors, shape, [starts[name], starts[name] + nbytes])
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN)
    if len(text) > _MAX_HEADER:
        raise UsageError(
            f"the names and shapes for {path} take {len(text):,} bytes; safetensors allows 100 MB",
            remedy="Save it as .pt, or cut it into several files.",
        )
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
