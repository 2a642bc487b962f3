"""What writes checkpoints: calls that a fork of the zygote makes, and the table of them.

Each generation of a checkpoint holds tensors that are all filled with its number, so that a mixture of two shows.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import unmoor
from tests.faults import mark
from unmoor.execute import commit, folder_commit
from unmoor.execute.leftovers import sweep

from .states import ABSENT, Broken, held

__all__ = ["SCENES", "Scene", "warm"]

OLD, NEW, NEXT = 1, 2, 3
MANY = 300
"""Storages that are too many for a save in the background to be written by a thread."""


def tree(generation: int, tensors: int = 4) -> dict[str, Any]:
    sizes = [20_000, 40_000, 3, 1, *[7] * MANY][:tensors]
    model = {f"layer.{at}.weight": torch.full((size,), float(generation)) for at, size in enumerate(sizes)}
    return {"model": model, "step": generation}


def save(path: str, generation: int) -> None:
    unmoor.save(path, tree(generation))
    mark("returned")


def behind(path: str, generation: int) -> None:
    content = tree(generation, MANY)
    pending = unmoor.save(path, model=Keeper(content["model"]), step=generation, rng=False, background=True)
    pending.wait()
    mark("returned")


class Keeper:
    """An object with a state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def safetensors(path: str, generation: int) -> None:
    unmoor.save(path, tree(generation)["model"])
    mark("returned")


def source_of(generation: int) -> str:
    """A checkpoint to convert, outside of the folder with faults."""
    place = os.path.join(_beside().name, f"{generation}.pt")
    if not os.path.exists(place):
        unmoor.save(place, tree(generation))
    return place


@cache
def _beside() -> tempfile.TemporaryDirectory[str]:
    """Where the zygote keeps what its forks have besides; it is removed when that ends, however they did."""
    return tempfile.TemporaryDirectory(prefix="crash-")


def convert(path: str, generation: int) -> None:
    unmoor.convert(source_of(generation), path)
    mark("returned")


def two_renames(path: str, generation: int) -> None:
    """As on a file system that cannot exchange two names."""
    exchange, folder_commit._exchange = folder_commit._exchange, lambda one, other: False
    try:
        convert(path, generation)
    finally:
        folder_commit._exchange = exchange


def shards(path: str, generation: int) -> None:
    unmoor.convert(source_of(generation), path, only="model", max_shard_size=100_000)
    mark("returned")


TAGS = {OLD: "cpu", NEW: "cuda:7", NEXT: "cuda:0"}


def tagged(path: str, generation: int) -> None:
    """Generations of a relocated checkpoint are its tags."""
    save(path, 0)
    if generation != OLD:
        relocate(path, generation)


def relocate(path: str, generation: int) -> None:
    unmoor.relocate(path, to=TAGS[generation])
    mark("returned")


def undo(path: str, generation: int) -> None:
    if generation == NEXT:
        relocate(path, generation)
    else:
        unmoor.undo_relocate(path)
        mark("returned")


def legacy(path: str, generation: int) -> None:
    torch.save(tree(generation), path, _use_new_zipfile_serialization=False)


def tagged_stream(path: str, generation: int) -> None:
    legacy(path, 0)
    if generation != OLD:
        relocate(path, generation)


def sharded(path: str, generation: int) -> None:
    """Two ranks, forked from here, save one folder; where one fails the other is ended, as torchrun does."""
    with tempfile.TemporaryDirectory(dir=_beside().name) as scratch:
        ranks = [_forked(rank, scratch, path, generation) for rank in (0, 1)]
        codes = []
        while ranks:
            pid, status = os.wait()
            ranks.remove(pid)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
        said = [place.read_text() for place in Path(scratch).glob("failed-*")]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}: {' '.join(said)}")
    mark("returned")


