"""The verbs of a run. Wires the stages together and decides nothing: describe -> plan -> execute -> report.

The signature and the documentation of each, and little else; those that no live object takes part in are in api_files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .api_files import BUFFER_BYTES, READERS, THREADS, PathLike, Verify
from .errors import UsageError
from .filing import path_text

if TYPE_CHECKING:
    import torch

    from .live.content import Content
    from .live.snapshots import Snapshot
    from .plan.policy import Rename
    from .values.catalog import Catalog
    from .values.plan import Plan
    from .values.report import Receipt, Report
    from .wiring.pending import Pending
    from .wiring.restoring import Asked

__all__ = [
    "describe",
    "device_fallback",
    "plan",
    "restore",
    "save",
    "snapshot",
]

TIMEOUT: Final = 300.0
"""How long ranks wait for each other, in seconds."""


def describe(path: PathLike) -> Catalog:
    """Tell what a checkpoint holds and on which devices, without running anything in it and without torch.

    Reads a torch zip, a legacy torch stream or tar, a TorchScript archive or safetensors, whatever the file is called.
    A folder may be one checkpoint: of torch.distributed.checkpoint, DeepSpeed, accelerate, the HF Trainer,
    guided-diffusion or hippynn, one checkpoint alone, or files whose contents go together; an index of a state dict in
    several files stands for them all. Reads no tensor data. The catalog prints itself; `to_json()` is for programs.

    Raises NotACheckpoint for anything else (text, a web page, a folder of several checkpoints, listed), CorruptFile
    for a damaged file, HostileFile for one that asks for more memory, time or depth than any checkpoint needs.

    >>> unmoor.describe("run/step_1000.pt").devices()  # doctest: +SKIP
    {'cuda:7': (390, 4718592), 'cpu': (127, 508)}
    """
    from .describe import describe_path

    return describe_path(path)


def device_fallback() -> torch.device:
    """The device that `model_device="auto"` means: this process's own accelerator, else the CPU.

    Under torchrun that is the device of the local rank, where the program has set no other as the current one. Raises
    DeviceError where there are more local ranks than devices.
    """
    from .live.devices import device_fallback as fallback

    return fallback()


def save(
    path: PathLike,
    tree: Any = ...,
    /,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loss: Any = None,
    metrics: Any = None,
    ema: Any = None,
    loader: Any = None,
    rng: bool | Mapping[str, Any] = True,
    group: Any = "world",
    timeout: float = TIMEOUT,
    background: bool | str = False,
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    **extra: Any,
) -> Receipt | Pending:
    """Write a checkpoint, all of it or none of it; under torch.distributed all ranks call it together.

    It is one file that plain torch.load opens with its safe default. Where ranks hold parts of tensors (FSDP, DTensor)
    it is a folder of torch.distributed.checkpoint.

    path: where the file goes. An older file there is replaced only once the new one is complete and on the disk. A name
        that ends in .safetensors makes it such a file, which holds the tensors of one model or of a flat mapping.
    tree: a tree of tensors and plain values, as for torch.save, or a snapshot; then no keyword of a role may be given.
    model, optimizer, scheduler, scaler, loss, metrics, ema, loader: the live objects, each one object or a dict or
        list of them. Objects under any other keyword are saved if they have state_dict, plain values as they are.
    rng: True saves every random number stream of the process; False none; a dict adds generators of your own
        (torch.Generator, numpy Generator, random.Random) by name.
    group: the ranks that save together: "world" (all of them, or this process alone where torch.distributed is not
        initialised), a ProcessGroup, or None for this process alone.
    timeout: seconds that ranks wait for one that gives no sign of life.
    background: True returns once the state is copied to the CPU, and it is written while the run goes on. The result is
        then no Receipt but a handle: done(), wait() -> Receipt, skipped, print. If an earlier save is still being
        written, "wait" (True) waits for it first, "refuse" is an error, and "skip" writes nothing and says so: on all
        ranks, if it is so on any. A restore waits. What a save failed with is raised by the next call. The memory of
        the copies, as large as the largest such save of the run, is used again and goes when the first of the objects
        passed goes; that of a tree goes once it is written. Wait before the process group is destroyed.
    buffer_bytes: memory to use beside the live state, in bytes.
    progress: called with the number of bytes written since its last call, by the thread that writes.

    Gradients are no part of a checkpoint: after an optimizer's step they are of no use. To save in the middle of an
    accumulation, pass them too: gradients=unmoor.gradients(model).

    Raises UsageError, before anything is written, for values that could not be read back without running code;
    SaveError if the disk fails, with the older file intact; RankError and RanksDiffer where ranks do not come together,
    and on every rank an error of the class that one of them met.

    >>> unmoor.save("run/step_1000.pt", model=model, optimizer=optimizer, step=1000)  # doctest: +SKIP
    """
    from .live.content import plain_tree
    from .live.snapshots import Snapshot
    from .wiring.saving_call import save_path

    roles = _given(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        loss=loss,
        metrics=metrics,
        ema=ema,
        loader=loader,
    )

    def collect() -> Content:
        if tree is ...:
            return _content(roles, extra, rng=rng)
        if roles or extra:
            raise UsageError(
                f"save was given a tree and {', '.join([*roles, *extra])} by keyword",
                remedy="Pass either a tree, as to torch.save, or the objects of the run by keyword.",
            )
        return tree.content if isinstance(tree, Snapshot) else plain_tree(tree)

    return save_path(
        path,
        {**roles, **_objects(extra)},
        collect,
        group=group,
        timeout=timeout,
        background=background,
        buffer_bytes=buffer_bytes,
        threads=THREADS,
        progress=progress,
    )


def snapshot(
    *, rng: bool | Mapping[str, Any] = True, group: Any = "world", timeout: float = TIMEOUT, **objects: Any
) -> Snapshot:
    """Copy a run to the CPU as it is now, to save it later; under torch.distributed all ranks call it together.

    A state_dict() refers to the live tensors and changes with them; a snapshot does not: the best model so far,
    whatever training does after. It holds what `save(path, ...)` with the same keywords would write now, and
    `save(path, snapshot)` writes it. Device tags in that file are "cpu". Each rank copies what it holds.

    Takes the keywords of save, and raises UsageError for what save refuses, RankError and RanksDiffer as save does.

    >>> best = unmoor.snapshot(model=model, optimizer=optimizer, epoch=7)  # doctest: +SKIP
    >>> unmoor.save("run/best.pt", best)  # doctest: +SKIP
    """
    from .wiring.saving_call import take_snapshot

    roles = {key: value for key, value in objects.items() if key in _ROLES and value is not None}
    extra = {key: value for key, value in objects.items() if key not in _ROLES}
    return take_snapshot(
        {**roles, **_objects(extra)}, lambda: _content(roles, extra, rng=rng), group=group, timeout=timeout
    )


def _content(roles: Mapping[str, Any], extra: Mapping[str, Any], *, rng: bool | Mapping[str, Any]) -> Content:
    from .live.content import collect

    objects = _objects(extra)
    values = {key: value for key, value in extra.items() if key not in objects}
    generators = rng if isinstance(rng, Mapping) else {}
    return collect({**roles, **objects}, values, rng=rng is not False, generators=generators)


def _objects(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What has a state of its own among the keywords that are no role."""
    return {key: value for key, value in extra.items() if callable(getattr(value, "state_dict", None))}


