"""relocate for torch's formats of before 1.6: the file is written anew, with the old bytes around the new pickles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from unmoor.describe.file import describe_file
from unmoor.describe.torch_tar import storage_heads
from unmoor.errors import SaveError
from unmoor.execute.commit import publish
from unmoor.execute.duplicating import copy_bytes
from unmoor.execute.writing_all import append_all
from unmoor.filing import Reader, open_reader, read
from unmoor.plan.relocating import Retagging
from unmoor.plan.retagging import retagged, retagged_head
from unmoor.plan.sameness import first_difference
from unmoor.values.catalog import Catalog
from unmoor.values.nodes import Span, Storage
from unmoor.values.relocation import RelocatedFile

from .relocating_zip import refuse_other

__all__ = ["relocated_old"]

_BLOCK: Final = 512
_SIZE: Final = slice(124, 136)
_SUM: Final = slice(148, 156)

Piece = bytes | Span
"""New bytes, or bytes of the old file."""


@contextmanager
def relocated_old(
    path: str,
    target: str,
    catalog: Catalog,
    made: Retagging,
    seen: os.stat_result,
    advance: Callable[[int], None] | None,
) -> Iterator[RelocatedFile]:
    """Write a stream or tar of torch with the tags of `made`; it is in its place, whole, when the block ends.

    Raises SaveError where the disk fails, where what was written does not read back as it was meant, or where the file
    is no longer what it was when it was `seen`, before it was described.
    """

    def check(hidden: str) -> None:
        refuse_other(path, seen, os.stat(path))
        found = describe_file(hidden)
        why = first_difference(catalog.tree, found.tree, lambda storage: made.tag(storage.key, storage.device))
        if not why and [s.nbytes for s in _whole(catalog)] != [s.nbytes for s in _whole(found)]:
            why = "its storages have other sizes"
        if why:
            raise SaveError(
                f"{target}: what was written does not read back as it was meant; what was there before is intact",
                details=[why],
                remedy="This is a defect of unmoor: please report it with the output of unmoor inspect.",
                path=target,
            )

    with ExitStack() as stack:
        reader = stack.enter_context(open_reader(path))
        pieces = list((_tar if catalog.format == "torch-tar" else _stream)(reader, catalog, made))
        nbytes = sum(piece.nbytes if isinstance(piece, Span) else len(piece) for piece in pieces)
        hidden = stack.enter_context(publish(target, needed=nbytes, durability="disk", check=check))
        _write(path, hidden, pieces, advance)
        yield RelocatedFile(target, "rewritten" if target == path else "copied", reader.size, nbytes)


def _whole(catalog: Catalog) -> list[Storage]:
    return [storage for storage in catalog.storages if storage.span is not None]


def _stream(reader: Reader, catalog: Catalog, made: Retagging) -> Iterator[Piece]:
    """A stream: its pickle of the object, between what stands before and behind it."""
    start, nbytes = catalog.facts["data_pkl"]
    old = read(reader, start, nbytes)
    where = f"{reader.path}: the object pickle"
    yield Span(0, start)
    yield retagged(old, made.tag, where=where, path=reader.path)
    yield Span(start + nbytes, reader.size - start - nbytes)


def _tar(reader: Reader, catalog: Catalog, made: Retagging) -> Iterator[Piece]:
    """A tar: the heads of its storages, and the length of the member in which they stand."""
    del catalog
    member, heads = storage_heads(reader)
    pieces: list[Piece] = []
    at = member.offset
    for span, key in heads:
        old = read(reader, span.offset, span.nbytes)
        new = retagged_head(old, made.tags[key], where=f"{reader.path}: the storages", path=reader.path)
        pieces += [Span(at, span.offset - at), new]
        at = span.end
    pieces.append(Span(at, member.end - at))
    nbytes = sum(piece.nbytes if isinstance(piece, Span) else len(piece) for piece in pieces)
    behind = member.end + -member.nbytes % _BLOCK
    yield Span(0, member.offset - _BLOCK)
    yield _header(read(reader, member.offset - _BLOCK, _BLOCK), nbytes)
    yield from pieces
    yield bytes(-nbytes % _BLOCK)
    yield Span(behind, reader.size - behind)


def _header(old: bytes, nbytes: int) -> bytes:
    """The header of a tar member with another length, and the sum that vouches for it."""
    new = bytearray(old)
    new[_SIZE] = f"{nbytes:011o}\0".encode()
    new[_SUM] = b" " * 8
    new[_SUM] = f"{sum(new):06o}\0 ".encode()
    return bytes(new)


def _write(source: str, target: str, pieces: Sequence[Piece], advance: Callable[[int], None] | None) -> None:
    flags = getattr(os, "O_BINARY", 0)
    old, new = os.open(source, os.O_RDONLY | flags), os.open(target, os.O_RDWR | flags)
    try:
        for piece in pieces:
            if isinstance(piece, Span):
                copy_bytes(old, new, piece.offset, piece.nbytes, advance=advance, path=source)
                continue
            os.lseek(new, 0, os.SEEK_END)
            append_all(new, piece)
    finally:
        os.close(old)
        os.close(new)
