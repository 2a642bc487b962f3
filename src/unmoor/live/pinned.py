"""Copies between host memory and devices that run beside other work: pinned memory, and streams of our own.

A copy is under way when the call returns if the device has streams and the host memory is pinned; else it is done. What
reads a target or reuses a source waits first. The words are those of `torch.cuda`, which other accelerators share;
a device whose module lacks them (MPS), or memory that cannot be pinned, is served by plain copies.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .devices import device_module

__all__ = ["Lane", "has_streams", "host_memory", "pinned", "queued"]

_WORDS = ("Stream", "current_stream", "device", "stream")


def has_streams(device: torch.device) -> bool:
    """Whether copies to and from a device can run beside other work."""
    return device.type not in ("cpu", "meta", "mps") and all(hasattr(device_module(device.type), w) for w in _WORDS)


def pinned(nbytes: int, device: torch.device) -> torch.Tensor:
    """Host memory of `nbytes` as uint8, pinned for transfers with `device`; plain memory where that is refused.

    `tensor.is_pinned()` tells which. Pinned memory is taken from the whole machine, and the first time takes about as
    long as one copy of it: ask for it once and reuse it.
    """
    if has_streams(device):
        try:
            with device_module(device.type).device(device):  # else a context would be made on device 0
                return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except (RuntimeError, NotImplementedError):  # no pinned memory here, or none left: it is only faster
            pass
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def host_memory(tensor: torch.Tensor, nbytes: int) -> memoryview:
    """Writable bytes of a CPU tensor's memory, from its first element on. The tensor must outlive them."""
    array = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")


def queued(device: torch.device) -> Any:
    """An event that ends with all that is queued now on a device's current stream of the calling thread.

    None where the device has no streams, or none that work.
    """
    if not has_streams(device):
        return None
    module = device_module(device.type)
    try:
        module.Stream(device=device)
        return module.current_stream(device).record_event()
    except (RuntimeError, TypeError):
        return None


class Lane:
    """A stream of its own on one device, for the copies that one thread queues.

    Its work begins after what `after` stands for: by default, all that is queued on the device's current stream of the
    calling thread now. Of a device without streams every copy is done when the call returns.
    """

    def __init__(self, device: torch.device, after: Any = None) -> None:
        self.device = device
        after = queued(device) if after is None else after
        self._module = None if after is None else device_module(device.type)
        self._stream: Any = None
        if self._module is not None:
            self._stream = self._module.Stream(device=device)
            self._stream.wait_event(after)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """`target.copy_(source)`, one of them in host memory. Under way at the return where that is pinned.

        Until `wait`, or the end of a `mark` made later, neither may be written to, nor the target read or freed.
        """
        if self._module is None:
            target.copy_(source)
            return
        host = source if source.device.type == "cpu" else target
        with self._module.stream(self._stream):
            target.copy_(source, non_blocking=host.is_pinned())

    def mark(self) -> Any:
        """An event that ends with the copies queued so far; `event.synchronize()` waits. None without streams."""
        return None if self._stream is None else self._stream.record_event()

    def hold(self) -> None:
        """Let work that is queued on the device's current stream from now on begin after the copies queued so far.

        The calling thread goes on: so training may step while its old values are still being copied away.
        """
        if self._module is not None:
            self._module.current_stream(self.device).wait_event(self._stream.record_event())

    def wait(self) -> None:
        """Return when all copies queued so far are done; a device's error is raised here at the latest."""
        if self._stream is not None:
            self._stream.synchronize()
