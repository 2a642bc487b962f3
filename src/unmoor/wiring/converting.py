"""convert: described file or folder -> the same tree in another format, its data streamed, checked on the way.

What the target cannot hold is an error that lists it, before anything is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from unmoor.describe import describe_path
from unmoor.distributed.stored_sources import Sources
from unmoor.errors import UnsupportedFile, UsageError
from unmoor.filing import path_text
from unmoor.live.content import Content, plain_tree
from unmoor.live.trees import Realizer
from unmoor.plan.choose import array_nodes
from unmoor.plan.of_rank import own_leaves
from unmoor.plan.taking import Taken, take
from unmoor.report.restore import receipt_text
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import deflated
from unmoor.values.plan import Change
from unmoor.values.ranks import Keys, ranks_text
from unmoor.values.report import Receipt
from unmoor.values.text import key_text

from .checking import check_verify, refuse_overlap
from .converting_file import write_torch
from .converting_flat import write_flat_nodes
from .converting_folder import write_folder
from .spans import open_spans, refuse_without_data

__all__ = ["FORMATS", "convert_path"]

FORMATS: Final = ("torch", "safetensors", "dcp")

_TORCH: Final = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl")


def convert_path(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    form: str | None,
    only: str | Sequence[str] | None,
    verify: str,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Receipt:
    """Write what `source` holds to `target` in another format, and say what was written."""
    begin = time.perf_counter()
    source, target = path_text(source), path_text(target)
    form = _format_of(target, form)
    check_verify(verify)
    catalog = describe_path(source)
    refuse_without_data(catalog)
    refuse_overlap(catalog.path, target, _files(catalog))
    taken = take(catalog, only)
    content = _content(catalog, taken, target)
    with open_spans(catalog.path) as open_span:
        sources = Sources(
            catalog, taken, open_span, verify=verify != "none", buffer_bytes=buffer_bytes, threads=threads
        )
        receipt = _WRITERS[form](target, content, taken, sources, progress)
    receipt = replace(receipt, seconds=time.perf_counter() - begin, counts=_counts(taken))
    return replace(receipt, text=receipt_text(receipt))


_WRITERS: Final[Mapping[str, Callable[..., Receipt]]] = {
    "torch": write_torch,
    "safetensors": write_flat_nodes,
    "dcp": write_folder,
}


def _format_of(target: str, form: str | None) -> str:
    if form is not None:
        if form not in FORMATS:
            raise UsageError(f"format={form!r} is none of {', '.join(map(repr, FORMATS))}")
        return form
    lower = target.lower()
    if os.path.isdir(target) or target.endswith(("/", os.sep)):
        return "dcp"
    return "safetensors" if lower.endswith(".safetensors") else "torch" if lower.endswith(_TORCH) else "dcp"


def _files(catalog: Catalog) -> set[str]:
    """The files in which the data of a checkpoint lies."""
    folder = catalog.path if os.path.isdir(catalog.path) else os.path.dirname(catalog.path)
    storages = [entry.node.storage for entry in catalog.tensors if entry.node is not None]
    spans = [source.span for storage in storages if storage is not None for source in storage.sources()]
    names = {span.file for span in spans if span is not None}
    return {os.path.join(folder, (deflated(name) or (name,))[0]) for name in names if name}


def _content(catalog: Catalog, taken: Taken, target: str) -> Content:
    """The tree as it is written: plain values, and tensors that are still in their file."""
    realize = Realizer(tensor=lambda node: node, composite=lambda node: node)
    try:
        content = plain_tree(realize(taken.tree))
    except UsageError as error:
        raise UnsupportedFile(
            f"{target} was not written: {catalog.path} holds what no checkpoint without code can hold",
            details=error.details,
            remedy='Take the parts that you want: only="model", or a list of roles or key paths.',
            path=catalog.path,
        ) from None
    arrays = array_nodes(catalog)
    content.converted += _left_behind(catalog, taken)
    content.arrays += [entry.keys for entry in taken.tensors if id(entry.node) in arrays]
    return content


def _left_behind(catalog: Catalog, taken: Taken) -> Iterator[Change]:
    """What other ranks had of their own in a part that becomes the root of the target."""
    ranks: dict[Keys, list[int]] = {}
    for rank, places in own_leaves(catalog).items() if taken.root else ():
        for keys in places:
            if keys[: len(taken.root)] == taken.root:
                ranks.setdefault(keys[len(taken.root) :], []).append(rank)
    roles = {entry.keys: entry.role for entry in taken.tensors}
    for keys, own in ranks.items():
        yield Change(roles.get(keys, "extra"), key_text(keys), f"other values on {ranks_text(own)}", "rank 0's alone")


def _counts(taken: Taken) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for entry in taken.tensors:
        number, nbytes = counts.get(entry.role, (0, 0))
        counts[entry.role] = (number + 1, nbytes + entry.nbytes)
    return counts