def plan(path: PathLike, **arguments: Any) -> Plan:
    """Say what `restore` with the same arguments would do on this rank, and touch nothing. Meets no other rank.

    Takes what restore takes. Raises what restore raises before it changes anything.
    """
    import inspect

    from .wiring.restoring import prepare

    bound = inspect.signature(restore).bind(path, **arguments)
    bound.apply_defaults()
    return prepare(path_text(path), _asked(bound.arguments))[0]


def restore(
    path: PathLike,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loss: Any = None,
    metrics: Any = None,
    ema: Any = None,
    loader: Any = None,
    rng: bool | str | Mapping[str, Any] = True,
    model_device: Any = None,
    map_location: Any = None,
    missing: str = "error",
    unexpected: str = "error",
    mismatched: str = "error",
    hyperparameters: str = "saved",
    cast: str = "exact",
    order: str = "proved",
    position: str = "exact",
    rename: Rename = None,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    at: Mapping[str, Any] | None = None,
    verify: Verify = "stream",
    group: Any = "world",
    timeout: float = TIMEOUT,
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    **objects: Any,
) -> Report:
    """Put a saved run back into live objects, wherever they are; under torch.distributed all ranks call it together.

    Tensor data streams from the file into the live tensors through one buffer; checksums are verified on the way. All
    that can be known beforehand is checked before anything changes. The report says what was restored, moved, renamed,
    cast, and NOT restored; the file's plain values are in `report.extra`.

    path: a checkpoint of unmoor.save, torch.save or a program built on it: a file, or a folder that is one.
    model, optimizer, scheduler, scaler, loss, metrics, ema, loader: the live objects, each one object or a dict or
        list of them; also under any other keyword. What is not passed is left alone and named in the report.
    rng: True restores every stream that file and process both have; False none; "exact" demands that both have the
        same ones; a dict adds generators of your own by the names they were saved under: all of these must be in the
        file. In a file of others a name is the key of the state; at={"rng[name]": ...} says where else it stands.
    model_device: where model, loss and EMA are moved first: None (they stay), "auto" (this process's own accelerator
        if there is one, else the CPU), an index, a tag or a torch.device. Optimizer state goes where its parameter is.
        A model on the meta device is made there, its parameters the same objects as before.
    map_location: as for torch.load, for tensors among the plain values; everything else goes where the live objects
        are. Not together with model_device.
    missing: "error" or "fresh": a live tensor, or the optimizer state of one, that the file lacks. unexpected: "error"
        or "ignore": a saved one that nothing takes. mismatched: "error" or "fresh": one whose shape differs.
    hyperparameters: "saved" or "live": whose learning rate and other options win, of optimizers and of schedulers: a
        live schedule is walked to the step at which the file stands. Execution flags (fused, foreach, capturable,
        differentiable, maximize) are always the live optimizer's.
    cast: "exact" lets only dtype changes through that keep every value; "any" also those that round. Optimizer state
        that had its parameter's dtype follows it to the live one; other state keeps the dtype it was saved in.
    order: "proved", "live" or "file": how optimizer state without names finds its parameters. Where nothing proves
        the order, the report holds a finding `order-not-proved`.
    position: "exact" lets a loader go on at the sample of the saved epoch at which all ranks together stood, in a world
        of any size, and is an error where that is not known; "epoch" begins that epoch again; "saved" hands each rank
        the state that was saved for it, and new ranks that of rank 0.
    rename: saved names to live names, of models and of optimizers: a dict of prefixes or of patterns with *
        ({"*.attn.*": "*.attention.*"}), or a callable. Two names that become one are an error.
    only, skip: patterns with *, one or a list, over the live names: what is restored, and what is left alone, with its
        optimizer state. `encoder.*` speaks of the one module that has such names, `model[gen].encoder.*` of the one
        with that label, `optimizer.encoder.*` of that optimizer's state alone. A pattern that chooses nothing, or that
        could be meant in two ways, is an error. Schedulers, scalers and random streams have no names: leave them out
        by not passing them (rng=False).
    at: where in the file a role stands, if it cannot be told: {"model": "ema.model"}.
    verify: "stream" checks each checksum as the data arrives; "first" reads and checks all data before anything
        changes, of several ranks each its share; "none" checks nothing.
    group: the ranks that restore together: "world" (all of them, or this process alone where torch.distributed is not
        initialised), a ProcessGroup, or None for this process alone. No tensor passes between them: each reads what it
        holds. They agree that all call restore with the same arguments and see one checkpoint.
    timeout: seconds that ranks wait for one that gives no sign of life.
    buffer_bytes: memory to use beside the live state, in bytes. progress: called with bytes done since its last call.

    An error on one rank stops all of them, before anything changed on any wherever it could be known by then: the
    others raise an error of the same class that says on which ranks what failed. RankError names ranks that did not
    come or were lost, RanksDiffer those that called something else.

    Raises ArgumentConflict (a TypeError) before a byte is read; FileError for a file at fault; KindError,
    MismatchError, AmbiguousError or DeviceError where file and run do not fit, with nothing changed; CorruptFile for a
    checksum that fails on the way, saying what was overwritten.

    >>> report = unmoor.restore("run/step_1000.pt", model=model, optimizer=optimizer)  # doctest: +SKIP
    >>> report.extra["step"]  # doctest: +SKIP
    1000
    """
    from .wiring.restoring import restore_path

    return restore_path(
        path_text(path),
        _asked(locals()),
        group=group,
        timeout=timeout,
        verify=verify,
        buffer_bytes=buffer_bytes,
        threads=READERS,
        progress=progress,
    )


def _asked(arguments: Mapping[str, Any]) -> Asked:
    """The arguments of restore, sorted; a plain value where an object is due is a UsageError."""
    from .plan.policy import CHOICES
    from .wiring.restoring import Asked

    roles = {role: arguments[role] for role in _ROLES if arguments[role] is not None}
    modes = {mode: arguments[mode] for mode in CHOICES}
    return Asked(
        roles={**roles, **{k: v for k, v in arguments["objects"].items() if v is not None}},
        rng=arguments["rng"],
        model_device=arguments["model_device"],
        map_location=arguments["map_location"],
        modes=modes,
        rename=arguments["rename"],
        only=arguments["only"],
        skip=arguments["skip"],
        at=arguments["at"] or {},
    )


_ROLES: Final = ("model", "optimizer", "scheduler", "scaler", "loss", "metrics", "ema", "loader")


def _given(**roles: Any) -> dict[str, Any]:
    return {role: value for role, value in roles.items() if value is not None}
