"""What a folder of torch.distributed.checkpoint does not keep of a tensor beside its values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unmoor.values.catalog import TensorEntry
from unmoor.values.plan import Change
from unmoor.values.strides import contiguous, is_dense

__all__ = ["not_kept"]


def not_kept(entries: Sequence[TensorEntry], *, box_bytes: int) -> list[Change]:
    """What will not come back as it was.

    Tensors of more than `box_bytes` bytes are written in boxes, in order; so are those with gaps or repeated elements.
    """
    first: dict[str, TensorEntry] = {}
    changes: list[Change] = []
    for entry in entries:
        other = first.setdefault(entry.storage, entry) if entry.storage else entry
        changes += _changes(entry, other, box_bytes)
    return changes


def _changes(entry: TensorEntry, other: TensorEntry, box_bytes: int) -> Iterator[Change]:
    node = entry.node
    if entry.parameter:
        yield Change(entry.role, entry.path, "a Parameter", "a tensor")
    elif node is not None and node.requires_grad:
        yield Change(entry.role, entry.path, "requires_grad", "a plain tensor")
    if entry.device != "cpu":
        yield Change(entry.role, entry.path, f"on {entry.device}", "no device")
    if node is None or not node.numel or entry.layout != "strided":
        return
    if node.bits:
        yield Change(entry.role, entry.path, "a lazy conjugate or negation", "its values")
    elif not _keeps_strides(entry, box_bytes):
        yield Change(entry.role, entry.path, "laid out by strides", "laid out in order")
    if _window(other) != _window(entry):
        yield Change(entry.role, entry.path, f"on one storage with {other.path}", "written on its own")


def _keeps_strides(entry: TensorEntry, box_bytes: int) -> bool:
    if entry.stride == contiguous(entry.shape):
        return True
    return entry.nbytes <= box_bytes and is_dense(entry.shape, entry.stride)


def _window(entry: TensorEntry) -> tuple[object, ...]:
    return entry.storage, entry.offset, entry.shape, entry.stride, entry.dtype
