"""Writes a torch archive in order, as an object that is sent part by part wants it: the bytes of the file it is.

A local header holds the checksum of data that follows it, so a record that is larger than a buffer is read twice:
summed, then sent. What it is the second time is held against the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

from unmoor.errors import SaveError
from unmoor.remote.drafts import Draft

from .checksums import crc32
from .crew import Meter, ring_of
from .fetching import chunks
from .remote import written_draft
from .sinks import Blob, Buffers, Ring
from .zipping import Member, descriptor, directory, local_header, place

__all__ = ["send_archive", "send_flat"]

CHUNK: Final = 1 << 20
_ELEMENT: Final = 16
_TINY: Final = 64
"""Blobs up to this many bytes describe a file: a legacy stream has numbers of elements between its data."""

Receipts = dict[str, tuple[int, int, int]]


def send_archive(
    hidden: str,
    records: Sequence[tuple[str, int, bytes | Blob]],
    *,
    name: str,
    finish: Callable[[Mapping[str, tuple[int, int, int]]], Sequence[tuple[str, int, bytes | Blob]]],
    buffer_bytes: int,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None,
    zip64_from: int,
) -> tuple[Receipts, int]:
    """Send `records` as `archive.write_archive` writes them: name -> (offset, bytes, CRC-32), and all bytes."""
    draft = written_draft(hidden)
    meter, receipts = Meter(progress), Receipts()
    members: list[Member] = []
    with closing(ring_of(buffers, _size(buffer_bytes, buffers))) as ring:
        for trailing in (False, True):
            found = finish(dict(receipts)) if trailing else records
            end = members[-1].end if members else 0
            for record, member in zip(found, _placed(found, name, end, zip64_from), strict=True):
                crc = _send_record(draft, member, record[2], ring, _size(buffer_bytes, buffers))
                members.append(member)
                receipts[record[0]] = (member.data, member.nbytes, crc)
                meter.advance(member.nbytes)
    crcs = [crc for _, _, crc in receipts.values()]
    draft.write(directory(members, crcs, draft.nbytes, zip64_from=zip64_from), keep=True)
    return receipts, draft.nbytes


def _placed(
    records: Sequence[tuple[str, int, bytes | Blob]], name: str, start: int, zip64_from: int
) -> Iterator[Member]:
    return place(((f"{name}/{record[0]}", record[1]) for record in records), start, zip64_from=zip64_from)


def _size(buffer_bytes: int, buffers: Buffers | None) -> int:
    each = buffer_bytes // (1 if buffers is None else buffers.slots)
    return max(_ELEMENT, min(CHUNK, each) // _ELEMENT * _ELEMENT)


def _send_record(draft: Draft, member: Member, source: bytes | Blob, ring: Ring, size: int) -> int:
    nbytes = member.nbytes
    first = next(chunks(source, 0, nbytes, size, ring), memoryview(b"")) if nbytes <= size else None
    crc = crc32(first) if first is not None else _summed(source, nbytes, ring, size)
    draft.write(local_header(member, crc), keep=True)
    keep = isinstance(source, bytes)
    if first is not None:
        draft.write(first, keep=keep)
    elif _sent(draft, source, nbytes, ring, size, keep=keep) != crc:
        raise SaveError(
            f"{draft.url} was not saved: {member.name.decode()} changed while it was being written",
            remedy="Change nothing that is saved until the save has returned, or save in the background.",
            path=draft.url,
        )
    draft.write(descriptor(member, crc), keep=True)
    return crc


def _summed(source: bytes | Blob, nbytes: int, ring: Ring, size: int) -> int:
    crc = 0
    for chunk in chunks(source, 0, nbytes, size, ring):
        crc = crc32(chunk, crc)
    return crc


def _sent(draft: Draft, source: bytes | Blob, nbytes: int, ring: Ring, size: int, *, keep: bool) -> int:
    crc = 0
    for chunk in chunks(source, 0, nbytes, size, ring):
        crc = crc32(chunk, crc)
        draft.write(chunk, keep=keep)
    return crc


def send_flat(
    hidden: str,
    head: bytes,
    blobs: Sequence[tuple[int, Blob]],
    *,
    buffer_bytes: int,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None,
) -> int:
    """Send `head` and then all blobs, as `flat_file.write_flat` writes them; the length of it all."""
    draft, size = written_draft(hidden), _size(buffer_bytes, buffers)
    draft.write(head, keep=True)
    with closing(ring_of(buffers, size)) as ring:
        for nbytes, blob in blobs:
            for piece in chunks(blob, 0, nbytes, size, ring):
                draft.write(piece, keep=nbytes <= _TINY)
                if progress is not None:
                    progress(len(piece))
    return draft.nbytes
