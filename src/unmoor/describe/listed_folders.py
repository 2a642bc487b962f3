"""Folders that are one checkpoint each, by the program that writes them: what must be there, and what is not.

A folder is told by the names in it. What makes it whole is what its own program needs to go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from unmoor.values.progress import number, progress, step_in
from unmoor.values.text import listing

from .folder_plain import CHECKPOINTS
from .folder_tables import INDEX
from .glance import Glance, glance_file
from .glance_json import trainer_values
from .glance_shards import glance_shards, is_sharded
from .listed_inside import MODELS, SHARDED, Faults, Inside
from .listed_names import LASTING, SURE
from .zero_files import is_states

__all__ = ["kind_of"]

_TRAINER: Final = "trainer_state.json"
_RANDOM: Final = re.compile(r"random_states_(\d+)\.pkl")
_ZERO: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_ZERO_MODEL: Final = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_RANKS: Final = re.compile(r"mp_rank_\d+(?:_\d+)*")
_MEGATRON: Final = "model_optim_rng.pt"
_SHOWN: Final = 3
_MOST_RANKS: Final = 1 << 16


def kind_of(name: str, inside: Inside, *, plain: bool = True) -> Callable[[], Glance] | None:
    """What looks at a folder that is one checkpoint; None for a folder that is none.

    `plain` tells that one that no program is known by may be one too, where its name says so.
    """
    look = next((look for fits, look in _KINDS if fits(name, inside) and (plain or look is not _plain)), None)
    return None if look is None else lambda: look(name, inside)


def _has(inside: Inside, pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, inside.files))


def _is_trainer(name: str, inside: Inside) -> bool:
    if _TRAINER in inside.files:
        return not any(re.fullmatch(r"checkpoint-\d+", other) for other in inside.folders)
    parts = {"optimizer.pt", "scheduler.pt", "training_args.bin"} & inside.files.keys()
    return re.fullmatch(r"checkpoint-\d+", name) is not None and bool(parts or _has(inside, MODELS))


def _trainer(name: str, inside: Inside) -> Glance:
    del name
    faults = Faults(inside, whole=True)
    values: Mapping[Any, Any] = {}
    if faults.need(_TRAINER):
        values = faults.tried(_TRAINER, lambda: trainer_values(inside.files[_TRAINER].path)) or {}
    faults.model()
    faults.pieces()
    _sharded_pieces(inside, faults)
    optimizer = any(part.startswith(("optimizer", "global_step")) for part in (*inside.files, *inside.folders))
    if not optimizer and "scheduler.pt" in inside.files:
        faults.lines.append("optimizer.pt is missing")
    notes = () if optimizer else ("holds no state of the optimizer",)
    return faults.settled(Glance(values, "hf-trainer", notes=notes))


def _sharded_pieces(inside: Inside, faults: Faults) -> None:
    """The folders of sharded state that lie beside the files of accelerate and transformers."""
    for name in sorted(inside.folders):
        if SHARDED.fullmatch(name) or name.startswith("global_step"):
            inner = inside.below(name)
            look = _zero if _is_zero(name, inner) else _shards
            faults.tried(name, partial(look, name, inner))


def _is_accelerate(name: str, inside: Inside) -> bool:
    parts = {"optimizer.bin", "scheduler.bin"} & inside.files.keys()
    return _has(inside, _RANDOM) or (re.fullmatch(r"checkpoint_\d+", name) is not None and bool(parts))


def _accelerate(name: str, inside: Inside) -> Glance:
    """A folder of save_state, which keeps no number of steps: without one in its name the optimizer's own count."""
    faults = Faults(inside, whole=True)
    ranks = [int(match[1]) for file in inside.files if (match := _RANDOM.fullmatch(file))]
    faults.lines += [f"random_states_{rank}.pkl is missing" for rank in _gaps(ranks or [-1])]
    faults.model()
    faults.pieces()
    _sharded_pieces(inside, faults)
    if not any(part.startswith("optimizer") for part in (*inside.files, *inside.folders)):
        faults.lines += ["optimizer.bin is missing"] if "scheduler.bin" in inside.files else []
    optimizer = inside.files.get("optimizer.bin") if step_in(name) is None else None
    counted = faults.tried("optimizer.bin", partial(glance_file, optimizer.path)) if optimizer is not None else None
    return faults.settled(Glance(dialect="accelerate", counter=None if counted is None else counted.counter))


def _is_sharded(name: str, inside: Inside) -> bool:
    del name
    return is_sharded(inside.sizes)


