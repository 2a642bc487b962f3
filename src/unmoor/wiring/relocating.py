"""relocate: describe -> tags by the role table -> new pickles in place of the old ones -> described again -> seen.

Of a folder all files are made ready and checked before the first is changed. Nothing in a file is run, and no tensor
data is read, but by a copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from unmoor.describe import describe_path
from unmoor.describe.file import describe_file
from unmoor.describe.records import base_of, files_of
from unmoor.errors import UnsupportedFile, UsageError
from unmoor.execute.commit import publish
from unmoor.execute.duplicating import copy_bytes, share_blocks
from unmoor.filing import local_path
from unmoor.plan.relocating import Retagging, check_words, retagging, wish_of
from unmoor.refusals import told
from unmoor.report.relocation import relocation_text, shell_word, undone_text
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.relocation import Kept, Move, RelocatedFile, Relocation
from unmoor.values.text import count, listing

from .relocating_half import File, half_told, refuse_half
from .relocating_old import relocated_old
from .relocating_zip import (
    code_findings,
    cut_off,
    left_finding,
    refuse_other,
    relocated_zip,
    undone_zip,
    whole_archive,
)

__all__ = ["relocate_path", "undo_path"]

_ZIPS: Final = ("torch-zip", "torchscript")
_OLD: Final = ("torch-legacy", "torch-tar")
_NO_TAGS: Final = {
    "safetensors": "safetensors keeps no device of a tensor: its reader puts each where it is asked to",
    "dcp": "a folder of torch.distributed.checkpoint keeps no device: each rank reads into the tensors that it has",
}
_PLAIN: Final = (".json", ".distcp", ".metadata", ".safetensors")
"""Ends of the names of files that hold no device tags."""

_SHOWN: Final = 6


@told()
def relocate_path(
    path: str | os.PathLike[str],
    *,
    to: str | None,
    map_location: Mapping[str, str] | None,
    output: str | os.PathLike[str] | None,
    progress: Callable[[int], None] | None,
) -> Relocation:
    """Change the device tags of a checkpoint, in place or in a copy."""
    begin = time.perf_counter()
    path, target = local_path(path, "relocate"), None if output is None else local_path(output, "relocate")
    check_words(to, map_location, path)
    files, whole = _described(path)
    if target is not None:
        _refuse_target(path, target, whole)
    tags = list(dict.fromkeys(storage.device for file in files for storage in file.catalog.storages))
    refuse_half(path, files, {file.path for file in files if _is_left(file)}, tags, map_location)
    plans: list[tuple[File, Retagging]] = []
    if files or whole.format not in _NO_TAGS:
        wish = wish_of(to, map_location, tags, path)
        plans = [(file, retagging(file.catalog, wish)) for file in files]
    changed: list[str] = []
    with half_told(path, changed), ExitStack() as stack:
        done = []
        for file, tagging in plans:
            stack.push(partial(_note, changed, file.path))
            done.append(stack.enter_context(_relocated(file, tagging, target, progress)))
        if not plans:
            done = [stack.enter_context(_as_it_is(path, whole, target, progress))]
    made = Relocation(
        path=path,
        target=target or path,
        format=whole.format,
        moves=tuple(_summed(move for _, one in plans for move in one.moves)),
        kept=tuple(_kept(kept for _, one in plans for kept in one.kept)),
        values=tuple(_values(plans, many=os.path.isdir(path))),
        files=tuple(file for file, _ in done),
        devices=_devices(plans) if plans else whole.devices(),
        undo=_undo(path, [file for file, _ in done]),
        findings=(*(finding for _, found in done for finding in found), *_beside(path, whole, files)),
        seconds=time.perf_counter() - begin,
    )
    return replace(made, text=relocation_text(made))


@told()
def undo_path(path: str | os.PathLike[str]) -> Relocation:
    """Take the last relocation of a checkpoint back."""
    begin = time.perf_counter()
    path = local_path(path, "undo_relocate")
    names = [path]
    if os.path.isdir(path) or not os.path.exists(path):
        names = [file.path for file in _described(path)[0] if "relocated" in file.catalog.facts or _is_left(file)]
        if not names:
            raise UnsupportedFile(f"no file of {path} was relocated in place: there is nothing to undo", path=path)
    changed: list[str] = []
    with half_told(path, changed), ExitStack() as stack:
        done = []
        for name in names:
            stack.push(partial(_note, changed, name))
            done.append(stack.enter_context(undone_zip(name, os.stat(name))))
    moves = [Move(new, old, n, 0) for _, back, _ in done for old, goals in back.items() for new, n in goals.items()]
    after, whole = _described(path)
    made = Relocation(
        path=path,
        target=path,
        format=whole.format,
        moves=tuple(_summed(moves)),
        files=tuple(file for file, _, _ in done),
        devices=_devices([(file, None) for file in after]),
        undo=_undo(path, [RelocatedFile(f.path, "appended", 0, 0) for f in after if "relocated" in f.catalog.facts]),
        findings=tuple(finding for _, _, found in done for finding in found),
        seconds=time.perf_counter() - begin,
    )
    return replace(made, text=undone_text(made))


def _note(changed: list[str], path: str, kind: type[BaseException] | None, *_: Any) -> None:
    """Note a file that has been changed: what it was in has ended without an error."""
    if kind is None:
        changed.append(path)


def _described(path: str) -> tuple[list[File], Catalog]:
    """The files of a checkpoint that hold device tags, and the checkpoint as a whole."""
    seen = os.stat(path) if os.path.exists(path) else None
    whole = describe_path(path)
    if whole.format in (*_ZIPS, *_OLD) and seen is not None and "files" not in whole.facts:
        return [File(path, whole, seen)], whole
    places = [os.path.join(base_of(path), name) if name else path for name in files_of(whole)]
    files = [_file(place) for place in places if not os.path.basename(place).endswith(_PLAIN)]
    files = [file for file in files if file.catalog.format in (*_ZIPS, *_OLD)]
    _refuse_links(path, files)
    return files, whole


def _refuse_links(path: str, files: Sequence[File]) -> None:
    """Raise UsageError where a file of a folder is a link out of it: what it leads to is not this checkpoint's own."""
    home = os.path.realpath(base_of(path))
    away = [file.path for file in files if os.path.commonpath([home, os.path.realpath(file.path)]) != home]
    if away:
        raise UsageError(
            f"{path} was not relocated: {listing(away, 2)} {'is a link' if len(away) == 1 else 'are links'} out of it",
            remedy="Copy the folder with what its links lead to (cp -rL), then relocate the copy.",
            path=path,
        )


