"""One small run in every form that a checkpoint has, and the same with one bit of it turned round."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

import unmoor
from tests.cases.files import tiny, trained
from tests.describe import folders
from tests.describe.makers import save
from tests.describe.zero_maker import Shape, ZeroMaker
from tests.golden.make_golden import HERE


def run() -> dict[str, object]:
    """A training checkpoint as a script saves it."""
    model, optimizer = trained()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def torch_zip(folder: Path) -> Path:
    return save(run(), folder / "zip.pt")


def legacy(folder: Path) -> Path:
    return save(run(), folder / "legacy.pt", legacy=True)


def tar(folder: Path) -> Path:
    return HERE / "tar-torch0.1.9.pt"


def own(folder: Path) -> Path:
    model, optimizer = trained()
    unmoor.save(folder / "own.pt", model=model, optimizer=optimizer, step=3)
    return folder / "own.pt"


def safetensors(folder: Path) -> Path:
    save_file(tiny().state_dict(), folder / "model.safetensors")
    return folder / "model.safetensors"


def index(folder: Path) -> Path:
    folders.shards(folder, tiny().state_dict())
    return folder / "model.safetensors.index.json"


def dcp(folder: Path) -> Path:
    unmoor.convert(torch_zip(folder), folder / "dcp")
    return folder / "dcp"


def several(folder: Path) -> Path:
    return folders.written("accelerate", folder / "accelerate")


def deepspeed(folder: Path) -> Path:
    model, optimizer = trained()
    return ZeroMaker(model, optimizer, Shape(stage=2, world=2)).write(folder / "deepspeed")


FORMS: Final[dict[str, Callable[[Path], Path]]] = {
    make.__name__: make for make in (torch_zip, own, legacy, tar, safetensors, index, dcp, several, deepspeed)
}


def place_of(path: Path, name: str, base: int = 0) -> int:
    """Where the bytes of a record of a zip begin."""
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(name))
    header = info.header_offset
    return (
        base
        + header
        + 30
        + int.from_bytes(data[header + 26 : header + 28], "little")
        + int.from_bytes(data[header + 28 : header + 30], "little")
    )


def flipped(path: Path, at: int, target: Path | None = None, bit: int = 1) -> Path:
    """The file with one bit of byte `at` turned round."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    (target or path).write_bytes(data)
    return target or path


def tensors(tree: object) -> int:
    """How many tensors a tree of plain containers holds."""
    if isinstance(tree, torch.Tensor):
        return 1
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return sum(map(tensors, inside))
