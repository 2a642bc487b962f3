"""Memory for tensors that are about to be filled: what the system is told of it, so that it is there at less cost.

A page of 4 KiB is cleared and mapped at its first touch, 262,144 times per GiB; a page of 2 MiB 512 times. Where huge
pages cannot be, one call maps many small ones. Values, addresses and sizes stay as they are; a system that knows none
of this, or refuses, maps pages as they are touched.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

__all__ = ["map_pages", "roomy", "roomy_all"]

#: Bytes from which memory holds a whole huge page wherever it begins.
LARGE: Final = 4 << 20
#: Ranges that are told without a look at how many the process has: a few hundred are nothing to any limit.
FEW: Final = 256
_POPULATE_WRITE: Final = 23  # the same on every architecture; Linux 5.14, and no constant of Python's yet

Range = tuple[int, int]


def roomy(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, just made. Huge pages will back it where it is large and they can."""
    roomy_all((tensor,))
    return tensor


def roomy_all(made: Iterable[torch.Tensor | torch.UntypedStorage]) -> None:
    """As `roomy`, for all that were made together: what lies side by side stays one range of memory to the system.

    Each range that is told apart from its neighbours counts against a limit of the system's for the process, of which
    at most half is used. Memory that shares a page with other memory takes it along, which changes nothing for it.
    """
    advise = _madvise()
    if advise is None:
        return
    ranges = list(_joined(sorted(_pages(item) for item in made if _is_large(item))))
    for begin, end in _allowed(ranges):
        advise(begin, end - begin, mmap.MADV_HUGEPAGE)


def map_pages(address: int, nbytes: int) -> None:
    """Have memory that is about to be written mapped by one call. Small pages then cost three quarters."""
    advise = _madvise()
    if advise is not None and nbytes >= mmap.PAGESIZE:
        begin, end = _whole_pages(address, nbytes)
        advise(begin, end - begin, _POPULATE_WRITE)


def _is_large(item: torch.Tensor | torch.UntypedStorage) -> bool:
    nbytes = item.nbytes if isinstance(item, torch.Tensor) else item.nbytes()
    return nbytes >= LARGE and item.device.type == "cpu"


def _pages(item: torch.Tensor | torch.UntypedStorage) -> Range:
    storage = item.untyped_storage() if isinstance(item, torch.Tensor) else item
    return _whole_pages(storage.data_ptr(), storage.nbytes())


def _whole_pages(address: int, nbytes: int) -> Range:
    """The pages that memory lies in, the first and the last of which it may share."""
    page = mmap.PAGESIZE
    return address // page * page, -(-(address + nbytes) // page) * page


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Ranges in order, those that touch as one."""
    last: Range | None = None
    for begin, end in ranges:
        if last is not None and begin <= last[1]:
            last = last[0], max(last[1], end)
        else:
            if last is not None:
                yield last
            last = begin, end
    if last is not None:
        yield last


def _allowed(ranges: Sequence[Range]) -> Sequence[Range]:
    """As many ranges as the process may have beside those it has: each may cut the memory around it in three."""
    if len(ranges) <= FEW:
        return ranges
    return ranges[: max(FEW, (_most_mappings() // 2 - _mappings()) // 2)]


def _mappings() -> int:
    """The ranges of memory that this process has; as many as can be where the system does not tell."""
    try:
        with Path("/proc/self/maps").open("rb") as rows:
            return sum(1 for _ in rows)
    except OSError:
        return _most_mappings()


def _most_mappings() -> int:
    """The ranges of memory that a process may have."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 1 << 16


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """The system's madvise; None where there is none that knows huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
