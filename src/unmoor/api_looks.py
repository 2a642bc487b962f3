"""The verbs that look and change nothing: is a checkpoint whole, and how do two differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .api_files import BUFFER_BYTES, THREADS, PathLike

if TYPE_CHECKING:
    from .values.difference import Difference
    from .values.verification import Verification

__all__ = ["diff", "verify"]


def verify(path: PathLike, *, progress: Callable[[int], None] | None = None) -> Verification:
    """Hold everything that a checkpoint tells of itself against its bytes, and say all that does not hold.

    Every checksum of every file: tensor data, and the records that are none (pickle, manifest, byte order). Every
    structural fact: spans inside their files, sizes against shapes, boxes that fill their tensors, the two lists of a
    zip, the manifest against the tree. Runs nothing of the file, needs no PyTorch, takes a few MiB of memory.

    path: a file of torch or safetensors, an index, or a folder that is one checkpoint.
    progress: called with the number of bytes read since its last call, from any thread.

    Damage does not raise: it stands in `faults`, each with the tensors on it, its bytes, and both checksums; `ok` tells
    that there is none. A file that is cut short is damaged too. What has no checksum (safetensors, streams of before
    torch 1.6) is counted in `unchecked`.

    Raises NotACheckpoint where the path is none at all, HostileFile and UnsupportedFile as `describe` does.

    >>> unmoor.verify("run/step_1000.pt").ok  # doctest: +SKIP
    True
    """
    from .wiring.verifying import verify_path

    return verify_path(path, buffer_bytes=BUFFER_BYTES, threads=THREADS, progress=progress)
