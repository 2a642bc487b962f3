"""The verbs of a live run before and around its steps: what is wrong with it, and its batches on its devices.

The signature and the documentation of each, and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .api_files import PathLike

if TYPE_CHECKING:
    from .values.diagnosis import Diagnosis
    from .values.explanation import Explanation
    from .values.preflight import Preflight
    from .values.proof import Proof
    from .wiring.context import DeviceContext

__all__ = ["device_context", "diagnose", "explain", "preflight", "prove", "to_device"]


def diagnose(
    model: Any,
    optimizer: Any = None,
    batch: Any = ...,
    *,
    loss: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    metrics: Any = None,
    ema: Any = None,
    loader: Any = None,
    rng: Mapping[str, Any] | None = None,
    values: bool = False,
) -> Diagnosis:
    """Say what stands in the way of the next training step: where, both sides, and the line of code that fixes it.

    Looks at devices, dtypes, shapes and at who holds whom. Runs no module, changes nothing, draws no batch from a
    loader and reads no value from a device. A model that moves its inputs itself is taken at its word.

    model: the module to train, wrapped or not (DataParallel, DistributedDataParallel, FSDP, compile); or a dict or list
        of modules.
    optimizer, scheduler, scaler: one object each, or a dict or list; any optimizer that derives from torch's, or that
        holds one as its `.optimizer`.
    batch: one batch as the loader gives it, nested as it likes: a tensor, (inputs, targets), or a mapping with targets
        under "labels", "label", "targets", "target" or "y".
    loss: what compares outputs with targets: a module, or a function whose closure is looked at too.
    metrics, ema, loader: metrics that the outputs go to, averaged copies, the loader whose generators draw the batches.
    rng: generators of the caller's own by name.
    values: also look for parameters, buffers and inputs that are not finite; this waits once for each device.

    Each finding has a code with a page in docs/findings.md. `ok` is False where an error was found: the step raises, or
    runs and does something else (an optimizer that steps tensors which the model no longer has).

    Raises UsageError for an object that is none of its role's.

    >>> unmoor.diagnose(model, optimizer, batch, loss=loss).ok  # doctest: +SKIP
    True
    """
    from .wiring.diagnosing import diagnose_run

    roles = {
        "model": model,
        "optimizer": optimizer,
        "loss": loss,
        "scheduler": scheduler,
        "scaler": scaler,
        "metrics": metrics,
        "ema": ema,
        "loader": loader,
    }
    return diagnose_run(roles, batch, rng=rng, values=values)


def device_context(model: Any = None, optimizer: Any = None) -> DeviceContext:
    """Name what was apart when a training step fails because its tensors are on different devices.

    A context around the step, or a decorator of the function that takes it (`async` too). PyTorch's error becomes
    `unmoor.DeviceMismatch`, which is a RuntimeError as well: the module by its path, the tensors by the names that they
    have in the model, the optimizer and your own code, the line that failed and the line that fixes it. PyTorch's error
    stays its `__cause__`. Any other error passes through as it is. While nothing fails it does nothing at all: no hook,
    no mode, no reference to a tensor.

    model: the module, wrapped or not, or a dict or list of modules; optimizer: likewise. Both only give names: without
        them, variables and classes are named.

    Whether devices are at fault is decided by the tensors that the failing expression was given, and by asking PyTorch,
    without data, whether it works where all are on one device; never by the words of the error alone. In
    `mismatch` the error carries all this as a value.

    Raises UsageError for what is no model or optimizer.

    >>> with unmoor.device_context(model, optimizer):  # doctest: +SKIP
    ...     loss = loss_fn(model(batch["image"]), batch["labels"])
    unmoor.DeviceMismatch: loss_fn (CrossEntropyLoss) got its input on cuda:0, its target on cpu
    """
    return _device_context()(model, optimizer)


@cache
def _device_context() -> type[DeviceContext]:
    """The class, imported when it is first used; looking it up at every step would be what the step costs most."""
    from .wiring.context import DeviceContext

    return DeviceContext


def to_device(
    batch: Any,
    *,
    like: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    keep: str | Sequence[str] = (),
) -> Any:
    """Move a batch, however nested, to a device or to that of a model; labels included, dtypes as they are.

    Goes into dicts and other mappings, lists, tuples, named tuples, sets, deques, dataclasses (frozen ones too) and
    PackedSequence; an object with a method `to` is moved by it (tensordict, torch_geometric, your own). What is shared
    stays shared, and everything else (numbers, strings, numpy arrays) is what it was. The caller's containers are never
    changed: those in which something moves are made anew, and where nothing has to move the batch itself comes back.

    like: a module, whose inputs' device is taken (of DataParallel, DistributedDataParallel and FSDP the one that they
        bring inputs to), or a tensor. device: "auto", a tag, an index or a torch.device instead.
    non_blocking: do not wait for copies from pinned memory to an accelerator. To the CPU it is ignored: such a copy
        must be waited for before it is read.
    keep: keys or attributes that stay where they are, such as lengths for pack_padded_sequence, which wants them on the
        CPU.

    Raises UsageError for a module, an optimizer or a loader, and for objects with tensors that nothing can move, all at
    once; DeviceError where a model is on several devices or on none. Nothing is moved then.

    >>> batch = unmoor.to_device(batch, like=model)  # doctest: +SKIP
    """
    from .wiring.diagnosing import move_batch

    return move_batch(batch, like=like, device=device, non_blocking=non_blocking, keep=keep)


def explain(
    path: PathLike,
    build: str | Callable[..., Any],
    *,
    model_device: Any = None,
    only: str | Sequence[str] | None = None,
) -> Explanation:
    """Say what `restore` would do with a checkpoint and the run that `build` makes, and which call resumes it.

    Plans as `restore` and `plan` do, and carries nothing out: neither the run nor the file nor a random stream of this
    process changes. Where the plain call does not fit, every fault is shown, and the keywords that could let it through
    are tried: the call that works is shown with what it leaves out.

    path: a checkpoint of unmoor.save, torch.save or any program that unmoor reads; a file or a folder.
    build: a function that makes the run, or its name "module:function" (or "file.py:function"). It returns a dict with
        the keywords of restore: model, optimizer, scheduler, scaler, loss, metrics, ema, loader, rng, others.
    model_device: where the run is to be. Handed to the function where it takes `device`, else to restore.
    only: patterns, as for restore.

    The explanation is true where the plain call fits. `call` is Python; `plan` what that call does; `to_json()` is for
    programs. Raises FileError for a file at fault, UsageError for a function that makes no run or fails: what it raised
    is the cause.

    >>> print(unmoor.explain("run/step_1000.pt", "train:build"))  # doctest: +SKIP
    """
    from .filing import path_text
    from .wiring.explaining import explain_path

    return explain_path(path_text(path), build, model_device=model_device, only=only)


def preflight(build: str | Callable[..., Any], device: Any = "cuda:0", *, timeout: float = 300.0) -> Preflight:
    """Take one training step as if on a device that this machine need not have, and report the mismatch it would hit.

    A fresh process builds the run and takes the step. What is on the CPU is real there; what is moved to the device, or
    made on it, is a tensor with a shape, a dtype and a place, and no data. Forward, backward and the optimizer's step
    run, with your own `train_step` where the function gives one, and with the findings of `diagnose` before it. No
    device is touched, also where the machine has it.

    build: a function that makes the run, or its name "module:function" (or "file.py:function"). It returns a dict with
        the keywords of restore, and a `train_step`, or a loss with a `batch` or `loader`. A parameter `device` is given
        the device; without one, the model is put there.
    device: the device to pretend, of type cuda, xpu, mps or mtia.
    timeout: seconds, after which the process is ended.

    The preflight is true where nothing was found that would fail. `mismatch` is the value that `DeviceMismatch`
    carries; `parts` says how far the step came, `invented` at which lines a value had to be invented because code asked
    for it (`.item()`, `x[mask]`), `memory` what the run holds on the device, in bytes, without activations. What torch
    has no rule for without data ends the step; it is reported as such, not as an error of yours.

    Raises UsageError for a wrong call, a function that no fresh process can import, and a run that cannot be built,
    with its traceback; MachineError for a process that dies or takes too long.

    >>> print(unmoor.preflight("train:build", device="cuda:0"))  # doctest: +SKIP
    no mismatch of devices: one step of train:build ran as if on cuda:0
    """
    from .wiring.preflighting import preflight_run

    return preflight_run(build, device=device, timeout=timeout)


def prove(
    build: str | Callable[..., Any],
    *,
    steps: int = 20,
    cut: int = 10,
    save_on: Any = None,
    resume_on: Any = None,
    world: int = 1,
    resume_world: int | None = None,
    wrap: str | Callable[..., Any] | None = None,
    resume_wrap: str | Callable[..., Any] | None = None,
    omit: Sequence[str] = (),
    save: str | Callable[..., Any] | None = None,
    resume: str | Callable[..., Any] | None = None,
    tolerance: float = 1e-3,
    repeat: bool = True,
    deterministic: bool = True,
    seed: int = 0,
    timeout: float = 600.0,
    folder: PathLike | None = None,
    picture: PathLike | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Proof:
    """Prove that a run can be resumed: train it without a break, and again cut, saved and resumed in a fresh process.

    Compared after every step: the batches that were drawn, the loss, parameters, buffers, gradients, optimizer state
    and options, scheduler, scaler, loss, metrics, EMA, other objects, and every random stream. The first thing that
    differs is named, with both sides, its cause, and what to do.

    build: a function that makes the run, or its name "module:function" (or "file.py:function"). It is called in fresh
        processes; see docs/proving.md for what it returns. A parameter `device` is given save_on and resume_on, a
        parameter `wrap` a function to wrap the model with before the optimizer is made.
    steps, cut: how many steps the run has, and after which of them it is saved.
    save_on, resume_on: devices. world, resume_world: numbers of processes, over gloo (nccl with CUDA); each rank's
        samples count together, and the build function takes its share of a batch. wrap, resume_wrap: "ddp", "fsdp2",
        "compile", "compile:BACKEND", "data_parallel", or a function; "none" for a plain model. What is not said of the
        resumed run is as it was saved.
    omit: keywords that are neither saved nor restored, to see what becomes of a run without them.
    save, resume: functions of yours that are judged instead of unmoor's: save(path, run) writes a checkpoint, and
        resume(path, run) fills a fresh run from it. `run` is what build returned, with `progress`, a dict of the steps
        and epochs done, which your program keeps too.
    tolerance: relative; only where the resumed run takes another arithmetic (another kind of device, another wrapper or
        number of ranks). The state right after the restore is held bit for bit in any case.
    repeat: take the uninterrupted run again where steps differ on the same data, to tell a run that does not repeat
        itself.
    deterministic: take kernels that repeat, where torch has them.
    seed: of the processes before they build; the one that resumes is seeded otherwise, so that nothing is equal by
        luck. What your program seeds itself, it seeds in build.
    timeout: seconds for each run, after which its processes are ended.
    folder: an empty folder in which checkpoint, recordings and outputs are left; None for one that is removed.
    picture: a .png or .html file, or a name without ending for both: the loss curves and their difference.
    progress: called with what is being done, the steps done and the steps in all.

    The proof is true where the runs are equal; a run that cannot be resumed at all is a proof that is false. Raises
    UsageError for a wrong call, for a build function that no fresh process can import, and for a run that fails by
    itself; MachineError for a process that dies or takes too long.

    >>> print(unmoor.prove("train:build", steps=20, cut=10))  # doctest: +SKIP
    resumed run equals the uninterrupted run: 20 of 20 steps, bit for bit
    """
    from .wiring.proving_run import Wanted, prove_run

    wanted = Wanted(
        build,
        steps,
        cut,
        save_on=save_on,
        resume_on=resume_on,
        world=world,
        resume_world=resume_world,
        wrap=wrap,
        resume_wrap=resume_wrap,
        omit=(omit,) if isinstance(omit, str) else tuple(omit),
        save=save,
        resume=resume,
        tolerance=tolerance,
        repeat=repeat,
        deterministic=deterministic,
        seed=seed,
        timeout=timeout,
    )
    return prove_run(wanted, folder=folder, picture=picture, told=progress)


def can_draw() -> bool:
    """Whether the packages are installed that pictures of a proof are drawn with."""
    from .wiring.proving_pictures import can_draw as known

    return known()
