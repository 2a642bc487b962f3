"""Memory for tensors that are about to be filled: large blocks ask the system for huge pages.

A page of 4 KiB is cleared and mapped at its first touch, 262,144 times per GiB; a page of 2 MiB 512 times. The values
of a tensor, its address and its size stay as they are.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import lru_cache
from typing import Any, Final

import torch

__all__ = ["roomy"]

_HUGE: Final = 2 << 20
_ADVICE: Final = 14  # MADV_HUGEPAGE


def roomy(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor. Where its memory is large and not yet touched, huge pages will back it where they can."""
    advise = _madvise()
    nbytes = tensor.numel() * tensor.element_size()
    if advise is not None and tensor.device.type == "cpu" and nbytes >= 2 * _HUGE:
        page = mmap.PAGESIZE
        first = -(-tensor.data_ptr() // page) * page
        advise(first, (tensor.data_ptr() + nbytes - first) // page * page, _ADVICE)  # a refusal changes nothing
    return tensor


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """The system's madvise; None where there is none that knows huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
