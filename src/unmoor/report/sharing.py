"""Which tensors of a file are one tensor, or look into one storage. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from unmoor.values.catalog import Catalog, TensorEntry
from unmoor.values.text import count, format_bytes

from .layout import plain

__all__ = ["sharing"]

_SHOWN: Final = 6
"""The most ties to spell out."""

_NAMES: Final = 2
"""The most names of one tie to spell out."""


def sharing(catalog: Catalog) -> list[tuple[str, str]]:
    """A word and a sentence for each set of tied tensors, and for each storage that different tensors look into."""
    tied, views = [], []
    for group in _shared(catalog):
        windows: dict[Hashable, list[TensorEntry]] = {}
        for entry in group:
            windows.setdefault((entry.dtype, entry.offset, entry.shape, entry.stride), []).append(entry)
        tied += [[entry.path for entry in same] for same in windows.values() if len(same) > 1]
        if len(windows) > 1:
            views.append([same[0] for same in windows.values()])
    sentences = [("tied", text) for text in _ties(tied)] + [("views", _views(view)) for view in views]
    shown = sentences if len(sentences) <= _SHOWN + 1 else sentences[:_SHOWN]
    more = len(sentences) - len(shown)
    return [*shown, *([(shown[-1][0], f"and {more:,} more")] if more else [])]


def _shared(catalog: Catalog) -> list[list[TensorEntry]]:
    """Tensors by storage, where a storage has several; a pickled optimizer's own list of parameters does not count."""
    first: dict[tuple[str, str], TensorEntry] = {}
    several: dict[tuple[str, str], list[TensorEntry]] = {}
    for entry in catalog.tensors:
        if entry.storage and "param_groups" not in entry.keys:
            key = (entry.span.file if entry.span else "", entry.storage)
            one = first.setdefault(key, entry)
            if one is not entry:
                several.setdefault(key, [one]).append(entry)
    return [several[key] for key in first if key in several] if several else []


def _ties(tied: Sequence[Sequence[str]]) -> list[str]:
    """`a = b`; many ties between the same two places as one line."""
    places: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for paths in tied:
        places.setdefault(_heads(paths), []).append(paths)
    lines = []
    for heads, ties in places.items():
        if len(ties) > 2 and all(heads):
            lines.append(f"{_equation(heads)}: {count(len(ties), 'tensor')} each")
        else:
            lines += [_equation(paths) for paths in ties]
    return lines


def _equation(paths: Sequence[str]) -> str:
    shown = paths if len(paths) <= _NAMES + 1 else paths[:_NAMES]
    more = f" =\xa0{len(paths) - len(shown):,}\xa0others" if len(shown) < len(paths) else ""
    return " =\xa0".join(map(plain, shown)) + more


def _heads(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths without the segments at their end that all have in common."""
    segments = [path.split(".") for path in paths]
    while all(len(path) > 0 for path in segments) and len({path[-1] for path in segments}) == 1:
        segments = [path[:-1] for path in segments]
    return tuple(".".join(path) for path in segments)


def _views(view: Sequence[TensorEntry]) -> str:
    names = ", ".join(plain(entry.path) for entry in view[:2])
    more = f" and {len(view) - 2:,} more" if len(view) > 2 else ""
    span = view[0].span
    size = f" of {format_bytes(span.nbytes)}" if span else ""
    return f"{names}{more} lie in one storage{size}"
