"""convert: described file or folder -> another tree, as asked -> another format, its data streamed, checked on the way.

What the target cannot hold is an error that lists it, before anything is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from unmoor import places
from unmoor.describe import describe_path
from unmoor.distributed.stored_sources import Sources
from unmoor.errors import UnsupportedFile, UsageError
from unmoor.filing import path_text
from unmoor.live.content import Content, plain_tree
from unmoor.live.stored import unwritable
from unmoor.live.trees import Realizer
from unmoor.plan.casting import cast, wishes
from unmoor.plan.choose import array_nodes
from unmoor.plan.compacting import compacted
from unmoor.plan.of_rank import own_leaves
from unmoor.plan.plain_layout import plain_layout
from unmoor.plan.plain_values import plain_values
from unmoor.plan.renaming import Naming, naming
from unmoor.plan.renaming_tree import renamed
from unmoor.plan.taken import Taken
from unmoor.plan.taking import take
from unmoor.plan.told_roles import with_told_roles
from unmoor.report.converting import conversion_text
from unmoor.steady import one_reading
from unmoor.values.catalog import Catalog
from unmoor.values.conversion import Conversion
from unmoor.values.manifests import UNORDERED
from unmoor.values.nodes import deflated
from unmoor.values.pausing import collector_paused
from unmoor.values.plan import Change
from unmoor.values.ranks import Keys, ranks_text
from unmoor.values.report import Receipt
from unmoor.values.salvage import Salvage
from unmoor.values.sizes import size_of
from unmoor.values.text import key_text

from .checking import check_verify, refuse_overlap
from .converting_casts import cast_findings, casts_told
from .converting_file import write_torch
from .converting_flat import write_flat_nodes
from .converting_folder import write_folder
from .converting_legacy import write_legacy
from .converting_meter import Meter
from .converting_shards import write_shards
from .repeats import refuse_repeats
from .salvaging import lost_findings, salvaged
from .spans import open_spans, refuse_without_data

__all__ = ["FORMATS", "LAYOUTS", "OPAQUE", "Wish", "convert_path"]

FORMATS: Final = ("torch", "legacy", "safetensors", "dcp")
LAYOUTS: Final = ("same", "plain")
OPAQUE: Final = ("refuse", "drop")

_TORCH: Final = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl")
_READ_OTHERWISE: Final = ("plain-stand-in", "left-out", "tensor-subclass")
"""Findings of a file about what is not read, and so not written, as it was."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asked for; see `unmoor.convert`."""

    form: str | None = None
    layout: str = "same"
    only: str | Sequence[str] | None = None
    drop: str | Sequence[str] | None = None
    strip: str | Sequence[str] | None = None
    rename: Any = None
    add: str | None = None
    dtype: Any = None
    storage: str = "shared"
    opaque: str = "refuse"
    max_shard_size: int | str | None = None
    salvage: bool = False
    keep_damaged: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """The same, checked: what is to be written, as what, and how much of it in one file."""

    form: str
    naming: Naming
    dtypes: Mapping[str, str]
    most: int | None


@dataclass(frozen=True, slots=True)
class _Made:
    """What will be written, and how it differs from the source."""

    taken: Taken
    content: Content
    renamed: tuple[Change, ...]
    cast: tuple[Change, ...]
    left_out: tuple[Change, ...]


@one_reading()
def convert_path(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    wish: Wish,
    *,
    verify: str,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
    total: Callable[[int], None] | None = None,
) -> Conversion:
    """Write what `source` holds to `target` as asked, and say what was written."""
    begin = time.perf_counter()
    source, target = path_text(source), path_text(target)
    asked = _asked(target, wish)
    check_verify(verify)
    salvage: Salvage | None = None
    if wish.salvage:
        catalog, salvage = salvaged(source, keep_damaged=wish.keep_damaged, buffer_bytes=buffer_bytes, threads=threads)
        verify = "none" if wish.keep_damaged else verify  # all of it was just read and judged
    else:
        catalog = describe_path(source)
    refuse_without_data(catalog)
    refuse_overlap(catalog.path, target, _files(catalog))
    with collector_paused():  # a tree of very many containers would be gone through again and again
        made = _made(catalog, target, wish, asked)
    if asked.form not in ("torch", "legacy") or made.cast:
        refuse_repeats(catalog.path, ((entry.path, entry.node) for entry in made.taken.tensors))
    meter = Meter(progress) if total is None else Meter(progress, total)
    files: tuple[str, ...] = ()
    with open_spans(catalog.path) as open_span:
        sources = Sources(catalog, made.taken, open_span, verify=verify, buffer_bytes=buffer_bytes, threads=threads)
        if asked.most is None:
            receipt = _WRITERS[asked.form](target, made.content, made.taken, sources, meter)
        else:
            receipt, files = write_shards(target, made.content, made.taken, sources, meter, most=asked.most)
    casts = casts_told(made.cast, made.taken, sources.losses)
    told = tuple(finding for finding in catalog.findings if finding.code in _READ_OTHERWISE)
    known = {row.name: getattr(receipt, row.name) for row in fields(Receipt)}
    known |= {
        "seconds": time.perf_counter() - begin,
        "counts": _counts(made.taken),
        "findings": (*cast_findings(casts), *told, *receipt.findings, *lost_findings(salvage)),
    }
    conversion = Conversion(
        **known,
        source=source,
        source_format=catalog.format,
        dialect=catalog.dialect,
        format=asked.form,
        files=files,
        renamed=made.renamed,
        cast=casts,
        left_out=made.left_out,
        salvage=salvage,
    )
    return replace(conversion, text=conversion_text(conversion))


