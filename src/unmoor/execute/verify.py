"""Reads storages and holds them against their checksums; changes nothing, gathers all faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unmoor.errors import CorruptFile
from unmoor.values.nodes import Span, Storage
from unmoor.values.text import count, listing

from . import crew
from .opening import grain_among
from .reading import OpenSpan, Reading
from .schedule import lanes, schedule
from .takers import Block

__all__ = ["Fault", "check", "corrupt", "fault_of"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A storage whose bytes are not those that were saved.

    `paths` are the tensors on it. `saved` and `read` are CRC-32 values; `read` is None where the file ends before the
    storage does.
    """

    storage: Storage
    span: Span
    paths: tuple[str, ...]
    saved: int | None
    read: int | None

    def __str__(self) -> str:
        place = f"bytes {self.span.offset:,} to {self.span.end:,}"
        if self.read is None:
            return f"{place}; the file ends before them"
        return f"{place}; CRC-32 saved {self.saved:08x}, read {self.read:08x}"


def check(
    storages: Iterable[tuple[Storage, Sequence[str]]],
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> list[Fault]:
    """All faults of `storages`, each given with the paths of the tensors on it, in file order.

    Reads every storage that has bytes and a checksum, once, within `buffer_bytes` of memory; one without a checksum is
    only held against the end of the file. `progress` gets the bytes done since its last call.
    """
    faults: list[Fault] = []
    blocks: list[Block] = []
    for storage, paths in storages:
        if storage.span is None:
            continue
        if storage.span.end > open_span(storage.span.file).size:
            faults.append(Fault(storage, storage.span, tuple(paths), storage.crc32, None))
        elif storage.crc32 is not None:
            blocks.append(Block(storage, storage.span, names=paths))
    blocks.sort(key=lambda block: (block.span.file, block.span.offset))
    grain = grain_among(open_span, blocks)
    threads, buffer_bytes = lanes(blocks, threads, buffer_bytes, grain)
    jobs = schedule(blocks, buffer_bytes=crew.share(buffer_bytes, threads), checked=True, grain=grain)

    def bad(block: Block, crc: int) -> None:
        faults.append(fault_of(block, crc))

    reading = Reading(
        jobs, open_span=open_span, checked=True, bad=bad, advance=crew.Meter(progress).advance, touched=set()
    )
    crew.run(jobs, reading.read, threads=threads, buffer_bytes=buffer_bytes)
    return sorted(faults, key=lambda fault: (fault.span.file, fault.span.offset))


def fault_of(block: Block, crc: int) -> Fault:
    """The fault of a storage whose bytes have the checksum `crc`."""
    return Fault(block.storage, block.span, block.places, block.storage.crc32, crc)


def corrupt(faults: Sequence[Fault], path: str) -> CorruptFile:
    """The error for one or more faults of the file at `path`."""
    if len(faults) == 1:
        names = listing(faults[0].paths) or "a storage"
        headline = f"{path}: the data of {names} does not match its checksum"
        return CorruptFile(headline, details=[str(faults[0])], path=path)
    details = [f"{listing(fault.paths)}: {fault}" for fault in faults]
    return CorruptFile(f"{path}: the data of {count(len(faults), 'storage')} is damaged", details=details, path=path)
