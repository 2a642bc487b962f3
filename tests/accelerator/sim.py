"""The device module `torch.sim`, with the names and meanings of `torch.cuda`.

It only forwards: devices, streams and memory to `torch.accelerator`, random numbers to the generators of
`sim_device.h`. `waiting()` is its own: how much is queued on all streams and has not run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch.accelerator import current_device_index as current_device
from torch.accelerator import (
    current_stream,
    max_memory_allocated,
    memory_allocated,
    reset_peak_memory_stats,
    set_stream,
    synchronize,
)
from torch.accelerator import set_device_index as set_device

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "device",
    "device_count",
    "get_amp_supported_dtype",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "waiting",
]

Device: TypeAlias = int | str | torch.device | None
Stream = torch.Stream
Event = torch.Event

default_generators: tuple[torch.Generator, ...] = tuple(
    torch.ops.sim.default_generator(index) for index in range(torch.ops.sim.device_count())
)

# Activation checkpointing saves a device's random state only where its module says this.
_initialized = True


class device(torch.accelerator.device_index):
    """Context in which `device` is the current one.

    Example: `with torch.sim.device("sim:1"): torch.empty(2, device="sim")` is on `sim:1`.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(_index(device))


@contextmanager
def stream(stream: torch.Stream) -> Iterator[torch.Stream]:
    """Context in which `stream` is the current one, and its device the current device."""
    place, before = current_device(), current_stream(stream.device)
    set_stream(stream)
    try:
        yield stream
    finally:
        set_stream(before)
        set_device(place)


def waiting() -> int:
    """How many copies and waits are queued on all streams of all devices, and have not run."""
    return int(torch.ops.sim.waiting())


def device_count() -> int:
    """How many devices are simulated."""
    return len(default_generators)


def is_available() -> bool:
    """True: a process that has this module has the devices."""
    return True


def is_initialized() -> bool:
    """True: there is nothing to initialize."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("sim")` accepts."""
    return [torch.float16, torch.bfloat16]


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    default_generators[current_device()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every device; `torch.manual_seed` calls this."""
    for generator in default_generators:
        generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[current_device()].initial_seed()


def get_rng_state(device: Device = "sim") -> torch.Tensor:
    """The generator state of one device, a CPU uint8 tensor."""
    return default_generators[_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The generator states of all devices, in device order."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = "sim") -> None:
    """Give one device's generator a state that `get_rng_state` returned."""
    default_generators[_index(device)].set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Give the generators of all devices their states, in device order."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)


def _index(device: Device) -> int:
    if isinstance(device, int):
        return device
    place = torch.device("sim" if device is None else device)
    if place.type != "sim":
        raise ValueError(f"expected a sim device, got {place}")
    return current_device() if place.index is None else place.index
