"""How unmoor, torch, safetensors and torch.distributed.checkpoint save and restore a model and its AdamW.

A way is prepared outside of the clock, given a folder of its own and a live run, and gives the call that is timed: the
same job for everyone, into live objects. What it leaves out stands beside it, and is printed beside its figure.
`speed_others.py` has those whose packages come from another environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import unmoor

from . import common
from .bare import bare_read
from .save import bare_write
from .speed_runs import Run

__all__ = ["BEHIND", "RESTORES", "SAVES", "Behind", "Call", "Restore", "Save"]

Call = Callable[[], Any]


@dataclass(frozen=True)
class Save:
    """`sums`: writes checksums. `synced`: brings what it wrote to the disk. `whole`: the old one stays until it did.

    `beside` is the memory that it takes beside the live run, in runs, at most.
    """

    prepare: Callable[[Path, Run], Call]
    sums: str = "no"
    synced: str = "no"
    whole: str = "no"
    beside: float = 0.1


@dataclass(frozen=True)
class Restore:
    """`file` is the way of `SAVES` whose file it reads. Its call may give the run that replaces the live one.

    `verified`: checksums are held against what was read. `in_place`: live tensors stay the objects they are. `beside`
    is the memory that it takes beside the live run, in runs, at most; what has not so much is not tried.
    """

    file: str
    prepare: Callable[[Path, Run], Call]
    verified: str = "no"
    in_place: str = "yes"
    beside: float = 0.45


@dataclass(frozen=True)
class Behind:
    """A save in the background: the call returns when training may go on, and gives what waits for the rest.

    `read` is the way of `RESTORES` that reads what it wrote: in the folder that the call was given, or, where one takes
    all saves of a run (`keeps_all`), in that.
    """

    prepare: Callable[[Path, Run], Callable[[Path], Call]]
    writer: str
    read: str = ""
    keeps_all: bool = False


def _states(run: Run) -> dict[str, Any]:
    return {"model": run[0].state_dict(), "optimizer": run[1].state_dict()}


def _take(run: Run, states: dict[str, Any], **options: Any) -> None:
    run[0].load_state_dict(states["model"], **options)
    run[1].load_state_dict(states["optimizer"])


def _unmoor_save(path: Path, run: Run) -> Call:
    return lambda: unmoor.save(path / "run.pt", model=run[0], optimizer=run[1], rng=False)


def _unmoor_restore(path: Path, run: Run, **options: Any) -> Call:
    return lambda: unmoor.restore(path / "run.pt", model=run[0], optimizer=run[1], rng=False, **options)


def _torch_save(path: Path, run: Run, *, crc: bool = True) -> Call:
    def call() -> None:
        torch.serialization.set_crc32_options(crc)
        torch.save(_states(run), path / "run.pt")

    return call


def _torch_load(path: Path, run: Run, *, assign: bool = False, **options: Any) -> Call:
    def call() -> Run:
        states = torch.load(path / "run.pt", map_location="cpu", **options)
        if not assign:
            _take(run, states)
            return run
        run[0].load_state_dict(states["model"], assign=True)  # other parameters from here on: so another optimizer
        optimizer = torch.optim.AdamW(run[0].parameters())
        optimizer.load_state_dict(states["optimizer"])
        return run[0], optimizer

    return call


def _safetensors_save(path: Path, run: Run) -> Call:
    """One flat mapping for both; what is no tensor goes into the header as JSON."""

    def call() -> None:
        states = _states(run)
        flat = {f"model.{name}": tensor for name, tensor in states["model"].items()}
        for number, entry in states["optimizer"]["state"].items():
            flat |= {f"optimizer.{number}.{name}": tensor for name, tensor in entry.items()}
        groups = json.dumps(states["optimizer"]["param_groups"])
        save_file(flat, path / "run.safetensors", metadata={"param_groups": groups})

    return call


def _safetensors_load(path: Path, run: Run) -> Call:
    def call() -> None:
        states: dict[str, Any] = {"model": {}, "optimizer": {"state": {}}}
        for name, tensor in load_file(path / "run.safetensors").items():
            role, rest = name.split(".", 1)
            if role == "model":
                states[role][rest] = tensor
            else:
                number, key = rest.split(".")
                states[role]["state"].setdefault(int(number), {})[key] = tensor
        states["optimizer"]["param_groups"] = _groups(path)
        _take(run, states)

    return call


def _groups(path: Path) -> Any:
    with safe_open(path / "run.safetensors", "pt") as file:
        return json.loads(file.metadata()["param_groups"])


def _safe_open(path: Path, run: Run) -> Call:
    """Each parameter is copied from the mapped file; the state of a fresh optimizer is made of it."""

    def call() -> None:
        model, optimizer = run
        params = [p for group in optimizer.param_groups for p in group["params"]]
        with safe_open(path / "run.safetensors", "pt") as file, torch.no_grad():
            own = model.state_dict(keep_vars=True)
            for name in file.keys():  # noqa: SIM118 (no mapping)
                role, rest = name.split(".", 1)
                if role == "model":
                    own[rest].copy_(file.get_tensor(name))
                else:
                    number, key = rest.split(".")
                    optimizer.state[params[int(number)]][key] = file.get_tensor(name)
            groups = json.loads(file.metadata()["param_groups"])
        for live, saved in zip(optimizer.param_groups, groups, strict=True):
            live.update({name: value for name, value in saved.items() if name != "params"})

    return call


def _dcp_states(run: Run) -> dict[str, Any]:
    model, optimizer = run
    return {
        "model": dcp_state.get_model_state_dict(model),
        "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer),
    }


def _dcp_save(path: Path, run: Run) -> Call:
    return lambda: dcp.save(_dcp_states(run), checkpoint_id=path / "run", no_dist=True)


def _dcp_load(path: Path, run: Run) -> Call:
    def call() -> None:
        states = _dcp_states(run)
        dcp.load(states, checkpoint_id=path / "run", no_dist=True)
        dcp_state.set_model_state_dict(run[0], states["model"])
        dcp_state.set_optimizer_state_dict(run[0], run[1], states["optimizer"])

    return call


def _bare_write(path: Path, run: Run) -> Call:
    return lambda: bare_write(path / "run.bin", *run)


def _bare_read(path: Path, run: Run, **options: Any) -> Call:
    return bare_read(str(path / "run.pt"), *run, **options)


def _unmoor_behind(_path: Path, run: Run) -> Callable[[Path], Call]:
    def call(target: Path) -> Call:
        return unmoor.save(target / "run.pt", model=run[0], optimizer=run[1], rng=False, background=True).wait

    return call


def _dcp_behind(_path: Path, run: Run, kind: AsyncCheckpointerType) -> Callable[[Path], Call]:
    """Without a process group there is no async_save; one of a single rank is made before the clock."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def call(target: Path) -> Call:
        found = dcp.async_save(_dcp_states(run), checkpoint_id=target / "run", async_checkpointer_type=kind)
        return found.result

    return call


