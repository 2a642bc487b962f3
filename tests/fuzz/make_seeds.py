"""Writes the seeds of what lies in folders, and of what unmoor writes. Golden and hostile files are seeds as they are.

python -m tests.fuzz.make_seeds    (the seeds are committed: run it only to add one)
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import unmoor
from tests.describe import folders
from tests.describe.dcp_maker import DcpMaker, rows
from tests.describe.zero_maker import Shape, ZeroMaker
from tests.fuzz.choices import Files, packed
from tests.fuzz.targets import SEEDS
from unmoor.values.superseded import split_ends

_ROW = [1, 2]
VALUES: dict[str, Any] = {
    "plain": {"a": [1, 2.5, None, True, "é", b"bytes", (1, (2,)), {3, 4}], 7: {"again": [1]}, "big": 1 << 70,
    "c": 1 - 2j},
    "shared": [_ROW, _ROW, (_ROW,), {"row": _ROW}],
    "objects": OrderedDict(when=datetime(2026, 1, 2, 3, tzinfo=timezone.utc), r=range(3), s=slice(1, 2),
    f=frozenset({"x"})),
    "arrays": {"x": np.arange(3.0), "y": np.float64(2), "z": np.array(["ab", "c"]), "d": np.array(["2026-01-01"],
    "M8[D]")},
}  # fmt: skip


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def _folder(path: Path) -> Files:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _saved(folder: Path) -> Path:
    model, optimizer = _model()
    path = folder / "own.pt"
    unmoor.save(path, model=model, optimizer=optimizer, step=3, rng=False)
    return path


def _own(folder: Path) -> Files:
    return {"": _saved(folder).read_bytes()}


def _manifest(folder: Path) -> Files:
    with zipfile.ZipFile(_saved(folder)) as archive:
        return {"": archive.read(next(name for name in archive.namelist() if name.endswith("manifest.json")))}


def _relocated(folder: Path) -> Files:
    path = _saved(folder)
    unmoor.relocate(path, to="cuda:1")
    return {"": path.read_bytes()}


def _interrupted(folder: Path) -> Files:
    """What a relocation leaves that was cut off: the archive, an anchor, and bytes of what was to come."""
    raw = _saved(folder).read_bytes()
    ends = split_ends(raw[raw.rfind(b"PK\x06\x06") :])
    return {"": raw + bytes(-len(raw) % 512) + ends.anchor(len(raw))}


def _dcp(folder: Path) -> Files:
    maker = DcpMaker(folder / "d")
    maker.tensor(("model", "w"), torch.arange(8.0).reshape(4, 2), rows((4, 2), 2))
    maker.tensor(("model", "b"), torch.ones(2))
    maker.tensor(("optimizer", "state", "w", "exp_avg"), torch.ones(4, 2), rows((4, 2), 2))
    maker.value(("optimizer", "param_groups", 0, "lr"), 0.1)
    maker.value(("optimizer", "param_groups", 0, "params", 0), "w")
    maker.value(("step",), 3)
    return _folder(maker.write())


def _zero(stage: int) -> Callable[[Path], Files]:
    def make(folder: Path) -> Files:
        model, optimizer = _model()
        return _folder(ZeroMaker(model, optimizer, Shape(stage, 2, (6,))).write(folder / "d"))

    return make


def _fsdp(folder: Path) -> Files:
    """The shares that two ranks of FSDP1 keep of a flat parameter and of its optimizer's state."""
    (folder / "d").mkdir()
    for rank in range(2):
        flat = torch.arange(6.0)[3 * rank : 3 * rank + 3].clone()
        state = {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": flat + 1}},
            "param_groups": [{"lr": 0.1, "params": [0]}],
        }
        torch.save(
            {"model": {"_flat_param": flat, "buffer": torch.ones(2)}, "optimizer": state},
            folder / "d" / f"state_rank{rank}.pt",
        )
    return _folder(folder / "d")


def _index(folder: Path) -> Files:
    save_file({"w": torch.ones(2, 2)}, folder / "a.safetensors")
    save_file({"v": torch.ones(3)}, folder / "b.safetensors")
    index = {"metadata": {"total_size": 28}, "weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return _folder(folder)


def _dialect(name: str) -> Callable[[Path], Files]:
    return lambda folder: _folder(folders.written(name, folder / "d"))


SEED_MAKERS: dict[str, Callable[[Path], Files]] = {
    **{f"pickle/{name}-{protocol}": (lambda folder, v=value, p=protocol: {"": pickle.dumps(v, p)})
       for name, value in VALUES.items() for protocol in (0, 2, 5)},
    "bytes/words": lambda folder: {"": b"words of no format " * 20},
    "zip/own": _own,
    "manifest/own": _manifest,
    "relocated/whole": _relocated,
    "relocated/interrupted": _interrupted,
    "dcp/two": _dcp,
    "deepspeed/stage1": _zero(1),
    "deepspeed/stage3": _zero(3),
    "fsdp/two": _fsdp,
    "index/two": _index,
    "folder/accelerate": _dialect("accelerate"),
    "folder/hf_trainer": _dialect("hf-trainer"),
    "folder/guided_diffusion": _dialect("guided-diffusion"),
}  # fmt: skip
"""Target and name of each seed, and what makes it in an empty folder."""


def made(name: str) -> Files:
    """A seed, made anew."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SEED_MAKERS[name](Path(scratch))


def main() -> None:
    for name in sys.argv[1:] or SEED_MAKERS:
        path = SEEDS / f"{name}.seed"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed(made(name)))


if __name__ == "__main__":
    main()
