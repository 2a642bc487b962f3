"""How fast a conversion is, and what memory it takes: unmoor.convert against torch.load and torch.save.

    python -m benchmarks.converting [--gb 1.5] [--rounds 3] [--folder /dev/shm]

unmoor.convert holds every checksum against what it reads, computes those of what it writes, reads its directory back
and brings the file to the disk; torch.load and torch.save hold none. "extra memory" is the peak above what the process
held before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import unmoor
from benchmarks import common


def _made(path: str, nbytes: int) -> str:
    """The file to convert, made once a size: a model and its AdamW state."""
    source = Path(path, "source.pt")
    if not source.exists():
        model, optimizer = common.build(nbytes)
        common.step(model, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, source)
    return str(source)


def _way(work: Callable[[str, str], None]) -> Callable[[str, int], dict[str, float]]:
    def run(path: str, nbytes: int) -> dict[str, float]:
        source, target = _made(path, nbytes), f"{path}/target"
        common.reset_peak()
        live, clock = common.memory(), common.Clock()
        work(source, target)
        seconds = clock()
        extra = max(0, common.peak_memory() - live) / 2**20
        for each in Path(path).glob("target*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        return {"seconds": seconds, "extra": extra}

    return run


def _torch(source: str, target: str) -> None:
    torch.save(torch.load(source, weights_only=True), f"{target}.pt")


def _torch_cast(source: str, target: str) -> None:
    tree = torch.load(source, weights_only=True)
    tree["model"] = {name: tensor.bfloat16() for name, tensor in tree["model"].items()}
    torch.save(tree, f"{target}.pt")


def _torch_model(source: str, target: str) -> None:
    safetensors.torch.save_file(torch.load(source, weights_only=True)["model"], f"{target}.safetensors")


WAYS = {
    "convert to .pt": _way(lambda s, t: unmoor.convert(s, f"{t}.pt") and None),
    "torch.load + torch.save": _way(_torch),
    "convert, model as bfloat16": _way(lambda s, t: unmoor.convert(s, f"{t}.pt", dtype="bfloat16") and None),
    "torch, model as bfloat16": _way(_torch_cast),
    "convert all as bfloat16": _way(
        lambda s, t: unmoor.convert(s, f"{t}.pt", dtype={"model": "bfloat16", "optimizer": "bfloat16"}) and None
    ),
    "convert model to safetensors": _way(lambda s, t: unmoor.convert(s, f"{t}.safetensors", only="model") and None),
    "torch, model to safetensors": _way(_torch_model),
    "convert to legacy": _way(lambda s, t: unmoor.convert(s, f"{t}.pt", format="legacy") and None),
    "convert to a folder": _way(lambda s, t: unmoor.convert(s, t) and None),
    "floor: copy the file": _way(lambda s, t: shutil.copyfile(s, f"{t}.pt") and None),
}


def main() -> None:
    if common.child_main({name: common.warmed(way) for name, way in WAYS.items()}):
        return
    asked = common.options(sys.argv[1:], gb=1.5, rounds=3, folder="/dev/shm")
    nbytes = int(asked["gb"] * 1e9)
    with tempfile.TemporaryDirectory(dir=asked["folder"]) as folder:
        os.mkdir(f"{folder}/tiny")
        _made(folder, nbytes)
        found = common.in_turn("benchmarks.converting", list(WAYS), folder, nbytes, asked["rounds"])
    print(f"{nbytes / 1e9:.2f} GB in {asked['folder']}, {asked['rounds']} rounds, medians, torch {torch.__version__}\n")
    print(common.compare("convert", found, "torch.load + torch.save", "floor: copy the file"))


if __name__ == "__main__":
    main()
