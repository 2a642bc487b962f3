"""repartition: files of all ranks -> the same state in shares of another number of ranks -> described -> published.

Nothing of DeepSpeed's is imported or run: its objects are carried as they stand in the files.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from unmoor.describe.storages import nodes_of, storages_of
from unmoor.describe.zero import describe_zero, layout_of
from unmoor.describe.zero_files import RankFile, Ranks, find_step, read_ranks
from unmoor.distributed.zero_trees import ZeroTrees, model_trees
from unmoor.errors import SaveError, UnsupportedFile, UsageError
from unmoor.execute.archive import torch_records, torch_trailer, write_archive
from unmoor.execute.commit import sync_names
from unmoor.execute.folder_commit import publish_folder, staged
from unmoor.execute.opening import open_spans
from unmoor.execute.reading import OpenSpan
from unmoor.execute.sinks import Blob
from unmoor.execute.sources import SpanBlob
from unmoor.execute.splices import SplicedBlob
from unmoor.execute.verify import check, corrupt
from unmoor.filing import local_path
from unmoor.live.pickling import StorageBlob
from unmoor.live.stored import Extent, pickle_stored
from unmoor.live.trees import Realizer
from unmoor.report.restore import receipt_text
from unmoor.steady import one_reading
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.nodes import Storage
from unmoor.values.pausing import collector_paused
from unmoor.values.report import Receipt
from unmoor.values.text import count

from .checking import check_verify, refuse_overlap
from .writing import archive_name

__all__ = ["repartition_zero"]

_LATEST: Final = "latest"
_SHOWN: Final = 10


@dataclass(slots=True)
class _Job:
    """One folder on its way: the trees of its files by name, and how to read and write."""

    source: str
    trees: dict[str, Any]
    buffer_bytes: int
    threads: int
    progress: Callable[[int], None] | None
    storages: dict[str, Storage] = field(default_factory=dict)


@one_reading()
def repartition_zero(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    ranks: int,
    verify: str,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Receipt:
    """Write the DeepSpeed folder `source` to `target` as `ranks` ranks would have saved it."""
    begin = time.perf_counter()
    source, target = local_path(source, "repartition"), local_path(target, "repartition")
    if type(ranks) is not int or ranks < 1:
        raise UsageError(f"ranks={ranks!r} is no number of ranks", remedy="ranks=4 cuts it for four.")
    check_verify(verify)
    catalog = describe_zero(source)
    refuse_overlap(source, target, ())
    step = find_step(source)
    with collector_paused():
        saved = read_ranks(source, step)
        job = _Job(source, dict(_trees(source, step, saved, ranks)), buffer_bytes, threads, progress)
    _check_storages(job)
    with open_spans(source) as open_span:
        if verify != "none":
            _check_data(job, open_span)
        nbytes = _write_folder(job, target, step, open_span, catalog)
    receipt = Receipt(
        path=target,
        nbytes=nbytes,
        seconds=time.perf_counter() - begin,
        counts=catalog.roles(),
        findings=tuple(_simplified(saved)),
        notes=(("ranks", f"shares of {catalog.facts['world_size']} ranks cut for {count(ranks, 'rank')}"),),
    )
    return replace(receipt, text=receipt_text(receipt))


def _trees(path: str, step: str, saved: Ranks, ranks: int) -> Iterator[tuple[str, Any]]:
    """File name -> tree of each file of the new folder, the step's folder in the name."""
    folder = step or os.path.basename(os.path.abspath(path))
    shapes = []
    if saved.optimizers:
        shares = ZeroTrees(path, saved, layout_of(path, saved), ranks)
        shapes = shares.shapes()
        yield from zip(_names(folder, saved.optimizers[0], ranks), shares.trees(), strict=True)
    models = list(model_trees(path, saved, shapes, ranks))
    yield from zip(_names(folder, saved.models[0], len(models)), models, strict=True)


def _names(folder: str, first: RankFile, ranks: int) -> list[str]:
    """What the files of all ranks are called, after that of rank 0."""
    name = os.path.basename(first.file)
    return [f"{folder}/{name.replace('zero_pp_rank_0_', f'zero_pp_rank_{rank}_', 1)}" for rank in range(ranks)]


