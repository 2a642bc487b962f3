"""What ranks leave for each other on the store of torch.distributed: values and counters, by key.

The store is the one the process group was made with. It is used from any thread, touches no device, and takes no part
in the collectives of the run. An error of it becomes a sentence here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from unmoor.errors import RankError

__all__ = ["Board"]

_PIECE: Final = 1 << 20
"""Bytes of one value on the store; torch's server refuses messages of 8 MiB."""

_TOGETHER: Final = 64
"""Values that are asked for at once."""


class Board:
    """Keys under one prefix of a store. Large values lie there in pieces."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def post(self, key: str, value: bytes) -> None:
        """Leave `value` at `key`: its pieces first, so that what can be seen is whole."""
        pieces = [value[start : start + _PIECE] for start in range(0, len(value), _PIECE)]
        with _told():
            for number, piece in enumerate(pieces[1:], 1):
                self._store.set(self._key(f"{key}.{number}"), piece)
            head = pieces[0] if pieces else b""
            self._store.set(self._key(key), b"%d:" % max(len(pieces), 1) + head)

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values at `keys`, all of which are there."""
        heads = [found.partition(b":") for found in self._get([self._key(key) for key in keys])]
        return [
            b"".join([head, *self._get([self._key(f"{key}.{n}") for n in range(1, int(pieces))])])
            for key, (pieces, _, head) in zip(keys, heads, strict=True)
        ]

    def drop(self, key: str) -> None:
        """Take away the value at `key`, if there is one."""
        if not self.has(key):
            return
        with _told():
            pieces = int(self._store.get(self._key(key)).partition(b":")[0])
            for number in range(1, pieces):
                self._store.delete_key(self._key(f"{key}.{number}"))
            self._store.delete_key(self._key(key))

    def has(self, *keys: str) -> bool:
        """Whether something is at each of `keys`."""
        with _told():
            return bool(self._store.check([self._key(key) for key in keys]))

    def add(self, key: str, number: int) -> int:
        """Add to the counter at `key`, 0 at first, and give what it is then."""
        with _told():
            return int(self._store.add(self._key(key), number))

    def first(self, key: str, value: bytes) -> bytes:
        """The value that the first caller left at `key`, which is this one if nothing is there."""
        with _told():
            return bytes(self._store.compare_set(self._key(key), b"", value))

    def forget(self, key: str) -> None:
        """Take away a counter, or what `first` left."""
        with _told():
            if self._store.check([self._key(key)]):
                self._store.delete_key(self._key(key))

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _get(self, keys: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        with _told():
            many: Callable[[Sequence[str]], list[bytes]] | None = (
                self._store.multi_get if self._store.has_extended_api() else None
            )
            for start in range(0, len(keys), _TOGETHER):
                some = list(keys[start : start + _TOGETHER])
                found += many(some) if many is not None and len(some) > 1 else [self._store.get(key) for key in some]
        return [bytes(value) for value in found]


@contextmanager
def _told() -> Iterator[None]:
    """The store's own errors, which are RuntimeErrors of several kinds, as one that says what they mean."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise RankError(
            "the store of torch.distributed, through which ranks meet, cannot be reached",
            details=(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",),
            remedy="The process that keeps it, rank 0's or torchrun's own, has most likely ended: its output says why. "
            "group=None saves or restores this process alone.",
        ) from error
