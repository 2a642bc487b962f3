"""The verbs of a folder of checkpoints: which are there, and which is the newest that can be resumed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .api_files import BUFFER_BYTES, READERS, PathLike

if TYPE_CHECKING:
    from .values.listing import Listing, Saved

__all__ = ["latest", "runs"]


def runs(folder: PathLike, *, verify: bool = False, progress: Callable[[int], None] | None = None) -> Listing:
    """List the checkpoints of a folder, the newest first: step, metrics, size, verified or not, whole or not and why.

    Of unmoor.Run, and of every program whose checkpoints `restore` reads: Lightning, the HF Trainer, accelerate,
    DeepSpeed, torchtitan, torch.distributed.checkpoint, Megatron, guided-diffusion, hippynn, plain files. Looks at
    names, ends and heads of files; reads no tensor data, runs nothing, follows no link out of the folder, needs no
    PyTorch.

    folder: where checkpoints lie; or the folder of a run with a folder `checkpoints` in it, or one checkpoint.
    verify: read all of every checkpoint that is complete and hold it against its checksums, as `unmoor.verify` does.
    progress: called with the number of bytes verified since its last call, from any thread.

    A step is the one that the checkpoint itself tells, else that of its name. What was cut short, half copied, is
    temporary or cannot be read is a row with `complete=False` and `why`. A file or link that says which is the newest
    is a hint: nothing is taken because of it, and `notes` say where it is wrong.

    Raises NotACheckpoint where there is no such folder, OSError where it cannot be listed.

    >>> for row in unmoor.runs("runs/exp1"):  # doctest: +SKIP
    ...     print(row.name, row.step, row.metrics, row.verified)
    """
    from .wiring.listing import run_listing

    return run_listing(folder, verify=verify, buffer_bytes=BUFFER_BYTES, threads=READERS, progress=progress)


def latest(folder: PathLike, *, verify: bool = False, progress: Callable[[int], None] | None = None) -> Saved:
    """Find the newest checkpoint of a folder that can be resumed from; `unmoor.restore` takes what it gives.

    folder: as for `unmoor.runs`.
    verify: read all of it and hold it against its checksums; where that fails, fall back to the one before it.
    progress: called with the number of bytes verified since its last call, from any thread.

    Newer ones that are broken are passed over: `passed` says which and why.

    Raises NotACheckpoint, naming what is there, where none can be resumed from.

    >>> unmoor.restore(unmoor.latest("runs/exp1", verify=True), model=model)  # doctest: +SKIP
    """
    from .wiring.listing import latest_of

    return latest_of(folder, verify=verify, buffer_bytes=BUFFER_BYTES, threads=READERS, progress=progress)
