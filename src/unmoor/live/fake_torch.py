"""What of torch has to answer otherwise where a device is in pretence: its module, its tensors' methods, wrappers.

Tables of names and answers. Everything here changes torch for the whole process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from unmoor.errors import UsageError

from .fake_device import TYPES
from .fake_tensors import change_load, change_makers, change_tensors, move

if TYPE_CHECKING:
    from .fake import Faked

__all__ = ["change_torch"]

_MEMORY: Final = 80 << 30
_STATE: Final = 16
"""Bytes of a generator's state, as those of CUDA have."""


def change_torch(faked: Faked) -> None:
    """Let torch answer as if the device were here."""
    kind, index = faked.device.type, faked.device.index or 0
    _change_device_module(kind, index)
    _change_accelerator(faked.device)
    change_tensors(faked)
    change_makers(faked)
    change_load(faked)
    _change_wrappers(faked)
    _change_scaler()
    torch.__future__.set_swap_module_params_on_conversion(True)
    changed: Any = torch
    changed.compile, changed.nn.Module.compile = _not_compiled, lambda *_, **__: None


def _not_compiled(model: Any = None, **_: Any) -> Any:
    """torch.compile without compiling: what is given, or a decorator."""
    return (lambda function: function) if model is None else model


class _Current:
    """The device that `set_device` chose last."""

    def __init__(self, index: int) -> None:
        self.index = index

    def set(self, device: Any) -> None:
        place = device if isinstance(device, int) else torch.device(device).index
        self.index = self.index if place is None else place


class _Stream:
    """A stream, an event, a graph pool: whatever is asked of it, nothing is in it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds between two events."""
        return 1.0

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _change_device_module(kind: str, index: int) -> None:
    module = getattr(torch, kind, None)
    if module is None:
        raise UsageError(f"this torch has no devices of type {kind}", remedy=f"It knows {', '.join(TYPES)}.")
    current = _Current(index)
    nothing = lambda *_, **__: None  # noqa: E731
    properties = SimpleNamespace(
        name=f"{kind} (in pretence)", total_memory=_MEMORY, major=9, minor=0, multi_processor_count=1, warp_size=32
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: max(index + 1, current.index + 1),
        "current_device": lambda: current.index,
        "set_device": current.set,
        "device": lambda _=None: contextlib.nullcontext(),
        "device_of": lambda _=None: contextlib.nullcontext(),
        "stream": lambda _=None: contextlib.nullcontext(),
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
        "memory_stats": lambda *_: {},
        "can_device_access_peer": lambda *_: True,
        "get_rng_state": lambda *_: torch.zeros(_STATE, dtype=torch.uint8, device="cpu"),
        "get_rng_state_all": lambda: [torch.zeros(_STATE, dtype=torch.uint8, device="cpu")],
        "initial_seed": lambda: 0,
        "Stream": _Stream,
        "Event": _Stream,
        "current_stream": _Stream,
        "default_stream": _Stream,
        **dict.fromkeys(_NOTHING, nothing),
        **dict.fromkeys(_ZERO, lambda *_, **__: 0),
    }
    for name, answer in answers.items():
        if hasattr(module, name) or name in ("is_available", "current_device", "device_count"):
            setattr(module, name, answer)
    backend = getattr(torch.backends, kind, None)
    if kind == "mps" and backend is not None:
        backend.is_available = backend.is_built = lambda: True
    if kind == "cuda":
        setattr(torch.cuda, "nvtx", _Stream())  # noqa: B010


_NOTHING: Final = (
    "_lazy_init init synchronize empty_cache manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all "
    "reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats ipc_collect set_stream "
    "set_per_process_memory_fraction"
).split()
_ZERO: Final = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached "
    "driver_allocated_memory current_allocated_memory utilization"
).split()


def _change_accelerator(device: torch.device) -> None:
    module = getattr(torch, "accelerator", None)
    if module is None:
        return
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device(device.type),  # noqa: ARG005
        "device_count": lambda: (device.index or 0) + 1,
        "current_device_index": lambda: device.index or 0,
        "current_device_idx": lambda: device.index or 0,
        "set_device_index": lambda *_: None,
        "set_device_idx": lambda *_: None,
        "synchronize": lambda *_: None,
        "current_stream": _Stream,
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
    }
    for name, answer in answers.items():
        if hasattr(module, name):
            setattr(module, name, answer)


def _change_wrappers(faked: Faked) -> None:
    """DataParallel takes its first device alone; DistributedDataParallel is a world of one."""
    parallel: Any = nn.DataParallel
    parallel.scatter = lambda self, inputs, kwargs, ids: (  # noqa: ARG005
        [move(inputs, device=self.src_device_obj)],
        [move(kwargs, device=self.src_device_obj)],
    )
    parallel.replicate = lambda self, module, ids: [module]  # noqa: ARG005
    parallel.parallel_apply = lambda self, replicas, inputs, kwargs: [replicas[0](*inputs[0], **kwargs[0])]  # noqa: ARG005
    parallel.gather = lambda self, outputs, device: outputs[0]  # noqa: ARG005

    def alone(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, **_: Any) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.output_device = module, device_ids, output_device
        self.require_backward_grad_sync = True

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids:
            inputs, kwargs = move(inputs, device=faked.device), move(kwargs, device=faked.device)
        return self.module(*inputs, **kwargs)

    distributed: Any = nn.parallel.DistributedDataParallel
    distributed.__init__, distributed.forward = alone, forward
    if torch.distributed.is_available():
        _change_groups()


def _change_groups() -> None:
    kept: Any = torch.distributed.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        kept(backend="fake", store=FakeStore(), rank=0, world_size=1)

    torch.distributed.init_process_group = init_process_group


def _change_scaler() -> None:
    """The scaler steps: whether gradients are finite is a value that they do not have."""

    def step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        del self, state
        return optimizer.step(*args, **kwargs)

    scaler: Any = torch.amp.GradScaler
    scaler._maybe_opt_step = step
