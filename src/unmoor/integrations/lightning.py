"""Lightning's Trainer saves and loads through unmoor: `Trainer(plugins=[UnmoorCheckpointIO()])`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unmoor.api import save
from unmoor.api_files import PathLike, load
from unmoor.errors import ArgumentConflict, MachineError, TrustError
from unmoor.filing import path_text
from unmoor.places import exists, make_folder, parent, remove
from unmoor.values.nodes import Opaque

from .libraries import modules_there
from .resuming import latest

__all__ = ["UnmoorCheckpointIO", "latest"]

_FAMILIES: Final = ("lightning.fabric.plugins", "lightning_fabric.plugins")
"""Where `lightning.pytorch` and `pytorch_lightning` have their CheckpointIO: two classes of one name."""

_EVERYTHING: Final = "everything in this file"


class UnmoorCheckpointIO:
    """A CheckpointIO for the Trainer of `lightning.pytorch` or `pytorch_lightning`.

    A checkpoint appears complete or not at all, is on the disk before Lightning deletes an older one, and is verified,
    every byte, before a load changes anything. Plain torch.load opens it. Paths may be URLs.

    It is for strategies that write one file: one device, DDP. It may stand within Lightning's AsyncCheckpointIO.

    Raises MachineError where Lightning is not installed.

    >>> trainer = Trainer(plugins=[UnmoorCheckpointIO()])  # doctest: +SKIP
    >>> trainer.fit(module, ckpt_path=latest("checkpoints"))  # doctest: +SKIP
    """

    def __init__(self) -> None:
        families = modules_there(*_FAMILIES)
        if not families:
            raise MachineError(
                "UnmoorCheckpointIO is for Lightning's Trainer, which is not installed here",
                remedy="pip install lightning",
            )
        for family in families:
            family.CheckpointIO.register(type(self))

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: PathLike, storage_options: Any = None) -> None:
        """Write what Lightning has gathered, all of it or none of it; an older file there is replaced at the end.

        Raises UsageError for what could not be read back without running code, such as an object that is a
        hyperparameter: `save_hyperparameters(ignore=[...])` leaves it out. SaveError if the disk fails, with the older
        file intact.
        """
        if storage_options is not None:
            raise ArgumentConflict("storage_options= means nothing to UnmoorCheckpointIO", remedy="Leave it out.")
        place = path_text(path)
        if parent(place):
            make_folder(parent(place))
        save(place, dict(checkpoint), group=None)

    def load_checkpoint(self, path: PathLike, map_location: Any = None, weights_only: Any = None) -> Any:
        """Read a checkpoint, of unmoor or of Lightning's own, after every byte of it was verified.

        map_location: as for torch.load; None puts all on the CPU, as Lightning's own plugin does.
        weights_only: False builds the classes that the file names, as torch.load does; else they are refused.

        Raises TrustError for a file that needs that; FileNotFoundError where nothing is there; FileError for one that
        is broken.
        """
        place, trust = path_text(path), _EVERYTHING if weights_only is False else None
        if not exists(place):
            raise FileNotFoundError(f"there is no checkpoint {place}")
        tree = load(place, map_location="cpu" if map_location is None else map_location, verify="first", trust=trust)
        found = next(_objects(tree, "checkpoint"), None)
        if found is not None:
            raise TrustError(
                f"{place} holds an object that only its own code can build: {found}",
                remedy="If you trust whoever wrote the file: trainer.fit(..., weights_only=False).",
                path=place,
            )
        return tree

    def remove_checkpoint(self, path: PathLike) -> None:
        """Remove a file or a folder; what is gone already is well."""
        remove(path_text(path))

    def teardown(self) -> None:
        """Nothing is left open."""


def _objects(tree: Any, at: str) -> Iterator[str]:
    """Where a tree holds an object that was not built."""
    if isinstance(tree, Opaque):
        yield at
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _objects(value, f"{at}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _objects(value, f"{at}[{number}]")
