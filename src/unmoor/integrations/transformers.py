"""Hugging Face's Trainer: checkpoints that are on the disk, sealed, and only taken where they are whole."""

from __future__ import annotations

from typing import Any, Final

from unmoor.api_files import PathLike
from unmoor.filing import path_text
from unmoor.places import is_folder, join, name_of, remove

from .libraries import library
from .resuming import latest_sealed, numbered, sealed, told
from .sealing import is_sealed

__all__ = ["UnmoorCallback", "latest"]

_WHY: Final = "UnmoorCallback"
_PREFIX: Final = "checkpoint-"
_Base: Any = library("transformers", install="transformers", why=_WHY).TrainerCallback


def latest(output_dir: PathLike) -> str | None:
    """What to give `resume_from_checkpoint`: the newest checkpoint of the Trainer that holds; None for a fresh start.

    A checkpoint with a seal is held against it, byte by byte. One without is passed over where an older one has a seal,
    since its save was killed; where none has, it is taken if it is complete and its own checksums hold. What is passed
    over is a warning that says why.

    >>> trainer.train(resume_from_checkpoint=latest("output"))  # doctest: +SKIP
    """
    return latest_sealed(path_text(output_dir), _PREFIX)


class UnmoorCallback(_Base):  # type: ignore[misc]
    """Brings each checkpoint of the Trainer to the disk, verifies and seals it.

    The Trainer writes a folder file by file, and takes it for its last checkpoint from the first file on. The seal, a
    list `unmoor.sha256` of all files and their checksums, is written when all of them are on the disk; `latest` takes
    nothing else. `sha256sum -c unmoor.sha256` checks it too.

    `save_total_limit` is kept by the callback: the Trainer deletes older checkpoints before the new one is on the disk,
    the callback after. The newest and the best always stay. A checkpoint that cannot be sealed is a warning, and
    nothing is deleted.

    >>> trainer = Trainer(..., callbacks=[UnmoorCallback()])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._limit: int | None = None

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        """Take over what deletes older checkpoints."""
        self._limit, args.save_total_limit = args.save_total_limit, None

    def on_train_end(self, args: Any, *_: Any, **__: Any) -> None:
        """Give it back."""
        args.save_total_limit = self._limit

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Seal what the Trainer has written, once all ranks have written theirs, and delete what is too old."""
        library("accelerate", install="accelerate", why=_WHY).PartialState().wait_for_everyone()
        folder = join(args.output_dir, f"{_PREFIX}{state.global_step}")
        if not args.should_save:
            return
        if not is_folder(folder):
            told(f"{folder} is not sealed: the Trainer has saved to another place")
        elif sealed(folder):
            self._delete(args.output_dir, state)

    def _delete(self, output_dir: str, state: Any) -> None:
        if not self._limit or self._limit < 1:
            return
        older = [row for number, row in numbered(output_dir, _PREFIX) if number < state.global_step]
        kept = {name_of(path_text(state.best_model_checkpoint))} if state.best_model_checkpoint else set()
        for row in older:
            if len(kept) < self._limit - 1 and is_sealed(row.path):
                kept.add(row.name)
            elif row.name not in kept:
                remove(row.path)
