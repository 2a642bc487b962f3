"""Puts an object in its place behind a URL whole or not at all, as `commit.publish` does a file.

Decides nothing about what is saved. A store's refusal becomes a SaveError that says what is there now.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeGuard

from unmoor.errors import FileError, ReadError, SaveError, UnmoorError
from unmoor.remote.drafts import Draft, draft_at
from unmoor.remote.looking import found
from unmoor.urls import hushed

__all__ = ["publish_remote", "save_failure", "written_draft"]


_UNTOUCHED: Final = "the checkpoint that was there before is untouched"


@contextmanager
def publish_remote(url: str, *, needed: int, check: Callable[[str], None]) -> Iterator[str]:
    """Write the object at `url` whole: yields the hidden name under which `written_draft` knows it.

    When the block ends, the object is described from what was kept of it (`check`), completed, and the ends of what
    the store then has are held against what was sent. When any of that fails, the upload is given up, and what was at
    `url` is as before. Raises SaveError for what the store refuses; other exceptions pass through.
    """
    draft = _begun(url, needed)
    try:
        yield draft.name
        check(draft.name)
        draft.complete()
    except BaseException as error:
        gone = draft.discard()
        if _is_own(error, draft):
            raise _failure(error, draft, gone=gone) from None
        raise
    finally:
        draft.close()


def written_draft(name: str) -> Draft:
    """The object that is being written under a hidden name. Raises SaveError for a URL that is none."""
    draft = draft_at(name)
    if draft is None:
        raise SaveError(f"{name} is not being written", path=name)
    return draft


def _begun(url: str, needed: int) -> Draft:
    older = None
    try:
        older = found(url)
        if older is not None and older.is_folder:
            raise SaveError(
                f"{url} was not saved: it is a folder", remedy="Give the URL of a file.", path=url, errno=errno.EISDIR
            )
        return Draft(url, needed, older)
    except ReadError as error:
        made = save_failure(error, url)
        made.add_details(*([_UNTOUCHED] if older is not None else []))
        raise made from None


def _is_own(error: BaseException, draft: Draft) -> TypeGuard[OSError | FileError]:
    """Whether what failed is this save, and not the reading of what is saved."""
    if isinstance(error, ReadError | FileError):
        return error.path in (draft.name, draft.url)
    return isinstance(error, OSError) and not isinstance(error, SaveError)


def _failure(error: OSError | FileError, draft: Draft, *, gone: bool) -> SaveError:
    details = []
    if draft.older is not None and not draft.replaced:
        details.append(_UNTOUCHED)
    elif draft.older is not None:
        details.append("it has replaced the checkpoint that was there before; a store that keeps versions has that one")
    if not gone:
        details.append(f"what was sent of it could not be removed: {draft.name}, or an upload that was never completed")
    made = save_failure(error, draft.url)
    made.add_details(*details)
    return made


def save_failure(error: OSError | FileError, url: str) -> SaveError:
    """A store's refusal as the error of a save."""
    code = error.errno if isinstance(error, OSError) else None
    if not isinstance(error, UnmoorError):
        return SaveError(f"{url} was not saved: {hushed(str(error))}", path=url, errno=code)
    headline = f"{url} was not saved: {error.headline.removeprefix(f'{url} ')}"
    return SaveError(headline, details=error.details, remedy=error.remedy, path=url, errno=code)
