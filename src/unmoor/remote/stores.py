"""The store that a URL names, and what is done about its failures: once more where that can help, an error where not.

fsspec's file systems are the way to all of them. Errors name the URL as it is known here, without any password.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from unmoor import urls
from unmoor.errors import ReadError, UsageError

__all__ = ["Facts", "Store", "facts_of", "forget", "is_absent", "is_replaced", "made_facts", "once", "patiently",
           "refused", "status_of", "store_of"]  # fmt: skip

T = TypeVar("T")

TRIES: Final = 4
"""How often a request is made before its failure counts: the store's own library tries several times each."""
PAUSE: Final = 0.2
"""Seconds before the second try; each further pause is twice the one before."""

_PASSING: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP answers after which the same request may succeed."""
_DEFINITE: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)
_REPLACED: Final = 412
_ABSENT: Final = (404, 410)
_INSTALL: Final = "pip install 'unmoor[remote]'"
_PACKAGES: Final[Mapping[str, str]] = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "sftp": "paramiko", "ssh": "paramiko",
    "oss": "ossfs", "oci": "ocifs", "smb": "smbprotocol", "webdav": "webdav4", "hdfs": "pyarrow",
}  # fmt: skip
"""What a scheme needs besides fsspec."""


@dataclass(frozen=True, slots=True)
class Store:
    """A file system of fsspec, and the path in it that a URL names; `url` is how it is known here."""

    url: str
    fs: Any
    path: str

    @property
    def schemes(self) -> frozenset[str]:
        """The names of its kind of store."""
        names = self.fs.protocol
        return frozenset((names,) if isinstance(names, str) else names)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store says of one name: a folder, or a file of so many bytes.

    `identity` is the same as long as the file is: its tag or version where there is one, else its times. `changed` is
    when it was written, in ns, 0 where that is not known. `tag` is its entity tag, "" for none.
    """

    is_folder: bool
    nbytes: int
    changed: int
    identity: tuple[tuple[str, str], ...]
    tag: str = ""


def store_of(url: str) -> Store:
    """The store of a URL. Raises UsageError where a package is missing, or no such scheme is known."""
    scheme = urls.scheme_of(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(
            f"{url} is a URL, and the package fsspec, which opens it, is not installed",
            remedy=f"{_INSTALL}, with {_PACKAGES[scheme]}." if scheme in _PACKAGES else f"{_INSTALL}.",
            path=url,
        ) from None
    try:
        fs, path = patiently(lambda: url_to_fs(urls.real(url)), url, "reached")
    except ImportError as fault:
        package = _PACKAGES.get(scheme, "")
        raise UsageError(
            f"{url} cannot be opened: {urls.hushed(str(fault))}",
            remedy=f"pip install {package}" if package else "Install the package that fsspec names.",
            path=url,
        ) from None
    except ValueError as fault:
        raise UsageError(
            f"{url} cannot be opened: {urls.hushed(str(fault))}",
            remedy="fsspec.available_protocols() lists the schemes; file paths need none.",
            path=url,
        ) from None
    return Store(url, fs, path)


def facts_of(store: Store) -> Facts:
    """What the store says now, not what was said before. Raises FileNotFoundError, or ReadError."""
    forget(store)
    info = patiently(lambda: store.fs.info(store.path), store.url, "looked up")
    return made_facts(info)


def forget(store: Store) -> None:
    """Have nothing taken from a listing that was made before."""
    store.fs.invalidate_cache(store.path.rstrip("/").rpartition("/")[0] or store.path)


_IDENTITY: Final = ("ETag", "etag", "VersionId", "version_id", "generation", "md5Hash", "crc32c", "Content-MD5",
                    "blob_id", "ino")  # fmt: skip
_TIMES: Final = ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "modified", "created")


def made_facts(info: Mapping[str, Any]) -> Facts:
    """The facts in what fsspec says of a name."""
    size = info.get("size")
    told = [(key, str(info[key])) for key in (*_IDENTITY, *_TIMES) if info.get(key) is not None]
    changed = next((info[key] for key in _TIMES if info.get(key) is not None), None)
    tag = info.get("ETag") or info.get("etag") or ""
    nbytes = -1 if size is None else int(size)
    return Facts(info.get("type") == "directory", nbytes, _ns(changed), (("size", str(size)), *told), str(tag))


