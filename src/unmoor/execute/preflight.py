"""What must be true of copies before the first byte moves, and the order that they need among themselves.

Reads no tensor data and changes nothing. All faults of one call are reported together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unmoor.errors import MismatchError
from unmoor.values.dtypes import dtype_bytes
from unmoor.values.nodes import Span, Storage, TensorNode
from unmoor.values.plan import Copy
from unmoor.values.text import count, format_shape

from .reading import OpenSpan
from .sinks import Parts
from .takers import Block, place_of
from .tiling import extent, is_dense
from .verify import Fault, corrupt

__all__ = ["refuse_cut_short", "refuse_impossible", "waves_of"]


def waves_of(copies: Iterable[Copy]) -> list[list[Copy]]:
    """Copies in groups, to be carried out one after the other, so that of two into the same memory the later wins.

    A copy that repeats its predecessor (both names of a tied weight) is dropped.
    """
    waves: list[list[Copy]] = [[]]
    last: dict[str, Copy] = {}
    depth: dict[str, int] = {}
    for copy in copies:
        memory = copy.slot.alias or copy.slot.id
        before = last.setdefault(memory, copy)
        if before is not copy:
            if _meaning(before) == _meaning(copy):
                continue
            last[memory] = copy
            depth[memory] = depth.get(memory, 0) + 1
            if depth[memory] == len(waves):
                waves.append([])
        waves[depth.get(memory, 0)].append(copy)
    return waves


def _meaning(copy: Copy) -> tuple[object, ...]:
    node, slot = copy.node, copy.slot
    elements = (node.storage, node.offset, node.shape, node.stride, node.dtype, node.bits)
    return (*elements, slot.shape, slot.stride, slot.dtype, slot.boxes)


def refuse_impossible(copies: Sequence[Copy], sinks: Mapping[str, Parts]) -> None:
    """Raise MismatchError for copies that have no data, no memory, another shape, or reach out of their storage."""
    faults = [f"{place_of(copy)}: {fault}" for copy in copies if (fault := _fault(copy, sinks))]
    if faults:
        raise MismatchError(
            f"{count(len(faults), 'copy')} of {len(copies):,} cannot be carried out; nothing was changed",
            details=faults,
        )


def _fault(copy: Copy, sinks: Mapping[str, Parts]) -> str:
    node, slot, storage = copy.node, copy.slot, copy.node.storage
    if node.shape != slot.shape:
        return f"saved {format_shape(node.shape)}, live {format_shape(slot.shape)}"
    if slot.id not in sinks:
        return f"no memory was given for slot {slot.id}"
    if 0 in node.shape:
        return ""
    if storage is not None and storage.chunks:
        return _chunked_fault(node, storage)
    if storage is None or storage.span is None:
        return "the file holds no data for it"
    return _reach_fault(node, storage.span)


def _chunked_fault(node: TensorNode, storage: Storage) -> str:
    """A tensor of several chunks is copied whole, and each chunk lies within its own storage."""
    whole = (node.offset, node.shape, node.dtype) == (0, storage.shape, storage.dtype)
    if not whole or not is_dense(node.shape, node.stride):
        return "it is a view of a tensor that lies in several places, which can only be copied whole"
    for chunk in storage.chunks:
        source = chunk.node.storage
        fault = "a chunk of it has no data" if source is None or source.span is None else ""
        fault = fault or (_reach_fault(chunk.node, source.span) if source is not None and source.span else "")
        if fault:
            return fault
    return ""


def _reach_fault(node: TensorNode, span: Span) -> str:
    last = (node.offset + extent(node.shape, node.stride)) * dtype_bytes(node.dtype)
    if last > span.nbytes or min(node.offset, *node.stride, 0) < 0:
        return f"its elements reach out of its storage of {span.nbytes:,} bytes"
    return ""


def refuse_cut_short(blocks: Iterable[Block], open_span: OpenSpan) -> None:
    """Raise CorruptFile for storages that reach past the end of their file."""
    sizes = {file: open_span(file).size for file in {block.span.file for block in blocks}}
    faults = [
        Fault(block.storage, block.span, block.places, block.storage.crc32, None)
        for block in blocks
        if block.span.end > sizes[block.span.file]
    ]
    if faults:
        raise corrupt(faults, open_span(faults[0].span.file).path)
