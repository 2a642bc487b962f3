"""The verbs that look and change nothing: is a checkpoint whole, and how do two differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .api_files import BUFFER_BYTES, READERS, PathLike

if TYPE_CHECKING:
    from .values.catalog import Catalog
    from .values.difference import Difference
    from .values.machine import Machine
    from .values.verification import Verification

__all__ = ["diff", "doctor", "page", "verify"]


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

    return verify_path(path, buffer_bytes=BUFFER_BYTES, threads=READERS, progress=progress)


def page(source: PathLike | Catalog, target: PathLike | None = None) -> str:
    """Show a checkpoint as one page of HTML: a treemap by bytes, a table of tensors to search, the findings.

    The page needs nothing else: no network, no file beside it, and its own policy lets it load none. Names out of the
    file are shown, never obeyed. It takes plotly: pip install "unmoor[pictures]".

    source: anything that `describe` reads, or the catalog that it gave.
    target: where to write the page, replacing an older page there at once or not at all; None writes nothing.

    Returns the text of the page, which a notebook shows with IPython's HTML.

    Raises UsageError where something that is no page stands at `target`, so that no checkpoint is ever overwritten;
    MachineError where plotly is missing; SaveError if the disk fails; FileError as `describe` does.

    >>> unmoor.page("run/step_1000.pt", "step_1000.html")  # doctest: +SKIP
    """
    from .wiring.paging import make_page

    return make_page(source, target)


def diff(
    a: PathLike,
    b: PathLike,
    *,
    only: str | Sequence[str] | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    structure: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Difference:
    """Say how two checkpoints differ: names, shapes, dtypes, hyper-parameters, and how far every tensor is apart.

    Across formats, dialects and prefixes: a file against a folder, safetensors against a part of a training checkpoint,
    names with `module.` against names without, optimizer state by number against state by name where the order is
    proved, pickled objects by the state dicts that they would give where the other side has such; weights that are tied
    in one are the ones that safetensors keeps. What nothing proves is listed on its own side. Runs nothing of either
    file; of each tensor a small piece is in memory at a time, whatever its size.

    a, b: anything that `describe` reads.
    only: what to compare: role words (model, optimizer, ...) or key paths; "model=ema" compares the one of a with the
        other of b.
    atol, rtol: tensors count as equal where |a - b| <= atol + rtol * |b| for every element, in torch.isclose's sense;
        also where the dtypes differ.
    structure: compare names, shapes, dtypes and plain values alone; no tensor data is read.
    progress: called with the number of bytes read of both since its last call, from any thread.

    Elements are told apart by their bits, so NaN is equal to the same NaN and 0.0 is not -0.0; of two dtypes by their
    value in float64. A device tag or a prefix alone is told and is no difference. Data that differs and does not match
    its own checksum is named as damaged, where little differs.

    Raises FileError for a file at fault, UsageError for an `only` that chooses nothing.

    >>> unmoor.diff("run/step_1000.pt", "run/step_2000.pt").equal  # doctest: +SKIP
    False
    """
    from .wiring.differing import diff_paths

    return diff_paths(
        a,
        b,
        only=only,
        atol=atol,
        rtol=rtol,
        structure=structure,
        buffer_bytes=BUFFER_BYTES,
        threads=READERS,
        progress=progress,
    )


def doctor(path: PathLike | None = None) -> Machine:
    """Say what this machine is to a training run: devices, torch, ranks, what model_device="auto" chooses and why.

    path: a checkpoint; then also whether its devices are here, and the calls that load it.

    Changes nothing and never raises for what it finds: a torch that is missing or cannot be imported, a build without
    CUDA on a machine with an NVIDIA driver, hidden or renumbered devices, a device that does not answer, a rank without
    one are `findings`, each with a stable code and what to do. Asking a CUDA device for its memory starts it.

    Raises FileError for a `path` that is no checkpoint.

    >>> print(unmoor.doctor("run/step_1000.pt"))  # doctest: +SKIP
    """
    from .wiring.doctoring import examine

    return examine(path)