def _ns(when: Any) -> int:
    """A time of any of the forms that stores have, in ns; 0 for others."""
    if hasattr(when, "timestamp"):
        return int(when.timestamp() * 1e9)
    return int(when * 1e9) if isinstance(when, int | float) else 0


def patiently(work: Callable[[], T], url: str, done: str) -> T:
    """What `work` gives; it is called again, after longer and longer pauses, as long as its failure may pass.

    `done` says what was to be done, as in "read". Errors that no try can change are raised as they are where they say
    what is at fault (FileNotFoundError, ImportError, ValueError, what `is_replaced`); all others as ReadError.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except Exception as raised:
            error = _behind(raised)
            if isinstance(error, ReadError | ImportError | ValueError) or is_replaced(error):
                raise
            if is_absent(error):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
            if not _may_pass(error):
                raise refused(error, url, done) from None
            if attempt == TRIES:
                raise refused(error, url, done, TRIES) from None
        time.sleep(PAUSE * 2 ** (attempt - 1) * (0.5 + random.random()))
    raise AssertionError


def once(work: Callable[[], T], url: str, done: str) -> T:
    """What `work` gives; it has no second try. Raises ReadError."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - raised again, in words
        raise refused(error, url, done) from None


def _behind(error: Exception) -> Exception:
    """What an error stands for: fsspec's HTTP says that a file is not there where its server does not answer."""
    cause = error.__cause__
    told = isinstance(error, FileNotFoundError) and not is_absent(error)
    return cause if told and isinstance(cause, Exception) else error


def _may_pass(error: BaseException) -> bool:
    status = status_of(error)
    if status is not None:
        return status in _PASSING
    if isinstance(error, _DEFINITE) or _lacks_credentials(error):
        return False
    return getattr(error, "errno", None) != errno.ENOSPC


def _lacks_credentials(error: BaseException) -> bool:
    """Whether a library found none, as those of S3, Google and Azure call it."""
    return "Credential" in type(error).__name__


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, as aiohttp, requests, botocore and gcsfs keep it."""
    seen: BaseException | None = error
    for _ in range(4):
        if seen is None:
            return None
        code = None if type(seen).__module__.startswith("aiohttp") else getattr(seen, "code", None)
        for found in (getattr(seen, "status", None), code, _botocore(seen)):
            if isinstance(found, int) or (isinstance(found, str) and found.isdecimal()):
                return int(found)
        seen = seen.__cause__
    return None


def _botocore(error: BaseException) -> Any:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(response, "status_code", None)


def is_replaced(error: BaseException) -> bool:
    """Whether a store refused a read because the object is no longer the one that was asked for."""
    return status_of(error) == _REPLACED or type(error).__name__ == "FileExpired"


def is_absent(error: BaseException) -> bool:
    """Whether an error says that nothing is there; fsspec's for HTTP says so of a server that does not answer too."""
    status, cause = status_of(error), error.__cause__
    if status is not None:
        return status in _ABSENT
    return isinstance(error, FileNotFoundError) and not type(cause).__module__.startswith("aiohttp")


def refused(error: BaseException, url: str, done: str, tries: int = 1) -> ReadError:
    """What a store or the way to it refused, as an error that names the URL and holds no password."""
    what = urls.hushed(" ".join(str(error).split()))[:300]
    status = status_of(error)
    if isinstance(error, NotImplementedError):
        remedy = "This kind of store is for reading alone: save elsewhere."
    elif isinstance(error, PermissionError) or status in (401, 403) or _lacks_credentials(error):
        remedy = "Check that this process has credentials, and that they may do that there."
    elif tries > 1:
        remedy = "Look at the network and the store, then do it again: nothing is half done."
    else:
        remedy = ""
    return ReadError(
        f"{url} could not be {done}: {type(error).__name__}: {what}",
        details=[f"tried {tries} times"] if tries > 1 else [],
        remedy=remedy,
        path=url,
        errno=getattr(error, "errno", None) or errno.EIO,
    )
