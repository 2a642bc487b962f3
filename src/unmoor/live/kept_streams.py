"""Random streams of the process left where they are, whatever is drawn meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import rng
from .devices import available, device_module

__all__ = ["streams_kept"]


@contextmanager
def streams_kept() -> Iterator[None]:
    """Put every stream back when the block ends: those of the host, and of devices that the process uses already."""
    back = rng.host_setters(rng.host_states())
    for kind, number in available().items():
        module = device_module(kind)
        started = getattr(module, "is_initialized", None)
        if kind in ("cpu", "meta") or not hasattr(module, "get_rng_state") or (started is not None and not started()):
            continue
        states = [rng.device_state(module, kind, index) for index in range(number)]
        chosen = [rng.Chosen("torch-device", kind, index, state) for index, state in enumerate(states)]
        back += rng.setters(chosen, {})
    try:
        yield
    finally:
        for set_state in back:
            set_state()
