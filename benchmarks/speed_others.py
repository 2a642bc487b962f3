"""How Lightning Fabric, accelerate, torch_checkpointing and moonclip save and restore the same run.

Each does what its documentation tells a user of one process without a GPU to do. Their packages are no dependencies of
this project: importing one here is part of preparing a way, and a way whose package cannot be had is left out with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .peers import Accelerate, Fabric
from .peers_packages import fetched, reach
from .speed_runs import Run
from .speed_ways import Behind, Call, Restore, Save

__all__ = ["BEHIND", "RESTORES", "SAVES"]


def _objects(run: Run) -> dict[str, Any]:
    return {"model": run[0], "optimizer": run[1]}


def _fabric_save(path: Path, run: Run) -> Call:
    fabric = Fabric().fabric()
    return lambda: fabric.save(str(path / "run.ckpt"), _objects(run))


def _fabric_load(path: Path, run: Run) -> Call:
    fabric = Fabric().fabric()
    return lambda: fabric.load(str(path / "run.ckpt"), _objects(run))


def _accelerate_save(path: Path, run: Run) -> Call:
    accelerator = Accelerate().prepared(_objects(run))
    return lambda: accelerator.save_state(str(path / "run"))


def _accelerate_load(path: Path, run: Run) -> Call:
    accelerator = Accelerate().prepared(_objects(run))
    return lambda: accelerator.load_state(str(path / "run"))


def _manager(*, behind: bool = False) -> Any:
    """Without direct I/O, its default: where a file system wants whole blocks, writes of 0.1.1 fail (EINVAL)."""
    reach()
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    config = CheckpointManager.Config.with_async_save() if behind else CheckpointManager.Config.with_sync_save()
    config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
    if behind:
        config.save.process_config.subprocess_init_timeout_secs = 300  # a busy machine may need more than its 30
    return CheckpointManager(config)


def _states(run: Run) -> dict[str, Any]:
    return {name: item.state_dict() for name, item in _objects(run).items()}


def _tc_save(path: Path, run: Run) -> Call:
    manager = _manager()
    return lambda: manager.save(str(path / "run"), _states(run))


def _tc_load(path: Path, run: Run) -> Call:
    """As its tutorial has it: the model in place, the optimizer's state through load_state_dict."""
    manager = _manager()

    def call() -> None:
        model, optimizer = run
        restored = manager.load(str(path / "run"), into={"model": model.state_dict(), "optimizer": None})
        optimizer.load_state_dict(restored["optimizer"])

    return call


def _tc_behind(_path: Path, run: Run) -> Callable[[Path], Call]:
    """`save` returns at once, and its lock keeps the optimizer from stepping until the state is copied."""
    manager = _manager(behind=True)

    def call(target: Path) -> Call:
        written = manager.save(str(target / "run"), _states(run))
        with manager.lock():
            return written.result

    return call


def _moonclip(path: Path, *, behind: bool = False) -> Any:
    fetched("moonclip")
    from moonclip import CheckpointManager

    return CheckpointManager(str(path / "run"), async_save=behind)


def _moonclip_save(path: Path, run: Run) -> Call:
    manager = _moonclip(path)
    return lambda: manager.save(step=1, **_objects(run))


def _moonclip_load(path: Path, run: Run) -> Call:
    manager = _moonclip(path)
    return lambda: manager.resume(**_objects(run))


def _moonclip_behind(path: Path, run: Run) -> Callable[[Path], Call]:
    """One folder takes all saves of a run, each as changes of the one before."""
    manager = _moonclip(path, behind=True)
    steps = iter(range(1, 1 << 30))

    def call(_target: Path) -> Call:
        manager.save(step=next(steps), **_objects(run))
        return manager.flush

    return call


SAVES: Final[dict[str, Save]] = {
    "torch_checkpointing save": Save(_tc_save, whole="yes"),
    "Lightning Fabric save": Save(_fabric_save, sums="yes", whole="yes", beside=2.0),
    "accelerate save_state": Save(_accelerate_save, sums="optimizer"),
    "moonclip save": Save(_moonclip_save, sums="yes", synced="yes", whole="yes", beside=2.5),
}

RESTORES: Final[dict[str, Restore]] = {
    "torch_checkpointing load": Restore("torch_checkpointing save", _tc_load),
    "Lightning Fabric load": Restore("Lightning Fabric save", _fabric_load),
    "accelerate load_state": Restore("accelerate save_state", _accelerate_load),
    "moonclip resume": Restore("moonclip save", _moonclip_load, verified="yes", beside=2.0),
}

BEHIND: Final[dict[str, Behind]] = {
    "torch_checkpointing save, async": Behind(_tc_behind, "process", "torch_checkpointing load"),
    "moonclip save, async": Behind(_moonclip_behind, "thread", "moonclip resume", keeps_all=True),
}