_WRITERS: Final[Mapping[str, Callable[..., Receipt]]] = {
    "torch": write_torch,
    "legacy": write_legacy,
    "safetensors": write_flat_nodes,
    "dcp": write_folder,
}


def _asked(target: str, wish: Wish) -> _Asked:
    if wish.keep_damaged and not wish.salvage:
        raise UsageError("keep_damaged=True is for a rescue: give salvage=True too")
    for name, given, known in (
        ("format", wish.form, (None, *FORMATS)),
        ("layout", wish.layout, LAYOUTS),
        ("storage", wish.storage, ("shared", "compact")),
        ("opaque", wish.opaque, OPAQUE),
    ):
        if given not in known:
            raise UsageError(f"{name}={given!r} is none of {', '.join(repr(word) for word in known if word)}")
    most = None if wish.max_shard_size is None else size_of("max_shard_size", wish.max_shard_size)
    form = wish.form or ("safetensors" if most else _format_of(target))
    if most is not None and (form != "safetensors" or target.lower().endswith(".safetensors")):
        raise UsageError(
            f"max_shard_size={wish.max_shard_size!r} is for a folder of safetensors files, which {target} is not",
            remedy='Give the name of a folder, with format="safetensors" or without.',
        )
    return _Asked(form, naming(wish.strip, wish.rename, wish.add), wishes(wish.dtype), most)


def _format_of(target: str) -> str:
    lower = target.lower()
    if target.endswith(("/", os.sep)) or places.is_folder(target):
        return "dcp"
    return "safetensors" if lower.endswith(".safetensors") else "torch" if lower.endswith(_TORCH) else "dcp"


def _files(catalog: Catalog) -> set[str]:
    """The files in which the data of a checkpoint lies."""
    folder = catalog.path if places.is_folder(catalog.path) else places.parent(catalog.path)
    storages = [entry.node.storage for entry in catalog.tensors if entry.node is not None]
    spans = [source.span for storage in storages if storage is not None for source in storage.sources()]
    names = {span.file for span in spans if span is not None}
    return {places.join(folder, (deflated(name) or (name,))[0]) for name in names if name}


def _made(catalog: Catalog, target: str, wish: Wish, asked: _Asked) -> _Made:
    """The tree as it is to be written: laid out, cut, made plain, renamed, compacted, cast, in that order."""
    try:
        laid = plain_layout(catalog) if wish.layout == "plain" else with_told_roles(catalog)
        taken = replace(take(laid, wish.only, wish.drop), read=catalog.tensors)
        taken, converted, left_out = plain_values(taken, left_out=wish.opaque == "drop", unwritable=unwritable)
        taken, renamings = renamed(taken, laid, asked.naming)
        taken = compacted(taken) if wish.storage == "compact" else taken
        taken, casts = cast(taken, asked.dtypes, laid)
    except RecursionError:
        raise UsageError(
            f"{catalog.path} is nested more deeply than Python can follow; nothing was written", path=catalog.path
        ) from None
    taken = replace(taken, manifest=_ordered(catalog, taken))
    content = _content(catalog, taken, target)
    content.converted = [*converted, *content.converted, *_left_behind(laid, taken)]
    arrays = array_nodes(catalog)
    content.arrays += [
        entry.keys for entry in taken.tensors if entry.node is not None and id(taken.origin(entry.node)) in arrays
    ]
    return _Made(taken, content, renamings, casts, tuple(left_out))


def _ordered(catalog: Catalog, taken: Taken) -> Mapping[str, Any] | None:
    """The manifest, with the models of which the source does not tell in which order their parameters were."""
    loose = [
        list(part.keys)
        for part in taken.parts
        if part.role == "model" and (catalog.format == "safetensors" or part.detail.get("ordered", True) is not True)
    ]
    return {**(taken.manifest or {}), UNORDERED: loose} if loose else taken.manifest


def _content(catalog: Catalog, taken: Taken, target: str) -> Content:
    """The tree as it is written: plain values, and tensors that are still in their file."""
    realize = Realizer(tensor=lambda node: node, composite=lambda node: node)
    try:
        return plain_tree(realize(taken.tree))
    except UsageError as error:
        raise UnsupportedFile(
            f"{target} was not written: {catalog.path} holds what no checkpoint without code can hold",
            details=error.details,
            remedy='Take the parts that you want: only="model", or a list of roles or key paths; layout="plain" takes '
            'the state out of pickled modules, opaque="drop" leaves the values above out.',
            path=catalog.path,
        ) from None


def _left_behind(catalog: Catalog, taken: Taken) -> Iterator[Change]:
    """What other ranks had of their own in a part that becomes the root of the target."""
    ranks: dict[Keys, list[int]] = {}
    for rank, leaves in own_leaves(catalog).items() if taken.root else ():
        for keys in leaves:
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
