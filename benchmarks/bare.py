"""The floor of a restore: the bytes of a file, from where they lie, into the same tensors; nothing is checked.

Two kinds of memory for what is made: "plain", as malloc gives it, which is mapped page by page as it is first touched;
and "ours", for which the system is asked for huge pages as a restore asks, so that the rest can be told apart.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

import unmoor
from unmoor.api_files import READERS
from unmoor.live.memory import map_pages, roomy_all

PIECE = 4 << 20
CHUNK = 1 << 20

Read = tuple[Any, torch.Tensor, bool]
"""A span of the file, the tensor whose memory takes it, and whether that was made for it."""


def bare_read(file: str, model: Any, optimizer: Any, *, memory: str = "plain") -> Callable[[], None]:
    """What fills a run from its file. It is planned here, outside of the clock."""
    plan = unmoor.plan(file, model=model, optimizer=optimizer, rng=False)

    def read() -> None:
        tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
        made = {c.slot.id: _made(c.slot.shape, c.slot.dtype) for c in plan.copies() if c.slot.make}
        tensors |= made
        params = list(model.parameters())
        for key, tensor in tensors.items():
            if "/state/" in key:
                optimizer.state[params[int(key.split("/")[2])]][key.split("/")[3]] = tensor
        reads = [(c.node.storage.span, tensors[c.slot.id], c.slot.make) for c in plan.copies()]
        read_all(file, reads, memory=memory)

    return read


def bare_load(file: str, *, memory: str = "plain") -> list[torch.Tensor]:
    """Every storage of a file in memory of its own."""
    spans = [storage.span for storage in unmoor.describe(file).storages if storage.span is not None]
    reads: list[Read] = [(span, torch.empty(span.nbytes, dtype=torch.uint8), True) for span in spans]
    read_all(file, reads, memory=memory)
    return [tensor for _, tensor, _ in reads]


def _made(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype))


def read_all(file: str, reads: Iterable[Read], *, memory: str) -> None:
    """Read spans in the order of the file, by as many threads as a restore has."""
    reads = sorted(reads, key=lambda read: read[0].offset)
    if memory == "ours":
        roomy_all(tensor for _, tensor, made in reads if made)
    descriptor = os.open(file, os.O_RDONLY)
    turn = iter([(*read, at) for read in reads for at in range(0, read[0].nbytes, PIECE)])
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                piece = next(turn, None)
            if piece is None:
                return
            span, tensor, made, at = piece
            size = min(PIECE, span.nbytes - at)
            address = tensor.data_ptr() + at
            if made and memory == "ours":
                map_pages(address, size)
            target = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
            done = 0
            while done < size:
                done += os.preadv(descriptor, [target[done : done + CHUNK]], span.offset + at + done)

    threads = [threading.Thread(target=work) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
