"""Objects that are being written: in order, part by part, not to be seen under their name before they are whole.

Where the store uploads in parts, the upload is completed last and given up on any failure. Where it does not, a hidden
file beside the target is moved to its name. The bytes that describe an object are kept until then: it is described from
them before it is completed, and what the store then gives back of them is held against them.
"""

from __future__ import annotations

import os
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

from unmoor import urls
from unmoor.errors import ReadError

from .stores import Facts, Store, once, patiently, refused, store_of

__all__ = ["Draft", "DraftReader", "draft_at", "is_atomic"]

PART: Final = 8 << 20
"""Bytes of a part; four of them are in memory at a time: one is filled, one waits, and fsspec holds two."""
_MOST_PARTS: Final = 9_000
"""S3 takes 10,000."""
_MIB: Final = 1 << 20
_PROOF: Final = 256 << 10
"""Bytes at each end of an object that are read back, at most."""

ORPHAN: Final = 24 * 3600
"""Seconds after which an upload that was not completed is one whose process was killed."""
_IN_ONE_STEP: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "oss", "oci", "memory"})
"""Stores in which an upload appears whole, or a copy does."""

_drafts: dict[str, Draft] = {}


def draft_at(url: str) -> Draft | None:
    """What this process writes under a hidden name."""
    return _drafts.get(url)


