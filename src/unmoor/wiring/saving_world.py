"""save by several ranks: what they have in common once, what each has for itself beside it, one file or one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unmoor.distributed.comparing import Compared, compare, described_sums, hold_equal, live_sums
from unmoor.distributed.meeting import Meeting
from unmoor.filing import path_text
from unmoor.live.content import Content
from unmoor.live.differing import MOST_BYTES, Own, with_ranks
from unmoor.report.restore import receipt_text
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.plan import Change
from unmoor.values.ranks import ranks_text
from unmoor.values.report import Receipt
from unmoor.values.text import listing

from .saving import write_content
from .saving_flat import SUFFIX

__all__ = ["save_world"]


def save_world(
    meeting: Meeting,
    path: str | os.PathLike[str],
    content: Content,
    *,
    buffer_bytes: int,
    threads: int,
    progress: Callable[[int], None] | None,
) -> Receipt:
    """Save what the ranks of a meeting hold, each its own `content`; every rank gets the receipt of the whole.

    Where no tensor is spread over ranks, rank 0 writes one file: its own content, and beside it the leaves that others
    have for themselves. Otherwise all write a folder of torch.distributed.checkpoint.

    Raises RanksDiffer on every rank where parameters or optimizers of replicas differ; then nothing was published.
    """
    target = path_text(path)
    compared = compare(meeting, content, target)
    if compared.spread:
        from .saving_sharded import write_sharded

        return write_sharded(
            meeting, target, content, compared, buffer_bytes=buffer_bytes, threads=threads, progress=progress
        )
    if meeting.rank:
        return _follow(meeting, target, content, compared)
    owns = _collect(meeting)
    flat = target.lower().endswith(SUFFIX)
    whole = replace(content, world_size=meeting.size) if flat else with_ranks(content, owns, meeting.size)

    def agree(found: Catalog) -> None:
        hold_equal(meeting, content, described_sums(found, content, compared.strict), target)

    def alive(nbytes: int) -> None:
        meeting.alive()
        if progress is not None:
            progress(nbytes)

    if flat:
        hold_equal(meeting, content, live_sums(meeting, content, compared.strict), target)
    receipt = write_content(target, whole, buffer_bytes=buffer_bytes, threads=threads, progress=alive, agree=agree)
    receipt = _with_ranks(receipt, content, owns, meeting.size, left_out=flat)
    meeting.from_first(json.dumps(receipt.to_json()).encode())
    return receipt


def _follow(meeting: Meeting, path: str, content: Content, compared: Compared) -> Receipt:
    """What a rank does while rank 0 writes: hand over its own leaves, sum up its parameters, wait."""
    meeting.to_first(compared.own.to_bytes(MOST_BYTES // (meeting.size - 1)))
    hold_equal(meeting, content, live_sums(meeting, content, compared.strict), path)
    return _received(json.loads(meeting.from_first(None)))


def _collect(meeting: Meeting) -> dict[int, Own]:
    """The own leaves of all other ranks."""
    found = meeting.to_first(b"") or []
    return {rank: Own.from_bytes(value) for rank, value in enumerate(found) if rank}


def _with_ranks(receipt: Receipt, content: Content, owns: dict[int, Own], size: int, *, left_out: bool) -> Receipt:
    """The receipt with what there is to say of ranks."""
    labels: dict[str, list[int]] = {}
    for rank, own in owns.items():
        for key in own.tree:
            labels.setdefault(str(key), []).append(rank)
    if left_out:
        kept = [key for key in labels if key in content.tree and key != "rng"]
        lost = [Change("ranks", key, f"what differs on {ranks_text(labels[key])}", _NO_PLACE) for key in kept]
        made = replace(receipt, converted=(*receipt.converted, *lost))
    else:
        each = f"; each has its own {listing(list(labels), 8)}" if labels else ""
        made = replace(receipt, notes=(("ranks", f"{size}{each}"),))
    return replace(made, text=receipt_text(made))


_NO_PLACE = "not written: safetensors has one place for it, and rank 0's is there"


def _received(fields: dict[str, Any]) -> Receipt:
    """A receipt as rank 0 sent it."""
    made = Receipt(
        path=fields["path"],
        nbytes=fields["nbytes"],
        seconds=fields["seconds"],
        counts={role: (row["tensors"], row["nbytes"]) for role, row in fields["counts"].items()},
        converted=tuple(Change(**row) for row in fields["converted"]),
        findings=tuple(Finding(**row) for row in fields["findings"]),
        notes=tuple((word, text) for word, text in fields["notes"]),
    )
    return replace(made, text=receipt_text(made))
