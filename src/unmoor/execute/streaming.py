"""Fills live memory from a file: every byte that has a checksum is checked as it streams.

Memory is the sinks' own and one bounded buffer. Decides nothing: copies say what goes where, sinks how.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NoReturn

from unmoor.errors import CorruptFile, ReadError, RestoreError
from unmoor.steady import refuse_changed
from unmoor.values.plan import Copy

from . import crew
from .opening import grain_among
from .preflight import refuse_cut_short, refuse_impossible, waves_of
from .reading import OpenSpan, Reading
from .schedule import lanes, schedule
from .sinks import Buffers, Parts
from .takers import Batch, Block, Job, blocks_of, bytes_of
from .together import Part
from .verify import check, corrupt, fault_of

__all__ = ["Streamed", "Verify", "stored_bytes", "stream"]

Verify = Literal["stream", "first", "none"]


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a stream did: bytes read for delivery, time in seconds, storages by whether a checksum vouches for them.

    `in_part` are the slots of which parts were read, so that no checksum vouches for them here, each with the keys of
    the storages; these count as neither. `parts` are the sums of what was read of them.
    """

    nbytes: int
    seconds: float
    verified: int
    unverified: int
    in_part: Mapping[str, frozenset[str]] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()


def stream(
    copies: Sequence[Copy],
    sinks: Mapping[str, Parts],
    *,
    open_span: OpenSpan,
    buffer_bytes: int,
    threads: int,
    verify: Verify,
    progress: Callable[[int], None] | None,
    buffers: Buffers | None = None,
) -> Streamed:
    """Fill the slots of `copies` with the stored values.

    `sinks` are by slot id. `open_span` gives the reader of a `Span.file`; it is called from several threads.
    `buffer_bytes` bounds all memory besides the sinks' (64 KiB will do). `verify` is "stream": a wrong checksum raises
    when the last byte of its storage has been read; "first": all storages are read and checked before anything is
    delivered, and once more on the way; "none": no checksum is computed. `progress` gets the bytes done since its
    last call, `stored_bytes(copies, verify=verify)` in all, one call at a time from any thread. Of copies into the
    same memory (`Slot.alias`) the last wins. `buffers` are what the sinks' devices copy best from.

    Raises MismatchError, with nothing changed, for copies that cannot be carried out; CorruptFile for a wrong checksum
    or a file cut short, ReadError for a disk and RestoreError for a sink that failed, all with the slots written to so
    far in `done`.
    """
    begin = time.perf_counter()
    refuse_impossible(copies, sinks)
    waves = [blocks_of(wave, sinks) for wave in waves_of(copies)]
    blocks = list({id(block.storage): block for wave in waves for block in wave}.values())
    refuse_cut_short(blocks, open_span)
    grain = grain_among(open_span, blocks)
    threads, buffer_bytes = lanes(blocks, threads, buffer_bytes, grain)
    meter = crew.Meter(progress)
    touched: set[str] = set()
    parts: list[Part] = []
    nbytes = sum(block.span.nbytes for block in blocks if not block.in_part)
    with _telling(touched):
        if verify == "first":
            _check_first(blocks, open_span=open_span, buffer_bytes=buffer_bytes, threads=threads, meter=meter)
        for wave in waves:
            share = crew.share(buffer_bytes, threads, buffers)
            jobs = schedule(wave, buffer_bytes=share, checked=verify != "none", grain=grain)
            nbytes += _in_part(jobs)
            reading = Reading(
                jobs,
                open_span=open_span,
                checked=verify != "none",
                bad=partial(_raise_corrupt, open_span),
                advance=meter.advance,
                touched=touched,
            )
            crew.run(jobs, reading.read, threads=threads, buffer_bytes=buffer_bytes, buffers=buffers)
            parts += reading.parts
        if any(verify == "none" or block.in_part or block.storage.crc32 is None for block in blocks):
            refuse_changed()  # no checksum would tell
    if progress is not None:
        due = sum(block.wanted for wave in waves for block in wave)
        meter.advance(due + (_whole_bytes(copies) if verify == "first" else 0) - meter.total)
    whole = [block for block in blocks if not block.in_part]
    vouched = sum(verify != "none" and block.storage.crc32 is not None for block in whole)
    seconds = time.perf_counter() - begin
    return Streamed(nbytes, seconds, vouched, len(whole) - vouched, _slots_in_part(waves), tuple(parts))


def _slots_in_part(waves: Iterable[Iterable[Block]]) -> dict[str, frozenset[str]]:
    """Slot -> the keys of the storages that were read in part for it."""
    found: dict[str, set[str]] = {}
    for block in (block for wave in waves for block in wave if block.in_part):
        for taker in block.takers:
            found.setdefault(taker.slot, set()).add(block.storage.key)
    return {slot: frozenset(keys) for slot, keys in found.items()}


def _in_part(jobs: Iterable[Job]) -> int:
    """The bytes of jobs that read storages in part."""
    return sum(job.nbytes for job in jobs if not isinstance(job, Batch) and job.block.in_part)


def stored_bytes(copies: Sequence[Copy], *, verify: Verify) -> int:
    """The bytes that a stream of `copies` reads, at which its `progress` ends."""
    once = sum(bytes_of(wave) for wave in waves_of(copies))
    return once + (_whole_bytes(copies) if verify == "first" else 0)


def _whole_bytes(copies: Iterable[Copy]) -> int:
    wholes = {id(copy.node.storage): copy.node.storage for copy in copies if 0 not in copy.node.shape}
    parts = {id(part): part for whole in wholes.values() if whole is not None for part in whole.sources()}
    return sum(part.span.nbytes for part in parts.values() if part.span is not None)


def _check_first(
    blocks: Sequence[Block], *, open_span: OpenSpan, buffer_bytes: int, threads: int, meter: crew.Meter
) -> None:
    faults = check(
        [(block.storage, block.places) for block in blocks],
        open_span=open_span,
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=meter.advance,
    )
    if faults:
        raise corrupt(faults, open_span(faults[0].span.file).path)


def _raise_corrupt(open_span: OpenSpan, block: Block, crc: int) -> NoReturn:
    fault = fault_of(block, crc)
    raise corrupt([fault], open_span(fault.span.file).path)


@contextmanager
def _telling(touched: set[str]) -> Iterator[None]:
    """Errors that leave know which slots were written to."""
    try:
        yield
    except (CorruptFile, ReadError, RestoreError) as error:
        error.done = frozenset(touched)
        raise
    except OSError as error:
        failure = RestoreError(f"reading failed: {error}", path=str(error.filename or ""))
        failure.done, failure.errno = frozenset(touched), error.errno
        raise failure from error