def _shards(name: str, inside: Inside) -> Glance:
    """A folder of torch.distributed.checkpoint; torchtitan calls its own step-N, Lightning puts meta.pt into its."""
    found = glance_shards(inside.path, inside.sizes)
    if "meta.pt" in inside.files:
        meta = glance_file(inside.files["meta.pt"].path)
        return replace(meta, values={**found.values, **meta.values})
    titan = found.dialect == "dcp" and re.fullmatch(r"step-\d+", name)
    return replace(found, dialect="torchtitan") if titan else found


def _is_zero(name: str, inside: Inside) -> bool:
    del name
    return any(map(is_states, inside.files))


def _zero(name: str, inside: Inside) -> Glance:
    """A step of DeepSpeed: the model states of one rank tell how many ranks there were."""
    del name
    faults = Faults(inside, whole=True)
    models = sorted(file for file in inside.files if _ZERO_MODEL.fullmatch(file))
    values: Mapping[Any, Any] = {}
    if models:
        found = faults.tried(models[0], lambda: glance_file(inside.files[models[0]].path))
        values = found.values if found is not None else {}
    else:
        faults.lines.append("the files ending in _model_states.pt are missing")
    absent = _absent_ranks(inside, values)
    if absent:
        ranks = listing([str(rank) for rank in absent], _SHOWN)
        faults.lines.append(f"the _optim_states.pt of rank {ranks} {'is' if len(absent) == 1 else 'are'} missing")
    faults.pieces(without=models[:1])
    return faults.settled(Glance(values, "deepspeed"))


def _absent_ranks(inside: Inside, values: Mapping[Any, Any]) -> list[int]:
    """The ranks whose optimizer states are not there. Without ZeRO they stand in the model states."""
    ranks = {int(match[1]) for file in inside.files if (match := _ZERO.fullmatch(file))}
    if not ranks and values.get("optimizer") is not None:
        return []
    world = max(number(values.get("dp_world_size")) or 1, *(rank + 1 for rank in ranks))
    return [rank for rank in range(min(world, _MOST_RANKS)) if rank not in ranks]


def _is_megatron(name: str, inside: Inside) -> bool:
    del name
    return any(map(_RANKS.fullmatch, inside.folders))


def _megatron(name: str, inside: Inside) -> Glance:
    """One file for each rank of tensor or pipeline parallelism."""
    del name
    faults = Faults(inside, whole=True)
    for rank in sorted(filter(_RANKS.fullmatch, inside.folders)):
        own = Faults(inside.below(rank), whole=True)
        if own.need(_MEGATRON):
            own.pieces()
        faults.lines += [f"{rank}: {line}" for line in own.lines]
    return faults.settled(Glance(dialect="megatron"))


def _is_plain(name: str, inside: Inside) -> bool:
    files = [file for file in inside.files if file.endswith((*CHECKPOINTS, INDEX))]
    if not LASTING.fullmatch(name):
        return False
    return bool(files) or not (inside.files or inside.folders)


def _plain(name: str, inside: Inside) -> Glance:
    """A folder that no program is known by: all its checkpoint files together, those that tell a step first."""
    del name
    faults = Faults(inside, whole=True)
    files = sorted(file for file in inside.files if file.endswith(CHECKPOINTS))
    if not inside.files and not inside.folders:
        faults.lines.append("it is empty")
    sure = [file for file in files if file.endswith(SURE)]
    found = [faults.tried(file, partial(glance_file, inside.files[file].path)) for file in sure]
    known = [one for one in found if one is not None]
    faults.pieces(without=sure)
    telling = [one for one in known if progress(one.values)]
    return faults.settled((telling or known or [Glance()])[0])


_KINDS: Final[tuple[tuple[Callable[[str, Inside], bool], Callable[[str, Inside], Glance]], ...]] = (
    (_is_trainer, _trainer),
    (_is_accelerate, _accelerate),
    (_is_sharded, _shards),
    (_is_zero, _zero),
    (_is_megatron, _megatron),
    (_is_plain, _plain),
)
"""Folders that are one checkpoint: what fits, and what looks. The first that fits decides."""


def _gaps(ranks: Sequence[int]) -> list[int]:
    """The ranks that are not there, from 0 to the last that is, a few of them; rank 0 where none is."""
    there = set(ranks)
    return [rank for rank in range(min(max(ranks) + 1, _MOST_RANKS) or 1) if rank not in there][:_SHOWN]
