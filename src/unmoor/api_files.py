"""The verbs of files: from one form to another, or into memory, without live objects and without other ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from .errors import ArgumentConflict

if TYPE_CHECKING:
    from .values.conversion import Conversion
    from .values.relocation import Relocation
    from .values.report import Receipt

__all__ = [
    "BUFFER_BYTES",
    "READERS",
    "THREADS",
    "PathLike",
    "Verify",
    "convert",
    "load",
    "relocate",
    "repartition",
    "undo_relocate",
]

BUFFER_BYTES: Final = 32 << 20
"""How much memory a save or restore may use beside the live state, in bytes."""

_CPUS: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
"""The CPUs that this process may run on."""

THREADS: Final = min(4, max(2, _CPUS))
"""How many threads write a file, of which a system lets one in at a time; what they do beside that goes on at once."""

READERS: Final = min(8, max(2, _CPUS))
"""How many threads read: each copies out of the page cache, and sums, by itself."""

PathLike = str | os.PathLike[str]
Verify = Literal["stream", "first", "none"]


def load(
    path: PathLike,
    map_location: Any = None,
    *,
    model_device: Any = None,
    trust: Any = None,
    verify: Verify = "stream",
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    **torch_load: Any,
) -> Any:
    """Give the tree that torch.load would, with every tensor where its role belongs, and run nothing from the file.

    Objects that would need code to exist come back as inert, printable `Opaque` values; the tensors in them load.
    Random number states are on the CPU whatever is asked. No global state is changed; no tensor looks into the file.

    path: a checkpoint of torch.save, of unmoor.save, safetensors, or a folder that is one checkpoint: the tree then
        holds the tree of each of its files under the file's name.
    model_device: None (as stored), "auto" (this process's own accelerator, else the CPU), an index, a tag or a
        torch.device: models go there, optimizer state beside its parameters, metrics and schedulers to the CPU.
    map_location: as for torch.load: a device, a dict of tags, or a callable. Not together with model_device.
    trust: the classes that may be built by code, as a list of classes or "module.name" strings, or the literal
        "everything in this file". Functions such as eval and os.system are refused even then.
    verify: "stream", "first" or "none", as for restore. buffer_bytes: memory to use beside the tree, in bytes.
    progress: called with the number of bytes read since its last call.
    torch_load: arguments of torch.load that ask for what always holds here are taken, the others refused by name.

    Raises ArgumentConflict (a TypeError) before a byte is read; DeviceError for stored devices that this machine
    lacks, naming the call that works; UnsupportedFile for tensors that were saved on the meta device and have no data,
    unless model_device or map_location asks for that; FileError for a file at fault.

    >>> tree = unmoor.load("theirs.pt", model_device="auto")  # doctest: +SKIP
    """
    from .wiring.checking import check_buffer, check_verify
    from .wiring.loading import load_tree
    from .wiring.restoring import check_devices

    check_devices(model_device, map_location)
    check_buffer(buffer_bytes)
    _check_torch_arguments(torch_load)
    check_verify(verify)
    return load_tree(
        path,
        model_device=model_device,
        map_location=map_location,
        trust=trust,
        verify=verify,
        buffer_bytes=buffer_bytes,
        threads=READERS,
        progress=progress,
    )


def convert(
    source: PathLike,
    target: PathLike,
    *,
    format: str | None = None,  # noqa: A002 - the word of Catalog.format
    layout: Literal["same", "plain"] = "same",
    only: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    strip: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    add: str | None = None,
    dtype: str | Mapping[str, str] | None = None,
    storage: Literal["shared", "compact"] = "shared",
    opaque: Literal["refuse", "drop"] = "refuse",
    max_shard_size: int | str | None = None,
    salvage: bool = False,
    keep_damaged: bool = False,
    verify: Verify = "stream",
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    total: Callable[[int], None] | None = None,
) -> Conversion:
    """Write a checkpoint in another format, layout, dtype or under other names, streaming: no tensor is ever in memory.

    The target appears at once when it is complete and on the disk, or not at all; an older one is replaced then, and
    untouched by a failure. Nothing in the source is run. No other rank is met: call it in one process.

    source: anything that `describe` reads: a file of torch or safetensors, a folder of torch.distributed.checkpoint, an
        index of several files, a folder of several, what any known program wrote.
    target: where it goes. A name that ends in .safetensors is such a file; .pt, .pth, .ckpt, .bin, .tar or .pkl a
        file that torch.load opens with its safe default; any other name a folder of torch.distributed.checkpoint.
    format: "torch", "legacy" (the stream of before torch 1.6), "safetensors" or "dcp", where the name does not say it.
    layout: "same", or "plain": one dict with the state of each role under its word, as `save` lays out a run, whoever
        wrote the source; all other values keep their keys. Plain torch.load and load_state_dict take it.
    only: what to take, by role word (model, optimizer, ...) or key path with dots ("ema.model"). A single word that
        chooses one part makes it the root of the target, as rank 0 had it; a list keeps the places in the tree, and
        what each rank has there of its own.
    drop: what to leave out, in the same words.
    strip: a prefix of names to take out, or several; every name of a state dict must begin with it. "auto" takes out
        the segments of wrappers that the names prove to be such (docs/commands.md says how), and no others.
    rename: old prefix -> new prefix, or patterns with `*` on both sides, or a function of a name; after `strip`.
    add: a prefix to put before every name; after `rename`. All three hold for models, averages, and the names that
        optimizers hold, alike.
    dtype: what floating tensors of models and their averages become, or a dict of dtypes by role or key path. Numbers
        are rounded as Tensor.to does it. Counters of optimizers keep theirs.
    storage: "shared" keeps what shares memory together; "compact" writes views that keep a large storage on one of
        their own size. Tensors that have elements in common stay together.
    opaque: objects that plain values can stand for become those (a Namespace a dict, a numpy array a tensor, a path a
        str, ...); of what is left, "refuse" lists all in an error, "drop" leaves it out and says so.
    max_shard_size: bytes, or text such as "5GB": the target is then a folder of safetensors files of at most that size
        and model.safetensors.index.json, as the hub of Hugging Face has it.
    salvage: rescue what is whole of a damaged source: cut short, without its directory, with wrong checksums, with a
        shard missing. What is lost is left out and listed by name in `Conversion.salvage`.
    keep_damaged: with salvage, write data whose checksum does not hold too, as it is, and say so.
    verify: "stream" checks the source's checksums as data is written where that is possible, else before; "first" all
        of them before anything is written; "none" none.
    buffer_bytes: memory to use, in bytes; a folder takes as much again as one box of a tensor, at most 32 MiB.
    progress: called with the number of bytes written since its last call. total: called once with how many there are.

    A folder keeps each tensor for any number of ranks; device tags and strides are not kept there, and views of one
    storage that are not the same tensor come back apart. safetensors keeps the tensors of one flat mapping. What
    differs from the source is in the `Conversion` that it returns.

    Raises FileError for a source at fault, UnsupportedFile listing what would need code to exist, MismatchError listing
    names that cannot be changed as asked, UsageError listing what the target's format cannot hold, SaveError if the
    disk fails.

    >>> unmoor.convert("theirs.pt", "run/step_1000")  # doctest: +SKIP
    >>> unmoor.convert("run/step_1000", "model.safetensors", only="model", strip="auto", dtype="bfloat16")
    ... # doctest: +SKIP
    >>> unmoor.convert("last.ckpt", "plain.pt", layout="plain", opaque="drop")  # doctest: +SKIP
    """
    from .wiring.checking import check_buffer
    from .wiring.converting import Wish, convert_path

    check_buffer(buffer_bytes)
    wish = Wish(
        format, layout, only, drop, strip, rename, add, dtype, storage, opaque, max_shard_size, salvage, keep_damaged
    )
    return convert_path(
        source,
        target,
        wish,
        verify=verify,
        buffer_bytes=buffer_bytes,
        threads=THREADS,
        progress=progress,
        total=total,
    )


def repartition(
    source: PathLike,
    target: PathLike,
    *,
    ranks: int,
    verify: Verify = "stream",
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Receipt:
    """Write a DeepSpeed checkpoint as another number of ranks would have saved it, so that DeepSpeed loads it there.

    Purely local: one process does it, without torch.distributed, DeepSpeed or the model. Master weights and optimizer
    state are cut anew, element by element as they are; all else is carried as it stands, objects of DeepSpeed's own
    among it, which are neither imported nor run. The target appears at once when it is complete and on the disk.

    source: a folder that DeepSpeed's save_checkpoint wrote, of any ZeRO stage: with `latest`, or that of one step.
    target: the new folder, a directory for load_checkpoint. One that this function made may be replaced.
    ranks: how many data parallel ranks will load it.
    verify: every checksum of the source is held against its data before anything is written; "none" checks nothing.
    buffer_bytes: memory to use, in bytes; no tensor is ever whole in memory.
    progress: called with the number of bytes written since its last call.

    Learning rates, schedules and counters stay as they are: to go on as before, keep the global batch, that is batch
    per rank x accumulation x ranks. The run must be configured as the saved one, but for the number of ranks.

    Raises FileError for a source at fault; UnsupportedFile for models that tensor, pipeline or expert parallelism cut,
    and for shares that are laid out in a way that is not known; SaveError if the disk fails.

    >>> unmoor.repartition("run", "run_on_8", ranks=8)  # doctest: +SKIP
    """
    from .wiring.checking import check_buffer
    from .wiring.repartitioning import repartition_zero

    check_buffer(buffer_bytes)
    return repartition_zero(
        source,
        target,
        ranks=ranks,
        verify=verify,
        buffer_bytes=buffer_bytes,
        threads=THREADS,
        progress=progress,
    )


def relocate(
    path: PathLike,
    *,
    to: str | None = None,
    map_location: Mapping[str, str] | None = None,
    output: PathLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Relocation:
    """Change on which devices a checkpoint says its tensors are, for a plain torch.load that is not yours to change.

    Takes milliseconds at any size and needs no PyTorch. A zip of torch gets new records behind its end, and not a byte
    of it is written over: at every moment, also where the process is killed, the file opens as the old one or as the
    new one (Python's zipfile alone, which wants a directory right before its end, may refuse it until the next
    relocation or undo). Streams and tars of before torch 1.6 are written anew and appear whole. Of a folder all files
    are ready and checked before the first is changed.

    path: a file of torch (zip, TorchScript, stream, tar), or a folder of several. safetensors and folders of
        torch.distributed.checkpoint keep no devices: that is told, and nothing is done.
    to: the device of models; all else follows by the role table, as in load(model_device=): optimizer state beside its
        parameters, counters, metrics and schedulers on the CPU.
    map_location: old tag -> new tag, as for torch.load: other tags stay. A type without an index ("cuda") stands for
        every device of it that is not named itself. Each must be in the file. Random number state is on the CPU always.
    output: where to write a relocated copy; the original is left alone.
    progress: called with the number of bytes copied since its last call.

    torch.device objects and texts among your own values are left as they are, and told. Raises ArgumentConflict for
    both `to` and `map_location`; UsageError for a tag that the file has not, or that torch.load can put no data on;
    FileError for a file at fault; UnsupportedFile for tensors that bear their device elsewhere than in a tag;
    SaveError if the disk fails. Nothing is changed then.

    >>> print(unmoor.relocate("run/step_1000.pt", to="cpu"))  # doctest: +SKIP
    >>> unmoor.relocate("run.pt", map_location={"cuda:7": "cuda:0"}, output="here.pt")  # doctest: +SKIP
    """
    from .wiring.relocating import relocate_path

    return relocate_path(path, to=to, map_location=map_location, output=output, progress=progress)


def undo_relocate(path: PathLike) -> Relocation:
    """Take the last relocation of a checkpoint back: each file is cut off where it ended, and is the old file again.

    Several relocations are undone one by one. What an interrupted relocation left behind a file is removed. Files that
    were written anew (streams and tars of before torch 1.6) have no undo; another map brings their tags back.

    Raises UnsupportedFile for a file that was not relocated in place, CorruptFile where what it was is not in it.

    >>> unmoor.undo_relocate("run/step_1000.pt")  # doctest: +SKIP
    """
    from .wiring.relocating import undo_path

    return undo_path(path)


_TORCH_ARGUMENTS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "weights_only": ((True, None), "Nothing from a file runs here unless trust= names its class."),
    "mmap": ((False, None), "Tensors never look into the file: a file that changes would change them."),
    "pickle_module": ((None,), "Files are read by unmoor's own reader, which runs nothing."),
    "encoding": (("utf-8", None), "Python 2 strings are read as UTF-8, with bytes where that fails."),
}
"""Arguments of torch.load -> the values that ask for what holds anyway, and what to do otherwise."""


def _check_torch_arguments(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in _TORCH_ARGUMENTS:
            raise ArgumentConflict(
                f"load has no argument {name!r}",
                remedy="It takes model_device, map_location, trust, verify, buffer_bytes, progress and torch.load's "
                f"{', '.join(_TORCH_ARGUMENTS)}.",
            )
        accepted, why = _TORCH_ARGUMENTS[name]
        if value not in accepted:
            raise ArgumentConflict(f"load cannot do {name}={value!r}", remedy=why)
