"""Ways to carry the run of a world into another world, behind one pair of calls that all ranks make together."""

from __future__ import annotations

from typing import Any, Protocol

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import unmoor
from tests.matrix.carriers import set_streams, streams

from .layouts import Run

__all__ = ["CARRIERS", "Carrier"]


class Carrier(Protocol):
    """Saves the run of a world, with the random streams of each rank, and fills the run of another."""

    name: str

    def save(self, path: str, run: Run) -> None:
        """Write the run to `path`, a file or a folder."""

    def restore(self, path: str, run: Run) -> None:
        """Fill the live run, its number of steps and the process's random streams."""


class Unmoor:
    """unmoor.save and unmoor.restore, with their defaults."""

    name = "unmoor"

    def save(self, path: str, run: Run) -> None:
        unmoor.save(path, **run.roles, step=run.step)

    def restore(self, path: str, run: Run) -> None:
        run.step = unmoor.restore(path, **run.roles).extra["step"]


class Engine:
    """torch.distributed.checkpoint as its tutorial has it: get_state_dict, dcp.save, dcp.load, set_state_dict.

    Random streams are brought along by hand, a key for each rank.
    """

    name = "dcp"

    def save(self, path: str, run: Run) -> None:
        dcp.save({**self._tree(run), f"rng{run.rank}": streams()}, checkpoint_id=path)

    def restore(self, path: str, run: Run) -> None:
        tree, own = self._tree(run), f"rng{run.rank}"
        found = FileSystemReader(path).read_metadata().planner_data or {}
        known = any(keys[0] == own for keys in found.values())
        dcp.load(tree, checkpoint_id=path)
        if known:
            mine = {own: streams()}
            dcp.load(mine, checkpoint_id=path, no_dist=True)
            set_streams(mine[own])
        set_state_dict(run.model, run.optimizer, model_state_dict=tree["model"], optim_state_dict=tree["optimizer"])
        run.scheduler.load_state_dict(tree["scheduler"])
        run.scaler.load_state_dict(tree["scaler"])
        run.step = tree["step"]

    def _tree(self, run: Run) -> dict[str, Any]:
        model, optimizer = get_state_dict(run.model, run.optimizer)
        others = {"scheduler": run.scheduler.state_dict(), "scaler": run.scaler.state_dict(), "step": run.step}
        return {"model": model, "optimizer": optimizer, **others}


CARRIERS: dict[str, Carrier] = {carrier.name: carrier for carrier in (Unmoor(), Engine())}
