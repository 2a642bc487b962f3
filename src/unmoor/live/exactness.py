"""What makes a run repeat itself bit for bit, as far as torch can be told to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from .devices import tag
from .survey import members

__all__ = ["CUBLAS", "deterministic", "device_of"]

CUBLAS: Final = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""What cuBLAS wants to have been told, before its first use, for results that repeat."""


@contextmanager
def deterministic(*, wanted: bool) -> Iterator[None]:
    """Deterministic kernels where torch has them, while the block lasts; what has none runs as it is."""
    if not wanted:
        yield
        return
    os.environ.setdefault(*CUBLAS)
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_deterministic_debug_mode("warn")
        torch.backends.cudnn.benchmark = False
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            torch.backends.cudnn.benchmark = benchmark


def device_of(objects: Mapping[str, Any]) -> str:
    """The tag of the device that a run's model is on; "cpu" where it has no tensors."""
    for _, _, item in members("model", objects.get("model")):
        if isinstance(item, nn.Module):
            first = next((t for t in (*item.parameters(), *item.buffers())), None)
            if first is not None:
                return tag(first.device)
    return "cpu"
