"""URLs as text: what is one, its parts, and what of it may be shown.

Imports no fsspec and asks no server. A URL with a password or a token in it is known from then on by a form that has
neither; `real` gives back the one to open, to nobody but those who open it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["HIDDEN", "hushed", "is_url", "join", "known", "name_of", "parent", "real", "scheme_of"]

HIDDEN: Final = "***"
"""What stands where a password or a token was."""

_URL: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
"""Two letters at least: `C:` is a drive. A chain of file systems is one URL, `simplecache::s3://bucket/x.pt`."""
_SEGMENT: Final = re.compile(
    r"(?P<base>(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?:(?P<user>[^/?#]*)@)?[^/?#]*)(?P<path>[^?]*)(?P<query>\?.*)?",
    re.DOTALL,
)
_VALUE: Final = re.compile(r"=([^&#]*)")
_HERE: Final = ("file", "local")
_WEB: Final = ("http", "https")
_SHORTEST: Final = 4

_bases: dict[str, str] = {}
_queries: dict[str, str] = {}
_secrets: set[str] = set()


def is_url(path: str) -> bool:
    """Whether a path is a URL; a drive of Windows is none."""
    return _URL.match(path) is not None


def known(url: str) -> str:
    """The name by which a URL is known here: without its passwords and the values of its query; `file://` is a path."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() in _HERE:
        return rest.removeprefix("localhost") if rest[:10] != "localhost" else rest[9:]
    return "::".join(map(_known, url.split("::")))


def _known(segment: str) -> str:
    match = _SEGMENT.fullmatch(segment)
    if match is None:
        return segment
    base, query = match["base"], match["query"] or ""
    shown = _shown_base(base, match["user"], match["scheme"].lower())
    if shown != base:
        _bases[shown] = base
    told = _VALUE.sub(f"={HIDDEN}", query)
    if told != query:
        _secrets.update(value for value in _VALUE.findall(query) if len(value) >= _SHORTEST)
        _queries[shown + match["path"] + told] = _queries[shown + told] = query
    return shown + match["path"] + told


def _shown_base(base: str, user: str | None, scheme: str) -> str:
    if user is None or user.endswith(HIDDEN):
        return base
    name, colon, password = user.partition(":")
    if not colon and scheme not in _WEB:
        return base
    secret = password if colon else name
    _secrets.update(text for text in (secret, unquote(secret)) if text)
    start = base.index("://") + 3
    return f"{base[:start]}{name + ':' if colon else ''}{HIDDEN}{base[start + len(user) :]}"


def real(url: str) -> str:
    """The URL to open. Only what opens it may see it."""
    return "::".join(map(_real, url.split("::")))


def _real(segment: str) -> str:
    match = _SEGMENT.fullmatch(segment)
    if match is None:
        return segment
    base, path, query = match["base"], match["path"], match["query"] or ""
    found = _queries.get(base + path + query, _queries.get(base + query, query))
    return _bases.get(base, base) + path + found


def hushed(text: str) -> str:
    """A text of another library without any password or token that was given in a URL."""
    for secret in sorted(_secrets, key=len, reverse=True):
        for form in {secret, unquote(secret)}:
            text = text.replace(form, HIDDEN)
    return text


def scheme_of(url: str) -> str:
    """What stands before `://`, that of the first file system of a chain that has a path."""
    return _parts(url)[1].partition("://")[0].lower()


def join(url: str, *names: str) -> str:
    """The URL of what lies in a folder."""
    before, head, after = _parts(url)
    return before + "/".join([head.rstrip("/") if not head.endswith("://") else head[:-1], *names]) + after


def parent(url: str) -> str:
    """The URL of the folder in which it lies."""
    before, head, after = _parts(url)
    start = head.index("://") + 3
    cut = head.rstrip("/").rfind("/")
    return before + head[: max(cut, start)] + after


def name_of(url: str) -> str:
    """The last part of its path."""
    head = _parts(url)[1]
    return head.partition("://")[2].rstrip("/").rpartition("/")[2]


def _parts(url: str) -> tuple[str, str, str]:
    """The chain before, the URL up to its path's end, and its query and the chain behind."""
    segments = url.split("::")
    at = next(number for number, segment in enumerate(segments) if "://" in segment)
    head, mark, query = segments[at].partition("?")
    before = "".join(f"{segment}::" for segment in segments[:at])
    return before, head, "".join([mark + query, *(f"::{segment}" for segment in segments[at + 1 :])])
