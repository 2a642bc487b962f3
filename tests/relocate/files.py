"""Files to relocate, and what plain readers say of them."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.describe.makers import tagged
from unmoor.filing import Reader

__all__ = ["Memory", "hold_plain", "leaves", "run", "save", "stored_tags"]


class Memory:
    """Bytes as a file that is read by position."""

    def __init__(self, data: bytes, path: str = "memory.pt") -> None:
        self.data, self.path, self.size = data, path, len(data)

    def some_into(self, offset: int, target: memoryview) -> int:
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


def _is_reader(reader: Memory) -> Reader:
    return reader


def run(seed: int = 0, **flags: Any) -> dict[str, Any]:
    """The tree of a small training run: model, Adam, a scheduler, random states, values that name devices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        state["param_groups"][0].update(flags)
        return {
            "model": model.state_dict(),
            "optimizer": state,
            "rng": torch.get_rng_state(),
            "epoch": 3,
        }


def save(tree: Any, path: Path, tag: Any = "cuda:7", **options: Any) -> Path:
    """What torch.save writes, with chosen device tags."""
    with tagged(tag):
        torch.save(tree, path, **options)
    return path


def stored_tags(path: Path | io.BytesIO) -> set[str]:
    """The tags that torch itself meets in a file."""
    met: set[str] = set()

    def note(storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage:
        met.add(tag)
        return storage

    torch.load(path, map_location=note, weights_only=False)
    return met


def leaves(tree: Any, keys: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Every value of a tree by its key path; tensors as their type and bytes."""
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in leaves(value, (*keys, key)).items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, value in enumerate(tree) for k, v in leaves(value, (*keys, i)).items()}
    if isinstance(tree, torch.Tensor):
        plain = tree.detach().to_dense() if tree.layout != torch.strided else tree.detach()
        return {keys: (tree.dtype, tuple(tree.shape), plain.contiguous().flatten().view(torch.uint8).tolist())}
    return {keys: tree}


def hold_plain(path: Path, tree: Any) -> None:
    """torch.load with its safe default gives the tree, with mmap and without; unzip and zipfile find nothing wrong."""
    for mmap in (False, True):
        assert leaves(torch.load(path, mmap=mmap, weights_only=True)) == leaves(tree)
    done = subprocess.run(["unzip", "-tq", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment == b""
        headers = [
            info for info in archive.infolist() if "/data/" in info.filename and "serialization" not in info.filename
        ]
    for info in headers:
        assert _data_at(path, info.header_offset) % 64 == 0, info.filename


def _data_at(path: Path, header: int) -> int:
    with path.open("rb") as file:
        file.seek(header + 26)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return header + 30 + name + extra
