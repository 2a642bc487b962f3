"""accelerate: what `save_state` writes is brought to the disk and sealed, and only loaded where it is whole."""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

from unmoor.api_files import PathLike
from unmoor.errors import CorruptFile
from unmoor.filing import path_text
from unmoor.places import is_folder, join

from .libraries import library
from .resuming import damage_of, latest_sealed, numbered, sealed
from .sealing import broken, is_sealed, unseal

__all__ = ["attach", "latest"]

_PREFIX: Final = "checkpoint_"

A = TypeVar("A")


def latest(folder: PathLike) -> str | None:
    """What to give `load_state`: the newest folder `checkpoint_N` that holds; None for a fresh start.

    folder: where they lie: with automatic naming the folder `checkpoints` of the project.

    One with a seal is held against it, byte by byte. One without is passed over where an older one has a seal, since
    its save was killed; where none has, it is taken if it is complete and its own checksums hold. What is passed over
    is a warning that says why.

    >>> if start := latest("project/checkpoints"):  # doctest: +SKIP
    ...     accelerator.load_state(start)
    """
    return latest_sealed(path_text(folder), _PREFIX)


def attach(accelerator: A) -> A:
    """Have an Accelerator bring what it saves to the disk and seal it, and verify what it loads before that.

    `save_state` writes a folder file by file. When all ranks have written theirs, a list `unmoor.sha256` of all files
    and their checksums is written last; `sha256sum -c unmoor.sha256` checks it too. A folder that cannot be sealed is
    a warning.

    `load_state` raises CorruptFile, before anything of the run changes, for a folder that is not as it was sealed. With
    automatic naming and no folder it takes the newest that holds, with a warning for what it passes over; and saves go
    on behind the greatest number there is, which accelerate leaves to you.

    accelerator: the Accelerator, which is given back.

    Raises MachineError where accelerate is not installed; from `load_state`, FileNotFoundError where no folder holds.

    >>> accelerator = attach(Accelerator(...))  # doctest: +SKIP
    """
    library("accelerate", install="accelerate", why="attach")
    live: Any = accelerator
    save_state, load_state, naming = live.save_state, live.load_state, live.project_configuration

    def saving(output_dir: PathLike | None = None, *args: Any, **keywords: Any) -> Any:
        if output_dir is not None and not naming.automatic_checkpoint_naming and live.is_main_process:
            unseal(_place(output_dir))
        given = save_state(output_dir, *args, **keywords)
        live.wait_for_everyone()
        if live.is_main_process:
            sealed(_written(output_dir))
        live.wait_for_everyone()
        return given

    def _written(output_dir: PathLike | None) -> str:
        if naming.automatic_checkpoint_naming:
            return join(live.project_dir, "checkpoints", f"{_PREFIX}{naming.iteration - 1}")
        return _place(output_dir or "")

    def loading(input_dir: PathLike | None = None, *args: Any, **keywords: Any) -> Any:
        if input_dir is None and naming.automatic_checkpoint_naming:
            folder = join(live.project_dir, "checkpoints")
            if (found := latest(folder)) is None:
                raise FileNotFoundError(f"no checkpoint of {folder} holds")
            input_dir, (greatest, _) = found, numbered(folder, _PREFIX)[0]
            naming.iteration = greatest + 1
        elif input_dir is not None:
            _verify(_place(input_dir))
        return load_state(input_dir, *args, **keywords)

    live.save_state, live.load_state = saving, loading
    return accelerator


def _place(folder: PathLike) -> str:
    return os.path.expanduser(path_text(folder))


def _verify(place: str) -> None:
    """Raise CorruptFile where a folder is not what was saved."""
    if not is_folder(place):
        return  # accelerate says so itself
    why = broken(place) if is_sealed(place) else damage_of(place)
    if why:
        raise CorruptFile(
            f"{place} is damaged",
            details=[why],
            remedy="Nothing was loaded. Load an older one: unmoor.integrations.accelerate.latest finds it.",
            path=place,
        )