def _file(path: str) -> File:
    seen = os.stat(path)
    return File(path, describe_file(path), seen)


@contextmanager
def _as_it_is(
    path: str, whole: Catalog, target: str | None, progress: Callable[[int], None] | None
) -> Iterator[tuple[RelocatedFile, list[Finding]]]:
    """A checkpoint whose format keeps no tags: there is nothing to change, and a copy is a copy."""
    findings = [Finding("no-device-tags", "info", "", _NO_TAGS[whole.format])] if whole.format in _NO_TAGS else []
    if target is None:
        yield RelocatedFile(path, "unchanged", whole.size, whole.size), findings
        return
    with publish(target, needed=whole.size, durability="disk", check=_trusted) as hidden:
        _copy(path, hidden, whole.size, os.stat(path), progress)
        yield RelocatedFile(target, "copied", whole.size, whole.size), findings


def _trusted(hidden: str) -> None:
    """What was checked as it was made needs no more of it."""
    del hidden


def _refuse_target(path: str, target: str, whole: Catalog) -> None:
    if os.path.isdir(path) or "files" in whole.facts:
        raise UsageError(
            f"{path} is a checkpoint of several files: one is copied at a time",
            remedy="Copy the folder, then relocate the copy in place.",
            path=path,
        )
    if os.path.exists(target) and os.path.samefile(path, target):
        raise UsageError(f"{target} is the checkpoint itself", remedy="Without --output it is relocated in place.")


@contextmanager
def _relocated(
    file: File, made: Retagging, target: str | None, progress: Callable[[int], None] | None
) -> Iterator[tuple[RelocatedFile, list[Finding]]]:
    """One file with other tags once the block ends, at `target` if given; what became of it and what to know."""
    findings = list(_file_findings(file, made, target))
    if not made.moves and target is None:
        yield _unchanged(file), findings
    elif file.catalog.format in _OLD:
        with relocated_old(file.path, target or file.path, file.catalog, made, file.seen, progress) as done:
            yield done, findings
    elif target is not None:
        with _copied(file, made, target, progress) as done:
            yield done, findings
    else:
        seen, more = _without_leftovers(file)
        with relocated_zip(file.path, file.catalog, made, seen) as done:
            yield done, [*findings, *more]


def _unchanged(file: File) -> RelocatedFile:
    return RelocatedFile(file.path, "unchanged", file.catalog.size, file.catalog.size)


def _without_leftovers(file: File) -> tuple[os.stat_result, list[Finding]]:
    """Cut off what an interrupted relocation left behind a zip; what the system says of the file then."""
    if not _is_left(file):
        return file.seen, []
    archive = whole_archive(file.path)
    with cut_off(file.path, archive.size, file.seen):
        pass
    return os.stat(file.path), [left_finding(archive)]


