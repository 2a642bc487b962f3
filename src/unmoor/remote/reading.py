"""An object behind a URL, read by ranges: what is asked for and little more, of one version of it.

Small reads, as of headers and lists, go through blocks that are kept; a large read is one request for each some MiB.
Every request names the version that was seen at first, or is held against it: a replaced object is an error, never a
mix.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from unmoor import urls
from unmoor.errors import CorruptFile, NotACheckpoint, UsageError
from unmoor.steady import Reading, Shared

from .drafts import DraftReader, draft_at
from .stores import Facts, Store, facts_of, forget, is_absent, is_replaced, made_facts, patiently, store_of

__all__ = ["GRAIN", "RemoteReader", "open_remote", "reader_of"]

GRAIN: Final = 4 << 20
"""Bytes of one request for data: enough that its answer takes longer than its way."""
BLOCK: Final = 64 << 10
"""Bytes in which small reads are kept."""
DIRECT: Final = BLOCK // 4
"""Bytes from which a read is a request of its own, unless they are kept or at either end of the file."""
_HEAD: Final = 4
"""Blocks that are fetched at the beginning of a file: a mark, a header, or the pickle of most."""
_TAIL: Final = 8
"""Blocks that are fetched at its end: the list of a zip and the manifest before it."""
_AHEAD: Final = 16
"""Blocks that are fetched at most where one small read follows another."""
_KEPT: Final = 256
_AT_ONCE: Final = 8
"""Requests on their way at once for what is fetched ahead."""
_WEB: Final = frozenset({"http", "https"})
_PINNED: Final = frozenset({"s3", "s3a"})
"""Stores whose files for reading send the tag of the version that they were opened at."""
_EMPTY: Final = 3
"""How often a store may answer with nothing."""


class RemoteReader:
    """Positional access to an object. `grain` is how many bytes a read should have where it is for data."""

    grain: Final = GRAIN

    def __init__(self, store: Store, source: _Source) -> None:
        self.path, self.size = store.url, source.facts.nbytes
        self._store, self._source = store, source
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._ahead, self._next = 1, -1
        self._lock = threading.Lock()

    def some_into(self, offset: int, target: memoryview) -> int:
        """Read at most len(target) bytes from `offset`: of data as many as one request is for."""
        wanted = min(len(target), self.size - offset)
        if wanted <= 0:
            return 0
        edge = offset == 0 or offset + wanted > self.size - BLOCK
        if wanted < DIRECT or (edge and wanted <= BLOCK * _HEAD) or self._holds(offset, wanted):
            data = self._kept(offset, wanted)
        else:
            data = self._asked(offset, min(wanted, GRAIN))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Let it go."""
        self._blocks.clear()
        if self._source.handle is not None:
            with suppress(Exception):
                self._source.handle.close()

    def _holds(self, offset: int, wanted: int) -> bool:
        """Whether bytes are kept already."""
        blocks = range(offset // BLOCK, (offset + wanted - 1) // BLOCK + 1)
        return len(blocks) <= _TAIL and all(number in self._blocks for number in blocks)

    def _kept(self, offset: int, wanted: int) -> bytes:
        first, last = offset // BLOCK, (offset + wanted - 1) // BLOCK
        found: list[bytes] = []
        for number in range(first, last + 1):
            block = self._block(number, last)
            found.append(block)
            if len(block) < BLOCK:
                break
        return b"".join(found)[offset - first * BLOCK :][:wanted]

    def _block(self, number: int, last: int) -> bytes:
        """One block; where it is missing, it is fetched with those up to `last`, and what is likely wanted next."""
        with self._lock:
            known = self._blocks.get(number)
            if known is not None:
                self._blocks.move_to_end(number)
                return known
            start, stop = self._range(number, last)
        self._bring(start, stop)
        with self._lock:
            found = self._blocks[number]
            while len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        return found

    def prefetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetch what small reads will soon want, several requests at a time."""
        final = (self.size - 1) // BLOCK
        wanted = {block for a, b in spans for block in range(max(0, a) // BLOCK, min(final, (b - 1) // BLOCK) + 1)}
        missing = sorted(block for block in wanted if block not in self._blocks)
        starts = [block for block in missing if block - 1 not in wanted or block - 1 in self._blocks]
        stops = [block + 1 for block in missing if block + 1 not in wanted or block + 1 in self._blocks]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="unmoor-ahead") as pool:
            list(pool.map(self._bring, starts, stops))

    def _bring(self, start: int, stop: int) -> None:
        """Fetch blocks `start` to `stop` and keep them."""
        data = self._whole(start * BLOCK, min(stop * BLOCK, self.size))
        with self._lock:
            for at in range(start, stop):
                self._blocks[at] = data[(at - start) * BLOCK : (at - start + 1) * BLOCK]

    def _range(self, number: int, last: int) -> tuple[int, int]:
        """The blocks to fetch: more at both ends of the file, and more and more where reads follow each other."""
        final = (self.size - 1) // BLOCK
        if last >= final - 1:
            return max(0, min(number, final + 1 - _TAIL)), final + 1
        self._ahead = min(2 * self._ahead, _AHEAD) if number == self._next else _HEAD if number == 0 else 1
        stop = min(max(last + 1, number + self._ahead), final + 1)
        self._next = stop
        return number, stop

    def _whole(self, start: int, stop: int) -> bytes:
        """Bytes of an object however many answers it takes."""
        data = self._asked(start, stop - start)
        while len(data) < stop - start:
            data += self._asked(start + len(data), stop - start - len(data))
        return data

    def _asked(self, offset: int, nbytes: int) -> bytes:
        """One request; fewer bytes where the answer breaks off, never none. They are of the version seen first."""
        for _ in range(_EMPTY):
            try:
                data = patiently(lambda: self._source.fetch(offset, offset + nbytes), self.path, "read")
            except Exception as error:  # noqa: BLE001 - raised again, in words
                raise self._refusal(error) from None
            self._hold(len(data), nbytes)
            if data:
                return data
        raise self._changed("ends before the length that it was said to have")

    def _hold(self, got: int, asked: int) -> None:
        if got > asked:
            raise UsageError(
                f"{self.path} cannot be read in parts: its server sent {got:,} bytes where {asked:,} were asked for",
                remedy="Download it first, then give its path.",
                path=self.path,
            )
        if not self._source.pinned and facts_of(self._store).identity != self._source.facts.identity:
            raise self._changed("was replaced")

    def _refusal(self, error: Exception) -> Exception:
        if is_replaced(error):
            return self._changed("was replaced")
        if is_absent(error):
            return self._changed("was removed")
        if isinstance(error, ValueError):
            return UsageError(
                f"{self.path} cannot be read in parts: {urls.hushed(str(error))}",
                remedy="Download it first, then give its path.",
                path=self.path,
            )
        return error

    def _changed(self, how: str) -> CorruptFile:
        return CorruptFile(
            f"{self.path} {how} while it was read", remedy="Read it again once nothing writes to it.", path=self.path
        )


@contextmanager
def open_remote(url: str, reading: Reading | None) -> Iterator[Shared | DraftReader]:
    """A reader of the object behind a URL, the same all through a `reading`; of what is kept while it is written here.

    Raises NotACheckpoint where nothing is there, or a folder is; ReadError for what the store refuses.
    """
    draft = draft_at(url)
    if draft is not None:
        yield draft.reader()
    elif reading is not None:
        yield reading.shared(url, lambda: opened(url))
    else:
        with closing(opened(url)) as alone:
            yield alone


def opened(url: str) -> RemoteReader:
    """The object behind a URL, as it is now."""
    return reader_of(store_of(url))


def reader_of(store: Store) -> RemoteReader:
    """The object at a place of a store, as it is now."""
    url = store.url
    try:
        source = _source(store)
    except FileNotFoundError:
        raise NotACheckpoint(f"{url} does not exist", remedy=_near(store), path=url) from None
    except IsADirectoryError:
        raise NotACheckpoint(f"{url} is a folder, not a checkpoint file", path=url) from None
    if source.facts.is_folder:
        raise NotACheckpoint(f"{url} is a folder, not a checkpoint file", path=url)
    if source.facts.nbytes < 0:
        raise UsageError(
            f"{url} cannot be read in parts: its server does not say how long it is, or gives it whole alone",
            remedy="Download it first, then give its path.",
            path=url,
        )
    return RemoteReader(store, source)


def _near(store: Store) -> str:
    """What else lies in the folder."""
    folder = urls.parent(store.url)
    try:
        names = sorted(str(row["name"]).rstrip("/").rpartition("/")[2] for row in store.fs.ls(
            store.path.rpartition("/")[0], detail=True))  # fmt: skip
    except Exception:  # noqa: BLE001 - it is only for a hint
        return ""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{folder} holds: {shown}." if names else ""


Fetch = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class _Source:
    """One version of an object.

    `fetch` gives the bytes from one position to another, of this version alone where it is `pinned`. `handle` is to be
    closed at last.
    """

    facts: Facts
    fetch: Fetch
    pinned: bool
    handle: Any = None


def _source(store: Store) -> _Source:
    from fsspec.spec import AbstractBufferedFile

    fs, path = store.fs, store.path
    if "memory" in store.schemes:
        return _Source(facts_of(store), lambda start, stop: fs.cat_file(path, start=start, end=stop), pinned=False)
    forget(store)
    handle = patiently(lambda: fs.open(path, "rb", cache_type="none"), store.url, "opened")
    if not isinstance(handle, AbstractBufferedFile):
        return _Source(facts_of(store), _seeking(handle), False, handle)
    facts = facts_of(store) if store.schemes & _WEB else made_facts(handle.details)
    pinned = bool(store.schemes & _PINNED)
    if store.schemes & _WEB and facts.tag and not facts.tag.startswith("W/"):
        handle.kwargs["headers"] = {**handle.kwargs.get("headers", {}), "If-Match": facts.tag}
        pinned = True
    fetch: Fetch = handle._fetch_range
    return _Source(facts, fetch if fs.async_impl else _one_by_one(fetch), pinned, handle)


def _seeking(handle: Any) -> Fetch:
    lock = threading.Lock()

    def fetch(start: int, stop: int) -> bytes:
        with lock:
            handle.seek(start)
            data: bytes = handle.read(stop - start)
            return data

    return fetch


def _one_by_one(fetch: Fetch) -> Fetch:
    lock = threading.Lock()

    def alone(start: int, stop: int) -> bytes:
        with lock:
            return fetch(start, stop)

    return alone
