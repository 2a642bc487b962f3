"""PyTorch Ignite saves through unmoor: `Checkpoint(to_save, UnmoorSaver("checkpoints"), n_saved=3)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmoor.api import save
from unmoor.api_files import PathLike, load
from unmoor.filing import path_text
from unmoor.places import join, make_folder, remove

from .libraries import library
from .resuming import latest

__all__ = ["UnmoorSaver", "latest", "load_objects"]


def _library() -> Any:
    return library("ignite.handlers", install="pytorch-ignite", why="UnmoorSaver")


class UnmoorSaver:
    """A save handler for Ignite's Checkpoint, in place of DiskSaver.

    A checkpoint appears complete or not at all. Ignite asks for an older one to be deleted before it saves: here that
    is done once the new one is on the disk. Plain torch.load opens it. One rank writes.

    dirname: the folder, or a URL; it is made where it is missing. Checkpoints of an earlier run may be in it.
    save_on_rank: the rank that writes, as for DiskSaver.

    Raises MachineError where Ignite is not installed.

    >>> saver = UnmoorSaver("checkpoints")  # doctest: +SKIP
    >>> handler = Checkpoint({"model": model, "trainer": trainer}, saver, n_saved=3)  # doctest: +SKIP
    >>> trainer.add_event_handler(Events.ITERATION_COMPLETED(every=1000), handler)  # doctest: +SKIP
    """

    def __init__(self, dirname: PathLike, *, save_on_rank: int = 0) -> None:
        _library().checkpoint.BaseSaveHandler.register(type(self))
        self.dirname = path_text(dirname)
        self.save_on_rank = save_on_rank
        self._expendable: list[str] = []

    def __call__(self, checkpoint: Mapping[str, Any], filename: str, metadata: Any = None) -> None:  # noqa: ARG002
        """Write what Ignite has gathered, all of it or none of it; then delete what `remove` was told.

        Raises UsageError for what could not be read back without running code; SaveError if the disk fails.
        """
        if not self._mine():
            return
        make_folder(self.dirname)
        save(join(self.dirname, filename), dict(checkpoint), group=None)
        while self._expendable:
            if (older := self._expendable.pop()) != filename:
                remove(join(self.dirname, older))

    def remove(self, filename: str) -> None:
        """Delete a checkpoint when the next one is saved; what is gone already is well."""
        if self._mine():
            self._expendable.append(filename)

    def _mine(self) -> bool:
        rank: int = library("ignite.distributed", install="pytorch-ignite", why="UnmoorSaver").get_rank()
        return rank == self.save_on_rank


def load_objects(to_load: Mapping[str, Any], path: PathLike) -> None:
    """`Checkpoint.load_objects` of a checkpoint whose every byte was verified before anything changes.

    Raises FileError for a file that is broken, and what Ignite raises where it does not fit.

    >>> if start := latest("checkpoints"):  # doctest: +SKIP
    ...     load_objects({"model": model, "trainer": trainer}, start)
    """
    checkpoint = load(path, map_location="cpu", verify="first")
    _library().Checkpoint.load_objects(to_load, checkpoint)