def _forked(rank: int, scratch: str, path: str, generation: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_rank(rank, scratch, path, generation)
    except BaseException as error:  # noqa: BLE001 - told by the process that waits
        Path(scratch, f"failed-{rank}").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def _be_rank(rank: int, scratch: str, path: str, generation: int) -> None:
    from datetime import timedelta

    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = dist.FileStore(os.path.join(scratch, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    mesh = init_device_mesh("cpu", (2,))
    content = tree(generation)
    whole = content["model"]["layer.0.weight"]
    content["model"]["layer.0.weight"] = distribute_tensor(whole, mesh, [Shard(0)])
    unmoor.save(path, model=Keeper(content["model"]), step=generation, rng=False)


def plain(path: str, generation: int) -> None:
    """What scripts do."""
    torch.save(tree(generation), path)
    mark("returned")


def renamed(path: str, generation: int) -> None:
    """What careful scripts do."""
    torch.save(tree(generation), path + ".tmp")
    os.replace(path + ".tmp", path)
    mark("returned")


def unswept(path: str, generation: int) -> None:
    """A save that leaves alone what others left."""
    commit.sweep = lambda *_: ()
    save(path, generation)


def warm() -> None:
    """Import all that the calls need, and use it once, so that forks begin where a run in its middle is."""
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.tensor

    torch.set_num_threads(1)
    for generation in (OLD, NEW, NEXT):
        source_of(generation)
    with tempfile.TemporaryDirectory() as folder:
        for scene in SCENES.values():
            if scene.warm:
                path = os.path.join(folder, scene.target)
                scene.make(path, OLD)
                scene.write(path, NEW)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


@dataclass(frozen=True, slots=True)
class Scene:
    """A call that takes the checkpoint at `target` from one generation to the next.

    `make` lays one there beforehand, `write` is the call. `first`: nothing was there before. `read` says which
    generation a target holds; before it is asked, `resume` is called with the folder, as a run begins.
    """

    name: str
    target: str
    write: Callable[[str, int], None]
    make: Callable[[str, int], None]
    first: bool = False
    read: Callable[[str], str] = held
    warm: bool = True
    resume: Callable[[str], object] = len

    @property
    def call(self) -> str:
        return f"{__name__}:{self.write.__name__}"

    @property
    def old(self) -> str:
        return ABSENT if self.first else self.said(OLD)

    def said(self, generation: int) -> str:
        return TAGS[generation] if self.read is tag else str(generation)


def tag(path: str) -> str:
    """The device of a relocated checkpoint; its data must be as it was."""
    found = held(path)
    devices = unmoor.describe(path).devices()
    if found != "0" or len(devices) != 1:
        raise Broken(f"{found} on {devices}")
    return next(iter(devices))


SCENES = {
    scene.name: scene
    for scene in (
        Scene("a file over an older one", "run.pt", save, save),
        Scene("a first file", "run.pt", save, save, first=True),
        Scene("in the background", "run.pt", behind, behind),
        Scene("safetensors", "model.safetensors", safetensors, safetensors),
        Scene("converted to a file", "run.pt", convert, convert),
        Scene("converted to a folder", "run", convert, convert),
        Scene("converted to a first folder", "run", convert, convert, first=True),
        Scene("a folder put aside for another", "run", two_renames, convert, resume=sweep),
        Scene("converted to shards of safetensors", "hub", shards, shards),
        Scene("relocated in place", "run.pt", relocate, tagged, read=tag),
        Scene("a stream of old torch relocated", "run.pt", relocate, tagged_stream, read=tag),
        Scene("sharded by two ranks", "run", sharded, sharded, warm=False),
    )
}
"""What must survive."""

UNSWEPT = Scene("unswept", "run.pt", unswept, save)
"""What leaves junk, and shows that the harness would see that."""

CARELESS = {
    scene.name: scene
    for scene in (
        Scene("torch.save", "run.pt", plain, plain, warm=False),
        Scene("torch.save and a rename", "run.pt", renamed, renamed, warm=False),
    )
}
"""What does not, and shows that the harness would see it."""
