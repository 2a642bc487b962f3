"""Every verb that writes or reads, small enough to be carried out hundreds of times in forks of one process.

`made` lays out what they need in a folder; `carry` does one of them on live objects that are there already, and says
what came of it in plain values. Both know nothing of faults.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import unmoor
from unmoor.places import remove
from unmoor.wiring import saving_behind

GOLDEN = Path(__file__).parents[1] / "golden"
SAVED, LIVE = 1, 2
"""Seeds: of what lies in the files, and of what is live before a verb."""


@dataclass(frozen=True, slots=True)
class Verb:
    """`needs` are the files that must be there, `target` what it writes, "" for nothing; `carry` does it."""

    carry: Callable[[Path, dict[str, Any]], Any]
    needs: tuple[str, ...]
    target: str = ""


def run(seed: int) -> dict[str, Any]:
    """A model of several tensors, one of which is read and written in pieces, and its optimizer with state."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 40), torch.nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * seed, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.01 * seed)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def made(folder: Path, *names: str) -> None:
    """Lay out the files of these names (all there are, without names)."""
    for name in names or tuple(_MADE):
        source, target = template() / name, folder / name
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)


def laid(folder: Path, *names: str) -> None:
    """Lay out the files of these names, and nothing else."""
    for path in folder.iterdir():
        remove(str(path))
    made(folder, *names)


@cache
def _kept() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="disks-")


@cache
def template() -> Path:
    """Where what is laid out was made."""
    folder = Path(_kept().name)
    for name, make in _MADE.items():
        make(folder / name)
    return folder


def _converted(path: Path, **how: Any) -> None:
    unmoor.convert(path.parent / "run.pt", path, **how)


_MADE: dict[str, Callable[[Path], Any]] = {
    "run.pt": lambda path: unmoor.save(path, **run(SAVED), step=1),
    "other.pt": lambda path: unmoor.save(path, **run(SAVED + 7), step=7),
    "plain.pt": lambda path: torch.save({"model": run(SAVED)["model"].state_dict()}, path),
    "old.safetensors": lambda path: unmoor.save(path, model=run(SAVED)["model"]),
    "old.pt": partial(_converted, format="legacy"),
    "old": partial(_converted, format="dcp"),
    "shards": partial(_converted, only="model", max_shard_size=100_000),
    "tags.pt": lambda path: shutil.copyfile(GOLDEN / "training_cuda7-torch2.13.0.pt", path),
    "tags_legacy.pt": lambda path: shutil.copyfile(GOLDEN / "training_cuda7_legacy-torch2.13.0.pt", path),
    "page.html": lambda path: path.write_text("<!doctype html>old"),
}


def _save(name: str) -> Callable[[Path, dict[str, Any]], Any]:
    return lambda folder, live: unmoor.save(folder / name, **live, step=2)


def _save_model(folder: Path, live: dict[str, Any]) -> Any:
    return unmoor.save(folder / "old.safetensors", model=live["model"])


def _save_behind(folder: Path, live: dict[str, Any], *, apart: bool) -> Any:
    if apart:
        saving_behind._SMALL = saving_behind._FEW = 0
    return unmoor.save(folder / "run.pt", **live, step=2, background=True).wait()


def _convert(source: str, target: str, **how: Any) -> Callable[[Path, dict[str, Any]], Any]:
    return lambda folder, _: unmoor.convert(folder / source, folder / target, **how)


def _relocate(name: str, **how: Any) -> Callable[[Path, dict[str, Any]], Any]:
    def carry(folder: Path, _: dict[str, Any]) -> Any:
        output = how.get("output")
        return unmoor.relocate(folder / name, to="cpu", output=output and folder / output)

    return carry


WRITES = {
    "save": Verb(_save("run.pt"), ("run.pt",), "run.pt"),
    "save, new": Verb(_save("new.pt"), (), "new.pt"),
    "save behind": Verb(partial(_save_behind, apart=False), ("run.pt",), "run.pt"),
    "save apart": Verb(partial(_save_behind, apart=True), ("run.pt",), "run.pt"),
    "save safetensors": Verb(_save_model, ("old.safetensors",), "old.safetensors"),
    "convert to a file": Verb(_convert("other.pt", "run.pt"), ("other.pt", "run.pt"), "run.pt"),
    "convert to safetensors": Verb(
        _convert("other.pt", "old.safetensors", only="model"), ("other.pt", "old.safetensors"), "old.safetensors"
    ),
    "convert to a stream": Verb(_convert("other.pt", "old.pt", format="legacy"), ("other.pt", "old.pt"), "old.pt"),
    "convert to a folder": Verb(_convert("other.pt", "old", format="dcp"), ("other.pt", "old"), "old"),
    "convert to shards": Verb(
        _convert("other.pt", "shards", only="model", max_shard_size=100_000), ("other.pt", "shards"), "shards"
    ),
    "relocate": Verb(_relocate("tags.pt"), ("tags.pt",), "tags.pt"),
    "relocate a copy": Verb(_relocate("tags.pt", output="run.pt"), ("tags.pt", "run.pt"), "run.pt"),
    "relocate a stream": Verb(_relocate("tags_legacy.pt"), ("tags_legacy.pt",), "tags_legacy.pt"),
    "page": Verb(
        lambda folder, _: unmoor.page(folder / "run.pt", folder / "page.html"), ("run.pt", "page.html"), "page.html"
    ),
}
"""Name -> a verb that writes over what was there before."""


