"""Fills live memory from a file: every byte that has a checksum is checked as it streams.

Memory is the sinks' own and one bounded buffer. Decides nothing: copies say what goes where, sinks how.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

from unmoor.errors import CorruptFile, MismatchError, RestoreError
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import Storage
from unmoor.values.plan import Copy
from unmoor.values.text import count, format_shape

from . import crew
from .reading import OpenSpan, Reading
from .schedule import Block, blocks_of, place_of, schedule
from .sinks import Sink
from .tiling import extent
from .verify import Fault, check, corrupt, fault_of

__all__ = ["Streamed", "Verify", "stored_bytes", "stream"]

Verify = Literal["stream", "first", "none"]


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a stream did: bytes read for delivery, time in seconds, storages by whether a checksum vouches for them."""

    nbytes: int
    seconds: float
    verified: int
    unverified: int


def stream(
    copies: Sequence[Copy],
    sinks: Mapping[str, Sink],
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    verify: Verify,
    progress: Callable[[int], None] | None,
) -> Streamed:
    """Fill the slots of `copies` with the stored values.

    `sinks` are by slot id. `open_span` gives the reader of a `Span.file`; it is called from several threads.
    `buffer_bytes` bounds all memory besides the sinks' (64 KiB will do). `verify` is "stream": a wrong checksum raises
    when the last byte of its storage has been read; "first": all storages are read and checked before anything is
    delivered, and once more on the way; "none": no checksum is computed. `progress` gets the bytes done since its
    last call, `stored_bytes(copies, verify=verify)` in all, one call at a time from any thread. Of copies into the
    same memory (`Slot.alias`) the last wins.

    Raises MismatchError, with nothing changed, for copies that cannot be carried out; CorruptFile for a wrong checksum
    or a file cut short, and RestoreError for a sink or a disk that failed, both with the slots written to so far in
    `done`.
    """
    begin = time.perf_counter()
    _refuse_impossible(copies, sinks)
    _refuse_cut_short(copies, open_span)
    meter = crew.Meter(progress)
    checked_first = 0
    touched: set[str] = set()
    seen: set[Storage] = set()
    with _telling(touched):
        if verify == "first":
            checked_first = _check_first(
                copies, open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, advance=meter.advance
            )
        for wave in _waves(copies):
            blocks = blocks_of(wave, sinks)
            seen.update(block.storage for block in blocks)
            jobs = schedule(blocks, buffer_bytes=crew.share(buffer_bytes, threads), checked=verify != "none")
            bad = partial(_raise_corrupt, open_span)
            reading = Reading(
                jobs,
                open_span=open_span,
                checked=verify != "none",
                bad=bad,
                advance=meter.advance,
                touched=touched,
            )
            crew.run(jobs, reading.read, threads=threads, buffer_bytes=buffer_bytes)
    nbytes = stored_bytes(copies, verify="stream")
    meter.advance(nbytes + checked_first - meter.total)
    vouched = sum(storage.crc32 is not None for storage in seen) if verify != "none" else 0
    return Streamed(nbytes, time.perf_counter() - begin, vouched, len(seen) - vouched)


def stored_bytes(copies: Sequence[Copy], *, verify: Verify) -> int:
    """The bytes that a stream of `copies` reads, at which its `progress` ends."""
    once = sum(_nbytes(wave) for wave in _waves(copies))
    return once + (_nbytes(copies) if verify == "first" else 0)


def _nbytes(copies: Iterable[Copy]) -> int:
    return sum(storage.nbytes for storage in _storages(copies))


def _storages(copies: Iterable[Copy]) -> dict[Storage, list[str]]:
    """The storages that copies read, with the paths of the tensors on each."""
    paths: dict[Storage, list[str]] = {}
    for copy in copies:
        if copy.node.storage is not None and 0 not in copy.node.shape:
            paths.setdefault(copy.node.storage, []).append(place_of(copy))
    return paths


def _waves(copies: Iterable[Copy]) -> list[list[Copy]]:
    """Copies such that no two of one wave fill the same memory; one that repeats its predecessor is dropped."""
    waves: list[list[Copy]] = [[]]
    last: dict[str, tuple[int, object]] = {}
    for copy in copies:
        node, slot = copy.node, copy.slot
        memory = slot.alias or slot.id
        meaning = (node.storage, node.offset, node.shape, node.stride, node.dtype, node.bits, slot.stride, slot.dtype)
        wave, before = last.get(memory, (-1, None))
        if before == meaning:
            continue
        last[memory] = (wave + 1, meaning)
        if wave + 1 == len(waves):
            waves.append([])
        waves[wave + 1].append(copy)
    return waves


def _refuse_impossible(copies: Sequence[Copy], sinks: Mapping[str, Sink]) -> None:
    faults = [f"{place_of(copy)}: {fault}" for copy in copies if (fault := _fault(copy, sinks))]
    if faults:
        raise MismatchError(
            f"{count(len(faults), 'copy')} of {len(copies):,} cannot be carried out; nothing was changed",
            details=faults,
        )


def _fault(copy: Copy, sinks: Mapping[str, Sink]) -> str:
    node, slot, storage = copy.node, copy.slot, copy.node.storage
    if node.shape != slot.shape:
        return f"saved {format_shape(node.shape)}, live {format_shape(slot.shape)}"
    if slot.id not in sinks:
        return f"no memory was given for slot {slot.id}"
    if 0 in node.shape:
        return ""
    if storage is None or storage.span is None:
        return "the file holds no data for it"
    last = (node.offset + extent(node.shape, node.stride)) * dtype_bytes(node.dtype)
    if node.offset < 0 or min(node.stride, default=0) < 0 or last > storage.span.nbytes:
        return f"its elements reach to byte {last:,} of a storage of {storage.span.nbytes:,}"
    return ""


def _refuse_cut_short(copies: Sequence[Copy], open_span: OpenSpan) -> None:
    faults = [
        Fault(storage, storage.span, tuple(paths), storage.crc32, None)
        for storage, paths in _storages(copies).items()
        if storage.span is not None and storage.span.end > open_span(storage.span.file).size
    ]
    if faults:
        raise corrupt(faults, open_span(faults[0].span.file).path)


def _check_first(
    copies: Sequence[Copy], *, open_span: OpenSpan, buffer_bytes: int, threads: int, advance: Callable[[int], None]
) -> int:
    """Read and check all storages; the bytes read."""
    storages = _storages(copies)
    faults = check(storages.items(), open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, progress=advance)
    if faults:
        raise corrupt(faults, open_span(faults[0].span.file).path)
    return sum(storage.nbytes for storage in storages)


def _raise_corrupt(open_span: OpenSpan, block: Block, crc: int) -> NoReturn:
    fault = fault_of(block, crc)
    raise corrupt([fault], open_span(fault.span.file).path)


@contextmanager
def _telling(touched: set[str]) -> Iterator[None]:
    """Errors that leave know which slots were written to."""
    try:
        yield
    except (CorruptFile, RestoreError) as error:
        error.done = frozenset(touched)
        raise
    except OSError as error:
        failure = RestoreError(f"reading failed: {error}", path=str(error.filename or ""))
        failure.done = frozenset(touched)
        raise failure from error
