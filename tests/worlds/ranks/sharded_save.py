"""Saves of state that two ranks hold together: odd trees, refusals, failures half-way, each told by what is left."""

from __future__ import annotations

import errno
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

from tests.worlds.ranks import main


def odd_tree() -> dict[Any, Any]:
    """Containers and values that torch's engine alone forgets, of plain values; the same in every process."""
    import numpy as np
    import torch

    ordered = OrderedDict(b=1, a={})
    ordered._metadata = OrderedDict({"": {"version": 1}, "b": {"version": 2, "odd": (1, "x")}})
    tied = torch.arange(6.0)
    return {
        "empty": {},
        "nothing": [],
        "row": (1, (2.5, "x"), None),
        "ordered": ordered,
        "counted": Counter({5: 2, 7: 1}),
        "mixed": [{"t": torch.ones(2)}, [], {}, 3],
        3: "a key that is a number",
        "3": "a key that reads the same",
        ("a", 1): True,
        "dotted.name": {"x": 1},
        "dotted": {"name": {"x": 2}, "name.x": 3},
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "scalar": torch.tensor(3.5),
        "strided": torch.arange(6.0).view(2, 3).t(),
        "void": torch.empty(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "tied": [tied, tied],
        "bytes": b"\x00\xff",
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "array": np.arange(4, dtype=np.int16),
        "values": {"lr": 1e-3, "inf": float("inf"), "names": ["a", "b"]},
    }


def run(rank: int, world: int, folder: str, place: str) -> Any:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    import unmoor
    from unmoor.wiring import saving_folder

    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(35.0).reshape(7, 5)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    parts = {
        "rows": spread,
        "twin": spread,
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "one": distribute_tensor(whole[:1], mesh, [Shard(0)]),
        "everywhere": distribute_tensor(whole, mesh, [Replicate()]),
        "void": distribute_tensor(whole[:0], mesh, [Shard(0)]),
        "list": [spread, 1],
        "tuple": (2, spread),
    }
    root = Path(place)
    found: dict[str, Any] = {}

    def tried(what: str, *arguments: Any, **keywords: Any) -> None:
        """Keep the error of a save, and the names that are left where it would be."""
        try:
            said = str(unmoor.save(*arguments, **keywords))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to see it
            said = f"{type(error).__name__}: {error}"
        dist.barrier()
        found[what] = said

    receipt = unmoor.save(root / "odd", {**odd_tree(), "parts": parts, "rank": rank, "both": [rank, {"x": rank}]})
    found["receipt"] = {"counts": dict(receipt.counts), "nbytes": receipt.nbytes, "text": str(receipt)}

    target = root / "kept"
    unmoor.save(target, {"w": spread, "step": 1})
    found["first"] = sorted(os.listdir(target))
    tried("replaced", target, {"w": spread, "step": 2})
    tried("later", root / "later", {"w": distribute_tensor(whole + 1, mesh, [Shard(0)]), "step": 2})

    def full(nbytes: int) -> None:
        if rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tried("full", target, {"w": spread, "step": 3}, progress=full)

    def broken(nbytes: int) -> None:
        raise ValueError(f"no more on {rank}")

    tried("both", target, {"w": spread, "step": 3}, progress=broken)
    put = saving_folder.publish_folder
    if rank == 0:
        saving_folder.publish_folder = _refused
    tried("rename", target, {"w": spread, "step": 3})
    saving_folder.publish_folder = put

    if rank == 0:
        (root / "file.pt").write_bytes(b"something")
        (root / "mine").mkdir()
        (root / "mine" / "notes.txt").write_text("mine")
        (root / "made").mkdir()
    dist.barrier()
    tried("file", root / "file.pt", {"w": spread})
    tried("folder", root / "mine", {"w": spread})
    tried("made", root / "made", {"w": spread})
    tried("flat", root / "model.safetensors", model={"w": spread})
    tried("alone", root / "alone", {"w": spread}, group=None)
    tried("absent", root / "no" / "such", {"w": spread})
    tried("list", root / "listed", [spread])
    knot: dict[str, Any] = {"w": spread}
    knot["again"] = knot
    tried("knot", root / "knot", knot)
    tried("holes", root / "holes", {"w": torch.ones(3) if rank else spread})
    drifted = DTensor.from_local(whole + (rank == 1), mesh, [Replicate()], run_check=False)
    tried("drifted", root / "drifted", {"w": spread, "bias": drifted})
    own = root / f"node-{rank}"
    own.mkdir()
    os.chdir(own)
    tried("node", "here", {"w": spread})
    os.chdir(root)
    found["left"] = sorted(str(p.relative_to(root)) for p in root.rglob("*") if "odd" not in p.parts[-2:])
    return found


def _refused(*_: Any) -> None:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


if __name__ == "__main__":
    main(run)
