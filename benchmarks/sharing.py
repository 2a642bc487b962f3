"""Whether a save should share unchanged tensors with the checkpoint before: `python -m benchmarks.sharing FOLDER`.

Two questions. How much of a run is unchanged from one checkpoint to the next, by the kind of run, in bytes of whole
tensors; and what sharing would cost and save where FOLDER lies, beside writing the same bytes: a reflink of each tensor
(FICLONERANGE, which XFS and Btrfs know and ext4 and tmpfs do not), a copy inside the kernel (copy_file_range), and the
sums that must show first that nothing has changed. docs/performance.md says what followed from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import nn

from unmoor.execute.checksums import crc32

from .common import table

FICLONERANGE: Final = 0x4020940D
PIECE: Final = 16 << 20
PIECES: Final = 32
ROUNDS: Final = 5

Run = tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def dense() -> Run:
    """Everything is trained."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    return model, torch.optim.AdamW(model.parameters()), lambda: model(torch.randn(8, 256)).square().mean()


def normed() -> Run:
    """A small convolutional net with BatchNorm: buffers change too."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, lambda: model(torch.randn(4, 3, 16, 16)).square().mean()


def embedding() -> Run:
    """Rows of a large table, a few of them met in a step; plain SGD leaves the others, AdamW moves all."""
    model = nn.Embedding(50_000, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, lambda: model(torch.randint(50_000, (64,))).square().mean()


def frozen() -> Run:
    """A frozen backbone under a head that is trained."""
    backbone, head = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)), nn.Linear(256, 10)
    backbone.requires_grad_(False)
    model = nn.Sequential(backbone, head)
    return model, torch.optim.AdamW(head.parameters()), lambda: model(torch.randn(8, 256)).square().mean()


def unchanged(run: Run) -> float:
    """The share of bytes in tensors that one step leaves as they are, once the optimizer has state."""
    model, optimizer, loss = run

    def step() -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        moments = {f"{i}.{k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
        values = {**model.state_dict(), **moments}
        return {k: v.detach().clone() for k, v in values.items() if isinstance(v, torch.Tensor)}

    step()
    before, after = step(), step()
    same = sum(v.nbytes for k, v in after.items() if torch.equal(v, before[k]))
    return same / sum(v.nbytes for v in after.values())


def written(_source: int, target: int, data: memoryview) -> None:
    """As a save does today: the bytes from memory, summed."""
    for i in range(PIECES):
        for offset in range(0, PIECE, 1 << 20):
            chunk = data[offset : offset + (1 << 20)]
            crc32(chunk)
            os.pwrite(target, chunk, i * PIECE + offset)


def reflinked(source: int, target: int, data: memoryview) -> None:
    """Blocks shared, once both sums say that the bytes are those of the older file."""
    for i in range(PIECES):
        crc32(data)
        fcntl.ioctl(target, FICLONERANGE, struct.pack("qQQQ", source, i * PIECE, PIECE, i * PIECE))


def reflinked_sha(source: int, target: int, data: memoryview) -> None:
    """The same where equality is shown by SHA-256, as a checksum of 32 bits cannot show it."""
    for i in range(PIECES):
        hashlib.sha256(data).digest()
        fcntl.ioctl(target, FICLONERANGE, struct.pack("qQQQ", source, i * PIECE, PIECE, i * PIECE))


def copied(source: int, target: int, data: memoryview) -> None:
    """Copied by the kernel out of the older file."""
    for i in range(PIECES):
        crc32(data)
        done = 0
        while done < PIECE:
            at = i * PIECE + done
            done += os.copy_file_range(source, target, PIECE - done, at, at)


WAYS: Final[dict[str, Callable[[int, int, memoryview], None]]] = {
    "write": written,
    "reflink after CRC-32": reflinked,
    "reflink after SHA-256": reflinked_sha,
    "copy_file_range after CRC-32": copied,
}


def costs(folder: Path) -> Iterator[tuple[str, ...]]:
    """Seconds with fsync, by way: median, spread, and the ratio to writing."""
    data = memoryview(bytearray(os.urandom(1 << 20)) * (PIECE >> 20))
    older = folder / "older.bin"
    with older.open("wb") as file:
        for _ in range(PIECES):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    refused: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            try:
                taken[name].append(_once(way, older, folder / "newer.bin", data))
            except OSError as error:
                refused[name] = f"not here: {error.strerror}"
    base = statistics.median(taken["write"])
    for name, seconds in taken.items():
        if name in refused:
            yield name, refused[name], "", ""
        else:
            middle = statistics.median(seconds)
            yield name, f"{middle:.3f}", f"{min(seconds):.3f}..{max(seconds):.3f}", f"{middle / base:.2f}"


def _once(way: Callable[[int, int, memoryview], None], older: Path, newer: Path, data: memoryview) -> float:
    source, target = os.open(older, os.O_RDONLY), os.open(newer, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        begin = time.perf_counter()
        way(source, target, data)
        os.fsync(target)
        return time.perf_counter() - begin
    finally:
        os.close(source)
        os.close(target)
        newer.unlink()


def main() -> None:
    """Print both tables."""
    torch.manual_seed(0)
    kinds: list[Callable[[], Run]] = [dense, normed, embedding, frozen]
    rows = [((kind.__doc__ or "").rstrip("."), f"{100 * unchanged(kind()):.0f} %") for kind in kinds]
    print(table([("run", "unchanged after a step"), *rows]))
    base = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        print(
            f"\n{PIECES} tensors of {PIECE >> 20} MiB in {base or tempfile.gettempdir()}, {ROUNDS} rounds, with fsync"
        )
        print(table([("unchanged tensors", "seconds", "spread", "of writing"), *costs(Path(folder))]))


if __name__ == "__main__":
    main()
