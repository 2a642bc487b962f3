"""The files of a DeepSpeed checkpoint folder: which there are, which are missing, and what each rank's files hold.

Layout after deepspeed/runtime/engine.py (0.6 to 0.19): `latest` names a subfolder. In it lie
`mp_rank_00_model_states.pt` (one for each rank with stage 3), and for each rank R the file
`[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from unmoor import places
from unmoor.errors import CorruptFile, HostileFile, NotACheckpoint, UnsupportedFile
from unmoor.filing import open_reader, read
from unmoor.values.dangers import danger_of
from unmoor.values.nodes import Opaque
from unmoor.values.text import count, listing

from .detect import detect
from .torch_zip import Saved, read_saved

__all__ = ["RankFile", "Ranks", "find_step", "is_states", "read_ranks"]

_LATEST: Final = "latest"
_MAX_LATEST: Final = 4096
_SHOWN: Final = 8
_MODEL: Final = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_PARALLEL: Final = re.compile(r"(?:layer_\d+|expp_rank_\d+|.*_expert_\d+)[_-].*_states\.pt")
_OWN: Final = "deepspeed."


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file of one rank: its name below the folder that was given, and what it holds."""

    rank: int
    file: str
    saved: Saved
    size: int

    @property
    def each(self) -> bool:
        """Whether every rank writes such a file, as its name tells."""
        return os.path.basename(self.file).partition("mp_rank")[0] != ""

    @property
    def tree(self) -> Mapping[str, Any]:
        """The dict that it holds."""
        value: Mapping[str, Any] = self.saved.reading.value
        return value


@dataclass(frozen=True, slots=True)
class Ranks:
    """The files of all ranks, in order. `optimizers` is empty where no ZeRO stage was on."""

    models: tuple[RankFile, ...]
    optimizers: tuple[RankFile, ...]


def is_states(name: str) -> bool:
    """Whether a file has a name that DeepSpeed gives its own."""
    return bool(_MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name))


def find_step(path: str) -> str:
    """The subfolder of `path` that holds the files, "" for `path` itself."""
    if not places.is_folder(path):
        with open_reader(path):  # raises where there is nothing at all
            raise NotACheckpoint(
                f"{path} is a file; what DeepSpeed's save_checkpoint writes is a folder",
                remedy="Give the folder in which `latest` stands, or that of one step.",
                path=path,
            )
    if any(map(is_states, places.names(path))):
        return ""
    place = places.join(path, _LATEST)
    if places.is_file(place):
        with open_reader(place) as reader:
            name = read(reader, 0, _MAX_LATEST).decode("utf-8", "replace").strip()
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise HostileFile(f"{place} names {name[:200]!r}, which is no folder beside it", path=place)
        if not places.is_folder(places.join(path, name)):
            raise CorruptFile(
                f"{place} names {name}, and there is no such folder",
                remedy="Copy it beside the others, or give the path of a step that is there.",
                path=place,
            )
        return name
    steps = [name for name in sorted(places.names(path)) if _holds_states(places.join(path, name))]
    if len(steps) != 1:
        what = f"{count(len(steps), 'step')} ({listing(steps)})" if steps else "none"
        raise NotACheckpoint(
            f"{path} has no file '{_LATEST}' to name the step of DeepSpeed to read, and holds {what}",
            remedy=f"Give one of them: {places.join(path, steps[-1])}" if steps else "",
            path=path,
        )
    return steps[0]


def _holds_states(path: str) -> bool:
    return places.is_folder(path) and any(map(is_states, places.names(path)))


def read_ranks(path: str, step: str) -> Ranks:
    """Every file of a step.

    Raises CorruptFile naming the ranks whose files are missing, UnsupportedFile for models that are split over ranks
    in other ways than ZeRO's.
    """
    folder = places.join(path, step) if step else path
    names = sorted(places.names(folder))
    _refuse_parallel(folder, names)
    models = [(int(m[1] or 0), name) for name in names if (m := _MODEL.fullmatch(name))]
    optimizers = [(int(m[1]), name) for name in names if (m := _OPTIMIZER.fullmatch(name))]
    if not models:
        raise CorruptFile(
            f"{folder} holds no file of DeepSpeed's with model states, which tell the names and shapes of parameters",
            remedy="Copy the files ending in _model_states.pt into this folder.",
            path=folder,
        )
    made = Ranks(tuple(_read(path, step, sorted(models))), tuple(_read(path, step, sorted(optimizers))))
    _check_ranks(folder, made)
    return made


def _refuse_parallel(folder: str, names: Sequence[str]) -> None:
    split = [name for name in names if (m := _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name)) and int(m[2])]
    split += [name for name in names if _PARALLEL.fullmatch(name)]
    if split:
        raise UnsupportedFile(
            f"{folder} holds a model that tensor, pipeline or expert parallelism cut into pieces: {listing(split)}",
            remedy="Convert it with DeepSpeed's ds_to_universal.py, or save it from a run without model parallelism.",
            path=folder,
        )


def _read(path: str, step: str, ranks: Sequence[tuple[int, str]]) -> Iterator[RankFile]:
    for rank, name in ranks:
        file = f"{step}/{name}" if step else name
        with open_reader(places.join(path, file)) as reader:
            if detect(reader) != "zip":
                raise UnsupportedFile(f"{reader.path} is none of the zip files that DeepSpeed writes", path=reader.path)
            saved = read_saved(reader, file, 0)
            if type(saved.reading.value) is not dict:
                raise CorruptFile(f"{reader.path} holds no states of DeepSpeed", path=reader.path)
            yield RankFile(rank, file, _own_names_left_out(saved), reader.size)


def _own_names_left_out(saved: Saved) -> Saved:
    reading = saved.reading
    names = tuple(name for name in reading.globals if not _is_own(name))
    calls = [call for call in reading.calls if not _is_own(call.name)]
    return replace(saved, reading=replace(reading, globals=names, calls=calls))


def _is_own(name: str) -> bool:
    return name.startswith(_OWN) and not danger_of(name)


def _check_ranks(folder: str, ranks: Ranks) -> None:
    """As many optimizer files as there were partitions, and one model file or one for each of them."""
    if not ranks.optimizers:
        return
    world = _world(ranks.optimizers[0].tree)
    for what, files in (("optimizer", ranks.optimizers), ("model", ranks.models)):
        found = [file.rank for file in files]
        if what == "model" and found == [0]:
            continue
        missing = _missing(set(found), world)
        if missing or len(found) != world:
            odd = f"rank {listing([str(rank) for rank in missing], _SHOWN)} is missing" if missing else "there are more"
            raise CorruptFile(
                f"{folder} holds the {what} states of {count(len(found), 'rank')}, of {world} that saved them: {odd}",
                remedy="Every rank writes to its own machine's disk: copy the files of all ranks into this folder.",
                path=folder,
            )


def _missing(found: Collection[int], world: int) -> list[int]:
    """The first ranks that are not there; a file may claim any number of ranks."""
    return list(islice((rank for rank in range(world) if rank not in found), _SHOWN + 1))


def _world(tree: Mapping[str, Any]) -> int:
    state = tree.get("optimizer_state_dict")
    counts = state.get("partition_count") if isinstance(state, Mapping) else None
    numbers = counts if isinstance(counts, list | tuple) else [counts]
    known = [n for n in numbers if type(n) is int and n > 0]
    return max(known, default=1)


def plain_state(value: Any) -> Any:
    """The attributes of an object of DeepSpeed's own that holds numbers alone; any other value as it is."""
    own = type(value) is Opaque and value.name.startswith(_OWN) and type(value.state) is dict
    return dict(value.state) if own else value