def _restore(name: str, **how: Any) -> Callable[[Path, dict[str, Any]], Any]:
    return lambda folder, live: unmoor.restore(folder / name, **live, **how)


def _restore_model(name: str) -> Callable[[Path, dict[str, Any]], Any]:
    return lambda folder, live: unmoor.restore(folder / name, model=live["model"])


READS = {
    "describe": Verb(lambda folder, _: unmoor.describe(folder / "run.pt"), ("run.pt",)),
    "describe a folder": Verb(lambda folder, _: unmoor.describe(folder / "old"), ("old",)),
    "restore": Verb(_restore("run.pt"), ("run.pt",)),
    "restore, verified first": Verb(_restore("run.pt", verify="first"), ("run.pt",)),
    "restore a folder": Verb(_restore("old"), ("old",)),
    "restore a stream": Verb(_restore_model("old.pt"), ("old.pt",)),
    "restore safetensors": Verb(_restore_model("old.safetensors"), ("old.safetensors",)),
    "load": Verb(lambda folder, _: unmoor.load(folder / "run.pt"), ("run.pt",)),
    "load shards": Verb(lambda folder, _: unmoor.load(folder / "shards"), ("shards",)),
    "verify": Verb(lambda folder, _: unmoor.verify(folder / "run.pt"), ("run.pt",)),
    "verify a folder": Verb(lambda folder, _: unmoor.verify(folder / "old"), ("old",)),
    "diff": Verb(lambda folder, _: unmoor.diff(folder / "run.pt", folder / "other.pt"), ("run.pt", "other.pt")),
}
"""Name -> a verb that changes no file."""
VERBS = {**WRITES, **READS}


def digests(live: dict[str, Any]) -> dict[str, str]:
    """Name of each live tensor, as errors have it -> a digest of its bytes; what else the optimizer holds."""
    model = live["model"].state_dict()
    found = {f"model/{name}": _digest(tensor) for name, tensor in model.items()}
    state = live["optimizer"].state_dict()
    for number, row in state["state"].items():
        found |= {f"optimizer/0/{number}/{key}": _digest(value) for key, value in row.items()}
    found["optimizer"] = repr(state["param_groups"])
    return found


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def carry(verb: str, folder: str) -> dict[str, Any]:
    """Do a verb: what it raised, in plain values, and the live tensors that changed."""
    live = run(LIVE)
    streams, before = torch.get_rng_state(), digests(live)
    told: dict[str, Any] | None = None
    value: Any = None
    try:
        value = VERBS[verb].carry(Path(folder), live)
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        told = _told(error)
    changed = [name for name, digest in digests(live).items() if digest != before[name]]
    if not torch.equal(streams, torch.get_rng_state()):
        changed.append("rng")
    faults = [str(fault) for fault in value.faults] if isinstance(value, unmoor.Verification) else []
    return {"told": told, "changed": changed, "faults": faults}


def timed(verb: str, folder: str) -> dict[str, Any]:
    """Do a verb; also for how long, and how much of that the processor was at work, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    made_of = carry(verb, folder)
    return {**made_of, "seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}


def _told(error: BaseException) -> dict[str, Any]:
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "errno": getattr(error, "errno", None),
        "text": str(error),
        "remedy": getattr(error, "remedy", ""),
        "path": getattr(error, "path", ""),
        "done": sorted(getattr(error, "done", ())),
    }


def warm() -> None:
    """Have everything imported that a verb imports on its way."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="disks-") as folder:
        for name, verb in VERBS.items():
            if name != "save apart":
                made(Path(folder), *verb.needs)
                carry(name, folder)
    _kept().cleanup()
    template.cache_clear()
    _kept.cache_clear()


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its path there, with a digest of its bytes; folders, with none."""
    return {str(path.relative_to(folder)): _content(path) for path in _below(folder)}


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")))


def _content(path: Path) -> str:
    return "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


def called(call: str, arguments: list[Any]) -> dict[str, Any] | None:
    """What any function, as "module:name", raises, in plain values."""
    module, _, name = call.partition(":")
    try:
        getattr(import_module(module), name)(*arguments)
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        return _told(error)
    return None