def _copied(_path: Path, run: Run) -> Callable[[Path], Call]:
    """What no save in the background can do without: every tensor copied once, into memory that is there already."""
    tensors = common.state_tensors(*run)
    copies = [torch.empty_like(tensor).fill_(0) for tensor in tensors]

    def call(_target: Path) -> Call:
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)
        return lambda: None

    return call


def _torch_standing(_path: Path, run: Run) -> Callable[[Path], Call]:
    def call(target: Path) -> Call:
        _torch_save(target, run)()
        return lambda: None

    return call


SAVES: Final[dict[str, Save]] = {
    "unmoor.save": Save(_unmoor_save, sums="yes", synced="yes", whole="yes"),
    "torch.save": Save(_torch_save, sums="yes"),
    "torch.save, crc32 off": Save(partial(_torch_save, crc=False)),
    "safetensors.save_file": Save(_safetensors_save, whole="yes"),
    "DCP save": Save(_dcp_save, sums="yes", synced="yes", whole="index"),
    "floor: bare write": Save(_bare_write),
}

RESTORES: Final[dict[str, Restore]] = {
    "unmoor.restore": Restore("unmoor.save", _unmoor_restore, verified="yes", beside=0.05),
    "unmoor.restore, verify=none": Restore("unmoor.save", partial(_unmoor_restore, verify="none"), beside=0.05),
    "torch.load": Restore("torch.save", _torch_load),
    "torch.load, mmap": Restore("torch.save", partial(_torch_load, mmap=True)),
    "torch.load, assign": Restore("torch.save", partial(_torch_load, assign=True), in_place="no"),
    "torch.load, mmap, assign": Restore("torch.save", partial(_torch_load, mmap=True, assign=True), in_place="no"),
    "safetensors.load_file": Restore("safetensors.save_file", _safetensors_load),
    "safetensors.safe_open": Restore("safetensors.save_file", _safe_open),
    "DCP load": Restore("DCP save", _dcp_load, beside=0.8),
    "floor: bare read": Restore("unmoor.save", _bare_read, beside=0.05),
    "floor: bare read, huge pages": Restore("unmoor.save", partial(_bare_read, memory="ours"), beside=0.05),
}
"""Each of torch's and safetensors' is followed by load_state_dict of both, but for safe_open."""

BEHIND: Final[dict[str, Behind]] = {
    "unmoor.save, background": Behind(_unmoor_behind, "process", "unmoor.restore"),
    "DCP async_save": Behind(partial(_dcp_behind, kind=AsyncCheckpointerType.THREAD), "thread", "DCP load"),
    "DCP async_save, process": Behind(partial(_dcp_behind, kind=AsyncCheckpointerType.PROCESS), "process", "DCP load"),
    "torch.save": Behind(_torch_standing, "none", "torch.load"),
    "floor: one copy in memory": Behind(_copied, "none"),
}