class Draft:
    """An object on its way to `url`. `name` is what it is called until then; `nbytes` what was written so far."""

    grain: Final = 0

    def __init__(self, url: str, needed: int, older: Facts | None) -> None:
        self.url, self.nbytes, self.older = url, 0, older
        self.name = _hidden(url)
        self._part = max(PART, -(-needed // _MOST_PARTS // _MIB) * _MIB)
        self._store = store_of(url)
        self._upload = _upload(self._store, self.name, self._part)
        self._filling = bytearray()
        self._kept: list[tuple[int, bytes]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unmoor-upload")
        self._sending: Future[None] | None = None
        _drafts[self.name] = self

    def write(self, data: bytes | memoryview, *, keep: bool = False) -> None:
        """Add bytes at the end; `keep` those that describe the object. Raises ReadError where the store refuses."""
        if keep:
            self._keep(bytes(data))
        rest = memoryview(data)
        self.nbytes += len(rest)
        while rest:
            room = self._part - len(self._filling)
            self._filling += rest[:room]
            rest = rest[room:]
            if len(self._filling) == self._part:
                self._send()

    def _keep(self, data: bytes) -> None:
        if self._kept and self._kept[-1][0] + len(self._kept[-1][1]) == self.nbytes and len(data) < PART:
            start, before = self._kept[-1]
            if len(before) < PART // 8:
                self._kept[-1] = (start, before + data)
                return
        self._kept.append((self.nbytes, data))

    def _send(self) -> None:
        self._settle()
        self._sending = self._pool.submit(self._upload.add, self._filling)
        self._filling = bytearray()

    def _settle(self) -> None:
        if self._sending is not None:
            self._sending.result()
            self._sending = None

    def reader(self) -> DraftReader:
        """What is kept of the object, by position."""
        return DraftReader(self.name, self.nbytes, self._kept)

    def complete(self) -> None:
        """Make it the object at its URL. Raises ReadError where the store refuses, or gives back something else."""
        self._settle()
        self._upload.add(self._filling)
        self._filling = bytearray()
        self._upload.complete(self._proved)

    def _proved(self, store: Store) -> str:
        """What is wrong with what a store gives back of the object; "" for nothing."""
        from .reading import reader_of

        with closing(reader_of(store)) as reader:
            if reader.size != self.nbytes:
                return f"{self.nbytes:,} bytes were sent, and the store has {reader.size:,}"
            for start, data in self._ends():
                seen = bytearray(len(data))
                done = 0
                while done < len(seen):
                    done += reader.some_into(start + done, memoryview(seen)[done:])
                if seen != data:
                    return f"its bytes {start:,} to {start + len(data):,} are not those that were sent"
        return ""

    def _ends(self) -> list[tuple[int, bytes]]:
        """Of what is kept, that which stands at either end."""
        if not self._kept:
            return []
        (first, head), (last, tail) = self._kept[0], self._kept[-1]
        cut = max(0, len(tail) - _PROOF)
        return [(first, head[:_PROOF]), (last + cut, tail[cut:])]

    @property
    def replaced(self) -> bool:
        """Whether it is at its URL, sound or not."""
        return self._upload.completed

    def discard(self) -> bool:
        """Give it up; whether the store has nothing of it any more. What was at the URL is as before.

        One that was completed is removed where nothing was there before.
        """
        with suppress(Exception):
            self._settle()
        try:
            if not self.replaced:
                self._upload.discard()
            elif self.older is None:
                self._store.fs.rm(self._store.path)
        except Exception:  # noqa: BLE001 - the failure that led here is the one to tell
            return False
        return True

    def close(self) -> None:
        """Forget it."""
        _drafts.pop(self.name, None)
        self._pool.shutdown()
        self._kept.clear()


class DraftReader:
    """Positional access to what is kept of an object that is being written; zeros stand for the data."""

    grain: Final = 0

    def __init__(self, path: str, size: int, kept: list[tuple[int, bytes]]) -> None:
        self.path, self.size = path, size
        self._kept, self._starts = kept, [start for start, _ in kept]

    def some_into(self, offset: int, target: memoryview) -> int:
        """Give at most len(target) bytes from `offset`."""
        wanted = max(0, min(len(target), self.size - offset))
        target[:wanted] = bytes(wanted)
        at = max(0, bisect_right(self._starts, offset) - 1)
        for start, data in self._kept[at:]:
            if start >= offset + wanted:
                break
            skip = max(0, offset - start)
            piece = data[skip : offset + wanted - start]
            to = max(0, start - offset)
            target[to : to + len(piece)] = piece
        return wanted


def _hidden(url: str) -> str:
    name = urls.name_of(url)
    return urls.join(urls.parent(url), f".{name}.unmoor-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def is_atomic(url: str) -> bool:
    """Whether a store puts an object in its place in one step; false where it copies it and removes the other."""
    from fsspec.spec import AbstractFileSystem

    store = store_of(url)
    return bool(store.schemes & _IN_ONE_STEP) or type(store.fs).mv is not AbstractFileSystem.mv


def _upload(store: Store, hidden: str, part: int) -> _Parts | _Moved:
    """How a store takes an object."""
    from fsspec.spec import AbstractBufferedFile

    if "memory" not in store.schemes:
        handle = patiently(
            lambda: store.fs.open(store.path, "wb", block_size=part, autocommit=False), store.url, "written"
        )
        if isinstance(handle, AbstractBufferedFile):
            _give_up_orphans(store)
            return _Parts(store, handle)
        handle.close()
    return _Moved(store, replace(store_of(hidden), url=store.url))


def _give_up_orphans(store: Store) -> None:
    """Abort uploads to this very name that were begun long ago: their parts are kept, and paid for, until then."""
    if not store.schemes & {"s3", "s3a"}:
        return
    bucket, key, _ = store.fs.split_path(store.path)
    with suppress(Exception):  # this process may not be allowed to list them
        found = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        for row in found.get("Uploads", ()):
            if row["Key"] == key and time.time() - row["Initiated"].timestamp() > ORPHAN:
                store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=row["UploadId"])


class _Parts:
    """An upload in parts, through fsspec's file for writing, which sends a part when it has one."""

    def __init__(self, store: Store, handle: Any) -> None:
        self._store, self._handle, self.completed = store, handle, False
        handle.offset = 0
        patiently(handle._initiate_upload, store.url, "written")

    def add(self, data: bytearray) -> None:
        """Send a part; once more, as it is, where that fails in passing."""
        written = self._handle.buffer.write(data)
        self._handle.loc += written
        patiently(self._handle.flush, self._store.url, "written")

    def complete(self, proved: Callable[[Store], str]) -> None:
        """Send the last part, and complete the upload."""

        def last() -> None:
            self._handle.forced = False
            self._handle.flush(force=True)

        patiently(last, self._store.url, "written")
        self._handle.closed = True
        try:
            patiently(self._handle.commit, self._store.url, "completed")
        except (ReadError, OSError, ValueError) as error:
            if _is_there(self._store, proved):  # it was completed, and the answer was lost
                return
            raise error if isinstance(error, ReadError) else refused(error, self._store.url, "completed") from None
        self.completed = True
        wrong = proved(self._store)
        if wrong:
            raise ReadError(f"{self._store.url} was completed, and {wrong}", path=self._store.url)

    def discard(self) -> None:
        """Abort the upload."""
        self._handle.closed = True  # or it would be sent when it is collected
        patiently(self._handle.discard, self._store.url, "given up")


class _Moved:
    """A hidden file beside the target, which is moved to its name: for stores that do not upload in parts."""

    def __init__(self, store: Store, hidden: Store) -> None:
        self._store, self._hidden = store, hidden
        self._handle = patiently(lambda: hidden.fs.open(hidden.path, "wb"), store.url, "written")
        self.completed = False

    def add(self, data: bytearray) -> None:
        """Write on; a write that fails has no second try, since it is not known how far it came."""
        once(lambda: self._handle.write(bytes(data)), self._store.url, "written")

    def complete(self, proved: Callable[[Store], str]) -> None:
        """Hold what is there against what was sent, and move it."""
        once(self._handle.close, self._store.url, "written")
        wrong = proved(self._hidden)
        if wrong:
            raise ReadError(f"{self._store.url} was not written: {wrong}", path=self._store.url)
        once(lambda: self._store.fs.mv(self._hidden.path, self._store.path), self._store.url, "put in its place")

    def discard(self) -> None:
        """Remove the hidden file."""
        with suppress(Exception):
            self._handle.close()
        self._hidden.fs.rm(self._hidden.path)


def _is_there(store: Store, proved: Callable[[Store], str]) -> bool:
    try:
        return not proved(store)
    except Exception:  # noqa: BLE001 - the failure to complete is the one to tell
        return False