def _simplified(saved: Ranks) -> Iterator[Finding]:
    """What the inert reading could not keep as it was: a reader of the new folder finds it in a plainer form."""
    notes = dict.fromkeys(note for file in (*saved.models, *saved.optimizers) for note in file.saved.reading.notes)
    yield from (Finding(code, "info", "", what) for code, what in notes)


def _check_storages(job: _Job) -> None:
    """Gather what is read. Raises UnsupportedFile for bytes that would have to be turned round."""
    for tree in job.trees.values():
        for storage in storages_of(tree):
            job.storages |= {source.key: source for source in storage.sources()}
    other = [storage.key for storage in job.storages.values() if storage.byteorder != sys.byteorder]
    if other:
        raise UnsupportedFile(
            f"{job.source} was written on a machine of the other byte order ({other[0]}): it is not turned round here",
            path=job.source,
        )


def _check_data(job: _Job, open_span: OpenSpan) -> None:
    """Read everything once and hold it against its checksums, before anything is written."""
    faults = check(
        [(storage, (storage.key,)) for storage in job.storages.values()],
        open_span=open_span,
        buffer_bytes=job.buffer_bytes,
        threads=job.threads,
        progress=None,
    )
    if faults:
        raise corrupt(faults, job.source)


def _write_folder(job: _Job, target: str, step: str, open_span: OpenSpan, catalog: Catalog) -> int:
    """All files in a hidden folder, described again and held against the source, then renamed; bytes written."""
    folder = next(iter(job.trees)).partition("/")[0]
    needed = sum(storage.nbytes for tree in job.trees.values() for storage in storages_of(tree))
    scripts = [n for n in (os.listdir(job.source) if step else ()) if n.endswith(".py")]
    own = {folder, _LATEST, *scripts}
    with staged(target, needed, own=own.__contains__) as staging:
        hidden = staging.beside(target)
        os.mkdir(os.path.join(hidden, folder))
        nbytes = sum(_write_file(job, os.path.join(hidden, name), tree, open_span) for name, tree in job.trees.items())
        for script in scripts:
            shutil.copy2(os.path.join(job.source, script), os.path.join(hidden, script))
        with open(os.path.join(hidden, _LATEST), "x", encoding="utf-8") as latest:
            latest.write(folder)
        for name in (*scripts, _LATEST):
            _sync(os.path.join(hidden, name))
        sync_names(os.path.join(hidden, folder))
        _hold_against(describe_zero(hidden), catalog, target)
        publish_folder(staging, target)
    return nbytes


def _write_file(job: _Job, path: str, tree: Any, open_span: OpenSpan) -> int:
    made = Realizer(tensor=lambda node: node, composite=lambda node: node)(tree)
    pickled, held = pickle_stored(made, list(nodes_of(made)), foreign=True)
    blobs = [(key, part.nbytes, _blob(part, open_span)) for key, part in held.items()]
    written = write_archive(
        path,
        torch_records(pickled, blobs),
        name=archive_name(path),
        finish=torch_trailer,
        threads=job.threads,
        buffer_bytes=job.buffer_bytes,
        progress=job.progress,
    )
    _sync(path)
    return written.nbytes


def _blob(part: Extent | StorageBlob, open_span: OpenSpan) -> Blob:
    if not isinstance(part, Extent):
        return part
    if part.storage.span is None:
        return SplicedBlob(open_span, part.storage)
    return SpanBlob(open_span, part.storage.span, part.start, part.nbytes)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hold_against(found: Catalog, wanted: Catalog, path: str) -> None:
    """The same tensors must be in both, whatever the number of ranks; the reader is the writer's checker."""
    there = {entry.keys: (entry.shape, entry.dtype) for entry in found.tensors}
    meant = {entry.keys: (entry.shape, entry.dtype) for entry in wanted.tensors}
    faults = [
        f"{'.'.join(map(str, keys))}: meant {meant.get(keys)}, found {there.get(keys)}"
        for keys in dict.fromkeys((*meant, *there))
        if meant.get(keys) != there.get(keys)
    ]
    if faults:
        raise SaveError(
            f"what was written for {path} does not read back as it was meant; what was there before is intact",
            details=faults[:_SHOWN],
            remedy="This is a defect of unmoor: please report it with the stage and the sizes of the parameters.",
            path=path,
        )