def _is_left(file: File) -> bool:
    """Whether a relocation that was cut off left bytes behind a file's archive."""
    if "interrupted" in file.catalog.facts:
        return True
    trails = any(finding.code == "trailing-bytes" for finding in file.catalog.findings)
    return trails and file.catalog.format in _ZIPS and whole_archive(file.path).left


@contextmanager
def _copied(
    file: File, made: Retagging, target: str, progress: Callable[[int], None] | None
) -> Iterator[RelocatedFile]:
    """A relocated copy of a zip; bytes behind its archive are left out."""
    size = whole_archive(file.path).size
    with publish(target, needed=size, durability="disk", check=_trusted) as hidden:
        _copy(file.path, hidden, size, file.seen, progress)
        after = size
        if made.moves:
            with relocated_zip(hidden, file.catalog, made, os.stat(hidden), name=target) as done:
                after = done.after
        yield RelocatedFile(target, "copied", size, after)


def _copy(source: str, target: str, size: int, seen: os.stat_result, progress: Callable[[int], None] | None) -> None:
    """Copy the first `size` bytes of a file, which must be as it was `seen` until they are copied."""
    flags = getattr(os, "O_BINARY", 0)
    old, new = os.open(source, os.O_RDONLY | flags), os.open(target, os.O_RDWR | flags)
    try:
        refuse_other(source, seen, os.fstat(old))
        if share_blocks(old, new):
            os.ftruncate(new, size)
            if progress is not None:
                progress(size)
        else:
            copy_bytes(old, new, 0, size, advance=progress, path=source)
        refuse_other(source, seen, os.fstat(old))
    finally:
        os.close(old)
        os.close(new)


def _file_findings(file: File, made: Retagging, target: str | None) -> Iterator[Finding]:
    if made.moves and target is None and file.seen.st_nlink > 1:
        names = f"{file.seen.st_nlink} names (hard links)"
        if file.catalog.format in _ZIPS:
            what, remedy = f"the file has {names}, and all of them show the new tags", "--output FILE leaves them alone"
        else:
            what, remedy = f"the file had {names}, and the others keep the old tags", "relocate those too, or link anew"
        yield Finding("hard-links", "warning", file.path, what, remedy)
    if made.moves and file.catalog.format == "torchscript":
        yield from code_findings(file.path, {move.old for move in made.moves})


def _beside(path: str, whole: Catalog, files: Sequence[File]) -> Iterator[Finding]:
    """What of a folder holds no tags, and so was left alone."""
    if not os.path.isdir(path) or not files:
        return
    names = {os.path.relpath(file.path, path) for file in files}
    others = [name for name in files_of(whole) if name and os.path.normpath(name) not in names]
    if others:
        what = f"{count(len(others), 'file')} of it keep no device tags: {listing(others, _SHOWN)}"
        yield Finding("no-device-tags", "info", "", what)


def _summed(moves: Iterable[Move]) -> Iterator[Move]:
    """Moves with the same old and new tag as one."""
    groups: dict[tuple[str, str], list[Move]] = {}
    for move in moves:
        groups.setdefault((move.old, move.new), []).append(move)
    for (old, new), group in groups.items():
        roles = tuple(dict.fromkeys(role for move in group for role in move.roles))
        yield Move(old, new, sum(m.tensors for m in group), sum(m.nbytes for m in group), roles)


def _kept(rows: Iterable[Kept]) -> Iterator[Kept]:
    groups: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.what, row.device, row.why)
        groups[key] = groups.get(key, 0) + row.tensors
    return (Kept(what, device, n, why) for (what, device, why), n in groups.items())


def _values(plans: Sequence[tuple[File, Retagging]], *, many: bool) -> Iterator[str]:
    for file, made in plans:
        name = f"{os.path.basename(file.path)}: " if many else ""
        yield from (name + place for place in made.values)


def _devices(plans: Sequence[tuple[File, Any]]) -> dict[str, tuple[int, int]]:
    """Tag -> tensors and bytes, as they are in the end."""
    sums: dict[str, tuple[int, int]] = {}
    for file, made in plans:
        for entry in file.catalog.tensors:
            tag = entry.device if made is None else made.tags.get(entry.storage, entry.device)
            tensors, nbytes = sums.get(tag, (0, 0))
            sums[tag] = (tensors + 1, nbytes + entry.nbytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def _undo(path: str, files: Sequence[RelocatedFile]) -> str:
    """The command that brings the old files back; "" where they were written anew."""
    changed = [file for file in files if file.how != "unchanged"]
    return f"unmoor relocate --undo {shell_word(path)}" if changed and all(f.how == "appended" for f in changed) else ""
