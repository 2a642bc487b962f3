"""The verbs. Wires the stages together and decides nothing: describe -> plan -> execute -> report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from .errors import ArgumentConflict, UsageError
from .filing import path_text

if TYPE_CHECKING:
    import torch

    from .live.content import Content
    from .live.snapshots import Snapshot
    from .plan.policy import Rename
    from .values.catalog import Catalog
    from .values.plan import Plan
    from .values.report import Receipt, Report
    from .wiring.restoring import Asked

__all__ = [
    "BUFFER_BYTES",
    "describe",
    "device_fallback",
    "load",
    "plan",
    "restore",
    "save",
    "snapshot",
]

BUFFER_BYTES: Final = 32 << 20
"""How much memory a save or restore may use beside the live state, in bytes."""

THREADS: Final = min(4, max(2, os.cpu_count() or 2))

PathLike = str | os.PathLike[str]
Verify = Literal["stream", "first", "none"]


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
    """The device that `model_device="auto"` means here: the current accelerator, else the CPU."""
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
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    **extra: Any,
) -> Receipt:
    """Write a checkpoint: one file, all of it or none of it, that plain torch.load opens with its safe default.

    path: where the file goes. An older file there is replaced only once the new one is complete and on the disk. A name
        that ends in .safetensors makes it such a file, which holds the tensors of one model or of a flat mapping.
    tree: a tree of tensors and plain values, as for torch.save, or a snapshot; then no keyword of a role may be given.
    model, optimizer, scheduler, scaler, loss, metrics, ema, loader: the live objects, each one object or a dict or
        list of them. Objects under any other keyword are saved if they have state_dict, plain values as they are.
    rng: True saves every random number stream of the process; False none; a dict adds generators of your own
        (torch.Generator, numpy Generator, random.Random) by name.
    buffer_bytes: memory to use beside the live state, in bytes.
    progress: called with the number of bytes written since its last call.

    Gradients are no part of a checkpoint: after an optimizer's step they are of no use. To save in the middle of an
    accumulation, pass them too: gradients=unmoor.gradients(model).

    Raises UsageError, before anything is written, for values that could not be read back without running code;
    SaveError if the disk fails, with the older file intact.

    >>> unmoor.save("run/step_1000.pt", model=model, optimizer=optimizer, step=1000)  # doctest: +SKIP
    """
    _check_buffer(buffer_bytes)
    from .live.content import plain_tree
    from .live.snapshots import Snapshot
    from .wiring.saving import write_content

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
    if tree is not ... and (roles or extra):
        raise UsageError(
            f"save was given a tree and {', '.join([*roles, *extra])} by keyword",
            remedy="Pass either a tree, as to torch.save, or the objects of the run by keyword.",
        )
    if isinstance(tree, Snapshot):
        content = tree.content
    else:
        content = _content(roles, extra, rng=rng) if tree is ... else plain_tree(tree)
    return write_content(path, content, buffer_bytes=buffer_bytes, threads=THREADS, progress=progress)


def snapshot(*, rng: bool | Mapping[str, Any] = True, **objects: Any) -> Snapshot:
    """Copy a run to the CPU as it is now, to save it later: the best model so far, whatever training does after.

    A state_dict() refers to the live tensors and changes with them; a snapshot does not. It holds what
    `save(path, ...)` with the same keywords would write now, and `save(path, snapshot)` writes it. Device tags in that
    file are "cpu".

    Takes the keywords of save, and raises UsageError for what save refuses.

    >>> best = unmoor.snapshot(model=model, optimizer=optimizer, epoch=7)  # doctest: +SKIP
    >>> unmoor.save("run/best.pt", best)  # doctest: +SKIP
    """
    from .live.snapshots import take

    roles = {key: value for key, value in objects.items() if key in _ROLES and value is not None}
    return take(_content(roles, {key: value for key, value in objects.items() if key not in _ROLES}, rng=rng))


def _content(roles: Mapping[str, Any], extra: Mapping[str, Any], *, rng: bool | Mapping[str, Any]) -> Content:
    from .live.content import collect

    objects = {key: value for key, value in extra.items() if callable(getattr(value, "state_dict", None))}
    values = {key: value for key, value in extra.items() if key not in objects}
    generators = rng if isinstance(rng, Mapping) else {}
    return collect({**roles, **objects}, values, rng=rng is not False, generators=generators)


def plan(path: PathLike, **arguments: Any) -> Plan:
    """Say what `restore` with the same arguments would do, and touch nothing.

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
    rename: Rename = None,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    at: Mapping[str, Any] | None = None,
    verify: Verify = "stream",
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    **objects: Any,
) -> Report:
    """Put a saved run back into live objects, wherever they are now.

    Tensor data streams from the file into the live tensors through one buffer; checksums are verified on the way. All
    that can be known beforehand is checked before anything changes. The report says what was restored, moved, renamed,
    cast, and NOT restored; the file's plain values are in `report.extra`.

    path: a checkpoint of unmoor.save, torch.save or a program built on it: a file, or a folder that is one.
    model, optimizer, scheduler, scaler, loss, metrics, ema, loader: the live objects, each one object or a dict or
        list of them; also under any other keyword. What is not passed is left alone and named in the report.
    rng: True restores every stream that file and process both have; False none; "exact" demands that both have the
        same ones; a dict adds generators of your own by the names they were saved under: all of these must be in the
        file. In a file of others a name is the key of the state; at={"rng[name]": ...} says where else it stands.
    model_device: where model, loss and EMA are moved first: None (they stay), "auto" (the accelerator if there is
        one, else the CPU), an index, a tag or a torch.device. Optimizer state goes where its parameter is. A model on
        the meta device is made there, its parameters the same objects as before.
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
    rename: saved names to live names, of models and of optimizers: a dict of prefixes or of patterns with *
        ({"*.attn.*": "*.attention.*"}), or a callable. Two names that become one are an error.
    only, skip: patterns with *, one or a list, over the live names: what is restored, and what is left alone, with its
        optimizer state. `encoder.*` speaks of the one module that has such names, `model[gen].encoder.*` of the one
        with that label, `optimizer.encoder.*` of that optimizer's state alone. A pattern that chooses nothing, or that
        could be meant in two ways, is an error. Schedulers, scalers and random streams have no names: leave them out
        by not passing them (rng=False).
    at: where in the file a role stands, if it cannot be told: {"model": "ema.model"}.
    verify: "stream" checks each checksum as the data arrives; "first" reads and checks all data before anything
        changes; "none" checks nothing.
    buffer_bytes: memory to use beside the live state, in bytes. progress: called with bytes done since its last call.

    Raises ArgumentConflict (a TypeError) before a byte is read; FileError for a file at fault; KindError,
    MismatchError, AmbiguousError or DeviceError where file and run do not fit, with nothing changed; CorruptFile for a
    checksum that fails on the way, saying what was overwritten.

    >>> report = unmoor.restore("run/step_1000.pt", model=model, optimizer=optimizer)  # doctest: +SKIP
    >>> report.extra["step"]  # doctest: +SKIP
    1000
    """
    from .wiring.restoring import carry_out, prepare

    _check_buffer(buffer_bytes)
    begin = time.perf_counter()
    made, handles = prepare(path_text(path), _asked(locals()))
    return carry_out(
        made, handles, verify=verify, buffer_bytes=buffer_bytes, threads=THREADS, progress=progress, begin=begin
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
    model_device: None (as stored), "auto" (the accelerator if there is one, else the CPU), an index, a tag or a
        torch.device: models go there, optimizer state beside its parameters, metrics and schedulers to the CPU.
    map_location: as for torch.load: a device, a dict of tags, or a callable. Not together with model_device.
    trust: the classes that may be built by code, as a list of classes or "module.name" strings, or the literal
        "everything in this file". Functions such as eval and os.system are refused even then.
    verify: "stream", "first" or "none", as for restore. buffer_bytes: memory to use beside the tree, in bytes.
    torch_load: arguments of torch.load that ask for what always holds here are taken, the others refused by name.

    Raises ArgumentConflict (a TypeError) before a byte is read; DeviceError for stored devices that this machine
    lacks, naming the call that works; UnsupportedFile for tensors that were saved on the meta device and have no data,
    unless model_device or map_location asks for that; FileError for a file at fault.

    >>> tree = unmoor.load("theirs.pt", model_device="auto")  # doctest: +SKIP
    """
    from .plan.policy import CHOICES
    from .wiring.loading import load_tree
    from .wiring.restoring import check_devices

    check_devices(model_device, map_location)
    _check_buffer(buffer_bytes)
    _check_torch_arguments(torch_load)
    if verify not in CHOICES["verify"]:
        raise UsageError(f"verify={verify!r} is none of {', '.join(map(repr, CHOICES['verify']))}")
    return load_tree(
        path,
        model_device=model_device,
        map_location=map_location,
        trust=trust,
        verify=verify,
        buffer_bytes=buffer_bytes,
        threads=THREADS,
        progress=progress,
    )


_ROLES: Final = ("model", "optimizer", "scheduler", "scaler", "loss", "metrics", "ema", "loader")

_TORCH_ARGUMENTS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "weights_only": ((True, None), "Nothing from a file runs here unless trust= names its class."),
    "mmap": ((False, None), "Tensors never look into the file: a file that changes would change them."),
    "pickle_module": ((None,), "Files are read by unmoor's own reader, which runs nothing."),
    "encoding": (("utf-8", None), "Python 2 strings are read as UTF-8, with bytes where that fails."),
}
"""Arguments of torch.load -> the values that ask for what holds anyway, and what to do otherwise."""


def _check_buffer(buffer_bytes: Any) -> None:
    if not isinstance(buffer_bytes, int) or isinstance(buffer_bytes, bool) or buffer_bytes < 1:
        raise UsageError(
            f"buffer_bytes={buffer_bytes!r} is no number of bytes", remedy="Pass a whole number, 1 or more."
        )


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


def _given(**roles: Any) -> dict[str, Any]:
    return {role: value for role, value in roles.items() if value is not None}
